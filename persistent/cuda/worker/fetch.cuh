/*
 * fetch.cuh - the fetch warp: it claims items, fills work slots with them, and completes what is
 * over.
 */
#ifndef ATTND_PERSISTENT_CUDA_WORKER_FETCH_CUH
#define ATTND_PERSISTENT_CUDA_WORKER_FETCH_CUH

#include "persistent/cuda/machine/copy.cuh"
#include "persistent/cuda/machine/element.cuh"
#include "persistent/cuda/worker/engine_fetch.cuh"
#include "persistent/cuda/worker/trace.cuh"

namespace attnd
{

/* The entry the cursor is at, as soon as it is there; what is not there, by its sequence, when the
 * kernel is to leave. While an item is in hand, its end is what somebody waits for: the warp is
 * suspended until then, and looks at the ring once in a while. */
template <int D> __device__ __forceinline__ RunEntry fetch_entry(FetchWarp *fetch, uint32_t number)
{
    const Resident *resident = fetch->resident;
    const RunEntry *at = &resident->ring[fetch->cursor % ring_positions];
    RunEntry entry = {fetch->cursor, 0, 0, 0, 0};
    const bool extra = is_extra(fetch->work->settings, fetch->worker);
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
            leave = int32_t((extra ? words.w : words.x) - fetch->gang) >= 0;
            fetch->work->trace = words.y;
            fetch->work->turn = words.z;
            if (entry.sequence == fetch->cursor + 1 && !(extra && leave))
                return entry; /* an extra one leaves what there is to those that stay */
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
            observe_gpu(extra ? &resident->extras_leave : &resident->leave) - fetch->gang <
                1u << 31)
            /* All that was ever published was so before `leave`: a look after it is the last. */
            return extra ? RunEntry{fetch->cursor, 0, 0, 0, 0} : observe_entry(at);
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

/* The entry of the run whose turn it is, in place of the one at the cursor, which is at hand; of
 * twins every other worker prefers the later one. The cursor stays: no worker's cursor is past the
 * run, so its line is the run's until this worker has walked past it, too. What is not in front of
 * the cursor, or not there, is a turn that is over.
 * Return: @entry if there is no other, or nothing is left of it. */
template <int D>
__device__ __forceinline__ RunEntry other_turn(const FetchWarp *fetch, RunEntry entry)
{
    const uint32_t turn = fetch->work->turn;
    for (uint32_t twin = fetch->worker % 2 ? turn_twin(turn) : 0;; twin = 0) {
        const uint32_t ahead = (turn_at(turn) + twin - fetch->cursor) & turn_positions;
        const uint32_t at = fetch->cursor + ahead;
        if (ahead - 1 < ring_positions - 1) {
            const RunEntry other =
                observe_entry(&fetch->resident->ring[at % ring_positions]); /* A1 */
            if (other.sequence == at + 1 && variant_executes<D>(fetch->variant, other.variant) &&
                peek_gpu(&fetch->resident->live[at % ring_positions].next_item) < other.items)
                return other;
        }
        if (twin == 0)
            return entry;
    }
}

/* The next item, or `nothing` when the kernel is to leave; its run is in run_copy[copy] then.
 * A worker that has nothing in hand takes a ticket at once, while the copy is on its way; one that
 * has looks first whether it should: the last items are left to workers that are free, until its
 * own is over soon; or always, by claims_late(), so that what counts is whose turn it is then, and
 * which class. @entry: the run's, at the cursor or, where it is another one's turn, in front of it.
 * @cancelled: if the run is, what its items fail with; else 0.
 * @warms_up: of a run of one item, which has been copied and is in nobody's ring.
 */
template <int D>
__device__ __forceinline__ uint32_t take_item(FetchWarp *fetch, uint32_t number, RunEntry *entry,
                                              uint32_t *cancelled, bool warms_up)
{
    const uint32_t lane = threadIdx.x % 32;
    if (claims_late(fetch, number)) { /* meanwhile the worker is not idle, for who looks */
        if (lane == 0)
            fetch->resident->doing[fetch->worker] = state_item;
        fetch_ending<D>(fetch, number);
        if (lane == 0)
            fetch->resident->doing[fetch->worker] = state_idle;
    }
    for (;; fetch_next_run(fetch, *entry)) {
        *entry = {fetch->cursor + 1, 0, 1, uint16_t(fetch->variant), 0};
        if (!warms_up)
            *entry = fetch_entry<D>(fetch, number);
        if (entry->sequence != fetch->cursor + 1)
            return nothing;
        if (!warms_up && fetch->work->turn)
            *entry = other_turn<D>(fetch, *entry);
        if (!variant_executes<D>(fetch->variant, entry->variant))
            continue;
        Live *live = &fetch->resident->live[(entry->sequence - 1) % ring_positions];
        if (!fetch_complete<D>(fetch, number, false)) {
            const uint32_t next = peek_gpu(&live->next_item);
            if (next >= entry->items)
                continue;
            if (next + fetch->work->settings.workers > entry->items &&
                !short_in_hand(fetch, number))
                fetch_ending<D>(fetch, number);
        }
        const bool fresh = !warms_up && fetch->copied != entry->sequence;
        uint32_t item = warms_up ? 0 : nothing, flag = 0;
        uint4 part = {};
        if (lane == 0 && !warms_up) {
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
 * code that the item fails with, 0: none. @known: what follows from the plan is there. @ahead: the
 * item lies in item_ahead(). The whole warp. Return: the path that executes it. */
template <int D, typename Policy, bool known>
__device__ __forceinline__ Path work_fill(const FetchWarp *fetch, WorkSlot *slot,
                                          const RunEntry &entry, uint32_t index, uint32_t cancelled,
                                          bool ahead = false)
{
    const uint32_t lane = threadIdx.x % 32;
    const Settings &settings = fetch->work->settings;
    const ActiveRun *run = copied_run(fetch);
    __builtin_assume(__isShared(run) && __isShared(slot));
    const bool attends = run->kind == ATTND_RUN_ATTEND;
    uint32_t head, word = 0;
    if (decodes<D> && ahead) {
        static_assert(sizeof(PlannedItem) / 16 <= 32, "a vector a lane");
        if (lane < sizeof(PlannedItem) / 16)
            reinterpret_cast<uint4 *>(static_cast<PlannedItem *>(&slot->item))[lane] =
                reinterpret_cast<const uint4 *>(item_ahead())[lane];
        __syncwarp();
    }
    if (known || (decodes<D> && ahead)) {
        head = slot->item.kv_head;
    } else {
        const ItemPlace place = item_place(run, index, settings.workers);
        head = place.head;
        word = attends ? tile_word(run, place.tile, lane) : 0;
    }
    const uint32_t paths = run->aligned ? Policy::paths(run, settings.paths) : 0;
    if (lane == 0) {
        Item *item = &slot->item;
        slot->index = index;
        slot->session = uint32_t(run->plan.reads_first);
        slot->layer = uint32_t(run->plan.reads_first >> 32);
        slot->ended = 0;
        item->run = run;
        item->maps = &settings.runs[entry.slot];
        item->live = &fetch->resident->live[(entry.sequence - 1) % ring_positions];
        item->failed = cancelled;
        item->ending = 0;
        item->generation = entry.generation; /* of appends, too */
        item->kv_head = head;
        item->k = run->k_base + kv_bytes<Policy> * (head * run->k_plane.stride_head);
        item->v = run->v_base + kv_bytes<Policy> * (head * run->v_plane.stride_head);
        if (attends && !cancelled)
            Policy::score_item(item);
    }
    if (cancelled)
        return path_skip;
    if (!attends)
        return run->kind == ATTND_RUN_MERGE ? path_merge : path_append;
    const attnd_tile &tile = slot->item.tile;
    const auto meanwhile = [&] {
        const uint32_t rows = tile.row_count * run->plan.group;
        if (rows <= decode_rows<D> && lane < decode_rows<D>)
            slot->item.q[lane] = lane < rows ? run->q + query_at(tile, run, head, lane) : nullptr;
        if (!known && !ahead && lane == 0)
            item_plan(&slot->item, tile, run, head);
    };
    if (known || (decodes<D> && ahead)) {
        meanwhile();
        __syncwarp();
    } else {
        item_load(&slot->item, run, word, entry.generation, lane, meanwhile);
    }
    const bool few = slot->item.packed_rows <= decode_rows<D>;
    const bool latents = !portable && D == latent_dim && paths >> 1 & 1 && one_plane(run);
    if (latents)
        item_cut_by_rows(&slot->item, run, lane);
    if (Policy::windows)
        item_skip<D>(&slot->item, run, lane);
    if (D == latent_dim)
        return latents ? path_prefill : path_naive;
    const bool decode = few && decodes<D>;
    return !(paths >> (decode ? 0 : 1) & 1) ? path_naive : decode ? path_decode : path_prefill;
}

/* What an item reads of a key and its value. */
template <int D, typename Policy>
__device__ __forceinline__ uint32_t key_elements(const ActiveRun *run, Path path)
{
    const uint32_t k = Policy::template dim_qk<D>(run->plan);
    return D == latent_dim && path == path_prefill ? k : k + Policy::template dim_vo<D>(run->plan);
}

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

/* The slot of work @number is filled: to who waits for it. The whole warp. */
template <int D>
__device__ __forceinline__ void work_give(const FetchWarp *fetch, WorkSlot *slot, uint32_t number,
                                          Path path)
{
    if (threadIdx.x % 32 == 0) {
        slot->path = path;
        fetch->resident->doing[fetch->worker] = path == path_leave ? state_left : state_item;
        barrier_arrive(&fetch->work->full[number % work_slots], 1);
    }
    if (fuses<D> && fetch->fused->k)
        fused_ready(number);
}

/* Behind that: what nobody waits for. @early: the item's first keys are asked for already. */
template <int D, typename Policy>
__device__ __forceinline__ void work_given(const FetchWarp *fetch, const WorkSlot *slot,
                                           uint32_t number, Path path, bool early)
{
    const uint32_t lane = threadIdx.x % 32;
    const Item &item = slot->item;
    /* With nothing else in hand. The keys of a short item are asked for all at once anyway. */
    if (path == path_decode && fetch->completed == number && !early &&
        item.kv_end - item.kv_begin > first_keys)
        first_keys_prefetch<D, Policy>(item, lane);
    __syncwarp();
    /* Before the item's arrival: that is this warp's, behind all that is on its way; or, of a
     * decode item, another's, microseconds later. */
    if (lane == 0 && path >= path_naive && item.kv_end > item.kv_begin &&
        (D != latent_dim || item.rows_begin == 0))
        tally_gpu(&item.live->kv_bytes, uint64_t(kv_bytes<Policy>) *
                                            key_elements<D, Policy>(item.run, path) *
                                            uint64_t(item.kv_end - item.kv_begin));
    __syncwarp();
}

/* The first item of a launch, which is known: by few instructions, because all others wait for it.
 * Return: there is one. */
template <int D, typename Policy> __device__ __forceinline__ bool fetch_first(FetchWarp *fetch)
{
    constexpr uint32_t number = first_item<D>;
    engine_begin<D, Policy>(fetch);
    const RunEntry entry = fetch->work->launched;
    WorkSlot *slot = &fetch->work->slot[number % work_slots];
    if (fetch->worker >= entry.items || copied_run(fetch)->plan.compute_tiles)
        return false;
    const Path path = work_fill<D, Policy, true>(fetch, slot, entry, fetch->worker, 0);
    work_give<D>(fetch, slot, number, path);
    work_given<D, Policy>(fetch, slot, number, path, fetch->work->early);
    return true;
}

/* The fetch warp: every item until the kernel leaves. @warms_up: another warp, none but that of
 * the warmup, so that the instructions are there when the fetch warp wants them. */
template <int D, typename Policy>
__device__ __forceinline__ void fetch_work(FetchWarp *fetch, bool warms_up)
{
    Resident *resident = fetch->resident;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t number = first_item<D>, last = nothing; /* the item that was given out last */
    if (fetch->work->launch.plan && fetch_first<D, Policy>(fetch)) {
        number++;
        last = fetch->worker;
    }
    for (;; number++) {
        uint32_t ahead = unclaimed;
        if (decodes<D> && engine_many_left(fetch->work, last))
            ahead = engine_claim_ahead(resident, fetch->copy, number);
        if (first_item<D> != 0 && number == warmup + work_slots)
            work_wait_empty(fetch->work, warmup); /* nobody else waits for its end */
        if (number >= work_slots)
            fetch_complete<D>(fetch, number - work_slots + 1, true);
        WorkSlot *slot = warms_up ? warmup_slot() : &fetch->work->slot[number % work_slots];
        if (lane == 0 && !warms_up)
            resident->doing[fetch->worker] = state_idle;
        RunEntry entry;
        uint32_t cancelled = 0, index;
        if (fetch->work->launch.plan) {
            entry = fetch->work->launched;
            index = ahead != unclaimed ? ahead : engine_take<D>(fetch, number);
            index = last = index < entry.items ? index : nothing;
        } else {
            index = take_item<D>(fetch, number, &entry, &cancelled, warms_up);
        }
        Path path = path_leave;
        if (index != nothing)
            path = work_fill<D, Policy, false>(fetch, slot, entry, index, cancelled,
                                               ahead != unclaimed);
        if (warms_up)
            return;
        work_give<D>(fetch, slot, number, path);
        if (index == nothing) {
            if (fetch->work->launch.plan)
                engine_end<D>(fetch, number);
            return;
        }
        work_given<D, Policy>(fetch, slot, number, path, false);
    }
}

} // namespace attnd

#endif
