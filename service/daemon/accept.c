/*
 * accept.c - how a client comes in: a connection, the identity of its peer, and what is watched.
 *
 * The pidfd is watched beside the socket, because a forked child that inherited the socket keeps it
 * open. The identity is the kernel's word (SO_PEERCRED), never the client's.
 */
#include "service/daemon/accept.h"

#include "ipc/discard.h"
#include "schemas/crash.h"
#include "service/rpc/control.h"
#include "service/session/session.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define HELLO_TIMEOUT_NS 5000000000u
#define ACCEPT_PAUSE_NS 100000000u

#define READ_PAUSE_NS 50000000u

/* Visitors that are not admitted get an answer, and not the places of those that are. */
#define STRANGERS_MAX (ATTND_VISITORS_MAX / 8)
/* One that is admitted has so many places for visitors, of one process and of one user. */
#define PROCESS_VISITORS_MAX (ATTND_VISITORS_MAX / 8)
#define USER_VISITORS_MAX (ATTND_VISITORS_MAX / 4)

static void read_pause(struct attnd_client *client);

/* The item of a datagram that waits. The socket is not looked at meanwhile. */
static int serve_call(struct attnd_work *work)
{
    struct attnd_client *client =
        (struct attnd_client *)(void *)((char *)work - offsetof(struct attnd_client, call));
    const int rc = attnd_control_serve(client);

    if (rc == ATTND_CONTROL_AGAIN)
        return 1;
    if (rc == ATTND_CONTROL_PAUSE)
        read_pause(client);
    else if (client->socket_watch &&
             attnd_loop_resume(client->service->loop, client->socket_watch) < 0)
        attnd_client_end(client);
    return 0;
}

static void on_socket(void *context, uint32_t poll_events)
{
    struct attnd_client *client = context;
    if (poll_events & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) {
        attnd_client_end(client);
    } else if (poll_events & POLLIN) {
        attnd_work_start(&client->service->works, &client->account, &client->call);
        if (attnd_work_waits(&client->call))
            attnd_loop_pause(client->service->loop, client->socket_watch);
    }
}

static int watch_socket(struct attnd_client *client, uint32_t events)
{
    client->socket_watch = attnd_loop_watch_fd(client->service->loop, client->socket,
                                               events | POLLRDHUP, on_socket, client);
    return client->socket_watch ? 0 : -ATTND_E_NO_MEMORY;
}

static void read_on(void *context)
{
    struct attnd_client *client = context;
    client->read_timer = NULL;
    attnd_client_unwatch(client, &client->socket_watch);
    if (watch_socket(client, POLLIN) < 0)
        attnd_client_end(client);
}

/* A socket that stays readable would wake the loop again at once. Its end is still noticed. */
static void read_pause(struct attnd_client *client)
{
    attnd_log(ATTND_LOG_WARNING, "descriptors run low: pid %d waits (raise ulimit -n)",
              (int)client->pid);
    attnd_client_unwatch(client, &client->socket_watch);
    client->read_timer = attnd_loop_watch_timer(client->service->loop,
                                                attnd_clock_ns() + READ_PAUSE_NS, read_on, client);
    if (watch_socket(client, 0) < 0 || !client->read_timer)
        attnd_client_end(client);
}

static void on_death(void *context, uint32_t poll_events)
{
    (void)poll_events;
    attnd_client_end(context);
}

static void on_hello_timeout(void *context)
{
    struct attnd_client *client = context;
    client->hello_timer = NULL;
    if (client->id)
        attnd_client_kill(client, "it did not finish the handshake in 5 s");
    else
        attnd_client_end(client);
}

int attnd_accept_allows(const struct attnd_options *options, uid_t uid)
{
    for (uint32_t i = 0; i < options->allow_uids_count; i++)
        if (options->allow_uids[i] == uid)
            return 1;
    return 0;
}

/* Finds the peer's process and user. Return: 0, or -ATTND_E_DISCONNECTED if the process is gone
 * already. */
static int identify(struct attnd_client *client)
{
    struct ucred credentials;
    socklen_t bytes = sizeof(credentials);

    if (getsockopt(client->socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) < 0)
        return -ATTND_E_DISCONNECTED;
    client->pid = credentials.pid;
    client->uid = credentials.uid;
    client->allowed = attnd_accept_allows(&client->service->options, credentials.uid);
    client->account.user = attnd_work_user(&client->service->works, credentials.uid);
    client->call.go = serve_call;

    bytes = sizeof(client->pidfd);
    if (getsockopt(client->socket, SOL_SOCKET, SO_PEERPIDFD, &client->pidfd, &bytes) == 0)
        return 0;
    /* Older kernels: by number, which could be another process by now, but then ours is dead and
     * its socket says so. */
    client->pidfd = (int)syscall(SYS_pidfd_open, client->pid, 0);
    return client->pidfd < 0 && errno == ESRCH ? -ATTND_E_DISCONNECTED : 0;
}

static int watch(struct attnd_client *client)
{
    struct attnd_loop *loop = client->service->loop;

    int rc = watch_socket(client, POLLIN);
    if (client->pidfd >= 0)
        client->pidfd_watch = attnd_loop_watch_fd(loop, client->pidfd, POLLIN, on_death, client);
    client->hello_timer =
        attnd_loop_watch_timer(loop, attnd_clock_ns() + HELLO_TIMEOUT_NS, on_hello_timeout, client);
    return rc == 0 && (client->pidfd < 0 || client->pidfd_watch) && client->hello_timer
               ? 0
               : -ATTND_E_NO_MEMORY;
}

static uint32_t visitors_of(const struct attnd_service *service, uid_t uid)
{
    uint32_t count = 0;

    for (const struct attnd_client *at = service->visitors; at; at = at->next)
        count += at->allowed && at->uid == uid;
    return count;
}

/* Where no place is left for the next one: the visitor that has waited longest of the user that has
 * the most. So many users together keep out nobody either. */
static struct attnd_client *of_the_largest(const struct attnd_service *service)
{
    struct attnd_client *found = NULL;
    uint32_t most = 0;

    if (service->visitors_count < ATTND_VISITORS_MAX)
        return NULL;
    for (struct attnd_client *at = service->visitors; at; at = at->next) {
        const uint32_t count = at->allowed ? visitors_of(service, at->uid) : 0;
        if (count < most)
            continue;
        most = count;
        found = at; /* new ones are in front of the list */
    }
    return found;
}

/* The visitor that has waited longest of those that count against @client's share, if they are
 * more than it; else NULL. New ones are in front of the list. */
static struct attnd_client *one_too_many(const struct attnd_client *client)
{
    struct attnd_client *of_process = NULL, *of_user = NULL, *stranger = NULL;
    uint32_t process = 0, user = 0, strangers = 0;

    for (struct attnd_client *at = client->service->visitors; at; at = at->next) {
        if (!at->allowed) {
            stranger = at;
            strangers++;
        } else if (at->uid == client->uid) {
            of_user = at;
            user++;
            if (client->pid && at->pid == client->pid) {
                of_process = at;
                process++;
            }
        }
    }
    if (!client->allowed)
        return strangers > STRANGERS_MAX ? stranger : NULL;
    if (process > PROCESS_VISITORS_MAX)
        return of_process;
    return user > USER_VISITORS_MAX ? of_user : of_the_largest(client->service);
}

static void welcome(struct attnd_service *service, int fd)
{
    struct attnd_client *client = attnd_client_new(service, fd);

    attnd_crash(ATTND_CRASH_DAEMON_ACCEPTED);
    if (!client) {
        attnd_log(ATTND_LOG_WARNING, "a connection is refused: %u are waiting already",
                  service->visitors_count);
        attnd_discard(ATTND_DISCARD_STRANGERS, &fd, 1);
        return;
    }
    if (identify(client) < 0 || watch(client) < 0) {
        attnd_client_end(client);
        return;
    }
    /* One that connects and says nothing loses its place to the next one of its own. */
    struct attnd_client *oldest = one_too_many(client);
    if (oldest) {
        attnd_log(ATTND_LOG_WARNING, "pid %d has too many connections that say nothing",
                  (int)oldest->pid);
        attnd_client_end(oldest);
    }
}

static void on_connection(void *context, uint32_t poll_events);

/* Both are made at the start: what keeps the door open needs no memory. */
static void resume_accepting(void *context)
{
    struct attnd_service *service = context;
    if (attnd_loop_resume(service->loop, service->listen_watch) < 0)
        attnd_loop_timer_set(service->loop, service->listen_timer,
                             attnd_clock_ns() + ACCEPT_PAUSE_NS);
}

void attnd_accept_start(struct attnd_service *service)
{
    service->listen_timer = attnd_loop_timer_new(service->loop, resume_accepting, service);
    if (service->listen_timer)
        service->listen_watch =
            attnd_loop_watch_fd(service->loop, service->listen_fd, POLLIN, on_connection, service);
    if (!service->listen_watch)
        attnd_log(ATTND_LOG_ERROR, "no memory to listen: nobody can connect");
}

void attnd_accept_stop(struct attnd_service *service)
{
    attnd_loop_unwatch(service->loop, service->listen_watch, NULL, NULL);
    attnd_loop_unwatch(service->loop, service->listen_timer, NULL, NULL);
    service->listen_watch = service->listen_timer = NULL;
}

/* Out of descriptors: the connection stays pending and would wake the loop again at once. */
static void pause_accepting(struct attnd_service *service)
{
    attnd_loop_pause(service->loop, service->listen_watch);
    attnd_loop_timer_set(service->loop, service->listen_timer, attnd_clock_ns() + ACCEPT_PAUSE_NS);
}

static void on_connection(void *context, uint32_t poll_events)
{
    struct attnd_service *service = context;
    (void)poll_events;
    /* A descriptor that is accepted must be closed again some time, and not by us. */
    if (attnd_discard_full(ATTND_DISCARD_STRANGERS)) {
        pause_accepting(service);
        return;
    }
    int fd = accept4(service->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        welcome(service, fd);
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        attnd_log(ATTND_LOG_WARNING, "a connection cannot be accepted: %s", strerror(errno));
        pause_accepting(service);
    }
}
