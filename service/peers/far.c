/*
 * far.c - attnd-mover, by which services of other hosts are linked.
 *
 * The daemon starts it, and another one when it has died. What it says of links goes on by
 * events. A link that it has handed over is a socket like that of a service beside this
 * one. Only its end is different: bytes may come until the mover has said that it has let go, or
 * is dead. So no page of such a link is free before that, and one that does not say so is killed.
 */
#include "ipc/fdpass.h"
#include "schemas/clock.h"
#include "service/peers/mover_abi.h"
#include "service/peers/peers_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DELAY_NS_MIN UINT64_C(100000000)
#define DELAY_NS_MAX UINT64_C(5000000000)
#define LIVED_NS                                                                                   \
    UINT64_C(10000000000)            /* one that dies before is started again less and less often */
#define PING_NS UINT64_C(5000000000) /* and as long it has for the answer */
#define OWED_NS UINT64_C(1000000000) /* to let go of a link */
#define REAP_NS UINT64_C(2000000000)

static struct attnd_far *far_of(const struct attnd_service *service)
{
    return &service->peers->far;
}

static void arm(struct attnd_far *far, uint64_t after_ns)
{
    attnd_loop_timer_set(far->service->loop, far->timer, attnd_clock_ns() + after_ns);
}

static void close_later(void *context)
{
    close((int)(intptr_t)context);
}

/* ---- its end ---- */

static void let_go(struct attnd_far *far)
{
    struct attnd_loop *loop = far->service->loop;
    struct attnd_process *process = &far->process;

    if (far->control_watch)
        attnd_loop_unwatch(loop, far->control_watch, close_later,
                           (void *)(intptr_t)process->control);
    else if (process->control >= 0)
        close(process->control);
    if (far->pidfd_watch)
        attnd_loop_unwatch(loop, far->pidfd_watch, close_later, (void *)(intptr_t)process->pidfd);
    else if (process->pidfd >= 0)
        close(process->pidfd);
    far->control_watch = far->pidfd_watch = NULL;
    process->control = process->pidfd = -1;
}

/* It is dead: nothing is written any more, and the links that it had are over. */
static void bury(struct attnd_far *far)
{
    struct attnd_peers *peers = far->service->peers;

    let_go(far);
    far->state = ATTND_FAR_DOWN;
    for (uint32_t i = 0; i < ATTND_PEERS_MAX; i++)
        if (peers->guests[i].far)
            attnd_link_end(&peers->guests[i].link, "attnd-mover is gone");
    for (uint32_t i = 0; i < peers->peers_count; i++)
        if (peers->peers[i].far)
            attnd_link_end(&peers->peers[i].link, "attnd-mover is gone");
    for (uint32_t i = 0; i < peers->peers_count; i++) {
        struct attnd_peer *peer = &peers->peers[i];
        peer->closing = 0;
        far->events->landed(peer);
        if (peer->far && peer->state == ATTND_PEER_CONNECTING)
            far->events->failed(peer, "attnd-mover is gone");
    }
    far->owed = far->early = 0;
}

static void start_again(struct attnd_far *far)
{
    if (attnd_clock_ns() - far->start_ns >= LIVED_NS)
        far->delay_ns = 0;
    far->delay_ns = far->delay_ns ? far->delay_ns * 2 : DELAY_NS_MIN;
    if (far->delay_ns > DELAY_NS_MAX)
        far->delay_ns = DELAY_NS_MAX;
    far->restarts++;
    arm(far, far->delay_ns);
}

static void reap(struct attnd_far *far)
{
    const pid_t pid = far->process.pid;
    char text[96] = "does not end";

    (void)attnd_spawn_reap(&far->process, REAP_NS, text, sizeof(text));
    if (!far->said)
        attnd_log(ATTND_LOG_WARNING, "attnd-mover %d %s", (int)pid, text);
    bury(far);
    start_again(far);
}

static void kill_it(struct attnd_far *far, const char *why)
{
    if (why)
        attnd_log(ATTND_LOG_ERROR, "attnd-mover %d is killed: %s", (int)far->process.pid, why);
    attnd_spawn_signal(&far->process, SIGKILL);
    if (!far->pidfd_watch)
        reap(far);
}

static void on_death(void *context, uint32_t poll_events)
{
    (void)poll_events;
    reap(context);
}

/* ---- what it says ---- */

static struct attnd_peer *peer_of(const struct attnd_far *far,
                                  const struct attnd_mover_message *message)
{
    struct attnd_peers *peers = far->service->peers;

    return message->peer < peers->peers_count && peers->peers[message->peer].far &&
                   peers->peers[message->peer].serial == message->serial
               ? &peers->peers[message->peer]
               : NULL;
}

/* The other end of what nobody takes is closed, and the mover says so. */
static void take_link(struct attnd_far *far, const struct attnd_mover_message *message, int *fd)
{
    struct attnd_peer *peer = peer_of(far, message);
    char name[80];

    if (peer && peer->state == ATTND_PEER_CONNECTING) {
        far->events->linked(peer, message->identity, message->text, fd);
        if (*fd < 0)
            return;
    } else if (message->peer == ATTND_NONE) {
        const int link = *fd;
        *fd = -1;
        snprintf(name, sizeof(name), "at %.60s", message->text);
        if (far->events->claims(far->service, name, message->identity, 1, link) == 0)
            return;
        attnd_log(ATTND_LOG_WARNING, "the service %s may not claim here: there are %u that do",
                  name, ATTND_PEERS_MAX);
    }
    attnd_far_owes(far->service);
}

/* Its own end of the link may not have been seen yet. */
static void take_closed(struct attnd_far *far, const struct attnd_mover_message *message)
{
    struct attnd_peer *peer = peer_of(far, message);

    if (message->peer != ATTND_NONE && peer) {
        attnd_link_end(&peer->link, message->text);
        if (peer->closing)
            far->events->landed(peer);
        peer->closing = 0;
    }
    if (far->owed > 0)
        far->owed--;
    else if (message->peer == ATTND_NONE)
        far->early++; /* the guest's link ends in a moment */
}

static void take(struct attnd_far *far, const struct attnd_mover_message *message, int *fd)
{
    struct attnd_peer *peer = peer_of(far, message);

    switch (message->kind) {
    case ATTND_MOVER_READY:
        far->state = ATTND_FAR_UP;
        far->said = 0;
        attnd_log(ATTND_LOG_INFO, "attnd-mover %d is up: %s", (int)far->process.pid, message->text);
        break;
    case ATTND_MOVER_FAILED:
        if (!far->said)
            attnd_log(ATTND_LOG_ERROR, "attnd-mover does not start: %s", message->text);
        far->said = 1;
        break;
    case ATTND_MOVER_LINK:
        if (*fd >= 0)
            take_link(far, message, fd);
        break;
    case ATTND_MOVER_DOWN:
        if (peer && peer->state == ATTND_PEER_CONNECTING)
            far->events->failed(peer, message->text);
        break;
    case ATTND_MOVER_CLOSED:
        take_closed(far, message);
        break;
    case ATTND_MOVER_PING:
        far->pinged = 0;
        break;
    default:
        break;
    }
}

static void on_control(void *context, uint32_t poll_events)
{
    struct attnd_far *far = context;
    struct attnd_mover_message message;
    int fds[ATTND_FDS_MAX], fds_count = 0;
    long got;
    (void)poll_events;

    while (far->control_watch && (got = attnd_fdpass_recv(far->process.control, &message,
                                                          sizeof(message), fds, &fds_count)) != 0) {
        if (got != sizeof(message)) {
            attnd_loop_unwatch(far->service->loop, far->control_watch, close_later,
                               (void *)(intptr_t)far->process.control);
            far->control_watch = NULL;
            far->process.control = -1;
            kill_it(far, NULL); /* it is dead, or as good as that */
            return;
        }
        message.text[sizeof(message.text) - 1] = 0;
        int fd = fds_count > 0 ? fds[0] : -1;
        take(far, &message, &fd);
        for (int i = 0; i < fds_count; i++)
            if (i > 0 || fd >= 0)
                close(fds[i]);
    }
}

/* ---- its start ---- */

static int spawn(struct attnd_far *far)
{
    const struct attnd_options *options = &far->service->options;
    char name[] = "attnd-mover", parent[32], level[32];
    char key[sizeof("--key=") + sizeof(options->peer_key)];
    char listen[sizeof("--listen=") + sizeof(options->peer_listen)];
    char interface[sizeof("--interface=") + sizeof(options->peer_interface)];
    char *arguments[7] = {name, parent, level, key};
    int count = 4;

    snprintf(parent, sizeof(parent), "--parent=%d", (int)getpid());
    snprintf(level, sizeof(level), "--log-level=%d", (int)options->log_level);
    snprintf(key, sizeof(key), "--key=%s", options->peer_key);
    snprintf(listen, sizeof(listen), "--listen=%s", options->peer_listen);
    snprintf(interface, sizeof(interface), "--interface=%s", options->peer_interface);
    if (options->peer_listen[0])
        arguments[count++] = listen;
    if (options->peer_interface[0])
        arguments[count++] = interface;
    return attnd_spawn_child(arguments, ATTND_MOVER_FD_CONTROL, &far->process);
}

static int watch(struct attnd_far *far)
{
    struct attnd_loop *loop = far->service->loop;
    struct attnd_mover_message start = {.kind = ATTND_MOVER_START};

    memcpy(start.identity, far->service->identity, sizeof(start.identity));
    far->control_watch = attnd_loop_watch_fd(loop, far->process.control, POLLIN, on_control, far);
    if (far->process.pidfd >= 0)
        far->pidfd_watch = attnd_loop_watch_fd(loop, far->process.pidfd, POLLIN, on_death, far);
    return far->control_watch && (far->process.pidfd < 0 || far->pidfd_watch) &&
                   attnd_fdpass_send(far->process.control, &start, sizeof(start), NULL, 0) == 0
               ? 0
               : -ATTND_E_NO_MEMORY;
}

static void start_next(struct attnd_far *far)
{
    const int rc = spawn(far);

    far->start_ns = attnd_clock_ns();
    far->pinged = 0;
    if (rc < 0) {
        if (!far->said)
            attnd_log(ATTND_LOG_ERROR, "attnd-mover cannot be started: %s%s", strerror(-rc),
                      rc == -ENOENT ? " (was it built? It wants libucx-dev and libssl-dev)" : "");
        far->said = 1;
        start_again(far);
        return;
    }
    far->state = ATTND_FAR_STARTING;
    if (watch(far) < 0) {
        attnd_spawn_signal(&far->process, SIGKILL);
        reap(far);
        return;
    }
    arm(far, PING_NS);
}

/* ---- the timer ---- */

static void ping(struct attnd_far *far)
{
    const struct attnd_mover_message message = {.kind = ATTND_MOVER_PING};

    if (far->pinged || attnd_fdpass_send(far->process.control, &message, sizeof(message), NULL,
                                         0) == -ATTND_E_FULL) {
        kill_it(far, "it does not answer");
        return;
    }
    far->pinged = 1;
    arm(far, PING_NS);
}

static void on_timer(void *context)
{
    struct attnd_far *far = context;

    if (far->state == ATTND_FAR_DOWN)
        start_next(far);
    else if (far->process.control < 0)
        return; /* it is dying */
    else if (far->owed > 0 && attnd_clock_ns() - far->owed_ns >= OWED_NS)
        kill_it(far, "it does not let go of a link that is over");
    else
        ping(far);
}

void attnd_far_owes(struct attnd_service *service)
{
    struct attnd_far *far = far_of(service);

    if (far->state == ATTND_FAR_DOWN || far->state == ATTND_FAR_OFF)
        return; /* none is there to say so */
    if (far->early > 0) {
        far->early--;
        return;
    }
    if (far->owed++ == 0 && far->timer) {
        far->owed_ns = attnd_clock_ns();
        arm(far, OWED_NS);
    }
}

/* ---- the outside ---- */

const char *attnd_far_dial(struct attnd_peer *peer)
{
    struct attnd_far *far = far_of(peer->service);
    struct attnd_mover_message message = {.kind = ATTND_MOVER_DIAL,
                                          .peer = (uint32_t)(peer - peer->service->peers->peers)};

    if (far->state != ATTND_FAR_UP)
        return "attnd-mover is not up";
    message.serial = peer->serial = ++far->next_serial;
    snprintf(message.text, sizeof(message.text), "%s", peer->option->address);
    return attnd_fdpass_send(far->process.control, &message, sizeof(message), NULL, 0) == 0
               ? NULL
               : "attnd-mover does not listen";
}

int attnd_far_start(struct attnd_service *service, const struct attnd_far_events *events)
{
    struct attnd_far *far = far_of(service);
    int wanted = service->options.peer_listen[0] != 0;

    for (uint32_t i = 0; i < service->options.peers_count; i++)
        wanted |= service->options.peers[i].address[0] != '/';
    far->service = service;
    far->events = events;
    far->process.control = far->process.pidfd = -1;
    if (!wanted)
        return 0;
    far->timer = attnd_loop_timer_new(service->loop, on_timer, far);
    if (!far->timer)
        return -ATTND_E_NO_MEMORY;
    far->state = ATTND_FAR_DOWN;
    start_next(far);
    return 0;
}

void attnd_far_stop(struct attnd_service *service)
{
    struct attnd_far *far = far_of(service);
    char text[96];

    if (far->state == ATTND_FAR_OFF)
        return;
    attnd_loop_unwatch(service->loop, far->timer, NULL, NULL);
    far->timer = NULL;
    attnd_spawn_signal(&far->process, SIGKILL);
    (void)attnd_spawn_reap(&far->process, REAP_NS, text, sizeof(text));
    bury(far);
    far->state = ATTND_FAR_OFF;
}
