/*
 * gpu_drain.cu - the tile interpreter alone: plans by the planner, runs by the resident kernels,
 * and nothing else of the service.
 *
 * The program plays the daemon: it lays out a queue segment in pinned host memory, pools and
 * tensors in device memory, rings one run after the other and waits for its retire. Layers rotate,
 * so no run finds its keys in the L2. Two times are printed for each shape: on the device, from
 * the run's publication to its last item, and seen by the host, from the doorbell to the retire.
 * Every output that was timed is looked at afterwards: no element may be left poisoned or not
 * finite, and sampled rows are compared with a plain reference in fp32 and fp64 on the device.
 *
 * --only NAME: shapes whose names have that in them; --only NAME,NAME, those of these names.
 * --portable DIR: by the kernels of every GPU from sm_80 on, kernels/portable of a build; only
 * shapes whose kernels are there.
 * --engine 1: each shape then also as launches in a stream, in graphs of a run for each layer with
 * a kernel between two of them, less the same graph without the runs.
 * --drain N: instead, N runs are queued first and the kernels leave when they are done; what a
 * profiler needs.
 */
#include "bench/free_device.cuh"
#include "bench/gpu_drain_clock.cuh"
#include "bench/gpu_drain_engine.cuh"
#include "bench/gpu_drain_options.cuh"
#include "bench/gpu_drain_reference.cuh"
#include "bench/gpu_drain_shapes.cuh"
#include "persistent/cuda/host/solo.cuh"

extern "C" {
#include "persistent/plan/plan.h"
}

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <random>
#include <string>
#include <time.h>
#include <unistd.h>
#include <vector>
using attnd::Memory;
using attnd::Solo;

namespace
{

uint64_t now_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000ull + uint64_t(now.tv_nsec);
}

/* ---- the ceiling ------------------------------------------------------------------------------
 */

__global__ void read_all(const uint4 *in, uint64_t count, uint32_t *out)
{
    uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    uint32_t sum = 0;
#pragma unroll 8
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        uint4 x = __ldcs(in + i);
        sum ^= x.x ^ x.y ^ x.z ^ x.w;
    }
    if (sum == 0x12345)
        *out = sum;
}

double read_gbps()
{
    uint64_t bytes = 4ull << 30;
    char *memory;
    MUST(cudaMalloc(&memory, bytes));
    fill_random<<<2048, 256>>>(reinterpret_cast<uint16_t *>(memory), bytes / 2, 7, ATTND_FP16);
    cudaEvent_t begin, end;
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < 7; i++) {
        MUST(cudaEventRecord(begin));
        read_all<<<132 * 2, 1024>>>(reinterpret_cast<uint4 *>(memory), bytes / 16,
                                    reinterpret_cast<uint32_t *>(memory));
        MUST(cudaEventRecord(end));
        MUST(cudaEventSynchronize(end));
        float ms;
        MUST(cudaEventElapsedTime(&ms, begin, end));
        times.push_back(ms);
    }
    free_and_wait({memory});
    return double(bytes) / median(times) / 1e6;
}

/* ---- one shape --------------------------------------------------------------------------------
 */

/* Everything one shape owns. */
struct Bench {
    Shape shape;
    uint32_t pages;       /* a request */
    uint64_t plane_bytes; /* K or V of one layer */
    uint64_t rows_bytes;  /* q of one layer */
    uint64_t o_bytes;     /* o of one layer */
    char *kv, *q, *o, *weights;
    float *lse;
    attnd_plan *plan;
    std::vector<int32_t> page_ids;
    ClockWatch *watch;
    Solo solo = {};
    cudaStream_t streams[attnd::variant_streams], watch_stream;
    int workers;
};

constexpr uint64_t pool_at = attnd::solo_heap_at, plan_at = pool_at + 64 * 1024;

void make_tensors(Bench &b)
{
    const Shape &s = b.shape;
    b.pages = (s.kv + s.page_size - 1) / s.page_size;
    b.plane_bytes = uint64_t(b.pages) * s.batch * s.page_size * s.heads_kv * s.dim *
                    attnd_dtype_bytes(s.kv_type());
    b.rows_bytes = uint64_t(s.batch) * s.rows * s.heads_q * s.dim * 2;
    b.o_bytes = b.rows_bytes / s.dim * s.vo();
    uint64_t kv_bytes = b.plane_bytes * 2 * s.layers, rows_bytes = b.rows_bytes * s.layers;
    uint64_t lse_bytes = uint64_t(s.batch) * s.rows * s.heads_q * 4 * s.layers;
    MUST(cudaMalloc(&b.kv, kv_bytes));
    MUST(cudaMalloc(&b.q, rows_bytes));
    MUST(cudaMalloc(&b.o, b.o_bytes * s.layers));
    MUST(cudaMalloc(&b.lse, lse_bytes));
    if (s.kv_dtype)
        fill_bytes<<<4096, 256>>>(reinterpret_cast<uint8_t *>(b.kv), kv_bytes, 1);
    else
        fill_random<<<4096, 256>>>(reinterpret_cast<uint16_t *>(b.kv), kv_bytes / 2, 1, s.dtype);
    fill_random<<<4096, 256>>>(reinterpret_cast<uint16_t *>(b.q), rows_bytes / 2, 99, s.dtype);
    MUST(cudaMemset(b.o, 0xff, b.o_bytes * s.layers));
    MUST(cudaMemset(b.lse, 0xff, lse_bytes));
    b.page_ids.resize(uint64_t(b.pages) * s.batch);
    for (size_t i = 0; i < b.page_ids.size(); i++)
        b.page_ids[i] = int32_t(i);
    if (s.shuffled)
        std::shuffle(b.page_ids.begin(), b.page_ids.end(), std::mt19937(5));
    if (s.rise > 0 || s.nan) {
        int32_t *list;
        MUST(cudaMalloc(&list, b.page_ids.size() * 4));
        MUST(cudaMemcpy(list, b.page_ids.data(), b.page_ids.size() * 4, cudaMemcpyHostToDevice));
        for (uint32_t layer = 0; layer < s.layers; layer++)
            spoil_keys<<<1024, 256>>>(
                reinterpret_cast<uint16_t *>(b.kv + layer * b.plane_bytes),
                reinterpret_cast<uint16_t *>(b.kv + (s.layers + layer) * b.plane_bytes), list, s);
        MUST(cudaDeviceSynchronize());
        MUST(cudaFree(list));
    }
}

uint32_t options_of(const Shape &s)
{
    return (s.window ? ATTND_OPTION_WINDOW : 0) | (s.soft_cap > 0 ? ATTND_OPTION_SOFT_CAP : 0) |
           (s.alibi ? ATTND_OPTION_ALIBI : 0) | (s.fixed_split ? ATTND_OPTION_FIXED_SPLIT : 0);
}

attnd_plan_limits limits_of(const Bench &b, uint32_t plan_workers)
{
    const Shape &s = b.shape;
    attnd_plan_limits limits = {};
    limits.requests = s.batch;
    limits.rows = s.batch * s.rows;
    limits.pages = uint32_t(b.page_ids.size());
    limits.levels = 1;
    limits.page_size = s.page_size;
    limits.heads_q = s.heads_q;
    limits.heads_kv = s.heads_kv;
    limits.fixed_split = s.fixed_split;
    limits.target.tile_workers = plan_workers ? plan_workers : uint32_t(b.workers);
    limits.target.rows_per_tile = 128;
    limits.target.kv_granule = 64;
    limits.target.rates = {5200, 60, 60, 4400, 128}; /* of an H200 */
    return limits;
}

/* Return: the pool's description, with its planes behind it. */
attnd_heap_pool *describe_pool(const Bench &b, char *at)
{
    const Shape &s = b.shape;
    attnd_heap_pool *pool = reinterpret_cast<attnd_heap_pool *>(at);
    *pool = {
        s.layers, uint32_t(b.page_ids.size()), s.page_size, s.heads_kv, s.dim, s.vo(), s.kv_type(),
        0};
    attnd_heap_plane *planes = reinterpret_cast<attnd_heap_plane *>(pool + 1);
    for (uint32_t i = 0; i < 2 * s.layers; i++) {
        const int64_t dim = i < s.layers || s.one_plane() ? s.dim : s.vo();
        planes[i] = {0,
                     0,
                     b.shape.plane(i) * b.plane_bytes,
                     s.page_size * s.heads_kv * dim,
                     s.heads_kv * dim,
                     dim};
    }
    return pool;
}

/* All of the batch but its one level. */
attnd_batch_view batch_of(const Bench &b)
{
    const Shape &s = b.shape;
    attnd_batch_view batch = {};
    batch.rows = s.batch * s.rows;
    batch.levels = 1;
    batch.entries = s.batch;
    batch.pages = uint32_t(b.page_ids.size());
    batch.heads_q = s.heads_q;
    batch.dtype = s.dtype;
    batch.flags = ATTND_BATCH_CAUSAL;
    batch.options = options_of(s);
    batch.variant.size = ATTND_VARIANT_BYTES;
    batch.variant.window_left = int32_t(s.window) - 1;
    batch.variant.logits_soft_cap = s.soft_cap;
    batch.variant.fixed_split = s.fixed_split;
    batch.variant.position_encoding = s.alibi ? ATTND_POSITION_ALIBI : ATTND_POSITION_NONE;
    batch.sm_scale = 1.0f / std::sqrt(float(s.dim));
    batch.q_pitch = {int64_t(s.heads_q) * s.dim, int64_t(s.dim)};
    batch.o_pitch = {int64_t(s.heads_q) * s.vo(), int64_t(s.vo())};
    batch.lse_pitch.row = s.heads_q;
    batch.lse_pitch.head = 1;
    return batch;
}

void set_plan(Bench &b, const attnd_plan_limits &limits)
{
    const Shape &s = b.shape;
    std::vector<int32_t> qo(1, 0), kv(1, 0), last, ids;
    for (uint32_t i = 0; i < s.batch; i++) {
        const uint32_t keys = s.kv_of(i), pages = (keys + s.page_size - 1) / s.page_size;
        const auto first = b.page_ids.begin() + i * b.pages;
        ids.insert(ids.end(), first, first + pages);
        qo.push_back(int32_t((i + 1) * s.rows));
        kv.push_back(int32_t(ids.size()));
        last.push_back(int32_t((keys - 1) % s.page_size + 1));
    }
    attnd_batch_view batch = batch_of(b);
    batch.pages = uint32_t(ids.size());
    batch.level[0] = {s.batch, batch.pages, qo.data(), kv.data(), ids.data(), last.data()};
    attnd_fault fault = {};
    int code = attnd_plan_new(&limits, b.solo.queue + plan_at,
                              describe_pool(b, b.solo.queue + pool_at), pool_at, &b.plan);
    if (!code)
        code = attnd_planner_set(b.plan, &batch, &fault);
    if (code) {
        fprintf(stderr, "%s: planner: %d\n", s.name, code);
        exit(1);
    }
}

void make_plan(Bench &b, const Options &options)
{
    const attnd_plan_limits limits = limits_of(b, options.plan_workers);
    const Memory table[] = {{b.kv, b.plane_bytes * 2 * b.shape.layers, 0, 0},
                            {b.q, b.rows_bytes * b.shape.layers, 0, 0},
                            {b.o, b.o_bytes * b.shape.layers, 0, 0},
                            {reinterpret_cast<char *>(b.lse), b.rows_bytes * b.shape.layers, 0, 0}};
    const uint64_t heap_bytes = plan_at - pool_at + attnd_plan_heap_bytes(&limits);
    MUST(attnd::solo_open(&b.solo, heap_bytes, uint32_t(b.workers), 512ull << 20, table, 4));
    b.solo.settings.paths = options.paths;
    b.solo.settings.drain = options.drain != 0;
    set_plan(b, limits);
    MUST(cudaHostAlloc(&b.watch, sizeof(ClockWatch), cudaHostAllocMapped));
    memset(b.watch, 0, sizeof(ClockWatch));
    MUST(cudaStreamCreateWithFlags(&b.watch_stream, cudaStreamNonBlocking));
    for (cudaStream_t &stream : b.streams)
        MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

void launch(Bench &b)
{
    uint32_t variant = attnd::variant_index(b.shape.dim, b.shape.vo(), b.shape.dtype,
                                            b.shape.kv_type(), options_of(b.shape));
    Solo &solo = b.solo;
    MUST(attnd::resident_upload(solo.resident, &solo.settings, 1u << variant));
    MUST(attnd::resident_launch(solo.resident, &solo.settings, 1, b.streams));
}

void wait_left(Bench &b)
{
    for (cudaStream_t stream : b.streams)
        while (cudaStreamQuery(stream) == cudaErrorNotReady)
            ;
    MUST(cudaDeviceSynchronize());
}

void ring(Bench &b, uint32_t layer)
{
    const Shape &s = b.shape;
    attnd_run run = {};
    run.kind = ATTND_RUN_ATTEND;
    run.plan_offset_bytes = plan_at;
    run.layer = layer;
    run.items = attnd_plan_items(attnd_plan_head(b.plan), ATTND_RUN_ATTEND);
    run.q = {1, 0, layer * b.rows_bytes};
    run.o = {2, 0, layer * b.o_bytes};
    run.lse = {3, 0, uint64_t(layer) * s.batch * s.rows * s.heads_q * 4};
    run.k = run.v = {ATTND_NONE, 0, 0};
    run.mailbox = ATTND_NONE;
    /* Several are in flight with --drain: partials of their own. */
    const uint64_t scratch_bytes = attnd_plan_scratch_bytes(attnd_plan_head(b.plan));
    if (scratch_bytes)
        run.scratch_offset_bytes =
            b.solo.tail % (b.solo.settings.scratch_bytes / scratch_bytes) * scratch_bytes;
    attnd::solo_ring(&b.solo, &run);
}

attnd_retire wait_retire(Bench &b, uint32_t number)
{
    attnd_retire retire;
    if (attnd::solo_wait(b.solo, number, 20000000000ull, &retire)) {
        fprintf(stderr, "%s: stuck at run %u\n", b.shape.name, number);
        _exit(1); /* exit() would wait for the kernel */
    }
    return retire;
}

constexpr uint32_t reference_bytes_max = 160 * 1024;

/* Return: the worst relative error over all layers; a poisoned or non-finite element is 1e9. */
float check(Bench &b)
{
    const Shape &s = b.shape;
    const uint32_t count = 512;
    std::mt19937 random(11);
    std::vector<uint2> samples(count);
    for (uint32_t i = 0; i < count; i++) { /* first and last rows, and anywhere */
        uint32_t rows = s.batch * s.rows;
        uint32_t row = i < 40 ? (rows > i ? i : 0) : i < 80 ? rows - 1 - i % rows : random() % rows;
        samples[i] = make_uint2(row % rows, random() % s.heads_q);
    }
    uint2 *samples_device;
    int32_t *pages_device;
    float *error_device;
    unsigned long long *bad, bad_host = 0;
    MUST(cudaMalloc(&samples_device, count * sizeof(uint2)));
    MUST(cudaMalloc(&error_device, count * sizeof(float)));
    MUST(cudaMalloc(&pages_device, b.page_ids.size() * 4));
    MUST(cudaMalloc(&bad, 8));
    MUST(cudaMemset(bad, 0, 8));
    MUST(cudaMemcpy(samples_device, samples.data(), count * sizeof(uint2), cudaMemcpyHostToDevice));
    MUST(
        cudaMemcpy(pages_device, b.page_ids.data(), b.page_ids.size() * 4, cudaMemcpyHostToDevice));
    MUST(cudaFuncSetAttribute(reference, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              reference_bytes_max));
    count_bad<<<2048, 256>>>(reinterpret_cast<uint16_t *>(b.o), b.o_bytes / 2 * s.layers, s.dtype,
                             bad);
    MUST(cudaMemcpy(&bad_host, bad, 8, cudaMemcpyDeviceToHost));
    float worst = 0;
    if (s.nan) /* of the row that sees it, and of nobody else */
        bad_host -= uint64_t(s.layers) * s.heads_q * s.dim;
    for (uint32_t layer = 0; layer < s.layers && s.kv * 4 <= reference_bytes_max; layer++) {
        ReferenceArgs args = {reinterpret_cast<uint16_t *>(b.q + layer * b.rows_bytes),
                              reinterpret_cast<uint16_t *>(b.o + layer * b.o_bytes),
                              b.kv + layer * b.plane_bytes,
                              b.kv + s.plane(s.layers + layer) * b.plane_bytes,
                              b.lse + uint64_t(layer) * s.batch * s.rows * s.heads_q,
                              pages_device,
                              samples_device,
                              error_device,
                              s};
        uint32_t some = layer == 0 ? count : 64;
        reference<<<some, 128, s.kv * 4>>>(args);
        MUST(cudaGetLastError());
        std::vector<float> errors(some);
        MUST(cudaMemcpy(errors.data(), error_device, some * 4, cudaMemcpyDeviceToHost));
        for (float error : errors)
            worst = std::isfinite(error) ? std::max(worst, error) : 1e9f;
    }
    cudaFree(samples_device);
    cudaFree(error_device);
    cudaFree(pages_device);
    cudaFree(bad);
    return bad_host ? 1e9f : worst;
}

void release(Bench &b)
{
    attnd_plan_free(b.plan);
    attnd::solo_close(&b.solo);
    free_and_wait({b.kv, b.q, b.o, b.lse});
    cudaFreeHost(b.watch);
    cudaStreamDestroy(b.watch_stream);
    for (cudaStream_t stream : b.streams)
        cudaStreamDestroy(stream);
}

void print(const Bench &b, double device_us, double host_us, double mhz, float error)
{
    const Shape &s = b.shape;
    const struct attnd_plan_head *head = attnd_plan_head(b.plan);
    double pairs = 0, keys = 0;
    for (uint32_t i = 0; i < s.batch; i++) {
        keys += s.kv_of(i);
        for (uint32_t r = 0; r < s.rows; r++)
            pairs += s.kv_of(i) - s.rows + r + 1;
    }
    double tflops = 2.0 * s.heads_q * pairs * (s.dim + s.vo()) / device_us / 1e6;
    double elements = s.one_plane() ? s.dim : s.dim + s.vo();
    double gbps = keys * s.heads_kv * elements * attnd_dtype_bytes(s.kv_type()) / device_us / 1e3;
    printf("%-22s %5u items  device %9.1f us  host %9.1f us  %7.0f GB/s  %6.1f TFLOP/s  %4.0f MHz  "
           "error %.1e%s\n",
           s.name, head->tiles * head->heads_kv, device_us, host_us, s.rows == 1 ? gbps : 0.0,
           s.rows == 1 && !s.one_plane() ? 0.0 : tflops, mhz, double(error),
           error < 6e-3f ? "" : "  WRONG");
    fflush(stdout);
}

/* ---- launches in a stream ---------------------------------------------------------------------
 */

attnd_engine_run engine_run_of(const Bench &b, uint32_t layer)
{
    const Shape &s = b.shape;
    const attnd_heap_plane *planes = reinterpret_cast<const attnd_heap_plane *>(
        reinterpret_cast<const attnd_heap_pool *>(b.solo.queue + pool_at) + 1);
    attnd_engine_run run = {};
    run.k = planes[layer];
    run.v = planes[s.layers + layer];
    run.q = {1, 0, layer * b.rows_bytes};
    run.o = {2, 0, layer * b.o_bytes};
    run.lse = {3, 0, uint64_t(layer) * s.batch * s.rows * s.heads_q * 4};
    run.slot = run.layer = layer;
    run.page_size = s.page_size;
    run.pages = uint32_t(b.page_ids.size());
    run.heads_kv = s.heads_kv;
    run.dim_qk = s.dim;
    run.dim_vo = s.vo();
    run.kv_dtype = s.kv_type();
    return run;
}

bool bench_engine(Bench &b, const Options &options, double device_us)
{
    const Shape &s = b.shape;
    const struct attnd_plan_head *head = attnd_plan_head(b.plan);
    const Memory table[] = {{b.kv, b.plane_bytes * 2 * s.layers, 0, 0},
                            {b.q, b.rows_bytes * s.layers, 0, 0},
                            {b.o, b.o_bytes * s.layers, 0, 0},
                            {reinterpret_cast<char *>(b.lse), b.rows_bytes * s.layers, 0, 0}};
    const attnd_plan_limits limits = limits_of(b, options.plan_workers);
    OwnLaunches own = {};
    own.workers = uint32_t(b.workers) + 1; /* no dispatcher */
    own.first_rows = std::min(s.rows * s.heads_q / s.heads_kv, 128u);
    MUST(own.open(b.solo.queue + plan_at, attnd_plan_heap_bytes(&limits),
                  attnd_plan_scratch_bytes(head), attnd_plan_items(head, ATTND_RUN_ATTEND),
                  s.page_size, table, 4));
    MUST(cudaMemset(b.o, 0xff, b.o_bytes * s.layers));
    own.refresh(0);
    for (uint32_t layer = 0; layer < s.layers; layer++)
        own.prepare(engine_run_of(b, layer));
    MUST(cudaDeviceSynchronize());
    MUST(cudaMalloc(&b.weights, weights_bytes));
    MUST(cudaMemset(b.weights, 0, weights_bytes));
    double us[3];
    OwnCut cut;
    MUST(cut.open(*head, attnd_plan_pace(b.plan), own.workers, b.page_ids, s.page_size, s.rows,
                  s.kv));
    std::vector<int32_t> lengths;
    for (uint32_t i = 0; i < s.batch; i++)
        lengths.push_back(int32_t(s.kv_of(i)));
    MUST(cut.set(lengths));
    double cut_us_of[2] = {};
    float error = 0;
    uint32_t code = 0;
    for (uint32_t way = 0; way < 3; way++) {
        if (way == 2) {
            MUST(cudaDeviceSynchronize());
            error = check(b);
            code = own.error_of_lane();
            MUST(cudaMemset(b.o, 0xff, b.o_bytes * s.layers));
            own.cut = &cut;
        }
        us[way] = launched_us(own, b.weights, s.layers, way > 0, b.streams[0]) - device_us;
    }
    cudaFree(b.weights);
    MUST(cudaDeviceSynchronize());
    error = std::max(error, check(b));
    code |= own.error_of_lane();
    cut_us_of[0] = cut_us(&own, b.streams[0]);
    for (uint32_t i = 0; i < s.batch; i++)
        lengths[i] = int32_t(s.kv / 4 + 1 + uint64_t(s.kv) * 3 / 4 * (i * 37 % 64) / 64);
    MUST(cut.set(lengths));
    cut_us_of[1] = cut_us(&own, b.streams[0]);
    printf("%-22s launched behind a layer's weights, over the tiles: %5.1f us, and its code %5.1f, "
           "cut on the device %5.1f  cut %4.1f us, of other lengths %4.1f  error %.1e lane %u%s\n",
           s.name, us[0], us[1], us[2], cut_us_of[0], cut_us_of[1], double(error), code,
           error < 6e-3f && !code ? "" : "  WRONG");
    fflush(stdout);
    cut.close();
    own.close();
    return error < 6e-3f && !code;
}

bool bench(const Shape &shape, const Options &options, int workers)
{
    Bench b;
    b.shape = shape;
    b.workers = workers;
    make_tensors(b);
    make_plan(b, options);
    MUST(cudaDeviceSynchronize());
    std::vector<double> device_us, host_us, mhz;
    uint32_t runs = options.drain ? options.drain : options.runs ? options.runs : shape.runs;
    if (options.drain) {
        for (uint32_t i = 0; i < runs; i++)
            ring(b, i % shape.layers);
        MUST(cudaProfilerStart()); /* both kernels must run at once: profile a range of the program
                                    */
        launch(b);
        wait_left(b);
        MUST(cudaProfilerStop());
        for (uint32_t i = 0; i < runs; i++) {
            attnd_retire retire = wait_retire(b, i);
            device_us.push_back(double(retire.end_ns - retire.begin_ns) / 1e3);
            host_us.push_back(0);
        }
    } else {
        launch(b);
        watch_clock<<<1, 1, 0, b.watch_stream>>>(b.watch);
        const uint32_t warm_up = shape.nan ? 0 : 4;
        for (uint32_t i = 0; i < runs + warm_up; i++) {
            uint64_t begin = now_ns();
            ring(b, i % shape.layers);
            attnd_retire retire = wait_retire(b, i);
            uint64_t end = now_ns();
            if (i < warm_up)
                continue;
            device_us.push_back(double(retire.end_ns - retire.begin_ns) / 1e3);
            host_us.push_back(double(end - begin) / 1e3);
            mhz.push_back(clock_mhz(*b.watch, retire.begin_ns, retire.end_ns));
        }
        b.watch->stop = 1;
        attnd::solo_park(b.solo);
        wait_left(b);
    }
    float error = check(b);
    print(b, median(device_us), median(host_us), mhz.empty() ? 0 : median(mhz), error);
    const bool right = !options.engine || bench_engine(b, options, median(device_us));
    release(b);
    return error < 6e-3f && right;
}

bool wanted(const Shape &shape, const Options &options)
{
    if (!attnd::variant_get(attnd::variant_index(shape.dim, shape.vo(), shape.dtype,
                                                 shape.kv_type(), options_of(shape)))
             .kernel)
        return false;
    if (options.only.find(',') == std::string::npos)
        return strstr(shape.name, options.only.c_str());
    return ("," + options.only + ",").find("," + std::string(shape.name) + ",") !=
           std::string::npos;
}

} // namespace

int main(int argc, char **argv)
{
    Options options;
    for (int i = 1; i < argc; i += 2)
        take_option(options, argv[i], argv[i + 1]);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    cudaDeviceProp properties;
    MUST(cudaGetDeviceProperties(&properties, 0));
    MUST(prepare(options));
    if (!options.drain)
        printf("%s: reading 4 GiB runs at %.0f GB/s\n", properties.name, read_gbps());
    bool right = true;
    const int sms = properties.multiProcessorCount - 1;
    const int workers = options.workers && int(options.workers) < sms ? int(options.workers) : sms;
    for (const Shape &shape : shapes)
        if (wanted(shape, options))
            right &= bench(shape, options, workers);
    return right ? 0 : 1;
}
