/*
 * wire.c - see wire.h. One frame at a time is in memory, of a length that is bounded before it is
 * read; a stranger's is shorter still.
 */
#include "service/mover/wire.h"

#include "schemas/errors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LENGTH_BYTES sizeof(uint32_t)
#define IN_BYTES (LENGTH_BYTES + ATTND_WIRE_PAYLOAD_MAX + ATTND_AUTH_BYTES)

int attnd_wire_open(struct attnd_wire *wire, int fd)
{
    *wire = (struct attnd_wire){.fd = fd};
    wire->in = malloc(IN_BYTES);
    wire->out = malloc(ATTND_WIRE_OUT_MAX);
    if (wire->in && wire->out)
        return 0;
    attnd_wire_close(wire);
    return -ATTND_E_NO_MEMORY;
}

void attnd_wire_close(struct attnd_wire *wire)
{
    free(wire->in);
    free(wire->out);
    if (wire->fd >= 0)
        close(wire->fd);
    *wire = (struct attnd_wire){.fd = -1};
}

/* ---- out ---- */

size_t attnd_wire_waiting(const struct attnd_wire *wire)
{
    return wire->out_end - wire->out_begin;
}

int attnd_wire_flush(struct attnd_wire *wire)
{
    while (wire->out_begin < wire->out_end) {
        const ssize_t sent = send(wire->fd, wire->out + wire->out_begin,
                                  wire->out_end - wire->out_begin, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (sent < 0)
            return -ATTND_E_DISCONNECTED;
        wire->out_begin += (size_t)sent;
    }
    wire->out_begin = wire->out_end = 0;
    return 0;
}

int attnd_wire_send(struct attnd_wire *wire, enum attnd_wire_type type, const void *payload,
                    size_t bytes)
{
    const uint32_t length = (uint32_t)bytes + 1;
    const size_t signature = wire->signs ? ATTND_AUTH_BYTES : 0;

    memmove(wire->out, wire->out + wire->out_begin, attnd_wire_waiting(wire));
    wire->out_end -= wire->out_begin;
    wire->out_begin = 0;
    if (length > ATTND_WIRE_PAYLOAD_MAX ||
        LENGTH_BYTES + length + signature > ATTND_WIRE_OUT_MAX - wire->out_end)
        return -ATTND_E_FULL;
    uint8_t *at = wire->out + wire->out_end;
    memcpy(at, &length, LENGTH_BYTES);
    at[LENGTH_BYTES] = (uint8_t)type;
    memcpy(at + LENGTH_BYTES + 1, payload, bytes);
    if (signature &&
        attnd_auth_sign(&wire->auth, at, LENGTH_BYTES + length, at + LENGTH_BYTES + length) < 0)
        return -ATTND_E_SYSTEM;
    wire->out_end += LENGTH_BYTES + length + signature;
    return attnd_wire_flush(wire);
}

/* ---- in ---- */

static uint32_t length_of(const struct attnd_wire *wire)
{
    uint32_t length;

    memcpy(&length, wire->in, LENGTH_BYTES);
    return length;
}

/* Bytes of the frame that has begun, as far as that is known. */
static size_t wanted(const struct attnd_wire *wire)
{
    return wire->in_bytes < LENGTH_BYTES
               ? LENGTH_BYTES
               : LENGTH_BYTES + length_of(wire) + (wire->checks ? ATTND_AUTH_BYTES : 0);
}

static int is_too_long(const struct attnd_wire *wire)
{
    return wire->in_bytes >= LENGTH_BYTES &&
           (length_of(wire) == 0 ||
            length_of(wire) > (wire->checks ? ATTND_WIRE_PAYLOAD_MAX : ATTND_WIRE_HELLO_MAX));
}

int attnd_wire_receive(struct attnd_wire *wire)
{
    while (!is_too_long(wire) && wire->in_bytes < wanted(wire)) {
        const ssize_t got =
            recv(wire->fd, wire->in + wire->in_bytes, wanted(wire) - wire->in_bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (got <= 0)
            return -ATTND_E_DISCONNECTED;
        wire->in_bytes += (size_t)got;
    }
    return 0;
}

int attnd_wire_look(struct attnd_wire *wire, enum attnd_wire_type *type, const uint8_t **payload,
                    size_t *bytes)
{
    if (is_too_long(wire))
        return wire->checks ? -ATTND_E_PROTOCOL : -ATTND_E_PERMISSION;
    if (wire->in_bytes < LENGTH_BYTES || wire->in_bytes < wanted(wire))
        return 0;
    const uint32_t length = length_of(wire);
    if (wire->checks == 1) {
        if (attnd_auth_check(&wire->auth, wire->in, LENGTH_BYTES + length,
                             wire->in + LENGTH_BYTES + length) < 0)
            return -ATTND_E_PERMISSION;
        wire->checks = 2; /* this one is */
    }
    *type = wire->in[LENGTH_BYTES];
    *payload = wire->in + LENGTH_BYTES + 1;
    *bytes = length - 1;
    return 1;
}

void attnd_wire_taken(struct attnd_wire *wire)
{
    wire->in_bytes = 0;
    if (wire->checks)
        wire->checks = 1;
}
