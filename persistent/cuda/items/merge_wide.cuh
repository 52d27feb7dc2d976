/*
 * merge_wide.cuh - merges of rows with many dims: those of latents. A lane has the state of a part
 * of a row, so that maximum and weights of several rows take the same few shuffles, and once a row;
 * merge.cuh does without that where a row is two units, and has less code for it.
 */
#ifndef ATTND_PERSISTENT_CUDA_ITEMS_MERGE_WIDE_CUH
#define ATTND_PERSISTENT_CUDA_ITEMS_MERGE_WIDE_CUH

#include "persistent/cuda/items/row.cuh"
#include "persistent/cuda/state/roles.cuh"

namespace attnd
{

/* The sum of a row's weights, and their largest exponent: of the parts that lanes have. */
struct MergeSum {
    float top = -INFINITY, l = 0.0f;
    bool sees = false;

    __device__ __forceinline__ void add(float m, float sum)
    {
        const float higher = fmaxf(top, m), base = higher == -INFINITY ? 0.0f : higher;
        l = fmaf(l, exp2_fast(top - base), exp2_fast(m - base) * sum);
        top = higher;
        sees |= sum != 0.0f;
    }

    /* Of @width neighbouring lanes, a power of two; in all of them. */
    __device__ __forceinline__ void join(uint32_t width)
    {
#pragma unroll 1
        for (uint32_t step = 1; step < width; step *= 2) {
            const float m = __shfl_xor_sync(0xffffffffu, top, step);
            const float sum = __shfl_xor_sync(0xffffffffu, l, step);
            const bool saw = __shfl_xor_sync(0xffffffffu, uint32_t(sees), step);
            add(m, sum);
            sees |= saw;
        }
    }
};

/* Packed rows [first, end) of a merge for one KV head, as one warp sees them. */
template <typename T, int D, typename Policy> struct MergeWide {
    static constexpr uint32_t batch = 16;  /* loads of a lane that are in flight */
    static constexpr uint32_t chunk = 128; /* dims of a row that a warp has at a time */
    static constexpr uint32_t chunks = latent_values / chunk;
    static_assert(D == latent_dim, "all rows are as long");
    const ActiveRun *run;
    attnd_merge merge;
    const uint32_t *parts; /* the merge's */
    uint32_t kv_head, first, end;

    /* Of part @part, packed row @r: where it lies among the partials. */
    __device__ __forceinline__ uint32_t place(uint32_t part, uint32_t r) const
    {
        const Divided at = divided(r, run->plan.group, run->group_reciprocal);
        return (parts[part] + at.quotient) * run->plan.heads_q + kv_head * run->plan.group +
               at.rest;
    }

    /* Partials that were stored long ago have left the L2: all are asked for at once. */
    __device__ __forceinline__ void prefetch() const
    {
        constexpr uint32_t lines = latent_values * 4 / 128; /* of a row */
#pragma unroll 1
        for (uint32_t p = 0; p < merge.part_count; p++)
#pragma unroll 1
            for (uint32_t i = threadIdx.x % 32; i < (end - first) * lines; i += 32)
                prefetch_line(reinterpret_cast<const char *>(
                    run->outputs + uint64_t(place(p, first + i / lines)) * latent_values +
                    i % lines * 32));
    }

    /* Four dims of a finished row. @wide: they lie at a multiple of 8 bytes. */
    __device__ __forceinline__ void store(uint64_t to, const float (&value)[4], bool wide) const
    {
        if (wide) {
            *reinterpret_cast<uint2 *>(to) =
                make_uint2(Pack<T>::pair(value[0], value[1]), Pack<T>::pair(value[2], value[3]));
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            reinterpret_cast<T *>(to)[i] = from_float<T>(value[i]);
    }

    __device__ __forceinline__ void rows() const
    {
        const attnd_plan_head &plan = run->plan;
        const uint32_t lane = threadIdx.x % 32, count = uniform(merge.part_count);
        /* Lanes of a row, and parts of a row whose loads are in flight together. */
        const uint32_t log = uniform(count > 16 ? 5 : 32 - __clz(int(count - 1))),
                       width = 1u << log;
        const uint32_t per_log = min(log, 4u), per = 1u << per_log;
        const bool wide =
            ((uint64_t(run->o) | uint64_t(plan.o_pitch.row | plan.o_pitch.head) * 2) & 7) == 0;
        const float2 *const states = reinterpret_cast<const float2 *>(run->states);
#pragma unroll 1
        for (uint32_t begin = first; begin < end; begin += 32 >> log) {
            const uint32_t mine = min(begin + (lane >> log), end - 1);
            uint32_t from = 0;
            float2 state = make_float2(-INFINITY, 0.0f);
            MergeSum sum;
#pragma unroll 1
            for (uint32_t p = lane & (width - 1); p < count; p += 32) {
                from = place(p, mine);
                state = __ldcg(states + from);
                sum.add(state.x, state.y);
            }
            sum.join(width);
            const Divided at = divided(mine, plan.group, run->group_reciprocal);
            const uint32_t head = kv_head * plan.group + at.rest;
            const float base = sum.top == -INFINITY ? 0.0f : sum.top;
            float m = sum.top, l = sum.l;
            const float fade = Policy::finish(run, head, &m, &l);
            l = sum_stored(l, sum.sees, false);
            const float scale = l == 0.0f ? 0.0f : __fdividef(fade, l);
            const RowOut out = row_out(run, merge.row_begin + at.quotient, head, false);
            if ((lane & (width - 1)) == 0 && out.sum)
                *out.sum = lse_of(plan, m, l);
            float weight = exp2_fast(state.x - base) * scale;
            const uint32_t units = min(32u >> log, end - begin) * chunks;
#pragma unroll 1
            for (uint32_t unit = 0; unit < units; unit += batch >> per_log) {
                float value[4] = {};
#pragma unroll 1
                for (uint32_t p = 0; p < count; p += per) {
                    if (count > 32 && p % 32 == 0) { /* more than lanes: again, in turn */
                        state = make_float2(-INFINITY, 0.0f);
                        if (p + lane < count) {
                            from = place(p + lane, mine);
                            state = __ldcg(states + from);
                        }
                        weight = exp2_fast(state.x - base) * scale;
                    }
                    /* In place of what is not there the last one is loaded again: a load behind
                     * a condition is waited for in front of the next. */
                    float4 part[batch];
#pragma unroll
                    for (uint32_t j = 0; j < batch; j++) {
                        const uint32_t u = min(unit + (j >> per_log), units - 1);
                        const uint32_t of = min(p + (j & (per - 1)), count - 1);
                        const uint32_t there = __shfl_sync(
                            0xffffffffu, from, (u / chunks << log) + (of & (width - 1)));
                        part[j] = __ldcg(reinterpret_cast<const float4 *>(
                            run->outputs + uint64_t(there) * latent_values + u % chunks * chunk +
                            lane * 4));
                    }
#pragma unroll
                    for (uint32_t j = 0; j < batch; j++) {
                        const uint32_t u = unit + (j >> per_log), of = p + (j & (per - 1));
                        const float w = __shfl_sync(0xffffffffu, weight,
                                                    (u / chunks << log) + (of & (width - 1)));
                        if (of < count) {
                            value[0] = fmaf(w, part[j].x, value[0]);
                            value[1] = fmaf(w, part[j].y, value[1]);
                            value[2] = fmaf(w, part[j].z, value[2]);
                            value[3] = fmaf(w, part[j].w, value[3]);
                        }
                        if ((j & (per - 1)) != per - 1 || p + per < count)
                            continue;
                        const uint64_t to =
                            __shfl_sync(0xffffffffu, uint64_t(out.values), u / chunks << log);
                        if (u < units)
                            store(to + (u % chunks * chunk + lane * 4) * sizeof(T), value, wide);
                        value[0] = value[1] = value[2] = value[3] = 0.0f;
                    }
                }
            }
        }
    }
};

/* All consumers: the rows of a merge for one KV head, as many for each warp. @parts: the merge's. A
 * call: it is kept out of the way of the loops. */
template <typename T, int D, typename Policy>
__device__ __noinline__ void merge_wide(const ActiveRun *run, attnd_merge merge,
                                        const uint32_t *parts, uint32_t kv_head)
{
    __builtin_assume(__isShared(run));
    const uint32_t rows = uniform(merge.row_count * run->plan.group);
    const uint32_t share = (rows + consumer_warps - 1) / consumer_warps;
    const uint32_t first = uniform(consumer_thread() / 32) * share;
    if (first >= rows)
        return;
    const MergeWide<T, D, Policy> wide = {run,     merge, parts,
                                          kv_head, first, min(first + share, rows)};
    wide.prefetch();
    wide.rows();
}

} // namespace attnd

#endif
