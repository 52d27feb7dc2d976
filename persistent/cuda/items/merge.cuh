/*
 * merge.cuh - rows that several items have parts of: the last item to arrive merges them. All
 * consumers of its CTA call this.
 */
#ifndef ATTND_PERSISTENT_CUDA_ITEMS_MERGE_CUH
#define ATTND_PERSISTENT_CUDA_ITEMS_MERGE_CUH

#include "persistent/cuda/items/merge_wide.cuh"
#include "persistent/cuda/items/row.cuh"
#include "persistent/cuda/state/roles.cuh"

namespace attnd
{

/* Merging, by one warp for 64 dims of a row: each half of it takes every second part, a lane four
 * dims. Parts' states lie in the lanes of a half, so that maximum and weights take a few shuffles
 * and not a pass over all parts in every lane: somebody waits for each step of this. */
constexpr uint32_t merge_batch = 16; /* parts whose loads are in flight together */

struct Merging {
    float top = -INFINITY, l = 0.0f;
    float4 value = {};

    /* @state: of part lane % merge_batch; (-inf, 0) where there is none. Return: that part's
     * weight. What is there already fades. */
    __device__ __forceinline__ float weigh(float2 state)
    {
        float higher = state.x;
#pragma unroll
        for (uint32_t step = 1; step < merge_batch; step *= 2)
            higher = fmaxf(higher, __shfl_xor_sync(0xffffffffu, higher, step));
        higher = fmaxf(higher, top);
        const float base = higher == -INFINITY ? 0.0f : higher, fade = exp2_fast(top - base);
        const float weight = exp2_fast(state.x - base);
        float sum = weight * state.y;
#pragma unroll
        for (uint32_t step = 1; step < merge_batch; step *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        top = higher;
        l = fmaf(l, fade, sum);
        value = {value.x * fade, value.y * fade, value.z * fade, value.w * fade};
        return weight;
    }

    __device__ __forceinline__ void add(float weight, float4 part)
    {
        value.x = fmaf(weight, part.x, value.x);
        value.y = fmaf(weight, part.y, value.y);
        value.z = fmaf(weight, part.z, value.z);
        value.w = fmaf(weight, part.w, value.w);
    }

    /* The halves together. Return: two of the four dims, the upper half the upper two. */
    __device__ __forceinline__ float2 join()
    {
        const bool upper = threadIdx.x % 32 >= 16;
        const float2 mine = upper ? make_float2(value.z, value.w) : make_float2(value.x, value.y);
        const float2 other = upper ? make_float2(value.x, value.y) : make_float2(value.z, value.w);
        return make_float2(mine.x + __shfl_xor_sync(0xffffffffu, other.x, 16),
                           mine.y + __shfl_xor_sync(0xffffffffu, other.y, 16));
    }
};

/* Units of 64 dims that a row of o has. */
template <int D, typename Policy>
__device__ __forceinline__ uint32_t out_units(const attnd_plan_head &plan)
{
    return (Policy::template dim_vo<D>(plan) + 63) / 64;
}

/* What one warp merges at a time: 64 dims of a row of a merge. */
struct MergeUnit {
    attnd_merge merge;     /* of no parts: nothing */
    const uint32_t *parts; /* the merge's */
    uint32_t unit;         /* which of its rows and dims */
};

/* @at_once of them for one KV head, by one warp. @batch: parts of each whose loads are in flight
 * together. What can be found before the parts are asked for is: their loads, 64 bytes a clock, are
 * in the way of all that goes through shared memory behind them. */
template <typename T, int D, typename Policy, uint32_t batch, uint32_t at_once>
__device__ __forceinline__ void merge_units(const ActiveRun *run, const MergeUnit (&units)[at_once],
                                            uint32_t kv_head)
{
    __builtin_assume(__isShared(run));
    const attnd_plan_head &plan = run->plan;
    const uint32_t group = plan.group, lane = threadIdx.x % 32;
    const uint32_t upper = lane / 16, heads_q = plan.heads_q;
    const uint32_t dim = Policy::template dim_vo<D>(plan), per_row = out_units<D, Policy>(plan);
    const float2 *const states = reinterpret_cast<const float2 *>(run->states);
    uint32_t d[at_once], row[at_once], head[at_once], most = 0;
    bool sees[at_once] = {};
    Merging merging[at_once];
#pragma unroll
    for (uint32_t u = 0; u < at_once; u++) {
        const Divided at = divided(units[u].unit / per_row, group, run->group_reciprocal);
        d[u] = units[u].unit % per_row * 64 + lane % 16 * 4;
        row[u] = at.quotient;
        head[u] = kv_head * group + at.rest;
        most = max(most, units[u].merge.part_count);
    }
#pragma unroll 1
    for (uint32_t first = 0; first < most; first += batch) {
        float2 state[at_once];
        float4 value[at_once][batch / 2];
        uint32_t place[at_once];
#pragma unroll
        for (uint32_t u = 0; u < at_once; u++) {
            const uint32_t part = first + lane % 16, count = units[u].merge.part_count;
            place[u] = (units[u].parts[min(part, max(count, 1u) - 1)] + row[u]) * heads_q + head[u];
            const float2 there = __ldcg(states + place[u]);
            state[u] = lane % 16 < batch && part < count ? there : make_float2(-INFINITY, 0.0f);
        }
        /* In place of what is not there the last part is loaded again: a load behind a condition is
         * waited for in front of the next. */
#pragma unroll
        for (uint32_t u = 0; u < at_once; u++)
#pragma unroll
            for (uint32_t i = 0; i < batch / 2; i++) {
                const uint32_t from = __shfl_sync(0xffffffffu, place[u], i * 2 + upper);
                value[u][i] = __ldcg(reinterpret_cast<const float4 *>(
                    run->outputs + (Policy::in_vo(plan, d[u]) ? d[u] : 0) + uint64_t(from) * dim));
            }
#pragma unroll
        for (uint32_t u = 0; u < at_once; u++) {
            const float weight = merging[u].weigh(state[u]);
            sees[u] |= state[u].y != 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < batch / 2; i++) {
                const float of_part = __shfl_sync(0xffffffffu, weight, i * 2 + upper);
                if (first + i * 2 + upper < units[u].merge.part_count)
                    merging[u].add(of_part, value[u][i]);
            }
        }
    }
#pragma unroll
    for (uint32_t u = 0; u < at_once; u++) {
        float2 joined = merging[u].join();
        const bool any = __any_sync(0xffffffffu, sees[u]);
        if (!units[u].merge.part_count || !Policy::in_vo(plan, d[u]))
            continue;
        float m = merging[u].top, l = merging[u].l;
        const float fade = Policy::finish(run, head[u], &m, &l);
        const RowOut out = row_out(run, units[u].merge.row_begin + row[u], head[u], false);
        joined = make_float2(joined.x * fade, joined.y * fade);
        row_store<T>(plan, out, d[u] + upper * 2, joined, m, sum_stored(l, any, false));
    }
}

/* All consumers: the rows of a merge for one KV head. @parts: the merge's. What can be found before
 * the parts are asked for is: their loads, 64 bytes a clock, are in the way of all that goes
 * through shared memory behind them. A call: it is kept out of the way of the loops. */
template <typename T, int D, typename Policy>
__device__ __noinline__ void merge_rows(const ActiveRun *run, attnd_merge merge,
                                        const uint32_t *parts, uint32_t kv_head)
{
    __builtin_assume(__isShared(run));
    const attnd_plan_head &plan = run->plan;
    const uint32_t group = plan.group, count = uniform(merge.part_count), lane = threadIdx.x % 32;
    const uint32_t dim = Policy::template dim_vo<D>(plan), per_row = out_units<D, Policy>(plan);
    const uint32_t units = uniform(merge.row_count * group * per_row), upper = lane / 16;
    const uint32_t heads_q = plan.heads_q;
    const float2 *const states = reinterpret_cast<const float2 *>(run->states);
#pragma unroll 1
    for (uint32_t unit = uniform(consumer_thread() / 32); unit < units; unit += consumer_warps) {
        const uint32_t d = unit % per_row * 64 + lane % 16 * 4;
        const float *const outputs = run->outputs + d;
        const Divided at = divided(unit / per_row, group, run->group_reciprocal);
        const uint32_t head = kv_head * group + at.rest;
        const RowOut out = row_out(run, merge.row_begin + at.quotient, head, false);
        bool sees = false;
        Merging merging;
#pragma unroll 1
        for (uint32_t first = 0; first < count; first += merge_batch) {
            float2 state = make_float2(-INFINITY, 0.0f);
            float4 value[merge_batch / 2] = {};
            uint32_t place = 0;
            if (first + lane % 16 < count) {
                place = (parts[first + lane % 16] + at.quotient) * heads_q + head;
                state = __ldcg(states + place);
            }
            uint32_t from[merge_batch / 2];
#pragma unroll
            for (uint32_t i = 0; i < merge_batch / 2; i++)
                from[i] = __shfl_sync(0xffffffffu, place, i * 2 + upper);
#pragma unroll
            for (uint32_t i = 0; i < merge_batch / 2; i++)
                if (first + i * 2 + upper < count && Policy::in_vo(plan, d))
                    value[i] =
                        __ldcg(reinterpret_cast<const float4 *>(outputs + uint64_t(from[i]) * dim));
            const float weight = merging.weigh(state);
            sees |= state.y != 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < merge_batch / 2; i++)
                merging.add(__shfl_sync(0xffffffffu, weight, i * 2 + upper), value[i]);
        }
        const bool any = __any_sync(0xffffffffu, sees);
        const float2 joined = merging.join();
        if (!Policy::in_vo(plan, d))
            continue;
        float m = merging.top, l = merging.l;
        const float fade = Policy::finish(run, head, &m, &l);
        row_store<T>(plan, out, d + upper * 2, make_float2(joined.x * fade, joined.y * fade), m,
                     sum_stored(l, any, false));
    }
}

/* The same of up to @most parts, for many rows: a lane for four dims of a row, whose loads are all
 * in flight at once. So the last part is loaded again in place of those that are not there: a load
 * that depends on anything would be waited for, in front of the next. Results have the bits that
 * merge_rows() gives them. */
template <typename T, int D, typename Policy, uint32_t most>
__device__ __noinline__ void merge_few(const ActiveRun *run, attnd_merge merge,
                                       const uint32_t *parts, uint32_t kv_head)
{
    __builtin_assume(__isShared(run) && __isShared(parts));
    constexpr uint32_t per_row = D / 4;
    const attnd_plan_head &plan = run->plan;
    const uint32_t group = plan.group, last = uniform(merge.part_count) - 1;
    const uint32_t dim = Policy::template dim_vo<D>(plan), heads_q = plan.heads_q;
    const uint32_t units = uniform(merge.row_count * group * per_row);
    const float2 *const states = reinterpret_cast<const float2 *>(run->states);
#pragma unroll 1
    for (uint32_t unit = consumer_thread(); unit < units; unit += consumer_threads) {
        const uint32_t d = unit % per_row * 4;
        const bool in = Policy::in_vo(plan, d);
        const float *const outputs = run->outputs + (in ? d : 0);
        const Divided at = divided(unit / per_row, group, run->group_reciprocal);
        const uint32_t head = kv_head * group + at.rest;
        float2 state[most];
        float4 value[most];
        float top = -INFINITY;
        bool sees = false;
#pragma unroll
        for (uint32_t p = 0; p < most; p++) {
            const uint32_t place = (parts[min(p, last)] + at.quotient) * heads_q + head;
            state[p] = __ldcg(states + place);
            value[p] = __ldcg(reinterpret_cast<const float4 *>(outputs + uint64_t(place) * dim));
        }
#pragma unroll
        for (uint32_t p = 0; p < most; p++) {
            top = fmaxf(top, state[p].x);
            sees |= state[p].y != 0.0f;
        }
        const float base = top == -INFINITY ? 0.0f : top;
        Merging half[2]; /* every second part each */
        float sum[most];
#pragma unroll
        for (uint32_t p = 0; p < most; p++) {
            const float weight = exp2_fast(state[p].x - base);
            sum[p] = p <= last ? __fmul_rn(weight, state[p].y) : 0.0f;
            if (p <= last)
                half[p % 2].add(weight, value[p]);
        }
#pragma unroll
        for (uint32_t step = 1; step < most; step *= 2) /* as lanes add them up */
#pragma unroll
            for (uint32_t p = 0; p < most; p += 2 * step)
                sum[p] = __fadd_rn(sum[p], sum[p + step]);
        float m = top, l = sum[0];
        const float fade = Policy::finish(run, head, &m, &l);
        if (!in)
            continue;
        const float4 &a = half[0].value, &b = half[1].value;
        const RowOut out = row_out(run, merge.row_begin + at.quotient, head, false);
        l = sum_stored(l, sees, false);
        row_store<T>(plan, out, d, make_float2((a.x + b.x) * fade, (a.y + b.y) * fade), m, l);
        row_store<T>(plan, out, d + 2, make_float2((a.z + b.z) * fade, (a.w + b.w) * fade), m, l);
    }
}

/* All consumers: merges number @first + i for each bit i of @todo, of a few rows each: rows of a
 * shared prefix, of which each has keys of its own. Each warp has a unit of several at a time,
 * because what is waited for is the way to memory and back. */
template <typename T, int D, typename Policy>
__device__ __noinline__ void merge_many(const ActiveRun *run, const attnd_merge *first,
                                        uint32_t todo, uint32_t kv_head)
{
    __builtin_assume(__isShared(run));
    constexpr uint32_t at_once = 2;
    const uint32_t per_row = run->plan.group * out_units<D, Policy>(run->plan);
#pragma unroll 1
    while (todo) {
        attnd_merge merge[at_once];
        uint32_t most = 0;
#pragma unroll
        for (uint32_t u = 0; u < at_once; u++) {
            merge[u] = {};
            if (todo)
                merge[u] = first[__ffs(int32_t(todo)) - 1];
            todo &= todo - 1;
            merge[u].part_count = uniform(merge[u].part_count);
            merge[u].row_count = uniform(merge[u].row_count);
            most = max(most, merge[u].row_count);
        }
#pragma unroll 1
        for (uint32_t unit = uniform(consumer_thread() / 32); unit < most * per_row;
             unit += consumer_warps) {
            MergeUnit turn[at_once];
#pragma unroll
            for (uint32_t u = 0; u < at_once; u++) {
                turn[u] = {merge[u], run->merge_parts + merge[u].part_begin, unit};
                if (unit >= merge[u].row_count * per_row)
                    turn[u].merge.part_count = turn[u].unit = 0;
            }
            merge_units<T, D, Policy, merge_batch / 2, at_once>(run, turn, kv_head);
        }
    }
}

/* The merges of 32 that this CTA is to do: a bit each, from one warp to all. */
__device__ __forceinline__ uint32_t *cta_merges()
{
    __shared__ uint32_t merges;
    return &merges;
}

/* A tile with several merges. A lane arrives at a merge, so that a tile of a shared prefix, whose
 * rows each have a merge of their own, waits for one arrival and not for one after the other. */
template <typename T, int D, typename Policy>
__device__ __noinline__ void arrive_many(const Item &item, uint32_t merges)
{
    const ActiveRun *const run = item.run;
    __builtin_assume(__isShared(&item) && __isShared(run));
    const attnd_merge *const all = run->merges + item.tile.merge_begin;
#pragma unroll 1
    for (uint32_t first = 0; first < merges; first += 32) {
        const uint32_t mine = first + consumer_thread();
        const bool arrives = consumer_thread() < 32 && mine < merges;
        const uint32_t parts = arrives ? all[mine].part_count : 0;
        bool last = false;
        consumers_sync(); /* partials of all threads before the arrivals */
        if (arrives) {
            uint32_t *const arrivals = item.arrivals + mine * run->plan.heads_kv;
            last = arrive_gpu(arrivals) + 1 == parts;
            if (last) /* a prepared run finds it as it was */
                *arrivals = 0;
        }
        if (consumer_thread() < 32) {
            const uint32_t mask = __ballot_sync(0xffffffffu, last);
            if (consumer_thread() == 0)
                *cta_merges() = mask;
        }
        if (uniform(consumers_any(last)))
            merge_many<T, D, Policy>(run, all + first, uniform(*cta_merges()), item.kv_head);
    }
}

/* Whether all other parts of the tile's one merge are there, so that this one is sure to be last: a
 * shared prefix is, mostly, when what rows have of their own begins. One thread; the others may
 * read those parts behind a barrier. */
__device__ __forceinline__ bool others_there(const Item &item)
{
    return item.run->plan.levels > 1 && item.tile.merge_count == 1 &&
           observe_gpu(item.arrivals) + 1 == item.tile.first_merge.part_count;
}

/* All consumers: arrives at the tile's merges and does those it arrives at last. @last, of the
 * first consumer: others_there(), so nobody else will ask who has arrived. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void merge_arrive(const Item &item, bool last = false)
{
    const ActiveRun *const run = item.run;
    __builtin_assume(__isShared(&item) && __isShared(run));
    const uint32_t merges = uniform(item.tile.merge_count);
    if (merges > 1)
        arrive_many<T, D, Policy>(item, merges);
    if (merges != 1)
        return;
    const attnd_merge merge = item.tile.first_merge;
    consumers_sync(); /* partials of all threads before the arrival of one */
    if (consumer_thread() == 0) {
        last = last || arrive_gpu(item.arrivals) + 1 == merge.part_count;
        if (last) /* a prepared run finds it as it was */
            *item.arrivals = 0;
    }
    if (!uniform(consumers_any(last)))
        return;
    const uint32_t *parts = run->merge_parts + merge.part_begin;
    if (merge.part_count <= 32)
        parts = item.parts;
    const bool many = uniform(merge.row_count * run->plan.group) > 8;
    const uint32_t count = uniform(merge.part_count);
    if constexpr (D == latent_dim)
        merge_wide<T, D, Policy>(run, merge, parts, item.kv_head);
    else if (many && count <= 4)
        merge_few<T, D, Policy, 4>(run, merge, parts, item.kv_head);
    else if (many && count <= 8)
        merge_few<T, D, Policy, 8>(run, merge, parts, item.kv_head);
    else
        merge_rows<T, D, Policy>(run, merge, parts, item.kv_head);
}

} // namespace attnd

#endif
