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

namespace attnd
{

constexpr uint64_t heartbeat_stale_ns = 2000000000ull;

/* What the warp that takes commands knows. The same in all lanes. */
struct Commander {
    Dispatch *dispatch;
    Resident *resident;
    const attnd_command *ring;
    uint32_t entries, head, told; /* told: the head the daemon knows */
    uint32_t ring_runs;           /* runs published from the ring: their slots take turns */
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
        bool waits = mailbox && !dispatch->closing &&
                     observe_cta(&dispatch->bell_rounds) - pending.round < 2;
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
    mirror_plan(resident, command.body.plan_offset_bytes, command.set_version,
                command.advance_version);
    const uint32_t slot = self->ring_runs % ring_positions;
    const RunSource source = {&command.body, command.k, command.v, command.page_size,
                              command.pages};
    uint32_t code;
    uint32_t variant =
        resolve_run(resident, &dispatch->build, &resident->runs[slot], source, nullptr, &code);
    if (code || !command.body.items) {
        answer_command(dispatch, command, -int32_t(code));
        return taken;
    }
    if (threadIdx.x % 32 == 0)
        resident->used |= 1u << variant;
    if (!(resident->resident >> variant & 1)) {
        /* The command stays where it is, for the kernels that come instead of these. */
        if (threadIdx.x % 32 == 0)
            publish_sys(&resident->host->wanted, variant + 1);
        return taken_leave;
    }
    const Entry entry = {0, slot, command.body.items, uint16_t(variant),
                         uint16_t(command.body.generation)};
    const Position position = {
        clock_ns(), command.run, command.tag, command.body.items, ATTND_NONE, ATTND_NONE, 1};
    while (!publish_run(dispatch, resident, entry, position))
        ; /* a doorbell was first: the watching warp makes room as runs end */
    self->ring_runs++;
    return taken;
}

/* Where a prepared run's answer goes; NULL: its mailbox is not watched, and no doorbell of another
 * can name it. */
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
    ActiveRun *active = &resident->runs[ring_positions + index];
    const attnd_run &body = *source.body;
    uint32_t *answer = answer_of(self->dispatch, body), code = 0;
    uint32_t session =
        load_host4(&mailbox_slot(resident, body.mailbox % ATTND_MAILBOXES_MAX)->session);
    uint32_t variant = resolve_run(resident, &self->dispatch->build, active, source, answer, &code);
    *settled = {plan_key(body.plan_offset_bytes),
                body.items,
                uint8_t(body.mailbox),
                uint8_t(body.lane),
                uint8_t(prepared_there | (answer && session == body.session ? prepared_owned : 0) |
                        (code ? prepared_bad : 0)),
                uint8_t(code ? code : body.code),
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

/* PREPARED: first no doorbell finds the old body, then it ends, then the new one is there. */
__device__ __forceinline__ Taken take_prepared(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    const attnd_command &command = dispatch->command;
    const uint32_t index = command.run - dispatch->transient;
    if (command.run < dispatch->transient || index >= dispatch->prepared_count) {
        answer_command(dispatch, command, -ATTND_E_UNKNOWN);
        return taken;
    }
    Prepared value = {};
    put_prepared(self, index, value);
    if (!command.body.kind) {
        add_pending(dispatch, command, ATTND_NONE);
        return taken;
    }
    if (in_flight(dispatch, ATTND_NONE, ATTND_NONE, command.run))
        return taken_later; /* its constants are in use, for one run's time */
    mirror_plan(self->resident, command.body.plan_offset_bytes, command.set_version,
                command.advance_version);
    ActiveRun *active = &self->resident->runs[ring_positions + index];
    const uint32_t lane = threadIdx.x % 32;
    if (lane < sizeof(attnd_run) / 16) /* for when the plan is set anew */
        reinterpret_cast<uint4 *>(&active->body)[lane] =
            reinterpret_cast<const uint4 *>(&command.body)[lane];
    const RunSource source = {&command.body, command.k, command.v, command.page_size,
                              command.pages};
    uint32_t code = settle_prepared(self, index, source, &value);
    if (!code && !(self->resident->resident >> value.variant & 1)) {
        if (lane == 0)
            publish_sys(&self->resident->host->wanted, value.variant + 1u);
        return taken_leave; /* and again from the start, beside the right kernel */
    }
    put_prepared(self, index, value);
    answer_command(dispatch, command, -int32_t(code));
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
    mirror_plan(resident, command.body.plan_offset_bytes, command.set_version,
                command.advance_version);
    for (uint32_t base = 0; base < count; base += 32) {
        const uint32_t mine = base + lane;
        bool concerned =
            mine < count && dispatch->prepared[mine].state && dispatch->prepared[mine].plan == key;
        const ActiveRun *run = &resident->runs[ring_positions + mine];
        bool stale = concerned && ((dispatch->prepared[mine].state & prepared_bad) ||
                                   run->plan.set_version != command.set_version);
        for (uint32_t left = __ballot_sync(0xffffffffu, stale); left; left &= left - 1) {
            const uint32_t index = base + __ffs(left) - 1;
            ActiveRun *active = &resident->runs[ring_positions + index];
            const RunSource source = {&active->body, active->k_plane, active->v_plane,
                                      active->page_size, active->pages};
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
    answer_command(dispatch, command, 0);
}

/* MAILBOX: watched from now on, or not any more. */
__device__ __forceinline__ void take_mailbox(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    Resident *resident = self->resident;
    const attnd_command &command = dispatch->command;
    if (command.run >= ATTND_MAILBOXES_MAX) {
        answer_command(dispatch, command, -ATTND_E_RANGE);
        return;
    }
    if (dispatch->mailboxes[command.run])
        unwatch_mailbox(dispatch, resident, command.run);
    const attnd_mailbox_slot *slot = mailbox_slot(resident, command.run);
    uint32_t memory = load_host4(&slot->memory);
    if (memory == ATTND_NONE) {
        add_pending(dispatch, command, ATTND_NONE);
        return;
    }
    const attnd_place place = {memory, 0, load_host8(&slot->offset_bytes)};
    bool bad = false;
    attnd_mailbox *mailbox = reinterpret_cast<attnd_mailbox *>(resolve(resident, place, &bad));
    if (bad || resident->memories[memory].size_bytes - place.offset_bytes < sizeof(*mailbox)) {
        answer_command(dispatch, command, -ATTND_E_UNKNOWN);
        return;
    }
    greet_mailbox(mailbox, load_host4(&slot->fresh) != 0);
    watch_mailbox(dispatch, resident, command.run, mailbox, resident->memories[memory].host);
    answer_command(dispatch, command, 0);
}

/* The command at the head of the ring: fetched in one trip, a vector a lane. */
__device__ __forceinline__ Taken take_command(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    const uint32_t lane = threadIdx.x % 32;
    const uint4 *from =
        reinterpret_cast<const uint4 *>(&self->ring[self->head & (self->entries - 1)]);
    static_assert(sizeof(attnd_command) % 16 == 0 && sizeof(attnd_command) <= 512, "one trip");
    if (lane < sizeof(attnd_command) / 16)
        reinterpret_cast<uint4 *>(&dispatch->command)[lane] = load_host(from + lane);
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
        answer_command(dispatch, dispatch->command, -ATTND_E_UNSUPPORTED);
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
        publish_sys(&self->resident->queue->command_head, self->head);
        publish_gpu(&self->resident->leave, 1);
        publish_cta(&self->dispatch->ended, 1);
    }
    __syncwarp();
}

/* The warp that takes commands. */
__device__ __forceinline__ void dispatch_commands(Dispatch *dispatch, Resident *resident)
{
    attnd_queue_head *queue = resident->queue;
    const char *base = reinterpret_cast<const char *>(queue);
    const uint32_t lane = threadIdx.x % 32;
    Commander self = {dispatch,
                      resident,
                      reinterpret_cast<const attnd_command *>(base + queue->commands_offset_bytes),
                      queue->ring_entries,
                      resident->commands_head,
                      resident->commands_head,
                      resident->ring_runs};
    const uint32_t *heart = reinterpret_cast<const uint32_t *>(&resident->host->heartbeat_ns);
    uint32_t beat = 0;
    uint64_t beat_seen = clock_ns();
    for (uint32_t pass = 0;; pass++) {
        Bells bells = look_at_host(dispatch, pass); /* in flight together with the words */
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
        bool rung = take_bells(dispatch, resident, bells);
        uint32_t wanted = observe_cta(&dispatch->wanted);
        if (wanted && lane == 0)
            publish_sys(&resident->host->wanted, wanted);
        if (wanted || __shfl_sync(0xffffffffu, word, 1) || now - beat_seen > heartbeat_stale_ns)
            break;
        if (dispatch->pending_count)
            settle_pending(&self);
        if (tail == self.head) {
            if (self.told != self.head && lane == 0)
                publish_sys(&queue->command_head, self.head);
            self.told = self.head;
            if (resident->drain && !rung && !bells_pending(dispatch))
                break;
            continue;
        }
        Taken result = take_command(&self);
        if (result == taken_leave)
            break;
        if (result == taken) {
            self.head++;
            if (lane == 0)
                publish_cta(&dispatch->commands_head, self.head);
        }
        if (self.head - self.told >= self.entries / 4) {
            if (lane == 0)
                publish_sys(&queue->command_head, self.head);
            self.told = self.head;
        }
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
    const uint32_t transient = resident->queue->runs_transient;
    const uint32_t prepared = min(resident->queue->runs - transient, prepared_max);
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
