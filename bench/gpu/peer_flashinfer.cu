/*
 * peer_flashinfer.cu - FlashInfer's own decode kernels on the shapes of our figures, and the two
 * ceilings that need no framework: reading memory, and launching a kernel that does nothing.
 *
 * The kernels are called as FlashInfer's bindings call them, without Python and without a CUDA
 * graph; planned once, outside what is timed. Of its two families, `cc` runs on CUDA cores and `tc`
 * (prefill kernels with one row) on tensor cores; which is faster depends on the shape, so both are
 * timed and what is reported is the better. The two must agree with each other, or the shape
 * counts as failed. Inputs rotate past the L2; a time is the median of event pairs around the call.
 *
 * Prints lines of "<name> <value>" for bench/gpu --peers. Built where FLASHINFER names the folder
 * with FlashInfer's headers; without it, only the ceilings.
 */
#include "bench/free_device.cuh"
#include "bench/must.cuh"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <functional>
#include <string>
#include <vector>

#ifdef ATTND_FLASHINFER
#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>
#endif

/* Named: nvcc's stubs stumble over kernels instantiated with types of a nameless one. */
namespace peer
{

template <typename T> T *device_copy(const std::vector<T> &values)
{
    T *copy;
    MUST(cudaMalloc(&copy, values.size() * sizeof(T)));
    MUST(cudaMemcpy(copy, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return copy;
}

/* Median of event pairs around call(i), microseconds. */
double time_us(int count, const std::function<void(int)> &call)
{
    cudaEvent_t begin, end;
    std::vector<float> times;

    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int i = -count / 10 - 5; i < count; i++) {
        float ms;
        MUST(cudaEventRecord(begin));
        call(i < 0 ? -i : i);
        MUST(cudaEventRecord(end));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 0)
            times.push_back(ms * 1e3f);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

__global__ void nothing()
{
}

__global__ void fill(uint32_t *words, uint64_t count)
{
    uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        uint32_t x = uint32_t(i * 2654435761u);
        words[i] = 0x34003400u + ((x ^ x >> 15) & 0x83ff83ffu); /* fp16 near 0.3, either sign */
    }
}

__global__ void read_all(const uint4 *from, uint64_t count, uint32_t *sink)
{
    uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    uint32_t sum = 0;

    for (; i + 3 * step < count; i += 4 * step) { /* four loads in flight */
        uint4 a = __ldcs(from + i), b = __ldcs(from + i + step), c = __ldcs(from + i + 2 * step),
              d = __ldcs(from + i + 3 * step);
        sum ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^
               d.z ^ d.w;
    }
    if (sum == 0x12345678)
        *sink = sum;
}

void ceilings()
{
    const uint64_t bytes = 4ull << 30;
    void *memory;
    uint32_t *sink;
    MUST(cudaMalloc(&memory, bytes));
    MUST(cudaMalloc(&sink, 4));
    fill<<<1024, 256>>>(static_cast<uint32_t *>(memory), bytes / 4);
    double best = 1e30;
    for (int blocks : {132 * 4, 132 * 8, 132 * 16})
        best =
            std::min(best, time_us(10, [&](int) {
                         read_all<<<blocks, 512>>>(static_cast<uint4 *>(memory), bytes / 16, sink);
                     }));
    printf("read_gbps %.0f\n", double(bytes) / best * 1e-3);
    printf("empty_event_us %.2f\n", time_us(2000, [](int) { nothing<<<1, 32>>>(); }));
    std::vector<double> walls;
    for (int i = 0; i < 5000; i++) {
        auto begin = std::chrono::steady_clock::now();
        nothing<<<1, 32>>>();
        MUST(cudaStreamSynchronize(nullptr));
        std::chrono::duration<double, std::micro> wall = std::chrono::steady_clock::now() - begin;
        walls.push_back(wall.count());
    }
    std::sort(walls.begin(), walls.end());
    printf("launch_sync_us %.2f\n", walls[walls.size() / 2]);
    free_and_wait({memory, sink});
}

#ifdef ATTND_FLASHINFER
using namespace flashinfer;
constexpr uint32_t heads_q = 32, heads_kv = 8, dim = 128, page_size = 16;
constexpr size_t workspace_bytes = 256u << 20;
using Variant = DefaultAttention<false, false, false, false>;
using DecodeParams = BatchDecodeParams<half, half, half, int32_t>;
using PrefillParams = BatchPrefillPagedParams<half, half, half, int32_t>;

struct Workspace {
    void *floats, *integers, *pinned;
    Workspace()
    {
        MUST(cudaMalloc(&floats, workspace_bytes));
        MUST(cudaMalloc(&integers, workspace_bytes));
        MUST(cudaMallocHost(&pinned, workspace_bytes));
    }
    ~Workspace()
    {
        free_and_wait({floats, integers});
        cudaFreeHost(pinned);
    }
    template <typename T> T *integer(int64_t offset) const
    {
        return GetPtrFromBaseOffset<T>(integers, offset);
    }
    template <typename T> T *floating(int64_t offset) const
    {
        return GetPtrFromBaseOffset<T>(floats, offset);
    }
};

/* A batch of equal decodes; as many copies of K and V as outgrow the L2 twice. */
struct Batch {
    uint32_t requests, pages, copies;
    uint64_t plane; /* elements of K, or V, of one copy */
    half *kv, *q, *o;
    std::vector<int32_t> indptr, qo_indptr;
    int32_t *indptr_device, *indices, *last, *qo_indptr_device;

    Batch(uint32_t count, uint32_t kv_len) : requests(count), pages(count * kv_len / page_size)
    {
        const uint64_t rows = uint64_t(requests) * heads_q * dim;
        plane = uint64_t(pages) * page_size * heads_kv * dim;
        copies = uint32_t((200ull << 20) / (plane * 4)) + 2;
        MUST(cudaMalloc(&kv, copies * plane * 4));
        MUST(cudaMalloc(&q, rows * 2));
        MUST(cudaMalloc(&o, rows * 2));
        fill<<<1024, 256>>>(reinterpret_cast<uint32_t *>(kv), copies * plane);
        fill<<<64, 256>>>(reinterpret_cast<uint32_t *>(q), rows / 2);
        std::vector<int32_t> ids(pages);
        for (uint32_t i = 0; i < pages; i++) /* as bench/support/uniform.c shuffles */
            ids[i] = int32_t(uint64_t(i) * 1597 % pages);
        for (uint32_t i = 0; i <= requests; i++) {
            indptr.push_back(int32_t(i * (pages / requests)));
            qo_indptr.push_back(int32_t(i));
        }
        indptr_device = device_copy(indptr);
        qo_indptr_device = device_copy(qo_indptr);
        indices = device_copy(ids);
        last = device_copy(std::vector<int32_t>(requests, int32_t(page_size)));
    }
    ~Batch()
    {
        free_and_wait({kv, q, o, indptr_device, indices, last, qo_indptr_device});
    }
    paged_kv_t<half, int32_t> cache(uint32_t copy) const
    {
        half *k = kv + uint64_t(copy % copies) * 2 * plane;
        return {heads_kv, page_size, dim,     requests,      QKVLayout::kNHD,
                k,        k + plane, indices, indptr_device, last};
    }
    std::vector<half> result() const
    {
        std::vector<half> host(uint64_t(requests) * heads_q * dim);
        MUST(cudaMemcpy(host.data(), o, host.size() * 2, cudaMemcpyDeviceToHost));
        MUST(cudaMemset(o, 0xff, host.size() * 2));
        return host;
    }
};

double decode_cc(Batch &batch, const Workspace &work, int count, std::vector<half> &result)
{
    DecodePlanInfo plan;
    auto estimate = BatchDecodeWithPagedKVCacheWorkEstimationDispatched<
        heads_q / heads_kv, dim, PosEncodingMode::kNone, Variant, DecodeParams>;
    MUST((DecodePlan<dim, PosEncodingMode::kNone, Variant, DecodeParams>(
        work.floats, workspace_bytes, work.integers, work.pinned, workspace_bytes, plan,
        batch.indptr.data(), batch.requests, heads_q, page_size, false, nullptr, estimate)));
    auto run = [&](int copy) {
        DecodeParams params(batch.q, nullptr, batch.cache(uint32_t(copy)), batch.o, nullptr,
                            nullptr, heads_q, heads_q * dim, dim, -1, 0.0f,
                            1.0f / std::sqrt(float(dim)), 1.0f, 1e4f);
        params.padded_batch_size = uint32_t(plan.padded_batch_size);
        params.request_indices = work.integer<int32_t>(plan.request_indices_offset);
        params.kv_tile_indices = work.integer<int32_t>(plan.kv_tile_indices_offset);
        params.o_indptr = work.integer<int32_t>(plan.o_indptr_offset);
        params.kv_chunk_size_ptr = work.integer<int32_t>(plan.kv_chunk_size_ptr_offset);
        half *parts = plan.split_kv ? work.floating<half>(plan.v_offset) : nullptr;
        float *sums = plan.split_kv ? work.floating<float>(plan.s_offset) : nullptr;
        MUST((BatchDecodeWithPagedKVCacheDispatched<dim, PosEncodingMode::kNone, Variant>(
            params, parts, sums, false, nullptr)));
    };
    run(0);
    result = batch.result();
    return time_us(count, run);
}

double decode_tc(Batch &batch, const Workspace &work, int count, std::vector<half> &result)
{
    PrefillPlanInfo plan;
    MUST(PrefillPlan<int32_t>(work.floats, workspace_bytes, work.integers, work.pinned,
                              workspace_bytes, plan, batch.qo_indptr.data(), batch.indptr.data(),
                              batch.requests, batch.requests, heads_q, heads_kv, dim, dim,
                              page_size, false, 2, -1, -1, false, 0, 0, nullptr, 2));
    auto run = [&](int copy) {
        PrefillParams params;
        params.q = batch.q;
        params.paged_kv = batch.cache(uint32_t(copy));
        params.q_indptr = batch.qo_indptr_device;
        params.o = batch.o;
        params.group_size = uint_fastdiv(heads_q / heads_kv);
        params.num_qo_heads = heads_q;
        params.q_stride_n = heads_q * dim;
        params.q_stride_h = dim;
        params.window_left = -1;
        params.sm_scale = 1.0f / std::sqrt(float(dim));
        params.rope_rcp_scale = 1.0f;
        params.rope_rcp_theta = 1e-4f;
        params.request_indices = work.integer<int32_t>(plan.request_indices_offset);
        params.qo_tile_indices = work.integer<int32_t>(plan.qo_tile_indices_offset);
        params.kv_tile_indices = work.integer<int32_t>(plan.kv_tile_indices_offset);
        params.o_indptr = work.integer<int32_t>(plan.o_indptr_offset);
        params.kv_chunk_size_ptr = work.integer<int32_t>(plan.kv_chunk_size_ptr_offset);
        params.padded_batch_size = uint32_t(plan.padded_batch_size);
        params.max_total_num_rows = uint32_t(plan.total_num_rows);
        params.partition_kv = plan.split_kv;
        half *parts = nullptr;
        float *sums = nullptr;
        if (plan.split_kv) {
            params.merge_indptr = work.integer<int32_t>(plan.merge_indptr_offset);
            parts = work.floating<half>(plan.v_offset);
            sums = work.floating<float>(plan.s_offset);
        }
        if (plan.cta_tile_q != 16)
            exit(fprintf(stderr, "peer_flashinfer: unexpected tile\n"));
        MUST((BatchPrefillWithPagedKVCacheDispatched<16, dim, dim, PosEncodingMode::kNone, false,
                                                     MaskMode::kNone, Variant>(params, parts, sums,
                                                                               false, nullptr)));
    };
    run(0);
    result = batch.result();
    return time_us(count, run);
}

bool decode(const char *name, uint32_t requests, uint32_t kv_len, int count)
{
    Workspace work;
    Batch batch(requests, kv_len);
    std::vector<half> cc, tc;
    double cc_us = decode_cc(batch, work, count, cc), tc_us = decode_tc(batch, work, count, tc);
    float worst = 0;

    for (size_t i = 0; i < cc.size(); i++) {
        float difference = std::fabs(float(cc[i]) - float(tc[i]));
        worst = difference <= worst ? worst : difference; /* NaN counts */
    }
    if (!(worst < 5e-3f)) {
        fprintf(stderr, "peer_flashinfer: %s: cc and tc differ by %g\n", name, double(worst));
        return false;
    }
    printf("flashinfer_%s_us %.2f\n", name, std::min(cc_us, tc_us));
    printf("flashinfer_%s_cc_us %.2f\nflashinfer_%s_tc_us %.2f\n", name, cc_us, name, tc_us);
    return true;
}
#else
bool decode(const char *, uint32_t, uint32_t, int)
{
    return true;
}
#endif

} // namespace peer

int main()
{
    peer::ceilings();
    bool good = peer::decode("decode_64x8192", 64, 8192, 30);
    good &= peer::decode("decode_8x4096", 8, 4096, 100);
    good &= peer::decode("decode_1x8192", 1, 8192, 300);
    return good ? 0 : 1;
}
