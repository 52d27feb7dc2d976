/*
 * retire.cuh - what becomes of runs that are done, and the chores nobody waits for.
 *
 * One warp looks at the counters of all runs in flight, a lane each, writes retire records for
 * those of the command ring that have ended, and frees the lanes of launched runs. The other
 * makes positions ready for their next run, passes cancellations on, and carries sums of the
 * mailboxes to the host.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_RETIRE_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_RETIRE_CUH

#include "persistent/cuda/dispatch/extra.cuh"
#include "persistent/cuda/dispatch/turns.cuh"
#include "persistent/cuda/machine/scalar.cuh"

namespace attnd
{

/* The retire ring as its one writer sees it. The daemon never has more commands out than the ring
 * has slots. */
struct Retirer {
    Dispatch *dispatch;
    Resident *resident;
    attnd_retire *ring;
    uint32_t entries, tail;
};

__device__ __forceinline__ void store_retire(const Retirer *self, uint32_t rank,
                                             const attnd_retire &retire)
{
    /* By 16 bytes: each store is a packet on the bus. */
    uint4 part[sizeof(retire) / 16];
    uint4 *to = reinterpret_cast<uint4 *>(&self->ring[(self->tail + rank) & (self->entries - 1)]);
    memcpy(part, &retire, sizeof(retire));
#pragma unroll
    for (uint32_t i = 0; i < sizeof(retire) / 16; i++)
        to[i] = part[i];
}

/* @count records were stored by lanes of this warp. */
__device__ __forceinline__ void publish_retires(Retirer *self, uint32_t count)
{
    if (!count)
        return;
    self->tail += count;
    __syncwarp();
    if (threadIdx.x % 32 == 0) /* R1: the records; and o and lse, which the counters covered */
        publish_sys(&self->dispatch->settings.queue->retire_tail, self->tail);
}

/* Has the run at position @at ended? Its line is what all of its items arrive at, each with a
 * release, and their additions are one chain: an observer of the last (A1) sees what every item
 * stored. Return: Live.done; 0: no. */
__device__ __forceinline__ uint64_t run_ended(const Dispatch *dispatch, const Resident *resident,
                                              uint32_t at)
{
    const Position *position = &dispatch->positions[at];
    if (!observe_cta(&position->active))
        return 0;
    const uint64_t done = observe_gpu8(&resident->live[at].done);
    return uint32_t(done) == position->items ? done : 0;
}

/* The run at position @at of each lane with @done has ended. */
__device__ __forceinline__ void retire_runs(Retirer *self, uint32_t at, uint64_t done)
{
    const bool mine = done != 0;
    Dispatch *dispatch = self->dispatch;
    const uint32_t lane = threadIdx.x % 32;
    const int64_t offset_ns = self->dispatch->settings.host_clock_offset_ns;
    Position *position = &dispatch->positions[at];
    const bool launched = mine && position->doorbell != ATTND_NONE;
    const uint32_t records = __ballot_sync(0xffffffffu, mine && !launched);
    if (launched) /* first: its lane may be launched again by now */
        clear_bits(&dispatch->busy[position->doorbell / ATTND_LANES_MAX]
                                  [position->doorbell % ATTND_LANES_MAX / 32],
                   1u << position->doorbell % 32);
    if (mine) {
        const Live *live = &self->resident->live[at];
        const ulonglong2 sums = __ldcg(reinterpret_cast<const ulonglong2 *>(&live->end_ns));
        const uint32_t cancelled = __ldcg(&live->cancelled), code = __ldcg(&live->code);
        const uint64_t busy_ns = (done >> 32) * busy_unit_ns, kv_bytes = sums.y;
        if (launched) {
            MailboxSums *all = &self->resident->sums[position->doorbell / ATTND_LANES_MAX];
            tally_gpu(&all->runs, 1ull);
            tally_gpu(&all->tiles, static_cast<unsigned long long>(position->items));
            tally_gpu(&all->busy_ns, static_cast<unsigned long long>(busy_ns));
            tally_gpu(&all->kv_bytes, static_cast<unsigned long long>(kv_bytes));
            if (code) {
                swap_relaxed(&all->error, code);
                swap_relaxed(&all->error_lane, position->doorbell % ATTND_LANES_MAX);
                tally_gpu(&all->errors, 1u);
            }
        } else {
            attnd_retire retire = {};
            retire.run = position->run;
            retire.code = code ? -int32_t(code) : cancelled ? -ATTND_E_CANCELLED : 0;
            retire.begin_ns = position->begin_ns + offset_ns;
            retire.end_ns = sums.x + offset_ns;
            retire.busy_ns = busy_ns;
            retire.kv_bytes = kv_bytes;
            retire.tiles = position->items;
            retire.kind = ATTND_COMMAND_RUN;
            retire.tag = position->tag;
            store_retire(self, __popc(records & ((1u << lane) - 1)), retire);
        }
    }
    publish_retires(self, __popc(records));
    if (mine) {
        set_bits(&dispatch->finished[at / 32], 1u << at % 32);
        fence_cta();
        publish_cta(&position->active,
                    0); /* behind the lane's bit: HOLD and MAILBOX look at this */
    }
    __syncwarp();
}

/* Moves past all positions that are done without a gap. */
__device__ __forceinline__ void advance_retired(Dispatch *dispatch, Resident *resident)
{
    if (threadIdx.x % 32 == 0) {
        uint32_t at = dispatch->retired;
        const uint32_t end = observe_cta(&dispatch->published);
        for (; at != end; at++) {
            uint32_t *word = &dispatch->finished[at % ring_positions / 32], bit = 1u << at % 32;
            if (!(*word & bit))
                break;
            *word &= ~bit;
        }
        publish_cta(&dispatch->retired, at);
        resident->retired = at;
    }
    __syncwarp();
}

/* Answers of commands that are no runs. */
__device__ __forceinline__ void retire_direct(Retirer *self)
{
    Dispatch *dispatch = self->dispatch;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t head = dispatch->direct_head, count = observe_cta(&dispatch->direct_tail) - head;
    if (!count)
        return;
    static_assert(direct_max == 32, "a lane each");
    if (lane < count) {
        const Direct direct = dispatch->direct[(head + lane) % direct_max];
        attnd_retire retire = {};
        retire.run = direct.run;
        retire.code = direct.code;
        retire.begin_ns = retire.end_ns =
            clock_ns() + self->dispatch->settings.host_clock_offset_ns;
        retire.kind = direct.kind;
        retire.tag = direct.tag;
        store_retire(self, lane, retire);
    }
    __syncwarp();
    publish_retires(self, count);
    if (lane == 0)
        publish_cta(&dispatch->direct_head, head + count);
    __syncwarp();
}

/* The daemon's word for a run, behind the bus, to the word its workers see: what items that were
 * not begun fail with. If the process behind these kernels is dead that is all of them, long before
 * another worker can be there to look at the same doorbells. @look: for that; seldom while commands
 * are taken, because kernels of others on this SM feel each look across the bus (a tenth of a small
 * kernel's time, where every pass had one). */
__device__ __forceinline__ void pass_cancels(const Dispatch *dispatch, Resident *resident,
                                             bool look)
{
    const attnd_queue_head *queue = dispatch->settings.queue;
    const attnd_run *runs = reinterpret_cast<const attnd_run *>(
        reinterpret_cast<const char *>(queue) + queue->runs_offset_bytes);
    const bool over = look && observe_sys(&queue->park) == ATTND_PARK_OVER;
#pragma unroll 1
    for (uint32_t p = threadIdx.x % 32; p < ring_positions; p += 32) {
        const Position *position = &dispatch->positions[p];
        if (observe_cta(&position->active) && (over || observe_sys(&runs[position->run].cancel)))
            publish_gpu(&resident->live[p].cancelled,
                        over ? ATTND_E_WORKER_RESTARTED : ATTND_E_CANCELLED);
    }
    __syncwarp();
}

/* The warp that retires, and the last one to end. The next gang waits for that, so in its first
 * pass it retires a run of nobody's, of no items, as warmups do (work_slot.cuh). The chores'
 * warp may have ended before it, and what that passes on is passed on here then: across the bus, so
 * only now and then. */
__device__ __forceinline__ void dispatch_retires(Dispatch *dispatch, Resident *resident)
{
    attnd_queue_head *queue = dispatch->settings.queue;
    char *base = reinterpret_cast<char *>(queue);
    const uint32_t lane = threadIdx.x % 32;
    Retirer self = {dispatch, resident,
                    reinterpret_cast<attnd_retire *>(base + queue->retires_offset_bytes),
                    queue->ring_entries, resident->retires_tail};
    if (lane == 0)
        dispatch->positions[ring_positions].doorbell = ATTND_MAILBOXES_MAX * ATTND_LANES_MAX;
    __syncwarp();
    for (uint32_t pass = 0;; pass++) {
        const bool warms_up = pass == 0, ended = observe_cta(&dispatch->ended);
        const uint32_t first = dispatch->retired;
        const uint32_t count = warms_up ? 1 : observe_cta(&dispatch->published) - first;
        bool any = false;
#pragma unroll 1
        for (uint32_t i = lane; i - lane < count; i += 32) {
            const uint32_t at = warms_up ? ring_positions : (first + i) % ring_positions;
            uint64_t done = 0;
            if (i < count)
                done = warms_up ? 1 : run_ended(dispatch, resident, at);
            if (!__any_sync(0xffffffffu, done != 0))
                continue;
            retire_runs(&self, at, done);
            any = true;
        }
        if (any)
            advance_retired(dispatch, resident);
        retire_direct(&self);
        if (ended && observe_cta(&dispatch->retired) == observe_cta(&dispatch->published) &&
            observe_cta(&dispatch->direct_head) == observe_cta(&dispatch->direct_tail))
            break;
        if (ended && pass % 64 == 63)
            pass_cancels(dispatch, resident, true);
    }
    if (lane == 0)
        resident->retires_tail = self.tail;
}

/* ---- chores -----------------------------------------------------------------------------------
 */

/* The least cursor of the workers that are there, in positions behind @from; at most @most. The
 * whole warp. */
__device__ __forceinline__ uint32_t least_cursor(const Resident *resident, uint32_t workers,
                                                 uint32_t from, uint32_t most)
{
    uint32_t least = most;
    for (uint32_t w = threadIdx.x % 32; w < workers; w += 32)
        if (observe_gpu(&resident->present[w]))
            least = min(least, observe_gpu(&resident->cursor[w]) - from);
    return __reduce_min_sync(0xffffffffu, least);
}

/* How far the horizon may lie behind the newest run. A worker that enters walks from there, in two
 * trips to the L2 a position. Gangs enter behind all that was published before them; extra
 * workers come beside a dispatcher that stays, for a run that is short. */
constexpr uint32_t horizon_behind = ring_positions / 2, extras_behind = 4;

/* Positions whose last run is retired and behind every cursor become ready: their live lines are
 * zero. Not before: a worker that is late would take a ticket of a line begun anew. @completed:
 * retired, and charged (turns.cuh).
 *
 * A worker that has no SM yet holds nothing back. It enters at the horizon, which is moved first:
 *
 *   dispatcher   horizon = h; fence; is every worker that is there at h or beyond? zero the lines
 *                below
 *   worker       cursor = c (a horizon it has seen), present = 1; fence; is the horizon still c?
 *                if not, again
 *
 * The fences are sequentially consistent, so one of the two sees the other: either the worker finds
 * the new horizon and enters there, or the dispatcher finds the worker and waits until it has
 * walked on. */
__device__ __forceinline__ void make_ready(Dispatch *dispatch, Resident *resident,
                                           uint32_t completed)
{
    const uint32_t lane = threadIdx.x % 32, ready = dispatch->ready;
    const uint32_t horizon = ready - ring_positions, workers = dispatch->settings.workers;
    const uint32_t lag = dispatch->settings.reserved ? extras_behind : horizon_behind;
    if (observe_cta(&dispatch->published) - horizon < lag || completed == horizon)
        return;
    const uint32_t behind = least_cursor(resident, workers, horizon, completed - horizon);
    if (!behind)
        return;
    if (lane == 0)
        publish_gpu(&resident->horizon, horizon + behind);
    fence_order();
    if (least_cursor(resident, workers, horizon, behind) < behind)
        return; /* it entered just now, and has seen the new horizon or walks there: look again */
    constexpr uint32_t vectors = sizeof(Live) / 16;
    for (uint32_t i = lane; i < behind * vectors; i += 32) {
        Live *live = &resident->live[(ready + i / vectors) % ring_positions];
        reinterpret_cast<uint4 *>(live)[i % vectors] = make_uint4(0, 0, 0, 0);
    }
    fence_gpu(); /* what is published there is released by another warp */
    __syncwarp();
    if (lane == 0)
        publish_cta(&dispatch->ready, ready + behind);
    __syncwarp();
}

/* Sums of launched runs, for the daemon's statistics, of mailboxes where some ended since. Kernels
 * that come and go leave those of their last runs to the next ones: the helper calls some when
 * nobody else has for a while. */
__device__ __forceinline__ void carry_sums(const Dispatch *dispatch, Resident *resident)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t changed = 0;
#pragma unroll
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX / 32; i++) {
        const MailboxSums *sums = &resident->sums[i * 32 + lane];
        /* Not of an unwatched one: that would show what the slot's last session had. */
        if (dispatch->mailboxes[i * 32 + lane])
            changed |=
                uint32_t(peek8_gpu(&sums->runs) + peek_gpu(&sums->errors) != peek8_gpu(&sums->sent))
                << i;
    }
    for (; changed; changed &= changed - 1) {
        const uint32_t m = (uint32_t(__ffs(int32_t(changed))) - 1) * 32 + lane;
        carry_sum(dispatch, resident, m);
    }
    __syncwarp();
}

/* No more is published. What is left for this warp is said as soon as no item is left to take: from
 * then on no worker of these kernels has anything to find in the ring. Where these kernels leave
 * for the next ones that is before the end of the last item, for which those wait. */
__device__ __forceinline__ void end_chores(Dispatch *dispatch, Resident *resident, Turns *turns,
                                           Extras *extras)
{
    while (!observe_cta(&dispatch->over) &&
           observe_cta(&dispatch->retired) != observe_cta(&dispatch->published)) {
        pass_extras(dispatch, resident, extras);
        if (dispatch->settings.reserved) { /* few stay, so what was published takes its time */
            pass_turns(dispatch, resident, turns);
            make_ready(dispatch, resident, turns->completed);
        }
        __nanosleep(100);
    }
    extras_end(dispatch, resident, extras);
    turns_end(resident, turns);
    if (threadIdx.x % 32 == 0) {
        resident->horizon = dispatch->published;
        resident->dirty = dispatch->ready - ring_positions;
    }
    if (!dispatch->quiet) /* call_next() has said that these kernels leave */
        return;
    carry_sums(dispatch, resident);
    if (threadIdx.x % 32 == 0) /* behind the head: close_ring() */
        publish_sys(&dispatch->settings.host->left, dispatch->gang);
}

/* The warp that does them. */
__device__ __forceinline__ void dispatch_chores(Dispatch *dispatch, Resident *resident)
{
    Turns turns = turns_start(dispatch);
    Extras extras = extras_start(dispatch, resident);
    carry_sums(dispatch, resident);
    for (uint32_t pass = 0; !observe_cta(&dispatch->ended); pass++) {
        pass_extras(dispatch, resident, &extras);
        pass_turns(dispatch, resident, &turns);
        make_ready(dispatch, resident, turns.completed);
        if (pass % 64 == 32)
            carry_sums(dispatch, resident);
        if (pass % 8 == 7)
            pass_cancels(dispatch, resident, pass % 512 == 263 || observe_cta(&dispatch->closing));
        __nanosleep(500);
    }
    end_chores(dispatch, resident, &turns, &extras);
}

} // namespace attnd

#endif
