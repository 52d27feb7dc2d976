/*
 * work_slot.cuh - the places through which items reach the warps of a worker.
 *
 * A work slot is one of two places in shared memory and holds an item that was resolved once. The
 * fetch warp fills a slot when all warps have left it. So one item is claimed ahead of the one in
 * hand, and in launches a second behind a short one while many are left (engine_claim_ahead()):
 * this hides their latency and does not hoard the work of idle workers. None is claimed
 * before the one in hand is nearly over where that is of prefill; nor beside one of decode that is
 * not short, where sessions take turns or fewer items are left than workers.
 *
 * The fetch warp also completes slots whose item is over. The release of an item's results takes as
 * long as all its stores, and the consumers go on meanwhile. The last warp of a decode item
 * completes it instead, because its rings hold enough keys of the next item.
 */
#ifndef ATTND_PERSISTENT_CUDA_ITEMS_WORK_SLOT_CUH
#define ATTND_PERSISTENT_CUDA_ITEMS_WORK_SLOT_CUH

#include "persistent/cuda/items/item.cuh"
#include "persistent/cuda/machine/barrier.cuh"
#include "persistent/cuda/state/engine.cuh"
#include "persistent/cuda/state/roles.cuh"

namespace attnd
{

enum Path : uint32_t {
    path_leave,
    path_skip,
    path_append,
    path_merge,
    path_naive,
    path_decode,
    path_prefill
};

constexpr int work_slots = 2;

/* The work that a worker begins with is no item, where there is a decode loop. For some
 * microseconds, until there is a run and its item is found, most warps have nothing to do, and
 * would then wait for their instructions: 70 ns for each 8 of them, and more where an engine's
 * products have pushed them out of all caches. So consumers execute those of a decode item before,
 * for one whose results nobody reads, each warp a part of them; and a loader warp those that find
 * an item. */
constexpr uint32_t warmup = 0;
/* Consumer warps of a warmup, each of which executes a part of the code, because a line of it takes
 * 100 ns to come to a warp and several warps wait for theirs at once: what is in front of the loop
 * over keys; in it, asking for keys, scores, values, finding rows; behind it, leaving results; the
 * store; the merge. */
enum WarmupWarp : uint32_t {
    warmup_begins,
    warmup_asks,
    warmup_scores,
    warmup_adds,
    warmup_finds,
    warmup_leaves,
    warmup_stores,
    warmup_merges
};
template <int D> constexpr uint32_t first_item = decodes<D> ? 1 : 0;
constexpr uint32_t loader_warps = producer_threads / 32 - 1; /* the first warp takes items */

/* In front of the seal, as in struct attnd_trace_record. */
struct WorkRecord {
    uint64_t begin_ns; /* written by a consumer */
    uint32_t end_low;  /* and this by who completes it */
    uint32_t session;
    uint32_t index; /* in the run */
    uint32_t place; /* the SM; from bit 16 on 1: an item */
    uint32_t layer; /* of the run */
};
static_assert(offsetof(WorkRecord, layer) == offsetof(attnd_trace_record, layer), "the same");

struct WorkSlot : WorkRecord {
    Path path;
    uint32_t ended; /* decode: consumer warps that have stored what they had to */
    uint32_t last;  /* decode: all other parts of the item's merge were there before */
    Item item;
};

struct WorkSlots {
    WorkSlot slot[work_slots];
    /* A run's constant part, copied once for all its items: what consumers read is next to them. Of
     * the item in hand, and of the one before. */
    alignas(16) char run_copy[2][run_copy_bytes];
    uint64_t full[work_slots], empty[work_slots];
    uint32_t trace, turn; /* as in Resident, at the fetch warp's last look */
    uint32_t traced;      /* work before it has its records, or needs none */
    uint32_t over;        /* 1: the gang needs this worker no more */
    EngineLaunch launch;  /* plan NULL: the service's */
    RunEntry launched;    /* its run */
    uint32_t early;       /* 1: keys of the worker's first item are asked for by its loaders */
    uint32_t begun;       /* when it began with the run: lower half of the clock */
    Settings settings;
};

/* This CTA's. What finds them here has no address to keep: the registers of prefill are all in use,
 * and what a warp puts in local memory instead is fetched from the L2, because the acquires of the
 * fetch warp empty the L1. */
__device__ __forceinline__ WorkSlots *cta_work()
{
    __shared__ WorkSlots work;
    return &work;
}

/* Where the loader warp of a warmup puts what it finds. */
__device__ __forceinline__ WorkSlot *warmup_slot()
{
    __shared__ WorkSlot slot;
    return &slot;
}

/* @first: the number of the first item. @givers: warps that say when a slot is full. */
__device__ __forceinline__ void work_init(WorkSlots *work, uint32_t first, uint32_t givers)
{
    uint32_t sm;
    asm("mov.u32 %0, %smid;" : "=r"(sm));
    work->trace = work->turn = work->early = 0;
    work->traced = first;
    for (int s = 0; s < work_slots; s++) {
        work->slot[s].place = 1u << 16 | sm;
        barrier_init(&work->full[s], givers);
        barrier_init(&work->empty[s], consumer_threads / 32 + loader_warps);
    }
}

/* Work number @number; blocks until it is there, for as long as the service is idle. */
__device__ __forceinline__ WorkSlot *work_wait(WorkSlots *work, uint32_t number)
{
    uint32_t slot = number % work_slots, parity = number / work_slots % 2;
    while (!barrier_test(&work->full[slot], parity))
        ;
    return &work->slot[slot];
}

/* The whole warp: work number @number if it is there already, else NULL. */
__device__ __forceinline__ WorkSlot *work_peek(WorkSlots *work, uint32_t number)
{
    uint32_t slot = number % work_slots, parity = number / work_slots % 2;
    return __all_sync(0xffffffffu, barrier_peek(&work->full[slot], parity)) ? &work->slot[slot]
                                                                            : nullptr;
}

/* A warp has read work @number for the last time. */
__device__ __forceinline__ void work_leave(WorkSlots *work, uint32_t number)
{
    barrier_arrive_warp(&work->empty[number % work_slots]);
}

/* Waits until every warp has left work @number. */
__device__ __forceinline__ void work_wait_empty(WorkSlots *work, uint32_t number)
{
    uint32_t slot = number % work_slots, parity = number / work_slots % 2;
    while (!barrier_test(&work->empty[slot], parity))
        ;
}

/* What work @number is to fail with, because its run was cancelled since it was taken; 0: it was
 * not. */
__device__ __forceinline__ uint32_t work_cancelled(const WorkSlots *work, uint32_t number)
{
    return peek_gpu(&work->slot[number % work_slots].item.live->cancelled);
}

/* Its loops see this and end. */
__device__ __forceinline__ void work_fail(WorkSlots *work, uint32_t number, uint32_t code)
{
    if (code && threadIdx.x % 32 == 0)
        work->slot[number % work_slots].item.failed = code;
}

/* The keys that a decode item's warps ask for first, a block each (decode.cuh). */
constexpr int32_t first_keys = 128;

/* An item failed. The run goes on, and its first failure counts; all of this before the item is
 * counted, so that an answer that is there has its code. */
__device__ __forceinline__ void run_fail(const Item &item, uint32_t code)
{
    uint32_t *answer = item.run->answer;
    if (!set_if_zero(&item.live->code, code) || !answer)
        return;
    set_if_zero_sys(answer + ATTND_LANES_MAX, code); /* error of struct attnd_mailbox */
    add_relaxed_sys(answer, code);
}

/* An item that took longer may have outlived its worker: none is started in less. */
constexpr uint64_t outlived_ns = 20000000;

/* The same where an engine's stream launched the kernel, whose end is the answer: nothing is
 * counted. One lane. */
__device__ __forceinline__ void engine_complete(WorkSlot *slot)
{
    const EngineLaunch &launch = cta_work()->launch;
    const uint32_t code = *cta_stuck() ? ATTND_E_TIMEOUT : slot->item.failed;
    if (code)
        set_if_zero(&launch.session->errors[launch.lane], code);
}

/* Every warp is done with the slot: counts its item, and the last item of a run ends it. One
 * lane. What the consumers stored is covered: they said that they are done by an arrival that
 * releases to the CTA, this lane saw it, and releases too.
 * - The answer to a doorbell is what all items add to, each with a release: an engine's stream in
 *   another process, which acquires what the last one made of it, sees all of o and lse, because
 *   those additions are one chain. So nobody has to find out first that it is the last, and no
 *   other warp lies on that way. That stream is of this GPU, so GPU scope reaches it.
 * - The arrival comes behind that, a release like every other item's: the dispatcher acquires the
 *   count, and when it is that of all items it writes a retire or only remembers it. Before that
 *   nothing else counts in the lane's doorbell, and its memory is not let go. */
template <int D> __device__ __forceinline__ void work_complete(WorkSlot *slot)
{
    if (cta_work()->launch.plan) {
        engine_complete(slot);
        return;
    }
    const Item &item = slot->item;
    Live *live = item.live;
    uint32_t *answer = item.run->answer;
    const uint64_t end_ns = clock_ns(), busy = (end_ns - slot->begin_ns) / busy_unit_ns;
    slot->end_low = uint32_t(end_ns);
    if (*cta_stuck()) /* what it computed may be garbage: nobody is to take it for done */
        return;
    /* Its process is dead, and it took so long that another worker may have answered for it. */
    const bool late = end_ns - slot->begin_ns > outlived_ns &&
                      peek_gpu(&live->cancelled) == ATTND_E_WORKER_RESTARTED;
    if (item.failed && !late)
        run_fail(item, item.failed);
    if (answer && !late)
        add_gpu(answer, doorbell_item);
    else
        latest_gpu(&live->end_ns, end_ns); /* nobody has to be the last to say when that was */
    add_gpu(&live->done, busy << 32 | 1);
}

/* A warp is done with a decode item and leaves it. The last warp completes it first: somebody
 * waits for that, and the fetch warp would know some 800 clocks later. So a slot that every warp
 * has left is a slot that has been completed. */
template <int D> __device__ __forceinline__ void work_end(WorkSlots *work, uint32_t number)
{
    WorkSlot *slot = &work->slot[number % work_slots];
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        if (arrive_cta(&slot->ended) + 1 == consumer_threads / 32)
            work_complete<D>(slot);
        barrier_arrive(&work->empty[number % work_slots], 1);
    }
    __syncwarp();
}

} // namespace attnd

#endif
