/*
 * dispatch.c - from an operation whose step has come to a command in the worker's ring.
 *
 * A run holds what it uses until it is retired: a slot of the run table and a range of the worker's
 * scratch. The memory that it names it has held since it was submitted, and so it has its lengths
 * (lane.c), unless the plan was being changed then. Everything that can be wrong with it is found
 * before any of that is taken. A run without work never gets so far: it is done on the spot.
 */
#include "service/sched/dispatch.h"

#include "schemas/atomics.h"
#include "schemas/crash.h"
#include "service/objects/arrival.h"
#include "service/objects/places.h"
#include "service/sched/line.h"
#include "service/sched/scheduler.h"
#include "service/supervise/queue.h"

#include <assert.h>

static enum attnd_step refuse(struct attnd_sched_op *op, int code, enum attnd_field field,
                              int64_t value, int64_t limit)
{
    attnd_fault_set(&op->fault, code, field, 0, value, limit);
    return ATTND_STEP_DONE;
}

/* Return: 1 all are mapped; 0 not yet; -ATTND_E_* one never will be, with the worker's @fault: an
 * engine's memory may be gone when a new worker asks for it. */
static int all_mapped(const struct attnd_maps *maps, struct attnd_memory *const *memories,
                      uint32_t count, struct attnd_fault *fault)
{
    for (uint32_t i = 0; i < count; i++) {
        int ready = memories[i] ? attnd_maps_ready(maps, memories[i]->index) : 1;
        if (ready < 0)
            *fault = memories[i]->fault;
        if (ready <= 0)
            return ready;
    }
    return 1;
}

static int mapped(const struct attnd_scheduler *scheduler, struct attnd_sched_op *op)
{
    if (scheduler->maps->not_mapped == 0)
        return 1;
    const struct attnd_pool *pool = op->plan->attachment->pool;
    int rc = all_mapped(scheduler->maps, op->memories, ATTND_RUN_PLACES, &op->fault);
    if (rc > 0)
        rc = all_mapped(scheduler->maps, op->plan->tables, ATTND_TABLES, &op->fault);
    return rc <= 0 ? rc
                   : all_mapped(scheduler->maps, pool->memories, pool->memories_count, &op->fault);
}

/* The places that the operation names, checked, into @run. */
static int resolve(struct attnd_sched_op *op, struct attnd_run *run)
{
    const struct attnd_service *service = op->lane->session->scheduler->service;
    if (op->sqe.opcode == ATTND_OP_APPEND)
        return attnd_places_append(op->plan, &op->sqe.u.append, op->memories, run, &op->fault);
    if (op->sqe.opcode == ATTND_OP_MERGE)
        return attnd_places_merge(op->plan, &op->admitted->u.merge, op->memories, run, &op->fault);
    return attnd_places_attend(service, op->plan, &op->sqe.u.run, op->memories, run, &op->fault);
}

static int check_append(struct attnd_sched_op *op)
{
    if (!op->plan->attachment->writable)
        return attnd_fault_set(&op->fault, -ATTND_E_PERMISSION, ATTND_F_POOL, 0, 0, 0);
    return attnd_planobj_check_append(op->plan, op->lengths.generation, &op->fault);
}

static void push_command(struct attnd_scheduler *scheduler, const struct attnd_sched_op *op)
{
    struct attnd_command command = {.kind = ATTND_COMMAND_RUN, .run = op->run};
    attnd_planobj_command(op->plan, &scheduler->queue->runs[op->run], op->lengths.advance_version,
                          &command);
    (void)attnd_queue_push(scheduler->queue, &command);
}

static void launch(struct attnd_scheduler *scheduler, struct attnd_sched_op *op,
                   const struct attnd_run *run)
{
    uint32_t index = scheduler->free_slot;
    struct attnd_run_slot *slot = &scheduler->slots[index];
    scheduler->free_slot = slot->next_free;

    slot->op = op;
    op->run = index;
    attnd_line_count(op->lane->session, 1);
    scheduler->queue->runs[index] = *run;
    attnd_crash(ATTND_CRASH_DAEMON_RUN_FILLED);
    push_command(scheduler, op);
    attnd_crash(ATTND_CRASH_DAEMON_COMMAND_PUSHED);
}

/* An operation, as the worker sees it. */
static struct attnd_run describe(const struct attnd_sched_op *op)
{
    const struct attnd_plan_object *plan = op->plan;
    struct attnd_run run = {.kind = ATTND_RUN_ATTEND,
                            .generation = op->lengths.generation,
                            .plan_offset_bytes = plan->heap_offset_bytes,
                            .items = plan->tile_items,
                            .session = op->lane->session->client->id,
                            .weight = op->lane->session->client->weight,
                            .mailbox = ATTND_NONE};

    if (op->sqe.opcode == ATTND_OP_APPEND) {
        run.kind = ATTND_RUN_APPEND;
        run.items = plan->append_items;
        run.layer = op->sqe.u.append.layer;
    } else if (op->sqe.opcode == ATTND_OP_MERGE) {
        run.kind = ATTND_RUN_MERGE;
        run.items = plan->merge_items;
    } else {
        run.layer = op->sqe.u.run.layer;
    }
    return run;
}

static uint32_t refusals_of(const struct attnd_sqe *sqe)
{
    if (sqe->opcode == ATTND_OP_APPEND)
        return sqe->u.append.refusals;
    return sqe->opcode == ATTND_OP_MERGE ? sqe->u.merge.refusals : sqe->u.run.refusals;
}

/* Return: 1 the layer that it reads or writes is here; 0 it is on its way; < 0 it will not come. */
static int arrival_of(struct attnd_sched_op *op, const struct attnd_run *run)
{
    if (op->plan->awaits.count == 0 || run->kind == ATTND_RUN_MERGE)
        return 1;
    return attnd_arrival_gate(op->plan->attachment, &op->plan->awaits, run->layer, &op->fault);
}

enum attnd_step attnd_dispatch_run(struct attnd_sched_op *op, int in_line)
{
    struct attnd_scheduler *scheduler = op->lane->session->scheduler;
    const struct attnd_plan_object *plan = op->plan;

    if (op->fault.code) /* refused on the way in */
        return ATTND_STEP_DONE;
    if (plan->planning || attnd_prepared_taken(plan))
        return ATTND_STEP_BLOCKED;
    if (!plan->filled || attnd_planobj_refuses(plan, op->sqe.lane, refusals_of(&op->sqe)))
        return refuse(op, -ATTND_E_INVALID, ATTND_F_PLAN, op->sqe.plan, 0);
    attnd_planobj_pin(op->plan, &op->lengths);
    struct attnd_run run = describe(op);
    if (run.items == 0)
        return ATTND_STEP_DONE;
    const int arrived = arrival_of(op, &run);
    if (arrived < 0)
        return ATTND_STEP_DONE;
    if (arrived == 0)
        return ATTND_STEP_BLOCKED;
    if (resolve(op, &run) < 0)
        return ATTND_STEP_DONE;
    if (run.kind == ATTND_RUN_APPEND && check_append(op) < 0)
        return ATTND_STEP_DONE;
    uint64_t scratch_bytes = run.kind == ATTND_RUN_ATTEND ? plan->scratch_bytes : 0;

    if (!scheduler->queue->accepting || !attnd_line_slot(op->lane->session) ||
        (in_line && attnd_line_is_before(op->lane->session)))
        return ATTND_STEP_WAIT;
    int rc = mapped(scheduler, op);
    if (rc < 0)
        return ATTND_STEP_DONE;
    if (rc == 0)
        return ATTND_STEP_BLOCKED;
    struct attnd_run_slot *slot = &scheduler->slots[scheduler->free_slot];
    slot->scratch_bytes = scratch_bytes;
    if (scratch_bytes) {
        if (scratch_bytes > scheduler->scratch.bytes) /* a new worker may have less */
            return refuse(op, -ATTND_E_NO_SPACE, ATTND_F_PARTIALS, (int64_t)scratch_bytes,
                          (int64_t)scheduler->scratch.bytes);
        if (attnd_heap_take(&scheduler->scratch, scratch_bytes, &slot->scratch_offset_bytes) < 0)
            return ATTND_STEP_WAIT;
        run.scratch_offset_bytes = slot->scratch_offset_bytes;
    }
    launch(scheduler, op, &run);
    return ATTND_STEP_DISPATCHED;
}

void attnd_dispatch_release(struct attnd_scheduler *scheduler, uint32_t run)
{
    struct attnd_run_slot *slot = &scheduler->slots[run];
    struct attnd_sched_op *op = slot->op;
    assert(op);

    if (slot->scratch_bytes)
        attnd_heap_give(&scheduler->scratch, slot->scratch_offset_bytes, slot->scratch_bytes);
    attnd_line_count(op->lane->session, -1);
    slot->op = NULL;
    slot->next_free = scheduler->free_slot;
    scheduler->free_slot = run;
}
