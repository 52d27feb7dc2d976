/*
 * link.c - links begin, and end.
 */
#include "ipc/fdpass.h"
#include "schemas/clock.h"
#include "service/args/address.h"
#include "service/base/log.h"
#include "service/mover/mover.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the beginning ---- */

/* @fd is the link's, or closed. Return: NULL for lack of memory. */
static struct attnd_mover_link *link_new(struct attnd_mover *mover, int fd)
{
    static const int yes = 1;
    struct attnd_mover_link *link = calloc(1, sizeof(*link));

    if (!link) {
        close(fd);
        return NULL;
    }
    if (attnd_wire_open(&link->wire, fd) < 0) {
        free(link);
        return NULL;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    link->mover = mover;
    link->peer = ATTND_NONE;
    link->fd = -1;
    link->deadline_ns = attnd_clock_ns() + ATTND_MOVER_HANDSHAKE_NS;
    attnd_moves_init(&link->moves);
    link->next = mover->links;
    mover->links = link;
    mover->links_count++;
    return link;
}

static void say_down(struct attnd_mover *mover, uint32_t peer, uint64_t serial, const char *why)
{
    struct attnd_mover_message message = {.kind = ATTND_MOVER_DOWN, .peer = peer, .serial = serial};

    snprintf(message.text, sizeof(message.text), "%s", why);
    attnd_mover_say(mover, &message, -1);
}

void attnd_mover_dial(struct attnd_mover *mover, const struct attnd_mover_message *dial)
{
    struct sockaddr_storage address;
    socklen_t bytes;
    const char *why = "it is no address";
    int fd = -1;

    if (dial->text[sizeof(dial->text) - 1] == 0 &&
        attnd_address_parse(dial->text, &address, &bytes) == 0) {
        fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        why = strerror(errno);
    }
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, bytes) < 0 &&
        errno != EINPROGRESS) {
        why = strerror(errno);
        close(fd);
        fd = -1;
    }
    struct attnd_mover_link *link = fd >= 0 ? link_new(mover, fd) : NULL;
    if (!link) {
        say_down(mover, dial->peer, dial->serial, fd >= 0 ? "out of memory" : why);
        return;
    }
    link->peer = dial->peer;
    link->serial = dial->serial;
    link->state = ATTND_MOVER_CONNECTING;
}

int attnd_mover_takes_strangers(const struct attnd_mover *mover)
{
    uint32_t strangers = 0;

    for (const struct attnd_mover_link *link = mover->links; link; link = link->next)
        strangers += link->peer == ATTND_NONE && link->state != ATTND_MOVER_UP;
    return mover->links_count < ATTND_MOVER_LINKS_MAX && strangers < ATTND_MOVER_STRANGERS_MAX;
}

void attnd_mover_accept(struct attnd_mover *mover)
{
    struct sockaddr_storage from;
    socklen_t bytes = sizeof(from);
    const int fd =
        accept4(mover->listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct attnd_mover_link *link = fd >= 0 ? link_new(mover, fd) : NULL;

    if (!link)
        return;
    link->state = ATTND_MOVER_GREETING;
    if (getnameinfo((const struct sockaddr *)&from, bytes, link->from, sizeof(link->from), NULL, 0,
                    NI_NUMERICHOST) != 0)
        snprintf(link->from, sizeof(link->from), "somebody");
}

/* ---- the end ---- */

void attnd_mover_fail(struct attnd_mover_link *link, const char *why)
{
    if (link->ended)
        return;
    link->ended = 1;
    snprintf(link->why, sizeof(link->why), "%s", why);
}

/* With its UCX worker all that could write is gone, before the daemon hears of it. */
static void end(struct attnd_mover_link *link)
{
    struct attnd_mover *mover = link->mover;
    struct attnd_mover_message closed = {
        .kind = ATTND_MOVER_CLOSED, .peer = link->peer, .serial = link->serial};

    attnd_ucx_free(link->ucx);
    attnd_moves_end(&link->moves);
    (void)attnd_wire_flush(&link->wire); /* a refusal */
    attnd_wire_close(&link->wire);
    if (link->fd >= 0)
        close(link->fd);
    if (link->state == ATTND_MOVER_UP) {
        snprintf(closed.text, sizeof(closed.text), "%s", link->why);
        attnd_mover_say(mover, &closed, -1);
    } else if (link->peer != ATTND_NONE) {
        say_down(mover, link->peer, link->serial, link->why);
    } else {
        attnd_log(ATTND_LOG_WARNING, "mover: %s wants to claim here, and may not: %s", link->from,
                  link->why);
    }
    mover->links_count--;
    free(link);
}

uint64_t attnd_mover_sweep(struct attnd_mover *mover, uint64_t now_ns)
{
    uint64_t late_ns = UINT64_MAX;

    for (struct attnd_mover_link **at = &mover->links; *at;) {
        struct attnd_mover_link *link = *at;
        if (link->state != ATTND_MOVER_UP && now_ns >= link->deadline_ns)
            attnd_mover_fail(link, "it does not answer");
        if (link->ended) {
            *at = link->next;
            end(link);
            continue;
        }
        if (link->state != ATTND_MOVER_UP && link->deadline_ns < late_ns)
            late_ns = link->deadline_ns;
        at = &link->next;
    }
    return late_ns;
}
