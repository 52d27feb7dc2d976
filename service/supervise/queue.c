/*
 * queue.c - the queue segment, which daemon and worker map: head page, commands, retires, runs,
 * mailboxes, the trace, and behind them the heap.
 *
 * It is two memfds. The heap outlives every worker: plans and pools in it are written by the daemon
 * alone. Each worker writes words of its own, because a worker is not over when its process is:
 * kernels of it may still run on the GPU, take commands, write retires. They do so where nobody
 * looks any more, and find there that they are to end. The next worker's half takes the place of
 * the old one in the daemon's address space, so that pointers into it stay good.
 */
#include "service/supervise/queue.h"

#include "schemas/atomics.h"
#include "schemas/checksum.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

_Static_assert(ATTND_QUEUE_ENTRIES <= ATTND_RING_ENTRIES_MAX, "rings hold every command");

#define RUNS_ALL (ATTND_QUEUE_RUNS + ATTND_QUEUE_PREPARED)
#define COMMANDS_BYTES ((uint64_t)ATTND_QUEUE_ENTRIES * sizeof(struct attnd_command))
#define RETIRES_BYTES ((uint64_t)ATTND_QUEUE_ENTRIES * sizeof(struct attnd_retire))
#define RUNS_BYTES ((uint64_t)RUNS_ALL * sizeof(struct attnd_run))
#define MAILBOXES_BYTES ((uint64_t)ATTND_MAILBOXES_MAX * sizeof(struct attnd_mailbox_slot))
#define COMMANDS_OFFSET ((uint64_t)ATTND_PAGE_BYTES)
#define RETIRES_OFFSET (COMMANDS_OFFSET + COMMANDS_BYTES)
#define RUNS_OFFSET (RETIRES_OFFSET + RETIRES_BYTES)
#define MAILBOXES_OFFSET (RUNS_OFFSET + RUNS_BYTES)
#define TRACE_OFFSET                                                                               \
    ((MAILBOXES_OFFSET + MAILBOXES_BYTES + ATTND_PAGE_BYTES - 1) &                                 \
     ~(uint64_t)(ATTND_PAGE_BYTES - 1))
#define TRACE_BYTES                                                                                \
    (sizeof(struct attnd_trace_head) +                                                             \
     (uint64_t)ATTND_TRACE_RECORDS * sizeof(struct attnd_trace_record))
#define HEAP_OFFSET                                                                                \
    ((TRACE_OFFSET + TRACE_BYTES + ATTND_PAGE_BYTES - 1) & ~(uint64_t)(ATTND_PAGE_BYTES - 1))

static void describe(struct attnd_queue *queue, uint64_t heap_bytes)
{
    struct attnd_queue_head *head = queue->head;
    head->magic = ATTND_SEGMENT_MAGIC;
    head->version = ATTND_PROTOCOL_VERSION;
    head->commands_offset_bytes = COMMANDS_OFFSET;
    head->retires_offset_bytes = RETIRES_OFFSET;
    head->runs_offset_bytes = RUNS_OFFSET;
    head->heap_offset_bytes = HEAP_OFFSET;
    head->heap_bytes = heap_bytes;
    head->ring_entries = ATTND_QUEUE_ENTRIES;
    head->runs = RUNS_ALL;
    head->runs_transient = ATTND_QUEUE_RUNS;
    head->mailboxes_offset = (uint32_t)MAILBOXES_OFFSET;
    head->trace_offset_bytes = TRACE_OFFSET;
    head->rates = queue->rates;
    head->switch_cost_us = queue->switch_cost_us;
}

/* Both rings are empty: the file is fresh. */
static void begin(struct attnd_queue *queue)
{
    struct attnd_queue_head *head = queue->head;
    char *base = queue->segment.address;
    describe(queue, queue->heap_bytes);
    attnd_producer_init(&queue->commands, base + COMMANDS_OFFSET, &head->command_tail,
                        &head->command_head, ATTND_QUEUE_ENTRIES);
    queue->commands.slot_bytes = sizeof(struct attnd_command);
    attnd_consumer_init(&queue->retires, base + RETIRES_OFFSET, &head->retire_tail,
                        &head->retire_head, ATTND_QUEUE_ENTRIES);
    queue->abandoned = 0;
}

void attnd_queue_rates(struct attnd_queue *queue, const struct attnd_rates *rates)
{
    queue->rates = *rates;
    queue->head->rates = *rates;
}

void attnd_queue_abandon(struct attnd_queue *queue)
{
    char *base = queue->segment.address;
    attnd_publish32(&queue->head->park, ATTND_PARK_OVER);
    /* Retires that come into the ring from here on are of nobody that is known. */
    queue->nothing[0] = queue->nothing[1] = 0;
    attnd_consumer_init(&queue->retires, base + RETIRES_OFFSET, &queue->nothing[0],
                        &queue->nothing[1], ATTND_QUEUE_ENTRIES);
    queue->broken = queue->pushed = 0;
    queue->abandoned = 1;
    if (queue->switch_cost_us == 0) /* it ended before it was ready, perhaps in that */
        queue->switch_cost_us = queue->head->switch_cost_us;
}

int attnd_queue_renew(struct attnd_queue *queue, struct attnd_fault *fault)
{
    char *base = queue->segment.address;
    int fd = -1;
    int rc = attnd_shm_create_unmapped("attnd-queue", HEAP_OFFSET, &fd, fault);
    if (rc < 0)
        return rc;
    /* Prepared runs and mailboxes are the daemon's and go on. */
    if (pwrite(fd, base + RUNS_OFFSET, RUNS_BYTES + MAILBOXES_BYTES, (off_t)RUNS_OFFSET) !=
        (ssize_t)(RUNS_BYTES + MAILBOXES_BYTES))
        rc = attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_NONE, 0, ENOSPC, 0);
    else
        rc = attnd_shm_replace(base, HEAP_OFFSET, fd, fault);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    close(queue->rings_fd);
    queue->rings_fd = fd;
    begin(queue);
    return 0;
}

static int make_segment(struct attnd_queue *queue, struct attnd_fault *fault)
{
    int rc = attnd_shm_create_unmapped("attnd-queue", HEAP_OFFSET, &queue->rings_fd, fault);
    if (rc == 0)
        rc = attnd_shm_create_unmapped("attnd-heap", queue->heap_bytes, &queue->heap_fd, fault);
    if (rc < 0)
        return rc;
    const int fds[] = {queue->rings_fd, queue->heap_fd};
    const uint64_t bytes[] = {HEAP_OFFSET, queue->heap_bytes};
    return attnd_shm_map_joined(fds, bytes, &queue->segment, fault);
}

int attnd_queue_new(uint64_t heap_bytes, int use_eventfd, struct attnd_queue **out,
                    struct attnd_fault *fault)
{
    struct attnd_queue *queue = calloc(1, sizeof(*queue));
    if (!queue)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    queue->segment.fd = queue->rings_fd = queue->heap_fd = queue->retire_fd = -1;
    queue->heap_bytes = (heap_bytes + ATTND_PAGE_BYTES - 1) & ~(uint64_t)(ATTND_PAGE_BYTES - 1);

    int rc = make_segment(queue, fault);
    if (rc < 0)
        goto fail;
    rc = attnd_heap_reset(&queue->heap, HEAP_OFFSET, HEAP_OFFSET + heap_bytes);
    if (rc < 0) {
        attnd_fault_set(fault, rc, ATTND_F_NONE, 0, 0, 0);
        goto fail;
    }
    if (use_eventfd) {
        queue->retire_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (queue->retire_fd < 0) {
            rc = attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_NONE, 0, errno, 0);
            goto fail;
        }
    }
    queue->head = queue->segment.address;
    char *base = queue->segment.address;
    queue->runs = (struct attnd_run *)(void *)(base + RUNS_OFFSET);
    queue->mailboxes = (struct attnd_mailbox_slot *)(void *)(base + MAILBOXES_OFFSET);
    queue->trace = (struct attnd_trace_head *)(void *)(base + TRACE_OFFSET);
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++)
        queue->mailboxes[i].memory = ATTND_NONE;
    begin(queue);
    *out = queue;
    return 0;

fail:
    attnd_queue_free(queue);
    return rc;
}

void attnd_queue_free(struct attnd_queue *queue)
{
    if (!queue)
        return;
    const int fds[] = {queue->rings_fd, queue->heap_fd, queue->retire_fd};
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    attnd_heap_destroy(&queue->heap);
    attnd_shm_unmap(&queue->segment);
    free(queue);
}

int attnd_queue_push(struct attnd_queue *queue, struct attnd_command *command)
{
    command->checksum = attnd_checksum(command, queue->commands.index);
    int rc = attnd_producer_push(&queue->commands, command);
    queue->broken |= rc < 0; /* it has room for every run and control command: never full */
    queue->pushed = 1;
    return rc;
}

void attnd_queue_ring(struct attnd_queue *queue)
{
    const struct attnd_doorbell doorbell = {
        .word = &queue->head->command_tail, .need = &queue->head->command_need, .fd = -1};
    queue->pushed = 0;
    (void)attnd_doorbell_ring(&doorbell);
}

uint64_t attnd_heap_alloc(struct attnd_queue *queue, uint64_t bytes)
{
    uint64_t offset_bytes;
    if (attnd_heap_take(&queue->heap, bytes, &offset_bytes) < 0)
        return 0; /* the head lies there */
    return offset_bytes;
}

void attnd_heap_free(struct attnd_queue *queue, uint64_t offset_bytes, uint64_t bytes)
{
    attnd_heap_give(&queue->heap, offset_bytes, bytes);
}

void *attnd_heap_at(struct attnd_queue *queue, uint64_t offset_bytes)
{
    return (char *)queue->segment.address + offset_bytes;
}

void attnd_heap_usage(const struct attnd_queue *queue, uint64_t *bytes, uint64_t *used_bytes)
{
    *bytes = queue->heap.bytes;
    *used_bytes = queue->heap.used_bytes;
}
