/*
 * deadline.c - operations that end early: cancelled, or too late.
 *
 * One that is queued ends at once. One that the worker has is only asked to stop, and completes
 * when it is retired. One timer serves all sessions: it fires at the earliest deadline that was
 * armed, and arms the next. Those that have passed are an item of their session, so that thousands
 * that pass together are ended in pieces; operations that end in time cost the timer nothing. The
 * same timer looks again at completion rings that were full when nothing else would have woken the
 * daemon (submit.c).
 */
#include "service/sched/deadline.h"

#include "schemas/atomics.h"
#include "service/sched/claim.h"
#include "service/sched/complete.h"
#include "service/sched/deadlines.h"
#include "service/sched/flush.h"
#include "service/sched/lane.h"
#include "service/sched/parked.h"
#include "service/sched/sched.h"
#include "service/sched/scheduler.h"

#include <stddef.h>

#define STALL_NS_MAX 64000000u

/* Ends one operation with @code. Return: 1 it was queued and is gone. */
static int end_early(struct attnd_lane *lane, struct attnd_sched_op *op, int code)
{
    struct attnd_scheduler *scheduler = lane->session->scheduler;
    if (op == lane->head && lane->state == ATTND_LANE_DISPATCHED) {
        if (!op->verdict) {
            op->verdict = code;
            attnd_poke32(&scheduler->queue->runs[op->run].cancel, 1);
        }
        return 0;
    }
    if (op == lane->head &&
        (lane->state == ATTND_LANE_SENT || lane->state == ATTND_LANE_PLANNING || op->cursor > 0))
        return 0; /* half done, and soon done */
    attnd_lane_remove(lane, op);
    if (code == -ATTND_E_TIMEOUT)
        attnd_deadline_fault(op);
    else
        attnd_fault_set(&op->fault, code, ATTND_F_NONE, 0, 0, 0);
    uint64_t now_ns = attnd_sched_now(scheduler);
    attnd_complete(op, now_ns, now_ns);
    return 1;
}

/* Those of one lane. Return: 1 all; 0 the piece is over. */
static int cancel_in(struct attnd_lane *lane, uint64_t user_data, int *ended)
{
    const struct attnd_works *works = attnd_sched_works(lane->session);
    struct attnd_sched_op *next;

    for (struct attnd_sched_op *op = lane->head; op; op = next) {
        next = op->next;
        if (op->sqe.user_data != user_data)
            continue;
        *ended += end_early(lane, op, -ATTND_E_CANCELLED);
        if (next && attnd_work_spent(works))
            return 0;
    }
    return 1;
}

int attnd_deadline_cancel(struct attnd_client_lanes *session, uint64_t user_data)
{
    int ended = attnd_prefix_cancel(session, user_data) + attnd_claim_cancel(session, user_data);
    int all = 1;

    for (uint32_t i = 0; i < ATTND_LANES_MAX && all; i++) {
        all = cancel_in(&session->lane[i], user_data, &ended);
        attnd_lane_go(&session->lane[i]);
    }
    if (ended) /* others may have stood in line behind it */
        attnd_lane_retry(session->scheduler);
    return all;
}

static void expire(struct attnd_sched_op *op)
{
    struct attnd_lane *lane = op->lane;

    attnd_deadlines_remove(&lane->session->deadlines, op);
    if (op->parked) {
        attnd_prefix_expire(op);
        return;
    }
    if (op->transfer) {
        attnd_claim_expire(op);
        return;
    }
    (void)end_early(lane, op, -ATTND_E_TIMEOUT);
    attnd_lane_go(lane);
}

int attnd_deadline_expire_go(struct attnd_work *work)
{
    struct attnd_client_lanes *session =
        (struct attnd_client_lanes *)(void *)((char *)work -
                                              offsetof(struct attnd_client_lanes, expire_work));
    struct attnd_works *works = attnd_sched_works(session);
    struct attnd_sched_op *op;

    session->scheduler->now_ns = 0;
    const uint64_t now_ns = attnd_sched_now(session->scheduler);
    while ((op = attnd_deadlines_first(&session->deadlines)) && op->deadline_ns <= now_ns) {
        expire(op);
        if (attnd_work_spent(works))
            break;
    }
    attnd_lane_retry(session->scheduler); /* behind what is too late */
    op = attnd_deadlines_first(&session->deadlines);
    if (op && op->deadline_ns > now_ns)
        attnd_deadline_arm(session->scheduler, op->deadline_ns);
    return op && op->deadline_ns <= now_ns;
}

/* Return: the earliest deadline of the session that has not passed. */
static uint64_t look_for_late(struct attnd_client_lanes *session, uint64_t now_ns)
{
    const struct attnd_sched_op *op = attnd_deadlines_first(&session->deadlines);

    if (!op)
        return UINT64_MAX;
    if (op->deadline_ns > now_ns)
        return op->deadline_ns;
    attnd_work_start(attnd_sched_works(session), &session->client->account, &session->expire_work);
    op = attnd_deadlines_first(&session->deadlines);
    return op && op->deadline_ns > now_ns ? op->deadline_ns : UINT64_MAX;
}

/* Looks less and less often at a ring whose owner does not read. */
static uint64_t look_again(struct attnd_client_lanes *session, uint64_t now_ns)
{
    if (!session->stall_ns)
        return UINT64_MAX;
    if (session->stall_ns < STALL_NS_MAX)
        session->stall_ns *= 2;
    return now_ns + session->stall_ns;
}

static void fire(void *context)
{
    struct attnd_scheduler *scheduler = context;
    uint64_t now_ns = attnd_sched_now(scheduler), next_ns = UINT64_MAX;
    scheduler->timer_ns = UINT64_MAX;

    /* From the end: the last takes the place of one that is closed meanwhile. */
    for (uint32_t i = scheduler->open_count; i-- > 0;) {
        if (i >= scheduler->open_count)
            continue;
        struct attnd_client_lanes *session = scheduler->open[i];
        uint64_t deadline_ns = look_for_late(session, now_ns);
        uint64_t look_ns = look_again(session, now_ns);
        next_ns = deadline_ns < next_ns ? deadline_ns : next_ns;
        next_ns = look_ns < next_ns ? look_ns : next_ns;
    }
    if (next_ns != UINT64_MAX)
        attnd_deadline_arm(scheduler, next_ns);
    attnd_lane_retry(scheduler); /* behind what is too late */
    attnd_sched_flush(scheduler);
}

int attnd_deadline_start(struct attnd_scheduler *scheduler)
{
    scheduler->timer_ns = UINT64_MAX;
    scheduler->timer = attnd_loop_timer_new(scheduler->service->loop, fire, scheduler);
    return scheduler->timer ? 0 : -ATTND_E_NO_MEMORY;
}

void attnd_deadline_stop(struct attnd_scheduler *scheduler)
{
    attnd_loop_unwatch(scheduler->service->loop, scheduler->timer, NULL, NULL);
    scheduler->timer = NULL;
    scheduler->timer_ns = 0; /* and none is earlier */
}
