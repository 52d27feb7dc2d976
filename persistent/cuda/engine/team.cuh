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

/* A call: it is wanted several times, and its instructions come once. */
static __device__ __noinline__ void attnd_team_scan(const attnd_team *team, uint32_t *words,
                                                    uint32_t count)
{
    using namespace attnd;
    __builtin_assume(__isShared(words));
    TeamWords *sums = team_words();
    const uint32_t thread = threadIdx.x, lane = thread % 32;
    uint32_t carry = 0;
#pragma unroll 1
    for (uint32_t base = 0; base < count; base += team_threads) {
        const uint32_t i = base + thread, own = i < count ? words[i] : 0;
        uint32_t sum = own;
#pragma unroll
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane < step ? 0 : other;
        }
        if (lane == 31)
            sums->of[thread / 32][0] = sum;
        __syncthreads();
        const uint32_t of = lane < team_warps ? sums->of[lane][0] : 0;
        const uint32_t before = __reduce_add_sync(0xffffffffu, lane < thread / 32 ? of : 0);
        if (i < count)
            words[i] = carry + before + sum - own;
        carry += __reduce_add_sync(0xffffffffu, of);
        __syncthreads();
    }
    if (thread == 0)
        words[count] = carry;
    __syncthreads();
}

/* The order of positive floats is that of their bits. */
__device__ __forceinline__ float group_most(float value)
{
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(value)));
}

/* Sums and largest words over all threads; @least: whose bits are turned around. */
template <uint32_t sums, uint32_t largest>
__device__ __forceinline__ void team_reduce(const attnd_team *team, uint32_t (&sum)[sums],
                                            uint32_t (&most)[largest])
{
    using namespace attnd;
    static_assert(sums + largest <= sizeof(TeamWords::of[0]) / 4, "they fit");
    TeamWords *all = team_words();
#pragma unroll 1
    for (uint32_t turn = 0; turn < 2; turn++) {
#pragma unroll
        for (uint32_t i = 0; i < sums; i++)
            sum[i] = __reduce_add_sync(0xffffffffu, sum[i]);
#pragma unroll
        for (uint32_t i = 0; i < largest; i++)
            most[i] = __reduce_max_sync(0xffffffffu, most[i]);
        if (turn == 0) {
            if (team->lane == 0) {
#pragma unroll
                for (uint32_t i = 0; i < sums; i++)
                    all->of[team->group][i] = sum[i];
#pragma unroll
                for (uint32_t i = 0; i < largest; i++)
                    all->of[team->group][sums + i] = most[i];
            }
            __syncthreads();
            const bool there = team->lane < team_warps;
#pragma unroll
            for (uint32_t i = 0; i < sums; i++)
                sum[i] = there ? all->of[team->lane][i] : 0;
#pragma unroll
            for (uint32_t i = 0; i < largest; i++)
                most[i] = there ? all->of[team->lane][sums + i] : 0;
        }
    }
    __syncthreads();
}

__device__ __forceinline__ void attnd_team_seen(const attnd_team *team, attnd_cut_seen *seen)
{
    uint32_t sum[5] = {seen->total[0], seen->total[1], seen->count[0], seen->count[1], seen->keys};
    uint32_t most[5] = {__float_as_uint(seen->longest_ns[0]), __float_as_uint(seen->longest_ns[1]),
                        ~__float_as_uint(seen->shortest_ns[0]),
                        ~__float_as_uint(seen->shortest_ns[1]), seen->rows_max};
    team_reduce(team, sum, most);
    *seen = {{__uint_as_float(most[0]), __uint_as_float(most[1])},
             {__uint_as_float(~most[2]), __uint_as_float(~most[3])},
             {sum[0], sum[1]},
             {sum[2], sum[3]},
             sum[4],
             most[4]};
}

static __device__ __noinline__ uint32_t attnd_team_total(const attnd_team *, uint32_t value)
{
    const attnd_team team = attnd_team_here();
    uint32_t sum[1] = {value}, most[1] = {0};
    team_reduce(&team, sum, most);
    return sum[0];
}

static __device__ __noinline__ uint32_t attnd_team_largest(const attnd_team *, uint32_t value)
{
    const attnd_team team = attnd_team_here();
    uint32_t sum[1] = {0}, most[1] = {value};
    team_reduce(&team, sum, most);
    return most[0];
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
                                                 uint32_t count, uint32_t *counts, uint32_t classes)
{
    using namespace attnd;
    const uint32_t each = (count + team_threads - 1) / team_threads * 32;
    const uint32_t begin = team->group * each, end = min(begin + each, count);
#pragma unroll 1
    for (uint32_t i = team->thread; i < classes * team_warps; i += team_threads)
        counts[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t turn = 0; turn < 2; turn++) {
#pragma unroll 1
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
            attnd_team_scan(team, counts, classes * team_warps);
    }
}

#include "persistent/cut_batch.h"

#endif
