/*
 * control.cuh - commands that are no runs: about mailboxes, prepared runs and plans.
 *
 * Most are a word to write and are answered on the spot. Three may find runs in flight: a mailbox
 * that is let go, a run that is replaced, a plan that is held. They are kept in a list until those
 * have ended and do not hold up the commands behind them, which may be anybody's.
 *
 * A prepared run that arrives while others of its plan are in flight waits there too, because it
 * shares constants and counters with them: a lane's prepared runs are one block of scratch. Later
 * commands about the same plan find it in the list. A PUBLISH gives it the new lengths, a HOLD is
 * answered after it, and a command that replaces it or closes its mailbox removes it.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_CONTROL_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_CONTROL_CUH

#include "persistent/cuda/dispatch/doorbells.cuh"
#include "persistent/cuda/dispatch/resolve.cuh"

namespace attnd
{

/* The state of the warp that takes commands. The same in all lanes. */
struct Commander {
    Dispatch *dispatch;
    Resident *resident;
    const attnd_command *ring;
    uint32_t entries, head;
    uint32_t submitted_runs; /* runs published from the ring: their slots take turns */
    uint32_t pending_next;   /* where the list is looked at next */
    uint32_t used;           /* variants, as far as this warp noted them in the global word */
    uint64_t begun_ns;       /* when these kernels began */
    uint64_t active_ns; /* when there last was a command, or one's run in flight; 0: none came */
    uint32_t trace;     /* as it was last sent to the workers */
    bool crowded;       /* half a ring of commands waits */
};

enum Taken { taken, taken_later, taken_leave };

/* Kernels of variants that were used come back after a change of kernels. */
__device__ __forceinline__ void mark_used(Commander *self, uint32_t variant)
{
    const uint32_t bit = 1u << variant;
    if (!(self->used & bit) && threadIdx.x % 32 == 0)
        set_bits(&self->resident->used, bit); /* so does mark_prepared(), beside this */
    self->used |= bit;
}

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
        if (!observe_cta(&position.active) || position.doorbell == ATTND_NONE)
            continue;
        found |= (mailbox != ATTND_NONE && position.doorbell / ATTND_LANES_MAX == mailbox) ||
                 (plan != ATTND_NONE && position.plan == plan) ||
                 (run != ATTND_NONE && position.run == run);
    }
    return __any_sync(0xffffffffu, found);
}

__device__ __forceinline__ PlanVersion plan_version(const attnd_command &command)
{
    return {command.set_version, command.advance_version};
}

__device__ __forceinline__ RunSource run_source(const attnd_command &command)
{
    return {&command.body,     &command.k,    &command.v,
            command.page_size, command.pages, plan_version(command)};
}

__device__ __forceinline__ RunSource run_source(const PreparedSource &source)
{
    return {&source.body,     &source.k,    &source.v,
            source.page_size, source.pages, {source.set_version, source.advance_version}};
}

/* Where a prepared run's answer goes; NULL: its mailbox is not watched yet. */
__device__ __forceinline__ uint32_t *answer_of(const Dispatch *dispatch, const attnd_run &body)
{
    attnd_mailbox *mailbox =
        body.mailbox < ATTND_MAILBOXES_MAX ? dispatch->mailboxes[body.mailbox] : nullptr;
    return mailbox && body.lane < ATTND_LANES_MAX ? &mailbox->doorbell[body.lane] : nullptr;
}

/* Resolves a prepared run, of whose plan nothing is in flight; @resolved is what a doorbell finds.
 * Good or bad, that holds until the plan is set again. The whole warp. Return: its code. */
__device__ __forceinline__ uint32_t resolve_prepared(Commander *self, uint32_t index,
                                                     const RunSource &source, Prepared *resolved)
{
    ActiveRun *active = &self->dispatch->settings.runs[ring_positions + index];
    const attnd_run &body = *source.body;
    uint32_t *answer = answer_of(self->dispatch, body), code = 0;
    uint32_t session =
        peek_sys(&mailbox_slot(self->dispatch, body.mailbox % ATTND_MAILBOXES_MAX)->session);
    uint32_t variant = resolve_run(self->dispatch, active, source,
                                   look_up(self->dispatch->settings, source), answer, &code);
    if (threadIdx.x % 32 == 0)
        active->set_version = source.version.set;
    *resolved = {plan_key(body.plan_offset_bytes),
                 body.items,
                 uint8_t(body.mailbox),
                 uint8_t(body.lane),
                 uint8_t(prepared_there | (answer && session == body.session ? prepared_owned : 0) |
                         (code ? prepared_bad : 0)),
                 uint8_t(body.code ? body.code : code),
                 uint8_t(variant),
                 uint8_t(body.generation),
                 uint16_t(body.serial)};
    if (!code)
        mark_used(self, variant);
    return code;
}

/* Shows @value to the doorbells, and keeps it for the next launch. */
__device__ __forceinline__ void put_prepared(Commander *self, uint32_t index, const Prepared &value)
{
    dispatch_lock(self->dispatch);
    if (threadIdx.x % 32 == 0) {
        self->dispatch->prepared[index] = value;
        self->resident->prepared[index] = value;
        if (index >= self->resident->prepared_end)
            self->resident->prepared_end = index + 1;
    }
    fence_gpu(); /* the resolved run before it: the warp that publishes it releases it */
    dispatch_unlock(self->dispatch);
}

/* Doorbells of the plan's prepared runs wait (@changing 1), or are looked at again (0). Return:
 * whether a HOLD of the plan waits for its PUBLISH. The whole warp. */
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

/* ---- the list ---- */

/* Does a prepared run of the plan wait to be resolved? The whole warp. */
__device__ __forceinline__ bool prepared_waits(const Dispatch *dispatch, uint32_t key)
{
    bool found = false;
    for (uint32_t i = threadIdx.x % 32; i < dispatch->pending_count; i += 32) {
        const Pending &pending = dispatch->pending[i];
        found |= pending.kind == ATTND_COMMAND_PREPARED && pending.plan == key;
    }
    return __any_sync(0xffffffffu, found);
}

/* Everything that waits of slot @run of the run table, or for mailbox @mailbox, is not to be
 * resolved any more; it is answered all the same. ATTND_NONE: not asked. The whole warp. Return:
 * the plan of such a run, of which a slot has at most one; ATTND_NONE: nothing waited. */
__device__ __forceinline__ uint32_t forget_prepared(Dispatch *dispatch, uint32_t run,
                                                    uint32_t mailbox)
{
    uint32_t plan = ATTND_NONE;
    for (uint32_t i = threadIdx.x % 32; i < dispatch->pending_count; i += 32) {
        Pending *pending = &dispatch->pending[i];
        if (pending->kind != ATTND_COMMAND_PREPARED || pending->plan == ATTND_NONE)
            continue;
        const uint32_t slot = ring_positions + pending->run - dispatch->transient;
        if (pending->run == run || dispatch->settings.runs[slot].source.body.mailbox == mailbox) {
            plan = pending->plan;
            pending->plan = ATTND_NONE;
        }
    }
    __syncwarp();
    return __reduce_min_sync(0xffffffffu, plan);
}

__device__ __forceinline__ void add_pending(Dispatch *dispatch, const Pending &pending)
{
    if (threadIdx.x % 32 == 0)
        dispatch->pending[dispatch->pending_count++] = pending;
    __syncwarp();
}

/* @plan: ATTND_NONE: not asked. */
__device__ __forceinline__ Pending pending_of(const Dispatch *dispatch,
                                              const attnd_command &command, uint32_t plan)
{
    return {
        command.kind, command.run, command.tag, plan, observe_cta(&dispatch->doorbell_rounds), 0};
}

__device__ __forceinline__ bool pending_waits(const Dispatch *dispatch, const Pending &pending)
{
    const bool mailbox = pending.kind == ATTND_COMMAND_MAILBOX;
    /* The other warp may look at the mailbox until it has begun a new round twice. */
    if (mailbox && observe_cta(&dispatch->doorbell_rounds) - pending.round < 2)
        return true;
    /* The daemon writes to the plan when its HOLD is answered, and resolving reads it. */
    if (pending.kind == ATTND_COMMAND_HOLD && prepared_waits(dispatch, pending.plan))
        return true;
    return in_flight(dispatch, mailbox ? pending.run : ATTND_NONE, pending.plan,
                     pending.kind == ATTND_COMMAND_PREPARED ? pending.run : ATTND_NONE);
}

/* A prepared run of whose plan nothing is in flight any more; it is in the list no longer.
 * @missing: 1 + a variant that it wants and that is not resident; else 0. Return: the code of its
 * answer. */
__device__ __forceinline__ int32_t complete_prepared(Commander *self, const Pending &pending,
                                                     uint32_t *missing)
{
    Dispatch *dispatch = self->dispatch;
    const uint32_t index = pending.run - dispatch->transient;
    const PreparedSource &source = dispatch->settings.runs[ring_positions + index].source;
    const bool more = prepared_waits(dispatch, pending.plan);
    Prepared value;
    const uint32_t code = resolve_prepared(self, index, run_source(source), &value);
    value.state |= uint8_t((pending.held ? prepared_held : 0) | (more ? prepared_changing : 0));
    put_prepared(self, index, value);
    plan_changing(self, pending.plan, more);
    const bool there = code || dispatch->settings.resident >> value.variant & 1;
    *missing = there ? 0 : value.variant + 1u;
    return source.body.code ? 0 : -int32_t(code); /* the daemon knows its own */
}

/* Answers those of the list whose runs have ended. A few at a time: each is a look at all runs in
 * flight, and commands wait meanwhile. */
__device__ __forceinline__ void complete_pending(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    for (uint32_t looks = 4; looks && dispatch->pending_count; looks--) {
        if (self->pending_next >= dispatch->pending_count)
            self->pending_next = 0;
        const Pending pending = dispatch->pending[self->pending_next];
        if (pending_waits(dispatch, pending)) {
            self->pending_next++;
            continue;
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            dispatch->pending[self->pending_next] = dispatch->pending[--dispatch->pending_count];
        __syncwarp();
        if (pending.kind == ATTND_COMMAND_MAILBOX && threadIdx.x % 32 == 0)
            carry_sum(dispatch, self->resident, pending.run); /* the slot may be another's next */
        int32_t code = 0;
        uint32_t missing = 0;
        if (pending.kind == ATTND_COMMAND_PREPARED && pending.plan != ATTND_NONE)
            code = complete_prepared(self, pending, &missing);
        if (missing && threadIdx.x % 32 == 0) /* as a doorbell that rang it would */
            publish_cta(&dispatch->wanted, missing);
        attnd_command command;
        command.kind = pending.kind;
        command.run = pending.run;
        command.tag = pending.tag;
        answer_command(dispatch, command, code);
    }
}

/* ---- the commands ---- */

/* Keeps what the PREPARED in hand says of run @index, for when it is resolved. */
__device__ __forceinline__ void keep_source(Dispatch *dispatch, uint32_t index)
{
    const attnd_command &command = dispatch->command;
    const uint32_t lane = threadIdx.x % 32;
    PreparedSource *source = &dispatch->settings.runs[ring_positions + index].source;
    if (lane < sizeof(attnd_run) / 16)
        reinterpret_cast<uint4 *>(&source->body)[lane] =
            reinterpret_cast<const uint4 *>(&command.body)[lane];
    if (lane == 0) {
        source->k = command.k;
        source->v = command.v;
        source->page_size = command.page_size;
        source->pages = command.pages;
        source->set_version = command.set_version;
        source->advance_version = command.advance_version;
    }
    __syncwarp();
}

/* The PREPARED in hand replaces run @index: nothing is to find the old one. @key: of the new one's
 * plan. */
__device__ __forceinline__ void forget_replaced(Commander *self, uint32_t index, uint32_t key)
{
    Dispatch *dispatch = self->dispatch;
    const attnd_command &command = dispatch->command;
    const uint32_t forgotten = forget_prepared(dispatch, command.run, ATTND_NONE);
    /* The others of its plan have waited for it, and for nothing else. */
    if (forgotten != ATTND_NONE && forgotten != key && !prepared_waits(dispatch, forgotten))
        plan_changing(self, forgotten, 0);
    if (!command.body.kind || dispatch->prepared[index].plan != key)
        put_prepared(self, index, Prepared{});
}

/* PREPARED: no doorbell begins a run of the plan until the new body is there. */
__device__ __forceinline__ Taken take_prepared(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    const attnd_command &command = dispatch->command;
    const uint32_t index = command.run - dispatch->transient;
    if (command.run < dispatch->transient || index >= dispatch->prepared_count) {
        answer_taken(self, -ATTND_E_UNKNOWN);
        return taken;
    }
    const uint32_t key = plan_key(command.body.plan_offset_bytes);
    forget_replaced(self, index, key);
    if (!command.body.kind) {
        add_pending(dispatch, pending_of(dispatch, command, ATTND_NONE));
        return taken;
    }
    keep_source(dispatch, index);
    Pending pending = pending_of(dispatch, command, key);
    pending.held = plan_changing(self, key, 1);
    if (pending_waits(dispatch, pending)) {
        add_pending(dispatch, pending);
        return taken;
    }
    /* At once: behind it may come the mailbox whose doorbell names it already. */
    uint32_t missing;
    const int32_t code = complete_prepared(self, pending, &missing);
    if (missing) { /* and again from the start, beside the right kernel */
        if (threadIdx.x % 32 == 0)
            publish_sys(&dispatch->settings.host->wanted, missing);
        return taken_leave;
    }
    answer_taken(self, code);
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
    for (uint32_t i = threadIdx.x % 32; i < dispatch->pending_count; i += 32)
        dispatch->pending[i].held |= dispatch->pending[i].plan == key;
    __syncwarp();
    add_pending(dispatch, pending_of(dispatch, dispatch->command, key));
}

/* Does a prepared run of the plan have to be resolved anew, because the plan was set? One that was
 * bad is not tried again for an advance, beside which runs are in flight. */
__device__ __forceinline__ bool stale(const Dispatch *dispatch, uint32_t key, uint32_t index,
                                      uint64_t set_version)
{
    if (index >= dispatch->prepared_count)
        return false;
    const Prepared &prepared = dispatch->prepared[index];
    return prepared.state && prepared.plan == key &&
           dispatch->settings.runs[ring_positions + index].set_version != set_version;
}

/* Prepared runs of the plan that wait to be resolved take what the PUBLISH in hand says, which was
 * sent after them. The whole warp. */
__device__ __forceinline__ void publish_to_waiting(Dispatch *dispatch, uint32_t key)
{
    const attnd_command &command = dispatch->command;
    for (uint32_t i = threadIdx.x % 32; i < dispatch->pending_count; i += 32) {
        Pending *pending = &dispatch->pending[i];
        if (pending->kind != ATTND_COMMAND_PREPARED || pending->plan != key)
            continue;
        const uint32_t slot = ring_positions + pending->run - dispatch->transient;
        PreparedSource *source = &dispatch->settings.runs[slot].source;
        source->body.items = command.body.items;
        source->body.generation = command.body.generation;
        source->set_version = command.set_version;
        source->advance_version = command.advance_version;
        pending->held = 0;
    }
    __syncwarp();
}

/* PUBLISH: the plan's new version is mirrored, then all its prepared runs change to it. After an
 * advance they keep their constants, which runs in flight read; after a set, when none is in
 * flight, they are resolved anew. */
__device__ __forceinline__ Taken take_publish(Commander *self)
{
    Dispatch *dispatch = self->dispatch;
    Resident *resident = self->resident;
    const attnd_command &command = dispatch->command;
    const uint32_t key = plan_key(command.body.plan_offset_bytes);
    const uint32_t lane = threadIdx.x % 32, count = dispatch->prepared_count;
    bool any = false;
    for (uint32_t i = lane; i < count; i += 32)
        any |= stale(dispatch, key, i, command.set_version);
    any = __any_sync(0xffffffffu, any);
    if (any) { /* the daemon has held the plan; if it ever did not, nothing must run all the same */
        plan_changing(self, key, 1);
        if (in_flight(dispatch, ATTND_NONE, key, ATTND_NONE))
            return taken_later;
    }
    mirror_plan(dispatch, command.body.plan_offset_bytes, plan_version(command),
                command.body.generation, command.page_size);
    for (uint32_t base = 0; any && base < count; base += 32) {
        const bool mine = stale(dispatch, key, base + lane, command.set_version);
        for (uint32_t left = __ballot_sync(0xffffffffu, mine); left; left &= left - 1) {
            const uint32_t index = base + __ffs(left) - 1;
            ActiveRun *active = &dispatch->settings.runs[ring_positions + index];
            RunSource source = run_source(active->source);
            source.version = plan_version(command);
            Prepared value;
            resolve_prepared(self, index, source, &value);
            value.state |= prepared_held; /* until all are */
            put_prepared(self, index, value);
        }
    }
    publish_to_waiting(dispatch, key);
    const uint32_t over =
        prepared_waits(dispatch, key) ? prepared_held : prepared_held | prepared_changing;
    dispatch_lock(dispatch);
    for (uint32_t i = lane; i < count; i += 32)
        if (dispatch->prepared[i].state && dispatch->prepared[i].plan == key) {
            dispatch->prepared[i].items = command.body.items;
            dispatch->prepared[i].generation = uint8_t(command.body.generation);
            dispatch->prepared[i].state &= uint8_t(~over);
            resident->prepared[i] = dispatch->prepared[i];
        }
    fence_gpu(); /* the mirrored plan */
    dispatch_unlock(dispatch);
    answer_taken(self, 0);
    return taken;
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
    const attnd_mailbox_slot *slot = mailbox_slot(dispatch, command.run);
    uint32_t memory = peek_sys(&slot->memory);
    if (dispatch->mailboxes[command.run] || memory == ATTND_NONE) {
        (void)forget_prepared(dispatch, ATTND_NONE, command.run); /* no run of its plans is left */
        unwatch_mailbox(dispatch, resident, command.run);
    }
    if (memory == ATTND_NONE) {
        add_pending(dispatch, pending_of(dispatch, command, ATTND_NONE));
        return;
    }
    const uint64_t offset_bytes = peek8_sys(&slot->offset_bytes);
    const Memory &lies_in = memory_at(dispatch->settings, memory);
    bool bad = false;
    attnd_mailbox *mailbox =
        reinterpret_cast<attnd_mailbox *>(resolve(lies_in, memory, offset_bytes, &bad));
    if (bad || lies_in.size_bytes - offset_bytes < sizeof(*mailbox)) {
        answer_taken(self, -ATTND_E_UNKNOWN);
        return;
    }
    if (lies_in.host) { /* items are counted in doorbells at device scope */
        answer_taken(self, -ATTND_E_UNSUPPORTED);
        return;
    }
    const uint64_t lost = adopt_mailbox(mailbox, peek_sys(&slot->fresh) != 0);
    watch_mailbox(dispatch, resident, command.run, mailbox, peek_sys(&slot->session));
    if (threadIdx.x % 32 == 0)
        count_lost(resident, command.run, lost);
    answer_taken(self, 0);
}

} // namespace attnd

#endif
