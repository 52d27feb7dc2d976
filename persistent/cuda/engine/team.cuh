/*
 * team.cuh - what the threads of one block do together when they cut lengths into tiles
 * (persistent/cut_batch.h); persistent/cut_alone.h is the same for one thread.
 */
#ifndef ATTND_PERSISTENT_CUDA_ENGINE_TEAM_CUH
#define ATTND_PERSISTENT_CUDA_ENGINE_TEAM_CUH

#include "persistent/cuda/machine/atomics.cuh"
#include "persistent/cut.h"

namespace attnd
{

constexpr uint32_t team_threads = 512, team_warps = team_threads / 32;
static_assert(ATTND_CUT_COUNTS == ATTND_CUT_ORDERS * team_warps + 1, "one of each warp");

/* Where warps leave what others add up. Behind its use comes a sync, before the next one. */
struct alignas(16) TeamWords {
    uint32_t of[team_warps][12];
};

__device__ __forceinline__ TeamWords *team_words()
{
    __shared__ TeamWords words;
    return &words;
}

} // namespace attnd

struct attnd_team {
    uint32_t thread, threads;
    uint32_t group, groups;
    uint32_t lane, lanes;
};

__device__ __forceinline__ attnd_team attnd_team_here()
{
    return {threadIdx.x,       attnd::team_threads, threadIdx.x / 32,
            attnd::team_warps, threadIdx.x % 32,    32};
}

__device__ __forceinline__ void attnd_team_sync(const attnd_team *)
{
    __syncthreads();
}

template <uint32_t width>
__device__ __forceinline__ void team_scan(const attnd_team *team, uint32_t *words, uint32_t count)
{
    using namespace attnd;
    TeamWords *sums = team_words();
    uint32_t carry[width] = {};
    for (uint32_t base = 0; base < count; base += team_threads) {
        const uint32_t i = base + team->thread;
        uint32_t own[width], sum[width], before[width], all[width];
#pragma unroll
        for (uint32_t w = 0; w < width; w++)
            own[w] = sum[w] = i < count ? words[i * width + w] : 0;
#pragma unroll
        for (uint32_t step = 1; step < 32; step *= 2)
#pragma unroll
            for (uint32_t w = 0; w < width; w++) {
                const uint32_t other = __shfl_up_sync(0xffffffffu, sum[w], step);
                sum[w] += team->lane < step ? 0 : other;
            }
        if (team->lane == 31)
#pragma unroll
            for (uint32_t w = 0; w < width; w++)
                sums->of[team->group][w] = sum[w];
        __syncthreads();
#pragma unroll
        for (uint32_t w = 0; w < width; w++)
            before[w] = all[w] = 0;
#pragma unroll
        for (uint32_t warp = 0; warp < team_warps; warp++)
#pragma unroll
            for (uint32_t w = 0; w < width; w++) {
                const uint32_t of = sums->of[warp][w];
                before[w] += warp < team->group ? of : 0;
                all[w] += of;
            }
#pragma unroll
        for (uint32_t w = 0; w < width; w++) {
            if (i < count)
                words[i * width + w] = carry[w] + before[w] + sum[w] - own[w];
            carry[w] += all[w];
        }
        __syncthreads();
    }
    if (team->thread < width)
#pragma unroll
        for (uint32_t w = 0; w < width; w++)
            if (w == team->thread)
                words[count * width + w] = carry[w];
    __syncthreads();
}

__device__ __forceinline__ void attnd_team_scan(const attnd_team *team, uint32_t *words,
                                                uint32_t count, uint32_t width)
{
    if (width == 1)
        team_scan<1>(team, words, count);
    else
        team_scan<4>(team, words, count);
}

/* The order of positive floats is that of their bits. */
__device__ __forceinline__ float group_most(float value)
{
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(value)));
}

__device__ __forceinline__ float group_least(float value)
{
    return __uint_as_float(__reduce_min_sync(0xffffffffu, __float_as_uint(value)));
}

__device__ __forceinline__ float group_sum(float value)
{
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

__device__ __forceinline__ void group_seen(attnd_cut_seen *seen)
{
#pragma unroll
    for (uint32_t c = 0; c < 2; c++) {
        seen->total_ns[c] = group_sum(seen->total_ns[c]);
        seen->longest_ns[c] = group_most(seen->longest_ns[c]);
        seen->shortest_ns[c] = group_least(seen->shortest_ns[c]);
        seen->count[c] = __reduce_add_sync(0xffffffffu, seen->count[c]);
    }
    seen->keys = group_sum(seen->keys);
    seen->rows_max = __reduce_max_sync(0xffffffffu, seen->rows_max);
}

__device__ __forceinline__ void attnd_team_seen(const attnd_team *team, attnd_cut_seen *seen)
{
    using namespace attnd;
    constexpr uint32_t words = sizeof(*seen) / 4;
    static_assert(words <= sizeof(TeamWords::of[0]) / 4, "they fit");
    TeamWords *all = team_words();
    group_seen(seen);
    if (team->lane == 0)
#pragma unroll
        for (uint32_t w = 0; w < words; w++)
            all->of[team->group][w] = reinterpret_cast<const uint32_t *>(seen)[w];
    __syncthreads();
    const attnd_cut_seen nothing = {{0, 0}, {0, 0}, {INFINITY, INFINITY}, 0, {0, 0}, 0};
    *seen = nothing;
    if (team->lane < team_warps)
#pragma unroll
        for (uint32_t w = 0; w < words; w++)
            reinterpret_cast<uint32_t *>(seen)[w] = all->of[team->lane][w];
    group_seen(seen);
    __syncthreads();
}

__device__ __forceinline__ uint32_t attnd_team_total(const attnd_team *team, uint32_t value)
{
    using namespace attnd;
    TeamWords *all = team_words();
    value = __reduce_add_sync(0xffffffffu, value);
    if (team->lane == 0)
        all->of[team->group][0] = value;
    __syncthreads();
    value = team->lane < team_warps ? all->of[team->lane][0] : 0;
    value = __reduce_add_sync(0xffffffffu, value);
    __syncthreads();
    return value;
}

__device__ __forceinline__ uint32_t attnd_team_largest(const attnd_team *team, uint32_t value)
{
    using namespace attnd;
    TeamWords *all = team_words();
    value = __reduce_max_sync(0xffffffffu, value);
    if (team->lane == 0)
        all->of[team->group][0] = value;
    __syncthreads();
    value = team->lane < team_warps ? all->of[team->lane][0] : 0;
    value = __reduce_max_sync(0xffffffffu, value);
    __syncthreads();
    return value;
}

__device__ __forceinline__ float attnd_group_longest(const attnd_team *, float longest,
                                                     uint32_t *count)
{
    *count = __reduce_add_sync(0xffffffffu, *count);
    return group_most(longest);
}

__device__ __forceinline__ void attnd_group_sync(const attnd_team *)
{
    __syncwarp();
}

__device__ __forceinline__ void attnd_group_add(uint32_t *word, uint32_t value)
{
    attnd::add_relaxed(word, value);
}

/* A lane has a class, the first one the longest items. */
__device__ __forceinline__ float attnd_group_list(const attnd_team *team,
                                                  const attnd_cut_shape *shape, const uint32_t *ns,
                                                  const uint32_t *items, float unit_ns,
                                                  float longest_ns)
{
    static_assert(ATTND_CUT_CLASSES == 32, "a class a lane");
    const uint32_t c = 31 - team->lane, here = items[c];
    float before = float(ns[c]) * unit_ns * float(shape->heads_kv) / float(shape->workers);
    uint32_t begun = here * shape->heads_kv;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
        const float more = __shfl_up_sync(0xffffffffu, before, step);
        const uint32_t others = __shfl_up_sync(0xffffffffu, begun, step);
        before += team->lane < step ? 0.0f : more;
        begun += team->lane < step ? 0 : others;
    }
    const float begin = begun > shape->workers ? before : 0.0f;
    const float end = begin + longest_ns * float(c + 1) / ATTND_CUT_CLASSES;
    return group_most(here ? end : 0.0f);
}

/* Each warp has tiles side by side, and of each class a count, then a place. */
__device__ __forceinline__ void attnd_team_order(const attnd_team *team, uint32_t *order,
                                                 uint32_t count, uint32_t *counts)
{
    using namespace attnd;
    const uint32_t each = (count + team_threads - 1) / team_threads * 32;
    const uint32_t begin = team->group * each, end = min(begin + each, count);
    for (uint32_t i = team->thread; i < ATTND_CUT_ORDERS * team_warps; i += team_threads)
        counts[i] = 0;
    __syncthreads();
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t base = begin; base < end; base += 32) {
            const uint32_t t = base + team->lane;
            const bool there = t < end;
            const uint32_t mine = there ? order[t] : ATTND_CUT_ORDERS;
            const uint32_t alike = __match_any_sync(0xffffffffu, mine);
            const uint32_t before = __popc(alike & ((1u << team->lane) - 1));
            uint32_t *number = &counts[mine * team_warps + team->group];
            const uint32_t place = there ? *number : 0;
            __syncwarp();
            if (there && before == 0)
                *number = place + __popc(alike);
            if (there && turn)
                order[t] = place + before;
            __syncwarp();
        }
        __syncthreads();
        if (turn == 0)
            team_scan<1>(team, counts, ATTND_CUT_ORDERS * team_warps);
    }
}

#include "persistent/cut_batch.h"

#endif
