/*
 * control.c - requests in, replies out.
 *
 * One datagram is one request and gets one reply, at once or, where the worker has to try something
 * out first, later. A request is received into a private buffer,
 * unpacked there in bounded memory, and served by the handler its call names; the reply is built in
 * bounded memory too and sent without waiting. A client that does not read its replies is ended,
 * because the daemon waits for nobody.
 */
#include "service/rpc/control.h"

#include "ipc/discard.h"
#include "service/rpc/control_decode.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A reply of as many pages or planes as a datagram carries, unpacked. */
#define REPLY_BYTES (1024u * 1024u)

struct attnd_control {
    uint8_t received[ATTND_DATAGRAM_BYTES_MAX];
    uint8_t sent[ATTND_DATAGRAM_BYTES_MAX];
    _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t request[ATTND_CONTROL_DECODE_BYTES];
    _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t reply[REPLY_BYTES];
    struct attnd_admit_alloc request_alloc, reply_alloc;
};

/* What may be called when: before the handshake, between its two halves, after it. */
struct call_entry {
    attnd_call_fn *serve;
    uint32_t states; /* bit s: allowed in enum attnd_session_state s */
};

#define IN(state) (1u << ATTND_SESSION_##state)

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
    [ATTND__REQUEST__CALL_STATUS] = {attnd_call_status, IN(HELLO) | IN(OPEN)},
};
#define CALLS_COUNT (sizeof(calls) / sizeof(calls[0]))

int attnd_control_new(struct attnd_service *service)
{
    service->control = malloc(sizeof(*service->control));
    return service->control ? 0 : -ATTND_E_NO_MEMORY;
}

void attnd_control_free(struct attnd_service *service)
{
    free(service->control);
    service->control = NULL;
}

void attnd_control_reset(struct attnd_service *service)
{
    struct attnd_control *control = service->control;
    attnd_admit_alloc_init(&control->request_alloc, control->request, sizeof(control->request));
    attnd_admit_alloc_init(&control->reply_alloc, control->reply, sizeof(control->reply));
}

void *attnd_call_alloc(struct attnd_call *call, size_t bytes)
{
    ProtobufCAllocator *allocator = &call->service->control->reply_alloc.allocator;
    void *memory = allocator->alloc(allocator->allocator_data, bytes);
    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

static int serve(struct attnd_call *call)
{
    const struct attnd_client *client = call->client;
    uint32_t which = (uint32_t)call->request->call_case;

    assert(which < CALLS_COUNT && calls[which].serve);
    if (!client->allowed)
        return attnd_fault_set(call->fault, -ATTND_E_PERMISSION, ATTND_F_SOCKET, 0,
                               (int64_t)client->uid, 0);
    if (!(calls[which].states & 1u << client->state))
        return attnd_fault_set(call->fault, -ATTND_E_PROTOCOL, ATTND_F_NONE, 0, 0, 0);
    return calls[which].serve(call);
}

/* Return: 0, or the code of the failure to send. */
static int send_reply(struct attnd_call *call, int code)
{
    struct attnd_control *control = call->service->control;
    Attnd__Reply *reply = call->reply;

    reply->code = code;
    if (code < 0) {
        const struct attnd_fault *fault = call->fault;
        reply->result_case = ATTND__REPLY__RESULT__NOT_SET;
        reply->has_field = reply->has_index = reply->has_value = reply->has_limit = 1;
        reply->field = fault->field;
        reply->index = fault->index;
        reply->value = fault->value;
        reply->limit = fault->limit;
        call->reply_fds_count = 0;
    }
    size_t bytes = attnd__reply__get_packed_size(reply);
    assert(bytes <= sizeof(control->sent));
    attnd__reply__pack(reply, control->sent);
    return attnd_fdpass_send(call->client->socket, control->sent, bytes, call->reply_fds,
                             call->reply_fds_count);
}

/* The daemon waits for nobody, not even here. */
static void deliver(struct attnd_call *call, int code)
{
    struct attnd_client *client = call->client;
    if (client->state == ATTND_SESSION_DYING)
        return;
    int rc = send_reply(call, code);
    if (rc == -ATTND_E_DISCONNECTED)
        attnd_client_end(client);
    else if (rc < 0)
        attnd_client_kill(client, "it does not read its replies");
}

/* Serves a request whose form is known (@code 0) or answers that it is not understood. */
static void answer(struct attnd_client *client, const Attnd__Request *request, int code, int *fds,
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
    if (code != ATTND_CALL_LATER)
        deliver(&call, code);
}

void attnd_control_answer(struct attnd_client *client, Attnd__Reply *reply, int fd,
                          const struct attnd_fault *fault)
{
    struct attnd_fault copy = *fault;
    struct attnd_call call = {
        .service = client->service, .client = client, .reply = reply, .fault = &copy};

    if (fd >= 0)
        call.reply_fds[call.reply_fds_count++] = fd;
    deliver(&call, copy.code);
}

void attnd_control_serve(struct attnd_client *client)
{
    struct attnd_control *control = client->service->control;
    int fds[ATTND_FDS_MAX];
    int fds_count;
    Attnd__Request *request;

    /* The datagram stays where it is, and the socket readable. */
    if (client->state == ATTND_SESSION_OPEN && !attnd_data_caught_up(client))
        return;
    if (client->state == ATTND_SESSION_DYING)
        return;
    long received = attnd_fdpass_recv(client->socket, control->received, sizeof(control->received),
                                      fds, &fds_count);
    if (received == 0)
        return;
    if (received == -ATTND_E_DISCONNECTED) {
        attnd_client_end(client);
        return;
    }
    if (received < 0) {
        attnd_client_kill(client, "its datagram is too large or carries too many descriptors");
        return;
    }

    attnd_control_reset(client->service);
    int rc = attnd_control_decode(control->received, (size_t)received, &control->request_alloc,
                                  &request);
    if (request)
        answer(client, request, rc, fds, fds_count);
    else
        attnd_client_kill(client, "its datagram is no request");
    int left = 0;
    for (int i = 0; i < fds_count; i++)
        if (fds[i] >= 0)
            fds[left++] = fds[i];
    if (left > 0)
        attnd_discard(fds, left);
}
