/*
 * worker.c - the threads.
 *
 * Every thread does the same: take items while there are any; else take the dispatcher's role if
 * nobody holds it, and wait for commands and rings in the port; else sleep. The role is given up as
 * soon as a command was published, so whoever is idle next holds it, and while all are busy nobody
 * polls: a new command could not be served anyway.
 *
 * Waking is a chain. A thread that goes from looking to working wakes one sleeper if it leaves
 * something behind: items, or the role. The woken one does the same. The sleeper's half (count
 * itself, fence, look again, sleep) and the waker's half (publish, fence, look for sleepers) are
 * edges F1 and F2 of atomics.h, so no wake-up is lost; no thread ever waits for a tile.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "persistent/cpu/mailbox.h"
#include "schemas/atomics.h"
#include "schemas/futex.h"

#define WAIT_NS 1000000000u /* the port wakes us; this only bounds a port that does not */

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- waking ---------------------------------------------------------------------------------- */

static int anything_to_do(const struct attnd_backend *backend)
{
    return attnd_observe32(&backend->stop) || !attnd_cpu_queue_empty(&backend->queue) ||
           attnd_observe32(&backend->dispatching) == 0;
}

static void sleep_until_woken(struct attnd_backend *backend)
{
    uint32_t seen = attnd_observe32(&backend->signal);
    (void)attnd_take32(&backend->sleepers, 1);
    attnd_fence_full(); /* F1: the count before the look */
    if (!anything_to_do(backend))
        (void)attnd_futex_wait(&backend->signal, seen, NULL);
    (void)attnd_take32(&backend->sleepers, UINT32_MAX);
}

static void wake(struct attnd_backend *backend, int count)
{
    (void)attnd_take32(&backend->signal, 1);
    (void)attnd_futex_wake(&backend->signal, count);
}

/* Called by a thread that is about to be busy. */
static void pass_on(struct attnd_backend *backend)
{
    attnd_fence_full(); /* F2: what is left behind before the look at the sleepers */
    if (attnd_peek32(&backend->sleepers) > 0 && anything_to_do(backend))
        wake(backend, 1);
}

void attnd_cpu_workers_stop(struct attnd_backend *backend)
{
    attnd_publish32(&backend->stop, 1);
    wake(backend, INT_MAX);
    backend->port->kick(backend->port->context);
}

/* ---- dispatching ----------------------------------------------------------------------------- */

static void accept_command(struct attnd_backend *backend, const struct attnd_command *command)
{
    if (command->kind != ATTND_COMMAND_RUN) {
        attnd_cpu_mail_command(backend, command);
        return;
    }
    /* The daemon's own bug; there is no run to report. */
    if (command->run >= backend->head->runs_transient)
        return;
    struct attnd_cpu_run *run = &backend->queue.runs[command->run];
    run->tag = command->tag;
    int64_t items = attnd_cpu_run_open(backend, command->run, &backend->queue.shared[command->run]);
    if (items > 0) {
        attnd_cpu_queue_publish(&backend->queue, run, (uint32_t)items);
        return;
    }
    if (items < 0)
        attnd_cpu_run_fail(run, (int)items);
    attnd_cpu_run_close(backend, run);
}

/* Holds the role until there is something to execute or the backend stops. */
static void dispatch(struct attnd_backend *backend)
{
    const struct attnd_port *port = backend->port;
    while (!attnd_observe32(&backend->stop)) {
        struct attnd_command command;
        int taken = 0;
        while (port->next(port->context, &command)) {
            accept_command(backend, &command);
            taken = 1;
        }
        taken |= attnd_cpu_mail_scan(backend);
        if (taken)
            return;
        port->wait(port->context, WAIT_NS);
    }
}

/* ---- executing ------------------------------------------------------------------------------- */

/* Return: how many of the items were executed; fewer than all if the run was cancelled. */
static uint32_t execute(struct attnd_cpu_worker *worker, struct attnd_cpu_run *run,
                        const uint32_t begin, const uint32_t end)
{
    const uint32_t heads = run->plan->heads_kv;
    uint32_t item = begin;
    while (item < end) {
        uint32_t head = item % heads, count = 1;
        int error;
        if (run->kind == ATTND_RUN_APPEND) {
            error = attnd_cpu_append(run, item);
        } else {
            count = end - item < heads - head ? end - item : heads - head;
            error = attnd_cpu_tile(worker, run, item / heads, head, head + count);
        }
        if (error)
            break;
        item += count;
    }
    return item - begin;
}

/* The earliest of all threads counts. */
static void note_begin(struct attnd_cpu_run *run, uint64_t begin_ns)
{
    uint64_t seen = attnd_peek64(&run->begin_ns);
    while ((seen == 0 || begin_ns < seen) && !attnd_claim64(&run->begin_ns, seen, begin_ns))
        seen = attnd_peek64(&run->begin_ns);
}

static void serve(struct attnd_cpu_worker *worker, const struct attnd_cpu_share *share)
{
    struct attnd_cpu_run *run = share->run;
    const uint32_t count = share->item_end - share->item_begin;
    if (share->skip) {
        attnd_cpu_run_fail(run, -ATTND_E_CANCELLED);
    } else {
        uint64_t begin_ns = now_ns();
        note_begin(run, begin_ns);
        worker->kv_bytes = 0;
        const uint32_t executed = execute(worker, run, share->item_begin, share->item_end);
        if (executed < count)
            attnd_cpu_run_fail(run, -ATTND_E_CANCELLED);
        (void)attnd_take64(&run->busy_ns, now_ns() - begin_ns);
        (void)attnd_take64(&run->kv_bytes, worker->kv_bytes);
        (void)attnd_take32(&run->executed, executed);
    }
    const uint32_t items = run->items; /* after the arrival the slot may be another run's */
    if (attnd_arrive32(&run->done, count) + count == items)
        attnd_cpu_run_close(worker->backend, run);
}

void *attnd_cpu_worker_main(void *argument)
{
    struct attnd_cpu_worker *worker = argument;
    struct attnd_backend *backend = worker->backend;
    struct attnd_cpu_share share;
    while (!attnd_observe32(&backend->stop)) {
        if (attnd_cpu_queue_take(&backend->queue, &share)) {
            pass_on(backend);
            serve(worker, &share);
        } else if (attnd_claim32(&backend->dispatching, 0, 1)) {
            dispatch(backend);
            attnd_publish32(&backend->dispatching, 0);
        } else {
            sleep_until_woken(backend);
        }
    }
    return NULL;
}

/* ---- buffers --------------------------------------------------------------------------------- */

int attnd_cpu_worker_init(struct attnd_cpu_worker *worker, struct attnd_backend *backend)
{
    const size_t rows = (size_t)ATTND_ROWS_MAX * ATTND_HEAD_DIM_MAX;
    const size_t block = (size_t)ATTND_KEYS_BLOCK * ATTND_HEAD_DIM_MAX;
    const size_t floats = 2 * rows + 2 * block + 2 * ATTND_ROWS_MAX;
    const size_t bytes = floats * sizeof(float) + ATTND_ROWS_MAX * sizeof(uint32_t);
    const size_t pages = bytes / ATTND_PAGE_BYTES + 1;
    void *memory = aligned_alloc(ATTND_PAGE_BYTES, pages * ATTND_PAGE_BYTES);
    if (memory == NULL)
        return -ATTND_E_NO_MEMORY;
    memset(memory, 0, bytes);
    *worker = (struct attnd_cpu_worker){.backend = backend, .memory = memory};
    worker->q = memory;
    worker->o = worker->q + rows;
    worker->panel.k = worker->o + rows;
    worker->panel.v = worker->panel.k + block;
    worker->m = worker->panel.v + block;
    worker->l = worker->m + ATTND_ROWS_MAX;
    worker->end = (void *)(worker->l + ATTND_ROWS_MAX);
    return 0;
}

void attnd_cpu_worker_free(struct attnd_cpu_worker *worker)
{
    free(worker->memory);
}
