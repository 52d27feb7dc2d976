/*
 * worker.c - the threads.
 *
 * Every thread does the same: take items while there are any; else take the dispatcher's role if
 * nobody holds it, and wait for commands and rings in the port; else sleep. The role is given up as
 * soon as a command was published, so the next idle thread holds it, and while all are busy nobody
 * polls: a new command could not be served anyway.
 *
 * Waking is a chain. A thread that goes from looking to working wakes one sleeper if it leaves
 * something behind: items, or the role. The woken one does the same. The sleeper's half (count
 * itself, fence, look again, sleep) and the waker's half (publish, fence, look for sleepers) are
 * edges F1 and F2 of atomics.h, so no wake-up is lost; no thread ever waits for a tile.
 *
 * A thread that is busy for long looks up now and then (make_way): it takes commands,
 * and if another session has become the one that is due, it executes items of that one before it
 * goes on. So a short run waits for some tens of microseconds of a long one, not for its end, and
 * the long one loses nothing but that time. Items that came in between make way likewise.
 *
 * It makes way for the daemon and for engines likewise: it asks for long slices (timeslice.h).
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "persistent/cpu/control.h"
#include "persistent/cpu/items.h"
#include "persistent/cpu/mailbox.h"
#include "persistent/cpu/queue.h"
#include "persistent/cpu/rope.h"
#include "persistent/cpu/run.h"
#include "persistent/cpu/worker.h"
#include "persistent/trace.h"
#include "schemas/atomics.h"
#include "schemas/clock.h"
#include "schemas/crash.h"
#include "schemas/futex.h"
#include "schemas/timeslice.h"

#define WAIT_NS 1000000000u /* the port wakes us; this only bounds a port that does not */
#define POLL_NS 50000u      /* how often a busy thread looks for commands, about */
#define PACE_COST 8192      /* work in between: some 40 us */
#define AHEAD_NS 100000.0   /* an item this far ahead of another session's makes way for it */
#define DEPTH_MAX 4u        /* how often one within the other */
#define URGENT_NS 300000u   /* a thread that works for longer makes way for other processes, too */

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
    attnd_crash(ATTND_CRASH_CPU_COMMAND_TAKEN);
    if (command->kind != ATTND_COMMAND_RUN) {
        attnd_cpu_mail_command(backend, command);
        return;
    }
    /* The daemon's own bug; there is no run to report. */
    if (command->run >= backend->head->runs_transient)
        return;
    struct attnd_cpu_run *run = &backend->queue.runs[command->run];
    const struct attnd_run *shared = &backend->runs[command->run];
    run->tag = command->tag;
    int64_t items = attnd_cpu_run_open(backend, command->run, shared);
    if (items > 0) {
        attnd_cpu_queue_publish(&backend->queue, run, shared, (uint32_t)items);
        return;
    }
    if (items < 0)
        attnd_cpu_run_fail(run, (int)items);
    attnd_cpu_run_close(backend, run);
}

/* By the thread that holds the role. Return: 1 if there was any. */
static int accept_all(struct attnd_backend *backend)
{
    const struct attnd_port *port = backend->port;
    struct attnd_command command;
    int taken = 0;
    while (port->next(port->context, &command)) {
        accept_command(backend, &command);
        taken = 1;
    }
    return taken | attnd_cpu_mail_scan(backend);
}

/* Holds the role until there is something to execute or the backend stops. */
static void dispatch(struct attnd_backend *backend)
{
    const struct attnd_port *port = backend->port;
    while (!attnd_observe32(&backend->stop) && !accept_all(backend))
        port->wait(port->context, WAIT_NS);
}

/* A busy thread takes the role for a moment, unless a thread has it that waits for commands: while
 * all are busy, what a session asks for must not wait for the end of what others did. */
static void poll(struct attnd_cpu_worker *worker, uint64_t now)
{
    struct attnd_backend *backend = worker->backend;
    if (now - worker->polled_ns < POLL_NS || !attnd_claim32(&backend->dispatching, 0, 1))
        return;
    worker->polled_ns = now;
    (void)accept_all(backend);
    attnd_publish32(&backend->dispatching, 0);
    pass_on(backend); /* a thread may have found the role taken and fallen asleep */
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
            error = attnd_cpu_append(worker, run, item);
        } else if (run->kind == ATTND_RUN_MERGE) {
            error = 0;
            attnd_cpu_merge_state(worker, run, item);
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

/* A thread that has just woken up is as urgent as what it was woken for. One that has worked for a
 * while makes way for the daemon and for engines, who otherwise wait for it up to a tick. */
static void yield_from_now_on(struct attnd_cpu_worker *worker, uint64_t now)
{
    if (worker->yielding || now - worker->awake_ns < URGENT_NS)
        return;
    worker->yielding = 1;
    if (attnd_timeslice_ask(ATTND_TIMESLICE_LONG_NS, 0) == 0)
        attnd_timeslice_offer(); /* to those that came while it was urgent */
}

static void rest(struct attnd_cpu_worker *worker)
{
    worker->awake_ns = 0;
    if (!worker->yielding)
        return;
    worker->yielding = 0;
    (void)attnd_timeslice_ask(ATTND_TIMESLICE_BRIEF_NS, 0);
}

/* How long the thread has been without a processor since the last call. */
static uint64_t stolen_ns(struct attnd_cpu_worker *outermost, uint64_t now)
{
    struct timespec had;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &had);
    const uint64_t without = now - ((uint64_t)had.tv_sec * 1000000000u + (uint64_t)had.tv_nsec);
    if (without <= outermost->without_ns) /* the clocks are not read in one moment */
        return 0;
    const uint64_t stolen = without - outermost->without_ns;
    outermost->without_ns = without;
    return stolen;
}

/* Tests: as an item that never ends. */
static void stall(const struct attnd_backend *backend)
{
    static const struct timespec nap = {.tv_nsec = 1000000};
    while (backend->stuck && !attnd_observe32(&backend->stop))
        (void)nanosleep(&nap, NULL);
}

/* For a timeline. The share is not charged yet: its flow is still its session's. */
static void note_trace(const struct attnd_cpu_worker *worker, const struct attnd_cpu_share *share,
                       uint64_t begin_ns, uint64_t end_ns)
{
    const struct attnd_backend *backend = worker->backend;
    const struct attnd_cpu_run *run = share->run;
    const uint32_t thread = (uint32_t)(worker->outermost - backend->workers);
    struct attnd_trace_record record = {.begin_ns = begin_ns,
                                        .end_low = (uint32_t)end_ns,
                                        .session = backend->queue.flow[share->flow].session,
                                        .item = share->item_begin,
                                        .count = (uint16_t)(share->item_end - share->item_begin),
                                        .track = (uint16_t)thread,
                                        .kind = ATTND_TRACE_APPEND,
                                        .layer = (uint16_t)run->layer};

    if (run->kind == ATTND_RUN_ATTEND)
        record.kind = (uint8_t)run->tiles[share->item_begin / run->plan->heads_kv].tile_class;
    else if (run->kind == ATTND_RUN_MERGE)
        record.kind = ATTND_TRACE_MERGE;
    attnd_trace_add(backend->head, thread, backend->threads, &record);
}

/* Return: when it was done. */
static uint64_t serve(struct attnd_cpu_worker *worker, struct attnd_cpu_share *share)
{
    struct attnd_cpu_run *run = share->run;
    const uint32_t count = share->item_end - share->item_begin;
    const uint64_t begin_ns = attnd_clock_ns();
    uint64_t end_ns = begin_ns, busy_ns = 0, without_ns = 0;
    if (worker->outermost->awake_ns == 0) {
        worker->outermost->awake_ns = begin_ns;
        (void)stolen_ns(worker->outermost, begin_ns);
    }
    if (share->skip) {
        attnd_cpu_run_fail(run, -ATTND_E_CANCELLED);
    } else {
        note_begin(run, begin_ns);
        attnd_crash(ATTND_CRASH_CPU_ITEM_TAKEN);
        worker->kv_bytes = worker->away_ns = 0;
        worker->begin_ns = begin_ns;
        worker->share = share;
        stall(worker->backend);
        const uint32_t executed = execute(worker, run, share->item_begin, share->item_end);
        if (executed < count)
            attnd_cpu_run_fail(run, -ATTND_E_CANCELLED);
        end_ns = attnd_clock_ns();
        busy_ns = end_ns - begin_ns - worker->away_ns;
        if (attnd_cpu_share_is_late(share, busy_ns))
            without_ns = stolen_ns(worker->outermost, end_ns);
        (void)attnd_take64(&run->busy_ns, busy_ns);
        (void)attnd_take64(&run->kv_bytes, worker->kv_bytes);
        (void)attnd_take32(&run->executed, executed);
        if (attnd_trace_wanted(worker->backend->head, end_ns))
            note_trace(worker, share, begin_ns, end_ns);
    }
    attnd_cpu_queue_charge(&worker->backend->queue, share, busy_ns, without_ns);
    attnd_crash(ATTND_CRASH_CPU_ITEM_DONE);
    const uint32_t items = run->items; /* after the arrival the slot may be another run's */
    if (attnd_arrive32(&run->done, count) + count == items)
        attnd_cpu_run_close(worker->backend, run);
    return end_ns;
}

/* ---- making way ------------------------------------------------------------------------------ */

/* Buffers for an item that comes in between. Return: NULL if there are none. */
static struct attnd_cpu_worker *inner_of(struct attnd_cpu_worker *worker)
{
    if (worker->inner == NULL && worker->depth + 1 < DEPTH_MAX) {
        struct attnd_cpu_worker *inner = malloc(sizeof *inner);
        if (inner == NULL || attnd_cpu_worker_init(inner, worker->backend)) {
            free(inner);
            return NULL;
        }
        inner->depth = worker->depth + 1;
        inner->outermost = worker->outermost;
        worker->inner = inner;
    }
    return worker->inner;
}

/* A long item does now and then what its thread does between items: it looks for commands, and it
 * executes what is due before the rest of itself. */
static void make_way(struct attnd_cpu_worker *worker)
{
    struct attnd_backend *backend = worker->backend;
    struct attnd_cpu_share share;
    uint64_t now = attnd_clock_ns();
    worker->pace = PACE_COST;
    (void)attnd_take32(&worker->outermost->counted, 2);
    if (attnd_observe32(&backend->stop))
        return;
    yield_from_now_on(worker->outermost, now);
    attnd_poke64(&worker->share->had_ns, now - worker->begin_ns - worker->away_ns);
    poll(worker, now);
    const double before = attnd_cpu_share_reached(worker->share) - AHEAD_NS / worker->share->weight;
    if (attnd_cpu_queue_empty(&backend->queue) || !inner_of(worker))
        return;
    while (!attnd_observe32(&backend->stop) &&
           attnd_cpu_queue_take(&backend->queue, before, &share)) {
        pass_on(backend);
        const uint64_t end_ns = serve(worker->inner, &share);
        worker->away_ns += end_ns - now;
        now = end_ns;
    }
}

void *attnd_cpu_worker_main(void *argument)
{
    struct attnd_cpu_worker *worker = argument;
    struct attnd_backend *backend = worker->backend;
    struct attnd_cpu_share share;
    (void)attnd_timeslice_ask(ATTND_TIMESLICE_BRIEF_NS, ATTND_TIMESLICE_TILES_NICE);
    worker->awake_ns = 0;
    worker->yielding = 0;
    while (!attnd_observe32(&backend->stop)) {
        if (attnd_cpu_queue_take(&backend->queue, INFINITY, &share)) {
            pass_on(backend);
            (void)attnd_take32(&worker->counted, 1);
            const uint64_t end_ns = serve(worker, &share);
            (void)attnd_take32(&worker->counted, 1);
            yield_from_now_on(worker, end_ns);
            poll(worker, end_ns);
        } else if (attnd_claim32(&backend->dispatching, 0, 1)) {
            rest(worker);
            dispatch(backend);
            attnd_publish32(&backend->dispatching, 0);
        } else {
            rest(worker);
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
    const size_t pairs = ATTND_CPU_PAIRS_MAX;
    const size_t floats =
        2 * rows + 2 * block + 2 * ATTND_ROWS_MAX + 2 * pairs * ATTND_KEYS_BLOCK + 2 * pairs;
    const size_t bytes = floats * sizeof(float) + 6 * ATTND_ROWS_MAX * sizeof(uint32_t) +
                         2 * block * sizeof(uint16_t);
    const size_t pages = bytes / ATTND_PAGE_BYTES + 1;
    void *memory = aligned_alloc(ATTND_PAGE_BYTES, pages * ATTND_PAGE_BYTES);
    if (memory == NULL)
        return -ATTND_E_NO_MEMORY;
    memset(memory, 0, bytes);
    *worker = (struct attnd_cpu_worker){
        .backend = backend, .pause = make_way, .memory = memory, .outermost = worker};
    worker->q = memory;
    worker->o = worker->q + rows;
    worker->panel.k = worker->o + rows;
    worker->panel.v = worker->panel.k + block;
    worker->m = worker->panel.v + block;
    worker->l = worker->m + ATTND_ROWS_MAX;
    worker->frequency = (void *)(worker->l + ATTND_ROWS_MAX);
    worker->mask_bit = (void *)(worker->frequency + pairs);
    worker->cosine = (void *)(worker->mask_bit + ATTND_ROWS_MAX);
    worker->sine = worker->cosine + pairs * ATTND_KEYS_BLOCK;
    worker->slope = worker->sine + pairs * ATTND_KEYS_BLOCK;
    worker->begin = (void *)(worker->slope + ATTND_ROWS_MAX);
    worker->end = worker->begin + ATTND_ROWS_MAX;
    worker->position = (void *)(worker->end + ATTND_ROWS_MAX);
    worker->staged_k = (void *)(worker->position + ATTND_ROWS_MAX);
    worker->staged_v = worker->staged_k + block * sizeof(uint16_t);
    return 0;
}

void attnd_cpu_worker_free(struct attnd_cpu_worker *worker)
{
    if (worker->inner)
        attnd_cpu_worker_free(worker->inner);
    free(worker->inner);
    free(worker->memory);
}
