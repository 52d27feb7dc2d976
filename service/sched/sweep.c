/*
 * sweep.c - sessions in and out, and the sweep.
 *
 * The loop sweeps: retires first, because they make room, then each session's ring. Doorbells and
 * notifications wait for the end (flush.c). Timer and worker events end with the same flush.
 */
#include "service/sched/sched.h"

#include "schemas/atomics.h"
#include "service/objects/quota.h"
#include "service/sched/close.h"
#include "service/sched/deadline.h"
#include "service/sched/flush.h"
#include "service/sched/lane.h"
#include "service/sched/parked.h"
#include "service/sched/planner.h"
#include "service/sched/results.h"
#include "service/sched/retire.h"
#include "service/sched/scheduler.h"
#include "service/sched/submit.h"
#include "service/supervise/supervise.h"

#include <stdlib.h>

#define DRAIN_STEP_NS 1000000u
#define CANCELLED_NS UINT64_C(2000000000) /* before the end of a drain */

static void mailbox_closed(struct attnd_client *client)
{
    attnd_lanes_drain(client->lanes);
}

int attnd_sched_new(struct attnd_service *service, const struct attnd_maps *maps,
                    const struct attnd_sched_events *events, struct attnd_scheduler **out)
{
    struct attnd_scheduler *scheduler = calloc(1, sizeof(*scheduler));
    if (!scheduler)
        return -ATTND_E_NO_MEMORY;
    scheduler->service = service;
    scheduler->events = *events;
    scheduler->queue = service->queue;
    scheduler->prepared_runs = service->prepared_runs;
    scheduler->prepared_runs->events.acked = attnd_lane_acked;
    scheduler->prepared_runs->events.closed = mailbox_closed;
    scheduler->maps = maps;
    scheduler->line_work.go = attnd_lane_line_go;
    if (attnd_deadline_start(scheduler) < 0) {
        free(scheduler);
        return -ATTND_E_NO_MEMORY;
    }
    scheduler->slots_free = ATTND_QUEUE_RUNS;
    for (uint32_t run = 0; run < ATTND_QUEUE_RUNS; run++)
        scheduler->slots[run].next_free = run + 1 < ATTND_QUEUE_RUNS ? run + 1 : ATTND_NONE;
    *out = scheduler;
    return 0;
}

void attnd_sched_free(struct attnd_scheduler *scheduler)
{
    if (!scheduler)
        return;
    attnd_work_stop(&scheduler->line_work);
    attnd_planner_free(scheduler->planner);
    attnd_heap_destroy(&scheduler->scratch);
    free(scheduler);
}

int attnd_sched_resume(struct attnd_scheduler *scheduler, uint64_t scratch_bytes)
{
    /* Prepared runs keep theirs, so it must not be what others wait for. */
    int watches = scheduler->queue->info.mailbox_kind != 0;
    uint64_t all_bytes = scratch_bytes / ATTND_CACHE_LINE * ATTND_CACHE_LINE;
    uint64_t ring_bytes = watches ? all_bytes / 2 / ATTND_CACHE_LINE * ATTND_CACHE_LINE : all_bytes;
    int rc = attnd_heap_reset(&scheduler->scratch, 0, ring_bytes);
    scheduler->queue->accepting = rc == 0;
    if (rc == 0)
        rc = attnd_prepared_resume(scheduler->prepared_runs, ring_bytes, all_bytes);
    if (rc < 0) {
        scheduler->queue->accepting = 0;
        return rc;
    }
    attnd_lane_retry(scheduler);
    attnd_sched_flush(scheduler);
    return 0;
}

void attnd_sched_retry(struct attnd_scheduler *scheduler)
{
    attnd_lane_retry(scheduler);
    attnd_sched_flush(scheduler);
}

/* ---- sessions ---- */

int attnd_sched_open(struct attnd_client *client, struct attnd_fault *fault)
{
    struct attnd_scheduler *scheduler = client->service->scheduler;
    uint32_t ops = client->ring_entries;
    struct attnd_client_lanes *session;
    const uint64_t session_bytes =
        sizeof(*session) + ops * (sizeof(session->ops[0]) + sizeof(void *) /* its deadline */);
    const uint64_t bytes = session_bytes + ops * sizeof(*session->results.mark);
    int rc = attnd_quota_charge(client, bytes, fault);
    if (rc < 0)
        return rc;
    session = calloc(1, session_bytes);
    if (!session) {
        attnd_quota_refund(client->service, attnd_quota_payer(client), bytes);
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    }
    if (attnd_results_init(&session->results, client) < 0) {
        attnd_quota_refund(client->service, attnd_quota_payer(client), bytes);
        free(session);
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    }
    session->client = client;
    session->charged_bytes = bytes;
    session->deadlines.heap = (void *)&session->ops[ops];
    session->woken_end = &session->woken;
    session->ring_work.go = attnd_submit_go;
    session->lanes_work.go = attnd_lane_ready_go;
    session->retry_work.go = attnd_lane_retry_go;
    session->wake_work.go = attnd_prefix_wake_go;
    session->leave_work.go = attnd_prefix_leave_go;
    session->expire_work.go = attnd_deadline_expire_go;
    session->lost_work.go = attnd_retire_lost_go;
    session->close_work.go = attnd_session_close_go;
    session->scheduler = scheduler;
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++)
        session->lane[i].session = session;
    session->index = scheduler->open_count;
    scheduler->open[scheduler->open_count++] = session;
    client->lanes = session;
    return 0;
}

/* ---- what can be read of it ---- */

void attnd_sched_counts(const struct attnd_scheduler *scheduler, uint32_t *runs, uint32_t *waiting)
{
    *runs = scheduler->dispatched;
    *waiting = scheduler->waiting_count + scheduler->blocked_count;
}

uint64_t attnd_sched_oldest_ns(const struct attnd_client *client)
{
    uint64_t oldest_ns = 0;

    if (!client->lanes)
        return 0;
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++) {
        const struct attnd_sched_op *head = client->lanes->lane[i].head;
        if (head && (!oldest_ns || head->taken_ns < oldest_ns))
            oldest_ns = head->taken_ns;
    }
    return oldest_ns;
}

/* ---- the sweep ---- */

/* Rings in which something is. */
static void queue_rings(struct attnd_scheduler *scheduler)
{
    for (uint32_t i = 0; i < scheduler->open_count; i++) {
        struct attnd_client_lanes *session = scheduler->open[i];
        struct attnd_client *client = session->client;
        if (!attnd_work_waits(&session->ring_work) && !attnd_consumer_empty(&client->sq))
            attnd_work_queue(&scheduler->service->works, &client->account, &session->ring_work);
    }
}

int attnd_sched_sweep(void *context)
{
    struct attnd_service *service = context;
    struct attnd_scheduler *scheduler = service->scheduler;
    if (!scheduler)
        return 0;

    attnd_work_begin(&service->works);
    scheduler->moved = attnd_retire_sweep(scheduler);
    if (!service->stopping)
        queue_rings(scheduler);
    (void)attnd_work_turn(&service->works);
    attnd_sched_flush(scheduler);
    /* The end of a session that was killed just now may have let others go on: they and the worker
     * learn of it by the next sweep, so there must be one before the loop sleeps; and one for what
     * waits for its turn. */
    return scheduler->moved +
           (scheduler->queue->pushed || scheduler->dirty_count || service->works.waiting);
}

int attnd_sched_caught_up(struct attnd_client *client)
{
    struct attnd_client_lanes *session = client->lanes;
    const struct attnd_consumer *sq = &client->sq;
    if (!session->call_waits) {
        session->call_waits = 1;
        session->call_tail = attnd_observe32(sq->tail); /* A1 */
    }
    (void)attnd_retire_sweep(session->scheduler); /* it makes room */
    const int moved = attnd_submit_sweep(session);
    attnd_sched_flush(session->scheduler);
    if (client->state != ATTND_CLIENT_OPEN)
        return 1;
    if (session->ready.head || session->leaving)
        return 0; /* what was submitted has its turn, in pieces */
    /* Where nothing moves there is no room for completions, and only the client can make some; or
     * a large batch of the session is being planned. */
    if ((moved || session->planning) && (int32_t)(session->call_tail - sq->index) > 0)
        return 0;
    session->call_waits = 0;
    return 1;
}

int attnd_sched_expecting(void *context)
{
    const struct attnd_service *service = context;
    return service->scheduler && service->scheduler->dispatched > 0;
}

void attnd_sched_asleep(void *context, int asleep)
{
    const struct attnd_service *service = context;
    struct attnd_scheduler *scheduler = service->scheduler;
    if (!scheduler)
        return;
    attnd_poke32(&scheduler->queue->head->retire_need, (uint32_t)asleep);
    for (uint32_t i = 0; i < scheduler->open_count; i++) {
        struct attnd_complete_head *head = scheduler->open[i]->client->completion.address;
        attnd_poke32(&head->sq_need, (uint32_t)asleep);
    }
}

/* Runs that do not end by themselves in time. The worker parks then, and is not killed. */
static void cancel_all(const struct attnd_scheduler *scheduler)
{
    for (uint32_t run = 0; run < ATTND_QUEUE_RUNS; run++)
        if (scheduler->slots[run].op)
            attnd_poke32(&scheduler->queue->runs[run].cancel, 1);
}

/* Lets runs that the worker has come to their end; what is queued stays queued. */
void attnd_sched_drain(struct attnd_scheduler *scheduler, uint64_t deadline_ns)
{
    struct attnd_queue *queue = scheduler->queue;
    attnd_sched_pause(scheduler);
    scheduler->drains = 1;
    attnd_planner_free(scheduler->planner);
    scheduler->planner = NULL;
    attnd_work_finish(&scheduler->service->works); /* lanes that were ready */
    (void)attnd_retire_sweep(scheduler);
    for (uint64_t now_ns; scheduler->dispatched && attnd_supervisor_running(scheduler->service) &&
                          (now_ns = attnd_clock_ns()) < deadline_ns;) {
        if (deadline_ns - now_ns < CANCELLED_NS)
            cancel_all(scheduler);
        (void)attnd_wake_wait(&queue->head->retire_tail, queue->retires.index,
                              &queue->head->retire_need, DRAIN_STEP_NS);
        (void)attnd_retire_sweep(scheduler);
    }
    attnd_sched_flush(scheduler);
}
