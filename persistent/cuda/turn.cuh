/*
 * turn.cuh - how items reach a worker: one warp takes them, everybody else is handed turns.
 *
 * A turn is an item resolved once, in one of two slots of shared memory. The taker fills a slot
 * when all warps have left it, so at most one item is claimed ahead of the one being worked on: its
 * latency is hidden, and what idle workers could do is not hoarded. When fewer items are left than
 * workers, none is claimed ahead at all. The taker also settles turns that are over, because the
 * release of an item's results takes as long as all its stores: consumers go on meanwhile.
 */
#ifndef ATTND_PERSISTENT_CUDA_TURN_CUH
#define ATTND_PERSISTENT_CUDA_TURN_CUH

#include "persistent/cuda/barrier.cuh"
#include "persistent/cuda/tile.cuh"

namespace attnd
{

enum Path : uint32_t { path_leave, path_skip, path_append, path_naive, path_decode, path_prefill };

constexpr int turn_slots = 2;
constexpr uint32_t loader_warps = producer_threads / 32 - 1; /* the first warp takes items */

struct Turn {
    Item item;
    uint64_t begin_ns; /* written by a consumer */
    uint32_t index;
    Path path;
};

/* A run's constant part, copied once for all its items: what consumers read is next to them. */
constexpr uint32_t run_copy_bytes = offsetof(ActiveRun, next_item);
static_assert(run_copy_bytes % 16 == 0, "whole vectors");

struct Turns {
    Turn slot[turn_slots];
    alignas(16) char run_copy[2][run_copy_bytes]; /* of the turn in hand and of the one before */
    uint64_t full[turn_slots], empty[turn_slots];
};

__device__ __forceinline__ void turns_init(Turns *turns)
{
    for (int s = 0; s < turn_slots; s++) {
        barrier_init(&turns->full[s], 1);
        barrier_init(&turns->empty[s], consumer_threads / 32 + loader_warps);
    }
}

/* Turn number @number; blocks until it is there, for as long as the service is idle. */
__device__ __forceinline__ Turn *turn_wait(Turns *turns, uint32_t number)
{
    uint32_t slot = number % turn_slots, parity = number / turn_slots % 2;
    while (!barrier_test(&turns->full[slot], parity))
        ;
    return &turns->slot[slot];
}

/* The whole warp: turn number @number if it is there already, else NULL. */
__device__ __forceinline__ Turn *turn_peek(Turns *turns, uint32_t number)
{
    uint32_t slot = number % turn_slots, parity = number / turn_slots % 2;
    return __all_sync(0xffffffffu, barrier_peek(&turns->full[slot], parity)) ? &turns->slot[slot]
                                                                             : nullptr;
}

/* A warp has read turn @number for the last time. */
__device__ __forceinline__ void turn_leave(Turns *turns, uint32_t number)
{
    barrier_arrive_warp(&turns->empty[number % turn_slots]);
}

/* Waits until every warp has left turn @number. */
__device__ __forceinline__ void turn_left(Turns *turns, uint32_t number)
{
    uint32_t slot = number % turn_slots, parity = number / turn_slots % 2;
    while (!barrier_test(&turns->empty[slot], parity))
        ;
}

/* The taker's place in the stream of runs. A whole warp; the same in all lanes. */
struct Taker {
    Resident *resident;
    Turns *turns;
    uint32_t worker, variant, cursor;
    uint32_t copied; /* 1 + the run whose copy is in run_copy[copy] */
    uint32_t copy;
    uint32_t copy_used; /* the one the last turn refers to */
    uint32_t settled;   /* turns accounted for */
};

constexpr uint32_t nothing = 0xffffffffu;

/* The copy of the run the cursor is at; the one the turn before refers to is left alone. */
__device__ __forceinline__ const ActiveRun *taker_run(Taker *taker)
{
    const uint32_t lane = threadIdx.x % 32;
    if (taker->copied != taker->cursor + 1) {
        const ActiveRun *run = &taker->resident->runs[taker->cursor % active_runs];
        taker->copy = taker->copy_used ^ 1;
        uint4 *to = reinterpret_cast<uint4 *>(taker->turns->run_copy[taker->copy]);
#pragma unroll
        for (uint32_t i = 0; i < (run_copy_bytes / 16 + 31) / 32; i++)
            if (i * 32 + lane < run_copy_bytes / 16)
                to[i * 32 + lane] = __ldcg(reinterpret_cast<const uint4 *>(run) + i * 32 + lane);
        taker->copied = taker->cursor + 1;
        __syncwarp();
    }
    return reinterpret_cast<const ActiveRun *>(taker->turns->run_copy[taker->copy]);
}

/* A turn that every warp has left: counts its item, and with the last item of a run hands the run
 * to the dispatcher. One lane. What the consumers stored is covered: they left by an arrival that
 * releases to the CTA, this lane saw it, and its own arrival releases to the GPU. */
template <int D> __device__ __forceinline__ void turn_settle(const Turn *turn)
{
    const Item &item = turn->item;
    ActiveRun *run = item.live;
    const uint64_t end_ns = clock_ns();
    if (turn->path >= path_naive && item.kv_end > item.kv_begin)
        atomicAdd(&run->kv_bytes, 2ull * 2 * D * uint64_t(item.kv_end - item.kv_begin));
    atomicAdd(&run->busy_ns, static_cast<unsigned long long>(end_ns - turn->begin_ns));
    atomicMax(&run->end_ns, static_cast<unsigned long long>(end_ns));
    if (*cta_stuck()) /* what it computed may be garbage: nobody is to take it for done */
        return;
    if (arrive_gpu(&run->done_items) + 1 == run->run.items)
        publish_gpu(&run->state, run_finished);
}

/* Settles turns before @end, in order: all of them if @wait, else those that are over. Return: true
 * if none is left. */
template <int D> __device__ __forceinline__ bool taker_settle(Taker *taker, uint32_t end, bool wait)
{
    Turns *turns = taker->turns;
    for (; taker->settled != end; taker->settled++) {
        const uint32_t slot = taker->settled % turn_slots, parity = taker->settled / turn_slots % 2;
        if (wait)
            turn_left(turns, taker->settled);
        else if (!__all_sync(0xffffffffu, barrier_peek(&turns->empty[slot], parity)))
            return false;
        if (threadIdx.x % 32 == 0)
            turn_settle<D>(&turns->slot[slot]);
        __syncwarp();
    }
    return true;
}

/* The next item, or `nothing` when the kernel is to leave. @copy: of its run. */
template <int D>
__device__ __forceinline__ uint32_t take_item(Taker *taker, uint32_t number, const ActiveRun **copy)
{
    Resident *resident = taker->resident;
    const uint32_t lane = threadIdx.x % 32;
    for (;;) {
        while (taker->cursor != observe_gpu(&resident->published)) { /* A1 */
            ActiveRun *run = &resident->runs[taker->cursor % active_runs];
            uint32_t next = *reinterpret_cast<volatile uint32_t *>(&run->next_item);
            *copy = taker_run(taker);
            uint32_t items = (*copy)->variant == taker->variant ? (*copy)->run.items : 0;
            next = __shfl_sync(0xffffffffu, next, 0);
            if (next < items) {
                if (next + resident->workers > items)
                    taker_settle<D>(taker, number, true);
                uint32_t item = 0;
                if (lane == 0)
                    item = take_gpu(&run->next_item);
                item = __shfl_sync(0xffffffffu, item, 0);
                if (item < items) {
                    taker->copy_used = taker->copy;
                    return item;
                }
            }
            taker->cursor++;
            if (lane == 0)
                publish_gpu(&resident->cursor[taker->worker], taker->cursor);
        }
        if (taker_settle<D>(taker, number, false) && observe_gpu(&resident->leave))
            return nothing;
        __nanosleep(64);
    }
}

/* 16 rows of 256 dims do not fit in the decode loop's registers. */
template <int D> constexpr uint32_t decode_rows = D == 256 ? 8 : 16;

/* The taker: every turn until the kernel leaves. One warp. */
template <int D> __device__ __forceinline__ void take_turns(Taker *taker)
{
    Resident *resident = taker->resident;
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t number = 0;; number++) {
        if (number >= turn_slots)
            taker_settle<D>(taker, number - turn_slots + 1, true);
        Turn *turn = &taker->turns->slot[number % turn_slots];
        const ActiveRun *copy = nullptr;
        if (lane == 0)
            resident->doing[taker->worker] = state_idle;
        const uint32_t index = take_item<D>(taker, number, &copy);
        ActiveRun *run = &resident->runs[taker->cursor % active_runs];
        Path path = path_leave;
        if (index != nothing) {
            const uint32_t cancelled = observe_gpu(&run->cancelled);
            if (lane == 0) {
                turn->index = index;
                turn->item.run = copy;
                turn->item.live = run;
            }
            __syncwarp();
            if (copy->run.kind == ATTND_RUN_APPEND) {
                path = path_append;
            } else {
                item_load(&turn->item, index, lane);
                bool few = turn->item.packed_rows <= decode_rows<D>;
                bool may = copy->aligned && resident->paths >> (few ? 0 : 1) & 1;
                path = !may ? path_naive : few ? path_decode : path_prefill;
            }
            if (cancelled)
                path = path_skip;
        }
        if (lane == 0) {
            turn->path = path;
            resident->doing[taker->worker] = index == nothing ? state_left : state_item;
            barrier_arrive(&taker->turns->full[number % turn_slots], 1);
        }
        if (index == nothing)
            return;
        __syncwarp();
    }
}

} // namespace attnd

#endif
