/*
 * retire.c - what the worker finished, and what it will never finish.
 *
 * A retire gives back everything the run held, completes the operation and lets its lane go on;
 * only when the ring is empty do lanes that wait take a step, so that they find all there is. A
 * dead worker retires nothing: its runs, and what is queued behind them, are answered
 * -ATTND_E_WORKER_RESTARTED, because a later operation of a lane may depend on an earlier one. What
 * it was sent beside runs is as good as acked.
 */
#include "service/sched/retire.h"

#include "schemas/atomics.h"
#include "schemas/crash.h"
#include "service/sched/complete.h"
#include "service/sched/dispatch.h"
#include "service/sched/flush.h"
#include "service/sched/lane.h"
#include "service/sched/sched.h"
#include "service/sched/scheduler.h"
#include "service/supervise/queue.h"

static void count_work(struct attnd_work_stats *stats, const struct attnd_retire *retire)
{
    stats->busy_ns += retire->busy_ns;
    stats->kv_bytes += retire->kv_bytes;
    stats->tiles += retire->tiles;
}

/* Why a dispatched run ends otherwise than it should. */
static void fault_for(struct attnd_sched_op *op, int code)
{
    /* A deadline has passed even if the run was done a moment later; a cancelled run that was done
     * all the same is good. */
    if (op->verdict == -ATTND_E_TIMEOUT)
        code = op->verdict;
    if (code == -ATTND_E_TIMEOUT)
        attnd_deadline_fault(op);
    else if (code != 0)
        attnd_fault_set(&op->fault, code < 0 ? code : -ATTND_E_UNSUPPORTED, ATTND_F_NONE, 0, 0, 0);
}

static void retire_one(struct attnd_scheduler *scheduler, const struct attnd_retire *retire)
{
    if (retire->kind > ATTND_COMMAND_RUN) {
        if (attnd_control_command_retired(scheduler->prepared_runs, retire) < 0)
            scheduler->queue->broken = 1;
        return;
    }
    if (retire->run >= ATTND_QUEUE_RUNS || !scheduler->slots[retire->run].op) {
        scheduler->queue->broken = 1;
        return;
    }
    struct attnd_sched_op *op = scheduler->slots[retire->run].op;
    struct attnd_lane *lane = op->lane;
    struct attnd_client_lanes *session = lane->session;
    struct attnd_client *client = session->client;
    struct attnd_works *works = attnd_sched_works(session);
    struct attnd_account *before = attnd_work_enter(works, &client->account);
    scheduler->now_ns = 0;
    count_work(&client->stats, retire);
    count_work(&scheduler->service->totals, retire);
    fault_for(op, retire->code);

    attnd_dispatch_release(scheduler, retire->run);
    attnd_lane_pop(lane);
    lane->state = ATTND_LANE_IDLE;
    uint64_t end_ns = retire->end_ns ? retire->end_ns : attnd_sched_now(scheduler);
    attnd_complete(op, retire->begin_ns ? retire->begin_ns : end_ns, end_ns);
    if (session->closing)
        attnd_lanes_drain(session);
    else
        attnd_lane_go(lane);
    (void)attnd_work_leave(works, before);
}

int attnd_retire_sweep(struct attnd_scheduler *scheduler)
{
    struct attnd_works *works = &scheduler->service->works;
    struct attnd_retire retire;
    int rc, moved = 0;
    while ((rc = attnd_consumer_pop(&scheduler->queue->retires, &retire)) > 0) {
        attnd_crash(ATTND_CRASH_DAEMON_RETIRE_TAKEN);
        retire_one(scheduler, &retire);
        moved++;
        if (attnd_work_turn_spent(works))
            break;
    }
    if (rc < 0)
        scheduler->queue->broken = 1;
    if (moved)
        attnd_lane_retry(scheduler);
    return moved;
}

/* The first operation of a lost lane. Return: 1 there is more; 0 the lane goes on. */
static int fail_first(struct attnd_lane *lane)
{
    if (lane->head) {
        struct attnd_sched_op *op = attnd_lane_pop(lane);
        const uint64_t now_ns = attnd_sched_now(lane->session->scheduler);
        fault_for(op, op->verdict ? op->verdict : -ATTND_E_WORKER_RESTARTED);
        attnd_complete(op, now_ns, now_ns);
    }
    if (!lane->head)
        lane->state = ATTND_LANE_IDLE;
    return lane->head != NULL;
}

int attnd_retire_lost_go(struct attnd_work *work)
{
    struct attnd_client_lanes *session =
        (struct attnd_client_lanes *)(void *)((char *)work -
                                              offsetof(struct attnd_client_lanes, lost_work));

    session->scheduler->now_ns = 0;
    for (uint32_t i = 0; i < ATTND_LANES_MAX; i++)
        while (session->lane[i].state == ATTND_LANE_LOST) {
            (void)fail_first(&session->lane[i]);
            if (attnd_work_spent(attnd_sched_works(session)))
                return 1;
        }
    return 0;
}

void attnd_retire_lost(struct attnd_scheduler *scheduler)
{
    attnd_sched_pause(scheduler);
    while (attnd_retire_sweep(scheduler) > 0)
        ; /* what it finished is good */
    for (uint32_t run = 0; run < ATTND_QUEUE_RUNS; run++) {
        struct attnd_sched_op *op = scheduler->slots[run].op;
        if (!op)
            continue;
        struct attnd_lane *lane = op->lane;
        struct attnd_client_lanes *session = lane->session;
        attnd_dispatch_release(scheduler, run);
        lane->state = ATTND_LANE_LOST;
        if (!session->closing) {
            attnd_work_start(attnd_sched_works(session), &session->client->account,
                             &session->lost_work);
            continue;
        }
        while (fail_first(lane)) /* what was queued behind it goes in pieces, or has gone */
            ;
        attnd_lanes_drain(session);
    }
    attnd_prepared_lost(scheduler->prepared_runs);
    attnd_queue_abandon(scheduler->queue);
    attnd_sched_flush(scheduler);
}
