/*
 * session.c - a client's life, and above all its end.
 *
 * A connection begins as a visitor: it may ask for the status, or say Hello and become a session.
 * It ends when its process does, when its socket hangs up, or when it breaks the protocol. The
 * pidfd is watched beside the socket because a forked child that inherited the socket keeps it
 * open.
 *
 * Ending takes three steps, because others still hold parts of the session. At once: state DYING,
 * nothing is read from it any more, the data plane drops or cancels its operations. When those are
 * drained: plans, pools, leases and memory go, and its slot. When the kernel has answered that it
 * holds none of the watched descriptors and words: mappings and descriptors. The last is done
 * after a sweep and never from inside a callback, so whoever ended a client may still look at it.
 */
#include "service/prefix/prefix.h"
#include "service/rpc/control.h"

#include "ipc/discard.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define HELLO_TIMEOUT_NS 5000000000u
#define ACCEPT_PAUSE_NS 100000000u

/* Visitors who are not admitted: they get an answer, and not the place of those who are. */
#define STRANGERS_MAX (ATTND_VISITORS_MAX / 4)

/* ---- the slots ---- */

static void visitors_add(struct attnd_client *client)
{
    struct attnd_service *service = client->service;
    client->next = service->visitors;
    service->visitors = client;
    service->visitors_count++;
}

static void visitors_remove(struct attnd_client *client)
{
    struct attnd_service *service = client->service;
    struct attnd_client **link = &service->visitors;
    while (*link && *link != client)
        link = &(*link)->next;
    if (!*link)
        return;
    *link = client->next;
    client->next = NULL;
    service->visitors_count--;
}

static struct attnd_client **find_slot(struct attnd_service *service,
                                       const struct attnd_client *client)
{
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (service->clients[i] == client)
            return &service->clients[i];
    return NULL;
}

int attnd_client_share(pid_t pid, uint32_t has, uint32_t all, uint32_t field,
                       struct attnd_fault *fault)
{
    if (pid == 0 || has < ATTND_SHARE_MAX(all))
        return 0;
    return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, field, 0, has + 1, ATTND_SHARE_MAX(all));
}

static uint32_t sessions_of(const struct attnd_service *service, pid_t pid)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        count += service->clients[i] && service->clients[i]->pid == pid;
    return count;
}

int attnd_client_enroll(struct attnd_client *client, struct attnd_fault *fault)
{
    const uint32_t has = sessions_of(client->service, client->pid);
    if (client->pid && has >= ATTND_SHARE_MAX(ATTND_SESSIONS_MAX))
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SESSIONS, 0, has + 1,
                               ATTND_SHARE_MAX(ATTND_SESSIONS_MAX));
    struct attnd_client **slot = find_slot(client->service, NULL);
    if (!slot)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SESSIONS, 0, ATTND_SESSIONS_MAX + 1,
                               ATTND_SESSIONS_MAX);
    visitors_remove(client);
    *slot = client;
    client->id = ++client->service->next_session_id;
    client->state = ATTND_SESSION_MAPPING;
    return 0;
}

uint32_t attnd_client_vacant(void *const *table)
{
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        if (!table[i])
            return i + 1;
    return 0;
}

struct attnd_memory *attnd_client_memory(const struct attnd_client *client, uint32_t handle)
{
    return handle - 1 < ATTND_HANDLES_MAX ? client->memories[handle - 1] : NULL;
}

struct attnd_attachment *attnd_client_attachment(const struct attnd_client *client, uint32_t handle)
{
    if (handle - 1 >= ATTND_HANDLES_MAX || handle == client->import_pool)
        return NULL; /* one whose memory is being tried may yet go */
    return client->attachments[handle - 1];
}

struct attnd_plan_object *attnd_client_plan(const struct attnd_client *client, uint32_t handle)
{
    return handle - 1 < ATTND_HANDLES_MAX ? client->plans[handle - 1] : NULL;
}

/* ---- the end ---- */

static void watch_ended(void *context)
{
    struct attnd_client *client = context;
    assert(client->watches_ending > 0);
    client->watches_ending--;
}

static void unwatch(struct attnd_client *client, struct attnd_watch **watch)
{
    struct attnd_watch *ending = *watch;
    if (!ending)
        return;
    *watch = NULL;
    client->watches_ending++;
    attnd_loop_unwatch(client->service->loop, ending, watch_ended, client);
}

void attnd_client_end(struct attnd_client *client)
{
    enum attnd_session_state was = client->state;

    if (was == ATTND_SESSION_DYING)
        return;
    client->state = ATTND_SESSION_DYING;
    /* The descriptor must stay until the loop lets go of it; the peer need not wait for that. */
    shutdown(client->socket, SHUT_RDWR);
    unwatch(client, &client->socket_watch);
    unwatch(client, &client->pidfd_watch);
    unwatch(client, &client->doorbell_watch);
    unwatch(client, &client->hello_timer);
    if (was == ATTND_SESSION_OPEN)
        attnd_sched_close(client);
    else
        attnd_client_drained(client);
}

void attnd_client_kill(struct attnd_client *client, const char *why)
{
    if (client->state == ATTND_SESSION_DYING)
        return;
    attnd_log(ATTND_LOG_WARNING, "session %u: pid %d (%s) is ended: %s", client->id,
              (int)client->pid, attnd_client_name(client), why);
    attnd_client_end(client);
}

static void free_objects(struct attnd_client *client)
{
    struct attnd_service *service = client->service;

    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        if (client->plans[i]) {
            client->plans[i]->attachment->plans--;
            attnd_planobj_destroy(service, client->plans[i]);
            client->plans[i] = NULL;
        }
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        if (client->prefixes[i])
            attnd_prefix_space_release(client, i + 1);
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        if (client->attachments[i])
            attnd_client_detach(client, i + 1);
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        if (client->memories[i])
            attnd_memory_unbind(client, i + 1);
}

void attnd_client_drained(struct attnd_client *client)
{
    struct attnd_service *service = client->service;
    struct attnd_client **slot = find_slot(service, client);

    assert(client->state == ATTND_SESSION_DYING && client->in_flight == 0);
    free_objects(client);
    attnd_staging_free(&client->staging);
    if (slot) {
        *slot = NULL;
        attnd_log(ATTND_LOG_INFO, "session %u: pid %d (%s) is gone", client->id, (int)client->pid,
                  attnd_client_name(client));
    } else {
        visitors_remove(client);
    }
    client->next = service->drained;
    service->drained = client;
}

void attnd_client_reap(struct attnd_service *service, int all)
{
    struct attnd_client **link = &service->drained;

    while (*link) {
        struct attnd_client *client = *link;
        if (client->watches_ending && !all) {
            link = &client->next;
            continue;
        }
        *link = client->next;
        attnd_client_unmap(client);
        attnd_discard(&client->socket, 1); /* what was sent and not received is in it */
        if (client->pidfd >= 0)
            close(client->pidfd);
        free(client);
    }
}

/* ---- the beginning ---- */

static void on_socket(void *context, uint32_t poll_events)
{
    struct attnd_client *client = context;
    if (poll_events & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL))
        attnd_client_end(client);
    else if (poll_events & POLLIN)
        attnd_control_serve(client);
}

static void on_death(void *context, uint32_t poll_events)
{
    (void)poll_events;
    attnd_client_end(context);
}

static void on_doorbell(void *context, uint32_t poll_events)
{
    const struct attnd_client *client = context;
    (void)poll_events;
    /* Only to make it unreadable again: the sweep that follows looks at the ring itself. */
    attnd_doorbell_drain(client->doorbell_fd);
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

int attnd_client_watch_doorbell(struct attnd_client *client)
{
    struct attnd_loop *loop = client->service->loop;
    struct attnd_submit_head *submit = client->submission.address;

    client->doorbell_watch =
        client->doorbell_fd < 0
            ? attnd_loop_watch_word(loop, &submit->sq_tail)
            : attnd_loop_watch_fd(loop, client->doorbell_fd, POLLIN, on_doorbell, client);
    return client->doorbell_watch ? 0 : -ATTND_E_NO_MEMORY;
}

void attnd_client_opened(struct attnd_client *client)
{
    unwatch(client, &client->hello_timer);
}

static int uid_allowed(const struct attnd_options *options, uid_t uid)
{
    for (uint32_t i = 0; i < options->allow_uids_count; i++)
        if (options->allow_uids[i] == uid)
            return 1;
    return 0;
}

/* Who is it? Return: 0, or -ATTND_E_DISCONNECTED if the process is gone already. */
static int identify(struct attnd_client *client)
{
    struct ucred credentials;
    socklen_t bytes = sizeof(credentials);

    if (getsockopt(client->socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) < 0)
        return -ATTND_E_DISCONNECTED;
    client->pid = credentials.pid;
    client->uid = credentials.uid;
    client->allowed = uid_allowed(&client->service->options, credentials.uid);

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

    client->socket_watch =
        attnd_loop_watch_fd(loop, client->socket, POLLIN | POLLRDHUP, on_socket, client);
    if (client->pidfd >= 0)
        client->pidfd_watch = attnd_loop_watch_fd(loop, client->pidfd, POLLIN, on_death, client);
    client->hello_timer =
        attnd_loop_watch_timer(loop, attnd_clock_ns() + HELLO_TIMEOUT_NS, on_hello_timeout, client);
    return client->socket_watch && (client->pidfd < 0 || client->pidfd_watch) && client->hello_timer
               ? 0
               : -ATTND_E_NO_MEMORY;
}

static int one_stranger_too_many(const struct attnd_client *client)
{
    uint32_t count = 0;
    if (client->allowed)
        return 0;
    for (const struct attnd_client *at = client->service->visitors; at; at = at->next)
        count += !at->allowed;
    return count > STRANGERS_MAX;
}

static void welcome(struct attnd_service *service, int fd)
{
    struct attnd_client *client =
        service->visitors_count < ATTND_VISITORS_MAX ? calloc(1, sizeof(*client)) : NULL;

    if (!client) {
        attnd_log(ATTND_LOG_WARNING, "a connection is refused: %u are waiting already",
                  service->visitors_count);
        attnd_discard(&fd, 1);
        return;
    }
    client->service = service;
    client->state = ATTND_SESSION_HELLO;
    client->socket = fd;
    client->pidfd = client->doorbell_fd = -1;
    client->notify_fd = client->notify_peer_fd = -1;
    client->submission.fd = client->completion.fd = -1;
    visitors_add(client);
    if (identify(client) < 0 || one_stranger_too_many(client) || watch(client) < 0)
        attnd_client_end(client);
}

static void resume_accepting(void *context)
{
    struct attnd_service *service = context;
    service->listen_timer = NULL;
    attnd_service_listen(service);
}

/* Out of descriptors: the connection stays pending and would wake the loop again at once. */
static void pause_accepting(struct attnd_service *service)
{
    uint64_t when_ns = attnd_clock_ns() + ACCEPT_PAUSE_NS;
    attnd_loop_unwatch(service->loop, service->listen_watch, NULL, NULL);
    service->listen_watch = NULL;
    service->listen_timer =
        attnd_loop_watch_timer(service->loop, when_ns, resume_accepting, service);
}

void attnd_client_accept(void *context, uint32_t poll_events)
{
    struct attnd_service *service = context;
    (void)poll_events;
    int fd = accept4(service->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        welcome(service, fd);
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        attnd_log(ATTND_LOG_WARNING, "a connection cannot be accepted: %s", strerror(errno));
        pause_accepting(service);
    }
}
