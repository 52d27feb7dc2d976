/*
 * ticket.c - leases on their way from one session to another.
 *
 * A ticket holds leases and its pool, belongs to no session, and is found by 16 random bytes. A
 * session that has the bytes, and has attached the pool, may claim it once. So the giver may die as
 * soon as it has passed the bytes on. A ticket that nobody claims in time gives its pages back.
 *
 * The first bytes are the service's own: a peer that is asked to claim it sees from whom to bring
 * the pages. The twelve behind them are the secret. While a peer brings them the ticket is lent: it
 * keeps its leases, whatever becomes of that peer, until the peer has said that it is done.
 */
#include "service/objects/ticket.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MS_NS 1000000u

/* tickets[0..count), in no order. By the first bytes of their secret they are found without looking
 * at all: what the time of that tells of one is twelve bits of 96. */
#define BUCKETS 4096u
struct attnd_tickets {
    uint32_t count;
    struct attnd_ticket *tickets[ATTND_TICKETS_MAX];
    struct attnd_ticket *bucket[BUCKETS];
};

static struct attnd_ticket **bucket_of(struct attnd_tickets *tickets, const uint8_t *secret)
{
    const uint8_t *own = secret + ATTND_IDENTITY_BYTES;

    return &tickets->bucket[(own[0] | (uint32_t)own[1] << 8) % BUCKETS];
}

int attnd_secret_make(uint8_t *secret, struct attnd_fault *fault)
{
    if (getrandom(secret, ATTND_SECRET_BYTES, 0) != (ssize_t)ATTND_SECRET_BYTES)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_TOKEN, 0, errno, 0);
    return 0;
}

int attnd_secret_equal(const uint8_t *a, const uint8_t *b)
{
    uint8_t difference = 0;
    for (uint32_t i = 0; i < ATTND_SECRET_BYTES; i++)
        difference |= (uint8_t)(a[i] ^ b[i]);
    return difference == 0;
}

static uint64_t ticket_bytes(uint32_t count)
{
    return sizeof(struct attnd_ticket) + count * sizeof(int32_t);
}

/* Of a ticket that is in no table. */
static void ticket_free(struct attnd_ticket *ticket)
{
    struct attnd_service *service = ticket->service;

    attnd_loop_unwatch(service->loop, ticket->timer, NULL, NULL);
    attnd_quota_refund(service, ticket->payer, ticket_bytes(ticket->count));
    attnd_quota_give(service, ticket->payer, ATTND_QUOTA_TICKETS, 1);
    free(ticket);
}

/* Nobody finds it any more. */
static void take_out(struct attnd_ticket *ticket)
{
    struct attnd_tickets *tickets = ticket->service->tickets;
    struct attnd_ticket *last = tickets->tickets[--tickets->count];
    struct attnd_ticket **link = bucket_of(tickets, ticket->secret);

    tickets->tickets[ticket->slot] = last;
    last->slot = ticket->slot;
    while (*link != ticket)
        link = &(*link)->bucket_next;
    *link = ticket->bucket_next;
}

/* Its leases are somebody else's business by now. */
static void ticket_end(struct attnd_ticket *ticket)
{
    attnd_pool_unref(ticket->service, ticket->pool);
    ticket_free(ticket);
}

/* Some of its leases are given up. */
static void drop(struct attnd_ticket *ticket, const int32_t *pages, uint32_t count)
{
    if (ticket->quiet)
        attnd_lease_quiet_end(ticket->pool, pages, count);
    attnd_lease_drop(ticket->pool, pages, count);
}

/* The item of a ticket that has expired: its pages are given back. */
static int expire_go(struct attnd_work *work)
{
    struct attnd_ticket *ticket =
        (struct attnd_ticket *)(void *)((char *)work - offsetof(struct attnd_ticket, work));

    while (ticket->count > ticket->dropped) {
        const uint32_t left = ticket->count - ticket->dropped;
        const uint32_t part = left < ATTND_LEASE_DROP_STEP ? left : ATTND_LEASE_DROP_STEP;
        drop(ticket, ticket->pages + ticket->dropped, part);
        ticket->dropped += part;
        if (attnd_work_spent(&ticket->service->works))
            return 1;
    }
    ticket_end(ticket);
    return 0;
}

/* Nobody finds it any more, and its pages are given back. */
static void dissolve(struct attnd_ticket *ticket)
{
    struct attnd_service *service = ticket->service;
    const uid_t uid = service->quota_uids[ticket->payer.user];

    take_out(ticket);
    ticket->work.go = expire_go;
    /* The session that offered it may be gone. */
    attnd_work_start(&service->works, attnd_work_estate(&service->works, uid), &ticket->work);
}

static void on_expire(void *context)
{
    struct attnd_ticket *ticket = context;

    ticket->timer = NULL;
    dissolve(ticket);
}

static int charge(struct attnd_client *giver, uint32_t count, struct attnd_fault *fault)
{
    int rc = attnd_quota_take(giver, ATTND_QUOTA_TICKETS, 1, fault);
    if (rc < 0)
        return rc;
    rc = attnd_quota_charge(giver, ticket_bytes(count), fault);
    if (rc < 0)
        attnd_quota_give(giver->service, attnd_quota_payer(giver), ATTND_QUOTA_TICKETS, 1);
    return rc;
}

static struct attnd_ticket *ticket_new(struct attnd_client *giver, struct attnd_pool *pool,
                                       const int32_t *pages, uint32_t count,
                                       struct attnd_fault *fault)
{
    struct attnd_service *service = giver->service;

    if (charge(giver, count, fault) < 0)
        return NULL;
    struct attnd_ticket *ticket = calloc(1, ticket_bytes(count));
    if (!ticket) {
        attnd_quota_refund(service, attnd_quota_payer(giver), ticket_bytes(count));
        attnd_quota_give(service, attnd_quota_payer(giver), ATTND_QUOTA_TICKETS, 1);
        attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
        return NULL;
    }
    ticket->service = service;
    ticket->payer = attnd_quota_payer(giver);
    ticket->pool = pool;
    ticket->count = count;
    if (count)
        memcpy(ticket->pages, pages, count * sizeof(*pages));
    return ticket;
}

/* The giver keeps its own. */
static int lease_quietly(struct attnd_ticket *ticket, struct attnd_attachment *attachment,
                         struct attnd_fault *fault)
{
    int rc = attnd_lease_check_free(attachment, ticket->pages, ticket->count, fault);

    if (rc == 0)
        rc = attnd_lease_quiet_room(ticket->service, ticket->pool, fault);
    return rc < 0 ? rc : attnd_lease_quiet_add(ticket->pool, ticket->pages, ticket->count, fault);
}

/* The steps that can fail, of which the leases are the last. */
static int ticket_arm(struct attnd_ticket *ticket, struct attnd_attachment *attachment,
                      uint32_t expire_ms, struct attnd_fault *fault)
{
    struct attnd_service *service = ticket->service;

    if (!service->tickets)
        service->tickets = calloc(1, sizeof(*service->tickets));
    ticket->expire_ns = attnd_clock_ns() + (uint64_t)expire_ms * MS_NS;
    if (service->tickets)
        ticket->timer = attnd_loop_watch_timer(service->loop, ticket->expire_ns, on_expire, ticket);
    if (!ticket->timer)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    int rc = attnd_secret_make(ticket->secret, fault);
    memcpy(ticket->secret, service->identity, ATTND_IDENTITY_BYTES);
    if (rc < 0)
        return rc;
    return ticket->quiet ? lease_quietly(ticket, attachment, fault)
                         : attnd_lease_give(attachment, ticket->pages, ticket->count, fault);
}

int attnd_ticket_offer(struct attnd_client *giver, struct attnd_attachment *attachment,
                       const int32_t *pages, uint32_t count, uint32_t expire_ms, int by_layer,
                       const struct attnd_ticket **out, struct attnd_fault *fault)
{
    struct attnd_ticket *ticket = ticket_new(giver, attachment->pool, pages, count, fault);
    if (!ticket)
        return -ATTND_E_NO_MEMORY;
    ticket->quiet = by_layer;
    ticket->layers = by_layer ? 0 : attachment->pool->shape.layers;
    int rc = ticket_arm(ticket, attachment, expire_ms, fault);
    if (rc < 0) {
        ticket_free(ticket);
        return rc;
    }
    struct attnd_tickets *tickets = giver->service->tickets;
    assert(tickets->count < ATTND_TICKETS_MAX); /* as many as are counted */
    attnd_pool_ref(ticket->pool);
    ticket->slot = tickets->count++;
    tickets->tickets[ticket->slot] = ticket;
    ticket->bucket_next = *bucket_of(tickets, ticket->secret);
    *bucket_of(tickets, ticket->secret) = ticket;
    *out = ticket;
    return 0;
}

struct attnd_ticket *attnd_ticket_find(struct attnd_service *service, const uint8_t *secret)
{
    if (!service->tickets)
        return NULL;
    for (struct attnd_ticket *at = *bucket_of(service->tickets, secret); at; at = at->bucket_next)
        if (attnd_secret_equal(at->secret, secret))
            return at;
    return NULL;
}

void attnd_ticket_claim(struct attnd_ticket *ticket, struct attnd_attachment *attachment)
{
    attnd_lease_take(attachment, ticket->pages, ticket->count);
    take_out(ticket);
    ticket_end(ticket);
}

void attnd_ticket_grow(struct attnd_ticket *ticket, uint32_t layers)
{
    if (layers <= ticket->layers)
        return;
    ticket->layers = layers;
    if (attnd_ticket_whole(ticket) && ticket->quiet) {
        attnd_lease_quiet_end(ticket->pool, ticket->pages, ticket->count);
        ticket->quiet = 0;
    }
    if (ticket->lent)
        ticket->service->ticket_events->grown(ticket);
}

void attnd_ticket_orphan(struct attnd_service *service, uint32_t session)
{
    struct attnd_tickets *tickets = service->tickets;

    for (uint32_t i = tickets ? tickets->count : 0; i > 0; i--) { /* the last takes a free place */
        if (i > tickets->count) /* a link has ended by what it was told */
            continue;
        struct attnd_ticket *ticket = tickets->tickets[i - 1];
        if (ticket->payer.session != session || !ticket->quiet)
            continue;
        if (ticket->lent)
            service->ticket_events->broken(ticket);
        ticket->lent = NULL;
        attnd_loop_unwatch(service->loop, ticket->timer, NULL, NULL);
        ticket->timer = NULL;
        dissolve(ticket);
    }
}

void attnd_ticket_lend(struct attnd_ticket *ticket, void *to)
{
    assert(!ticket->lent);
    ticket->lent = to;
    attnd_loop_unwatch(ticket->service->loop, ticket->timer, NULL, NULL);
    ticket->timer = NULL;
}

void attnd_ticket_spend(struct attnd_ticket *ticket)
{
    assert(ticket->lent);
    dissolve(ticket);
}

void attnd_ticket_return(struct attnd_ticket *ticket)
{
    assert(ticket->lent);
    ticket->lent = NULL;
    if (ticket->expire_ns > attnd_clock_ns())
        ticket->timer =
            attnd_loop_watch_timer(ticket->service->loop, ticket->expire_ns, on_expire, ticket);
    if (!ticket->timer) /* its time is over, or nothing would end it */
        dissolve(ticket);
}

void attnd_ticket_free_all(struct attnd_service *service)
{
    attnd_work_finish(&service->works); /* those that have expired */
    while (service->tickets && service->tickets->count) {
        struct attnd_ticket *ticket = service->tickets->tickets[service->tickets->count - 1];
        drop(ticket, ticket->pages, ticket->count);
        take_out(ticket);
        ticket_end(ticket);
    }
    free(service->tickets);
    service->tickets = NULL;
}
