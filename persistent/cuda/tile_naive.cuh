/*
 * tile_naive.cuh - attention of one item, one warp a packed row, one key after the other. Right,
 * slow, and the first optimisation step: every other inner loop must agree with it. A few keys are
 * fetched at a time, because their latency is all the time there is. What no other loop takes ends
 * here: rows longer than they are compiled for, rotations, strides that do not keep alignment.
 */
#ifndef ATTND_PERSISTENT_CUDA_TILE_NAIVE_CUH
#define ATTND_PERSISTENT_CUDA_TILE_NAIVE_CUH

#include "persistent/cuda/tile.cuh"

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
        const float fade = Policy::finish(run, head, sees, &m, &l) * scale;
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

/* Packed rows first, first + step, ... below end, by the calling warp. KV: the type of K and V. */
template <typename T, typename KV, int D, typename Policy>
__device__ __noinline__ void attend_rows(const Item &item, uint32_t first, uint32_t end_row,
                                         uint32_t step_rows)
{
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    uint32_t lane = threadIdx.x % 32;
    constexpr int dims = D / 32, batch = naive_batch<D>;

    if (lane == 0)
        add_relaxed(cta_naive(), 1u);
#pragma unroll 1
    for (uint32_t r = first; r < end_row; r += step_rows) {
        uint32_t token = r / plan.group, head = item.kv_head * plan.group + r % plan.group;
        uint32_t row = item.tile.row_begin + token;
        const T *q = reinterpret_cast<const T *>(run->q) + int64_t(row) * plan.q_pitch.row +
                     int64_t(head) * plan.q_pitch.head;
        const typename Policy::Row scored = Policy::row(item, row, head);
        float qs[dims], o[dims];
        for (int i = 0; i < dims; i++) {
            const uint32_t d = i * 32 + lane;
            qs[i] = Policy::in_qk(plan, d) ? Policy::query(item, scored, to_float<T>(q[d]), q, d)
                                           : 0.0f;
            o[i] = 0.0f;
        }
        float m = -INFINITY, l = 0.0f;
        const int32_t begin = Policy::first_key(item, row), end = visible_end(item, row);
#pragma unroll 1
        for (int32_t key = begin; key < end && !peek_cta(&item.failed); key += batch) {
            if (lane == 0 && (key - begin) % naive_portion == 0)
                tally_gpu(&item.live->portions, 1u);
            const KV *k_row[batch], *v_row[batch];
            KV k[batch][dims] = {}, v[batch][dims] = {};
            float s[batch] = {};
#pragma unroll
            for (int b = 0; b < batch; b++) {
                const int32_t at = min(key + b, end - 1);
                k_row[b] = kv_row<KV>(item, item.tile.of_entry, run->k_base, run->k_plane,
                                      item.kv_head, at);
                v_row[b] = kv_row<KV>(item, item.tile.of_entry, run->v_base, run->v_plane,
                                      item.kv_head, at);
            }
#pragma unroll
            for (int b = 0; b < batch; b++)
                for (int i = 0; i < dims; i++) {
                    const uint32_t d = i * 32 + lane;
                    if (Policy::in_qk(plan, d))
                        k[b][i] = load_element(k_row[b] + d);
                    if (Policy::in_vo(plan, d))
                        v[b][i] = load_element(v_row[b] + d);
                }
#pragma unroll
            for (int b = 0; b < batch; b++)
                for (int i = 0; i < dims; i++) {
                    const uint32_t d = i * 32 + lane;
                    if (Policy::in_qk(plan, d))
                        s[b] += qs[i] * Policy::key(item, to_float<KV>(k[b][i]), k_row[b], d,
                                                    min(key + b, end - 1));
                }
#pragma unroll
            for (int step = 16; step; step /= 2)
#pragma unroll
                for (int b = 0; b < batch; b++)
                    s[b] += __shfl_xor_sync(0xffffffffu, s[b], step);
#pragma unroll
            for (int b = 0; b < batch; b++) {
                if (key + b >= end)
                    break;
                if (!Policy::shows(scored, key + b))
                    continue;
                s[b] = Policy::score(scored, s[b], key + b);
                float top = fmaxf(m, s[b]);
                float fade = m == -INFINITY ? 0.0f : exp2f(m - top);
                float p = s[b] == -INFINITY ? 0.0f : exp2f(s[b] - top);
                l = l * fade + p;
                for (int i = 0; i < dims; i++)
                    o[i] = o[i] * fade + p * to_float<KV>(v[b][i]);
                m = top;
            }
        }
        const bool sees = end > begin && Policy::shows_any(item, row);
        naive_store<T, D, Policy>(item, row, head, token, m, l, o, sees, lane);
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
