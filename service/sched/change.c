/*
 * change.c - the step of a set or an advance: the operations that change a plan.
 *
 * A plan that nobody can launch a run of is changed at once. Otherwise the step comes up to three
 * times: a HOLD is sent, the plan is changed, a PUBLISH is sent, and its ack is the end. What was
 * sent last stands in the operation.
 *
 * What takes long is planned by a thread of its own (planner.c): a large set, a long advance, one
 * that plans again. The step goes on when that is done. Meanwhile operations of other lanes that
 * want the plan wait.
 *
 * All or nothing: tiles are built beside the plan that is there, room for them is found, and only
 * then are they written. A set that is refused leaves the batch before it. What was submitted
 * behind it in its lane, by an engine that could not know, is refused with it (struct
 * attnd_refusal).
 */
#include "service/sched/change.h"

#include "service/objects/arrival.h"
#include "service/objects/image.h"
#include "service/sched/flush.h"
#include "service/sched/lane.h"
#include "service/sched/planner.h"
#include "service/sched/scheduler.h"

#include <stddef.h>

/* Small batches are planned on the spot: in some 100 us at most. Entries and rows count; pages are
 * only copied, and compared. */
#define ENTRY_WORK 16u
#define PAGES_WORK 8u /* of them a unit */
#define INLINE_WORK 65536u
/* An advance only copies its lengths and pages. */
#define INLINE_WORDS 32768u

static uint64_t work_of(const struct attnd_batch_view *batch)
{
    return (uint64_t)ENTRY_WORK * batch->entries + batch->rows + batch->pages / PAGES_WORK;
}

static struct attnd_plan_change *change_of(struct attnd_sched_op *op)
{
    op->change.client = op->lane->session->client;
    op->change.plan = op->plan;
    return &op->change;
}

/* Operations of other lanes on this plan; what is queued behind @op in its own lane does not
 * count, and nothing of it is under way. */
static uint32_t elsewhere(const struct attnd_sched_op *op)
{
    uint32_t here = 0;
    if (op->plan->in_flight == 1)
        return 0;
    for (const struct attnd_sched_op *at = op; at; at = at->next)
        here += at->plan == op->plan;
    return op->plan->in_flight - here;
}

static struct attnd_sched_op *op_of(struct attnd_planner_job *job)
{
    return (struct attnd_sched_op *)(void *)((char *)job - offsetof(struct attnd_sched_op, job));
}

/* Tiles are made: first built, then written. An advance that makes none is done at once. */
static int makes_tiles(const struct attnd_sched_op *op)
{
    return op->sqe.opcode == ATTND_OP_PLAN_SET || op->generation == ATTND_NONE;
}

static void build(struct attnd_sched_op *op)
{
    if (op->sqe.opcode == ATTND_OP_PLAN_SET)
        (void)attnd_planobj_build(op->plan, &op->admitted->u.batch, &op->fault);
    else
        (void)attnd_planobj_plan_advance(op->plan, &op->admitted->u.advance, op->generation,
                                         &op->fault);
}

static void write(struct attnd_sched_op *op)
{
    if (op->sqe.opcode == ATTND_OP_PLAN_SET)
        attnd_planobj_write(op->plan, &op->admitted->u.batch);
    else
        attnd_planobj_write_advance(op->plan, &op->admitted->u.advance);
}

static void plan(struct attnd_planner_job *job)
{
    struct attnd_sched_op *op = op_of(job);
    if (op->stage == ATTND_CHANGE_NEW)
        build(op);
    else
        write(op);
}

static void count_stage(struct attnd_sched_op *op)
{
    if (op->fault.code == 0)
        op->stage = op->stage == ATTND_CHANGE_NEW && makes_tiles(op) ? ATTND_CHANGE_BUILT
                                                                     : ATTND_CHANGE_WRITTEN;
}

/* The service ends before it is planned. */
static void cancel(struct attnd_sched_op *op)
{
    attnd_fault_set(&op->fault, -ATTND_E_CANCELLED, ATTND_F_NONE, 0, 0, 0);
}

static void planned(struct attnd_planner_job *job, int worked)
{
    struct attnd_sched_op *op = op_of(job);
    op->plan->planning = 0;
    if (worked)
        count_stage(op);
    else
        cancel(op);
    attnd_lane_planned(op);
}

static void after_planning(void *context)
{
    struct attnd_scheduler *scheduler = context;
    attnd_lane_retry(scheduler); /* others may have waited for the plan */
    attnd_sched_flush(scheduler);
}

/* Return: 1 the thread has it; 0 there is no thread, with a fault if there will be none. */
static int lend(struct attnd_sched_op *op)
{
    struct attnd_client_lanes *session = op->lane->session;
    struct attnd_scheduler *scheduler = session->scheduler;
    if (scheduler->drains) {
        cancel(op);
        return 0;
    }
    if (!scheduler->planner && attnd_planner_new(scheduler->service->loop, after_planning,
                                                 scheduler, &scheduler->planner) < 0)
        return 0;
    op->plan->planning = 1;
    if (!op->begin_ns)
        op->begin_ns = attnd_sched_now(scheduler);
    op->job =
        (struct attnd_planner_job){.last = &session->planned_last, .work = plan, .done = planned};
    attnd_planner_submit(scheduler->planner, &op->job);
    return 1;
}

/* Leases of its pages, which are many. Meanwhile the plan is nobody else's. Return: 1 there are
 * more; 0. */
static int check_leases(struct attnd_sched_op *op)
{
    struct attnd_client_lanes *session = op->lane->session;
    struct attnd_works *works = attnd_sched_works(session);

    while (attnd_planobj_check(op->plan, &op->admitted->u.batch, &op->cursor, &op->fault) > 0)
        if (attnd_work_spent(works)) {
            op->plan->planning = 1;
            return 1;
        }
    if (op->plan->planning) /* others have waited for it */
        attnd_work_queue(works, &session->client->account, &session->retry_work);
    op->plan->planning = 0;
    return 0;
}

/* A launched run asks nobody whether its pages are here. */
static int check_launched(struct attnd_sched_op *op)
{
    if (!op->plan->prepared && !op->plan->image.address)
        return 0;
    return attnd_arrival_whole(op->plan->attachment, &op->plan->awaits, &op->fault);
}

/* What of its pages is on its way: of a set, beside nothing; of an advance, beside what the plan
 * waits for already. What that was is kept until nothing can be refused any more. */
static void await_pages(struct attnd_sched_op *op)
{
    const struct attnd_attachment *attachment = op->plan->attachment;
    struct attnd_plan_awaits *awaits = &op->plan->awaits;
    int more = 0;

    if (op->awaits)
        return;
    op->plan->awaits_before = *awaits;
    op->awaits = 1;
    if (op->sqe.opcode == ATTND_OP_PLAN_ADVANCE) {
        const struct attnd_advance_view *view = &op->admitted->u.advance;
        more = attnd_arrival_collect(attachment, awaits, view->page_indices, view->pages);
    } else {
        const struct attnd_batch_view *batch = &op->admitted->u.batch;
        awaits->count = 0;
        for (uint32_t i = 0; i < batch->levels && !more; i++)
            more = attnd_arrival_collect(attachment, awaits, batch->level[i].kv_indices,
                                         batch->level[i].pages);
    }
    if (more > 0)
        attnd_fault_set(&op->fault, -ATTND_E_BUSY, ATTND_F_KV_INDICES, 0, op->sqe.plan,
                        ATTND_PLAN_AWAITS_MAX);
    else
        (void)check_launched(op);
}

/* What is next of it, by the thread if it is long. Return: 1 the thread has it. */
static int go_on(struct attnd_sched_op *op, int is_long)
{
    if (is_long && lend(op))
        return 1;
    if (op->fault.code == 0) {
        plan(&op->job);
        count_stage(op);
    }
    return 0;
}

/* For the tiles that are built. */
static void make_room(struct attnd_sched_op *op)
{
    uint64_t scratch_bytes;

    if (attnd_planobj_check_scratch(op->plan, op->lane->session->scheduler->scratch.bytes,
                                    &scratch_bytes, &op->fault) == 0)
        (void)attnd_prepared_make_room(change_of(op), scratch_bytes, &op->fault);
}

/* As far as it goes. Return: 1 the thread has it; 0 it is written, or has a fault and nothing has
 * changed. */
static int make(struct attnd_sched_op *op, int is_long)
{
    while (op->fault.code == 0 && op->stage != ATTND_CHANGE_WRITTEN) {
        if (op->stage == ATTND_CHANGE_BUILT)
            make_room(op);
        if (op->fault.code == 0 && go_on(op, is_long))
            return 1;
    }
    if (op->stage == ATTND_CHANGE_BUILT)
        attnd_planobj_drop(op->plan);
    return 0;
}

/* Is anybody in the way? Return: 1 the step is over: @step. */
static int must_wait(struct attnd_sched_op *op, enum attnd_step *step)
{
    const uint32_t busy = op->change.sent ? 0 : elsewhere(op);
    *step = ATTND_STEP_DONE;
    if (busy)
        attnd_fault_set(&op->fault, -ATTND_E_BUSY, ATTND_F_PLAN, 0, op->sqe.plan, busy);
    if (busy)
        return 1;
    *step = ATTND_STEP_SENT;
    return !op->change.sent && attnd_prepared_hold(change_of(op));
}

/* With the completion goes what was found in the batch; attnd_plan_info() reads it. */
static void tell_found(struct attnd_sched_op *op)
{
    const struct attnd_plan_found found = attnd_plan_found(op->plan->plan);
    op->fault.index = found.shared_groups | (uint64_t)found.fused << 32;
    op->fault.value = (int64_t)found.bytes_saved;
}

/* It is written, or has a fault. */
static enum attnd_step end(struct attnd_sched_op *op)
{
    const int tiles = makes_tiles(op);

    if (op->fault.code != 0 && op->awaits)
        op->plan->awaits = op->plan->awaits_before;
    if (op->fault.code == 0 && tiles)
        attnd_planobj_fill(op->plan);
    else if (op->fault.code == 0)
        attnd_planobj_advanced(op->plan, op->generation);
    if (tiles && (op->fault.code == 0 || op->change.sent))
        (void)attnd_prepared_was_set(change_of(op), &op->fault);
    attnd_image_write(op->lane->session->client, op->plan, op->fault.code);
    if (op->fault.code != 0 && !op->change.sent)
        return ATTND_STEP_DONE;
    return attnd_prepared_publish(change_of(op)) ? ATTND_STEP_SENT : ATTND_STEP_DONE;
}

enum attnd_step attnd_change_set(struct attnd_sched_op *op)
{
    enum attnd_step step;

    (void)attnd_sched_now(op->lane->session->scheduler); /* the beginning, for the completion */
    if (op->change.sent == ATTND_COMMAND_PUBLISH)
        return ATTND_STEP_DONE;
    if (op->stage == ATTND_CHANGE_NEW && op->fault.code == 0) {
        if (op->cursor == 0 && must_wait(op, &step))
            return step;
        if (check_leases(op))
            return ATTND_STEP_MORE;
        if (op->fault.code == 0)
            await_pages(op);
    }
    if (make(op, op->admitted && work_of(&op->admitted->u.batch) > INLINE_WORK))
        return ATTND_STEP_PLANNING;
    if (op->fault.code == 0) {
        attnd_planobj_hold(op->lane->session->client->service, op->plan, op->memories);
        tell_found(op);
    }
    return end(op);
}

static int is_long(const struct attnd_sched_op *op)
{
    const struct attnd_plan_head *shape = attnd_plan_shape(op->plan->plan);
    const struct attnd_advance_view *advance = &op->admitted->u.advance;

    if (op->generation == ATTND_NONE)
        return (uint64_t)ENTRY_WORK * shape->entries + shape->rows > INLINE_WORK;
    return (uint64_t)advance->entries + advance->pages > INLINE_WORDS;
}

/* Nobody is in the way. */
static enum attnd_step advance(struct attnd_sched_op *op, uint32_t generation)
{
    const struct attnd_advance_view *view = &op->admitted->u.advance;

    (void)attnd_sched_now(op->lane->session->scheduler);
    op->generation = generation;
    if (attnd_planobj_check_advance(op->plan, view, &op->fault) == 0)
        await_pages(op);
    if (op->fault.code == 0 && make(op, is_long(op)))
        return ATTND_STEP_PLANNING;
    return end(op);
}

/* An advance into keys that are read once for several requests: as a set, of what is there. Runs of
 * other lanes read its tiles until they are over. Another lane's advance that would do the same
 * waits like this one, and is not waited for. */
static enum attnd_step unshare(struct attnd_sched_op *op)
{
    if (!op->change.sent && attnd_lane_users(op))
        return ATTND_STEP_BLOCKED;
    if (!op->change.sent && attnd_prepared_hold(change_of(op)))
        return ATTND_STEP_SENT;
    return advance(op, ATTND_NONE);
}

enum attnd_step attnd_change_advance(struct attnd_sched_op *op)
{
    if (op->change.sent == ATTND_COMMAND_PUBLISH)
        return ATTND_STEP_DONE;
    if (op->begin_ns) /* the thread had it */
        return make(op, is_long(op)) ? ATTND_STEP_PLANNING : end(op);
    int taken = op->plan->planning || (!op->change.sent && attnd_prepared_taken(op->plan));
    if (taken && op->fault.code == 0)
        return ATTND_STEP_BLOCKED;
    if (!taken && (!op->plan->filled ||
                   attnd_planobj_refuses(op->plan, op->sqe.lane, op->sqe.u.advance.refusals)))
        attnd_fault_set(&op->fault, -ATTND_E_INVALID, ATTND_F_PLAN, 0, op->sqe.plan, 0);
    if (op->fault.code != 0)
        return ATTND_STEP_DONE;
    if (attnd_planobj_unshares(op->plan, &op->admitted->u.advance))
        return unshare(op);
    const int generation = attnd_planobj_free_generation(op->plan);
    if (generation < 0)
        return attnd_prepared_stale(op->plan) && attnd_prepared_hold(change_of(op))
                   ? ATTND_STEP_SENT
                   : ATTND_STEP_BLOCKED;
    return advance(op, (uint32_t)generation);
}
