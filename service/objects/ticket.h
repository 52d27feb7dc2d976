/*
 * ticket.h - leases on their way from one session to another, of this service or of a peer.
 */
#ifndef ATTND_SERVICE_OBJECTS_TICKET_H
#define ATTND_SERVICE_OBJECTS_TICKET_H

#include "service/objects/lease.h"

struct attnd_ticket {
    struct attnd_service *service;
    struct attnd_pool *pool; /* referenced */
    struct attnd_watch *timer;
    struct attnd_payer payer; /* that made it: it, and its memory of the daemon's */
    struct attnd_ticket *bucket_next;
    struct attnd_work work; /* it has expired, */
    uint32_t dropped;       /* and so many of its pages are given back */
    uint64_t expire_ns;     /* CLOCK_MONOTONIC */
    void *lent;             /* to whom: a peer brings its bytes, and nobody may claim it */
    uint32_t layers;        /* that are whole: of all its pages, from the first on */
    int quiet; /* 1: layers are missing, so its leases are quiet ones, and the giver has its own */
    uint32_t slot;
    uint32_t count;
    uint8_t secret[ATTND_SECRET_BYTES];
    int32_t pages[];
};

/* Events of tickets that are lent, which others have asked to hear. */
struct attnd_ticket_events {
    /* More of its layers are whole. */
    void (*grown)(struct attnd_ticket *ticket);
    /* It goes before it is whole: it is to be named no more, as if it had been returned. */
    void (*broken)(struct attnd_ticket *ticket);
};

/** attnd_secret_make() - 16 random bytes. Return: 0 or -ATTND_E_SYSTEM. */
int attnd_secret_make(uint8_t *secret, struct attnd_fault *fault);
/** attnd_secret_equal() - in constant time. */
int attnd_secret_equal(const uint8_t *a, const uint8_t *b);

/** attnd_ticket_offer() - move leases of @attachment, @giver's, to a ticket.
 * @by_layer: 1: no layer is whole yet; @giver keeps its leases and goes on writing the pages, and
 *            says by attnd_ticket_grow() which are. Return: 0;
 * -ATTND_E_NO_MEMORY also when the giver has its share of tickets; what attnd_lease_give() says. */
int attnd_ticket_offer(struct attnd_client *giver, struct attnd_attachment *attachment,
                       const int32_t *pages, uint32_t count, uint32_t expire_ms, int by_layer,
                       const struct attnd_ticket **out, struct attnd_fault *fault);
/** attnd_ticket_find() - NULL if it expired or was claimed or never was; it may be lent. */
struct attnd_ticket *attnd_ticket_find(struct attnd_service *service, const uint8_t *secret);
/** attnd_ticket_claim() - its leases go to @attachment, of its pool; the ticket, which is whole and
 * not lent, is gone. */
void attnd_ticket_claim(struct attnd_ticket *ticket, struct attnd_attachment *attachment);
/** attnd_ticket_grow() - layers up to @layers are whole, and nobody writes them any more. With the
 * last one it is a ticket like any other, and its giver's leases are ones that share its pages. */
void attnd_ticket_grow(struct attnd_ticket *ticket, uint32_t layers);
/** attnd_ticket_orphan() - session @session is gone: its tickets that are not whole never will be.
 */
void attnd_ticket_orphan(struct attnd_service *service, uint32_t session);
/** attnd_ticket_lend() - a peer is about to bring its bytes: it stays found, is not claimed, and
 * does not expire until attnd_ticket_spend() or attnd_ticket_return(). */
void attnd_ticket_lend(struct attnd_ticket *ticket, void *to);
/** attnd_ticket_spend() - the peer has the bytes: its pages are given back, and it is gone. */
void attnd_ticket_spend(struct attnd_ticket *ticket);
/** attnd_ticket_return() - the peer does not want it: as it was before. One whose time is over
 * expires. */
void attnd_ticket_return(struct attnd_ticket *ticket);
/** attnd_ticket_whole() - 1: all of its layers are. */
static inline int attnd_ticket_whole(const struct attnd_ticket *ticket)
{
    return ticket->layers == ticket->pool->shape.layers;
}
/** attnd_ticket_free_all() - at the end of the service. */
void attnd_ticket_free_all(struct attnd_service *service);

#endif
