/*
 * work_slot.cuh - how items reach a worker: the fetch warp claims them and fills work slots, which
 * all other warps read.
 *
 * A work slot is one of two places in shared memory and holds an item that was resolved once. The
 * fetch warp fills a slot when all warps have left it. So at most one item is claimed ahead of the
 * one in hand: this hides its latency and does not hoard the work of idle workers. When fewer items
 * are left than workers, no item is claimed ahead.
 *
 * The fetch warp also completes slots whose item is over. The release of an item's results takes as
 * long as all its stores, and the consumers go on meanwhile. The last warp of a decode item
 * completes it instead, because its rings hold enough keys of the next item.
 */
#ifndef ATTND_PERSISTENT_CUDA_WORK_SLOT_CUH
#define ATTND_PERSISTENT_CUDA_WORK_SLOT_CUH

#include "persistent/cuda/barrier.cuh"
#include "persistent/cuda/copy.cuh"
#include "persistent/cuda/tile.cuh"

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
constexpr uint32_t loader_warps = producer_threads / 32 - 1; /* the first warp takes items */

struct WorkSlot {
    Item item;
    /* In front of the seal, as in struct attnd_trace_record. */
    uint64_t begin_ns; /* written by a consumer */
    uint32_t end_low;  /* and this by who completes it */
    uint32_t session;
    uint32_t index; /* in the run */
    uint32_t place; /* the SM; from bit 16 on 1: an item */
    uint32_t layer; /* of the run */
    Path path;
    uint32_t ended; /* decode: consumer warps that have stored what they had to */
    uint32_t last;  /* decode: all other parts of the item's merge were there before */
};

static_assert(offsetof(WorkSlot, layer) - offsetof(WorkSlot, begin_ns) ==
                  offsetof(attnd_trace_record, layer),
              "a record in front of its seal");

/* A run's constant part, copied once for all its items: what consumers read is next to them. A
 * vector a lane. */
constexpr uint32_t run_copy_bytes = offsetof(ActiveRun, k_map);
static_assert(run_copy_bytes == 32 * 16, "a vector a lane");

struct WorkSlots {
    WorkSlot slot[work_slots];
    alignas(16) char run_copy[2][run_copy_bytes]; /* of the item in hand and of the one before */
    uint64_t full[work_slots], empty[work_slots];
    uint32_t trace, turn; /* as in Resident, at the fetch warp's last look */
    uint32_t traced;      /* work before it has its records, or needs none */
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

__device__ __forceinline__ void work_init(WorkSlots *work)
{
    uint32_t sm;
    asm("mov.u32 %0, %smid;" : "=r"(sm));
    work->trace = work->traced = 0;
    for (int s = 0; s < work_slots; s++) {
        work->slot[s].place = 1u << 16 | sm;
        barrier_init(&work->full[s], 1);
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

/* The fetch warp's place in the stream of runs. The same in all lanes. */
struct FetchWarp {
    Resident *resident;
    WorkSlots *work;
    uint32_t worker, variant, gang, cursor;
    uint32_t copied;    /* 1 + the position whose run is in run_copy[copy] */
    uint32_t copy;      /* the one the last work slot refers to */
    uint32_t completed; /* work accounted for */
};

constexpr uint32_t nothing = 0xffffffffu;

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

/* How long the warp is suspended between two looks: whether the item in hand was cancelled, where
 * its end is all that is waited for; and at the ring of runs. */
constexpr uint32_t cancelled_wait_ns = 20000, entry_wait_ns = 1000;

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

/* The entry the cursor is at, as soon as it is there; what is not there, by its sequence, when the
 * kernel is to leave. While an item is in hand, its end is what somebody waits for: the warp is
 * suspended until then, and looks at the ring once in a while. */
template <int D> __device__ __forceinline__ RunEntry fetch_entry(FetchWarp *fetch, uint32_t number)
{
    const Resident *resident = fetch->resident;
    const RunEntry *at = &resident->ring[fetch->cursor % ring_positions];
    RunEntry entry = {fetch->cursor, 0, 0, 0, 0};
    for (;;) {
        if (fetch->work->traced != fetch->completed) {
            if (fetch->work->trace)
                trace_completed(fetch->resident, fetch->worker, number, fetch->completed);
            else
                fetch->work->traced = fetch->completed;
        }
        const bool idle = fetch->completed == number;
        uint32_t leave, cancelled = 0;
        do { /* while there is nothing to do, nothing but this: few instructions in one place */
            /* in flight together with the entry */
            if (!idle)
                cancelled = work_cancelled(fetch->work, fetch->completed);
            const uint4 words = peek16_gpu(&resident->leave);
            entry = observe_entry(at); /* A1 */
            /* Behind it: a store would wait for the words before the entry is asked for. */
            leave = int32_t(words.x - fetch->gang) >= 0;
            fetch->work->trace = words.y;
            fetch->work->turn = words.z;
            if (entry.sequence == fetch->cursor + 1)
                return entry;
            if (idle)
                __nanosleep(32);
        } while (idle && !leave);
        if (!idle)
            work_fail(fetch->work, fetch->completed, cancelled);
        bool completed = fetch_complete<D>(fetch, number, false);
        if (!completed) {
            const uint32_t at = fetch->completed % work_slots;
            (void)barrier_try(&fetch->work->empty[at], fetch->completed / work_slots % 2,
                              entry_wait_ns);
            __syncwarp();
            completed = fetch_complete<D>(fetch, number, false);
        }
        if (completed && leave && (!fetch->work->trace || fetch->work->traced == number) &&
            observe_gpu(&resident->leave) - fetch->gang < 1u << 31)
            /* All that was ever published was so before `leave`: a look after it is the last. */
            return observe_entry(at);
    }
}

/* Nothing is left of the run of @entry, or nothing for this worker. */
__device__ __forceinline__ void fetch_next_run(FetchWarp *fetch, const RunEntry &entry)
{
    if (entry.sequence != fetch->cursor + 1)
        return;
    fetch->cursor++;
    if (threadIdx.x % 32 == 0)
        publish_gpu(&fetch->resident->cursor[fetch->worker], fetch->cursor);
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

__device__ __forceinline__ const ActiveRun *copied_run(const FetchWarp *fetch)
{
    return reinterpret_cast<const ActiveRun *>(fetch->work->run_copy[fetch->copy]);
}

/* The entry of the run whose turn it is, in place of the one at the cursor, which is at hand. The
 * cursor stays: no worker's cursor is past the run, so its line is the run's until this worker has
 * walked past it, too. What is not in front of the cursor, or not there, is a turn that is over.
 * Return: @entry if there is no other, or nothing is left of it. */
__device__ __forceinline__ RunEntry other_turn(const FetchWarp *fetch, RunEntry entry)
{
    const uint32_t turn = fetch->work->turn;
    const uint32_t ahead = ((turn >> 1) - fetch->cursor) & 0x7fffffffu;
    const uint32_t at = fetch->cursor + ahead;
    if (ahead - 1 >= ring_positions - 1)
        return entry;
    const RunEntry other = observe_entry(&fetch->resident->ring[at % ring_positions]); /* A1 */
    if (other.sequence != at + 1 || !variant_executes(fetch->variant, other.variant) ||
        peek_gpu(&fetch->resident->live[at % ring_positions].next_item) >= other.items)
        return entry;
    return other;
}

/* The next item, or `nothing` when the kernel is to leave; its run is in run_copy[copy] then.
 * A worker that has nothing in hand takes a ticket at once, while the copy is on its way; one that
 * has looks first whether it should. @entry: the run's, at the cursor or, where it is another
 * one's turn, in front of it. @cancelled: if the run is, what its items fail with; else 0.
 */
template <int D>
__device__ __forceinline__ uint32_t take_item(FetchWarp *fetch, uint32_t number, RunEntry *entry,
                                              uint32_t *cancelled)
{
    const uint32_t lane = threadIdx.x % 32;
    for (;; fetch_next_run(fetch, *entry)) {
        *entry = fetch_entry<D>(fetch, number);
        if (entry->sequence != fetch->cursor + 1)
            return nothing;
        if (fetch->work->turn)
            *entry = other_turn(fetch, *entry);
        if (!variant_executes(fetch->variant, entry->variant))
            continue;
        Live *live = &fetch->resident->live[(entry->sequence - 1) % ring_positions];
        if (!fetch_complete<D>(fetch, number, false)) {
            const uint32_t next = peek_gpu(&live->next_item);
            if (next >= entry->items)
                continue;
            if (next + fetch->work->settings.workers > entry->items)
                fetch_complete<D>(fetch, number, true);
        }
        const bool fresh = fetch->copied != entry->sequence;
        uint32_t item = nothing, flag = 0;
        uint4 part = {};
        if (lane == 0) {
            item = take_gpu(&live->next_item);
            flag = peek_gpu(&live->cancelled);
        }
        if (fresh)
            part = __ldcg(
                reinterpret_cast<const uint4 *>(&fetch->work->settings.runs[entry->slot]) + lane);
        item = __shfl_sync(0xffffffffu, item, 0);
        if (item >= entry->items)
            continue;
        *cancelled = __shfl_sync(0xffffffffu, flag, 0);
        if (fresh) {
            fetch->copy ^= 1;
            reinterpret_cast<uint4 *>(fetch->work->run_copy[fetch->copy])[lane] = part;
            fetch->copied = entry->sequence;
            __syncwarp();
        }
        if (copied_run(fetch)->plan.compute_tiles && copied_run(fetch)->kind == ATTND_RUN_ATTEND) {
            if (lane == 0)
                item = item_of_class(fetch->worker, fetch->copy, live);
            item = __shfl_sync(0xffffffffu, item, 0);
        }
        return item;
    }
}

/* A worker takes its place in the stream of runs, at the horizon: see make_ready(). One warp.
 * Return: its cursor. */
__device__ __forceinline__ uint32_t worker_enter(Resident *resident, uint32_t worker)
{
    uint32_t cursor = __shfl_sync(0xffffffffu, observe_gpu(&resident->horizon), 0);
    for (;;) {
        if (threadIdx.x % 32 == 0) {
            resident->cursor[worker] = cursor;
            publish_gpu(&resident->present[worker], 1);
        }
        fence_order();
        const uint32_t now = __shfl_sync(0xffffffffu, observe_gpu(&resident->horizon), 0);
        if (now == cursor)
            return cursor;
        cursor = now;
    }
}

/* Its last touch of what the dispatcher may use anew was before. */
__device__ __forceinline__ void worker_leave(Resident *resident, uint32_t worker)
{
    if (threadIdx.x % 32 == 0)
        publish_gpu(&resident->present[worker], 0);
}

/* Each row of V is the front of the row of K. */
__device__ __forceinline__ bool one_plane(const ActiveRun *run)
{
    const attnd_heap_plane &k = run->k_plane, &v = run->v_plane;
    return run->k_base == run->v_base && k.stride_page == v.stride_page &&
           k.stride_token == v.stride_token && k.stride_head == v.stride_head;
}

/* Fills @slot with item @index of the run at the cursor, which has been copied. @cancelled: the
 * code that the item fails with, 0: none. The whole warp. Return: the path that executes it. */
template <int D, typename Policy>
__device__ __forceinline__ Path work_fill(const FetchWarp *fetch, WorkSlot *slot,
                                          const RunEntry &entry, uint32_t index, uint32_t cancelled)
{
    const uint32_t lane = threadIdx.x % 32;
    const Settings &settings = fetch->work->settings;
    const ActiveRun *run = copied_run(fetch);
    __builtin_assume(__isShared(run) && __isShared(slot));
    const bool attends = run->kind == ATTND_RUN_ATTEND;
    const ItemPlace place = item_place(run, index, settings.workers);
    const uint32_t word = attends ? tile_word(run, place.tile, lane) : 0;
    const uint32_t paths = run->aligned ? Policy::paths(run, settings.paths) : 0;
    if (lane == 0) {
        Item *item = &slot->item;
        slot->index = index;
        slot->session = uint32_t(run->plan.zero);
        slot->layer = uint32_t(run->plan.zero >> 32);
        slot->ended = 0;
        item->run = run;
        item->maps = &settings.runs[entry.slot];
        item->live = &fetch->resident->live[(entry.sequence - 1) % ring_positions];
        item->failed = cancelled;
        item->generation = entry.generation;
        item->kv_head = place.head;
        item->k = run->k_base + kv_bytes<Policy> * (place.head * run->k_plane.stride_head);
        item->v = run->v_base + kv_bytes<Policy> * (place.head * run->v_plane.stride_head);
        if (attends && !cancelled)
            Policy::score_item(item);
    }
    if (cancelled)
        return path_skip;
    if (!attends)
        return run->kind == ATTND_RUN_MERGE ? path_merge : path_append;
    const bool few = item_load<D>(&slot->item, run, word, lane) <= decode_rows<D>;
    if (Policy::windows)
        item_skip<D>(&slot->item, run, lane);
    if (D == latent_dim)
        return paths >> 1 & 1 && one_plane(run) ? path_prefill : path_naive;
    return !(paths >> (few ? 0 : 1) & 1) ? path_naive : few ? path_decode : path_prefill;
}

/* What an item reads of a key and its value. */
template <int D, typename Policy>
__device__ __forceinline__ uint32_t key_elements(const ActiveRun *run, Path path)
{
    const uint32_t k = Policy::template dim_qk<D>(run->plan);
    return D == latent_dim && path == path_prefill ? k : k + Policy::template dim_vo<D>(run->plan);
}

/* The keys that a decode item's warps ask for first, a block each (tile_decode.cuh). */
constexpr int32_t first_keys = 128;

/* Asks the L2 for the first keys and values of a decode item, of four tokens a lane. The consumers
 * do so 800 to 2,500 clocks later, once they are awake and have asked for Q; a memory that has had
 * nothing to do would have nothing to do until then. To ask for more keys than these before they
 * are wanted only disturbs those that are. One warp. */
template <int D, typename Policy>
__device__ __forceinline__ void first_keys_prefetch(const Item &item, uint32_t lane)
{
    constexpr int rows = first_keys / 32;
    const ActiveRun *run = item.run;
    __builtin_assume(__isShared(&item) && __isShared(run));
    const int32_t token = item.kv_begin + int32_t(lane) * rows;
    if (token >= item.kv_end || (run->page_size | uint32_t(item.kv_begin)) % rows)
        return; /* none, or more than one page */
    const Divided at = divided(uint32_t(token), run->page_size, run->page_reciprocal);
    const uint32_t ahead = at.quotient - item.page_first;
    const uint32_t page = ahead < 32 ? uint32_t(item.pages[ahead]) : run->pages;
    if (page >= run->pages)
        return; /* the warp that loads it says so */
    constexpr int bytes = kv_bytes<Policy>;
    const int64_t k_stride = run->k_plane.stride_token * bytes,
                  v_stride = run->v_plane.stride_token * bytes;
    const char *k = item.k + page * (run->k_plane.stride_page * bytes) + at.rest * k_stride;
    const char *v = item.v + page * (run->v_plane.stride_page * bytes) + at.rest * v_stride;
#pragma unroll
    for (int r = 0; r < rows; r++, k += k_stride)
#pragma unroll
        for (int line = 0; line < D * bytes; line += 128)
            if (Policy::in_qk(run->plan, line / bytes))
                prefetch_line(k + line);
#pragma unroll
    for (int r = 0; r < rows; r++, v += v_stride)
#pragma unroll
        for (int line = 0; line < D * bytes; line += 128)
            if (Policy::in_vo(run->plan, line / bytes))
                prefetch_line(v + line);
}

/* The fetch warp: every item until the kernel leaves. */
template <int D, typename Policy> __device__ __forceinline__ void fetch_work(FetchWarp *fetch)
{
    Resident *resident = fetch->resident;
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t number = 0;; number++) {
        if (number >= work_slots)
            fetch_complete<D>(fetch, number - work_slots + 1, true);
        WorkSlot *slot = &fetch->work->slot[number % work_slots];
        if (lane == 0)
            resident->doing[fetch->worker] = state_idle;
        RunEntry entry;
        uint32_t cancelled = 0;
        const uint32_t index = take_item<D>(fetch, number, &entry, &cancelled);
        Path path = path_leave;
        if (index != nothing)
            path = work_fill<D, Policy>(fetch, slot, entry, index, cancelled);
        if (lane == 0) {
            slot->path = path;
            resident->doing[fetch->worker] = index == nothing ? state_left : state_item;
            barrier_arrive(&fetch->work->full[number % work_slots], 1);
        }
        if (index == nothing)
            return;
        /* With nothing else in hand. The keys of a short item are asked for all at once anyway. */
        const Item &item = slot->item;
        if (path == path_decode && fetch->completed == number &&
            item.kv_end - item.kv_begin > first_keys)
            first_keys_prefetch<D, Policy>(item, lane);
        __syncwarp();
        /* Now that nobody waits for it, but before the item's arrival: that is this warp's, behind
         * all that is on its way; or, of a decode item, another's, microseconds later. */
        if (lane == 0 && path >= path_naive && item.kv_end > item.kv_begin)
            tally_gpu(&item.live->kv_bytes, uint64_t(kv_bytes<Policy>) *
                                                key_elements<D, Policy>(item.run, path) *
                                                uint64_t(item.kv_end - item.kv_begin));
        __syncwarp();
    }
}

} // namespace attnd

#endif
