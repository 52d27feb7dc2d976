/*
 * deadline.c - operations that end early: cancelled, or too late.
 *
 * One that is queued ends at once. One that the worker has is only asked to stop, and completes
 * when it is retired. One timer serves all sessions: it fires at the earliest deadline that was
 * armed, looks at everything in flight and arms the next; operations that end in time cost it
 * nothing. The same timer looks again at completion rings that were full when nothing else would
 * have woken the daemon (submit.c).
 */
#include "service/sched/lanes.h"

#include "schemas/atomics.h"

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
    if (op == lane->head && (lane->state == ATTND_LANE_SENT || lane->state == ATTND_LANE_PLANNING))
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

void attnd_deadline_cancel(struct attnd_client_lanes *session, uint64_t user_data)
{
    int ended = attnd_prefix_cancel(session, user_data);
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++) {
        struct attnd_lane *lane = &session->lane[i];
        for (struct attnd_sched_op *op = lane->head, *next; op; op = next) {
            next = op->next;
            if (op->sqe.user_data == user_data)
                ended += end_early(lane, op, -ATTND_E_CANCELLED);
        }
        attnd_lane_go(lane);
    }
    if (ended) /* others may have stood in line behind it */
        attnd_lane_retry(session->scheduler);
}

/* Return: the earliest deadline left in the session. */
static uint64_t expire_session(struct attnd_client_lanes *session, uint64_t now_ns)
{
    uint64_t earliest_ns = attnd_prefix_expire(session, now_ns);
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++) {
        struct attnd_lane *lane = &session->lane[i];
        for (struct attnd_sched_op *op = lane->head, *next; op; op = next) {
            next = op->next;
            if (!op->deadline_ns || op->verdict)
                continue;
            if (op->deadline_ns <= now_ns)
                end_early(lane, op, -ATTND_E_TIMEOUT);
            else if (op->deadline_ns < earliest_ns)
                earliest_ns = op->deadline_ns;
        }
        attnd_lane_go(lane);
    }
    return earliest_ns;
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
    scheduler->timer = NULL;
    scheduler->timer_ns = UINT64_MAX;

    for (uint32_t i = 0; i < scheduler->open_count; i++) {
        struct attnd_client_lanes *session = scheduler->open[i];
        uint64_t deadline_ns = expire_session(session, now_ns);
        uint64_t look_ns = look_again(session, now_ns);
        next_ns = deadline_ns < next_ns ? deadline_ns : next_ns;
        next_ns = look_ns < next_ns ? look_ns : next_ns;
    }
    if (next_ns != UINT64_MAX)
        attnd_deadline_arm(scheduler, next_ns);
    attnd_lane_retry(scheduler); /* behind what is too late */
    attnd_sched_flush(scheduler);
}

void attnd_deadline_arm(struct attnd_scheduler *scheduler, uint64_t when_ns)
{
    if (scheduler->timer && scheduler->timer_ns <= when_ns)
        return;
    attnd_deadline_stop(scheduler);
    scheduler->timer = attnd_loop_watch_timer(scheduler->service->loop, when_ns, fire, scheduler);
    scheduler->timer_ns = when_ns;
    if (!scheduler->timer)
        attnd_log(ATTND_LOG_WARNING, "no memory for a timer: timeouts come late");
}

void attnd_deadline_stop(struct attnd_scheduler *scheduler)
{
    if (scheduler->timer)
        attnd_loop_unwatch(scheduler->service->loop, scheduler->timer, NULL, NULL);
    scheduler->timer = NULL;
    scheduler->timer_ns = UINT64_MAX;
}
