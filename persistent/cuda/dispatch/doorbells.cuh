/*
 * doorbells.cuh - doorbells: how an engine's stream begins a run without the host.
 *
 * A mailbox has a doorbell and an error for each lane, and its engine may write anything there at
 * any time. A warp reads all doorbells of a mailbox with one load; a lane of the warp has two. What
 * is rung is checked (is there such a prepared run, is it this mailbox's and lane's, is its plan
 * held) and published, all that were found at once under one fence. A doorbell that cannot begin
 * now, for want of room or of a plan, stays as it is and is looked at again: there is no queue that
 * could fill, and parking loses none.
 *
 * Orders. The load of the doorbell acquires what the engine stored before it rang (q, K, V) at
 * system scope, the fence before the entry's store releases it to the worker. The doorbell is
 * marked as taken before that fence, hence before what the run's items add to it, of which the last
 * one's is the answer: an engine that has its answer and rings again is not wiped out. Twice: a
 * lane's busy bit is read before its doorbell is loaded. If it was clear, all of the last run of
 * the lane, the taking of its doorbell included, came before that load.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_DOORBELLS_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_DOORBELLS_CUH

#include "persistent/cuda/dispatch/dispatch_state.cuh"
#include "persistent/cuda/machine/scalar.cuh"

namespace attnd
{

/* Positions that doorbells leave to the command ring: they come back faster than its owner looks.
 */
constexpr uint32_t ring_reserve = ring_positions / 8;
/* And those beside them that are kept for sessions of which no run is in flight. */
constexpr uint32_t ring_scarce = ring_reserve + 24;

constexpr uint32_t doorbell_pairs = ATTND_LANES_MAX / 2;
static_assert(doorbell_pairs == 32, "two lanes of a mailbox a lane of the warp");

/* One look at a mailbox. */
struct Doorbells {
    uint32_t index;         /* of the mailbox */
    attnd_mailbox *mailbox; /* NULL: none was looked at */
    uint32_t value[2];      /* doorbells 2 * lane, 2 * lane + 1; 0: not rung, or busy */
};

/* attnd_doorbell_rung(), which the host compiles. */
__device__ __forceinline__ bool doorbell_rung(uint32_t doorbell)
{
    return doorbell >> 30 == ATTND_DOORBELL_RUNG >> 30;
}

__device__ __forceinline__ bool doorbell_taken(uint32_t doorbell)
{
    return int32_t(doorbell) <= 0 && !doorbell_rung(doorbell);
}

/* @acquire: what is found may be taken; else it is only a hint, and many looks are in flight at
 * once. */
template <bool acquire>
__device__ __forceinline__ Doorbells look_at_mailbox(const Dispatch *dispatch, uint32_t index)
{
    Doorbells doorbells = {index, nullptr, {0, 0}};
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t busy = observe_cta(&dispatch->busy[index][lane / 16]); /* before the load */
    doorbells.mailbox = *const_cast<attnd_mailbox *const volatile *>(&dispatch->mailboxes[index]);
    if (!doorbells.mailbox)
        return doorbells;
    const uint32_t *pair = &doorbells.mailbox->doorbell[2 * lane];
    const uint2 seen = acquire ? observe_pair_sys(pair) : peek_pair_sys(pair); /* A1 */
    doorbells.value[0] = busy >> (2 * lane % 32) & 1 || !doorbell_rung(seen.x) ? 0 : seen.x;
    doorbells.value[1] = busy >> (2 * lane % 32 + 1) & 1 || !doorbell_rung(seen.y) ? 0 : seen.y;
    return doorbells;
}

/* Facts by which a doorbell is judged, and which do not change while these kernels are there. */
struct DoorbellRules {
    uint32_t transient, prepared_count, resident; /* as in Dispatch and Settings */
};

__device__ __forceinline__ DoorbellRules doorbell_rules(const Dispatch *dispatch)
{
    return {dispatch->transient, dispatch->prepared_count, dispatch->settings.resident};
}

/* Which prepared run a doorbell names: an index below rules.prepared_count, if there is one. Of a
 * doorbell that is not rung, and of a number below the first: huge. */
__device__ __forceinline__ uint32_t doorbell_names(const DoorbellRules &rules, uint32_t value)
{
    static_assert(ATTND_DOORBELL_RUNG % ATTND_DOORBELL_SLOTS == 0,
                  "the number's slot is the word's");
    return value % ATTND_DOORBELL_SLOTS - rules.transient;
}

/* Is it the run that has the slot now? */
__device__ __forceinline__ bool doorbell_means(const Prepared &run, uint32_t value)
{
    static_assert(ATTND_DOORBELL_SERIALS - 1 == UINT16_MAX, "as Prepared has it");
    return (value - ATTND_DOORBELL_RUNG) / ATTND_DOORBELL_SLOTS == run.serial;
}

/* May the run begin that a doorbell names? Most questions are asked in one word, and all at once:
 * somebody's layer waits. @whose: mailbox, lane, state and code of the run. */
__device__ __forceinline__ bool doorbell_begins(const DoorbellRules &rules, const Prepared &run,
                                                uint32_t whose, uint32_t mailbox, uint32_t doorbell)
{
    constexpr uint32_t good = prepared_there | prepared_owned; /* and nothing that it waits for */
    static_assert(offsetof(Prepared, mailbox) == 8 && offsetof(Prepared, lane) == 9 &&
                      offsetof(Prepared, state) == 10 && offsetof(Prepared, code) == 11,
                  "a word");
    return (whose == (mailbox | doorbell << 8 | good << 16)) &
           (run.items - 1 < ATTND_DOORBELL_ITEMS_MAX) & (rules.resident >> run.variant & 1);
}

/* The fate of a doorbell that is rung and does not begin. Under the lock. Return: what it is
 * answered with, 1 + code; 0: it waits. */
__device__ __noinline__ uint32_t judge_doorbell(Dispatch *dispatch, uint32_t mailbox,
                                                uint32_t doorbell, uint32_t value)
{
    const uint32_t index = doorbell_names(doorbell_rules(dispatch), value);
    const bool there = index < dispatch->prepared_count;
    const Prepared run = dispatch->prepared[there ? index : 0];
    constexpr uint8_t good = prepared_there | prepared_owned;
    if (!there || (run.state & good) != good || run.mailbox != mailbox || run.lane != doorbell ||
        !doorbell_means(run, value))
        return 1 + ATTND_E_UNKNOWN;
    if (run.state & (prepared_held | prepared_changing))
        return 0;
    if (run.code)
        return 1 + run.code;
    if (run.items > ATTND_DOORBELL_ITEMS_MAX)
        return 1 + ATTND_E_UNSUPPORTED;
    if (!run.items)
        return 1;
    if (!(dispatch->settings.resident >> run.variant & 1))
        publish_cta(&dispatch->wanted, run.variant + 1u);
    return 0;
}

/* Answers a doorbell that begins nothing. */
__device__ __noinline__ void refuse_doorbell(Resident *resident, attnd_mailbox *mailbox,
                                             uint32_t index, uint32_t doorbell, uint32_t answer)
{
    MailboxSums *sums = &resident->sums[index];
    const uint32_t code = answer - 1;
    const uint32_t error = peek_sys(&mailbox->error[doorbell]);
    if (code && !error)
        store_relaxed_sys(&mailbox->error[doorbell], code);
    publish_sys(&mailbox->doorbell[doorbell], answer);
    if (code) {
        swap_relaxed(&sums->error, code);
        swap_relaxed(&sums->error_lane, doorbell);
        tally_gpu(&sums->errors, 1u);
    }
    tally_gpu(&sums->runs, 1ull);
}

/* One doorbell of each lane of the warp. */
__device__ __forceinline__ void take_half(Dispatch *dispatch, Resident *resident,
                                          const DoorbellRules &rules, const Doorbells &doorbells,
                                          uint32_t half)
{
    const uint32_t lane = threadIdx.x % 32, doorbell = 2 * lane + half,
                   value = doorbells.value[half];
    const uint32_t index = doorbell_names(rules, value), below = (1u << lane) - 1;
    const bool there = index < rules.prepared_count;
    attnd_mailbox *mailbox = doorbells.mailbox;
    dispatch_lock(dispatch);
    const uint4 words = reinterpret_cast<const uint4 *>(dispatch->prepared)[there ? index : 0];
    /* Unwatched since the look: its memory may be about to go. */
    const bool open = (dispatch->mailboxes[doorbells.index] == mailbox) & !dispatch->closing;
    const uint32_t first = dispatch->published, ready = dispatch->ready - first;
    uint32_t room = ready > ring_reserve ? ready - ring_reserve : 0;
    if (dispatch->makes_way |
        (ready <= ring_scarce)) /* one, where none is in flight: may_begin() */
        room =
            min(room, !(dispatch->busy[doorbells.index][0] | dispatch->busy[doorbells.index][1]));
    Prepared run;
    static_assert(sizeof(run) == sizeof(words), "one load");
    memcpy(&run, &words, sizeof(run));
    const bool good = open & there &
                      doorbell_begins(rules, run, words.z, doorbells.index, doorbell) &
                      doorbell_means(run, value);
    const uint32_t begins = __ballot_sync(0xffffffffu, good);
    const uint32_t rank = __popc(begins & below), at = first + rank;
    const bool begin = good && rank < room;
    if (begin) {
        store_relaxed_sys(&mailbox->doorbell[doorbell], 1 - run.items * doorbell_item);
        fence_gpu(); /* R1 */
        store_entry(&resident->ring[at % ring_positions],
                    {at + 1, ring_positions + index, run.items, run.variant, run.generation});
    }
    __syncwarp(); /* workers wait for the entry, nobody for what follows */
    if (begin) {
        /* Nobody looks at these before the lock is given back, but who finds the position active;
         * it is set last. */
        set_bits(&dispatch->busy[doorbells.index][doorbell / 32], 1u << doorbell % 32);
        set_bits(&dispatch->ran, 1u << run.variant);
        resident->recent = ring_positions + index;
        put_position(dispatch, resident, at,
                     {0, rules.transient + index, 0, run.items,
                      doorbells.index * ATTND_LANES_MAX + doorbell, run.plan, 0, 0, 0});
    }
    uint32_t answer = 0;
    if (value && open && !good)
        answer = judge_doorbell(dispatch, doorbells.index, doorbell, value);
    __syncwarp();
    if (lane == 0 && begins)
        dispatch->published = resident->published = first + min(uint32_t(__popc(begins)), room);
    dispatch_unlock(dispatch);
    if (answer)
        refuse_doorbell(resident, mailbox, doorbells.index, doorbell, answer);
    __syncwarp();
}

__device__ __forceinline__ bool rung(const Doorbells &doorbells)
{
    return __any_sync(0xffffffffu, doorbells.value[0] | doorbells.value[1]);
}

/* Begins what can begin of a look. @warms_up: executes most of that for nothing, where nothing is
 * rung. The whole warp. */
__device__ __forceinline__ void take_doorbells(Dispatch *dispatch, Resident *resident,
                                               const DoorbellRules &rules,
                                               const Doorbells &doorbells, bool warms_up)
{
    const bool any = rung(doorbells);
    if (!any && !warms_up)
        return;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++)
        if (__any_sync(0xffffffffu, doorbells.value[half]) || !any)
            take_half(dispatch, resident, rules, doorbells, half);
}

/* ---- which mailboxes are watched --------------------------------------------------------------
 */

/* One thread under the lock; or, before the warps part, one for each mailbox. */
__device__ __forceinline__ void list_mailbox(Dispatch *dispatch, uint32_t index,
                                             attnd_mailbox *mailbox)
{
    dispatch->mailboxes[index] = mailbox;
    dispatch->watched_list[add_relaxed(&dispatch->watched, 1u)] = uint8_t(index);
}

/* Sums of a mailbox go on where the last worker left them. One thread. */
__device__ __forceinline__ void load_sums(const Dispatch *dispatch, Resident *resident,
                                          uint32_t index)
{
    const attnd_mailbox_slot *slot = mailbox_slot(dispatch, index);
    MailboxSums *sums = &resident->sums[index];
    sums->runs = peek8_sys(&slot->runs);
    sums->tiles = peek8_sys(&slot->tiles);
    sums->busy_ns = peek8_sys(&slot->busy_ns);
    sums->kv_bytes = peek8_sys(&slot->kv_bytes);
    sums->errors = peek_sys(&slot->errors);
    sums->sent = sums->runs + sums->errors;
    sums->error = peek_sys(&slot->error_code);
    sums->error_lane = peek_sys(&slot->error_lane);
}

/* And to its slot in host memory, for the daemon's statistics. One thread. */
__device__ __forceinline__ void carry_sum(const Dispatch *dispatch, Resident *resident,
                                          uint32_t index)
{
    volatile attnd_mailbox_slot *slot = mailbox_slot(dispatch, index);
    MailboxSums *sums = &resident->sums[index];
    const unsigned long long runs = peek8_gpu(&sums->runs);
    const uint32_t errors = peek_gpu(&sums->errors);
    sums->sent = runs + errors;
    slot->tiles = peek8_gpu(&sums->tiles);
    slot->busy_ns = peek8_gpu(&sums->busy_ns);
    slot->kv_bytes = peek8_gpu(&sums->kv_bytes);
    slot->errors = errors;
    slot->error_code = peek_gpu(&sums->error);
    slot->error_lane = peek_gpu(&sums->error_lane);
    slot->runs = runs;
}

/* From now on; also for what was prepared before: after a death all of that comes first, so that no
 * doorbell finds less than there is. @session: whose slot it is. */
__device__ __forceinline__ void watch_mailbox(Dispatch *dispatch, Resident *resident,
                                              uint32_t index, attnd_mailbox *mailbox,
                                              uint32_t session)
{
    dispatch_lock(dispatch);
    for (uint32_t i = threadIdx.x % 32; i < dispatch->prepared_count; i += 32) {
        Prepared *prepared = &dispatch->prepared[i];
        ActiveRun *run = &dispatch->settings.runs[ring_positions + i];
        if (!prepared->state || prepared->mailbox != index || run->source.body.session != session)
            continue;
        run->answer = &mailbox->doorbell[prepared->lane];
        prepared->state |= prepared_owned;
        resident->prepared[i] = *prepared;
    }
    fence_gpu();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        load_sums(dispatch, resident, index);
        list_mailbox(dispatch, index, mailbox);
        resident->mailboxes[index] = mailbox;
    }
    dispatch_unlock(dispatch);
}

/* One thread. */
__device__ __forceinline__ void unlist_mailbox(Dispatch *dispatch, uint32_t index)
{
    uint8_t *list = dispatch->watched_list;
    for (uint32_t i = 0; i < dispatch->watched; i++)
        if (list[i] == index) {
            list[i] = list[--dispatch->watched];
            return;
        }
}

__device__ __forceinline__ void unwatch_mailbox(Dispatch *dispatch, Resident *resident,
                                                uint32_t index)
{
    dispatch_lock(dispatch);
    if (threadIdx.x % 32 == 0) {
        unlist_mailbox(dispatch, index);
        dispatch->mailboxes[index] = nullptr;
        resident->mailboxes[index] = nullptr;
    }
    /* Runs that were prepared for this session are not found by the session that gets the slot
     * next, nor by a PUBLISH of the plan that gets its place in the heap. */
    for (uint32_t i = threadIdx.x % 32; i < dispatch->prepared_count; i += 32)
        if (dispatch->prepared[i].state && dispatch->prepared[i].mailbox == index) {
            dispatch->prepared[i] = Prepared{};
            resident->prepared[i] = Prepared{};
        }
    dispatch_unlock(dispatch);
}

/* Before the first look. Lanes of a new mailbox are at rest. In a mailbox that an earlier worker
 * watched, a doorbell that reads as taken is of a run that died with that worker: its stream waits,
 * and gets an answer. The whole warp. Return: bit l: lane l was answered. */
__device__ __forceinline__ uint64_t adopt_mailbox(attnd_mailbox *mailbox, bool fresh)
{
    uint64_t answered = 0;
#pragma unroll
    for (uint32_t base = 0; base < ATTND_LANES_MAX; base += 32) {
        const uint32_t doorbell = base + threadIdx.x % 32;
        const bool lost = !fresh && doorbell_taken(observe_sys(&mailbox->doorbell[doorbell]));
        if (fresh) {
            store_relaxed_sys(&mailbox->error[doorbell], 0);
            store_relaxed_sys(&mailbox->doorbell[doorbell], 1);
        } else if (lost) {
            if (!observe_sys(&mailbox->error[doorbell]))
                store_relaxed_sys(&mailbox->error[doorbell], ATTND_E_WORKER_RESTARTED);
            publish_sys(&mailbox->doorbell[doorbell], 1 + ATTND_E_WORKER_RESTARTED);
        }
        answered |= uint64_t(__ballot_sync(0xffffffffu, lost)) << base;
    }
    fence_sys(); /* before the command's answer */
    return answered;
}

/* Rings that were answered without a run: behind list_mailbox(), which reads the sums. One thread.
 */
__device__ __forceinline__ void count_lost(Resident *resident, uint32_t index, uint64_t lanes)
{
    MailboxSums *sums = &resident->sums[index];
    if (!lanes)
        return;
    swap_relaxed(&sums->error, ATTND_E_WORKER_RESTARTED);
    swap_relaxed(&sums->error_lane, uint32_t(63 - __clzll(int64_t(lanes))));
    tally_gpu(&sums->errors, uint32_t(__popcll(lanes)));
    tally_gpu(&sums->runs, static_cast<unsigned long long>(__popcll(lanes)));
}

/* ---- who looks --------------------------------------------------------------------------------
 */

/* Is any doorbell rung anywhere? For a kernel that leaves when there is nothing to do. */
__device__ __forceinline__ bool doorbells_pending(const Dispatch *dispatch)
{
    bool any = false;
    for (uint32_t i = 0; i < dispatch->watched; i++)
        any |= rung(look_at_mailbox<false>(dispatch, dispatch->watched_list[i]));
    return any;
}

/* The same, where the next kernels are to take it: of lanes, too, whose last run is in flight here,
 * or over and not yet retired. Such a doorbell is a new ring, because the one before it was marked
 * as taken when its run was published. */
__device__ __forceinline__ bool doorbells_left(const Dispatch *dispatch)
{
    bool any = false;
    for (uint32_t i = 0; i < dispatch->watched; i++) {
        const attnd_mailbox *mailbox = dispatch->mailboxes[dispatch->watched_list[i]];
        const uint2 seen = peek_pair_sys(&mailbox->doorbell[threadIdx.x % 32 * 2]);
        any |= doorbell_rung(seen.x) || doorbell_rung(seen.y);
    }
    return __any_sync(0xffffffffu, any);
}

/* The warp that watches mailboxes. One or two it looks at ready to take; of more it has several
 * hints in flight, and looks again where there is something. Kernels that were called before their
 * doorbell find none in their first looks, and have the time to fetch what they execute then. */
__device__ __forceinline__ void dispatch_doorbells(Dispatch *dispatch, Resident *resident)
{
    constexpr uint32_t few = 2, looks = 4;
    const uint8_t *list = dispatch->watched_list;
    const DoorbellRules rules = doorbell_rules(dispatch);
    for (uint32_t pass = 0; !observe_cta(&dispatch->closing); pass++) {
        const uint32_t watched = observe_cta(&dispatch->watched);
        const bool looks_at =
            !observe_cta(&dispatch->makes_way) || stays_for_others(dispatch, resident);
        const uint32_t count = looks_at ? watched : 0;
        for (uint32_t i = 0; i < count && count <= few; i++)
            take_doorbells(dispatch, resident, rules, look_at_mailbox<true>(dispatch, list[i]),
                           pass == 1 && i == 0);
        for (uint32_t base = 0; base < count && count > few; base += looks) {
            Doorbells hints[looks];
#pragma unroll
            for (uint32_t i = 0; i < looks; i++) {
                hints[i] = {0, nullptr, {0, 0}};
                if (base + i < count)
                    hints[i] = look_at_mailbox<false>(dispatch, list[base + i]);
            }
#pragma unroll
            for (uint32_t i = 0; i < looks; i++) {
                const bool warms_up = pass == 1 && base + i == 0;
                if (rung(hints[i]) || warms_up)
                    take_doorbells(dispatch, resident, rules,
                                   look_at_mailbox<true>(dispatch, hints[i].index), warms_up);
            }
        }
        __syncwarp();
        if (pass % 8 == 0 && threadIdx.x % 32 == 0) /* its waiter has time */
            publish_cta(&dispatch->doorbell_rounds, dispatch->doorbell_rounds + 1);
        if (!count)
            __nanosleep(500);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) /* for a waiter of two rounds: there are no more looks */
        publish_cta(&dispatch->doorbell_rounds, dispatch->doorbell_rounds + 2);
}

} // namespace attnd

#endif
