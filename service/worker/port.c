/*
 * port.c - how a backend gets commands, gives retires, and sleeps in between.
 *
 * One thread of the backend at a time waits for commands. It sleeps on the futex at command_tail,
 * which the daemon wakes when it has published a command. Others of the worker wake it too (kick),
 * without a command and so without a change of that word; a wake-up sent between its last look and
 * its sleep would be lost. So a kick leaves a mark, and repeats the wake-up for as long as the
 * waiter says that it is asleep and was not reached. The daemon parks by a word of its own and
 * repeats its wake-up likewise.
 *
 * A run slot comes back with a new command after its retire, and what the threads wrote into their
 * own record of it is ordered by the daemon's two ring words in between. A race detector does not
 * see through another process; the count of retires is that same edge inside this one.
 */
#include "service/worker/port.h"

#include "schemas/atomics.h"
#include "schemas/futex.h"

#include <sched.h>

void attnd_worker_port_acquire(const struct attnd_worker_port *self)
{
    (void)attnd_observe32(&self->retired); /* A1 */
}

static int next(void *context, struct attnd_command *command)
{
    struct attnd_worker_port *self = context;
    if (attnd_consumer_pop(&self->commands, command) <= 0)
        return 0;
    attnd_worker_port_acquire(self);
    return 1;
}

/* Something other than a command that a wait returns for. */
static int disturbed(struct attnd_worker_port *self)
{
    uint32_t park = attnd_observe32(&self->head->park);
    if (park != self->park_seen) {
        self->park_seen = park;
        return 1;
    }
    return attnd_observe32(&self->kicked) && attnd_swap32(&self->kicked, 0);
}

static void wait(void *context, uint64_t timeout_ns)
{
    struct attnd_worker_port *self = context;
    struct attnd_queue_head *head = self->head;
    uint32_t seen = self->commands.index;
    uint64_t spin_ns = timeout_ns < self->spin_ns ? timeout_ns : self->spin_ns;

    if (disturbed(self) || attnd_wake_spin(&head->command_tail, seen, spin_ns))
        return;
    const struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                                     .tv_nsec = (long)(timeout_ns % 1000000000u)};
    attnd_poke32(&self->asleep, 1);
    attnd_wake_announce(&head->command_need); /* F1, for the daemon and for kick() */
    if (attnd_observe32(&head->command_tail) == seen && !disturbed(self))
        (void)attnd_futex_wait(&head->command_tail, seen,
                               timeout_ns == UINT64_MAX ? NULL : &timeout);
    attnd_wake_withdraw(&head->command_need);
    attnd_publish32(&self->asleep, 0);
    (void)disturbed(self); /* returning is all that it asked for */
}

static void kick(void *context)
{
    struct attnd_worker_port *self = context;
    attnd_publish32(&self->kicked, 1);
    attnd_fence_full(); /* F2 */
    while (attnd_observe32(&self->asleep) && attnd_observe32(&self->kicked) &&
           attnd_futex_wake(&self->head->command_tail, 1) <= 0)
        (void)sched_yield();
}

static void knock(void *context)
{
    const struct attnd_worker_port *self = context;
    (void)attnd_doorbell_ring(&self->daemon);
}

static void retire(void *context, const struct attnd_retire *slot)
{
    struct attnd_worker_port *self = context;
    attnd_publish32(&self->retired, attnd_peek32(&self->retired) + 1); /* R1 */
    /* As many slots as commands in flight: full only if the daemon hands out one twice. */
    while (attnd_producer_push(&self->retires, slot) == -ATTND_E_FULL)
        (void)sched_yield();
}

void attnd_worker_port_init(struct attnd_worker_port *self, struct attnd_queue_head *head,
                            int retire_fd)
{
    char *base = (char *)head;
    *self = (struct attnd_worker_port){
        .port = {.context = self,
                 .next = next,
                 .wait = wait,
                 .kick = kick,
                 .knock = knock,
                 .retire = retire},
        .head = head,
        .daemon = {.word = &head->retire_tail, .need = &head->retire_need, .fd = retire_fd},
        .spin_ns = attnd_spin_budget_ns(),
    };
    attnd_consumer_init(&self->commands, base + head->commands_offset_bytes, &head->command_tail,
                        &head->command_head, head->ring_entries);
    self->commands.slot_bytes = sizeof(struct attnd_command);
    attnd_producer_init(&self->retires, base + head->retires_offset_bytes, &head->retire_tail,
                        &head->retire_head, head->ring_entries);
}

static int lies_in(uint64_t offset_bytes, uint64_t count, uint64_t element_bytes, uint64_t bytes)
{
    return offset_bytes >= sizeof(struct attnd_queue_head) && offset_bytes <= bytes &&
           count <= (bytes - offset_bytes) / element_bytes;
}

int attnd_worker_port_check(const struct attnd_queue_head *head, uint64_t bytes)
{
    if (bytes < sizeof(*head) || head->magic != ATTND_SEGMENT_MAGIC ||
        head->version != ATTND_PROTOCOL_VERSION)
        return -ATTND_E_VERSION;
    if (!attnd_ring_entries_valid(head->ring_entries) ||
        head->runs_transient > head->ring_entries || head->runs < head->runs_transient ||
        !lies_in(head->commands_offset_bytes, head->ring_entries, sizeof(struct attnd_command),
                 bytes) ||
        !lies_in(head->retires_offset_bytes, head->ring_entries, ATTND_SLOT_BYTES, bytes) ||
        !lies_in(head->runs_offset_bytes, head->runs, sizeof(struct attnd_run), bytes) ||
        !lies_in(head->mailboxes_offset, ATTND_MAILBOXES_MAX, sizeof(struct attnd_mailbox_slot),
                 bytes) ||
        !lies_in(head->trace_offset_bytes,
                 ATTND_TRACE_RECORDS +
                     sizeof(struct attnd_trace_head) / sizeof(struct attnd_trace_record),
                 sizeof(struct attnd_trace_record), bytes) ||
        !lies_in(head->heap_offset_bytes, head->heap_bytes, 1, bytes))
        return -ATTND_E_RANGE;
    return 0;
}
