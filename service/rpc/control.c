/*
 * control.c - requests in, replies out: which call is served when, and by which handler.
 *
 * One datagram is one request and gets one reply: at once or, where the worker has to try something
 * out first, later. A call comes after everything that was submitted before it.
 */
#include "service/rpc/control.h"

#include "ipc/discard.h"
#include "service/rpc/calls.h"
#include "service/sched/sched.h"
#include "service/session/session.h"

#include <assert.h>

/* Calls that are allowed at a time: before the handshake, between its two halves, after it. */
struct call_entry {
    attnd_call_fn *serve;
    uint32_t states; /* bit s: allowed in enum attnd_client_state s; and FOR_ROOT */
};

#define IN(state) (1u << ATTND_CLIENT_##state)
#define FOR_ROOT (1u << 31) /* root may call it even if it is not admitted */

static const struct call_entry calls[] = {
    [ATTND__REQUEST__CALL_HELLO] = {attnd_call_hello, IN(HELLO)},
    [ATTND__REQUEST__CALL_MAPPED] = {attnd_call_mapped, IN(MAPPING)},
    [ATTND__REQUEST__CALL_MEMORY_REGISTER] = {attnd_call_memory_register, IN(OPEN)},
    [ATTND__REQUEST__CALL_MEMORY_RELEASE] = {attnd_call_memory_release, IN(OPEN)},
    [ATTND__REQUEST__CALL_POOL_CREATE] = {attnd_call_pool_create, IN(OPEN)},
    [ATTND__REQUEST__CALL_POOL_SHARE] = {attnd_call_pool_share, IN(OPEN)},
    [ATTND__REQUEST__CALL_POOL_ATTACH] = {attnd_call_pool_attach, IN(OPEN)},
    [ATTND__REQUEST__CALL_POOL_RELEASE] = {attnd_call_pool_release, IN(OPEN)},
    [ATTND__REQUEST__CALL_PAGES_ALLOC] = {attnd_call_pages_alloc, IN(OPEN)},
    [ATTND__REQUEST__CALL_PAGES_SHARE] = {attnd_call_pages_share, IN(OPEN)},
    [ATTND__REQUEST__CALL_PAGES_FREE] = {attnd_call_pages_free, IN(OPEN)},
    [ATTND__REQUEST__CALL_PAGES_OFFER] = {attnd_call_pages_offer, IN(OPEN)},
    [ATTND__REQUEST__CALL_PAGES_CLAIM] = {attnd_call_pages_claim, IN(OPEN)},
    [ATTND__REQUEST__CALL_PLAN_CREATE] = {attnd_call_plan_create, IN(OPEN)},
    [ATTND__REQUEST__CALL_PLAN_DESTROY] = {attnd_call_plan_destroy, IN(OPEN)},
    [ATTND__REQUEST__CALL_MAILBOX_OPEN] = {attnd_call_mailbox_open, IN(OPEN)},
    [ATTND__REQUEST__CALL_PREPARE] = {attnd_call_prepare, IN(OPEN)},
    [ATTND__REQUEST__CALL_WAKE_OPEN] = {attnd_call_wake_open, IN(OPEN)},
    [ATTND__REQUEST__CALL_UNPREPARE] = {attnd_call_unprepare, IN(OPEN)},
    [ATTND__REQUEST__CALL_PLAN_IMAGE] = {attnd_call_plan_image, IN(OPEN)},
    [ATTND__REQUEST__CALL_KERNEL_FILE] = {attnd_call_kernel_file, IN(OPEN)},
    [ATTND__REQUEST__CALL_PEER_HELLO] = {attnd_call_peer_hello, IN(HELLO)},
    [ATTND__REQUEST__CALL_STATUS] = {attnd_call_status, IN(HELLO) | IN(OPEN) | FOR_ROOT},
    [ATTND__REQUEST__CALL_SESSION_KILL] = {attnd_call_session_kill,
                                           IN(HELLO) | IN(OPEN) | FOR_ROOT},
    [ATTND__REQUEST__CALL_MONITOR] = {attnd_call_monitor, IN(HELLO) | FOR_ROOT},
    [ATTND__REQUEST__CALL_TRACE] = {attnd_call_trace, IN(HELLO) | FOR_ROOT},
    [ATTND__REQUEST__CALL_SESSION_WEIGHT] = {attnd_call_session_weight, IN(HELLO) | FOR_ROOT},
    [ATTND__REQUEST__CALL_PREFIX_OPEN] = {attnd_call_prefix_open, IN(OPEN)},
    [ATTND__REQUEST__CALL_PREFIX_SHARE] = {attnd_call_prefix_share, IN(OPEN)},
    [ATTND__REQUEST__CALL_PREFIX_ATTACH] = {attnd_call_prefix_attach, IN(OPEN)},
    [ATTND__REQUEST__CALL_PREFIX_RELEASE] = {attnd_call_prefix_release, IN(OPEN)},
    [ATTND__REQUEST__CALL_PREFIX_QUERY] = {attnd_call_prefix_query, IN(HELLO) | IN(OPEN)},
};
#define CALLS_COUNT (sizeof(calls) / sizeof(calls[0]))

static int serve(struct attnd_call *call)
{
    const struct attnd_client *client = call->client;
    uint32_t which = (uint32_t)call->request->call_case;

    assert(which < CALLS_COUNT && calls[which].serve);
    if (!client->allowed && !(calls[which].states & FOR_ROOT && client->uid == 0))
        return attnd_fault_set(call->fault, -ATTND_E_PERMISSION, ATTND_F_SOCKET, 0,
                               (int64_t)client->uid, 0);
    if (!(calls[which].states & 1u << client->state))
        return attnd_fault_set(call->fault, -ATTND_E_PROTOCOL, ATTND_F_NONE, 0, 0, 0);
    return calls[which].serve(call);
}

/* Serves a request whose form is known (@code 0) or answers that it is not understood.
 * Return: 0; ATTND_CONTROL_AGAIN. */
static int answer(struct attnd_client *client, const Attnd__Request *request, int code, int *fds,
                  int fds_count)
{
    Attnd__Reply reply = ATTND__REPLY__INIT;
    struct attnd_fault fault = {.code = code};
    struct attnd_call call = {.service = client->service,
                              .client = client,
                              .request = request,
                              .fds = fds,
                              .fds_count = fds_count,
                              .reply = &reply,
                              .fault = &fault};

    reply.id = request->id;
    if (code == 0)
        code = serve(&call);
    while (code == ATTND_CALL_AGAIN) {
        if (attnd_control_keep(client) == 0)
            return ATTND_CONTROL_AGAIN;
        code = serve(&call); /* without memory to wait with */
    }
    if (code != ATTND_CALL_LATER)
        attnd_call_deliver(&call, code);
    attnd_control_drop(client);
    return 0;
}

/* One that was unpacked or begun. */
static int go_on(struct attnd_client *client)
{
    attnd_control_reset(client->service);
    return answer(client, attnd_control_kept(client), 0, NULL, 0);
}

/* To unpack it took the piece: it is served behind others. */
static int is_put_off(const struct attnd_client *client, int code, int fds_count)
{
    return client->again && code == 0 && fds_count == 0 &&
           attnd_work_spent(&client->service->works);
}

int attnd_control_serve(struct attnd_client *client)
{
    int fds[ATTND_FDS_MAX];
    int fds_count = 0;
    Attnd__Request *request = NULL;

    if (client->again)
        return go_on(client);
    /* The datagram stays where it is. */
    if (client->state == ATTND_CLIENT_OPEN && !attnd_sched_caught_up(client))
        return ATTND_CONTROL_AGAIN;
    if (client->state == ATTND_CLIENT_DYING)
        return 0;
    int rc = attnd_control_receive(client, &request, fds, &fds_count);
    if (rc > 0)
        return rc == ATTND_CONTROL_PAUSE ? rc : 0;
    if (is_put_off(client, rc, fds_count))
        return ATTND_CONTROL_AGAIN;
    if (request)
        rc = answer(client, request, rc, fds, fds_count);
    else
        attnd_client_kill(client, "its datagram is no request");
    int left = 0;
    for (int i = 0; i < fds_count; i++)
        if (fds[i] >= 0)
            fds[left++] = fds[i];
    if (left > 0)
        attnd_discard(attnd_client_discards(client), fds, left);
    return request && rc == ATTND_CONTROL_AGAIN ? rc : 0;
}
