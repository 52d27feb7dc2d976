/*
 * tile_prefill.cuh - many query rows: bound by the tensor cores.
 *
 * 128 packed rows, 64 for each of two consumer warpgroups, against blocks of keys that the producer
 * warpgroup gathers page by page with cp.async (any page size, any strides of 16 bytes). Blocks run
 * from the last to the first, so the masked ones come first. The products of a block overlap with
 * the softmax of the next: QK(j+1) is issued, then PV(j), and the exponentials of j+1 run while
 * PV(j) does (FlashAttention-3, arXiv 2407.08608, its intra-warpgroup pipelining).
 *
 * Shared memory: Q [panel][128 rows][64], K and V [stage][panel][keys][64], all 128-byte swizzled
 * panels.
 */
#ifndef ATTND_PERSISTENT_CUDA_TILE_PREFILL_CUH
#define ATTND_PERSISTENT_CUDA_TILE_PREFILL_CUH

#include "persistent/cuda/barrier.cuh"
#include "persistent/cuda/copy.cuh"
#include "persistent/cuda/tile.cuh"
#include "persistent/cuda/wgmma.cuh"

namespace attnd
{

constexpr int prefill_rows = 128, prefill_stages = 2;

template <int D> struct PrefillShape {
    static constexpr int keys = D == 256 ? 64 : 128;
    static constexpr int panels = D / 64;
    static constexpr int out_columns = D == 64 ? 64 : 128; /* of one instruction */
    static constexpr int out_parts = D / out_columns;
    static constexpr uint32_t q_bytes = prefill_rows * D * 2;
    static constexpr uint32_t kv_bytes = keys * D * 2;
    static constexpr uint32_t shared_bytes = q_bytes + 2 * prefill_stages * kv_bytes;
};

/* Full: 128 producer threads arrive; empty: one thread of each consumer warp. */
struct PrefillBarriers {
    uint64_t k_full[prefill_stages], k_empty[prefill_stages];
    uint64_t v_full[prefill_stages], v_empty[prefill_stages];
};

__device__ __forceinline__ void prefill_barriers_init(PrefillBarriers *bars)
{
    for (int s = 0; s < prefill_stages; s++) {
        barrier_init(&bars->k_full[s], producer_threads);
        barrier_init(&bars->v_full[s], producer_threads);
        barrier_init(&bars->k_empty[s], consumer_threads / 32);
        barrier_init(&bars->v_empty[s], consumer_threads / 32);
    }
}

/* Keys no row of the tile sees are not loaded. */
template <int D> __device__ __forceinline__ int32_t prefill_blocks(const Item &item)
{
    int32_t end = visible_end(item, item.tile.row_begin + item.tile.row_count - 1);
    constexpr int keys = PrefillShape<D>::keys;
    return end > item.kv_begin ? (end - item.kv_begin + keys - 1) / keys : 0;
}

/* One block of one plane into a stage; rows past the range become zeros. Lane l of a warp resolves
 * the row warp * (keys / 4) + l and the warp loads its rows together. */
template <typename T, int D>
__device__ __forceinline__ void gather_block(const Item &item, const char *plane_base,
                                             const attnd_heap_plane &plane, int32_t first,
                                             uint32_t stage)
{
    constexpr int keys = PrefillShape<D>::keys, chunks = D / 8;
    constexpr int rows = keys / 4;
    constexpr int steps = rows * chunks / 32;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const T *base = reinterpret_cast<const T *>(plane_base);
    int32_t mine = first + int32_t(warp * rows + lane);
    int64_t offset = -1;
    if (lane < rows && mine < item.kv_end)
        offset = kv_row<T>(item.run, item.entry, plane_base, plane, item.kv_head, mine) - base;
#pragma unroll 4
    for (int i = 0; i < steps; i++) {
        uint32_t at = i * 32 + lane, r = at / chunks, c = at % chunks;
        int64_t from = __shfl_sync(0xffffffffu, offset, r);
        uint32_t row = warp * rows + r;
        uint32_t to = stage + c / 8 * (keys * 128) + row * 128 + ((c % 8 ^ row % 8) << 4);
        cp_async16(to, base + (from < 0 ? 0 : from) + c * 8, from < 0 ? 0 : 16);
    }
}

/* The producer warpgroup: all blocks of the item. @count: blocks moved so far, kept across items.
 */
template <typename T, int D>
__device__ __forceinline__ void prefill_produce(const Item &item, uint32_t shared,
                                                PrefillBarriers *bars, uint32_t *count)
{
    using Shape = PrefillShape<D>;
    const uint32_t k_base = shared + Shape::q_bytes;
    const uint32_t v_base = k_base + prefill_stages * Shape::kv_bytes;
    for (int32_t block = prefill_blocks<D>(item) - 1; block >= 0; block--) {
        uint32_t stage = *count % prefill_stages, parity = *count / prefill_stages % 2;
        int32_t first = item.kv_begin + block * Shape::keys;
        barrier_wait(&bars->k_empty[stage], parity ^ 1);
        gather_block<T, D>(item, item.run->k_base, item.run->k_plane, first,
                           k_base + stage * Shape::kv_bytes);
        barrier_arrive_copies(&bars->k_full[stage]);
        barrier_wait(&bars->v_empty[stage], parity ^ 1);
        gather_block<T, D>(item, item.run->v_base, item.run->v_plane, first,
                           v_base + stage * Shape::kv_bytes);
        barrier_arrive_copies(&bars->v_full[stage]);
        (*count)++;
    }
}

/* Q of the tile into shared memory; rows that are not there become zeros. Both consumer groups. */
template <typename T, int D>
__device__ __forceinline__ void load_q(const Item &item, uint32_t shared)
{
    constexpr int chunks = D / 8;
    const attnd_plan_head &plan = item.run->plan;
    for (uint32_t at = consumer_thread(); at < prefill_rows * chunks; at += consumer_threads) {
        uint32_t r = at / chunks, c = at % chunks;
        uint32_t token = r / plan.group, head = item.kv_head * plan.group + r % plan.group;
        bool there = r < item.packed_rows;
        const T *from = reinterpret_cast<const T *>(item.run->q);
        if (there)
            from += int64_t(item.tile.row_begin + token) * plan.q_stride_row +
                    int64_t(head) * plan.q_stride_head + c * 8;
        uint32_t to = shared + c / 8 * (prefill_rows * 128) + r * 128 + ((c % 8 ^ r % 8) << 4);
        cp_async16(to, from, there ? 16 : 0);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
    consumers_sync();
}

/* State of the two rows a thread owns: g and g + 8 of its warp's 16. */
template <int D> struct RowState {
    float o[PrefillShape<D>::out_parts][PrefillShape<D>::out_columns / 2];
    float m[2], l[2];
    int32_t end[2]; /* keys below are visible */
};

template <typename T, int D>
__device__ __forceinline__ void issue_scores(float (&s)[PrefillShape<D>::keys / 2], uint32_t q,
                                             uint32_t k)
{
    using Shape = PrefillShape<D>;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t panel = step / 4, inside = step % 4 * 32;
        Wgmma<T, Shape::keys>::scores(
            s, descriptor(q + panel * (prefill_rows * 128) + inside, 0, 1024),
            descriptor(k + panel * (Shape::keys * 128) + inside, 0, 1024), step > 0);
    }
}

template <typename T, int D>
__device__ __forceinline__ void
issue_values(RowState<D> &state, const uint32_t (&p)[PrefillShape<D>::keys / 4], uint32_t v)
{
    using Shape = PrefillShape<D>;
    constexpr uint32_t panel_bytes = Shape::keys * 128;
#pragma unroll
    for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
        for (int step = 0; step < Shape::keys / 16; step++)
            Wgmma<T, Shape::out_columns>::values(
                state.o[part], &p[step * 4],
                descriptor(v + part * (Shape::out_columns / 64) * panel_bytes + step * 2048,
                           panel_bytes, 1024),
                1);
}

/* Scores to probabilities: masks if asked, moves the maxima, sums. fade: what o must be scaled by.
 */
template <int D>
__device__ __forceinline__ void softmax_block(RowState<D> &state,
                                              float (&s)[PrefillShape<D>::keys / 2], float scale,
                                              int32_t first, bool masked, float (&fade)[2])
{
    constexpr int keys = PrefillShape<D>::keys;
    const int32_t column = first + int32_t(threadIdx.x % 4 * 2);
    if (masked) {
#pragma unroll
        for (int j = 0; j < keys / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (column + j * 8 + e % 2 >= state.end[e / 2])
                    s[j * 4 + e] = -INFINITY;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = state.m[half];
#pragma unroll
        for (int j = 0; j < keys / 8; j++)
            top = fmaxf(top, fmaxf(s[j * 4 + half * 2], s[j * 4 + half * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        float base = top == -INFINITY ? 0.0f : top * scale;
        fade[half] = exp2_fast(state.m[half] * scale - base);
        state.m[half] = top;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < keys / 8; j++)
#pragma unroll
            for (int e = half * 2; e < half * 2 + 2; e++) {
                s[j * 4 + e] = exp2_fast(fmaf(s[j * 4 + e], scale, -base));
                sum += s[j * 4 + e];
            }
        state.l[half] = state.l[half] * fade[half] + sum;
    }
}

template <typename T, int D>
__device__ __forceinline__ void pack_p(uint32_t (&p)[PrefillShape<D>::keys / 4],
                                       const float (&s)[PrefillShape<D>::keys / 2])
{
#pragma unroll
    for (int i = 0; i < PrefillShape<D>::keys / 4; i++)
        p[i] = Pack<T>::pair(s[i * 2], s[i * 2 + 1]);
}

/* Writes o and lse, or the partial. m is in raw score units here. */
template <typename T, int D>
__device__ __forceinline__ void store_rows(const Item &item, RowState<D> &state, uint32_t first_row,
                                           float scale)
{
    using Shape = PrefillShape<D>;
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t r = first_row + half * 8;
        if (r >= item.packed_rows)
            continue;
        uint32_t token = r / plan.group, head = item.kv_head * plan.group + r % plan.group;
        float l = state.l[half], m = state.m[half] * scale;
        bool partial = item.tile.partial != ATTND_NONE;
        float inverse = partial ? 1.0f : l == 0.0f ? 0.0f : 1.0f / l;
        int64_t row = int64_t(item.tile.row_begin) + token;
        uint64_t at = uint64_t(item.tile.partial + token) * plan.heads_q + head;
        T *out = reinterpret_cast<T *>(run->o) + row * plan.o_stride_row +
                 int64_t(head) * plan.o_stride_head;
#pragma unroll
        for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
            for (int j = 0; j < Shape::out_columns / 8; j++) {
                uint32_t d = part * Shape::out_columns + j * 8 + threadIdx.x % 4 * 2;
                float a = state.o[part][j * 4 + half * 2] * inverse;
                float b = state.o[part][j * 4 + half * 2 + 1] * inverse;
                if (partial) {
                    float2 both = {a, b};
                    *reinterpret_cast<float2 *>(&run->outputs[at * D + d]) = both;
                } else {
                    out[d] = from_float<T>(a);
                    out[d + 1] = from_float<T>(b);
                }
            }
        if (threadIdx.x % 4)
            continue;
        if (partial) {
            run->states[at * 2] = l == 0.0f ? -INFINITY : m;
            run->states[at * 2 + 1] = l;
        } else if (run->lse) {
            run->lse[row * plan.lse_stride_row + int64_t(head) * plan.lse_stride_head] =
                lse_of(plan, m, l);
        }
    }
}

/* The consumer warpgroups. Return: false if a result is not finite; the caller then takes the naive
 * way, because a product with a zero probability cannot hide a NaN that the row does not see. */
template <typename T, int D>
__device__ __forceinline__ bool prefill_consume(const Item &item, uint32_t shared,
                                                PrefillBarriers *bars, uint32_t *count,
                                                uint32_t *flag)
{
    using Shape = PrefillShape<D>;
    const attnd_plan_head &plan = item.run->plan;
    const uint32_t group = consumer_thread() / 128, warp = consumer_thread() / 32 % 4;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t first_row = group * 64 + warp * 16 + lane / 4;
    const float scale = plan.sm_scale * 1.44269504088896f;
    const uint32_t q = shared + group * (64 * 128);
    const uint32_t k_base = shared + Shape::q_bytes;
    const uint32_t v_base = k_base + prefill_stages * Shape::kv_bytes;
    RowState<D> state = {};
    float s[Shape::keys / 2], fade[2];
    uint32_t p[Shape::keys / 4];

#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t r = first_row + half * 8;
        state.m[half] = -INFINITY;
        state.end[half] = r < item.packed_rows
                              ? visible_end(item, item.tile.row_begin + r / plan.group)
                              : item.kv_begin;
    }
    /* Blocks below this one need no mask in any row of the tile. */
    int32_t free_end =
        item.packed_rows < prefill_rows ? item.kv_begin : visible_end(item, item.tile.row_begin);
    if (consumer_thread() == 0)
        *flag = 0;
    load_q<T, D>(item, shared);

    int32_t block = prefill_blocks<D>(item) - 1;
    if (block >= 0) {
        uint32_t stage = *count % prefill_stages, parity = *count / prefill_stages % 2;
        barrier_wait(&bars->k_full[stage], parity);
        fence_proxy_async();
        wgmma_fence();
        issue_scores<T, D>(s, q, k_base + stage * Shape::kv_bytes);
        wgmma_commit();
        wgmma_wait<0>();
        barrier_arrive_warp(&bars->k_empty[stage]);
        int32_t first = item.kv_begin + block * Shape::keys;
        softmax_block<D>(state, s, scale, first, first + Shape::keys > free_end, fade);
        pack_p<T, D>(p, s);
    }
    for (; block > 0; block--) {
        uint32_t now = *count % prefill_stages, now_parity = *count / prefill_stages % 2;
        (*count)++;
        uint32_t next = *count % prefill_stages, next_parity = *count / prefill_stages % 2;
        barrier_wait(&bars->k_full[next], next_parity);
        fence_proxy_async();
        wgmma_fence();
        issue_scores<T, D>(s, q, k_base + next * Shape::kv_bytes);
        wgmma_commit();
        barrier_wait(&bars->v_full[now], now_parity);
        fence_proxy_async();
        wgmma_fence();
        issue_values<T, D>(state, p, v_base + now * Shape::kv_bytes);
        wgmma_commit();
        wgmma_wait<1>();
        barrier_arrive_warp(&bars->k_empty[next]);
        int32_t first = item.kv_begin + (block - 1) * Shape::keys;
        softmax_block<D>(state, s, scale, first, first + Shape::keys > free_end, fade);
        wgmma_wait<0>();
        barrier_arrive_warp(&bars->v_empty[now]);
#pragma unroll
        for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
            for (int i = 0; i < Shape::out_columns / 2; i++)
                state.o[part][i] *= fade[i % 4 / 2];
        pack_p<T, D>(p, s);
    }
    if (block == 0) {
        uint32_t now = *count % prefill_stages, now_parity = *count / prefill_stages % 2;
        (*count)++;
        barrier_wait(&bars->v_full[now], now_parity);
        fence_proxy_async();
        wgmma_fence();
        issue_values<T, D>(state, p, v_base + now * Shape::kv_bytes);
        wgmma_commit();
        wgmma_wait<0>();
        barrier_arrive_warp(&bars->v_empty[now]);
    }
    float probe = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        state.l[half] += __shfl_xor_sync(0xffffffffu, state.l[half], 1);
        state.l[half] += __shfl_xor_sync(0xffffffffu, state.l[half], 2);
        probe += state.l[half];
    }
#pragma unroll
    for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
        for (int i = 0; i < Shape::out_columns / 2; i++)
            probe = fmaf(state.o[part][i], 0.0f, probe);
    if (!isfinite(probe))
        *flag = 1;
    consumers_sync(); /* also: Q may be overwritten */
    bool finite = *flag == 0;
    consumers_sync();
    if (finite)
        store_rows<T, D>(item, state, first_row, scale);
    return finite;
}

} // namespace attnd

#endif
