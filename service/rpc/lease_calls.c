/*
 * lease_calls.c - PagesAlloc, PagesShare, PagesFree, PagesOffer, PagesClaim.
 *
 * An alloc that finds too few free pages while some are being copied to the host is answered when
 * they have been: what can be evicted is as good as free.
 */
#include "service/objects/arrival.h"
#include "service/objects/ticket.h"
#include "service/peers/peers.h"
#include "service/prefix/prefix.h"
#include "service/rpc/calls.h"

#include <string.h>

#define PAGES_MAX 16384u /* a call; what fits a datagram at five bytes a page id, and then some */
#define EXPIRE_MS_MAX 600000u

static struct attnd_attachment *find(struct attnd_call *call, uint32_t handle)
{
    struct attnd_attachment *attachment = attnd_client_attachment(call->client, handle);
    if (!attachment)
        attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_POOL, 0, handle, 0);
    return attachment;
}

/* The pages are the pool's owner's: one that may only read neither takes some, nor has a page kept
 * from being free, nor passes on what was passed to it. It may give up what it claimed. */
static int check_writable(struct attnd_call *call, const struct attnd_attachment *attachment,
                          uint32_t handle)
{
    if (attachment->writable)
        return 0;
    return attnd_fault_set(call->fault, -ATTND_E_PERMISSION, ATTND_F_POOL, 0, handle, 0);
}

static int check_count(struct attnd_call *call, uint64_t count)
{
    if (count <= PAGES_MAX)
        return 0;
    return attnd_fault_set(call->fault, -ATTND_E_RANGE, ATTND_F_COUNT, 0, (int64_t)count,
                           PAGES_MAX);
}

/* A PagesReply with room for @count pages, already the call's result; NULL: fault is set. */
static Attnd__PagesReply *reply_pages(struct attnd_call *call, uint32_t handle, uint32_t count)
{
    Attnd__PagesReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_PAGES);
    int32_t *pages = attnd_call_alloc(call, count * sizeof(*pages));

    if (!reply || !pages) {
        attnd_fault_set(call->fault, -ATTND_E_NO_MEMORY, ATTND_F_COUNT, 0, count, 0);
        return NULL;
    }
    reply->pool = handle;
    reply->n_page = count;
    reply->page = pages;
    return reply;
}

/* Return: 0; ATTND_CALL_LATER: pages will be free without anybody's doing; < 0. */
static int alloc(struct attnd_call *call, struct attnd_attachment *attachment, uint32_t handle,
                 uint32_t count, uint64_t id)
{
    struct attnd_client *client = call->client;
    const Attnd__PagesReply *reply = reply_pages(call, handle, count);

    if (!reply)
        return -ATTND_E_NO_MEMORY;
    int rc = attnd_lease_alloc(attachment, count, reply->page, call->fault);
    if (rc != -ATTND_E_NO_SPACE || client->alloc_pool || /* libattnd makes one call at a time */
        attnd_lease_free_count(attachment->pool) + attnd_pool_leaving(attachment->pool) < count)
        return rc;
    client->alloc_pool = handle;
    client->alloc_count = count;
    client->alloc_id = id;
    return ATTND_CALL_LATER;
}

int attnd_call_pages_alloc(struct attnd_call *call)
{
    const Attnd__PagesAlloc *request = call->request->pages_alloc;
    struct attnd_attachment *attachment = find(call, request->pool);

    if (!attachment)
        return -ATTND_E_UNKNOWN;
    int rc = check_writable(call, attachment, request->pool);
    if (rc == 0)
        rc = check_count(call, request->count);
    if (rc < 0)
        return rc;
    while (attnd_lease_make_room(attachment->pool, request->count, ATTND_LEASE_ROOM_STEP))
        if (attnd_work_spent(&call->service->works))
            return ATTND_CALL_AGAIN;
    return alloc(call, attachment, request->pool, request->count, call->request->id);
}

void attnd_pages_freed(struct attnd_service *service, struct attnd_pool *pool)
{
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++) {
        struct attnd_client *client = service->clients[i];
        struct attnd_fault fault = {0};
        Attnd__Reply reply = ATTND__REPLY__INIT;
        struct attnd_call call = {
            .service = service, .client = client, .reply = &reply, .fault = &fault};
        if (!client || !client->alloc_pool || client->state != ATTND_CLIENT_OPEN)
            continue;
        uint32_t handle = client->alloc_pool;
        struct attnd_attachment *attachment = attnd_client_attachment(client, handle);
        if (attachment && attachment->pool != pool)
            continue;
        client->alloc_pool = 0;
        reply.id = client->alloc_id;
        attnd_control_reset(service);
        int rc = attachment ? alloc(&call, attachment, handle, client->alloc_count, reply.id)
                            : attnd_fault_set(&fault, -ATTND_E_UNKNOWN, ATTND_F_POOL, 0, handle, 0);
        if (rc != ATTND_CALL_LATER)
            attnd_control_answer(client, &reply, -1, &fault);
    }
}

int attnd_call_pages_share(struct attnd_call *call)
{
    const Attnd__PagesShare *request = call->request->pages_share;
    struct attnd_attachment *attachment = find(call, request->pool);

    if (!attachment)
        return -ATTND_E_UNKNOWN;
    int rc = check_writable(call, attachment, request->pool);
    if (rc == 0)
        rc = check_count(call, request->n_page);
    if (rc < 0)
        return rc;
    return attnd_lease_share(attachment, request->page, (uint32_t)request->n_page, call->fault);
}

#define FREE_STEP 256u /* pages between two looks at the clock */

/* All or none: what could fail is tried first, and nothing that comes between makes it fail. */
static int free_some(struct attnd_call *call, struct attnd_attachment *attachment,
                     const int32_t *pages, uint32_t count)
{
    uint32_t *done = &call->client->again_done;
    int rc = *done ? 0 : attnd_lease_check_free(attachment, pages, count, call->fault);

    while (rc == 0 && *done < count) {
        const uint32_t part = count - *done < FREE_STEP ? count - *done : FREE_STEP;
        rc = attnd_lease_free(attachment, pages + *done, part, call->fault);
        *done += part;
        if (*done < count && attnd_work_spent(&call->service->works))
            return ATTND_CALL_AGAIN;
    }
    *done = 0;
    return rc;
}

int attnd_call_pages_free(struct attnd_call *call)
{
    const Attnd__PagesFree *request = call->request->pages_free;
    struct attnd_attachment *attachment = find(call, request->pool);

    if (!attachment)
        return -ATTND_E_UNKNOWN;
    int rc = check_count(call, request->n_page);
    if (rc < 0)
        return rc;
    return free_some(call, attachment, request->page, (uint32_t)request->n_page);
}

int attnd_call_pages_offer(struct attnd_call *call)
{
    const Attnd__PagesOffer *request = call->request->pages_offer;
    struct attnd_attachment *attachment = find(call, request->pool);
    Attnd__TicketReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_TICKET);
    uint8_t *secret = attnd_call_alloc(call, ATTND_SECRET_BYTES);
    const struct attnd_ticket *ticket;

    if (!attachment)
        return -ATTND_E_UNKNOWN;
    if (!reply || !secret)
        return attnd_call_no_memory(call);
    if (request->expire_ms < 1 || request->expire_ms > EXPIRE_MS_MAX)
        return attnd_fault_set(call->fault, -ATTND_E_RANGE, ATTND_F_EXPIRE_MS, 0,
                               request->expire_ms, request->expire_ms ? EXPIRE_MS_MAX : 1);
    int rc = check_writable(call, attachment, request->pool);
    if (rc == 0)
        rc = check_count(call, request->n_page);
    if (rc == 0) /* what has not come yet is nothing to pass on */
        rc = attnd_arrival_check(attachment, request->page, (uint32_t)request->n_page, call->fault);
    if (rc == 0)
        rc = attnd_ticket_offer(call->client, attachment, request->page, (uint32_t)request->n_page,
                                request->expire_ms, request->by_layer, &ticket, call->fault);
    if (rc != 0)
        return rc;
    memcpy(secret, ticket->secret, ATTND_SECRET_BYTES);
    reply->ticket.data = secret;
    reply->ticket.len = ATTND_SECRET_BYTES;
    return 0;
}

/* Of a peer: to bring its pages takes longer than a call may. */
static int is_foreign(const struct attnd_call *call)
{
    const ProtobufCBinaryData *ticket = &call->request->pages_claim->ticket;

    return ticket->len == ATTND_SECRET_BYTES && attnd_peers_know(call->service, ticket->data);
}

int attnd_call_pages_claim(struct attnd_call *call)
{
    const Attnd__PagesClaim *request = call->request->pages_claim;
    struct attnd_ticket *ticket = request->ticket.len == ATTND_SECRET_BYTES
                                      ? attnd_ticket_find(call->service, request->ticket.data)
                                      : NULL;

    if (!ticket)
        return attnd_fault_set(call->fault,
                               is_foreign(call) ? -ATTND_E_UNSUPPORTED : -ATTND_E_EXPIRED,
                               ATTND_F_TICKET, 0, 0, 0);
    if (ticket->lent || !attnd_ticket_whole(ticket))
        return attnd_fault_set(call->fault, -ATTND_E_BUSY, ATTND_F_TICKET, 0, 0, 0);
    uint32_t handle = attnd_client_attached(call->client, ticket->pool);
    if (handle == 0)
        return attnd_fault_set(call->fault, -ATTND_E_PERMISSION, ATTND_F_POOL, 0, 0, 0);
    if (ticket->count > request->pages_max)
        return attnd_fault_set(call->fault, -ATTND_E_NO_SPACE, ATTND_F_COUNT, 0, request->pages_max,
                               ticket->count);
    const Attnd__PagesReply *reply = reply_pages(call, handle, ticket->count);
    if (!reply)
        return -ATTND_E_NO_MEMORY;
    if (ticket->count)
        memcpy(reply->page, ticket->pages, ticket->count * sizeof(*reply->page));
    attnd_ticket_claim(ticket, call->client->attachments[handle - 1]);
    return 0;
}
