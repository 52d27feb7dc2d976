/*
 * change.c - the turn of a set or an advance: the operations that change a plan.
 *
 * A plan that nobody can launch a run of is changed at once. Otherwise the turn comes up to three
 * times: a HOLD is sent, the plan is changed, a PUBLISH is sent, and its ack is the end. What was
 * sent last stands in the operation.
 */
#include "service/sched/lanes.h"

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

enum attnd_turn attnd_change_set(struct attnd_sched_op *op)
{
    struct attnd_session_lanes *session = op->lane->session;
    struct attnd_client *client = session->client;
    struct attnd_batch_view batch;
    const struct attnd_batch_view *admitted = &batch;

    (void)attnd_sched_now(session->scheduler); /* the beginning, for the completion */
    if (op->change.sent == ATTND_COMMAND_PUBLISH)
        return ATTND_TURN_DONE;
    uint32_t busy = op->change.sent ? 0 : elsewhere(op);
    if (busy) {
        attnd_fault_set(&op->fault, -ATTND_E_BUSY, ATTND_F_PLAN, 0, op->sqe.plan, busy);
        return ATTND_TURN_DONE;
    }
    if (!op->change.sent && attnd_prepared_hold(change_of(op)))
        return ATTND_TURN_SENT;
    op->plan->filled = 0;
    if (op->deferred)
        admitted = &op->deferred->u.batch;
    else if (op->fault.code == 0)
        (void)attnd_admit_batch(attnd_client_arena(client), client->arena_bytes,
                                op->sqe.u.set.header_offset_bytes, op->sqe.u.set.header_bytes,
                                &op->plan->limits, &client->staging, &batch, &op->fault);
    if (op->fault.code == 0)
        (void)attnd_planobj_set(op->plan, admitted, session->scheduler->scratch.bytes, &op->fault);
    (void)attnd_prepared_was_set(change_of(op), &op->fault);
    return attnd_prepared_publish(change_of(op)) ? ATTND_TURN_SENT : ATTND_TURN_DONE;
}

enum attnd_turn attnd_change_advance(struct attnd_sched_op *op)
{
    struct attnd_client *client = op->lane->session->client;
    struct attnd_advance_view advance;
    const struct attnd_advance_view *admitted = &advance;

    if (op->fault.code != 0 || op->change.sent == ATTND_COMMAND_PUBLISH)
        return ATTND_TURN_DONE;
    if (!op->change.sent && attnd_prepared_taken(op->plan))
        return ATTND_TURN_BLOCKED;
    if (!op->plan->filled) {
        attnd_fault_set(&op->fault, -ATTND_E_INVALID, ATTND_F_PLAN, 0, op->sqe.plan, 0);
        return ATTND_TURN_DONE;
    }
    if (attnd_planobj_free_generation(op->plan) < 0)
        return attnd_prepared_stale(op->plan) && attnd_prepared_hold(change_of(op))
                   ? ATTND_TURN_SENT
                   : ATTND_TURN_BLOCKED;
    (void)attnd_sched_now(op->lane->session->scheduler);
    if (op->deferred)
        admitted = &op->deferred->u.advance;
    else
        (void)attnd_admit_advance(attnd_client_arena(client), client->arena_bytes,
                                  &op->sqe.u.advance, &op->plan->limits, &client->staging, &advance,
                                  &op->fault);
    if (op->fault.code == 0)
        (void)attnd_planobj_advance(op->plan, admitted, &op->fault);
    if (op->fault.code != 0 && !op->change.sent)
        return ATTND_TURN_DONE;
    return attnd_prepared_publish(change_of(op)) ? ATTND_TURN_SENT : ATTND_TURN_DONE;
}
