/*
 * mover_abi.h - messages between daemon and attnd-mover on their SEQPACKET socketpair.
 *
 * Only the life of links: what is said on a link goes over a socketpair of its own (peer.proto),
 * whose other end comes with LINK. End of file means that the other process is gone.
 */
#ifndef ATTND_SERVICE_PEERS_MOVER_ABI_H
#define ATTND_SERVICE_PEERS_MOVER_ABI_H

#include "schemas/abi.h"
#include "service/service.h"

/* What two movers must agree on: frames, the order of bytes, and the fragments they come in. */
#define ATTND_MOVER_VERSION 1u

#define ATTND_MOVER_FD_CONTROL 3 /* inherited */

enum attnd_mover_message_kind {
    ATTND_MOVER_START = 1, /* daemon: identity; the first message */
    ATTND_MOVER_READY,     /* mover: it listens, if it is to; text: which UCX it has */
    ATTND_MOVER_FAILED,    /* mover: text says why it cannot start; it exits */
    ATTND_MOVER_DIAL,      /* daemon: peer, serial, text: HOST:PORT; answered by LINK or DOWN */
    ATTND_MOVER_LINK,   /* mover: peer and serial of DIAL, or peer ATTND_NONE: a claimer has come;
                           identity, the link's descriptor, text: the other daemon's version, or
                           where the claimer is */
    ATTND_MOVER_DOWN,   /* mover: peer, serial, text: why there is no link */
    ATTND_MOVER_CLOSED, /* mover: peer, serial, text: a link has ended, whoever ended it, and
                           nothing is written for it any more. One for each LINK */
    ATTND_MOVER_PING    /* daemon; answered with the same */
};

struct attnd_mover_message {
    uint32_t kind;
    uint32_t peer; /* the daemon's number of it, or ATTND_NONE */
    uint64_t serial;
    uint8_t identity[ATTND_IDENTITY_BYTES];
    char text[108]; /* ends with 0 */
};
ATTND_ASSERT_SIZE(attnd_mover_message, 128);

enum attnd_mover_exit {
    ATTND_MOVER_EXIT_OK = 0,
    ATTND_MOVER_EXIT_USAGE = 1,
    ATTND_MOVER_EXIT_FAILED = 2
};

#endif
