/*
 * lease.c - page leases: lists of page ids to and from the daemon, which does the counting.
 *
 * Nothing is remembered here. A session that dies leaves its leases to be counted down by the
 * daemon; a session that offers pages moves its leases to a ticket and may then die without taking
 * them along.
 */
#include "client/submit.h"

#include <string.h>

_Static_assert((int)ATTND_PAGES_CLAIM == (int)ATTND_OP_PAGES_CLAIM, "operations are opcodes");
_Static_assert((int)ATTND_PAGES_READY == (int)ATTND_OP_PAGES_READY, "to the last");
_Static_assert(ATTND_CLAIM_EARLY == ATTND_PAGES_EARLY, "the flag is the slot's");
_Static_assert(ATTND_LEASE_PAGES_MAX == ATTND_TICKET_PAGES_MAX, "a call, and an operation");

static int check_pages(uint32_t count, const int32_t *pages)
{
    if (pages == NULL && count > 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_PAGES, 0, 0, 0);
    if (count > ATTND_LEASE_PAGES_MAX)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_COUNT, 0, count, ATTND_LEASE_PAGES_MAX);
    /* A negative id takes ten bytes on the wire, and a list of them no datagram holds. */
    for (uint32_t i = 0; i < count; i++) {
        if (pages[i] < 0)
            return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_PAGES, i, pages[i], 0);
    }
    return 0;
}

/* protobuf-c has no const arrays; packing only reads them. */
static int32_t *wire_pages(const int32_t *pages)
{
    return (int32_t *)(uintptr_t)pages;
}

static int call_empty(struct attnd_session *session, struct attnd_rpc *call)
{
    int rc = attnd_call(session, call, ATTND__REPLY__RESULT__NOT_SET);
    if (rc == 0)
        attnd_call_end(session, call);
    return rc;
}

int attnd_pages_alloc(struct attnd_session *session, uint32_t pool, uint32_t count, int32_t *pages)
{
    if (pages == NULL && count > 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_PAGES, 0, 0, 0);
    if (count > ATTND_LEASE_PAGES_MAX)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_COUNT, 0, count, ATTND_LEASE_PAGES_MAX);
    Attnd__PagesAlloc message = ATTND__PAGES_ALLOC__INIT;
    message.pool = pool;
    message.count = count;
    struct attnd_rpc call = ATTND_CALL(PAGES_ALLOC, .pages_alloc = &message);
    int rc = attnd_call(session, &call, ATTND__REPLY__RESULT_PAGES);
    if (rc < 0)
        return rc;
    if (call.reply->pages->n_page != count)
        return attnd_call_broken(session, &call);
    if (count > 0)
        memcpy(pages, call.reply->pages->page, count * sizeof(*pages));
    attnd_call_end(session, &call);
    return 0;
}

int attnd_pages_share(struct attnd_session *session, uint32_t pool, uint32_t count,
                      const int32_t *pages)
{
    int rc = check_pages(count, pages);
    if (rc < 0)
        return rc;
    Attnd__PagesShare message = ATTND__PAGES_SHARE__INIT;
    message.pool = pool;
    message.n_page = count;
    message.page = wire_pages(pages);
    struct attnd_rpc call = ATTND_CALL(PAGES_SHARE, .pages_share = &message);
    return call_empty(session, &call);
}

int attnd_pages_free(struct attnd_session *session, uint32_t pool, uint32_t count,
                     const int32_t *pages)
{
    int rc = check_pages(count, pages);
    if (rc < 0)
        return rc;
    Attnd__PagesFree message = ATTND__PAGES_FREE__INIT;
    message.pool = pool;
    message.n_page = count;
    message.page = wire_pages(pages);
    struct attnd_rpc call = ATTND_CALL(PAGES_FREE, .pages_free = &message);
    return call_empty(session, &call);
}

static int offer(struct attnd_session *session, Attnd__PagesOffer *message, uint32_t count,
                 const int32_t *pages, struct attnd_token *ticket)
{
    int rc = check_pages(count, pages);
    if (rc < 0)
        return rc;
    if (ticket == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_TICKET, 0, 0, 0);
    message->n_page = count;
    message->page = wire_pages(pages);
    struct attnd_rpc call = ATTND_CALL(PAGES_OFFER, .pages_offer = message);
    return attnd_call_secret(session, &call, ATTND__REPLY__RESULT_TICKET, ticket);
}

int attnd_pages_offer(struct attnd_session *session, uint32_t pool, uint32_t count,
                      const int32_t *pages, uint32_t expire_ms, struct attnd_token *ticket)
{
    Attnd__PagesOffer message = ATTND__PAGES_OFFER__INIT;
    message.pool = pool;
    message.expire_ms = expire_ms;
    return offer(session, &message, count, pages, ticket);
}

int attnd_pages_offer_layers(struct attnd_session *session, uint32_t pool, uint32_t count,
                             const int32_t *pages, uint32_t expire_ms, struct attnd_token *ticket)
{
    Attnd__PagesOffer message = ATTND__PAGES_OFFER__INIT;
    message.pool = pool;
    message.expire_ms = expire_ms;
    message.has_by_layer = message.by_layer = 1;
    return offer(session, &message, count, pages, ticket);
}

int attnd_pages_ready(struct attnd_session *session, uint32_t pool,
                      const struct attnd_token *ticket, uint32_t layers, const struct attnd_op *op)
{
    struct attnd_sqe sqe = {0};
    int rc = attnd_submit_begin(session, pool, ATTND_OP_PAGES_READY, op, &sqe);
    if (rc < 0)
        return rc;
    if (ticket == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_TICKET, 0, 0, 0);
    sqe.u.ready = (struct attnd_sqe_ready){.layers = layers};
    memcpy(sqe.u.ready.ticket, ticket->bytes, sizeof(sqe.u.ready.ticket));
    return attnd_submit_push(session, &sqe);
}

int attnd_pages_claim(struct attnd_session *session, const struct attnd_token *ticket,
                      uint32_t *pool, int32_t *pages, uint32_t pages_max)
{
    if (ticket == NULL || pool == NULL || (pages == NULL && pages_max > 0))
        return attnd_fault_raise(-ATTND_E_INVALID, ticket ? ATTND_F_PAGES : ATTND_F_TICKET, 0, 0,
                                 0);
    struct attnd_token own = *ticket;
    Attnd__PagesClaim message = ATTND__PAGES_CLAIM__INIT;
    message.ticket = (ProtobufCBinaryData){.len = ATTND_TOKEN_BYTES, .data = own.bytes};
    message.pages_max = pages_max;
    struct attnd_rpc call = ATTND_CALL(PAGES_CLAIM, .pages_claim = &message);
    int rc = attnd_call(session, &call, ATTND__REPLY__RESULT_PAGES);
    if (rc < 0)
        return rc;
    size_t count = call.reply->pages->n_page;
    if (count > pages_max || count > ATTND_LEASE_PAGES_MAX)
        return attnd_call_broken(session, &call);
    if (count > 0)
        memcpy(pages, call.reply->pages->page, count * sizeof(*pages));
    *pool = call.reply->pages->pool;
    attnd_call_end(session, &call);
    return (int)count;
}

int attnd_pages_claim_async(struct attnd_session *session, const struct attnd_claim_args *args,
                            const struct attnd_op *op)
{
    struct attnd_claim_args own = {0};
    struct attnd_sqe sqe = {0};
    int rc = attnd_submit_begin(session, 0, ATTND_OP_PAGES_CLAIM, op, &sqe);
    if (rc == 0)
        rc = attnd_args_take(&own, sizeof(own), args);
    if (rc < 0)
        return rc;
    if (own.ticket == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_TICKET, 0, 0, 0);
    if (own.flags & ~ATTND_CLAIM_EARLY)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_FLAGS, 0, own.flags, ATTND_CLAIM_EARLY);
    if (own.pages_max > ATTND_LEASE_PAGES_MAX)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_COUNT, 0, own.pages_max,
                                 ATTND_LEASE_PAGES_MAX);
    sqe.plan = own.pool;
    sqe.u.claim = (struct attnd_sqe_claim){
        .pages_max = own.pages_max, .flags = own.flags, .timeout_us = op ? op->timeout_us : 0};
    memcpy(sqe.u.claim.ticket, own.ticket->bytes, sizeof(sqe.u.claim.ticket));
    return attnd_submit_push(session, &sqe);
}

int attnd_claim_result(struct attnd_session *session, const struct attnd_completion *completion,
                       struct attnd_claim_result *result)
{
    int rc = attnd_session_check_owner(session);
    if (rc < 0)
        return rc;
    if (completion == NULL || completion->operation != ATTND_PAGES_CLAIM ||
        completion->fault.code != 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_NONE, 0, 0, 0);
    const uint64_t limit = (uint64_t)completion->fault.limit;
    struct attnd_claim_result own = {.size = sizeof(own), .pages_count = (uint32_t)(limit >> 32)};
    if (own.pages_count > 0)
        own.pages = session->results + (uint32_t)limit;
    return attnd_args_give(result, &own, sizeof(own));
}
