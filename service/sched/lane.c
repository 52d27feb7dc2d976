/*
 * lane.c - operations of one lane, one after the other.
 *
 * Only the head of a lane is ever under way. `enum attnd_step` (op.h) lists the ways in
 * which its step may end. The lane stands still until the worker retires the head, or acks the HOLD
 * or PUBLISH that it was sent, or the planner's thread is done, or what is missing may have come.
 * Runs that miss a slot or scratch stand in a line for all sessions (line.c). The first of it goes
 * before all others, so a large run cannot be starved by small ones. An operation that misses
 * something of its own stands apart: an advance without a free generation must not hold up the runs
 * that will free one, and a run whose memory the worker has not mapped yet must not hold up the
 * others.
 *
 * An operation reads the lengths of its plan as they are when it is submitted, however long it
 * waits: they are pinned on its way in. Behind a set or an advance in its lane it reads what that
 * leaves, and pins when that is over. So an operation that holds lengths waits for runs only, never
 * for a change, and changes that wait for a generation always get one.
 */
#include "service/sched/lane.h"

#include "service/sched/change.h"
#include "service/sched/claim.h"
#include "service/sched/complete.h"
#include "service/sched/dispatch.h"
#include "service/sched/flush.h"
#include "service/sched/line.h"
#include "service/sched/prefix_step.h"
#include "service/sched/scheduler.h"

#include <assert.h>
#include <stddef.h>

static void list_push(struct attnd_lane_list *list, struct attnd_lane *lane)
{
    lane->next = NULL;
    if (list->tail)
        list->tail->next = lane;
    else
        list->head = lane;
    list->tail = lane;
    list->count++;
}

static void list_remove(struct attnd_lane_list *list, struct attnd_lane *lane)
{
    struct attnd_lane *before = NULL;
    for (struct attnd_lane *at = list->head; at != lane; at = at->next)
        before = at;
    if (before)
        before->next = lane->next;
    else
        list->head = lane->next;
    if (list->tail == lane)
        list->tail = before;
    list->count--;
}

static void wait_in_line(struct attnd_lane *lane)
{
    struct attnd_scheduler *scheduler = lane->session->scheduler;
    lane->state = ATTND_LANE_WAITING;
    lane->since = scheduler->waited++;
    scheduler->waiting_count++;
    list_push(&lane->session->waiting, lane);
}

static void leave_line(struct attnd_lane *lane)
{
    lane->session->scheduler->waiting_count--;
    list_remove(&lane->session->waiting, lane);
}

static void block(struct attnd_lane *lane)
{
    lane->state = ATTND_LANE_BLOCKED;
    lane->session->scheduler->blocked_count++;
    list_push(&lane->session->blocked, lane);
}

static void unblock(struct attnd_lane *lane)
{
    lane->session->scheduler->blocked_count--;
    list_remove(&lane->session->blocked, lane);
}

void attnd_lane_unlist(struct attnd_lane *lane)
{
    if (lane->state == ATTND_LANE_WAITING)
        leave_line(lane);
    else if (lane->state == ATTND_LANE_READY)
        list_remove(&lane->session->ready, lane);
    else if (lane->state == ATTND_LANE_BLOCKED)
        unblock(lane);
    else
        return;
    lane->state = ATTND_LANE_IDLE;
}

static int is_change(const struct attnd_sched_op *op)
{
    return op->plan &&
           (op->sqe.opcode == ATTND_OP_PLAN_SET || op->sqe.opcode == ATTND_OP_PLAN_ADVANCE);
}

/* Where the plan is being changed by another lane, the step of the operation pins. */
static void pin(struct attnd_sched_op *op)
{
    struct attnd_plan_object *plan = op->plan;
    if (plan && plan->filled && !plan->planning && !attnd_prepared_taken(plan))
        attnd_planobj_pin(plan, &op->lengths);
}

static void leaves(struct attnd_lane *lane, const struct attnd_sched_op *op)
{
    if (!is_change(op))
        return;
    lane->changes--;
    for (struct attnd_sched_op *at = lane->head; at && !is_change(at); at = at->next)
        pin(at);
}

uint32_t attnd_lane_users(const struct attnd_sched_op *op)
{
    const struct attnd_client_lanes *session = op->lane->session;
    uint32_t users = 0;
    for (const struct attnd_lane *lane = session->lane; lane < session->lane + ATTND_LANES_MAX;
         lane++)
        for (const struct attnd_sched_op *at = lane == op->lane ? NULL : lane->head;
             at && !is_change(at); at = at->next)
            users += at->plan == op->plan;
    return users;
}

void attnd_lane_push(struct attnd_lane *lane, struct attnd_sched_op *op)
{
    op->lane = lane;
    lane->changes += (uint32_t)is_change(op);
    if (lane->changes == 0)
        pin(op);
    op->next = NULL;
    op->previous = lane->tail;
    if (lane->tail)
        lane->tail->next = op;
    else
        lane->head = op;
    lane->tail = op;
}

struct attnd_sched_op *attnd_lane_pop(struct attnd_lane *lane)
{
    struct attnd_sched_op *op = lane->head;
    lane->head = op->next;
    if (lane->head)
        lane->head->previous = NULL;
    else
        lane->tail = NULL;
    leaves(lane, op);
    return op;
}

void attnd_lane_remove(struct attnd_lane *lane, struct attnd_sched_op *op)
{
    if (op == lane->head) {
        assert(lane->state != ATTND_LANE_DISPATCHED);
        attnd_lane_unlist(lane);
        attnd_lane_pop(lane);
        return;
    }
    op->previous->next = op->next;
    if (op->next)
        op->next->previous = op->previous;
    else
        lane->tail = op->previous;
    leaves(lane, op);
}

static enum attnd_step take_step(struct attnd_sched_op *op, int in_line)
{
    if (op->prefix)
        return attnd_prefix_step(op);
    if (op->into)
        return op->sqe.opcode == ATTND_OP_PAGES_READY ? attnd_ready_step(op) : attnd_claim_step(op);
    if (!op->plan)
        return ATTND_STEP_DONE; /* refused on the way in */
    switch (op->sqe.opcode) {
    case ATTND_OP_PLAN_SET:
        return attnd_change_set(op);
    case ATTND_OP_PLAN_ADVANCE:
        return attnd_change_advance(op);
    default:
        return attnd_dispatch_run(op, in_line);
    }
}

/* The head is done without the worker. */
static void finish_head(struct attnd_lane *lane)
{
    struct attnd_scheduler *scheduler = lane->session->scheduler;
    struct attnd_sched_op *op = attnd_lane_pop(lane);
    uint64_t begin_ns = op->begin_ns ? op->begin_ns : attnd_sched_now(scheduler);
    uint64_t end_ns = begin_ns;
    if (op->sqe.opcode != ATTND_OP_RUN && op->sqe.opcode != ATTND_OP_APPEND &&
        op->sqe.opcode != ATTND_OP_MERGE) {
        end_ns = attnd_clock_ns();
        scheduler->now_ns = end_ns;
    }
    attnd_complete(op, begin_ns, end_ns);
}

/* One step of the head. */
static void end_step(struct attnd_lane *lane, enum attnd_step step)
{
    switch (step) {
    case ATTND_STEP_DONE:
        finish_head(lane);
        break;
    case ATTND_STEP_MORE:
        break;
    case ATTND_STEP_DISPATCHED:
        lane->state = ATTND_LANE_DISPATCHED;
        break;
    case ATTND_STEP_WAIT:
        wait_in_line(lane);
        break;
    case ATTND_STEP_BLOCKED:
        block(lane);
        break;
    case ATTND_STEP_SENT:
        lane->state = ATTND_LANE_SENT;
        lane->session->sent++;
        break;
    case ATTND_STEP_PLANNING:
        lane->state = ATTND_LANE_PLANNING;
        lane->session->planning++;
        break;
    case ATTND_STEP_PARKED:
        attnd_claim_listed(attnd_lane_pop(lane));
        break;
    }
}

static void be_ready(struct attnd_lane *lane)
{
    struct attnd_client_lanes *session = lane->session;

    lane->state = ATTND_LANE_READY;
    list_push(&session->ready, lane);
    attnd_work_queue(attnd_sched_works(session), &session->client->account, &session->lanes_work);
}

void attnd_lane_go(struct attnd_lane *lane)
{
    struct attnd_works *works = attnd_sched_works(lane->session);

    while (lane->state == ATTND_LANE_IDLE && lane->head) {
        end_step(lane, take_step(lane->head, 1));
        if (lane->state == ATTND_LANE_IDLE && lane->head && attnd_work_spent(works))
            be_ready(lane);
    }
}

int attnd_lane_ready_go(struct attnd_work *work)
{
    struct attnd_client_lanes *session =
        (struct attnd_client_lanes *)(void *)((char *)work -
                                              offsetof(struct attnd_client_lanes, lanes_work));
    struct attnd_works *works = attnd_sched_works(session);

    session->scheduler->now_ns = 0;
    while (session->ready.head) {
        struct attnd_lane *lane = session->ready.head;
        attnd_lane_unlist(lane);
        attnd_lane_go(lane);
        if (attnd_work_spent(works))
            break;
    }
    return session->ready.head != NULL;
}

void attnd_lane_acked(struct attnd_plan_change *change, uint32_t kind)
{
    struct attnd_sched_op *op =
        (struct attnd_sched_op *)(void *)((char *)change - offsetof(struct attnd_sched_op, change));
    struct attnd_lane *lane = op->lane;
    struct attnd_client_lanes *session = lane->session;

    if (attnd_prepared_acked(change, kind, session->closing))
        return;
    session->sent--;
    lane->state = ATTND_LANE_IDLE;
    if (!session->closing) {
        attnd_lane_go(lane);
        return;
    }
    attnd_op_free(attnd_lane_pop(lane));
    attnd_lanes_drain(session);
}

int attnd_lane_let_plan_go(struct attnd_lane *lane)
{
    struct attnd_sched_op *op = lane->head;

    if (!op || !op->change.sent || !attnd_prepared_publish(&op->change))
        return 0;
    lane->state = ATTND_LANE_SENT;
    lane->session->sent++;
    return 1;
}

void attnd_lane_planned(struct attnd_sched_op *op)
{
    struct attnd_lane *lane = op->lane;
    struct attnd_client_lanes *session = lane->session;

    session->planning--;
    lane->state = ATTND_LANE_IDLE;
    if (!session->closing) {
        attnd_lane_go(lane);
        return;
    }
    if (attnd_lane_let_plan_go(lane))
        return;
    attnd_op_free(attnd_lane_pop(lane));
    attnd_lanes_drain(session);
}

/* The first of the line takes its step, on its session's account. Return: 0 it still waits. */
static int retry_first(struct attnd_lane *lane)
{
    struct attnd_works *works = attnd_sched_works(lane->session);
    struct attnd_account *before = attnd_work_enter(works, &lane->session->client->account);
    const enum attnd_step step = take_step(lane->head, 0); /* a run: none is sent ahead */

    if (step != ATTND_STEP_WAIT) {
        attnd_lane_unlist(lane);
        end_step(lane, step);
        attnd_lane_go(lane);
    }
    (void)attnd_work_leave(works, before);
    return step != ATTND_STEP_WAIT;
}

/* The rest of a long line goes on by turns. */
static void retry_waiting(struct attnd_scheduler *scheduler)
{
    struct attnd_works *works = &scheduler->service->works;
    const uint64_t begin_ns = scheduler->waiting_count ? attnd_clock_ns() : 0;
    struct attnd_lane *lane;

    while ((lane = attnd_line_next(scheduler)) && retry_first(lane))
        if (attnd_clock_ns() - begin_ns >= ATTND_WORK_SPENT_NS) {
            attnd_work_queue(works, &scheduler->line_account, &scheduler->line_work);
            return;
        }
}

int attnd_lane_line_go(struct attnd_work *work)
{
    struct attnd_scheduler *scheduler =
        (struct attnd_scheduler *)(void *)((char *)work -
                                           offsetof(struct attnd_scheduler, line_work));

    scheduler->now_ns = 0;
    retry_waiting(scheduler);
    return 0;
}

int attnd_lane_retry_go(struct attnd_work *work)
{
    struct attnd_client_lanes *session =
        (struct attnd_client_lanes *)(void *)((char *)work -
                                              offsetof(struct attnd_client_lanes, retry_work));
    const struct attnd_works *works = attnd_sched_works(session);

    session->scheduler->now_ns = 0;
    /* Each blocked lane once, now or by turns: those still blocked come to stand behind the count.
     */
    for (uint32_t count = session->blocked.count; count > 0; count--) {
        struct attnd_lane *lane = session->blocked.head;
        attnd_lane_unlist(lane);
        if (attnd_work_spent(works))
            be_ready(lane);
        else
            attnd_lane_go(lane);
    }
    return 0;
}

void attnd_lane_retry(struct attnd_scheduler *scheduler)
{
    attnd_control_command_pump(scheduler->prepared_runs);
    /* From the end: the last takes the place of one that is closed meanwhile. */
    for (uint32_t i = scheduler->open_count; i-- > 0 && scheduler->blocked_count;) {
        struct attnd_client_lanes *session = i < scheduler->open_count ? scheduler->open[i] : NULL;
        if (session && session->blocked.count)
            attnd_work_start(&scheduler->service->works, &session->client->account,
                             &session->retry_work);
    }
    retry_waiting(scheduler);
}
