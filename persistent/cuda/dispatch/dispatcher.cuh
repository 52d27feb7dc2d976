/*
 * dispatcher.cuh - the dispatcher kernel: one CTA of four warps, a duty each.
 *
 *   commands  the only one that looks at host memory all the time: command ring, park, heartbeat
 *             (commands.cuh)
 *   retires   finished runs to the retire ring, of which it is the only writer (retire.cuh)
 *   doorbells mailboxes, which lie in device memory (doorbells.cuh)
 *   chores    what nobody waits for: positions made ready, cancelled runs, sums (retire.cuh)
 *
 * Each warp keeps for the next launch what it alone writes, and ends by itself. Of kernels that
 * come and go, the next ones wait for the last warp. That is the one that retires: the others are
 * done when no item is left to take.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_DISPATCHER_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_DISPATCHER_CUH

#include "persistent/cuda/dispatch/commands.cuh"
#include "persistent/cuda/dispatch/retire.cuh"
#include "persistent/cuda/dispatch/stay.cuh"
#include "persistent/cuda/machine/copy.cuh"
#include "persistent/cuda/machine/scalar.cuh"
#include "persistent/cuda/state/roles.cuh"

namespace attnd
{

/* Across the bus. One thread. */
__device__ __noinline__ uint32_t still_dismissed(const Settings &settings)
{
    return (observe_sys(&settings.host->dismiss) | observe_sys(&settings.queue->park)) != 0;
}

/* Before the warps part: what was kept since the last launch, and an empty ring. Somebody's layer
 * waits for it: everything is asked for at once, and nothing behind the bus. Whether these kernels
 * were dismissed is among the first words that the commands' warp looks at: a doorbell that was
 * taken by then is executed, as by kernels that were there already. Of many that are dismissed one
 * behind the other only the first does so: the next ones look before they begin. */
__device__ __forceinline__ void dispatch_begin(Dispatch *dispatch, Resident *resident,
                                               uint32_t gang)
{
    static_assert(dispatch_threads == ATTND_MAILBOXES_MAX, "a mailbox a thread");
    static_assert(sizeof(Dispatch) % 16 == 0 && sizeof(Settings) / 4 <= dispatch_threads, "");
    const uint32_t thread = threadIdx.x;
    const uint32_t published = resident->published, dirty = resident->dirty;
    const uint64_t plan_bytes = resident->plan_bytes;
    const uint32_t prepared_end = resident->prepared_end;
    const uint32_t transient = resident->transient, prepared_count = resident->prepared_count;
    const uint32_t recent = resident->recent, dismissed = resident->dismissed;
    attnd_mailbox *mailbox = resident->mailboxes[thread];
    const uint4 first = reinterpret_cast<const uint4 *>(resident->prepared)[thread];
    const uint32_t word =
        thread < sizeof(Settings) / 4 ? reinterpret_cast<const uint32_t *>(resident)[thread] : 0;

    for (uint32_t i = thread; i < sizeof(Dispatch) / 16; i += dispatch_threads)
        reinterpret_cast<uint4 *>(dispatch)[i] = make_uint4(0, 0, 0, 0);
    constexpr uint32_t vectors = sizeof(Live) / 16;
    if (mailbox) /* its doorbells are the next that is asked for: what finds them is at hand then */
        prefetch_line(reinterpret_cast<const char *>(mailbox));
#pragma unroll 1 /* most often once, or not at all: fewer instructions to wait for */
    for (uint32_t i = thread; i < (published - dirty) * vectors; i += dispatch_threads)
        reinterpret_cast<uint4 *>(
            &resident->live[(dirty + i / vectors) % ring_positions])[i % vectors] =
            make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (thread < sizeof(Settings) / 4)
        reinterpret_cast<uint32_t *>(&dispatch->settings)[thread] = word;
    if (thread < prepared_end)
        reinterpret_cast<uint4 *>(dispatch->prepared)[thread] = first;
#pragma unroll 1
    for (uint32_t i = dispatch_threads + thread; i < prepared_end; i += dispatch_threads)
        dispatch->prepared[i] = resident->prepared[i];
    if (mailbox)
        list_mailbox(dispatch, thread, mailbox);
    if (thread == 0) {
        resident->running = gang;
        dispatch->pending = resident->pending;
        dispatch->gang = gang;
        dispatch->published = dispatch->retired = published;
        dispatch->ready = published + ring_positions;
        dispatch->plan_bytes = plan_bytes;
        dispatch->transient = transient;
        dispatch->prepared_count = prepared_count;
        dispatch->recent = recent;
        if (dismissed)
            dispatch->quiet = dispatch->closing = resident->dismissed = still_dismissed(*resident);
    }
    __syncthreads();
}

constexpr uint64_t warm_bytes = 1u << 16;

__device__ __forceinline__ void warm(const void *from, uint64_t bytes)
{
    const char *at = static_cast<const char *>(from);
    for (uint64_t i = 128 * (threadIdx.x % 32); i < min(bytes, warm_bytes); i += 128 * 32)
        prefetch_line(at + i);
}

/* What workers resolve their first items from, a trip behind the other: the run, its tiles, pages
 * and lengths. Behind an engine's products that lies in DRAM again. The run that comes is most
 * often of the plan of the last one, and was prepared behind it. One warp, that has time. */
__device__ __forceinline__ void warm_plan(const Dispatch *dispatch)
{
    const uint32_t recent = dispatch->recent;
    const ActiveRun *run = &dispatch->settings.runs[recent];
    if (recent < ring_positions)
        return;
    warm(run, (recent + 1 < run_slots ? 2 : 1) * sizeof(ActiveRun));
    const attnd_plan_head &plan = run->plan;
    warm(run->tiles, plan.tiles * sizeof(attnd_tile));
    if (plan.kv_len_offset_bytes > plan.kv_pages_offset_bytes) {
        warm(run->kv_pages, plan.kv_len_offset_bytes - plan.kv_pages_offset_bytes);
        warm(run->kv_len, plan.entries_max * sizeof(int32_t));
    }
}

/* Variants of runs that are prepared come back after a change of kernels. Not in front of the first
 * doorbell. One warp. */
__device__ __forceinline__ void mark_prepared(const Dispatch *dispatch, Resident *resident)
{
    uint32_t used = 0;
    for (uint32_t i = threadIdx.x % 32; i < resident->prepared_end; i += 32) {
        const Prepared &prepared = dispatch->prepared[i];
        if (prepared.state && !(prepared.state & prepared_bad))
            used |= 1u << prepared.variant;
    }
    used = __reduce_or_sync(0xffffffffu, used);
    if (used && threadIdx.x % 32 == 0)
        set_bits(&resident->used, used);
}

/* Included where it is launched (launch.cu). */
__global__ void __launch_bounds__(dispatch_threads, 1)
    dispatch_kernel(Resident *resident, uint32_t gang)
{
    extern __shared__ __align__(128) char state[];
    /* Not known to ptxas, which would compute it anew behind every __syncwarp(), 40 clocks each. */
    uint32_t address = shared_address(state);
    asm volatile("" : "+r"(address));
    Dispatch *dispatch = static_cast<Dispatch *>(__cvta_shared_to_generic(address));
    grid_release(); /* workers begin beside this */
    dispatch_begin(dispatch, resident, gang);
    switch (threadIdx.x / 32) {
    case 0:
        dispatch_commands(dispatch, resident);
        break;
    case 1:
        dispatch_retires(dispatch, resident);
        break;
    case 2:
        dispatch_doorbells(dispatch, resident);
        break;
    default:
        warm_plan(dispatch);
        mark_prepared(dispatch, resident);
        dispatch_chores(dispatch, resident);
    }
}

} // namespace attnd

#endif
