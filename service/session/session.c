/*
 * session.c - a client's place in the daemon, and its end.
 *
 * A connection begins as a visitor: it may ask for the status, or say Hello and become a session.
 * It ends when its process does, when its socket hangs up, or when it breaks the protocol.
 *
 * The end takes three steps, because others still hold parts of the session. At once: the state is
 * DYING, nothing is read from it any more, and the scheduler drops or cancels its operations. When
 * those are drained: plans, pools, leases, memory and the slot are given back, in pieces, because
 * there may be millions of them (base/work.h). When the kernel has
 * answered that it holds none of the watched descriptors and words: mappings and descriptors. The
 * last step is done after a sweep and never from inside a callback, so the code that ended a client
 * may still look at it.
 */
#include "service/session/session.h"

#include "ipc/discard.h"
#include "ipc/fdpass.h"
#include "schemas/crash.h"
#include "service/objects/lease.h"
#include "service/objects/planobj.h"
#include "service/objects/quota.h"
#include "service/objects/ticket.h"
#include "service/objects/wakes.h"
#include "service/prefix/prefix.h"
#include "service/sched/sched.h"
#include "service/session/ending.h"
#include "service/session/segments.h"

#include <assert.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

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

struct attnd_client *attnd_client_new(struct attnd_service *service, int socket)
{
    struct attnd_client *client =
        service->visitors_count < ATTND_VISITORS_MAX ? calloc(1, sizeof(*client)) : NULL;

    if (!client)
        return NULL;
    client->service = service;
    client->state = ATTND_CLIENT_HELLO;
    client->socket = socket;
    client->pidfd = client->doorbell_fd = -1;
    client->notify_fd = client->notify_peer_fd = -1;
    client->submission.fd = client->completion.fd = -1;
    visitors_add(client);
    return client;
}

static struct attnd_client **find_slot(struct attnd_service *service,
                                       const struct attnd_client *client)
{
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (service->clients[i] == client)
            return &service->clients[i];
    return NULL;
}

static uint32_t sessions_of(const struct attnd_service *service, pid_t pid)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        count += service->clients[i] && service->clients[i]->pid == pid;
    return count;
}

/* Shared memory that the client fills: it counts like memory that is made for it. */
static uint64_t segments_bytes(const struct attnd_client *client)
{
    return client->submission.size_bytes + client->completion.size_bytes;
}

int attnd_client_enroll(struct attnd_client *client, struct attnd_fault *fault)
{
    const uint32_t has = sessions_of(client->service, client->pid);
    if (attnd_discard_full(attnd_client_discards(client)))
        return attnd_fault_set(fault, -ATTND_E_BUSY, ATTND_F_SESSIONS, 0, 0, 0);
    /* In another pid namespace processes have no number; users are counted everywhere. */
    if (client->pid && has >= ATTND_SESSIONS_PROCESS_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SESSIONS, 0, has + 1,
                               ATTND_SESSIONS_PROCESS_MAX);
    if (attnd_quota_take(client, ATTND_QUOTA_SESSIONS, 1, fault) < 0) {
        fault->code = -ATTND_E_RANGE;
        return fault->code;
    }
    const uint64_t bytes = segments_bytes(client);
    if (attnd_quota_take(client, ATTND_QUOTA_HOST, bytes, fault) < 0) {
        attnd_quota_give_unlisted(client, ATTND_QUOTA_SESSIONS, 1);
        return fault->code;
    }
    client->segments_charged_bytes = bytes;
    struct attnd_client **slot = find_slot(client->service, NULL);
    assert(slot); /* as many as are counted */
    visitors_remove(client);
    *slot = client;
    client->id = ++client->service->next_session_id;
    client->state = ATTND_CLIENT_MAPPING;
    return 0;
}

/* ---- its doorbell ---- */

static void on_doorbell(void *context, uint32_t poll_events)
{
    const struct attnd_client *client = context;
    (void)poll_events;
    /* Only to make it unreadable again: the sweep that follows looks at the ring itself. */
    attnd_doorbell_drain(client->doorbell_fd);
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

/* ---- the end ---- */

static void watch_ended(void *context)
{
    struct attnd_client *client = context;
    assert(client->watches_ending > 0);
    client->watches_ending--;
}

void attnd_client_unwatch(struct attnd_client *client, struct attnd_watch **watch)
{
    struct attnd_watch *ending = *watch;
    if (!ending)
        return;
    *watch = NULL;
    client->watches_ending++;
    attnd_loop_unwatch(client->service->loop, ending, watch_ended, client);
}

void attnd_client_opened(struct attnd_client *client)
{
    (void)attnd_fdpass_allow(client->socket, 1);
    attnd_client_unwatch(client, &client->hello_timer);
}

static void process_ended(void *context, uint32_t poll_events);

void attnd_client_end(struct attnd_client *client)
{
    enum attnd_client_state was = client->state;

    if (was == ATTND_CLIENT_DYING) {
        if (client->end_watch && client->service->stopping)
            process_ended(client, 0);
        return;
    }
    client->state = ATTND_CLIENT_DYING;
    attnd_work_stop(&client->call);
    attnd_quota_refund(client->service, attnd_quota_payer(client), client->again_bytes);
    client->again_bytes = 0; /* it is freed with the client: a call of it may be under way */
    attnd_crash(ATTND_CRASH_DAEMON_SESSION_ENDED);
    /* The descriptor must stay until the loop lets go of it; the peer need not wait for that. */
    attnd_client_hang_up(client);
    attnd_client_unwatch(client, &client->socket_watch);
    attnd_client_unwatch(client, &client->pidfd_watch);
    attnd_client_unwatch(client, &client->doorbell_watch);
    attnd_client_unwatch(client, &client->hello_timer);
    attnd_client_unwatch(client, &client->read_timer);
    if (was == ATTND_CLIENT_OPEN)
        attnd_sched_close(client);
    else
        attnd_client_drained(client);
}

void attnd_client_kill(struct attnd_client *client, const char *why)
{
    if (client->state == ATTND_CLIENT_DYING)
        return;
    attnd_log(ATTND_LOG_WARNING, "session %u: pid %d (%s) is ended: %s", client->id,
              (int)client->pid, attnd_client_name(client), why);
    snprintf(client->ending, sizeof(client->ending), "was ended: %s", why);
    attnd_client_end(client);
}

/* What a session has is given back in this order: each may name those behind it. */
enum end_stage { END_PLANS, END_PREFIXES, END_ATTACHMENTS, END_MEMORIES, END_STAGES };

static void *const *table_of(const struct attnd_client *client, enum end_stage stage)
{
    switch (stage) {
    case END_PLANS:
        return (void *const *)client->plans;
    case END_PREFIXES:
        return (void *const *)client->prefixes;
    case END_ATTACHMENTS:
        return (void *const *)client->attachments;
    default:
        return (void *const *)client->memories;
    }
}

/* Of one object, as much as is done between two looks at the clock. Return: 1 there is more of it.
 */
static int give_back(struct attnd_client *client, enum end_stage stage, uint32_t handle)
{
    struct attnd_plan_object *plan;

    switch (stage) {
    case END_PLANS:
        plan = client->plans[handle - 1];
        client->plans[handle - 1] = NULL;
        plan->attachment->plans--;
        attnd_planobj_destroy(client->service, plan);
        return 0;
    case END_PREFIXES:
        attnd_prefix_space_release(client, handle);
        return 0;
    case END_ATTACHMENTS:
        if (attnd_lease_drop_some(client->attachments[handle - 1], ATTND_LEASE_DROP_STEP))
            return 1;
        attnd_client_detach(client, handle);
        return 0;
    default:
        attnd_memory_unbind(client, handle);
        return 0;
    }
}

static void end_over(struct attnd_client *client);

/* The item of a drained client. */
static int end_go(struct attnd_work *work)
{
    struct attnd_client *client =
        (struct attnd_client *)(void *)((char *)work - offsetof(struct attnd_client, end));
    struct attnd_works *works = &client->service->works;

    while (client->end_stage < END_STAGES) {
        const enum end_stage stage = (enum end_stage)client->end_stage;
        void *const *table = table_of(client, stage);
        while (client->end_at < ATTND_HANDLES_MAX && !table[client->end_at])
            client->end_at++;
        if (client->end_at == ATTND_HANDLES_MAX) {
            client->end_stage++;
            client->end_at = 0;
            continue;
        }
        client->end_at += !give_back(client, stage, client->end_at + 1);
        if (attnd_work_spent(works))
            return 1;
    }
    end_over(client);
    return 0;
}

static void tell_end(const struct attnd_client *client)
{
    char text[64];
    const char *how = client->ending[0] ? client->ending : "the service stops";

    if (!client->ending[0] && !client->service->stopping)
        how = attnd_ending_text(client->pidfd, client->pid, text, sizeof(text));
    attnd_log(ATTND_LOG_INFO, "session %u: pid %d (%s) is gone: %s", client->id, (int)client->pid,
              attnd_client_name(client), how);
    attnd_monitor_say(&client->service->monitor, ATTND_MONITOR_ENDED, client->id, client->uid,
                      client->pid, how);
}

static void give_all_back(struct attnd_client *client)
{
    if (client->id)
        attnd_ticket_orphan(client->service, client->id);
    client->end.go = end_go;
    attnd_work_start(&client->service->works, &client->account, &client->end);
}

static void process_ended(void *context, uint32_t poll_events)
{
    struct attnd_client *client = context;
    (void)poll_events;
    attnd_client_unwatch(client, &client->end_watch);
    give_all_back(client);
}

/* A process that exits may close the connection before its contexts on the GPU: what its own
 * kernels still write would come into pages that somebody else has by then. */
void attnd_client_drained(struct attnd_client *client)
{
    struct attnd_service *service = client->service;

    assert(client->state == ATTND_CLIENT_DYING && client->in_flight == 0);
    if (client->id && !service->stopping && attnd_ending_goes_on(client->pidfd, client->pid))
        client->end_watch =
            attnd_loop_watch_fd(service->loop, client->pidfd, POLLIN, process_ended, client);
    if (!client->end_watch)
        give_all_back(client);
}

/* Nothing of it is left but its place. */
static void end_over(struct attnd_client *client)
{
    struct attnd_service *service = client->service;
    struct attnd_client **slot = find_slot(service, client);

    attnd_crash(ATTND_CRASH_DAEMON_SESSION_DRAINED);
    if (slot) {
        const struct attnd_payer payer = attnd_quota_payer(client);
        attnd_quota_give(service, payer, ATTND_QUOTA_HOST, client->segments_charged_bytes);
        attnd_quota_give(service, payer, ATTND_QUOTA_SESSIONS, 1);
        *slot = NULL;
        tell_end(client);
    } else {
        visitors_remove(client);
    }
    client->next = service->drained;
    service->drained = client;
}

/* On the closer's thread: the arena may be large. */
static void close_client(struct attnd_closing *closing)
{
    struct attnd_client *client = (struct attnd_client *)(void *)closing;

    attnd_segments_free(client);
    free(client->again);
    free(client);
}

void attnd_client_reap(struct attnd_service *service, int all)
{
    struct attnd_client **link = &service->drained;

    if (all)
        attnd_work_finish(&service->works);
    while (*link) {
        struct attnd_client *client = *link;
        if (client->watches_ending && !all) {
            link = &client->next;
            continue;
        }
        *link = client->next;
        attnd_work_user_done(&service->works, client->account.user);
        /* Hundreds of requests that were not received may be in it, and a descriptor that was sent
         * with one may be a file that closes slowly. */
        attnd_discard(attnd_client_discards(client), &client->socket, 1);
        if (client->pidfd >= 0)
            close(client->pidfd);
        client->closing =
            (struct attnd_closing){.close = close_client, .bytes = segments_bytes(client)};
        attnd_closer_take(&client->closing);
    }
}
