/*
 * trace.cuh - what a worker executed, while somebody asks for it (persistent/trace.h).
 */
#ifndef ATTND_PERSISTENT_CUDA_WORKER_TRACE_CUH
#define ATTND_PERSISTENT_CUDA_WORKER_TRACE_CUH

#include "persistent/cuda/items/work_slot.cuh"

namespace attnd
{

/* What an item was, into the host's memory: a word a lane, one store, which nobody waits for. The
 * whole warp. */
__device__ __forceinline__ void trace_work(Resident *resident, uint32_t worker,
                                           const WorkSlot *slot)
{
    const Settings &settings = cta_work()->settings;
    const ActiveRun *run = slot->item.run;
    const uint32_t lane = threadIdx.x % 32, number = resident->traced[worker];
    const uint32_t each = ATTND_TRACE_RECORDS / settings.workers;
    uint32_t word = lane == ATTND_TRACE_WORDS ? attnd_trace_number(number) : 0;
    if (lane < ATTND_TRACE_WORDS)
        word = reinterpret_cast<const uint32_t *>(&slot->begin_ns)[lane];
    if (lane == ATTND_TRACE_WORDS - 1)
        word |= (run->kind == ATTND_RUN_ATTEND ? slot->item.tile.tile_class : ATTND_TRACE_APPEND)
                << 16;
    const uint32_t part = lane < ATTND_TRACE_WORDS ? attnd_trace_word(word, lane) : word;
    const uint32_t seal = __reduce_add_sync(0xffffffffu, part);
    uint32_t *to = reinterpret_cast<uint32_t *>(settings.records + 1) +
                   (worker * each + number % each) * (ATTND_TRACE_WORDS + 1);
    if (lane <= ATTND_TRACE_WORDS)
        store_relaxed_sys(to + lane, lane == ATTND_TRACE_WORDS ? seal : word);
    if (lane == 0) {
        store_relaxed_sys(&settings.records->next[worker], number + 1);
        resident->traced[worker] = number + 1;
    }
    __syncwarp();
}

/* Records of all work before @end that is not yet told, while they are wanted: before the slot of
 * work @number is filled. A call, because the fetch warp has no registers to spare; it must do with
 * those that this warp has. The whole warp. */
inline __device__ __noinline__ void trace_completed(Resident *resident, uint32_t worker,
                                                    uint32_t number, uint32_t end)
{
    WorkSlots *work = cta_work();
    uint32_t at = number - min(number, uint32_t(work_slots));
    if (int32_t(work->traced - at) > 0)
        at = work->traced;
#pragma unroll 1
    for (; at != end; at++)
        trace_work(resident, worker, &work->slot[at % work_slots]);
    work->traced = at;
    __syncwarp();
}

} // namespace attnd

#endif
