/*
 * link.c - see link.h.
 */
#include "service/peers/link.h"

#include "ipc/discard.h"
#include "ipc/fdpass.h"
#include "schemas/clock.h"
#include "schemas/crash.h"

#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct attnd_link_buffers {
    uint8_t received[ATTND_DATAGRAM_BYTES_MAX];
    uint8_t sent[ATTND_DATAGRAM_BYTES_MAX];
    _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t message[ATTND_PEER_DECODE_BYTES];
};

struct attnd_link_buffers *attnd_link_buffers_new(void)
{
    return aligned_alloc(ATTND_ADMIT_ALIGN_BYTES,
                         (sizeof(struct attnd_link_buffers) + ATTND_ADMIT_ALIGN_BYTES - 1) /
                             ATTND_ADMIT_ALIGN_BYTES * ATTND_ADMIT_ALIGN_BYTES);
}

/* ---- the end ---- */

/* What a peer has sent and nobody has received is in it. */
static void close_later(void *context)
{
    const int fd = (int)(intptr_t)context;
    attnd_discard(ATTND_DISCARD_OWN, &fd, 1);
}

void attnd_link_end(struct attnd_peer_link *link, const char *why)
{
    const int fd = link->fd;

    if (fd < 0)
        return;
    link->fd = -1;
    (void)shutdown(fd, SHUT_RDWR); /* the other side need not wait until the loop has let go */
    attnd_work_stop(&link->work);
    attnd_loop_unwatch(link->service->loop, link->timer, NULL, NULL);
    if (link->watch)
        attnd_loop_unwatch(link->service->loop, link->watch, close_later, (void *)(intptr_t)fd);
    else
        close_later((void *)(intptr_t)fd);
    link->watch = link->timer = NULL;
    snprintf(link->last_end, sizeof(link->last_end), "%s", why);
    link->events->down(link, why);
}

/* ---- what the peer says ---- */

/* Return: 1 one message was looked at; 0 there is none, or the link is down. */
static int receive(struct attnd_peer_link *link)
{
    struct attnd_link_buffers *buffers = link->buffers;
    struct attnd_admit_alloc alloc;
    Attnd__PeerMessage *message = NULL;
    int fds[ATTND_FDS_MAX], fds_count = 0, kept = 0;

    if (attnd_discard_full(ATTND_DISCARD_OWN) || !attnd_fdpass_room()) {
        attnd_link_end(link, "descriptors run low (raise ulimit -n)");
        return 0;
    }
    const long got =
        attnd_fdpass_recv(link->fd, buffers->received, sizeof(buffers->received), fds, &fds_count);
    if (got == 0)
        return 0;
    if (got < 0) {
        attnd_link_end(link, got == -ATTND_E_DISCONNECTED ? "it hung up"
                                                          : "its datagram cannot be received");
        return 0;
    }
    link->heard_ns = attnd_clock_ns();
    attnd_admit_alloc_init(&alloc, buffers->message, sizeof(buffers->message));
    int rc = attnd_peer_decode(buffers->received, (size_t)got, &alloc, &message);
    if (rc == 0 && message->message_case != ATTND__PEER_MESSAGE__MESSAGE_BEAT)
        rc = link->events->message(link, message, fds, fds_count);
    for (int i = 0; i < fds_count; i++)
        if (fds[i] >= 0)
            fds[kept++] = fds[i];
    if (kept > 0)
        attnd_discard(ATTND_DISCARD_OWN, fds, kept);
    if (rc < 0)
        attnd_link_end(link, "it broke the protocol");
    return attnd_link_is_up(link);
}

/* The item of what has come. */
static int work(struct attnd_work *work)
{
    struct attnd_peer_link *link =
        (struct attnd_peer_link *)(void *)((char *)work - offsetof(struct attnd_peer_link, work));

    while (receive(link))
        if (attnd_work_spent(&link->service->works))
            return 1;
    if (attnd_link_is_up(link) && attnd_loop_resume(link->service->loop, link->watch) < 0)
        attnd_link_end(link, "it cannot be watched");
    return 0;
}

static void on_socket(void *context, uint32_t poll_events)
{
    struct attnd_peer_link *link = context;
    (void)poll_events; /* its end is received as well, behind what came before */

    attnd_work_start(&link->service->works, &link->account, &link->work);
    if (attnd_work_waits(&link->work))
        attnd_loop_pause(link->service->loop, link->watch);
}

/* ---- beats ---- */

/* This process may have been stopped itself: then what has come meanwhile is there to be read. */
static int is_silent(const struct attnd_peer_link *link)
{
    struct pollfd socket = {.fd = link->fd, .events = POLLIN};

    return attnd_clock_ns() - link->heard_ns >= ATTND_LINK_SILENCE_NS &&
           !attnd_work_waits(&link->work) && poll(&socket, 1, 0) == 0;
}

static void on_timer(void *context)
{
    struct attnd_peer_link *link = context;
    Attnd__PeerBeat beat = ATTND__PEER_BEAT__INIT;
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;

    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_BEAT;
    message.beat = &beat;
    if (is_silent(link)) {
        attnd_link_end(link, "it is silent");
        return;
    }
    if (attnd_link_try(link, &message) == -ATTND_E_PEER_LOST)
        return; /* one that has no room: it is silent, or reads on */
    attnd_loop_timer_set(link->service->loop, link->timer, attnd_clock_ns() + link->beat_ns);
    link->events->beat(link);
}

/* ---- the outside ---- */

int attnd_link_begin(struct attnd_peer_link *link, int fd)
{
    struct attnd_loop *loop = link->service->loop;

    link->fd = fd;
    link->work = (struct attnd_work){.go = work};
    link->timer = attnd_loop_timer_new(loop, on_timer, link);
    link->watch =
        link->timer ? attnd_loop_watch_fd(loop, fd, POLLIN | POLLRDHUP, on_socket, link) : NULL;
    if (!link->watch) {
        attnd_loop_unwatch(loop, link->timer, NULL, NULL);
        link->timer = NULL;
        link->fd = -1;
        close(fd);
        return -ATTND_E_NO_MEMORY;
    }
    link->up_ns = link->heard_ns = attnd_clock_ns();
    link->ups++;
    attnd_loop_timer_set(loop, link->timer, link->up_ns + link->beat_ns);
    return 0;
}

/* Return: as attnd_fdpass_send(); -ATTND_E_RANGE it is too long. */
static int transmit(struct attnd_peer_link *link, const Attnd__PeerMessage *message, const int *fds,
                    int fds_count)
{
    struct attnd_link_buffers *buffers = link->buffers;
    const size_t bytes = attnd__peer_message__get_packed_size(message);

    if (bytes > sizeof(buffers->sent))
        return -ATTND_E_RANGE;
    attnd__peer_message__pack(message, buffers->sent);
    const int rc = attnd_fdpass_send(link->fd, buffers->sent, bytes, fds, fds_count);
    attnd_crash(ATTND_CRASH_DAEMON_PEER_TOLD);
    return rc;
}

int attnd_link_send(struct attnd_peer_link *link, const Attnd__PeerMessage *message, const int *fds,
                    int fds_count)
{
    const int rc =
        attnd_link_is_up(link) ? transmit(link, message, fds, fds_count) : -ATTND_E_PEER_LOST;

    if (rc == 0 || rc == -ATTND_E_PEER_LOST)
        return rc;
    attnd_link_end(link, rc == -ATTND_E_FULL    ? "it does not read"
                         : rc == -ATTND_E_RANGE ? "what it is to be told is too long"
                                                : "it hung up");
    return -ATTND_E_PEER_LOST;
}

int attnd_link_try(struct attnd_peer_link *link, const Attnd__PeerMessage *message)
{
    int rc = attnd_link_is_up(link) ? transmit(link, message, NULL, 0) : -ATTND_E_PEER_LOST;

    if (rc == 0 || rc == -ATTND_E_FULL || rc == -ATTND_E_PEER_LOST)
        return rc;
    attnd_link_end(link, "it hung up");
    return -ATTND_E_PEER_LOST;
}
