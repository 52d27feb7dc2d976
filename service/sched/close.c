/*
 * close.c - the end of a session's lanes.
 *
 * At once nothing of it is taken in or given a turn any more, and what the worker has is asked to
 * stop. What is queued, matches and claims that wait, and what is claimed of prefixes is given up
 * in pieces, because there may be many. When that is done, and the worker and the planner have
 * nothing of it, it is drained.
 */
#include "service/sched/close.h"

#include "schemas/atomics.h"
#include "service/sched/claim.h"
#include "service/sched/complete.h"
#include "service/sched/flush.h"
#include "service/sched/lane.h"
#include "service/sched/parked.h"
#include "service/sched/sched.h"
#include "service/sched/scheduler.h"

#include <stddef.h>

/* What the worker or the planner has of a lane stays until they are done with it. */
static int keeps_head(const struct attnd_lane *lane)
{
    return lane->state == ATTND_LANE_SENT || lane->state == ATTND_LANE_PLANNING ||
           lane->state == ATTND_LANE_DISPATCHED;
}

static int drop_one(struct attnd_lane *lane)
{
    struct attnd_sched_op *op = keeps_head(lane) ? lane->head->next : lane->head;

    if (!op)
        return 0;
    attnd_lane_remove(lane, op);
    attnd_op_free(op);
    return 1;
}

/* One operation more. Return: 1 there is more. */
static int close_some(struct attnd_client_lanes *session)
{
    if (session->close_lane < ATTND_LANES_MAX) {
        session->close_lane += !drop_one(&session->lane[session->close_lane]);
        return 1;
    }
    return attnd_claim_close(session) || attnd_prefix_close(session);
}

int attnd_session_close_go(struct attnd_work *work)
{
    struct attnd_client_lanes *session =
        (struct attnd_client_lanes *)(void *)((char *)work -
                                              offsetof(struct attnd_client_lanes, close_work));
    struct attnd_scheduler *scheduler = session->scheduler;

    while (close_some(session))
        if (attnd_work_spent(&scheduler->service->works))
            return 1;
    session->closed = 1;
    attnd_lanes_drain(session);
    /* Lanes of others may have stood behind this session's. No flush: one may have led here, and
     * the loop sweeps before it sleeps. */
    attnd_lane_retry(scheduler);
    return 0;
}

static void stop_works(struct attnd_client_lanes *session)
{
    attnd_work_stop(&session->ring_work);
    attnd_work_stop(&session->lanes_work);
    attnd_work_stop(&session->retry_work);
    attnd_work_stop(&session->wake_work);
    attnd_work_stop(&session->leave_work);
    attnd_work_stop(&session->expire_work);
    attnd_work_stop(&session->lost_work);
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
    stop_works(session);
    if (session->entering)
        attnd_op_free(session->entering);
    session->entering = NULL;

    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++) {
        struct attnd_lane *lane = &session->lane[i];
        if (lane->state == ATTND_LANE_DISPATCHED)
            attnd_poke32(&scheduler->queue->runs[lane->head->run].cancel, 1);
        if (keeps_head(lane))
            continue;
        attnd_lane_unlist(lane);
        (void)attnd_lane_let_plan_go(lane); /* half way through the leases of a set */
    }
    attnd_prepared_close(client);
    attnd_work_start(&client->service->works, &client->account, &session->close_work);
}
