/*
 * mover.h - what the files of the process share: its links, and how it tells the daemon.
 *
 * One thread does everything, in an event loop of its own (main_mover.c). A link that goes wrong is
 * marked with why, and ended when nothing uses it any more.
 */
#ifndef ATTND_SERVICE_MOVER_MOVER_H
#define ATTND_SERVICE_MOVER_MOVER_H

#include "service/mover/moves.h"
#include "service/mover/wire.h"
#include "service/peers/mover_abi.h"

#define ATTND_MOVER_LINKS_MAX (2 * ATTND_PEERS_MAX)
/* Of those such as have not shown that they have the key; more wait to be accepted. */
#define ATTND_MOVER_STRANGERS_MAX 8u
#define ATTND_MOVER_HANDSHAKE_NS UINT64_C(3000000000)

enum attnd_mover_link_state {
    ATTND_MOVER_CONNECTING, /* of one that connects */
    ATTND_MOVER_GREETING,   /* hellos */
    ATTND_MOVER_MEETING,    /* intros: signed from here on */
    ATTND_MOVER_UP          /* the daemon has its end */
};

struct attnd_mover;

struct attnd_mover_link {
    struct attnd_mover_link *next;
    struct attnd_mover *mover;
    enum attnd_mover_link_state state;
    uint32_t peer; /* the daemon's number; ATTND_NONE: the other side connected, to claim */
    uint64_t serial;
    uint64_t deadline_ns; /* until UP */
    struct attnd_wire wire;
    uint8_t nonces[2][ATTND_AUTH_BYTES];
    int fd; /* to the daemon; -1 */
    struct attnd_ucx *ucx;
    struct attnd_moves moves;
    int waits;     /* a frame was heard, and waits for the daemon to read */
    char from[64]; /* where a claimer is */
    int ended;
    char why[96];
};

struct attnd_mover {
    int control, listener; /* listener -1: it does not listen */
    uint8_t identity[ATTND_IDENTITY_BYTES];
    struct attnd_auth_key key;
    struct attnd_mover_link *links;
    uint32_t links_count;
    int leaves; /* the daemon is gone */
};

/** attnd_mover_say() - a message for the daemon, with @fd or -1. */
void attnd_mover_say(struct attnd_mover *mover, const struct attnd_mover_message *message, int fd);

/** attnd_mover_dial() - the daemon's DIAL. */
void attnd_mover_dial(struct attnd_mover *mover, const struct attnd_mover_message *dial);
/** attnd_mover_accept() - somebody connects. */
void attnd_mover_accept(struct attnd_mover *mover);
/** attnd_mover_takes_strangers() - 1: there is room for one. */
int attnd_mover_takes_strangers(const struct attnd_mover *mover);

/** attnd_mover_fail() - the link ends, when nothing uses it any more. The first @why stands. */
void attnd_mover_fail(struct attnd_mover_link *link, const char *why);
/** attnd_mover_sweep() - end what has failed or is late, and tell the daemon. Return: when the next
 * one is late, CLOCK_MONOTONIC. */
uint64_t attnd_mover_sweep(struct attnd_mover *mover, uint64_t now_ns);

/** attnd_mover_meet() - handshake.c: frames until it is up. */
void attnd_mover_meet(struct attnd_mover_link *link);
/** attnd_mover_connected() - the TCP connection is there, or has failed. */
void attnd_mover_connected(struct attnd_mover_link *link);

/** attnd_mover_from_daemon() - relay.c: the link's descriptor can be read. */
void attnd_mover_from_daemon(struct attnd_mover_link *link);
/** attnd_mover_from_peer() - frames of one that is up. */
void attnd_mover_from_peer(struct attnd_mover_link *link);
/** attnd_mover_tell_landed() - pulls that are over, as far as the daemon reads. Return: 1: all. */
int attnd_mover_tell_landed(struct attnd_mover_link *link);
/** attnd_mover_ucx_events - of a link. */
extern const struct attnd_ucx_events attnd_mover_ucx_events;

#endif
