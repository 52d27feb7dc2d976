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
 * a kernel between two of them, less the same graph without the runs; and with straight code in
 * front of each run. That code is fetched anew behind a run, which is in the second figure: it is
 * of use beside that of another build, not by itself.
 * --drain N: instead, N runs are queued first and the kernels leave when they are done; what a
 * profiler needs.
 */
#include "bench/free_device.cuh"
#include "bench/gpu_drain_bench.cuh"
#include "bench/gpu_drain_engine.cuh"
#include "bench/gpu_drain_shapes.cuh"
#include "schemas/clock.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <string>
#include <vector>

namespace
{

/* ---- the ceiling ---- */

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

/* ---- one shape ---- */

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

/* ---- launches in a stream ---- */

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
    const attnd_plan_limits limits = limits_of(b, options.plan_workers);
    OwnLaunches own = {};
    own.workers = uint32_t(b.workers) + 1; /* no dispatcher */
    own.first_rows = std::min(s.rows * s.heads_q / s.heads_kv, 128u);
    MUST(own.open(b.solo.queue + plan_at, attnd_plan_heap_bytes(&limits),
                  attnd_plan_scratch_bytes(head), attnd_plan_items(head, ATTND_RUN_ATTEND),
                  s.page_size, memories_of(b).data(), 4));
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
            uint64_t begin = attnd_clock_ns();
            ring(b, i % shape.layers);
            attnd_retire retire = wait_retire(b, i);
            uint64_t end = attnd_clock_ns();
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
