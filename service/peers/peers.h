/*
 * peers.h - other services of this host: pages of their tickets are brought here, and pages of this
 * service's are lent to them.
 *
 * A link has two sides that do different things, so two services that claim from each other have
 * two links. The claimer's side is a struct attnd_peer, of `attnd --peer`: it connects, again and
 * again, and its transfers bring pages. The giver's side is a struct attnd_guest: it lends tickets.
 *
 *   message.c   a datagram's form
 *   link.c      a connection: beats, silence, the end
 *   dial.c      the claimer's way to a link, and to the next one
 *   lent.c      memory of another service's pool, as this worker maps it
 *   transfer.c  a claim of another service's ticket, from asked to given
 *   steps.c     its steps that take long: pages, mappings, pieces
 *   give.c      the giver's side
 *   peers.c     the whole: start, end, what can be read of it
 */
#ifndef ATTND_SERVICE_PEERS_PEERS_H
#define ATTND_SERVICE_PEERS_PEERS_H

#include "service/objects/ticket.h"

struct attnd_transfer;

/* Events that the rooms above have asked to hear. */
struct attnd_peer_events {
    /* The bytes of @context's transfer are here, @count pages. Return: 1 it can be answered; 0 not
     * yet, and it is asked again a little later. */
    int (*fits)(void *context, uint32_t count);
    /* It is answered, and not to be named any more. @fault's code is 0: @pages are leased to the
     * session of its attachment, and of one that is early arrive from now on (objects/arrival.h);
     * else nothing is leased. */
    void (*ended)(void *context, const int32_t *pages, uint32_t count,
                  const struct attnd_fault *fault);
    /* Layers have arrived, or will not any more: runs that waited for them may go on. */
    void (*arrived)(struct attnd_service *service);
};

/** attnd_peers_start() - links to all of options.peers but itself are made, and kept; guests are
 * welcome.
 * Return: 0; -ATTND_E_NO_MEMORY; -ATTND_E_SYSTEM. */
int attnd_peers_start(struct attnd_service *service, const struct attnd_peer_events *events);
/** attnd_peers_end() - links end, transfers fail, tickets that are lent return. No worker is there
 * any more; the loop still is. Harmless if nothing was started. */
void attnd_peers_end(struct attnd_service *service);

/**
 * attnd_transfer_begin() - bring the pages of a ticket of another service
 * @ticket:     [ATTND_SECRET_BYTES], not of this service; copied
 * @attachment: of @client, for writing, of a pool whose pages the service owns; where they go. It
 *              stays until the transfer is over or cancelled
 * @early:      1: it is answered when the pages are leased, and their bytes arrive layer by layer
 * @context:    of the events, of which `ended` follows unless it is cancelled; never from within
 *              this call
 * Return: 0; -ATTND_E_EXPIRED no peer has such tickets; -ATTND_E_PEER_LOST the one that had is not
 * linked; -ATTND_E_NO_MEMORY.
 */
int attnd_transfer_begin(struct attnd_client *client, const uint8_t *ticket,
                         struct attnd_attachment *attachment, uint32_t pages_max, int early,
                         void *context, struct attnd_transfer **out, struct attnd_fault *fault);
/** attnd_peers_know() - 1: @ticket is of a service that is, or was, linked. */
int attnd_peers_know(const struct attnd_service *service, const uint8_t *ticket);
/** attnd_transfer_cancel() - no event of it comes any more. Its pages are free when no byte can
 * come to them any more, and the ticket is as it was. */
void attnd_transfer_cancel(struct attnd_transfer *transfer);

/** attnd_guest_grown(), attnd_guest_broken() - the events of tickets. */
void attnd_guest_grown(struct attnd_ticket *ticket);
void attnd_guest_broken(struct attnd_ticket *ticket);
/** attnd_peers_pump() - the worker is up, has mapped memory, or pages have become free: transfers
 * that waited for it go on. */
void attnd_peers_pump(struct attnd_service *service);
/** attnd_transfer_brought() - the supervisor's event of a piece. */
void attnd_transfer_brought(struct attnd_service *service, void *context, int code);

/** attnd_peers_welcome() - a service of this user, process @pid, wants to claim here
 * @fd: its end of the link, the caller's
 * Return: 0; -ATTND_E_BUSY there are ATTND_PEERS_MAX already; -ATTND_E_SYSTEM; -ATTND_E_NO_MEMORY.
 */
int attnd_peers_welcome(struct attnd_service *service, pid_t pid, const uint8_t *identity, int *fd,
                        struct attnd_fault *fault);

/* What can be read of a link. */
struct attnd_peer_info {
    char name[32];
    const char *address;     /* NULL: a guest's */
    const char *state;       /* "up", "connecting", "down" */
    const uint8_t *identity; /* NULL: never heard of */
    const char *last_end;    /* "": none has ended */
    uint64_t up_ns;          /* of this link; 0: it is not up */
    uint32_t links, under_way, waiting;
    uint64_t done, failed, pages, bytes, bytes_per_s;
};
#define ATTND_PEER_INFOS_MAX (2 * ATTND_PEERS_MAX)
/** attnd_peers_info() - @infos: [ATTND_PEER_INFOS_MAX], those that this service claims from first.
 * Return: how many. */
uint32_t attnd_peers_info(const struct attnd_service *service, struct attnd_peer_info *infos);

#endif
