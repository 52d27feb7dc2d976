/*
 * naive.cuh - attention of one item, one warp a packed row, one key after the other. Right,
 * slow, and the first optimisation step: every other inner loop must agree with it. A few keys are
 * fetched at a time, because their latency is all the time there is. What no other loop takes ends
 * here: rows longer than they are compiled for, rotations, strides that do not keep alignment.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_NAIVE_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_NAIVE_CUH

#include "persistent/cuda/items/row.cuh"
#include "persistent/cuda/machine/barrier.cuh"

namespace attnd
{

template <int D> constexpr int naive_batch = D > 256 ? 2 : 4;
/* Keys after which a row says that it gets on: milliseconds. */
constexpr int naive_portion = 1024;

/* A row's result, or its partial. @sees: it sees a key. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void naive_store(const Item &item, uint32_t row, uint32_t head,
                                            uint32_t token, float m, float l,
                                            const float (&o)[D / 32], bool sees, uint32_t lane)
{
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    const uint32_t dim = Policy::template dim_vo<D>(plan);
    const float scale = Policy::out_scale(item);
    if (item.tile.partial == ATTND_NONE) {
        const float fade = Policy::finish(run, head, &m, &l) * scale;
        l = sum_stored(l, sees, false);
        T *out = reinterpret_cast<T *>(run->o) + int64_t(row) * plan.o_pitch.row +
                 int64_t(head) * plan.o_pitch.head;
        for (int i = 0; i < D / 32; i++)
            if (Policy::in_vo(plan, i * 32 + lane))
                out[i * 32 + lane] = from_float<T>(l == 0.0f ? 0.0f : o[i] * fade / l);
        if (run->lse && lane == 0)
            run->lse[int64_t(row) * plan.lse_pitch.row + int64_t(head) * plan.lse_pitch.head] =
                lse_of(plan, m, l);
        return;
    }
    uint64_t at = uint64_t(item.tile.partial + token) * plan.heads_q + head;
    for (int i = 0; i < D / 32; i++)
        if (Policy::in_vo(plan, i * 32 + lane))
            run->outputs[at * dim + i * 32 + lane] = o[i] * scale;
    if (lane == 0) {
        run->states[at * 2] = m;
        run->states[at * 2 + 1] = sum_stored(l, sees, true);
    }
}

/* A query row of one head: its elements, a part of them a lane, and its state. */
template <int D> struct NaiveRow {
    float q[D / 32], o[D / 32];
    float m, l;
};

/* A few keys and values, as they lie. */
template <typename KV, int D> struct NaiveKeys {
    const KV *row[naive_batch<D>];
    KV k[naive_batch<D>][D / 32] = {}, v[naive_batch<D>][D / 32] = {};
};

template <typename T, int D, typename Policy>
__device__ __forceinline__ void naive_begin(const Item &item, const attnd_plan_head &plan,
                                            const T *q, const typename Policy::Row &scored,
                                            uint32_t lane, NaiveRow<D> &row)
{
    for (int i = 0; i < D / 32; i++) {
        const uint32_t d = i * 32 + lane;
        row.q[i] =
            Policy::in_qk(plan, d) ? Policy::query(item, scored, to_float<T>(q[d]), q, d) : 0.0f;
        row.o[i] = 0.0f;
    }
    row.m = -INFINITY;
    row.l = 0.0f;
}

/* All addresses before the first load, and all loads before the first use. Keys from @end on are
 * its last one again. */
template <typename KV, int D, typename Policy>
__device__ __forceinline__ void naive_fetch(const Item &item, const ActiveRun *run, int32_t key,
                                            int32_t end, uint32_t lane, NaiveKeys<KV, D> &keys)
{
    const KV *v_row[naive_batch<D>];
#pragma unroll
    for (int b = 0; b < naive_batch<D>; b++) {
        const int32_t at = min(key + b, end - 1);
        keys.row[b] =
            kv_row<KV>(item, item.tile.of_entry, run->k_base, run->k_plane, item.kv_head, at);
        v_row[b] =
            kv_row<KV>(item, item.tile.of_entry, run->v_base, run->v_plane, item.kv_head, at);
    }
#pragma unroll
    for (int b = 0; b < naive_batch<D>; b++)
        for (int i = 0; i < D / 32; i++) {
            const uint32_t d = i * 32 + lane;
            if (Policy::in_qk(run->plan, d))
                keys.k[b][i] = load_element(keys.row[b] + d);
            if (Policy::in_vo(run->plan, d))
                keys.v[b][i] = load_element(v_row[b] + d);
        }
}

/* The products of the row with the keys, in all lanes. */
template <typename KV, int D, typename Policy>
__device__ __forceinline__ void naive_products(const Item &item, const attnd_plan_head &plan,
                                               const NaiveRow<D> &row, const NaiveKeys<KV, D> &keys,
                                               int32_t key, int32_t end, uint32_t lane,
                                               float (&s)[naive_batch<D>])
{
#pragma unroll
    for (int b = 0; b < naive_batch<D>; b++)
        for (int i = 0; i < D / 32; i++) {
            const uint32_t d = i * 32 + lane;
            if (Policy::in_qk(plan, d))
                s[b] += row.q[i] * Policy::key(item, to_float<KV>(keys.k[b][i]), keys.row[b], d,
                                               min(key + b, end - 1));
        }
#pragma unroll
    for (int step = 16; step; step /= 2)
#pragma unroll
        for (int b = 0; b < naive_batch<D>; b++)
            s[b] += __shfl_xor_sync(0xffffffffu, s[b], step);
}

/* One softmax, a key after the other. */
template <typename KV, int D, typename Policy>
__device__ __forceinline__ void naive_add(const typename Policy::Row &scored,
                                          const NaiveKeys<KV, D> &keys, int32_t key, int32_t end,
                                          float (&s)[naive_batch<D>], NaiveRow<D> &row)
{
#pragma unroll
    for (int b = 0; b < naive_batch<D>; b++) {
        if (key + b >= end)
            break;
        if (!Policy::shows(scored, key + b))
            continue;
        s[b] = Policy::score(scored, s[b], key + b);
        float top = fmaxf(row.m, s[b]);
        float fade = row.m == -INFINITY ? 0.0f : exp2f(row.m - top);
        float p = s[b] == -INFINITY ? 0.0f : exp2f(s[b] - top);
        row.l = row.l * fade + p;
        for (int i = 0; i < D / 32; i++)
            row.o[i] = row.o[i] * fade + p * to_float<KV>(keys.v[b][i]);
        row.m = top;
    }
}

/* Packed rows first, first + step, ... below end, by the calling warp. KV: the type of K and V. */
template <typename T, typename KV, int D, typename Policy>
__device__ __noinline__ void attend_rows(const Item &item, uint32_t first, uint32_t end_row,
                                         uint32_t step_rows)
{
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    uint32_t lane = threadIdx.x % 32;

    if (lane == 0)
        add_relaxed(cta_naive(), 1u);
#pragma unroll 1
    for (uint32_t r = first; r < end_row; r += step_rows) {
        uint32_t token = r / plan.group, head = item.kv_head * plan.group + r % plan.group;
        uint32_t index = item.tile.row_begin + token;
        const T *q = reinterpret_cast<const T *>(run->q) + int64_t(index) * plan.q_pitch.row +
                     int64_t(head) * plan.q_pitch.head;
        if (item.packed_rows <= decode_rows<D>) /* rotated ones may lie elsewhere */
            q = reinterpret_cast<const T *>(item.q[r]);
        const typename Policy::Row scored = Policy::row(item, index, head);
        NaiveRow<D> row;
        naive_begin<T, D, Policy>(item, plan, q, scored, lane, row);
        const int32_t begin = Policy::first_key(item, index), end = visible_end(item, index);
#pragma unroll 1
        for (int32_t key = begin; key < end && !peek_cta(&item.failed); key += naive_batch<D>) {
            if (lane == 0 && (key - begin) % naive_portion == 0)
                tally_gpu(&item.live->portions, 1u);
            NaiveKeys<KV, D> keys;
            float s[naive_batch<D>] = {};
            naive_fetch<KV, D, Policy>(item, run, key, end, lane, keys);
            naive_products<KV, D, Policy>(item, plan, row, keys, key, end, lane, s);
            naive_add<KV, D, Policy>(scored, keys, key, end, s, row);
        }
        const bool sees = end > begin && Policy::shows_any(item, index);
        naive_store<T, D, Policy>(item, index, head, token, row.m, row.l, row.o, sees, lane);
    }
    if (lane == 0)
        add_relaxed(cta_naive(), 0u - 1);
}

/* The same for either type of K and V. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void attend_naive(const Item &item, uint32_t first, uint32_t end_row,
                                             uint32_t step_rows)
{
    if constexpr (!Policy::narrow)
        attend_rows<T, T, D, Policy>(item, first, end_row, step_rows);
    else if (item.run->plan.kv_dtype == ATTND_FP8_E4M3)
        attend_rows<T, E4m3, D, Policy>(item, first, end_row, step_rows);
    else
        attend_rows<T, E5m2, D, Policy>(item, first, end_row, step_rows);
}

} // namespace attnd

#endif
