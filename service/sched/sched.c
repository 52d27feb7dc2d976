/*
 * sched.c - sessions in and out, and the sweep.
 *
 * The loop sweeps: retires first, because they make room, then each session's ring. Doorbells and
 * notifications wait for the end (flush.c). Timer and worker events end with the same flush.
 */
#include "service/sched/lanes.h"

#include "schemas/atomics.h"
#include "service/supervise/supervise.h"

#include <stdlib.h>

#define DRAIN_STEP_NS 1000000u

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
    scheduler->timer_ns = UINT64_MAX;
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
    const uint64_t bytes =
        sizeof(*session) + ops * sizeof(session->ops[0]) + ops * sizeof(*session->results.mark);
    int rc = attnd_quota_charge(client, bytes, fault);
    if (rc < 0)
        return rc;
    session = calloc(1, sizeof(*session) + ops * sizeof(session->ops[0]));
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
    session->scheduler = scheduler;
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++)
        session->lane[i].session = session;
    for (uint32_t i = 0; i < ops; i++) {
        session->ops[i].next = session->free_ops;
        session->free_ops = &session->ops[i];
    }
    session->index = scheduler->open_count;
    scheduler->open[scheduler->open_count++] = session;
    client->lanes = session;
    return 0;
}

/* A closing session's lane: what the worker has is asked to stop, the rest is dropped. */
static void drop_lane(struct attnd_lane *lane)
{
    struct attnd_scheduler *scheduler = lane->session->scheduler;
    struct attnd_sched_op *kept = NULL;
    if (lane->state == ATTND_LANE_SENT || lane->state == ATTND_LANE_PLANNING) {
        kept = attnd_lane_pop(lane);
    } else if (lane->state == ATTND_LANE_DISPATCHED) {
        kept = attnd_lane_pop(lane);
        attnd_poke32(&scheduler->queue->runs[kept->run].cancel, 1);
    } else {
        attnd_lane_unlist(lane);
    }
    while (lane->head)
        attnd_op_free(attnd_lane_pop(lane));
    if (kept)
        attnd_lane_push(lane, kept);
}

void attnd_sched_close(struct attnd_client *client)
{
    struct attnd_client_lanes *session = client->lanes;
    if (!session) {
        client->service->scheduler->events.drained(client); /* it never came to operations */
        return;
    }
    if (session->closing)
        return;
    struct attnd_scheduler *scheduler = session->scheduler;
    session->closing = 1;
    scheduler->dirty_count -= (uint32_t)session->dirty;
    scheduler->open_busy -= session->dispatched > 0;
    struct attnd_client_lanes *last = scheduler->open[--scheduler->open_count];
    scheduler->open[session->index] = last;
    last->index = session->index;

    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++)
        drop_lane(&session->lane[i]);
    attnd_prepared_close(client);
    attnd_prefix_close(session);
    attnd_lanes_drain(session);
    /* Lanes of others may have stood behind this session's. No flush: one may have led here, and
     * the loop sweeps before it sleeps. */
    attnd_lane_retry(scheduler);
}

/* ---- the sweep ---- */

int attnd_sched_sweep(void *context)
{
    struct attnd_service *service = context;
    struct attnd_scheduler *scheduler = service->scheduler;
    if (!scheduler)
        return 0;

    int moved = attnd_retire_sweep(scheduler);
    if (!service->stopping)
        for (uint32_t i = 0; i < scheduler->open_count; i++)
            moved += attnd_submit_sweep(scheduler->open[i]);
    attnd_sched_flush(scheduler);
    /* The end of a session that was killed just now may have let others go on: they and the worker
     * learn of it by the next sweep, so there must be one before the loop sleeps. */
    return moved + (scheduler->queue->pushed || scheduler->dirty_count);
}

int attnd_sched_caught_up(struct attnd_client *client)
{
    struct attnd_client_lanes *session = client->lanes;
    const struct attnd_consumer *sq = &client->sq;
    if (!session->call_waits) {
        session->call_waits = 1;
        session->call_tail = attnd_observe32(sq->tail); /* A1 */
    }
    uint32_t index = sq->index;
    (void)attnd_sched_sweep(client->service);
    if (client->state != ATTND_CLIENT_OPEN)
        return 1;
    /* Where nothing moves there is no room for completions, and only the client can make some; or
     * a large batch of the session is being planned. */
    if ((sq->index != index || session->planning) && (int32_t)(session->call_tail - sq->index) > 0)
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

/* Lets runs that the worker has come to their end; what is queued stays queued. */
void attnd_sched_drain(struct attnd_scheduler *scheduler, uint64_t deadline_ns)
{
    struct attnd_queue *queue = scheduler->queue;
    attnd_sched_pause(scheduler);
    attnd_planner_free(scheduler->planner);
    scheduler->planner = NULL;
    (void)attnd_retire_sweep(scheduler);
    while (scheduler->dispatched && attnd_supervisor_running(scheduler->service) &&
           attnd_clock_ns() < deadline_ns) {
        (void)attnd_wake_wait(&queue->head->retire_tail, queue->retires.index,
                              &queue->head->retire_need, DRAIN_STEP_NS);
        (void)attnd_retire_sweep(scheduler);
    }
    attnd_sched_flush(scheduler);
}
