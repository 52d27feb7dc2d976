/*
 * gpu_drain_bench.cuh - one shape of gpu_drain.cu: its tensors, its plan, its runs, and whether
 * what they computed is right.
 */
#ifndef ATTND_BENCH_GPU_DRAIN_BENCH_CUH
#define ATTND_BENCH_GPU_DRAIN_BENCH_CUH

#include "bench/free_device.cuh"
#include "bench/gpu_drain_clock.cuh"
#include "bench/gpu_drain_options.cuh"
#include "bench/gpu_drain_reference.cuh"
#include "bench/must.cuh"
#include "persistent/cuda/host/solo.cuh"

extern "C" {
#include "persistent/plan/plan.h"
}

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <random>
#include <unistd.h>
#include <vector>

namespace
{

using attnd::Memory;
using attnd::Solo;

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

/* What runs name: K and V, q, o, lse. */
std::array<Memory, 4> memories_of(const Bench &b)
{
    const uint32_t layers = b.shape.layers;
    return {Memory{b.kv, b.plane_bytes * 2 * layers, 0, 0},
            Memory{b.q, b.rows_bytes * layers, 0, 0}, Memory{b.o, b.o_bytes * layers, 0, 0},
            Memory{reinterpret_cast<char *>(b.lse), b.rows_bytes * layers, 0, 0}};
}

void make_plan(Bench &b, const Options &options)
{
    const attnd_plan_limits limits = limits_of(b, options.plan_workers);
    const uint64_t heap_bytes = plan_at - pool_at + attnd_plan_heap_bytes(&limits);
    MUST(attnd::solo_open(&b.solo, heap_bytes, uint32_t(b.workers), 512ull << 20,
                          memories_of(b).data(), 4));
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

} // namespace

#endif
