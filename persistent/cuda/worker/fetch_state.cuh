/*
 * fetch_state.cuh - the fetch warp's place in what it executes, the end of items that it gave out,
 * and when it claims the next one.
 */
#ifndef ATTND_PERSISTENT_CUDA_WORKER_FETCH_STATE_CUH
#define ATTND_PERSISTENT_CUDA_WORKER_FETCH_STATE_CUH

#include "persistent/cuda/items/work_slot.cuh"

namespace attnd
{

/* The fetch warp's place in the stream of runs. The same in all lanes. */
struct FetchWarp {
    Resident *resident;
    WorkSlots *work;
    uint32_t worker, variant, gang, cursor;
    uint32_t copied;                 /* 1 + the position whose run is in run_copy[copy] */
    uint32_t copy;                   /* the one the last work slot refers to */
    uint32_t completed;              /* work accounted for */
    const attnd_engine_fused *fused; /* the kernel's argument */
};

constexpr uint32_t nothing = 0xffffffffu;

/* An item of so few keys is over before another worker could have begun with the next one. */
constexpr int32_t short_keys = 512;

/* How long the warp is suspended between two looks: whether the item in hand was cancelled, where
 * its end is all that is waited for; at the ring of runs, and whether an item of prefill is ending;
 * and whether one of decode is. */
constexpr uint32_t cancelled_wait_ns = 20000, entry_wait_ns = 1000, ending_wait_ns = 200;

/* Completes work before @end, in order: all of it if @wait, else only what is over. Return: true if
 * none is left. */
template <int D>
__device__ __forceinline__ bool fetch_complete(FetchWarp *fetch, uint32_t end, bool wait)
{
    WorkSlots *work = fetch->work;
    for (; fetch->completed != end; fetch->completed++) {
        const uint32_t at = fetch->completed % work_slots;
        const uint32_t parity = fetch->completed / work_slots % 2;
        if (!wait && !__all_sync(0xffffffffu, barrier_peek(&work->empty[at], parity)))
            return false;
        while (wait &&
               !__all_sync(0xffffffffu, barrier_try(&work->empty[at], parity, cancelled_wait_ns)))
            work_fail(work, fetch->completed, work_cancelled(work, fetch->completed));
        WorkSlot *slot = &work->slot[at];
        if (threadIdx.x % 32 == 0 && slot->path != path_decode)
            work_complete<D>(slot);
        __syncwarp();
    }
    return true;
}

/* Waits for the end of all work before @number; or, where the last of it is an item of decode or
 * prefill, until few of its keys are left: they are computed while the next item is claimed and
 * resolved. */
template <int D> __device__ __forceinline__ void fetch_ending(FetchWarp *fetch, uint32_t number)
{
    WorkSlots *work = fetch->work;
    const uint32_t at = (number - 1) % work_slots, parity = (number - 1) / work_slots % 2;
    const WorkSlot &slot = work->slot[at];
    if (slot.path != path_decode && slot.path != path_prefill) {
        fetch_complete<D>(fetch, number, true);
        return;
    }
    const uint32_t wait_ns = slot.path == path_decode ? ending_wait_ns : entry_wait_ns;
    fetch_complete<D>(fetch, number - 1, true);
    for (uint32_t looks = 1; !fetch_complete<D>(fetch, number, false); looks++) {
        if (uniform(uint32_t(peek_cta(&slot.item.ending))))
            return;
        (void)barrier_try(&work->empty[at], parity, wait_ns);
        __syncwarp();
        if (looks % (cancelled_wait_ns / wait_ns) == 0)
            work_fail(work, number - 1, work_cancelled(work, number - 1));
    }
}

/* Of a run whose classes are to be in work at once a ticket is good for one item of either. Some
 * workers begin with compute-bound ones and the others with the rest, as evenly spread over the
 * SMs as their number allows; where one's class is over, it takes of the other. There is one:
 * tickets are as many as items. A call, as above. @copy: where the run was copied to. One lane. */
inline __device__ __noinline__ uint32_t item_of_class(uint32_t worker, uint32_t copy, Live *live)
{
    const WorkSlots *work = cta_work();
    const attnd_plan_head &plan = reinterpret_cast<const ActiveRun *>(work->run_copy[copy])->plan;
    const uint32_t workers = work->settings.workers;
    const uint32_t computing = min(plan.compute_workers, workers);
    const uint32_t computes = plan.compute_tiles * plan.heads_kv;
    if (worker * computing % workers + computing >= workers) {
        const uint32_t next = take_gpu(&live->next_of[0]);
        return next < computes ? next : computes + take_gpu(&live->next_of[1]);
    }
    const uint32_t next = computes + take_gpu(&live->next_of[1]);
    return next < plan.tiles * plan.heads_kv ? next : take_gpu(&live->next_of[0]);
}

/* The last work that was given out is a decode item of few keys. */
__device__ __forceinline__ bool short_in_hand(const FetchWarp *fetch, uint32_t number)
{
    const WorkSlot &slot = fetch->work->slot[(number - 1) % work_slots];
    return slot.path == path_decode && slot.item.kv_end - slot.item.kv_begin <= short_keys;
}

__device__ __forceinline__ const ActiveRun *copied_run(const FetchWarp *fetch)
{
    return reinterpret_cast<const ActiveRun *>(fetch->work->run_copy[fetch->copy]);
}

/* The last work that was given out is not over, and no other is to be claimed before its end is
 * near: of prefill, whose items are long; or of decode, while sessions take turns. Who comes then
 * waits for the item in hand alone. */
__device__ __forceinline__ bool claims_late(const FetchWarp *fetch, uint32_t number)
{
    if (fetch->completed == number)
        return false;
    const Path path = fetch->work->slot[(number - 1) % work_slots].path;
    return path == path_prefill ||
           (path == path_decode && fetch->work->turn && !short_in_hand(fetch, number));
}

} // namespace attnd

#endif
