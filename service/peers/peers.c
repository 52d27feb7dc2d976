/*
 * peers.c - the whole: start and end, who is welcome, and what can be read of it.
 */
#include "service/peers/peers.h"
#include "schemas/clock.h"
#include "service/peers/peers_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* By turns, and not from here: the steps of one may end others. */
static void queue_transfers(const struct attnd_peers *peers, enum attnd_transfer_state from)
{
    for (uint32_t i = 0; i < peers->peers_count; i++)
        for (struct attnd_transfer *at = peers->peers[i].transfers; at; at = at->next)
            if (at->state >= from)
                attnd_transfer_queue(at);
}

/* Answers that did not fit: their sessions may have read some. */
static void on_timer(void *context)
{
    queue_transfers(context, ATTND_TRANSFER_MAPPING);
}

void attnd_peers_pump(struct attnd_service *service)
{
    if (service->peers)
        queue_transfers(service->peers, ATTND_TRANSFER_GRANTED);
}

/* ---- start and end ---- */

static struct attnd_peer *peer_init(struct attnd_peers *peers,
                                    const struct attnd_peer_option *option)
{
    struct attnd_peer *peer = &peers->peers[peers->peers_count++];

    peer->service = peers->service;
    peer->option = option;
    peer->far = option->address[0] != '/';
    peer->visit = -1;
    peer->transfers_end = &peer->transfers;
    peer->link =
        (struct attnd_peer_link){.service = peers->service,
                                 .buffers = peers->buffers,
                                 .events = &attnd_peer_link_events,
                                 .beat_ns = peer->far ? ATTND_LINK_BEAT_FAR_NS : ATTND_LINK_BEAT_NS,
                                 .fd = -1};
    return peer;
}

static void guest_init(struct attnd_peers *peers, struct attnd_guest *guest)
{
    guest->service = peers->service;
    guest->link = (struct attnd_peer_link){.service = peers->service,
                                           .buffers = peers->buffers,
                                           .events = &attnd_guest_link_events,
                                           .beat_ns = ATTND_LINK_BEAT_NS,
                                           .fd = -1};
}

static const struct attnd_far_events far_events = {.linked = attnd_dial_linked,
                                                   .failed = attnd_dial_failed,
                                                   .claims = attnd_guest_begin,
                                                   .landed = attnd_transfers_landed};

int attnd_peers_start(struct attnd_service *service, const struct attnd_peer_events *events)
{
    struct attnd_peers *peers = calloc(1, sizeof(*peers));
    int rc = 0;

    if (!peers)
        return -ATTND_E_NO_MEMORY;
    service->peers = peers;
    peers->service = service;
    peers->events = events;
    peers->buffers = attnd_link_buffers_new();
    peers->timer = attnd_loop_timer_new(service->loop, on_timer, peers);
    for (uint32_t i = 0; i < ATTND_PEERS_MAX; i++)
        guest_init(peers, &peers->guests[i]);
    if (!peers->buffers || !peers->timer)
        return -ATTND_E_NO_MEMORY;
    rc = attnd_far_start(service, &far_events);
    /* Several services may have one file, which names all of them. */
    for (uint32_t i = 0; i < service->options.peers_count && rc == 0; i++)
        if (strcmp(service->options.peers[i].address, service->options.socket_path) != 0)
            rc = attnd_dial_start(peer_init(peers, &service->options.peers[i]));
    return rc;
}

void attnd_peers_end(struct attnd_service *service)
{
    struct attnd_peers *peers = service->peers;

    if (!peers)
        return;
    for (uint32_t i = 0; i < ATTND_PEERS_MAX; i++)
        attnd_link_end(&peers->guests[i].link, "this service stops");
    for (uint32_t i = 0; i < peers->peers_count; i++)
        attnd_dial_stop(&peers->peers[i]);
    attnd_far_stop(service);
    attnd_work_finish(&service->works); /* what transfers give back */
    attnd_loop_unwatch(service->loop, peers->timer, NULL, NULL);
    free(peers->buffers);
    free(peers);
    service->peers = NULL;
}

int attnd_peers_know(const struct attnd_service *service, const uint8_t *ticket)
{
    const struct attnd_peers *peers = service->peers;

    for (uint32_t i = 0; peers && i < peers->peers_count; i++)
        if (peers->peers[i].known &&
            memcmp(peers->peers[i].identity, ticket, ATTND_IDENTITY_BYTES) == 0)
            return 1;
    return 0;
}

/* ---- guests ---- */

static struct attnd_guest *place_for_one(struct attnd_peers *peers)
{
    for (uint32_t i = 0; i < ATTND_PEERS_MAX; i++)
        if (!attnd_link_is_up(&peers->guests[i].link))
            return &peers->guests[i];
    return NULL;
}

int attnd_guest_begin(struct attnd_service *service, const char *name, const uint8_t *identity,
                      int far, int fd)
{
    struct attnd_guest *guest = service->peers ? place_for_one(service->peers) : NULL;

    if (!guest) {
        close(fd);
        return -ATTND_E_BUSY;
    }
    guest_init(service->peers, guest); /* nothing of the one before */
    guest->done = guest->failed = guest->pages = guest->bytes = guest->bytes_per_s = 0;
    guest->far = far;
    if (far)
        guest->link.beat_ns = ATTND_LINK_BEAT_FAR_NS;
    snprintf(guest->name, sizeof(guest->name), "%s", name);
    memcpy(guest->identity, identity, ATTND_IDENTITY_BYTES);
    if (attnd_link_begin(&guest->link, fd) < 0)
        return -ATTND_E_NO_MEMORY;
    attnd_log(ATTND_LOG_INFO, "the service %s claims here", name);
    return 0;
}

int attnd_peers_welcome(struct attnd_service *service, pid_t pid, const uint8_t *identity, int *fd,
                        struct attnd_fault *fault)
{
    char name[32];
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_SOCKET, 0, errno, 0);
    snprintf(name, sizeof(name), "of pid %d", (int)pid);
    const int rc = attnd_guest_begin(service, name, identity, 0, ends[0]);
    if (rc < 0) {
        close(ends[1]);
        return attnd_fault_set(fault, rc, rc == -ATTND_E_BUSY ? ATTND_F_PEER : ATTND_F_NONE, 0, 0,
                               0);
    }
    *fd = ends[1];
    return 0;
}

/* ---- what can be read ---- */

static struct attnd_peer_info peer_info(const struct attnd_peer *peer)
{
    static const char *const states[] = {
        [ATTND_PEER_DOWN] = "down", [ATTND_PEER_CONNECTING] = "connecting", [ATTND_PEER_UP] = "up"};
    struct attnd_peer_info info = {
        .address = peer->option->address,
        .state = states[peer->state],
        .identity = peer->known ? peer->identity : NULL,
        .last_end = peer->trouble[0] ? peer->trouble : peer->link.last_end,
        .up_ns = attnd_link_is_up(&peer->link) ? attnd_clock_ns() - peer->link.up_ns : 0,
        .links = peer->link.ups,
        .done = peer->done,
        .failed = peer->failed,
        .pages = peer->pages,
        .bytes = peer->bytes,
        .bytes_per_s = peer->bytes_per_s};

    snprintf(info.name, sizeof(info.name), "%s", peer->option->name);
    for (const struct attnd_transfer *at = peer->transfers; at; at = at->next) {
        info.under_way++;
        info.waiting += at->state <= ATTND_TRANSFER_ASKED;
    }
    return info;
}

static struct attnd_peer_info guest_info(const struct attnd_guest *guest)
{
    struct attnd_peer_info info = {.state = "up",
                                   .identity = guest->identity,
                                   .last_end = "",
                                   .up_ns = attnd_clock_ns() - guest->link.up_ns,
                                   .links = 1,
                                   .under_way = guest->grants_count,
                                   .done = guest->done,
                                   .failed = guest->failed,
                                   .pages = guest->pages,
                                   .bytes = guest->bytes,
                                   .bytes_per_s = guest->bytes_per_s};

    snprintf(info.name, sizeof(info.name), "%.*s", (int)sizeof(info.name) - 1,
             strchr(guest->name, ' ') + 1);
    return info;
}

uint32_t attnd_peers_info(const struct attnd_service *service, struct attnd_peer_info *infos)
{
    const struct attnd_peers *peers = service->peers;
    uint32_t count = 0;

    for (uint32_t i = 0; peers && i < peers->peers_count; i++)
        infos[count++] = peer_info(&peers->peers[i]);
    for (uint32_t i = 0; peers && i < ATTND_PEERS_MAX; i++)
        if (attnd_link_is_up(&peers->guests[i].link))
            infos[count++] = guest_info(&peers->guests[i]);
    return count;
}
