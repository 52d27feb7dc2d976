/*
 * dispatch.cuh - the dispatcher's CTA, four warps, and the one of them that takes commands.
 *
 *   commands  the only one that looks at host memory all the time: command ring, park, heartbeat,
 *             mailboxes that lie there
 *   retires   finished runs to the retire ring, of which it is the only writer (retire.cuh)
 *   bells     mailboxes in device memory (bells.cuh)
 *   chores    what nobody waits for: positions made ready, cancelled runs, sums (retire.cuh)
 *
 * A command is fetched in one trip across the bus and carries all that its run needs; another trip
 * is made only for plans that changed. Commands that are answered when runs have ended (HOLD, the
 * end of a mailbox) are kept in a list and do not hold up those behind them.
 *
 * Parking: `closing` first, under the lock, so that nothing is published after it; then the word
 * that workers look at. What was published is executed and answered; commands that were not taken
 * stay in their ring, doorbells in their mailbox.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_CUH

#include "persistent/cuda/bells.cuh"
#include "persistent/cuda/resolve.cuh"
#include "persistent/cuda/retire.cuh"
#include "schemas/seal.h"

namespace attnd
{

constexpr uint64_t heartbeat_stale_ns = 2000000000ull;

/* What the warp that takes commands knows. The same in all lanes. */
struct Commander {
    Dispatch *dispatch;
    Resident *resident;
    const attnd_command *ring;
    uint32_t entries, head;
    uint32_t ring_runs; /* runs published from the ring: their slots take turns */
};

enum Taken { taken, taken_later, taken_leave };

__device__ __forceinline__ uint32_t plan_key(uint64_t offset_bytes)
{
    return uint32_t(offset_bytes / 64);
}

/* Answers a command. If there is no room the retiring warp makes some at once. */
__device__ __forceinline__ void answer_command(Dispatch *dispatch, const attnd_command &command,
                                               int32_t code)
{
    if (threadIdx.x % 32 == 0) {
        uint32_t tail = dispatch->direct_tail;
        while (tail - observe_cta(&dispatch->direct_head) == direct_max)
            ;
        dispatch->direct[tail % direct_max] = {command.kind, command.run, command.tag, code};
        publish_cta(&dispatch->direct_tail, tail + 1);
    }
    __syncwarp();
}

/* The slot of the command in hand is free. Before the command is answered, or the daemon may find
 * its ring full; no release: all that was read of the slot has been in use since. */
__device__ __forceinline__ void free_slot(const Commander *self)
{
    if (threadIdx.x % 32 == 0)
        store_relaxed_sys(&self->dispatch->settings.queue->command_head, self->head + 1);
}

/* Answers the command in hand. */
__device__ __forceinline__ void answer_taken(const Commander *self, int32_t code)
{
    free_slot(self);
    answer_command(self->dispatch, self->dispatch->command, code);
}

/* Is a run in flight that a mailbox (@mailbox), a plan's prepared runs (@plan) or a slot of the run
 * table (@run) has something to do with? ATTND_NONE: not asked. The whole warp. */
__device__ __forceinline__ bool in_flight(const Dispatch *dispatch, uint32_t mailbox, uint32_t plan,
                                          uint32_t run)
{
    bool found = false;
    for (uint32_t p = threadIdx.x % 32; p < ring_positions; p += 32) {
        const Position &position = dispatch->positions[p];
        if (!observe_cta(&position.active) || position.bell == ATTND_NONE)
            continue;
        found |= (mailbox != ATTND_NONE && position.bell / ATTND_LANES_MAX == mailbox) ||
                 (plan != ATTND_NONE && position.plan == plan) ||
                 (run != ATTND_NONE && position.run == run);
    }
    return __any_sync(0xffffffffu, found);
}

/* Answers those of the list whose runs have ended. */
__device__ __forceinline__ void settle_pending(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    for (uint32_t i = 0; i < dispatch->pending_count;) {
        const Pending pending = dispatch->pending[i];
        bool mailbox = pending.kind == ATTND_COMMAND_MAILBOX;
        /* The other warp may look at the mailbox until it has begun a new round twice. */
        bool waits = mailbox && observe_cta(&dispatch->bell_rounds) - pending.round < 2;
        waits =
            waits || in_flight(dispatch, mailbox ? pending.run : ATTND_NONE, pending.plan,
                               pending.kind == ATTND_COMMAND_PREPARED ? pending.run : ATTND_NONE);
        if (waits) {
            i++;
            continue;
        }
        attnd_command command;
        command.kind = pending.kind;
        command.run = pending.run;
        command.tag = pending.tag;
        answer_command(dispatch, command, 0);
        if (threadIdx.x % 32 == 0)
            dispatch->pending[i] = dispatch->pending[--dispatch->pending_count];
        __syncwarp();
    }
}

__device__ __forceinline__ void add_pending(Dispatch *dispatch, const attnd_command &command,
                                            uint32_t plan)
{
    if (threadIdx.x % 32 == 0)
        dispatch->pending[dispatch->pending_count++] = {command.kind, command.run, command.tag,
                                                        plan, observe_cta(&dispatch->bell_rounds)};
    __syncwarp();
}

/* RUN: resolved, and published as soon as there is room. */
__device__ __forceinline__ Taken take_run(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    Resident *resident = self->resident;
    const attnd_command &command = dispatch->command;
    const uint32_t at = observe_cta(&dispatch->published);
    /* Room for one more also says that the last run but ring_positions from this ring, whose slot
     * comes next, is behind every cursor. */
    if (at == observe_cta(&dispatch->ready))
        return taken_later;
    const uint32_t slot = self->ring_runs % ring_positions;
    const RunSource source = {&command.body,          command.k,     command.v,
                              command.page_size,      command.pages, command.set_version,
                              command.advance_version};
    uint32_t code;
    uint32_t variant =
        resolve_run(dispatch, &dispatch->settings.runs[slot], source, nullptr, &code);
    if (code || !command.body.items) {
        answer_taken(self, -int32_t(code));
        return taken;
    }
    if (threadIdx.x % 32 == 0)
        resident->used |= 1u << variant;
    if (!(dispatch->settings.resident >> variant & 1)) {
        /* The command stays where it is, for the kernels that come instead of these. */
        if (threadIdx.x % 32 == 0)
            publish_sys(&dispatch->settings.host->wanted, variant + 1);
        return taken_leave;
    }
    const Entry entry = {0, slot, command.body.items, uint16_t(variant),
                         uint16_t(command.body.generation)};
    const Position position = {
        clock_ns(), command.run, command.tag, command.body.items, ATTND_NONE, ATTND_NONE, 1};
    free_slot(self);
    while (!publish_run(dispatch, resident, entry, position))
        ; /* a doorbell was first: the watching warp makes room as runs end */
    self->ring_runs++;
    return taken;
}

/* Where a prepared run's answer goes; NULL: its mailbox is not watched yet. */
__device__ __forceinline__ uint32_t *answer_of(const Dispatch *dispatch, const attnd_run &body)
{
    attnd_mailbox *mailbox =
        body.mailbox < ATTND_MAILBOXES_MAX ? dispatch->mailboxes[body.mailbox] : nullptr;
    return mailbox && body.lane < ATTND_LANES_MAX ? &mailbox->answer[body.lane] : nullptr;
}

/* Resolves a prepared run, of which nothing is in flight, from the body in its slot, and says what
 * a doorbell finds. The whole warp. Return: its code. */
__device__ __forceinline__ uint32_t settle_prepared(Commander *self, uint32_t index,
                                                    const RunSource &source, Prepared *settled)
{
    Resident *resident = self->resident;
    ActiveRun *active = &self->dispatch->settings.runs[ring_positions + index];
    const attnd_run &body = *source.body;
    uint32_t *answer = answer_of(self->dispatch, body), code = 0;
    uint32_t session =
        load_host4(&mailbox_slot(self->dispatch, body.mailbox % ATTND_MAILBOXES_MAX)->session);
    uint32_t variant = resolve_run(self->dispatch, active, source, answer, &code);
    *settled = {plan_key(body.plan_offset_bytes),
                body.items,
                uint8_t(body.mailbox),
                uint8_t(body.lane),
                uint8_t(prepared_there | (answer && session == body.session ? prepared_owned : 0) |
                        (code ? prepared_bad : 0)),
                uint8_t(body.code ? body.code : code),
                uint8_t(variant),
                uint8_t(body.generation),
                {0, 0}};
    if (!code && threadIdx.x % 32 == 0)
        resident->used |= 1u << variant;
    return code;
}

/* Shows @value to the doorbells, and keeps it for the next launch. */
__device__ __forceinline__ void put_prepared(Commander *self, uint32_t index, const Prepared &value)
{
    dispatch_lock(self->dispatch);
    if (threadIdx.x % 32 == 0) {
        self->dispatch->prepared[index] = value;
        self->resident->prepared[index] = value;
    }
    fence_gpu(); /* the resolved run before it: whoever publishes it, releases it */
    dispatch_unlock(self->dispatch);
}

/* Doorbells of the plan's prepared runs wait (@changing 1), or are looked at again (0). Return:
 * whether a HOLD of the plan waits for its SHOW. The whole warp. */
__device__ __forceinline__ bool plan_changing(Commander *self, uint32_t key, uint32_t changing)
{
    Dispatch *dispatch = self->dispatch;
    bool held = false;
    dispatch_lock(dispatch);
    for (uint32_t i = threadIdx.x % 32; i < dispatch->prepared_count; i += 32) {
        Prepared *prepared = &dispatch->prepared[i];
        if (!prepared->state || prepared->plan != key)
            continue;
        held |= prepared->state & prepared_held;
        prepared->state &= uint8_t(~prepared_changing);
        prepared->state |= uint8_t(changing ? prepared_changing : 0);
        self->resident->prepared[i] = *prepared;
    }
    dispatch_unlock(dispatch);
    return __any_sync(0xffffffffu, held);
}

/* PREPARED: first no doorbell begins a run of the plan, then those in flight end, because a lane's
 * prepared runs share the counters that are made zero here; then the new body is there. */
__device__ __forceinline__ Taken take_prepared(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    const attnd_command &command = dispatch->command;
    const uint32_t index = command.run - dispatch->transient;
    if (command.run < dispatch->transient || index >= dispatch->prepared_count) {
        answer_taken(self, -ATTND_E_UNKNOWN);
        return taken;
    }
    Prepared value = {};
    const uint32_t key = plan_key(command.body.plan_offset_bytes);
    if (!command.body.kind || dispatch->prepared[index].plan != key)
        put_prepared(self, index, value);
    if (!command.body.kind) {
        add_pending(dispatch, command, ATTND_NONE);
        return taken;
    }
    const bool held = plan_changing(self, key, 1);
    if (in_flight(dispatch, ATTND_NONE, key, command.run))
        return taken_later; /* constants and counters are in use, for a run's time */
    ActiveRun *active = &self->dispatch->settings.runs[ring_positions + index];
    const uint32_t lane = threadIdx.x % 32;
    if (lane < sizeof(attnd_run) / 16) /* for when the plan is set anew, whatever comes of it now */
        reinterpret_cast<uint4 *>(&active->body)[lane] =
            reinterpret_cast<const uint4 *>(&command.body)[lane];
    if (lane == 0) {
        active->k_plane = command.k;
        active->v_plane = command.v;
        active->page_size = command.page_size;
        active->pages = command.pages;
    }
    __syncwarp();
    const RunSource source = {&command.body,          command.k,     command.v,
                              command.page_size,      command.pages, command.set_version,
                              command.advance_version};
    uint32_t code = settle_prepared(self, index, source, &value);
    if (!code && !(self->dispatch->settings.resident >> value.variant & 1)) {
        if (lane == 0)
            publish_sys(&self->dispatch->settings.host->wanted, value.variant + 1u);
        return taken_leave; /* and again from the start, beside the right kernel */
    }
    value.state |= uint8_t(held ? prepared_held : 0);
    put_prepared(self, index, value);
    plan_changing(self, key, 0);
    answer_taken(self, command.body.code ? 0 : -int32_t(code)); /* the daemon knows its own */
    return taken;
}

/* HOLD: all prepared runs of the plan, at once. */
__device__ __forceinline__ void take_hold(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    const uint32_t key = plan_key(dispatch->command.body.plan_offset_bytes);
    dispatch_lock(dispatch);
    for (uint32_t i = threadIdx.x % 32; i < dispatch->prepared_count; i += 32)
        if (dispatch->prepared[i].state && dispatch->prepared[i].plan == key) {
            dispatch->prepared[i].state |= prepared_held;
            self->resident->prepared[i] = dispatch->prepared[i];
        }
    dispatch_unlock(dispatch);
    add_pending(dispatch, dispatch->command, key);
}

/* SHOW: the plan's new face is mirrored, then all its prepared runs turn to it. After an advance
 * they keep their constants, which runs in flight read; after a set, when none is in flight, they
 * are resolved anew. */
__device__ __forceinline__ void take_show(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    Resident *resident = self->resident;
    const attnd_command &command = dispatch->command;
    const uint32_t key = plan_key(command.body.plan_offset_bytes);
    const uint32_t lane = threadIdx.x % 32, count = dispatch->prepared_count;
    mirror_plan(dispatch->settings, command.body.plan_offset_bytes, command.set_version,
                command.advance_version);
    for (uint32_t base = 0; base < count; base += 32) {
        const uint32_t mine = base + lane;
        bool concerned =
            mine < count && dispatch->prepared[mine].state && dispatch->prepared[mine].plan == key;
        const ActiveRun *run = &dispatch->settings.runs[ring_positions + mine];
        bool stale = concerned && ((dispatch->prepared[mine].state & prepared_bad) ||
                                   run->plan.set_version != command.set_version);
        for (uint32_t left = __ballot_sync(0xffffffffu, stale); left; left &= left - 1) {
            const uint32_t index = base + __ffs(left) - 1;
            ActiveRun *active = &dispatch->settings.runs[ring_positions + index];
            const RunSource source = {&active->body,          active->k_plane, active->v_plane,
                                      active->page_size,      active->pages,   command.set_version,
                                      command.advance_version};
            Prepared value;
            settle_prepared(self, index, source, &value);
            value.state |= prepared_held; /* until all are */
            put_prepared(self, index, value);
        }
    }
    dispatch_lock(dispatch);
    for (uint32_t i = lane; i < count; i += 32)
        if (dispatch->prepared[i].state && dispatch->prepared[i].plan == key) {
            dispatch->prepared[i].items = command.body.items;
            dispatch->prepared[i].generation = uint8_t(command.body.generation);
            dispatch->prepared[i].state &= uint8_t(~prepared_held);
            resident->prepared[i] = dispatch->prepared[i];
        }
    fence_gpu(); /* the mirrored plan */
    dispatch_unlock(dispatch);
    answer_taken(self, 0);
}

/* MAILBOX: watched from now on, or not any more. */
__device__ __forceinline__ void take_mailbox(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    Resident *resident = self->resident;
    const attnd_command &command = dispatch->command;
    if (command.run >= ATTND_MAILBOXES_MAX) {
        answer_taken(self, -ATTND_E_RANGE);
        return;
    }
    if (dispatch->mailboxes[command.run])
        unwatch_mailbox(dispatch, resident, command.run);
    const attnd_mailbox_slot *slot = mailbox_slot(dispatch, command.run);
    uint32_t memory = load_host4(&slot->memory);
    if (memory == ATTND_NONE) {
        add_pending(dispatch, command, ATTND_NONE);
        return;
    }
    const attnd_place place = {memory, 0, load_host8(&slot->offset_bytes)};
    bool bad = false;
    attnd_mailbox *mailbox =
        reinterpret_cast<attnd_mailbox *>(resolve(dispatch->settings, place, &bad));
    if (bad ||
        dispatch->settings.memories[memory].size_bytes - place.offset_bytes < sizeof(*mailbox)) {
        answer_taken(self, -ATTND_E_UNKNOWN);
        return;
    }
    greet_mailbox(mailbox, load_host4(&slot->fresh) != 0);
    watch_mailbox(dispatch, resident, command.run, mailbox,
                  dispatch->settings.memories[memory].host, load_host4(&slot->session));
    answer_taken(self, 0);
}

constexpr uint32_t command_vectors = sizeof(attnd_command) / 16;
static_assert(sizeof(attnd_command) % 16 == 0 && command_vectors <= 32, "a vector a lane");

/* The slot at the head of the ring, a vector a lane; in flight when this returns. */
__device__ __forceinline__ uint4 look_at_ring(const Commander *self)
{
    const uint32_t lane = threadIdx.x % 32;
    const attnd_command *slot = &self->ring[self->head & (self->entries - 1)];
    uint4 part = {};
    if (lane < command_vectors)
        part = load_host(reinterpret_cast<const uint4 *>(slot) + lane);
    return part;
}

/* Is what was looked at a whole command, and the one at the head? The whole warp. */
__device__ __forceinline__ bool sealed(const Commander *self, const uint4 &part)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t first = uint64_t(part.y) << 32 | part.x,
                   second = uint64_t(part.w) << 32 | part.z;
    uint64_t sum = 0;
    if (lane < command_vectors)
        sum = attnd_seal_word(first, 2 * lane, self->head);
    if (lane < command_vectors - 1)
        sum += attnd_seal_word(second, 2 * lane + 1, self->head);
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum == __shfl_sync(0xffffffffu, second, command_vectors - 1);
}

/* The command at the head of the ring, of which the tail says that it is there. @part: the slot as
 * it was looked at together with the tail; good if it is sealed, else it is fetched again. */
__device__ __forceinline__ Taken take_command(Commander *self, uint4 part)
{
    Dispatch *dispatch = self->dispatch;
    const uint32_t lane = threadIdx.x % 32;
    if (!sealed(self, part))
        part = look_at_ring(self);
    if (lane < command_vectors)
        reinterpret_cast<uint4 *>(&dispatch->command)[lane] = part;
    __syncwarp();
    if (dispatch->pending_count == pending_max)
        return taken_later;
    switch (dispatch->command.kind) {
    case ATTND_COMMAND_RUN:
        return take_run(self);
    case ATTND_COMMAND_PREPARED:
        return take_prepared(self);
    case ATTND_COMMAND_HOLD:
        take_hold(self);
        return taken;
    case ATTND_COMMAND_SHOW:
        take_show(self);
        return taken;
    case ATTND_COMMAND_MAILBOX:
        take_mailbox(self);
        return taken;
    default:
        answer_taken(self, -ATTND_E_UNSUPPORTED);
        return taken;
    }
}

/* Nothing is published after this; the workers leave when they have done what was. */
__device__ __forceinline__ void close_ring(Commander *self)
{
    dispatch_lock(self->dispatch);
    if (threadIdx.x % 32 == 0)
        publish_cta(&self->dispatch->closing, 1);
    dispatch_unlock(self->dispatch);
    while (self->dispatch->pending_count) /* runs end by themselves */
        settle_pending(self);
    if (threadIdx.x % 32 == 0) {
        self->resident->ring_runs = self->ring_runs;
        publish_cta(&self->dispatch->commands_head, self->head);
        publish_sys(&self->dispatch->settings.queue->command_head, self->head);
        publish_gpu(&self->resident->leave, 1);
        publish_cta(&self->dispatch->ended, 1);
    }
    __syncwarp();
}

/* The warp that takes commands. */
__device__ __forceinline__ void dispatch_commands(Dispatch *dispatch, Resident *resident)
{
    attnd_queue_head *queue = dispatch->settings.queue;
    const char *base = reinterpret_cast<const char *>(queue);
    const uint32_t lane = threadIdx.x % 32;
    Commander self = {dispatch,
                      resident,
                      reinterpret_cast<const attnd_command *>(base + queue->commands_offset_bytes),
                      queue->ring_entries,
                      resident->commands_head,
                      resident->ring_runs};
    const uint32_t *heart =
        reinterpret_cast<const uint32_t *>(&dispatch->settings.host->heartbeat_ns);
    uint32_t beat = 0;
    uint64_t beat_seen = clock_ns();
    for (uint32_t pass = 0;; pass++) {
        /* In flight together with the words: */
        const uint4 part = look_at_ring(&self);
        const Bells bells = look_at_host(dispatch, pass);
        /* One trip across the bus for all words: A1 on the tail, park, the beat's low half. */
        uint32_t word = observe_sys(lane == 2   ? heart
                                    : lane == 1 ? &queue->park
                                                : &queue->command_tail);
        uint32_t tail = __shfl_sync(0xffffffffu, word, 0);
        uint32_t now_beat = __shfl_sync(0xffffffffu, word, 2);
        uint64_t now = clock_ns();
        if (now_beat != beat) {
            beat = now_beat;
            beat_seen = now;
        }
        const bool bell = rung(bells);
        if (bell)
            take_bells(dispatch, resident, look_at_mailbox<true>(dispatch, bells.index));
        uint32_t wanted = observe_cta(&dispatch->wanted);
        if (wanted && lane == 0)
            publish_sys(&dispatch->settings.host->wanted, wanted);
        if (wanted || __shfl_sync(0xffffffffu, word, 1) || now - beat_seen > heartbeat_stale_ns)
            break;
        if (tail - self.head > self.entries) { /* no ring of ours; health.cu ends the worker */
            resident->error = ATTND_E_PROTOCOL;
            break;
        }
        if (dispatch->pending_count)
            settle_pending(&self);
        if (tail == self.head) {
            if (dispatch->settings.drain && !bell && !bells_pending(dispatch))
                break;
            continue;
        }
        Taken result = take_command(&self, part);
        if (result == taken_leave)
            break;
        if (result != taken)
            continue;
        free_slot(&self); /* also of one whose answer comes later */
        self.head++;
        if (lane == 0)
            publish_cta(&dispatch->commands_head, self.head);
    }
    close_ring(&self);
}

/* Before the warps part: what was kept since the last launch, and an empty ring. */
__device__ __forceinline__ void dispatch_begin(Dispatch *dispatch, Resident *resident)
{
    uint32_t *words = reinterpret_cast<uint32_t *>(dispatch);
    for (uint32_t i = threadIdx.x; i < sizeof(Dispatch) / 4; i += blockDim.x)
        words[i] = 0;
    uint4 *live = reinterpret_cast<uint4 *>(resident->live);
    for (uint32_t i = threadIdx.x; i < sizeof(resident->live) / 16; i += blockDim.x)
        live[i] = make_uint4(0, 0, 0, 0);
    fence_gpu();
    __syncthreads();
    if (threadIdx.x == 0) {
        dispatch->settings = *resident;
        dispatch->mailboxes_offset = resident->queue->mailboxes_offset;
    }
    __syncthreads();
    const uint32_t transient = dispatch->settings.queue->runs_transient;
    const uint32_t prepared = min(dispatch->settings.queue->runs - transient, prepared_max);
    if (threadIdx.x == 0) {
        dispatch->published = dispatch->retired = resident->published;
        dispatch->ready = resident->published + ring_positions;
        dispatch->commands_head = resident->commands_head;
        dispatch->transient = transient;
        dispatch->prepared_count = prepared;
    }
    uint32_t used = 0;
    for (uint32_t i = threadIdx.x; i < prepared; i += blockDim.x) {
        dispatch->prepared[i] = resident->prepared[i];
        if (dispatch->prepared[i].state && !(dispatch->prepared[i].state & prepared_bad))
            used |= 1u << dispatch->prepared[i].variant;
    }
    if (used)
        atomicOr(&resident->used, used);
    for (uint32_t m = threadIdx.x; m < ATTND_MAILBOXES_MAX; m += blockDim.x)
        if (resident->mailboxes[m])
            list_mailbox(dispatch, resident, m, resident->mailboxes[m], resident->mailbox_host[m]);
    __syncthreads();
}

} // namespace attnd

#endif
