/*
 * main_mover.c - attnd-mover: the process that brings pages from and to other hosts.
 *
 * Started by attnd and by nobody else. What listens to other hosts is here: TCP for what services
 * say to each other, and UCX for bytes of pools. The daemon's part of it are messages that it
 * checks as it does those of a service beside it. It may die at any time: its links are over then,
 * and the daemon starts another one.
 *
 * One thread, one loop: of each link its socket to the daemon, its TCP connection, and UCX.
 */
#include "ipc/fdpass.h"
#include "schemas/clock.h"
#include "schemas/crash.h"
#include "service/args/address.h"
#include "service/args/started.h"
#include "service/base/log.h"
#include "service/mover/maps.h"
#include "service/mover/mover.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PROGRESS_A_TURN 64
#define WATCHED_MAX (2 + 3 * (ATTND_MOVER_LINKS_MAX + 1))

/* ---- options ---- */

struct options {
    const char *listen, *key, *interface;
    struct attnd_started started;
};

enum key { KEY_LISTEN = 256, KEY_KEY, KEY_INTERFACE };

static const struct argp_option option_list[] = {
    {"listen", KEY_LISTEN, "HOST:PORT", 0, "Movers of other hosts may connect here (default: none)",
     0},
    {"key", KEY_KEY, "PATH", 0, "File of the key that both sides of a link have", 0},
    {"interface", KEY_INTERFACE, "NAME", 0,
     "Network interface of UCX (default: all that there are)", 0},
    {0}};

static const char doc[] = "attnd-mover - brings pages from and to attention services of other "
                          "hosts\vattnd starts it; it is of no use otherwise.";

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case KEY_LISTEN:
        options->listen = text;
        return 0;
    case KEY_KEY:
        options->key = text;
        return 0;
    case KEY_INTERFACE:
        options->interface = text;
        return 0;
    case ARGP_KEY_INIT:
        attnd_started_init(state, &options->started);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- the daemon ---- */

void attnd_mover_say(struct attnd_mover *mover, const struct attnd_mover_message *message, int fd)
{
    if (attnd_fdpass_send(mover->control, message, sizeof(*message), &fd, fd >= 0) < 0)
        mover->leaves = 1; /* it is gone, or does not read */
}

static void hear_daemon(struct attnd_mover *mover)
{
    struct attnd_mover_message message;
    int fds[ATTND_FDS_MAX], fds_count = 0;
    long got;

    while ((got = attnd_fdpass_recv(mover->control, &message, sizeof(message), fds, &fds_count)) >
           0) {
        attnd_fdpass_close(fds, fds_count);
        if (got == sizeof(message) && message.kind == ATTND_MOVER_DIAL)
            attnd_mover_dial(mover, &message);
        else if (got == sizeof(message) && message.kind == ATTND_MOVER_PING)
            attnd_mover_say(mover, &message, -1);
    }
    mover->leaves |= got < 0;
}

/* ---- the loop ---- */

/* What is watched of a link; -1: not. */
struct watched {
    struct attnd_mover_link *link;
    int wire, daemon;
};

static int watch(struct pollfd *fds, int *count, int fd, short events)
{
    fds[*count] = (struct pollfd){.fd = fd, .events = events};
    return (*count)++;
}

static struct watched watch_link(struct attnd_mover_link *link, struct pollfd *fds, int *count)
{
    struct watched watched = {.link = link, .wire = -1, .daemon = -1};
    const int up = link->state == ATTND_MOVER_UP;
    const size_t out = attnd_wire_waiting(&link->wire);
    uint64_t transfer;
    int code;
    const int daemon_is_full =
        up && (link->waits || attnd_moves_landed(&link->moves, &transfer, &code));

    watched.wire =
        watch(fds, count, link->wire.fd,
              (short)((out || link->state == ATTND_MOVER_CONNECTING ? POLLOUT : 0) |
                      (daemon_is_full || link->state == ATTND_MOVER_CONNECTING ? 0 : POLLIN)));
    if (up)
        watched.daemon = watch(
            fds, count, link->fd,
            (short)((out < ATTND_WIRE_OUT_FULL ? POLLIN : 0) | (daemon_is_full ? POLLOUT : 0)));
    if (link->ucx)
        (void)watch(fds, count, attnd_ucx_fd(link->ucx), POLLIN);
    return watched;
}

static void serve(const struct watched *watched, const struct pollfd *fds)
{
    struct attnd_mover_link *link = watched->link;
    const short wire = fds[watched->wire].revents;
    const short daemon = watched->daemon >= 0 ? fds[watched->daemon].revents : 0;

    if (link->state == ATTND_MOVER_CONNECTING) {
        if (wire)
            attnd_mover_connected(link);
        return;
    }
    if (wire & POLLOUT && attnd_wire_flush(&link->wire) < 0)
        attnd_mover_fail(link, "it hung up");
    if (link->state != ATTND_MOVER_UP) {
        if (wire & ~POLLOUT)
            attnd_mover_meet(link);
        return;
    }
    if (daemon & ~POLLOUT)
        attnd_mover_from_daemon(link);
    if (!link->ended && (wire & ~POLLOUT || daemon & POLLOUT))
        attnd_mover_from_peer(link);
}

/* Return: 1: there is more to do at once. */
static int move(struct attnd_mover_link *link)
{
    int moved = 0;

    if (!link->ucx || link->ended)
        return 0;
    for (int i = 0; i < PROGRESS_A_TURN && attnd_ucx_progress(link->ucx); i++)
        moved = 1;
    if (link->state != ATTND_MOVER_UP || link->ended)
        return moved;
    if (link->peer == ATTND_NONE && attnd_moves_pump(&link->moves) < 0)
        attnd_mover_fail(link, "UCX cannot send to it");
    if (!link->ended)
        (void)attnd_mover_tell_landed(link);
    return moved || !attnd_ucx_arm(link->ucx);
}

static int timeout_ms(uint64_t when_ns, uint64_t now_ns)
{
    return when_ns == UINT64_MAX ? -1
           : when_ns <= now_ns   ? 0
                                 : (int)((when_ns - now_ns) / 1000000u) + 1;
}

static void turn(struct attnd_mover *mover)
{
    struct pollfd fds[WATCHED_MAX];
    struct watched watched[ATTND_MOVER_LINKS_MAX + 1];
    int count = 0, links = 0, busy = 0;

    for (struct attnd_mover_link *link = mover->links; link; link = link->next)
        busy |= move(link);
    const uint64_t now_ns = attnd_clock_ns();
    uint64_t when_ns = attnd_mover_sweep(mover, now_ns);
    const uint64_t tidy_ns = attnd_maps_tidy(now_ns);
    when_ns = tidy_ns < when_ns ? tidy_ns : when_ns;
    (void)watch(fds, &count, mover->control, POLLIN);
    if (mover->listener >= 0)
        (void)watch(fds, &count, attnd_mover_takes_strangers(mover) ? mover->listener : -1, POLLIN);
    for (struct attnd_mover_link *link = mover->links; link; link = link->next)
        watched[links++] = watch_link(link, fds, &count);
    if (poll(fds, (nfds_t)count, busy ? 0 : timeout_ms(when_ns, now_ns)) < 0)
        return; /* a signal */
    for (int i = 0; i < links; i++)
        serve(&watched[i], fds);
    if (mover->listener >= 0 && fds[1].revents)
        attnd_mover_accept(mover);
    if (fds[0].revents)
        hear_daemon(mover);
}

/* ---- the start ---- */

static int listen_on(const char *text, char *why, size_t why_bytes)
{
    static const int yes = 1;
    struct sockaddr_storage address;
    socklen_t bytes;

    if (attnd_address_parse(text, &address, &bytes) < 0) {
        snprintf(why, why_bytes, "'%s' is no address and port in numbers", text);
        return -ATTND_E_INVALID;
    }
    const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, bytes) < 0 || listen(fd, 16) < 0) {
        snprintf(why, why_bytes, "it cannot listen at %s: %s", text, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -ATTND_E_SYSTEM;
    }
    return fd;
}

/* Return: 0; < 0 with *@why. */
static int start(struct attnd_mover *mover, const struct options *options, char *why,
                 size_t why_bytes)
{
    char key[64];
    int rc = options->key ? attnd_auth_load(options->key, &mover->key, key, sizeof(key)) : -1;

    if (rc < 0) {
        snprintf(why, why_bytes, "the file of the key: %s", options->key ? key : "none is named");
        return rc;
    }
    rc = attnd_ucx_open(options->interface, why, why_bytes);
    mover->listener = rc == 0 && options->listen ? listen_on(options->listen, why, why_bytes) : -1;
    return rc < 0 || (options->listen && mover->listener < 0) ? -1 : 0;
}

/* The first message is START. Blocks for it. */
static int await_start(struct attnd_mover *mover)
{
    struct pollfd control = {.fd = mover->control, .events = POLLIN};
    struct attnd_mover_message message;
    int fds[ATTND_FDS_MAX], fds_count = 0;

    (void)poll(&control, 1, -1);
    const long got = attnd_fdpass_recv(mover->control, &message, sizeof(message), fds, &fds_count);
    if (got > 0)
        attnd_fdpass_close(fds, fds_count);
    if (got != sizeof(message) || message.kind != ATTND_MOVER_START)
        return -ATTND_E_PROTOCOL;
    memcpy(mover->identity, message.identity, sizeof(mover->identity));
    return 0;
}

static int run(struct attnd_mover *mover, const struct options *options)
{
    struct attnd_mover_message message = {.kind = ATTND_MOVER_READY};
    unsigned major, minor, release;

    if (await_start(mover) < 0)
        return ATTND_MOVER_EXIT_FAILED;
    attnd_crash(ATTND_CRASH_MOVER_STARTED);
    const int rc = start(mover, options, message.text, sizeof(message.text));
    if (rc < 0) {
        message.kind = ATTND_MOVER_FAILED;
        attnd_mover_say(mover, &message, -1);
        return ATTND_MOVER_EXIT_FAILED;
    }
    attnd_ucx_version(&major, &minor, &release);
    snprintf(message.text, sizeof(message.text), "UCX %u.%u.%u", major, minor, release);
    attnd_mover_say(mover, &message, -1);
    while (!mover->leaves)
        turn(mover);
    (void)attnd_mover_sweep(mover, attnd_clock_ns()); /* why links are not there is said */
    return ATTND_MOVER_EXIT_OK;
}

int main(int argc, char **argv)
{
    static const struct argp parser = {option_list,           parse_option, NULL, doc,
                                       attnd_started_options, NULL,         NULL};
    static struct attnd_mover mover = {.control = ATTND_MOVER_FD_CONTROL, .listener = -1};
    struct options options = {.started = {.program = "attnd-mover", .log_level = ATTND_LOG_INFO}};

    argp_err_exit_status = ATTND_MOVER_EXIT_USAGE;
    if (argp_parse(&parser, argc, argv, 0, NULL, &options))
        return ATTND_MOVER_EXIT_USAGE;
    attnd_log_level((enum attnd_log_level)options.started.log_level);
    if (!attnd_started_by_parent(&options.started) || !options.started.parent ||
        fcntl(mover.control, F_SETFL, O_NONBLOCK) < 0) {
        attnd_log(ATTND_LOG_ERROR, "attnd-mover: attnd starts it, and nobody else does");
        return ATTND_MOVER_EXIT_USAGE;
    }
    return run(&mover, &options);
}
