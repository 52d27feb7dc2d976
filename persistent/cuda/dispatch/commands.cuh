/*
 * commands.cuh - the warp that takes commands.
 *
 * A command is fetched in one trip across the bus and carries all that its run needs; another trip
 * is made only for plans that changed. Those that are no runs are the business of control.cuh.
 *
 * Parking: `closing` first, under the lock, so that nothing is published after it; then the word
 * that workers look at. What was published is executed and answered; commands that were not taken
 * stay in their ring, doorbells in their mailbox. Where the process behind these kernels is dead,
 * and they are not yet, what was published is not executed either (retire.cuh, pass_cancels()).
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_COMMANDS_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_COMMANDS_CUH

#include "persistent/cuda/dispatch/control.cuh"
#include "persistent/cuda/dispatch/stay.cuh"
#include "persistent/cuda/machine/scalar.cuh"
#include "schemas/checksum.h"

namespace attnd
{

constexpr uint32_t heartbeat_stale_ms = 2000;

/* May a run of the command ring begin that is @session's? Kernels that make way finish what was
 * published, so no more than one run is that nobody has begun: what waits in the ring waits for the
 * next gang. But nobody waits for another's runs: a session of which no command is in flight may
 * have one at any time, for which the last positions are kept; where kernels make way, as long as
 * they must stay for others anyway. The whole warp. */
__device__ __forceinline__ bool may_begin(const Commander *self, uint32_t session)
{
    const Dispatch *dispatch = self->dispatch;
    const uint32_t at = observe_cta(&dispatch->published), ready = observe_cta(&dispatch->ready);
    const bool scarce = ready - at <= ring_reserve;
    if (!scarce && !dispatch->settings.drain)
        return true;
    const uint32_t retired = observe_cta(&dispatch->retired);
    const bool makes_way = observe_cta(&dispatch->makes_way);
    if (!scarce && !makes_way &&
        (self->crowded || at == retired ||
         peek_gpu(&self->resident->live[(at - 1) % ring_positions].next_item)))
        return true;
    bool has = at == ready;
    for (uint32_t p = threadIdx.x % 32; p < ring_positions; p += 32) {
        const Position &position = dispatch->positions[p];
        has |= observe_cta(&position.active) && position.doorbell == ATTND_NONE &&
               position.session == session;
    }
    return !__any_sync(0xffffffffu, has) &&
           (!makes_way || stays_for_others(dispatch, self->resident));
}

/* RUN: resolved, and published as soon as there is room. @ahead: the commands in front of it stay,
 * and so does what cannot be published. */
__device__ __forceinline__ Taken take_run(Commander *self, const LookUp &look, bool ahead)
{
    Dispatch *dispatch = self->dispatch;
    Resident *resident = self->resident;
    const attnd_command &command = dispatch->command;
    /* Room for one more also says that the last run but ring_positions from this ring, whose slot
     * comes next, is behind every cursor. */
    if (!may_begin(self, command.body.session))
        return taken_later;
    const uint32_t slot = self->submitted_runs % ring_positions;
    const RunSource source = run_source(command);
    const uint32_t items = command.body.items;
    uint32_t code;
    const uint32_t variant =
        resolve_run(dispatch, &dispatch->settings.runs[slot], source, look, nullptr, &code);
    if (ahead && (code || !items || !(dispatch->settings.resident >> variant & 1)))
        return taken_later;
    if (code || !items) {
        answer_taken(self, -int32_t(code));
        return taken;
    }
    mark_used(self, variant);
    if (!(dispatch->settings.resident >> variant & 1)) {
        /* The command stays where it is, for the kernels that come instead of these. */
        if (threadIdx.x % 32 == 0)
            publish_sys(&dispatch->settings.host->wanted, variant + 1);
        return taken_leave;
    }
    const RunEntry entry = {0, slot, items, uint16_t(variant), uint16_t(command.body.generation)};
    const Position position = {clock_ns(), command.run,          command.tag,
                               items,      ATTND_NONE,           ATTND_NONE,
                               1,          command.body.session, command.body.weight};
    while (!publish_run(dispatch, resident, entry, position, self->head + !ahead))
        ; /* a doorbell was first: the watching warp makes room as runs end */
    self->submitted_runs++;
    return taken;
}

/* What a slot is whose run was taken although others are in front of it: its kind then, which these
 * kernels wrote, and which those that come after them read. */
constexpr uint32_t command_gone = 0x80000000u;

constexpr uint32_t command_vectors = sizeof(attnd_command) / 16;
static_assert(sizeof(attnd_command) % 16 == 0 && command_vectors <= 32, "a vector a lane");

/* Slot @at of the ring, a vector a lane; in flight when this returns. */
__device__ __forceinline__ uint4 look_at_ring(const Commander *self, uint32_t at)
{
    const uint32_t lane = threadIdx.x % 32;
    const attnd_command *slot = &self->ring[at & (self->entries - 1)];
    uint4 part = {};
    if (lane < command_vectors)
        part = peek16_sys(reinterpret_cast<const uint4 *>(slot) + lane);
    return part;
}

/* Is what was looked at a whole command, and the one of slot @at? The whole warp. Without branches:
 * a warp does not wait for one word's sum to begin with the next. */
__device__ __forceinline__ bool sealed(uint32_t at, const uint4 &part)
{
    const uint32_t lane = threadIdx.x % 32, last = command_vectors - 1;
    const uint64_t first = uint64_t(part.y) << 32 | part.x,
                   second = uint64_t(part.w) << 32 | part.z;
    const uint64_t one = attnd_checksum_word(first, attnd_checksum_seed(2 * lane, at));
    const uint64_t other = attnd_checksum_word(second, attnd_checksum_seed(2 * lane + 1, at));
    const uint64_t one_counts = lane <= last ? one : 0, other_counts = lane < last ? other : 0;
    const uint32_t low =
        __reduce_add_sync(0xffffffffu, uint32_t(one_counts) + uint32_t(other_counts));
    const uint32_t high =
        __reduce_add_sync(0xffffffffu, uint32_t(one_counts >> 32) + uint32_t(other_counts >> 32));
    return __any_sync(0xffffffffu, lane == last && low == part.z && high == part.w);
}

__device__ __forceinline__ void keep_command(Commander *self, const uint4 &part)
{
    const uint32_t lane = threadIdx.x % 32;
    if (lane < command_vectors)
        reinterpret_cast<uint4 *>(&self->dispatch->command)[lane] = part;
    __syncwarp();
}

/* The command at the head of the ring, of which the tail says that it is there. @part: the slot as
 * it was looked at together with the tail; good if it is sealed, else it is fetched again. */
__device__ __forceinline__ Taken take_command(Commander *self, const uint4 &part)
{
    Dispatch *dispatch = self->dispatch;
    keep_command(self, part);
    /* What a run needs next is in flight while it is found out whether it is one. */
    LookUp look = look_up(dispatch->settings, run_source(dispatch->command));
    if (!sealed(self->head, part)) {
        keep_command(self, look_at_ring(self, self->head));
        look = look_up(dispatch->settings, run_source(dispatch->command));
    }
    if (dispatch->command.kind == ATTND_COMMAND_RUN)
        return take_run(self, look, false);
    if (dispatch->pending_count == pending_max)
        return taken_later;
    switch (observe_cta(&dispatch->command.kind)) { /* another load: runs pass by no jump table */
    case ATTND_COMMAND_PREPARED:
        return take_prepared(self);
    case ATTND_COMMAND_HOLD:
        take_hold(self);
        return taken;
    case ATTND_COMMAND_PUBLISH:
        return take_publish(self);
    case ATTND_COMMAND_MAILBOX:
        take_mailbox(self);
        return taken;
    case command_gone:
        return taken;
    default:
        answer_taken(self, -ATTND_E_UNSUPPORTED);
        return taken;
    }
}

/* Where the head of the ring is a run that waits for its own session's: the first run behind it
 * that may begin, of those that have nothing but runs in front of them. Commands of other kinds
 * keep their order. Half a ring ahead at most, so the daemon, which counts commands out, always has
 * room. */
__device__ __forceinline__ void take_ahead(Commander *self, uint32_t tail)
{
    Dispatch *dispatch = self->dispatch;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t end = self->head + min(tail - self->head, self->entries / 2);
    if (dispatch->command.kind != ATTND_COMMAND_RUN)
        return;
    uint32_t before = dispatch->command.body.session;
    for (uint32_t base = self->head + 1; int32_t(end - base) > 0; base += 32) {
        const bool there = int32_t(end - base) > int32_t(lane);
        attnd_command *slot =
            const_cast<attnd_command *>(&self->ring[(base + lane) & (self->entries - 1)]);
        const uint32_t kind = there ? peek_sys(&slot->kind) : command_gone;
        const uint32_t session = there ? peek_sys(&slot->body.session) : 0;
        const uint32_t other =
            __ballot_sync(0xffffffffu, kind != ATTND_COMMAND_RUN && kind != command_gone);
        uint32_t runs = __ballot_sync(0xffffffffu, kind == ATTND_COMMAND_RUN);
        if (other)
            runs &= (other & -other) - 1;
        for (; runs; runs &= runs - 1) {
            const uint32_t from = uint32_t(__ffs(int32_t(runs))) - 1;
            const uint32_t whose = __shfl_sync(0xffffffffu, session, from);
            if (whose == before || !may_begin(self, whose)) {
                before = whose;
                continue;
            }
            const uint4 part = look_at_ring(self, base + from);
            keep_command(self, part);
            if (sealed(base + from, part) &&
                take_run(self, look_up(dispatch->settings, run_source(dispatch->command)), true) ==
                    taken &&
                lane == from)
                store_relaxed_sys(&slot->kind, command_gone);
            __syncwarp();
            return;
        }
        if (other)
            return;
    }
}

/* Somebody may always ask for more, and kernels of engines want SMs, too. So after a while nothing
 * more is begun, and kernels leave when no item is left to take. Until then what is no run is still
 * taken. */
__device__ __forceinline__ bool made_way(const Commander *self, uint64_t now)
{
    Dispatch *dispatch = self->dispatch;
    if (now - self->begun_ns < stay_ns)
        return false;
    if (threadIdx.x % 32 == 0 && !dispatch->makes_way) {
        dispatch->way_end = observe_cta(&dispatch->published);
        publish_cta(&dispatch->makes_way, 1);
    }
    __syncwarp();
    const uint32_t retired = observe_cta(&dispatch->retired);
    const uint32_t published = observe_cta(&dispatch->published);
    return retired == published || items_gone(dispatch, self->resident, retired, published);
}

/* With an empty ring: may kernels leave that do not stay? When nothing is in flight. Before that
 * they hold the GPU anyway, and whoever asks for something is not to wait for another gang.
 *
 * Where commands came, the next one comes as soon as their answers are seen: shorter than to leave
 * and come back. Doorbells are of streams, whose next kernels want the SMs now, and so do kernels
 * of other engines. So for runs that were rung it is enough that no item is left to take: each
 * worker leaves behind its last one. */
__device__ __forceinline__ bool drained(Commander *self, uint64_t now)
{
    const Dispatch *dispatch = self->dispatch;
    const uint32_t retired = observe_cta(&dispatch->retired);
    const uint32_t published = observe_cta(&dispatch->published);
    if (retired != published)
        return !self->active_ns && items_gone(dispatch, self->resident, retired, published) &&
               !doorbells_pending(dispatch);
    if (self->active_ns && now - self->active_ns < linger_ns)
        return false;
    return !doorbells_pending(dispatch) && published == observe_cta(&dispatch->published);
}

/* The ring is closed: from here on a doorbell calls the next gang, which begins when this one is
 * gone. A ring is the doorbell, a fence, and then `wake`. Here `wake` is cleared, and behind a
 * fence is the look: if the ring's store came first, its doorbell is seen; if it comes behind,
 * `wake` stays set. That holds while runs are in flight, because a doorbell that reads as rung is
 * none of theirs: the warp that watches mailboxes has marked all that it took before the ring was
 * closed, and takes nothing after it. Most often the last items are in work now, and what is done
 * here nobody waits for. The whole warp. */
__device__ __forceinline__ void call_next(Dispatch *dispatch, Resident *resident)
{
    attnd_wake *wake = dispatch->settings.wake;
    const bool first = threadIdx.x % 32 == 0;
    if (first)
        store_relaxed_sys(&wake->wake, 0);
    __syncwarp();
    fence_order_sys();
    const bool left = doorbells_left(dispatch);
    if (first) {
        if (left)
            store_relaxed_sys(&wake->wake, 1);
        /* Behind the head and the word: who finds a command that nobody took calls again. */
        store_relaxed_sys(&dispatch->settings.host->left, dispatch->gang);
    }
    __syncwarp();
    /* Published is nothing any more, so this is for good. A worker that had no SM yet, because the
     * engine's kernel that waits for this gang was there, is not to begin when that one is over. */
    const uint32_t retired = observe_cta(&dispatch->retired);
    if (items_gone(dispatch, resident, retired, dispatch->published) && first) {
        publish_gpu(&resident->over, dispatch->gang);
        publish_cta(&dispatch->over, 1);
    }
}

/* Nothing is published after this; the workers leave when they have done what was. */
__device__ __forceinline__ void close_ring(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    const uint32_t lane = threadIdx.x % 32;
    dispatch_lock(dispatch);
    if (lane == 0)
        publish_cta(&dispatch->closing, 1);
    dispatch_unlock(dispatch);
    while (dispatch->pending_count) /* runs end by themselves */
        complete_pending(self);
    if (lane == 0) {
        publish_gpu(&self->resident->leave, dispatch->gang); /* others wait for the SMs */
        self->resident->submitted_runs = self->submitted_runs;
        self->resident->plan_bytes = dispatch->plan_bytes;
        self->resident->commands_head = self->head;
        store_relaxed_sys(&dispatch->settings.queue->command_head, self->head);
        self->resident->dismissed = dispatch->quiet;
        publish_cta(&dispatch->ended, 1);
    }
    static_assert(variants_count <= 32, "a variant a lane");
    if (dispatch->ran >> lane & 1)
        store_relaxed_sys(&dispatch->settings.host->ran[lane], dispatch->gang);
    __syncwarp();
    if (dispatch->settings.wake && !dispatch->quiet)
        call_next(dispatch, self->resident);
}

/* Each line more makes a trip across the bus longer, so what is rare is looked at now and then. */
__device__ __forceinline__ bool looks_at_park(uint32_t pass)
{
    return pass % 4 == 0;
}

__device__ __forceinline__ bool looks_at_heartbeat(uint32_t pass)
{
    return pass % 16 == 0;
}

__device__ __forceinline__ bool looks_ahead(uint32_t pass)
{
    return pass % 8 == 7;
}

/* One trip across the bus for all words: A1 on the tail in all lanes but 1, park, 2, the heartbeat,
 * 4, until when records are wanted, and 5, whether these kernels are dismissed, in the passes that
 * look at them. */
__device__ __forceinline__ uint32_t look_at_words(const Commander *self, uint32_t pass)
{
    attnd_queue_head *queue = self->dispatch->settings.queue;
    const HostWords *host = self->dispatch->settings.host;
    const uint32_t lane = threadIdx.x % 32;
    return observe_sys(lane == 2 && looks_at_heartbeat(pass) ? &host->heartbeat_ms
                       : lane == 1 && looks_at_park(pass)    ? &queue->park
                       : lane == 4 && looks_at_park(pass)    ? &queue->trace_until_ms
                       : lane == 5 && looks_at_park(pass)    ? &host->dismiss
                                                             : &queue->command_tail);
}

/* One vote: bit 0: there is a command; bit 1: park is set; bit 5: these kernels are dismissed. A
 * tail out of bounds is no ring of ours. */
__device__ __forceinline__ uint32_t vote_on_words(const Commander *self, uint32_t word,
                                                  uint32_t pass)
{
    const uint32_t lane = threadIdx.x % 32;
    return __ballot_sync(0xffffffffu,
                         lane == 0 ? word - self->head - 1 < self->entries
                                   : (lane == 1 || lane == 5) && looks_at_park(pass) && word);
}

/* Takes the command at the head, if it can be taken now. */
__device__ __forceinline__ Taken take_next(Commander *self, const uint4 &part)
{
    const Taken result = take_command(self, part);
    if (result == taken) {
        free_slot(self); /* also of one whose answer comes later */
        self->head++;
        if (threadIdx.x % 32 == 0)
            self->resident->commands_head = self->head;
    }
    return result;
}

/* Is the host gone? It tells the GPU's own time, so the first look of a gang can tell. Judged with
 * a beat at hand: kernels that were kept from running are not orphans. */
__device__ __forceinline__ bool orphaned(const Commander *self, uint32_t word, uint32_t pass,
                                         uint64_t now)
{
    const uint32_t beat_ms = __shfl_sync(0xffffffffu, word, 2);
    const int32_t age_ms = int32_t(uint32_t(now / 1000000) - beat_ms);
    return looks_at_heartbeat(pass) && beat_ms && age_ms > int32_t(heartbeat_stale_ms);
}

/* Are records of items wanted? Workers see it as soon as they look for work. */
__device__ __forceinline__ void pass_trace(Commander *self, uint32_t word, uint32_t pass,
                                           uint64_t now)
{
    const uint32_t until_ms = __shfl_sync(0xffffffffu, word, 4);
    const uint64_t host_ns = now + uint64_t(self->dispatch->settings.host_clock_offset_ns);
    const uint32_t wanted = attnd_trace_on(until_ms, uint32_t(host_ns / 1000000));
    if (!looks_at_park(pass) || wanted == self->trace)
        return;
    self->trace = wanted;
    if (threadIdx.x % 32 == 0)
        publish_gpu(&self->resident->trace, wanted);
}

/* Does a doorbell name a variant that is not resident? Then the host is to know. */
__device__ __forceinline__ bool variant_wanted(Dispatch *dispatch)
{
    const uint32_t wanted = observe_cta(&dispatch->wanted);
    if (wanted && threadIdx.x % 32 == 0)
        publish_sys(&dispatch->settings.host->wanted, wanted);
    return wanted;
}

/* The warp that takes commands. */
__device__ __forceinline__ void dispatch_commands(Dispatch *dispatch, Resident *resident)
{
    const attnd_queue_head *queue = dispatch->settings.queue;
    const char *base = reinterpret_cast<const char *>(queue);
    Commander self = {dispatch,
                      resident,
                      reinterpret_cast<const attnd_command *>(base + queue->commands_offset_bytes),
                      queue->ring_entries,
                      resident->commands_head,
                      resident->submitted_runs,
                      0};
    self.begun_ns = clock_ns();
    self.trace = 2; /* neither */
    for (uint32_t pass = 0; !dispatch->quiet; pass++) {
        /* In flight together with the words: */
        const uint4 part = look_at_ring(&self, self.head);
        const uint32_t word = look_at_words(&self, pass);
        const uint32_t found = vote_on_words(&self, word, pass);
        Taken result = taken;
        if (found == 1) /* first, because somebody waits for it */
            result = take_next(&self, part);
        const uint32_t tail = __shfl_sync(0xffffffffu, word, 0);
        if (result == taken_later && looks_ahead(pass))
            take_ahead(&self, tail);
        self.crowded = tail - self.head >= self.entries / 2;
        const uint64_t now = clock_ns();
        const bool orphan = orphaned(&self, word, pass, now);
        pass_trace(&self, word, pass, now);
        const bool broken = tail - self.head > self.entries; /* health.cu ends the worker */
        if (broken)
            resident->error = ATTND_E_PROTOCOL;
        if (variant_wanted(dispatch) || found > 1 || result == taken_leave || orphan || broken) {
            if (threadIdx.x % 32 == 0)
                dispatch->quiet = 1;
            break;
        }
        if (dispatch->pending_count)
            complete_pending(&self);
        if (found || dispatch->pending_count ||
            (self.active_ns &&
             observe_cta(&dispatch->retired) != observe_cta(&dispatch->published)))
            self.active_ns = now;
        if (dispatch->settings.drain &&
            (made_way(&self, now) || (tail == self.head && drained(&self, now))))
            break;
    }
    close_ring(&self);
}

} // namespace attnd

#endif
