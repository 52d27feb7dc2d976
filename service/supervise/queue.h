/*
 * queue.h - the segment that daemon and worker share: command ring, retire ring, run and mailbox
 * tables, trace, heap.
 */
#ifndef ATTND_SERVICE_SUPERVISE_QUEUE_H
#define ATTND_SERVICE_SUPERVISE_QUEUE_H

#include "ipc/ring.h"
#include "ipc/shm.h"
#include "ipc/wake.h"
#include "schemas/abi.h"
#include "schemas/errors.h"
#include "service/supervise/heap.h"

/* Runs in flight in the whole service that were submitted, and prepared ones beside them in
 * the run table. */
#define ATTND_QUEUE_RUNS 512u
#define ATTND_QUEUE_PREPARED 4096u
_Static_assert(ATTND_QUEUE_RUNS + ATTND_QUEUE_PREPARED <= ATTND_DOORBELL_SLOTS,
               "slots have numbers");
/* Commands in flight that are no runs. */
#define ATTND_QUEUE_CONTROLS 512u
/* Slots whose run a worker took while others were in front of it: half of the rings at most. All
 * three together fill the rings, so neither is ever full. */
#define ATTND_QUEUE_AHEAD (ATTND_QUEUE_RUNS + ATTND_QUEUE_CONTROLS)
#define ATTND_QUEUE_ENTRIES (ATTND_QUEUE_RUNS + ATTND_QUEUE_CONTROLS + ATTND_QUEUE_AHEAD)

struct attnd_queue {
    struct attnd_shm segment; /* both of: */
    int rings_fd, heap_fd;    /* everything before the heap, a file for each worker; the heap */
    uint64_t heap_bytes;
    int abandoned; /* between abandon() and renew() */
    int accepting; /* the worker is RUNNING and nobody is stopping it: commands may be pushed */
    int pushed;    /* commands, since attnd_queue_ring() */
    int broken;    /* the worker's indices are impossible: it is killed at the next chance */
    uint32_t nothing[2]; /* tail and head of no ring, meanwhile */
    struct attnd_queue_head *head;
    struct attnd_run *runs;               /* [ATTND_QUEUE_RUNS + ATTND_QUEUE_PREPARED] */
    struct attnd_mailbox_slot *mailboxes; /* [ATTND_MAILBOXES_MAX] */
    struct attnd_trace_head *trace;       /* the worker's, records behind it */
    uint32_t trace_until_ms;              /* as the head has it */
    struct attnd_producer commands;
    struct attnd_consumer retires;
    struct attnd_heap heap;        /* offsets in the segment */
    struct attnd_worker_info info; /* private copy of what the worker said of itself */
    struct attnd_rates rates;      /* likewise; before the first worker: an option's, or zeros */
    uint32_t switch_cost_us;       /* likewise, as the head has it: kept for the next worker */
    int retire_fd;                 /* eventfd that the worker writes; -1: futex on retire_tail */
};

/**
 * attnd_queue_new()
 * @heap_bytes:  for pools' planes and plans
 * @use_eventfd: 1 where the loop cannot sleep on futex words
 * Return: 0; -ATTND_E_SYSTEM; -ATTND_E_NO_MEMORY.
 */
int attnd_queue_new(uint64_t heap_bytes, int use_eventfd, struct attnd_queue **out,
                    struct attnd_fault *fault);
/** attnd_queue_free() - unmaps the segment: pools and plans in it are gone. NULL is fine. */
void attnd_queue_free(struct attnd_queue *queue);

/** attnd_queue_rates() - rates that the next worker, and all after it, need not measure. */
void attnd_queue_rates(struct attnd_queue *queue, const struct attnd_rates *rates);

/** attnd_queue_abandon() - the worker's process is gone. The rest of it, kernels perhaps, is told
 * to end, and nothing that it still writes is looked at. No command may be pushed before
 * attnd_queue_renew(). */
void attnd_queue_abandon(struct attnd_queue *queue);

/** attnd_queue_renew() - empty rings for the next worker, in a file of its own; prepared runs,
 * mailboxes and heap are as they were. A watch of the word retire_tail has to be made anew.
 * Return: 0; -ATTND_E_SYSTEM, and it is still abandoned. */
int attnd_queue_renew(struct attnd_queue *queue, struct attnd_fault *fault);

/** attnd_queue_push() - seal and publish a command, without a wake-up. A failure is kept in
 * queue->broken. Return: 0; -ATTND_E_FULL or -ATTND_E_PROTOCOL: the worker broke the ring. */
int attnd_queue_push(struct attnd_queue *queue, struct attnd_command *command);

/** attnd_queue_ring() - after a burst of commands: wake the worker if it sleeps. */
void attnd_queue_ring(struct attnd_queue *queue);

/** attnd_heap_alloc() - queue heap memory, 64-byte aligned, with what was there last: to clear that
 * of a large plan takes the loop longer than others should wait. Return: offset, 0 if full. */
uint64_t attnd_heap_alloc(struct attnd_queue *queue, uint64_t bytes);
void attnd_heap_free(struct attnd_queue *queue, uint64_t offset_bytes, uint64_t bytes);
void *attnd_heap_at(struct attnd_queue *queue, uint64_t offset_bytes);
void attnd_heap_usage(const struct attnd_queue *queue, uint64_t *bytes, uint64_t *used_bytes);

#endif
