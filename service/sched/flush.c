/*
 * flush.c - what happens once at the end of every entry into the scheduler.
 *
 * A sweep, a timer and an event of the worker may each complete many operations and push many
 * commands. The wake-ups wait for the end, so that a burst costs one for each side; completions
 * themselves are visible at once to a client that spins. A session or a worker that broke its ring
 * is ended here, too, because nothing of the scheduler is in the middle of anything.
 */
#include "service/sched/flush.h"

#include "service/objects/quota.h"
#include "service/objects/wakes.h"
#include "service/sched/admit.h"
#include "service/sched/sched.h"
#include "service/sched/scheduler.h"
#include "service/supervise/queue.h"
#include "service/supervise/supervise.h"

#include <stdlib.h>

void attnd_sched_pause(struct attnd_scheduler *scheduler)
{
    scheduler->queue->accepting = 0;
}

void attnd_lanes_drain(struct attnd_client_lanes *session)
{
    struct attnd_client *client = session->client;
    struct attnd_scheduler *scheduler = session->scheduler;
    if (!session->closed || session->dispatched || session->sent || session->planning ||
        client->mail)
        return;
    client->lanes = NULL;
    attnd_admitted_free(client, session->spare);
    attnd_quota_refund(client->service, attnd_quota_payer(client), session->charged_bytes);
    free(session->results.mark);
    free(session);
    scheduler->events.drained(client);
}

/* May free the session; another has its place in the list then. */
static void flush_session(struct attnd_client_lanes *session)
{
    struct attnd_client *client = session->client;
    if (!session->dirty)
        return;
    if (session->broken) {
        session->scheduler->events.broken(client, "impossible ring index");
        return;
    }
    session->dirty = 0;
    session->scheduler->dirty_count--;
    attnd_client_knock(client);
}

void attnd_sched_flush(struct attnd_scheduler *scheduler)
{
    scheduler->now_ns = 0;
    if (scheduler->queue->pushed)
        attnd_queue_ring(scheduler->queue);
    for (uint32_t i = scheduler->open_count; i > 0 && scheduler->dirty_count; i--)
        flush_session(scheduler->open[i - 1]);
    if (scheduler->queue->broken)
        attnd_supervisor_kill(scheduler->service->supervisor, "impossible ring index");
}
