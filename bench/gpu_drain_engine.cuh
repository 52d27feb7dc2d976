/*
 * gpu_drain_engine.cuh - the same plan, executed by launches in a stream: what an engine does that
 * executes its own runs.
 */
#ifndef ATTND_BENCH_GPU_DRAIN_ENGINE_CUH
#define ATTND_BENCH_GPU_DRAIN_ENGINE_CUH

#include "bench/must.cuh"
#include "persistent/cuda/host/launch.cuh"
#include "persistent/cuda/state/engine.cuh"
#include "persistent/cuda/state/roles.cuh"
#include "persistent/cut.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

template <typename Value> Value median(std::vector<Value> values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

extern "C" __global__ void attnd_engine_open(attnd::EngineSession *session, uint32_t workers,
                                             attnd_engine_account *account);
extern "C" __global__ void attnd_engine_prepare(attnd::EngineSession *session,
                                                attnd_engine_run run);
extern "C" __global__ void attnd_engine_refresh(attnd::EngineSession *session,
                                                attnd::EnginePlan *plan, attnd_engine_plan place,
                                                uint32_t lane);

extern "C" __global__ void attnd_engine_cut_lengths(attnd::EngineSession *session,
                                                    attnd::EnginePlan *plan,
                                                    const attnd_engine_cut args);

/* The same plan, cut on the device: lengths and a dense table of pages in device memory. */
struct OwnCut {
    attnd_engine_cut args;
    uint32_t shared_bytes;

    /* @pages: [requests][stride]. Requests have @rows each and lengths of their own. */
    cudaError_t open(const struct attnd_plan_head &head, const attnd_pace &pace, uint32_t workers,
                     const std::vector<int32_t> &pages, uint32_t page_size, uint32_t rows,
                     uint32_t keys)
    {
        const uint32_t requests = head.entries, splits = workers * 4 / head.heads_kv + 1;
        const uint32_t most = pace.rows_per_tile / head.group, tokens = rows < most ? rows : most;
        const uint32_t blocks = requests * ((rows + tokens - 1) / tokens);
        const uint64_t partials = 2 * (splits + 1) * tokens;
        char *memory;
        int32_t *arrays;
        cudaError_t error;
        args = {};
        args.shape = {requests,
                      rows,
                      requests * rows,
                      keys,
                      uint32_t(pages.size()) / requests,
                      page_size,
                      head.heads_kv,
                      head.group,
                      tokens,
                      workers,
                      head.flags & ATTND_BATCH_CAUSAL,
                      0,
                      splits,
                      0,
                      pace};
        args.blocks_max = blocks;
        args.tiles_max = 2 * blocks + splits;
        args.tiles_at = 512;
        args.merges_at = args.tiles_at + args.tiles_max * sizeof(attnd_tile);
        args.parts_at = args.merges_at + blocks * sizeof(attnd_merge);
        args.lengths_at = args.parts_at + (2 * splits + 2) * 4;
        const uint64_t arrivals = (args.lengths_at + requests * 4 + 255) / 256 * 256;
        const uint64_t states = arrivals + (blocks * head.heads_kv * 4 + 255) / 256 * 256;
        const uint64_t outputs = states + (partials * head.heads_q * 8 + 255) / 256 * 256;
        const uint64_t bytes = outputs + partials * head.heads_q * head.dim_vo * 4;
        if ((error = cudaMalloc(&memory, bytes)) || (error = cudaMemset(memory, 0, bytes)) ||
            (error = cudaMalloc(&arrays, (requests + pages.size()) * 4)) ||
            (error = cudaMemcpy(arrays + requests, pages.data(), pages.size() * 4,
                                cudaMemcpyHostToDevice)))
            return error;
        args.mirror = uint64_t(memory);
        args.arrivals = uint64_t(memory + arrivals);
        args.states = uint64_t(memory + states);
        args.outputs = uint64_t(memory + outputs);
        args.lengths = uint64_t(arrays);
        args.table = uint64_t(arrays + requests);
        args.set_version = ATTND_CUT_VERSION | 1;
        args.pages = uint32_t(pages.size());
        args.head = head;
        args.head.v_scale = 1;
        shared_bytes = ATTND_CUT_BYTES + requests * ATTND_CUT_REQUEST_BYTES +
                       blocks * ATTND_CUT_BLOCK_BYTES + args.tiles_max * ATTND_CUT_TILE_BYTES +
                       (requests + 127) / 128 * 16;
        return cudaFuncSetAttribute(attnd_engine_cut_lengths,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
    }

    cudaError_t set(const std::vector<int32_t> &lengths)
    {
        return cudaMemcpy(reinterpret_cast<void *>(args.lengths), lengths.data(),
                          lengths.size() * 4, cudaMemcpyHostToDevice);
    }

    void close()
    {
        cudaFree(reinterpret_cast<void *>(args.mirror));
        cudaFree(reinterpret_cast<void *>(args.lengths));
    }
};

/* A session of one plan in lane 0. */
struct OwnLaunches {
    attnd::EngineSession *session;
    attnd::EnginePlan *plan;
    char *mirror, *scratch, *image;
    attnd_engine_plan place;
    uint32_t workers, variant, first_rows;
    const OwnCut *cut; /* NULL: the host's plan */

    /* @plan_at: where the planner wrote the plan. Return: a code of CUDA's. */
    cudaError_t open(const char *plan_at, uint64_t plan_bytes, uint64_t scratch_bytes,
                     uint32_t items, uint32_t page_size, const attnd::Memory *memories,
                     uint32_t count)
    {
        const struct attnd_plan_head *head =
            reinterpret_cast<const struct attnd_plan_head *>(plan_at);
        const uint64_t counters = (head->merges * head->heads_kv * 4 + 4095) / 4096 * 4096;
        const uint64_t session_bytes = sizeof(attnd::EngineSession) + sizeof(attnd::Resident);
        cudaError_t error;
        void *device_image;
        if ((error = cudaMalloc(&session, session_bytes)) ||
            (error = cudaMemset(session, 0, session_bytes)) ||
            (error = cudaMalloc(&plan, sizeof(*plan))) ||
            (error = cudaMemset(plan, 0, sizeof(*plan))) ||
            (error = cudaMalloc(&mirror, plan_bytes + counters)) ||
            (error = cudaMalloc(&scratch, scratch_bytes + 4096)) ||
            (error =
                 cudaHostAlloc(&image, ATTND_IMAGE_PLAN_AT + plan_bytes, cudaHostAllocMapped)) ||
            (error = cudaHostGetDevicePointer(&device_image, image, 0)) ||
            (error = cudaMemcpy(session->memories, memories, count * sizeof(*memories),
                                cudaMemcpyHostToDevice)) ||
            (error = attnd::resident_templates(session->templates, 0)))
            return error;
        attnd_plan_image *said = reinterpret_cast<attnd_plan_image *>(image);
        *said = {};
        said->sequence = 2;
        said->set_version = head->set_version;
        said->advance_version = head->advance_version;
        said->items = items;
        said->page_size = page_size;
        said->plan_bytes = plan_bytes;
        said->scratch_bytes = scratch_bytes;
        memcpy(image + ATTND_IMAGE_PLAN_AT, plan_at, plan_bytes);
        place = {uint64_t(device_image), uint64_t(mirror), plan_bytes + counters, uint64_t(scratch),
                 scratch_bytes + 4096};
        variant = attnd::variant_index(head->dim_qk, head->dim_vo, head->dtype, head->kv_dtype,
                                       head->options);
        attnd_engine_open<<<1, 1>>>(session, workers, nullptr);
        return cudaDeviceSynchronize();
    }

    void refresh(cudaStream_t stream)
    {
        if (cut) {
            attnd_engine_cut_lengths<<<8, 512, cut->shared_bytes, stream>>>(session, plan,
                                                                            cut->args);
            return;
        }
        attnd_engine_refresh<<<1, 512, 512, stream>>>(session, plan, place, 0);
    }

    void prepare(attnd_engine_run run)
    {
        run.plan = uint64_t(plan);
        run.serial = 1;
        attnd_engine_prepare<<<1, 1>>>(session, run);
    }

    cudaError_t launch(uint32_t slot, cudaStream_t stream)
    {
        const attnd::Variant kernel = attnd::variant_get(variant);
        attnd::Resident *resident = reinterpret_cast<attnd::Resident *>(session + 1);
        uint32_t number = variant, first = 0, gang = 1;
        attnd::EngineLaunch launched = {session, plan, slot, 1, 0, first_rows};
        attnd_engine_fused fused = {};
        void *arguments[] = {&resident, &number, &first, &gang, &launched, &fused};
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(workers);
        config.blockDim = dim3(attnd::resident_threads);
        config.dynamicSmemBytes = kernel.shared_bytes;
        config.stream = stream;
        return cudaLaunchKernelExC(&config, kernel.kernel, arguments);
    }

    uint32_t error_of_lane()
    {
        uint32_t code = 0;
        return cudaMemcpy(&code, session->errors, 4, cudaMemcpyDeviceToHost) ? ~0u : code;
    }

    void close()
    {
        cudaFree(session);
        cudaFree(plan);
        cudaFree(mirror);
        cudaFree(scratch);
        cudaFreeHost(image);
    }
};

/* A kernel of an engine's: it reads @count vectors, as a layer's weights are read. */
__global__ void engine_kernel(const uint4 *weights, uint64_t count, uint32_t *word)
{
    uint32_t sum = 0;
    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        sum ^= __ldcs(weights + i).x;
    if (sum == 0x12345)
        *word = sum;
}

/* And its matrix products: 256 KB of straight code, as much as instruction caches hold. */
__global__ void engine_code(uint32_t *word)
{
    uint32_t sum = threadIdx.x;
#pragma unroll
    for (int part = 0; part < 256; part++) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            asm volatile("xor.b32 %0, %0, %1;\n\tadd.u32 %0, %0, %1;\n"
                         : "+r"(sum)
                         : "r"(blockIdx.x));
        __syncthreads();
    }
    if (sum == 0x12345)
        *word = sum;
}

/* Return: us of a launch of the graph. */
inline double graph_us(cudaGraphExec_t graph, cudaStream_t stream, uint32_t rounds)
{
    cudaEvent_t begin, end;
    std::vector<float> times;
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (uint32_t i = 0; i < rounds + 2; i++) {
        float ms;
        MUST(cudaEventRecord(begin, stream));
        MUST(cudaGraphLaunch(graph, stream));
        MUST(cudaEventRecord(end, stream));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 2)
            times.push_back(ms);
    }
    return 1e3 * median(times);
}

/* Return: us of a cut, one behind the other. */
inline double cut_us(OwnLaunches *own, cudaStream_t stream)
{
    constexpr uint32_t count = 64;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (uint32_t i = 0; i < count; i++)
        own->refresh(stream);
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&executable, graph, 0));
    MUST(cudaGraphDestroy(graph));
    const double us = graph_us(executable, stream, 12) / count;
    cudaGraphExecDestroy(executable);
    return us;
}

/* A layer's, read in front of each run. */
constexpr uint64_t weights_bytes = 96ull << 20;

/* Four runs of each layer; @own NULL: the same without the runs. @code: the caches hold other
 * code, too. */
inline cudaGraphExec_t capture(const char *from, uint32_t layers, OwnLaunches *own, bool code,
                               cudaStream_t stream)
{
    const uint4 *weights = reinterpret_cast<const uint4 *>(from);
    uint32_t *word = reinterpret_cast<uint32_t *>(const_cast<char *>(from));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    if (own)
        own->refresh(stream);
    for (uint32_t layer = 0; layer < 4 * layers; layer++) {
        engine_kernel<<<132, 1024, 0, stream>>>(weights, weights_bytes / 16, word);
        if (code)
            engine_code<<<132, 32, 0, stream>>>(word);
        if (own)
            MUST(own->launch(layer % layers, stream));
        engine_kernel<<<132, 256, 0, stream>>>(weights, 0, word);
    }
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&executable, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return executable;
}

/* Return: us of a run. */
inline double launched_us(OwnLaunches &own, const char *from, uint32_t layers, bool code,
                          cudaStream_t stream)
{
    cudaGraphExec_t with = capture(from, layers, &own, code, stream);
    cudaGraphExec_t without = capture(from, layers, nullptr, code, stream);
    const double us = graph_us(with, stream, 12) - graph_us(without, stream, 12);
    cudaGraphExecDestroy(with);
    cudaGraphExecDestroy(without);
    return us / (4 * layers);
}

#endif
