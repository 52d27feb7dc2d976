/*
 * link.h - a connection between two services: messages, beats, and its end.
 *
 * A link is up or down, and its owner keeps it: links lie in the tables of peers.c. The kernel says
 * at once when the other daemon has died. One that is stopped says nothing, so each side sends a
 * beat twice a second, or once to another host, and takes one that it has not heard of for
 * ATTND_LINK_SILENCE_NS for dead.
 *
 * What a peer sends is worked off in pieces (base/work.h), on an account of the link's own. What is
 * sent to it never waits: the protocol bounds what is unread, so a peer that does not read is hung
 * up on.
 */
#ifndef ATTND_SERVICE_PEERS_LINK_H
#define ATTND_SERVICE_PEERS_LINK_H

#include "service/peers/message.h"
#include "service/service.h"

#define ATTND_LINK_BEAT_NS UINT64_C(500000000)
#define ATTND_LINK_BEAT_FAR_NS UINT64_C(1000000000) /* of one that four processes wake for */
#define ATTND_LINK_SILENCE_NS UINT64_C(3000000000)

struct attnd_peer_link;

struct attnd_link_events {
    /* @fds are closed after it, but those that it sets to -1. It may end the link.
     * Return: 0; < 0: the peer broke the protocol, and the link is ended. */
    int (*message)(struct attnd_peer_link *link, const Attnd__PeerMessage *message, int *fds,
                   int fds_count);
    /* A beat is due. It may end the link. */
    void (*beat)(struct attnd_peer_link *link);
    /* The link is down, of itself or by attnd_link_end(). */
    void (*down)(struct attnd_peer_link *link, const char *why);
};

/* Message buffers, of all links together: one message is looked at at a time. */
struct attnd_link_buffers;

struct attnd_peer_link {
    struct attnd_service *service;
    struct attnd_link_buffers *buffers;
    const struct attnd_link_events *events;
    uint64_t beat_ns; /* how often it says that it lives */
    int fd;           /* -1: down */
    struct attnd_watch *watch, *timer;
    struct attnd_work work;
    struct attnd_account account;
    uint64_t up_ns, heard_ns;
    uint32_t ups;      /* how often it has come up */
    char last_end[96]; /* why it went down last; "": never */
};

/** attnd_link_buffers_new() - NULL for lack of memory; free() frees them. */
struct attnd_link_buffers *attnd_link_buffers_new(void);

static inline int attnd_link_is_up(const struct attnd_peer_link *link)
{
    return link->fd >= 0;
}

/** attnd_link_begin() - @link, which is down, is up over @fd, a socket that does not block and is
 * the link's from now on. Return: 0; -ATTND_E_NO_MEMORY, and @fd is closed. */
int attnd_link_begin(struct attnd_peer_link *link, int fd);

/** attnd_link_end() - hang up; the event `down` follows at once. Harmless on one that is down. */
void attnd_link_end(struct attnd_peer_link *link, const char *why);

/** attnd_link_send() - @fds stay the caller's. Return: 0; < 0 the link is down now. */
int attnd_link_send(struct attnd_peer_link *link, const Attnd__PeerMessage *message, const int *fds,
                    int fds_count);

/** attnd_link_try() - the same, but a link that has no room stays as it is: -ATTND_E_FULL. */
int attnd_link_try(struct attnd_peer_link *link, const Attnd__PeerMessage *message);

#endif
