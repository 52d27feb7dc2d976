/*
 * ucx.h - of UCX what the mover needs: active messages from one host to another.
 *
 * The library is opened when the process starts. Each link has a UCX worker of its own, so that the
 * end of a link is the end of all that UCX has of it. Messages are eager: a receiver's bytes are
 * written by its own callback, and by nobody later.
 *
 * Threads: one. Blocking: never.
 */
#ifndef ATTND_SERVICE_MOVER_UCX_H
#define ATTND_SERVICE_MOVER_UCX_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define ATTND_UCX_ADDRESS_BYTES_MAX 2048u
#define ATTND_UCX_PIECES_MAX 64u

/** attnd_ucx_open() - @interface: network device, NULL: all. @why: receives what is missing
 * Return: 0; < 0. */
int attnd_ucx_open(const char *interface, char *why, size_t why_bytes);
/** attnd_ucx_version() - two with the same major and minor numbers understand each other. */
void attnd_ucx_version(unsigned *major, unsigned *minor, unsigned *release);

struct attnd_ucx;

/* The first member of what is sent. */
struct attnd_ucx_message {
    struct attnd_ucx *ucx;
};

struct attnd_ucx_events {
    /* A message has come; header and data are borrowed. */
    void (*received)(void *context, const void *header, size_t header_bytes, const void *data,
                     size_t bytes);
    /* A message of attnd_ucx_send() has left; its header and its pieces may change. */
    void (*sent)(void *context, struct attnd_ucx_message *message, int failed);
    /* The other side is gone. */
    void (*failed)(void *context, const char *why);
};

/** attnd_ucx_new() - a UCX worker. Return: 0; -ATTND_E_SYSTEM. */
int attnd_ucx_new(const struct attnd_ucx_events *events, void *context, struct attnd_ucx **out);
/** attnd_ucx_free() - ends everything of it: no event comes any more, and nothing is written. */
void attnd_ucx_free(struct attnd_ucx *ucx);
/** attnd_ucx_address() - where messages can be sent to it
 * @address: [ATTND_UCX_ADDRESS_BYTES_MAX]. Return: bytes; < 0: it does not fit. */
int attnd_ucx_address(const struct attnd_ucx *ucx, uint8_t *address);
/** attnd_ucx_connect() - messages go to @address from now on. Return: 0; -ATTND_E_SYSTEM. */
int attnd_ucx_connect(struct attnd_ucx *ucx, const uint8_t *address, size_t bytes);
/** attnd_ucx_send() - @header and @pieces, and what they name, stay until the event `sent`, which
 * may come from within this call. Return: 0; -ATTND_E_SYSTEM. */
int attnd_ucx_send(struct attnd_ucx *ucx, const void *header, size_t header_bytes,
                   const struct iovec *pieces, uint32_t count, struct attnd_ucx_message *message);
/** attnd_ucx_progress() - Return: 1 something moved. */
int attnd_ucx_progress(struct attnd_ucx *ucx);
/** attnd_ucx_arm() - before sleeping on attnd_ucx_fd(). Return: 1; 0 there is more to do first. */
int attnd_ucx_arm(struct attnd_ucx *ucx);
int attnd_ucx_fd(const struct attnd_ucx *ucx);

#endif
