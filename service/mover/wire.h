/*
 * wire.h - frames over the control link's TCP connection.
 *
 *   length (4 bytes, of the payload) | payload, its first byte the type | signature (32 bytes)
 *
 * The first frame of each side, its hello, has no signature. Numbers are little-endian.
 */
#ifndef ATTND_SERVICE_MOVER_WIRE_H
#define ATTND_SERVICE_MOVER_WIRE_H

#include "ipc/fdpass.h"
#include "service/mover/auth.h"

#define ATTND_WIRE_PAYLOAD_MAX (ATTND_DATAGRAM_BYTES_MAX + 1)
#define ATTND_WIRE_HELLO_MAX 128u /* payload of a frame that nobody has signed */
/* So much may wait to be sent; above the second nothing more is taken from the daemon. */
#define ATTND_WIRE_OUT_MAX (1u << 20)
#define ATTND_WIRE_OUT_FULL (256u << 10)

enum attnd_wire_type {
    ATTND_WIRE_HELLO = 1, /* either side's first */
    ATTND_WIRE_INTRO,     /* either side's second: who it is, and what it has */
    ATTND_WIRE_REFUSE,    /* in the place of it: a text */
    ATTND_WIRE_PEER       /* a PeerMessage */
};

struct attnd_wire {
    int fd;
    struct attnd_auth auth;
    int signs, checks; /* frames are signed, from the second on */
    uint8_t *in;       /* [length + payload + signature] */
    size_t in_bytes;
    uint8_t *out;
    size_t out_begin, out_end;
};

/** attnd_wire_open() - @fd: does not block; the wire's from now on. Return: 0; -ATTND_E_NO_MEMORY,
 * and @fd is closed. */
int attnd_wire_open(struct attnd_wire *wire, int fd);
void attnd_wire_close(struct attnd_wire *wire);

/** attnd_wire_waiting() - bytes that the network has not taken. */
size_t attnd_wire_waiting(const struct attnd_wire *wire);
/** attnd_wire_send() - Return: 0; -ATTND_E_FULL too much waits; -ATTND_E_DISCONNECTED;
 * -ATTND_E_SYSTEM. */
int attnd_wire_send(struct attnd_wire *wire, enum attnd_wire_type type, const void *payload,
                    size_t bytes);
/** attnd_wire_flush() - what the network takes. Return: 0; -ATTND_E_DISCONNECTED. */
int attnd_wire_flush(struct attnd_wire *wire);

/** attnd_wire_receive() - what has come. Return: 0; -ATTND_E_DISCONNECTED. */
int attnd_wire_receive(struct attnd_wire *wire);
/** attnd_wire_look() - the first frame that is whole; it is checked when it is first looked at
 * Return: 1, until attnd_wire_taken(); 0 there is none; -ATTND_E_PROTOCOL; -ATTND_E_PERMISSION it
 * is not of one who has the key. */
int attnd_wire_look(struct attnd_wire *wire, enum attnd_wire_type *type, const uint8_t **payload,
                    size_t *bytes);
void attnd_wire_taken(struct attnd_wire *wire);

#endif
