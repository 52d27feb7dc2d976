/*
 * claim.c - claims of tickets by submission: of this service's own at once, of another's when its
 * bytes are here.
 *
 * One that waits has left its lane, as a match does that waits (parked.c): what is submitted behind
 * it goes on. It holds no page and no room for its answer; both come when the bytes are here, and a
 * ticket is only spent when there is room to say which pages they are in.
 */
#include "service/sched/claim.h"

#include "service/objects/ticket.h"
#include "service/peers/peers.h"
#include "service/sched/complete.h"
#include "service/sched/lane.h"
#include "service/sched/results.h"
#include "service/sched/sched.h"
#include "service/sched/scheduler.h"

#include <string.h>

/* Of one session: the rings never fill with what waits. */
#define CLAIMS_MAX 256u

struct attnd_attachment *attnd_claim_check(const struct attnd_client *client,
                                           const struct attnd_sqe *sqe, struct attnd_fault *fault)
{
    struct attnd_attachment *attachment = attnd_client_attachment(client, sqe->plan);

    if (!attachment)
        attnd_fault_set(fault, -ATTND_E_UNKNOWN, ATTND_F_POOL, 0, sqe->plan, 0);
    else if (!attachment->held)
        attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_PAGE_OWNER, 0,
                        attachment->pool->page_owner, 0);
    else if (!attachment->writable)
        attnd_fault_set(fault, -ATTND_E_PERMISSION, ATTND_F_POOL, 0, sqe->plan, 0);
    else if (sqe->u.claim.pages_max > ATTND_TICKET_PAGES_MAX)
        attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_COUNT, 0, sqe->u.claim.pages_max,
                        ATTND_TICKET_PAGES_MAX);
    else if (sqe->u.claim.flags & ~ATTND_PAGES_EARLY)
        attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_FLAGS, 0, sqe->u.claim.flags,
                        ATTND_PAGES_EARLY);
    else if (sqe->flags & ATTND_OP_SKIP_SUCCESS) /* pages would be leased in silence */
        attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_FLAGS, 0, sqe->flags, 0);
    return fault->code ? NULL : attachment;
}

/* Of this service: as the call does it. */
static enum attnd_step claim_own(struct attnd_sched_op *op)
{
    struct attnd_service *service = op->lane->session->scheduler->service;
    struct attnd_ticket *ticket = attnd_ticket_find(service, op->sqe.u.claim.ticket);
    const uint32_t pages_max = op->sqe.u.claim.pages_max;

    if (!ticket) {
        attnd_fault_set(&op->fault, -ATTND_E_EXPIRED, ATTND_F_TICKET, 0, 0, 0);
        return ATTND_STEP_DONE;
    }
    if (ticket->lent || !attnd_ticket_whole(ticket))
        attnd_fault_set(&op->fault, -ATTND_E_BUSY, ATTND_F_TICKET, 0, 0, 0);
    else if (ticket->pool != op->into->pool)
        attnd_fault_set(&op->fault, -ATTND_E_PERMISSION, ATTND_F_POOL, 0, 0, 0);
    else if (ticket->count > pages_max)
        attnd_fault_set(&op->fault, -ATTND_E_NO_SPACE, ATTND_F_COUNT, 0, pages_max, ticket->count);
    if (op->fault.code)
        return ATTND_STEP_DONE;
    attnd_results_put(op, ticket->pages, ticket->count);
    attnd_ticket_claim(ticket, op->into);
    return ATTND_STEP_DONE;
}

/* ---- claims that wait ---- */

void attnd_claim_listed(struct attnd_sched_op *op)
{
    struct attnd_client_lanes *session = op->lane->session;

    if (!op->transfer)
        return;
    op->previous = NULL;
    op->next = session->claims;
    if (op->next)
        op->next->previous = op;
    session->claims = op;
    session->claims_count++;
}

static void list_remove(struct attnd_client_lanes *session, struct attnd_sched_op *op)
{
    if (op->previous)
        op->previous->next = op->next;
    else
        session->claims = op->next;
    if (op->next)
        op->next->previous = op->previous;
    session->claims_count--;
}

/* Nothing happens to its transfer before it has left its lane. */
enum attnd_step attnd_claim_step(struct attnd_sched_op *op)
{
    struct attnd_client_lanes *session = op->lane->session;
    struct attnd_service *service = session->scheduler->service;
    const struct attnd_sqe_claim *claim = &op->sqe.u.claim;

    if (op->fault.code)
        return ATTND_STEP_DONE;
    if (memcmp(claim->ticket, service->identity, ATTND_IDENTITY_BYTES) == 0)
        return claim_own(op);
    if (session->claims_count >= CLAIMS_MAX ||
        session->claims_count >= session->client->ring_entries / 2) {
        attnd_fault_set(&op->fault, -ATTND_E_FULL, ATTND_F_COUNT, 0, session->claims_count, 0);
        return ATTND_STEP_DONE;
    }
    if (attnd_transfer_begin(session->client, claim->ticket, op->into, claim->pages_max,
                             (claim->flags & ATTND_PAGES_EARLY) != 0, op, &op->transfer,
                             &op->fault) < 0)
        return ATTND_STEP_DONE;
    op->begin_ns = attnd_sched_now(session->scheduler);
    attnd_results_unreserve(op);
    return ATTND_STEP_PARKED;
}

/* ---- the end ---- */

/* It is in no list any more. */
static void complete(struct attnd_sched_op *op)
{
    struct attnd_scheduler *scheduler = op->lane->session->scheduler;
    const uint64_t now_ns = attnd_sched_now(scheduler);

    attnd_complete(op, op->begin_ns, now_ns > op->begin_ns ? now_ns : op->begin_ns);
}

int attnd_claim_fits(void *context, uint32_t count)
{
    struct attnd_sched_op *op = context;

    if (!attnd_results_room(op->lane->session, count))
        return 0;
    attnd_results_reserve(op, count);
    return 1;
}

void attnd_claim_ended(void *context, const int32_t *pages, uint32_t count,
                       const struct attnd_fault *fault)
{
    struct attnd_sched_op *op = context;

    list_remove(op->lane->session, op);
    op->transfer = NULL;
    op->fault = *fault;
    if (fault->code == 0)
        attnd_results_put(op, pages, count);
    complete(op);
}

static void end_early(struct attnd_sched_op *op, int code)
{
    attnd_transfer_cancel(op->transfer);
    list_remove(op->lane->session, op);
    op->transfer = NULL;
    if (code == -ATTND_E_TIMEOUT)
        attnd_deadline_fault(op);
    else
        attnd_fault_set(&op->fault, code, ATTND_F_NONE, 0, 0, 0);
    complete(op);
}

static struct attnd_sched_op *find(const struct attnd_client_lanes *session, uint64_t user_data)
{
    struct attnd_sched_op *op = session->claims;

    while (op && op->sqe.user_data != user_data)
        op = op->next;
    return op;
}

/* From the first on each time: a link may end by what it is told, and others with it. */
int attnd_claim_cancel(struct attnd_client_lanes *session, uint64_t user_data)
{
    struct attnd_sched_op *op;
    int ended = 0;

    for (; (op = find(session, user_data)); ended++)
        end_early(op, -ATTND_E_CANCELLED);
    return ended;
}

void attnd_claim_expire(struct attnd_sched_op *op)
{
    end_early(op, -ATTND_E_TIMEOUT);
}

int attnd_claim_close(struct attnd_client_lanes *session)
{
    struct attnd_sched_op *op = session->claims;

    if (!op)
        return 0;
    attnd_transfer_cancel(op->transfer);
    list_remove(session, op);
    op->transfer = NULL;
    attnd_op_free(op);
    return 1;
}

/* ---- layers ---- */

void attnd_sched_arrived(struct attnd_scheduler *scheduler)
{
    attnd_lane_retry(scheduler);
}

struct attnd_attachment *attnd_ready_check(const struct attnd_client *client,
                                           const struct attnd_sqe *sqe, struct attnd_fault *fault)
{
    struct attnd_attachment *attachment = attnd_client_attachment(client, sqe->plan);

    if (!attachment)
        attnd_fault_set(fault, -ATTND_E_UNKNOWN, ATTND_F_POOL, 0, sqe->plan, 0);
    else if (sqe->u.ready.layers > attachment->pool->shape.layers)
        attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_LAYERS, 0, sqe->u.ready.layers,
                        attachment->pool->shape.layers);
    return fault->code ? NULL : attachment;
}

enum attnd_step attnd_ready_step(struct attnd_sched_op *op)
{
    const struct attnd_client *client = op->lane->session->client;
    struct attnd_ticket *ticket = attnd_ticket_find(client->service, op->sqe.u.ready.ticket);
    const int code = op->fault.code ? 0 : attnd_lane_failed_append(op);

    if (code < 0)
        attnd_fault_set(&op->fault, code, ATTND_F_LAYERS, 0, op->sqe.u.ready.layers, 0);
    else if (!op->fault.code && !ticket)
        attnd_fault_set(&op->fault, -ATTND_E_EXPIRED, ATTND_F_TICKET, 0, 0, 0);
    else if (!op->fault.code &&
             (ticket->pool != op->into->pool || ticket->payer.session != client->id))
        attnd_fault_set(&op->fault, -ATTND_E_PERMISSION, ATTND_F_TICKET, 0, 0, 0);
    if (op->fault.code == 0)
        attnd_ticket_grow(ticket, op->sqe.u.ready.layers);
    return ATTND_STEP_DONE;
}
