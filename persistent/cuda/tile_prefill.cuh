/*
 * tile_prefill.cuh - many query rows: bound by the tensor cores. The consumers' half.
 *
 * 128 packed rows, 64 for each of two consumer warpgroups, against blocks of keys from the last to
 * the first, so the masked ones come first and the rest runs without a mask. Within a warpgroup the
 * products of a block overlap with the softmax of the next: QK(j+1) is issued, then PV(j), and the
 * exponentials of j+1 run while PV(j) does. Between the warpgroups two named barriers take turns:
 * one issues its products while the other computes exponentials (both: FlashAttention-3,
 * arXiv 2407.08608).
 *
 * Shared memory: Q [panel][128 rows][64], K [stage][panel][keys][64], V [stage][16
 * tokens][panel][64], all 128-byte swizzled. load_prefill.cuh fills it, ahead of the consumers and
 * across items.
 */
#ifndef ATTND_PERSISTENT_CUDA_TILE_PREFILL_CUH
#define ATTND_PERSISTENT_CUDA_TILE_PREFILL_CUH

#include "persistent/cuda/load_prefill.cuh"
#include "persistent/cuda/wgmma.cuh"

namespace attnd
{

/* State of the two rows a thread owns: g and g + 8 of its warp's 16. m is in raw score units, l
 * the sum of this lane's columns. */
template <int D> struct RowState {
    float o[PrefillShape<D>::out_parts][PrefillShape<D>::out_columns / 2];
    float m[2], l[2];
    int32_t end[2]; /* keys below are visible */
};

/* The warpgroups issue their products in turns. Group 1 primes group 0's barrier once. */
__device__ __forceinline__ void products_begin(uint32_t group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(consumer_threads) : "memory");
}

__device__ __forceinline__ void products_end(uint32_t group)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(3 - group), "n"(consumer_threads) : "memory");
}

/* True in all threads of a warpgroup if @flag is in any. */
__device__ __forceinline__ bool group_any(bool flag, uint32_t group)
{
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\n"
                 "barrier.cta.red.or.pred q, %2, 128, p;\nselp.u32 %0, 1, 0, q;\n}\n"
                 : "=r"(any)
                 : "r"(uint32_t(flag)), "r"(4 + group)
                 : "memory");
    return any;
}

/* q, k, v: descriptors of an operand's first element. */
template <typename T, int D>
__device__ __forceinline__ void issue_scores(float (&s)[PrefillShape<D>::keys / 2], uint64_t q,
                                             uint64_t k)
{
    using Shape = PrefillShape<D>;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t panel = step / 4, inside = step % 4 * 32;
        Wgmma<T, Shape::keys>::scores(s, q + (panel * (prefill_rows * 128) + inside) / 16,
                                      k + (panel * (Shape::keys * 128) + inside) / 16, step > 0);
    }
}

template <typename T, int D>
__device__ __forceinline__ void
issue_values(RowState<D> &state, const uint32_t (&p)[PrefillShape<D>::keys / 4], uint64_t v)
{
    using Shape = PrefillShape<D>;
#pragma unroll
    for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
        for (int step = 0; step < Shape::keys / 16; step++)
            Wgmma<T, Shape::out_columns>::values(
                state.o[part], &p[step * 4],
                v + (part * (Shape::out_columns / 64) * 2048 + step * Shape::v_chunk_bytes) / 16,
                1);
}

/* The same in all lanes, and known to be. */
__device__ __forceinline__ uint32_t uniform(uint32_t value)
{
    return __shfl_sync(0xffffffffu, value, 0);
}

/* Scores to probabilities: moves the maxima, sums. fade: what o must be scaled by. Without a mask a
 * maximum of -inf comes from the data; it makes NaN, which the check at the end of the item sees.
 */
template <int D, bool masked>
__device__ __forceinline__ void softmax_block(RowState<D> &state,
                                              float (&s)[PrefillShape<D>::keys / 2], float scale,
                                              int32_t first, float (&fade)[2])
{
    constexpr int keys = PrefillShape<D>::keys;
    if (masked) {
        const int32_t column = first + int32_t(threadIdx.x % 4 * 2);
#pragma unroll
        for (int j = 0; j < keys / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (column + j * 8 + e % 2 >= state.end[e / 2])
                    s[j * 4 + e] = -INFINITY;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top0 = fmaxf(s[half * 2], s[half * 2 + 1]), top1 = state.m[half];
#pragma unroll
        for (int j = 1; j < keys / 8; j++) {
            top0 = fmaxf(top0, s[j * 4 + half * 2]);
            top1 = fmaxf(top1, s[j * 4 + half * 2 + 1]);
        }
        float top = fmaxf(top0, top1);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        float base = masked && top == -INFINITY ? 0.0f : top * scale;
        fade[half] = exp2_fast(fmaf(state.m[half], scale, -base));
        state.m[half] = top;
        float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
        for (int j = 0; j < keys / 8; j++) {
            float &a = s[j * 4 + half * 2], &b = s[j * 4 + half * 2 + 1];
            a = exp2_fast(fmaf(a, scale, -base));
            b = exp2_fast(fmaf(b, scale, -base));
            sum0 += a;
            sum1 += b;
        }
        state.l[half] = fmaf(state.l[half], fade[half], sum0 + sum1);
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

template <int D> __device__ __forceinline__ void scale_o(RowState<D> &state, const float (&fade)[2])
{
    using Shape = PrefillShape<D>;
#pragma unroll
    for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
        for (int i = 0; i < Shape::out_columns / 2; i++)
            state.o[part][i] *= fade[i % 4 / 2];
}

/* Rows of V past the range may hold anything, and 0 * NaN is NaN: zeros, in the last block. Both
 * warpgroups read them, so both wait. */
template <int D> __device__ __forceinline__ void zero_tail(uint32_t v, int32_t rows_valid)
{
    using Shape = PrefillShape<D>;
    constexpr int chunks = D / 8;
    if (rows_valid < Shape::keys) {
        int from = rows_valid > 0 ? rows_valid : 0;
        for (int at = from * chunks + int(consumer_thread()); at < Shape::keys * chunks;
             at += consumer_threads)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                             v + place_in_block<D, true>(at / chunks, at % chunks)),
                         "r"(0)
                         : "memory");
        fence_proxy_async();
        consumers_sync();
    }
}

/* Writes o and lse, or the partial. */
template <typename T, int D>
__device__ __forceinline__ void store_rows(const Item &item, const RowState<D> &state,
                                           uint32_t first_row, float scale)
{
    using Shape = PrefillShape<D>;
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    const bool partial = item.tile.partial != ATTND_NONE;
    const bool words =
        (uint64_t(run->o) | uint64_t(plan.o_stride_row) * 2 | uint64_t(plan.o_stride_head) * 2) %
            4 ==
        0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t r = first_row + half * 8;
        if (r >= item.packed_rows)
            continue;
        uint32_t token = r / plan.group, head = item.kv_head * plan.group + r % plan.group;
        const bool sees = state.end[half] > item.kv_begin;
        const float l = sum_stored(state.l[half], sees, partial), m = state.m[half] * scale;
        float inverse = partial ? 1.0f : l == 0.0f ? 0.0f : 1.0f / l;
        int64_t row = int64_t(item.tile.row_begin) + token;
        uint64_t at = uint64_t(item.tile.partial + token) * plan.heads_q + head;
        T *out = reinterpret_cast<T *>(run->o) + row * plan.o_stride_row +
                 int64_t(head) * plan.o_stride_head;
        float *wide = run->outputs + at * D;
#pragma unroll
        for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
            for (int j = 0; j < Shape::out_columns / 8; j++) {
                uint32_t d = part * Shape::out_columns + j * 8 + threadIdx.x % 4 * 2;
                float a = state.o[part][j * 4 + half * 2] * inverse;
                float b = state.o[part][j * 4 + half * 2 + 1] * inverse;
                if (partial) {
                    *reinterpret_cast<float2 *>(wide + d) = make_float2(a, b);
                } else if (words) {
                    *reinterpret_cast<uint32_t *>(out + d) = Pack<T>::pair(a, b);
                } else {
                    out[d] = from_float<T>(a);
                    out[d + 1] = from_float<T>(b);
                }
            }
        if (threadIdx.x % 4)
            continue;
        if (partial) {
            run->states[at * 2] = sees ? m : -INFINITY;
            run->states[at * 2 + 1] = l;
        } else if (run->lse) {
            run->lse[row * plan.lse_stride_row + int64_t(head) * plan.lse_stride_head] =
                lse_of(plan, m, l);
        }
    }
}

/* What a warpgroup carries from block to block besides its rows. */
struct PrefillCursor {
    PrefillBarriers *bars;
    uint64_t q, k, v; /* descriptors: this group's Q, stage 0 of K and of V */
    uint32_t count;   /* blocks of K used so far, across items; V is one behind in the loop */
    uint32_t group;
    bool gathered; /* K and V come by cp.async: a fence before wgmma reads them */
};

__device__ __forceinline__ uint32_t stage_of(uint32_t count)
{
    return count % prefill_stages;
}

__device__ __forceinline__ uint32_t parity_of(uint32_t count)
{
    return count / prefill_stages % 2;
}

/* QK of the next block, PV of this one, softmax of the next. */
template <typename T, int D, bool masked>
__device__ __forceinline__ void
prefill_step(PrefillCursor &at, RowState<D> &state, float (&s)[PrefillShape<D>::keys / 2],
             uint32_t (&p)[PrefillShape<D>::keys / 4], float scale, int32_t first)
{
    using Shape = PrefillShape<D>;
    const uint32_t now = stage_of(at.count), now_parity = parity_of(at.count);
    at.count++;
    const uint32_t next = stage_of(at.count), next_parity = parity_of(at.count);
    float fade[2];

    barrier_wait(&at.bars->k_full[next], next_parity);
    if (at.gathered)
        fence_proxy_async();
    products_begin(at.group);
    wgmma_fence();
    issue_scores<T, D>(s, at.q, at.k + next * (Shape::kv_bytes / 16));
    wgmma_commit();
    barrier_wait(&at.bars->v_full[now], now_parity);
    if (at.gathered)
        fence_proxy_async();
    wgmma_fence();
    issue_values<T, D>(state, p, at.v + now * (Shape::kv_bytes / 16));
    wgmma_commit();
    products_end(at.group);
    wgmma_wait<1>();
    barrier_arrive_warp(&at.bars->k_empty[next]);
    softmax_block<D, masked>(state, s, scale, first, fade);
    wgmma_wait<0>();
    barrier_arrive_warp(&at.bars->v_empty[now]);
    pack_p<T, D>(p, s);
    scale_o<D>(state, fade);
}

/* One item, by both consumer warpgroups. Return: false if a result of this group's rows is not
 * finite; the caller then takes the naive way for them, because a product with a zero probability
 * cannot hide a NaN that the row does not see. */
template <typename T, int D>
__device__ __forceinline__ bool prefill_consume(const Item &item, uint32_t shared,
                                                PrefillBarriers *bars, uint32_t *count,
                                                uint32_t *q_count)
{
    using Shape = PrefillShape<D>;
    const attnd_plan_head &plan = item.run->plan;
    const uint32_t group = uniform(consumer_thread() / 128), warp = consumer_thread() / 32 % 4;
    const uint32_t first_row = group * 64 + warp * 16 + threadIdx.x % 32 / 4;
    const float scale = plan.sm_scale * 1.44269504088896f;
    const uint32_t k = shared + Shape::q_bytes, v = k + prefill_stages * Shape::kv_bytes;
    PrefillCursor at = {bars,
                        descriptor(uniform(shared + group * (64 * 128)), 0, 1024),
                        descriptor(uniform(k), 0, 1024),
                        descriptor(uniform(v), 2048, 1024),
                        uniform(*count),
                        group,
                        item.run->box_rows == 0};
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
    const int32_t free_end =
        item.packed_rows < prefill_rows ? item.kv_begin : visible_end(item, item.tile.row_begin);
    int32_t blocks = prefill_blocks<D>(item);
    int32_t first = item.kv_begin + (blocks - 1) * Shape::keys; /* key of the block in hand */

    barrier_wait(&bars->q_full, *q_count % 2);
    (*q_count)++;
    fence_proxy_async(); /* Q came by cp.async */
    if (blocks > 0) {
        barrier_wait(&bars->k_full[stage_of(at.count)], parity_of(at.count));
        if (at.gathered)
            fence_proxy_async();
        products_begin(group);
        wgmma_fence();
        issue_scores<T, D>(s, at.q, at.k + stage_of(at.count) * (Shape::kv_bytes / 16));
        wgmma_commit();
        products_end(group);
        wgmma_wait<0>();
        barrier_arrive_warp(&bars->k_empty[stage_of(at.count)]);
        softmax_block<D, true>(state, s, scale, first, fade);
        pack_p<T, D>(p, s);
        barrier_wait(&bars->v_full[stage_of(at.count)], parity_of(at.count));
        zero_tail<D>(v + stage_of(at.count) * Shape::kv_bytes, item.kv_end - first);
        for (; first > item.kv_begin && first > free_end;) {
            first -= Shape::keys;
            prefill_step<T, D, true>(at, state, s, p, scale, first);
        }
        while (first > item.kv_begin) {
            first -= Shape::keys;
            prefill_step<T, D, false>(at, state, s, p, scale, first);
        }
    }
    barrier_arrive_warp(&bars->q_empty);
    if (blocks > 0) {
        const uint32_t now = stage_of(at.count);
        barrier_wait(&bars->v_full[now], parity_of(at.count));
        if (at.gathered)
            fence_proxy_async();
        wgmma_fence();
        issue_values<T, D>(state, p, at.v + now * (Shape::kv_bytes / 16));
        wgmma_commit();
        wgmma_wait<0>();
        barrier_arrive_warp(&bars->v_empty[now]);
        at.count++;
    }
    *count = at.count;

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
    if (group_any(!isfinite(probe), group))
        return false;
    store_rows<T, D>(item, state, first_row, scale);
    return true;
}

} // namespace attnd

#endif
