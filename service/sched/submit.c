/*
 * submit.c - from a submission slot to an operation in its lane.
 *
 * The slot is copied once and only the copy is looked at. A slot stays in the ring while the
 * completion ring could not take its answer, or while operations that wait hold too many batches
 * already: that is the backpressure a client sees as -ATTND_E_FULL. A slot that is malformed still
 * becomes an operation and fails at its step, so that a lane's completions come in its order.
 */
#include "service/sched/submit.h"

#include "schemas/crash.h"
#include "service/objects/places.h"
#include "service/objects/quota.h"
#include "service/prefix/prefix.h"
#include "service/sched/admit.h"
#include "service/sched/claim.h"
#include "service/sched/complete.h"
#include "service/sched/deadline.h"
#include "service/sched/deadlines.h"
#include "service/sched/lane.h"
#include "service/sched/results.h"
#include "service/sched/scheduler.h"

#include <stddef.h>

#define STALL_NS_MIN 1000000u
#define COPIES_SESSION_PART 4

static int is_zero(const uint64_t *words, size_t count, struct attnd_fault *fault)
{
    for (size_t i = 0; i < count; i++)
        if (words[i]) {
            attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_RESERVED, i, (int64_t)words[i], 0);
            return 0;
        }
    return 1;
}

#define ZERO_WORDS(array, fault) is_zero((array), sizeof(array) / sizeof((array)[0]), (fault))

static int is_prefix(uint8_t opcode)
{
    return opcode >= ATTND_OP_PREFIX_MATCH && opcode <= ATTND_OP_PREFIX_UNPIN;
}

static int reserved_is_zero(const struct attnd_sqe *sqe, struct attnd_fault *fault)
{
    uint64_t word;
    switch (sqe->opcode) {
    case ATTND_OP_PLAN_SET:
        word = sqe->u.set.zero0;
        return is_zero(&word, 1, fault) && ZERO_WORDS(sqe->u.set.zero, fault);
    case ATTND_OP_PLAN_ADVANCE:
        word = sqe->u.advance.zero0;
        return is_zero(&word, 1, fault) && ZERO_WORDS(sqe->u.advance.zero, fault);
    case ATTND_OP_APPEND:
        word = sqe->u.append.zero0;
        return is_zero(&word, 1, fault) && is_zero(&sqe->u.append.zero, 1, fault);
    case ATTND_OP_RUN:
        return 1;
    case ATTND_OP_MERGE:
        return ZERO_WORDS(sqe->u.merge.zero, fault);
    case ATTND_OP_CANCEL:
        return ZERO_WORDS(sqe->u.cancel.zero, fault);
    case ATTND_OP_PAGES_CLAIM:
        word = sqe->u.claim.zero0;
        return is_zero(&word, 1, fault) && ZERO_WORDS(sqe->u.claim.zero, fault);
    case ATTND_OP_PAGES_READY:
        word = sqe->u.ready.zero0;
        return is_zero(&word, 1, fault) && ZERO_WORDS(sqe->u.ready.zero, fault);
    default:
        if (is_prefix(sqe->opcode))
            return ZERO_WORDS(sqe->u.prefix.zero, fault);
        attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_OPCODE, 0, sqe->opcode, ATTND_OP_LAST);
        return 0;
    }
}

/* Checks of every opcode. Return: 0 or the fault's code. */
static int check_common(const struct attnd_sqe *sqe, struct attnd_fault *fault)
{
    if (!reserved_is_zero(sqe, fault))
        return fault->code;
    if (sqe->flags & ~ATTND_OP_FLAGS)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_FLAGS, 0, sqe->flags,
                               ATTND_OP_FLAGS);
    if (sqe->lane >= ATTND_LANES_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_LANE, 0, sqe->lane,
                               ATTND_LANES_MAX - 1);
    return 0;
}

static struct attnd_plan_object *check_plan(const struct attnd_client *client,
                                            const struct attnd_sqe *sqe, struct attnd_fault *fault)
{
    struct attnd_plan_object *plan = attnd_client_plan(client, sqe->plan);
    if (!plan) {
        attnd_fault_set(fault, -ATTND_E_UNKNOWN, ATTND_F_PLAN, 0, sqe->plan, 0);
        return NULL;
    }
    uint32_t layer = 0, layers = plan->attachment->pool->shape.layers;
    if (sqe->opcode == ATTND_OP_RUN)
        layer = sqe->u.run.layer;
    else if (sqe->opcode == ATTND_OP_APPEND)
        layer = sqe->u.append.layer;
    if (layer >= layers) {
        attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_LAYER, 0, layer, layers - 1);
        return NULL;
    }
    return plan;
}

/* The namespace, if the session may do this there. The pages that a match finds are leased: they
 * are not to be found in silence. */
static struct attnd_prefix_handle *check_prefix(const struct attnd_client *client,
                                                const struct attnd_sqe *sqe,
                                                struct attnd_fault *fault)
{
    struct attnd_prefix_handle *prefix = attnd_client_prefix(client, sqe->plan);
    if (!prefix) {
        attnd_fault_set(fault, -ATTND_E_UNKNOWN, ATTND_F_PREFIX, 0, sqe->plan, 0);
        return NULL;
    }
    if (sqe->opcode != ATTND_OP_PREFIX_MATCH && !prefix->writable) {
        attnd_fault_set(fault, -ATTND_E_PERMISSION, ATTND_F_PREFIX, 0, sqe->plan, 0);
        return NULL;
    }
    if (sqe->opcode == ATTND_OP_PREFIX_MATCH && sqe->flags & ATTND_OP_SKIP_SUCCESS) {
        attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_FLAGS, 0, sqe->flags, 0);
        return NULL;
    }
    return prefix;
}

static int carries_batch(const struct attnd_sqe *sqe)
{
    return sqe->opcode == ATTND_OP_PLAN_SET || sqe->opcode == ATTND_OP_PLAN_ADVANCE;
}

static int carries_data(const struct attnd_sqe *sqe)
{
    return carries_batch(sqe) || is_prefix(sqe->opcode) || sqe->opcode == ATTND_OP_MERGE;
}

/* Room for the pages of a match or a claim. One that asks for more than it can have is refused. */
static uint32_t words_wanted(const struct attnd_sqe *sqe)
{
    if (sqe->opcode == ATTND_OP_PAGES_CLAIM)
        return sqe->u.claim.pages_max > ATTND_TICKET_PAGES_MAX ? 0 : sqe->u.claim.pages_max;
    if (sqe->opcode != ATTND_OP_PREFIX_MATCH || sqe->u.prefix.pages > ATTND_PREFIX_PAGES_MAX)
        return 0;
    return sqe->u.prefix.pages;
}

static void set_deadline(struct attnd_scheduler *scheduler, struct attnd_sched_op *op)
{
    uint32_t timeout_us = attnd_timeout_us(&op->sqe);
    if (!timeout_us)
        return;
    op->deadline_ns = attnd_sched_now(scheduler) + (uint64_t)timeout_us * 1000u;
    attnd_deadlines_add(&op->lane->session->deadlines, op);
    attnd_deadline_arm(scheduler, op->deadline_ns);
}

static void begin_plan(struct attnd_client_lanes *session, struct attnd_sched_op *op)
{
    op->plan = check_plan(session->client, &op->sqe, &op->fault);
    if (!op->plan)
        return;
    op->plan->in_flight++;
    attnd_places_take(session->client, &op->sqe, op->memories);
    set_deadline(session->scheduler, op);
}

static void begin_prefix(struct attnd_client_lanes *session, struct attnd_sched_op *op)
{
    op->prefix = check_prefix(session->client, &op->sqe, &op->fault);
    if (!op->prefix)
        return;
    op->prefix->in_flight++;
    attnd_results_reserve(op, words_wanted(&op->sqe));
    set_deadline(session->scheduler, op);
}

static void begin_claim(struct attnd_client_lanes *session, struct attnd_sched_op *op)
{
    op->into = attnd_claim_check(session->client, &op->sqe, &op->fault);
    if (!op->into)
        return;
    op->into->claims++;
    attnd_results_reserve(op, words_wanted(&op->sqe));
    set_deadline(session->scheduler, op);
}

static void begin_ready(struct attnd_client_lanes *session, struct attnd_sched_op *op)
{
    op->into = attnd_ready_check(session->client, &op->sqe, &op->fault);
    if (op->into)
        op->into->claims++;
}

/* Into its lane, when all that it carries is here. Return: 1; 0 there is more of that. */
static int enter(struct attnd_client_lanes *session, struct attnd_sched_op *op)
{
    if (attnd_op_admit_some(op)) {
        session->entering = op;
        return 0;
    }
    session->entering = NULL;
    struct attnd_lane *lane = &session->lane[op->sqe.lane];
    attnd_lane_push(lane, op);
    attnd_lane_go(lane);
    return 1;
}

static int accept_op(struct attnd_client_lanes *session, const struct attnd_sqe *sqe)
{
    struct attnd_sched_op *op = attnd_op_new(session, sqe);
    int malformed = check_common(sqe, &op->fault) < 0;
    if (malformed && (sqe->lane >= ATTND_LANES_MAX || sqe->opcode == ATTND_OP_CANCEL)) {
        uint64_t now_ns = attnd_sched_now(session->scheduler);
        attnd_complete(op, now_ns, now_ns); /* it has no place in a lane */
        return 1;
    }
    if (!malformed && is_prefix(sqe->opcode))
        begin_prefix(session, op);
    else if (!malformed && sqe->opcode == ATTND_OP_PAGES_CLAIM)
        begin_claim(session, op);
    else if (!malformed && sqe->opcode == ATTND_OP_PAGES_READY)
        begin_ready(session, op);
    else if (!malformed)
        begin_plan(session, op);
    if ((op->plan || op->prefix) && carries_data(sqe))
        attnd_op_admit(op);
    return enter(session, op);
}

/* One that says what it should: it posts no completion. */
static int is_cancel(const struct attnd_sqe *sqe)
{
    struct attnd_fault fault = {0};
    return sqe->opcode == ATTND_OP_CANCEL && check_common(sqe, &fault) == 0;
}

/* Return: 1 it is taken; 0 there is more to do for it. */
static int take_slot(struct attnd_client_lanes *session, const struct attnd_sqe *sqe)
{
    if (session->entering)
        return enter(session, session->entering);
    if (is_cancel(sqe))
        return attnd_deadline_cancel(session, sqe->u.cancel.target_user_data);
    return accept_op(session, sqe);
}

/* The bytes of copies that waits may hold before the next is taken: as many as the arena holds, and
 * no more than a part of the session's share, so that the next one fits. */
static uint64_t copies_max_bytes(const struct attnd_client *client)
{
    uint64_t part_bytes =
        attnd_quota_limit(client->service, ATTND_QUOTA_DAEMON) / COPIES_SESSION_PART;
    return part_bytes < client->arena_bytes ? part_bytes : client->arena_bytes;
}

/* Is there a completion slot for this operation besides those in flight, and memory for its data?
 * A client that does not read its completions must not keep the daemon awake, and may fail to wake
 * it when it does: then, and only when no retire would, a timer looks again. */
static int has_room(struct attnd_client_lanes *session, const struct attnd_sqe *sqe)
{
    struct attnd_client *client = session->client;
    if (is_cancel(sqe)) /* what it ends makes the room */
        return 1;
    if (carries_data(sqe) && session->admitted_bytes >= copies_max_bytes(client))
        return 0;
    /* To copy and check a large batch takes a while as well: no session has more of that than it
     * has of the planner. */
    if (carries_batch(sqe) && session->planning)
        return 0;
    if (session->cq_room <= client->in_flight) {
        int space = attnd_producer_space(&client->cq);
        if (space < 0) {
            attnd_lanes_break(session);
            return 0;
        }
        session->cq_room = (uint32_t)space;
    }
    if (session->cq_room > client->in_flight && attnd_results_room(session, words_wanted(sqe))) {
        session->stall_ns = 0;
        return 1;
    }
    if (session->broken)
        return 0;
    if (client->in_flight == session->parked_count + session->claims_count &&
        session->stall_ns == 0) {
        session->stall_ns = STALL_NS_MIN;
        attnd_deadline_arm(session->scheduler, attnd_sched_now(session->scheduler) + STALL_NS_MIN);
    }
    return 0;
}

/* The next slot, or the one that was begun: the client may have written another into its place.
 * Return: as attnd_consumer_peek(); 0 also if there is no room for it. */
static int next_slot(struct attnd_client_lanes *session)
{
    if (session->takes)
        return 1;
    int rc = attnd_consumer_peek(&session->client->sq, &session->taking);
    return rc > 0 && !has_room(session, &session->taking) ? 0 : rc;
}

int attnd_submit_sweep(struct attnd_client_lanes *session)
{
    struct attnd_works *works = attnd_sched_works(session);
    int rc, moved = 0;

    session->scheduler->now_ns = 0;
    while ((rc = next_slot(session)) > 0) {
        if (moved && attnd_work_spent(works))
            return moved;
        session->takes = !take_slot(session, &session->taking);
        if (session->takes)
            return moved + 1; /* it is not over: the loop does not sleep */
        attnd_crash(ATTND_CRASH_DAEMON_SLOT_ACCEPTED);
        attnd_consumer_skip(&session->client->sq);
        moved++;
    }
    if (rc < 0)
        attnd_lanes_break(session);
    return moved;
}

int attnd_submit_go(struct attnd_work *work)
{
    struct attnd_client_lanes *session =
        (struct attnd_client_lanes *)(void *)((char *)work -
                                              offsetof(struct attnd_client_lanes, ring_work));

    session->scheduler->moved += attnd_submit_sweep(session);
    return 0; /* the next sweep looks at the ring again */
}
