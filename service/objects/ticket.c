/*
 * ticket.c - leases on their way from one session to another.
 *
 * A ticket holds leases and its pool, belongs to no session, and is found by 16 random bytes. A
 * session that has the bytes, and has attached the pool, may claim it once. So the giver may die as
 * soon as it has passed the bytes on. A ticket that nobody claims in time gives its pages back.
 */
#include "service/objects/ticket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define TICKETS_MAX 4096u
#define MS_NS 1000000u

/* tickets[0..count), in no order. */
struct attnd_tickets {
    uint32_t count;
    struct attnd_ticket *tickets[TICKETS_MAX];
};

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

/* Forgets the ticket; its leases are somebody else's business by now. */
static void ticket_free(struct attnd_ticket *ticket)
{
    struct attnd_tickets *tickets = ticket->service->tickets;
    struct attnd_ticket *last = tickets->tickets[--tickets->count];

    tickets->tickets[ticket->slot] = last;
    last->slot = ticket->slot;
    attnd_loop_unwatch(ticket->service->loop, ticket->timer, NULL, NULL);
    attnd_pool_unref(ticket->service, ticket->pool);
    free(ticket);
}

static void on_expire(void *context)
{
    struct attnd_ticket *ticket = context;
    ticket->timer = NULL;
    attnd_lease_drop(ticket->pool, ticket->pages, ticket->count);
    ticket_free(ticket);
}

static uint32_t tickets_of(const struct attnd_tickets *tickets, pid_t giver)
{
    uint32_t has = 0;
    for (uint32_t i = 0; tickets && i < tickets->count; i++)
        has += tickets->tickets[i]->giver == giver;
    return has;
}

static struct attnd_ticket *ticket_new(struct attnd_service *service, struct attnd_pool *pool,
                                       const int32_t *pages, uint32_t count,
                                       struct attnd_fault *fault)
{
    size_t pages_bytes = count * sizeof(*pages);
    struct attnd_ticket *ticket = NULL;

    if (!service->tickets)
        service->tickets = calloc(1, sizeof(*service->tickets));
    if (service->tickets && service->tickets->count < TICKETS_MAX)
        ticket = calloc(1, sizeof(*ticket) + pages_bytes);
    if (!ticket) {
        attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_TICKET, 0, TICKETS_MAX, TICKETS_MAX);
        return NULL;
    }
    if (attnd_secret_make(ticket->secret, fault) < 0) {
        free(ticket);
        return NULL;
    }
    ticket->service = service;
    ticket->pool = pool;
    ticket->count = count;
    if (count)
        memcpy(ticket->pages, pages, pages_bytes);
    return ticket;
}

int attnd_ticket_offer(struct attnd_service *service, struct attnd_attachment *attachment,
                       pid_t giver, const int32_t *pages, uint32_t count, uint32_t expire_ms,
                       const struct attnd_ticket **out, struct attnd_fault *fault)
{
    int rc = attnd_client_share(giver, tickets_of(service->tickets, giver), TICKETS_MAX,
                                ATTND_F_TICKET, fault);
    if (rc < 0)
        return rc;
    struct attnd_ticket *ticket = ticket_new(service, attachment->pool, pages, count, fault);
    if (!ticket)
        return fault->code;
    ticket->giver = giver;
    ticket->timer = attnd_loop_watch_timer(
        service->loop, attnd_clock_ns() + (uint64_t)expire_ms * MS_NS, on_expire, ticket);
    rc = ticket->timer ? attnd_lease_give(attachment, pages, count, fault)
                       : attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    if (rc < 0) {
        attnd_loop_unwatch(service->loop, ticket->timer, NULL, NULL);
        free(ticket);
        return rc;
    }
    attnd_pool_ref(ticket->pool);
    ticket->slot = service->tickets->count++;
    service->tickets->tickets[ticket->slot] = ticket;
    *out = ticket;
    return 0;
}

struct attnd_ticket *attnd_ticket_find(struct attnd_service *service, const uint8_t *secret)
{
    for (uint32_t i = 0; service->tickets && i < service->tickets->count; i++)
        if (attnd_secret_equal(service->tickets->tickets[i]->secret, secret))
            return service->tickets->tickets[i];
    return NULL;
}

void attnd_ticket_claim(struct attnd_ticket *ticket, struct attnd_attachment *attachment)
{
    attnd_lease_take(attachment, ticket->pages, ticket->count);
    ticket_free(ticket);
}

void attnd_ticket_free_all(struct attnd_service *service)
{
    while (service->tickets && service->tickets->count) {
        struct attnd_ticket *ticket = service->tickets->tickets[service->tickets->count - 1];
        attnd_lease_drop(ticket->pool, ticket->pages, ticket->count);
        ticket_free(ticket);
    }
    free(service->tickets);
    service->tickets = NULL;
}
