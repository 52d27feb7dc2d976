/*
 * prefill_rows.cuh - the rows of a prefill tile in their threads' registers: scores become weights,
 * and at the end o, lse or a partial is stored.
 *
 * Softmax takes as long as the products it goes with, so most blocks do without the half of it: a
 * weight may as well be relative to the maximum of earlier blocks, as long as it is a number of the
 * data's type. Nobody then looks for the block's own maximum, and o need not be scaled.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_ROWS_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_ROWS_CUH

#include "persistent/cuda/items/row.cuh"
#include "persistent/cuda/loops/prefill_load.cuh"

namespace attnd
{

/* State of the two rows a thread owns: g and g + 8 of its warp's 16. m is what weights are relative
 * to, the exponent of a power of two; l the sum of this lane's columns. */
template <int D> struct RowState {
    float o[PrefillShape<D>::out_parts][PrefillShape<D>::out_columns / 2];
    float m[2], l[2];
    int32_t end[2]; /* keys below are visible */
};

/* Where the keys end that packed row @r sees. One that is not there has zeros for its q and sees
 * what the first row does, so that a tile of fewer rows than the loop takes needs no mask for them:
 * groups of 3, 5, 6 and 7 have no other tiles. (Portable kernels mask such a warp all the same.) */
__device__ __forceinline__ int32_t packed_row_end(const Item &item, uint32_t r)
{
    const uint32_t token = r < item.packed_rows ? packed_row(item, r).token : 0;
    return visible_end(item, item.tile.row_begin + token);
}

/* The rows of @item that a thread owns, from @first_row on. */
template <int D, typename Policy>
__device__ __forceinline__ void rows_begin(const Item &item, RowState<D> &state, uint32_t first_row)
{
    using Shape = PrefillShape<D>;
    Policy::rows(item, first_row - threadIdx.x % 32 / 4);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        state.m[half] = -INFINITY;
        state.l[half] = 0.0f;
        state.end[half] = packed_row_end(item, first_row + half * 8);
    }
#pragma unroll
    for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
        for (int i = 0; i < Shape::out_columns / 2; i++)
            state.o[part][i] = 0.0f;
}

/* l of all columns of a row. */
template <int D> __device__ __forceinline__ void rows_sum(RowState<D> &state)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        state.l[half] += __shfl_xor_sync(0xffffffffu, state.l[half], 1);
        state.l[half] += __shfl_xor_sync(0xffffffffu, state.l[half], 2);
    }
}

/* The largest of the four lanes that share a row. */
__device__ __forceinline__ float row_max(float value)
{
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

/* Scores to probabilities, exactly: with the maximum of each row moved where it must be, and a mask
 * if there is one. fade: what o and l are to be scaled by. Without a mask a maximum of -inf comes
 * from the data; it makes NaN, which the check at the end of the item sees. */
template <int D, int count>
__device__ __forceinline__ void softmax_exact(RowState<D> &state, float (&s)[count], float scale,
                                              int32_t first, float (&fade)[2])
{
    constexpr int keys = 2 * count;
    const int32_t column = first + int32_t(threadIdx.x % 4 * 2);
#pragma unroll
    for (int j = 0; j < keys / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (column + j * 8 + e % 2 >= state.end[e / 2])
                s[j * 4 + e] = -INFINITY;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top0 = s[half * 2], top1 = s[half * 2 + 1];
#pragma unroll
        for (int j = 1; j < keys / 8; j++) {
            top0 = fmaxf(top0, s[j * 4 + half * 2]);
            top1 = fmaxf(top1, s[j * 4 + half * 2 + 1]);
        }
        const float top = fmaxf(state.m[half], row_max(fmaxf(top0, top1)) * scale);
        const float base = top == -INFINITY ? 0.0f : top;
        fade[half] = exp2_fast(state.m[half] - base);
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

/* Sums of quick weights up to this are good, and so is each weight: fp16 ends at 65504. */
constexpr float quick_max = 16384.0f;

/* The same relative to the maximum so far, without looking for the block's own, in a block that
 * every row sees and not the first: what is larger has a weight above 1, and that loses nothing as
 * long as weights are numbers of T. Return: whether they are, in the whole warp; else nothing but s
 * has changed, and the warp does it again, exactly. */
template <int D, typename Policy, int way>
__device__ __forceinline__ bool
softmax_quick(RowState<D> &state, float (&s)[PrefillShape<D>::keys / 2], float scale,
              const typename Policy::template Loop<way> &loop, const typename Policy::Ready &ready)
{
    float sum[4] = {};
    bool right = true;
    if constexpr (Policy::changes(way))
        right = loop.exponents(s, state.m);
    Policy::template quick<way>(ready, scale, [&](auto exponent) {
#pragma unroll
        for (int i = 0; i < PrefillShape<D>::keys / 2; i++) {
            s[i] = exp2_fast(exponent(s[i], i, state.m[i % 4 / 2]));
            sum[i % 4] += s[i];
        }
    });
    sum[0] += sum[1];
    sum[2] += sum[3];
    if (__any_sync(0xffffffffu, !right || !(sum[0] <= quick_max) || !(sum[2] <= quick_max)))
        return false;
    state.l[0] += sum[0];
    state.l[1] += sum[2];
    return true;
}

/* The scores of a warp's 16 rows once more, without its warpgroup. @q: in shared memory, the first
 * of its rows; @k: the block. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void scores_again(float (&s)[PrefillShape<D>::keys / 2], uint32_t q,
                                             uint32_t k)
{
    constexpr uint32_t keys = PrefillShape<D>::keys;
    const uint32_t lane = Policy::ways > 1 ? lane_anew() : threadIdx.x % 32; /* registers */
#pragma unroll
    for (uint32_t i = 0; i < keys / 2; i++)
        s[i] = 0.0f;
#pragma unroll 1
    for (uint32_t step = 0; step < D / 16; step++) {
        const uint32_t cq = step * 2 + lane / 16, ck = step * 2 + lane / 8 % 2; /* chunks */
        uint32_t a[4], b[4];
        ldmatrix4(a,
                  q + cq / 8 * (prefill_rows * 128) + lane % 16 * 128 + ((cq % 8 ^ lane % 8) << 4));
#pragma unroll
        for (uint32_t j = 0; j < keys / 8; j += 2) {
            const uint32_t row = j * 8 + lane / 16 * 8 + lane % 8;
            ldmatrix4(b, k + place_in_block<D, false>(row, ck));
            Mma<T>::run(*reinterpret_cast<float(*)[4]>(&s[j * 4]), a, b[0], b[1]);
            Mma<T>::run(*reinterpret_cast<float(*)[4]>(&s[j * 4 + 4]), a, b[2], b[3]);
        }
    }
    fence_proxy_async(); /* TMA may write next what ldmatrix read */
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

/* Where packed row @r of an item's o begins. */
template <typename T> __device__ __forceinline__ T *o_row(const Item &item, uint32_t r)
{
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    const auto [token, head] = packed_row(item, r);
    return reinterpret_cast<T *>(run->o) +
           (int64_t(item.tile.row_begin) + token) * plan.o_pitch.row + head * plan.o_pitch.head;
}

/* Writes o through the warp's 16 rows of Q, so that it goes out in lines. @q: the tile's Q; @row:
 * the first of the rows. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void store_lines(const Item &item, const RowState<D> &state,
                                            const float (&inverse)[2], uint32_t q, uint32_t row)
{
    using Shape = PrefillShape<D>;
    constexpr uint32_t chunks = Shape::values / 8, panel_bytes = prefill_rows * 128;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t at = q + (row + lane % 16) * 128, half = lane / 16; /* this lane's matrix row */
#pragma unroll
    for (uint32_t c = 0; c < chunks; c += 2) { /* 16 dims */
        const float *o = state.o[c * 8 / Shape::out_columns] + c * 8 % Shape::out_columns / 2;
        stmatrix4(at + c / 8 * panel_bytes + (((c + half) % 8 ^ lane % 8) << 4),
                  Pack<T>::pair(o[0] * inverse[0], o[1] * inverse[0]),
                  Pack<T>::pair(o[2] * inverse[1], o[3] * inverse[1]),
                  Pack<T>::pair(o[4] * inverse[0], o[5] * inverse[0]),
                  Pack<T>::pair(o[6] * inverse[1], o[7] * inverse[1]));
    }
    const uint64_t to = uint64_t(o_row<T>(item, row + lane % 16)); /* of this lane's row */
    __syncwarp();
#pragma unroll 4
    for (uint32_t i = lane; i < 16 * chunks; i += 32) {
        const uint32_t r = i / chunks, c = i % chunks;
        const uint64_t line = __shfl_sync(0xffffffffu, to, r);
        const uint4 value =
            load_shared16(q + c / 8 * panel_bytes + (row + r) * 128 + ((c % 8 ^ r % 8) << 4));
        if (row + r < item.packed_rows && Policy::in_vo(item.run->plan, c * 8))
            reinterpret_cast<uint4 *>(line)[c] = value;
    }
    __syncwarp();
}

/* Chunks of 16 bytes of four lanes that share a row: lane c has pair c of each, and then chunk c.
 */
__device__ __forceinline__ uint4 quad_transposed(uint32_t (&part)[4])
{
#pragma unroll
    for (uint32_t step = 1; step < 4; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            if (k & step)
                continue;
            const uint32_t other =
                __shfl_xor_sync(0xffffffffu, upper ? part[k] : part[k + step], step);
            part[k] = upper ? other : part[k];
            part[k + step] = upper ? part[k + step] : other;
        }
    }
    return make_uint4(part[0], part[1], part[2], part[3]);
}

/* Writes o from the registers, 64 bytes of a row at once, where Q's place is not this item's any
 * more. @first_row: this thread's. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void store_quads(const Item &item, const RowState<D> &state,
                                            const float (&inverse)[2], uint32_t first_row)
{
    using Shape = PrefillShape<D>;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t r = first_row + half * 8;
        uint4 *const to = reinterpret_cast<uint4 *>(o_row<T>(item, r)) + threadIdx.x % 4;
#pragma unroll
        for (uint32_t d = 0; d < uint32_t(Shape::values); d += 32) {
            const float *o = state.o[d / Shape::out_columns] + d % Shape::out_columns / 2;
            uint32_t part[4];
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
                part[k] = Pack<T>::pair(o[k * 4 + half * 2] * inverse[half],
                                        o[k * 4 + half * 2 + 1] * inverse[half]);
            const uint4 chunk = quad_transposed(part);
            if (r < item.packed_rows)
                to[d / 8] = chunk;
        }
    }
}

/* Writes the partial, or o where it is not aligned, from the registers. @partial: where it begins,
 * ATTND_NONE: o; @column: the first of o there. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void store_pairs(const Item &item, const RowState<D> &state,
                                            const float (&inverse)[2], uint32_t partial,
                                            uint32_t first_row, uint32_t column)
{
    using Shape = PrefillShape<D>;
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t r = first_row + half * 8, c = column + threadIdx.x % 4 * 2;
        if (r >= item.packed_rows)
            continue;
        const auto [token, head] = packed_row(item, r);
        T *out = o_row<T>(item, r) + c;
        float *wide =
            run->outputs +
            (uint64_t(partial + token) * plan.heads_q + head) * Policy::template dim_vo<D>(plan) +
            c;
#pragma unroll
        for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
            for (int j = 0; j < Shape::out_columns / 8; j++) {
                const uint32_t d = part * Shape::out_columns + j * 8;
                float a = state.o[part][j * 4 + half * 2] * inverse[half];
                float b = state.o[part][j * 4 + half * 2 + 1] * inverse[half];
                if (!Policy::in_vo(plan, column + d))
                    continue;
                if (partial != ATTND_NONE) {
                    *reinterpret_cast<float2 *>(wide + d) = make_float2(a, b);
                } else {
                    out[d] = from_float<T>(a);
                    out[d + 1] = from_float<T>(b);
                }
            }
    }
}

/* A row that sees a key has this sum of weights or more, if floats can tell its scores apart: its
 * largest score has a weight of 1. Where scores are beyond 2^24 (as exponents of 2), the product
 * that becomes an exponent and the maximum it is relative to are rounded apart by more than that.
 */
constexpr float least_sum = 0.5f;

/* Whether the rows of this thread are there and see a key. */
template <int D, typename Policy>
__device__ __forceinline__ void rows_see(const Item &item, const RowState<D> &state,
                                         uint32_t first_row, bool (&sees)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t r = first_row + half * 8;
        sees[half] = r < item.packed_rows &&
                     state.end[half] > Policy::row_begin(item, threadIdx.x % 32 / 4 + half * 8);
        const uint32_t token = packed_row(item, r).token;
        if (sees[half] && state.l[half] == 0.0f &&
            !Policy::shows_any(item, item.tile.row_begin + token))
            sees[half] = false;
    }
}

/* Writes the partial, times @scale. @partial: its first row; @column: the first of o that @state
 * has, sums go with 0. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void store_partial(const Item &item, const RowState<D> &state,
                                              const bool (&sees)[2], float scale, uint32_t partial,
                                              uint32_t first_row, uint32_t column = 0)
{
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    const float scales[2] = {scale, scale};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t r = first_row + half * 8;
        if (threadIdx.x % 4 || r >= item.packed_rows || column)
            continue;
        const auto [token, head] = packed_row(item, r);
        const uint64_t at = uint64_t(partial + token) * plan.heads_q + head;
        *reinterpret_cast<float2 *>(run->states + at * 2) = make_float2(
            sees[half] ? state.m[half] : -INFINITY, sum_stored(state.l[half], sees[half], true));
    }
    store_pairs<T, D, Policy>(item, state, scales, partial, first_row, column);
}

/* Writes o, times @scale, and lse. @q: shared memory of the item's Q, which nobody reads any more;
 * @first_row: this thread's; @column: the first of o that @state has, lse goes with 0. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void store_whole(const Item &item, const RowState<D> &state,
                                            const bool (&sees)[2], float scale, uint32_t q,
                                            uint32_t first_row, uint32_t column = 0)
{
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t r = first_row + half * 8;
        const auto [token, head] = packed_row(item, r);
        float l = state.l[half], m = state.m[half], fade = 1.0f;
        if (r < item.packed_rows)
            fade = Policy::finish(run, head, &m, &l);
        l = sum_stored(l, sees[half], false);
        inverse[half] = scale * (l == 0.0f ? 0.0f : __fdividef(fade, l));
        if (threadIdx.x % 4 || r >= item.packed_rows || column || !run->lse)
            continue;
        run->lse[(int64_t(item.tile.row_begin) + token) * plan.lse_pitch.row +
                 head * plan.lse_pitch.head] = lse_of(plan, m, l);
    }
    [[maybe_unused]] const uint64_t bits =
        uint64_t(run->o) | uint64_t(plan.o_pitch.row | plan.o_pitch.head) * 2;
    if constexpr (D < 256) { /* 256: Q is wanted back, and registers are short */
        if (bits % 16 == 0) {
            if constexpr (PrefillShape<D>::leaves_q)
                store_quads<T, D, Policy>(item, state, inverse, first_row);
            else
                store_lines<T, D, Policy>(item, state, inverse, q,
                                          first_row - threadIdx.x % 32 / 4);
            return;
        }
    }
    store_pairs<T, D, Policy>(item, state, inverse, ATTND_NONE, first_row, column);
}

/* One of the two, of an item that nobody else's rows are added to here. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void store_rows(const Item &item, const RowState<D> &state,
                                           const bool (&sees)[2], uint32_t q, uint32_t first_row,
                                           uint32_t column = 0)
{
    const float scale = Policy::out_scale(item);
    if (item.tile.partial != ATTND_NONE)
        store_partial<T, D, Policy>(item, state, sees, scale, item.tile.partial, first_row, column);
    else
        store_whole<T, D, Policy>(item, state, sees, scale, q, first_row, column);
}

} // namespace attnd

#endif
