/*
 * sched.c - sessions in and out, the sweep, and what happens once at the end of it.
 *
 * The loop sweeps: retires first, because they make room, then each session's ring. Doorbells and
 * notifications wait for the end (attnd_sched_flush), so that a burst costs one wake-up for each
 * side; completions themselves are visible at once to a client that spins. Timer and worker
 * events end with the same flush.
 */
#include "service/sched/sched.h"

#include "schemas/atomics.h"
#include "service/prefix/prefix.h"
#include "service/prepared/prepared.h"
#include "service/supervise/supervise.h"

#include <stdlib.h>

int attnd_sched_new(struct attnd_service *service, struct attnd_queue *queue,
                    const struct attnd_maps *maps, struct attnd_scheduler **out)
{
    struct attnd_scheduler *scheduler = calloc(1, sizeof(*scheduler));
    if (!scheduler)
        return -ATTND_E_NO_MEMORY;
    scheduler->service = service;
    scheduler->queue = queue;
    scheduler->maps = maps;
    scheduler->timer_ns = UINT64_MAX;
    for (uint32_t run = 0; run < ATTND_QUEUE_RUNS; run++)
        scheduler->slots[run].next_free = run + 1 < ATTND_QUEUE_RUNS ? run + 1 : ATTND_NONE;
    int rc = attnd_prepared_new(scheduler, &scheduler->prepared_runs);
    if (rc < 0) {
        free(scheduler);
        return rc;
    }
    *out = scheduler;
    return 0;
}

void attnd_sched_free(struct attnd_scheduler *scheduler)
{
    if (!scheduler)
        return;
    attnd_heap_destroy(&scheduler->scratch);
    attnd_prepared_free(scheduler->prepared_runs);
    free(scheduler);
}

int attnd_sched_resume(struct attnd_scheduler *scheduler, uint64_t scratch_bytes)
{
    /* Prepared runs keep theirs, so it must not be what others wait for. */
    int watches = scheduler->queue->info.mailbox_kind != 0;
    uint64_t all_bytes = scratch_bytes / ATTND_CACHE_LINE * ATTND_CACHE_LINE;
    uint64_t ring_bytes = watches ? all_bytes / 2 / ATTND_CACHE_LINE * ATTND_CACHE_LINE : all_bytes;
    int rc = attnd_heap_reset(&scheduler->scratch, 0, ring_bytes);
    scheduler->ready = rc == 0;
    if (rc == 0)
        rc = attnd_prepared_resume(scheduler->prepared_runs, ring_bytes, all_bytes);
    if (rc < 0) {
        scheduler->ready = 0;
        return rc;
    }
    attnd_lane_retry(scheduler);
    attnd_sched_flush(scheduler);
    return 0;
}

void attnd_sched_pause(struct attnd_scheduler *scheduler)
{
    scheduler->ready = 0;
}

uint64_t attnd_sched_now(struct attnd_scheduler *scheduler)
{
    if (!scheduler->now_ns)
        scheduler->now_ns = attnd_clock_ns();
    return scheduler->now_ns;
}

/* ---- sessions ---- */

int attnd_sched_open(struct attnd_client *client)
{
    struct attnd_scheduler *scheduler = client->service->scheduler;
    uint32_t ops = client->ring_entries;
    struct attnd_session_lanes *session =
        calloc(1, sizeof(*session) + ops * sizeof(session->ops[0]));
    if (!session)
        return -ATTND_E_NO_MEMORY;
    session->results.mark = calloc(ops, sizeof(*session->results.mark));
    if (!session->results.mark) {
        free(session);
        return -ATTND_E_NO_MEMORY;
    }
    session->results.words =
        (int32_t *)(void *)((char *)client->completion.address + client->results_offset_bytes);
    session->client = client;
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
    if (lane->state == ATTND_LANE_SENT) {
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
    struct attnd_session_lanes *session = client->lanes;
    if (!session) {
        attnd_client_drained(client); /* it never came to operations */
        return;
    }
    if (session->closing)
        return;
    struct attnd_scheduler *scheduler = session->scheduler;
    session->closing = 1;
    scheduler->dirty_count -= (uint32_t)session->dirty;
    struct attnd_session_lanes *last = scheduler->open[--scheduler->open_count];
    scheduler->open[session->index] = last;
    last->index = session->index;

    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++)
        drop_lane(&session->lane[i]);
    attnd_prepared_close(client);
    attnd_prefix_close(session);
    attnd_sched_drain(session);
    /* Lanes of others may have stood behind this session's. No flush: one may have led here, and
     * the loop sweeps before it sleeps. */
    attnd_lane_retry(scheduler);
}

void attnd_sched_drain(struct attnd_session_lanes *session)
{
    struct attnd_client *client = session->client;
    if (session->dispatched || session->sent || client->mail)
        return;
    client->lanes = NULL;
    free(session->results.mark);
    free(session);
    attnd_client_drained(client);
}

/* ---- the sweep ---- */

/* May free the session; another has its place in the list then. */
static void flush_session(struct attnd_session_lanes *session)
{
    struct attnd_client *client = session->client;
    if (!session->dirty)
        return;
    if (session->broken) {
        attnd_client_kill(client, "impossible ring index");
        return;
    }
    session->dirty = 0;
    session->scheduler->dirty_count--;
    struct attnd_submit_head *head = client->submission.address;
    const struct attnd_doorbell doorbell = {.need = &head->cq_need, .fd = client->notify_fd};
    (void)attnd_doorbell_ring(&doorbell);
}

void attnd_sched_flush(struct attnd_scheduler *scheduler)
{
    scheduler->now_ns = 0;
    if (scheduler->commands_pushed) {
        scheduler->commands_pushed = 0;
        attnd_queue_ring(scheduler->queue);
    }
    for (uint32_t i = scheduler->open_count; i > 0 && scheduler->dirty_count; i--)
        flush_session(scheduler->open[i - 1]);
    if (scheduler->queue_broken)
        attnd_supervisor_kill(scheduler->service->supervisor, "impossible ring index");
}

int attnd_data_sweep(void *context)
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
     * are told by the next sweep, so there must be one before the loop sleeps. */
    return moved + (scheduler->commands_pushed || scheduler->dirty_count);
}

int attnd_data_caught_up(struct attnd_client *client)
{
    struct attnd_session_lanes *session = client->lanes;
    const struct attnd_consumer *sq = &client->sq;
    if (!session->call_waits) {
        session->call_waits = 1;
        session->call_tail = attnd_observe32(sq->tail); /* A1 */
    }
    uint32_t index = sq->index;
    (void)attnd_data_sweep(client->service);
    if (client->state != ATTND_SESSION_OPEN)
        return 1;
    /* Where nothing moves there is no room for completions, and only the client can make some. */
    if (sq->index != index && (int32_t)(session->call_tail - sq->index) > 0)
        return 0;
    session->call_waits = 0;
    return 1;
}

int attnd_data_expecting(void *context)
{
    const struct attnd_service *service = context;
    return service->scheduler && service->scheduler->dispatched > 0;
}

void attnd_data_asleep(void *context, int asleep)
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
