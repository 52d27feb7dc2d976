/*
 * call.c - the buffers of a call: a request as it comes, the reply as it goes.
 *
 * A request is received into a private buffer and unpacked there in bounded memory. To unpack one
 * of a thousand layers takes longer than a piece, so one that is large has memory of its own,
 * charged to its session, and is served behind others. The reply is built in bounded memory too,
 * and sent without waiting. A client that does not read its replies is ended, because the daemon
 * waits for nobody.
 */
#include "service/rpc/call.h"

#include "schemas/crash.h"
#include "service/objects/quota.h"
#include "service/objects/wakes.h"
#include "service/rpc/control_decode.h"
#include "service/session/session.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A reply of as many pages or planes as a datagram carries, unpacked. */
#define REPLY_BYTES (1024u * 1024u)

/* From here on a request has its own memory at once; others when they turn out to take long. */
#define LARGE_BYTES 8192u

/* A request that outlasts its piece. */
struct attnd_kept {
    Attnd__Request *request;
    struct attnd_admit_alloc alloc;
    _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t buffer[];
};

struct attnd_control {
    uint8_t received[ATTND_DATAGRAM_BYTES_MAX];
    uint8_t sent[ATTND_DATAGRAM_BYTES_MAX];
    _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t request[ATTND_CONTROL_DECODE_BYTES];
    _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t reply[REPLY_BYTES];
    struct attnd_admit_alloc request_alloc, reply_alloc;
    size_t received_bytes;
};

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

int attnd_call_no_memory(struct attnd_call *call)
{
    return attnd_fault_set(call->fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
}

void *attnd_call_result(struct attnd_call *call, Attnd__Reply__ResultCase which)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field(&attnd__reply__descriptor, (unsigned)which);
    const ProtobufCMessageDescriptor *type = field->descriptor;
    ProtobufCMessage *result = attnd_call_alloc(call, type->sizeof_message);

    if (!result) {
        attnd_call_no_memory(call);
        return NULL;
    }
    protobuf_c_message_init(type, result);
    *(ProtobufCMessage **)(void *)((char *)call->reply + field->offset) = result;
    call->reply->result_case = which;
    return result;
}

int attnd_call_token(struct attnd_call *call, const uint8_t *token)
{
    Attnd__TokenReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_TOKEN);

    if (!reply)
        return -ATTND_E_NO_MEMORY;
    reply->token.data = (uint8_t *)(uintptr_t)token; /* packing does not write it */
    reply->token.len = ATTND_SECRET_BYTES;
    return 0;
}

/* Decodes the datagram that was received last into @bytes of the client's own, which its session
 * pays for. @unpaid: and has if it cannot, too. Return: the code of attnd_control_decode(); 1
 * without memory, when nothing has changed. */
static int keep(struct attnd_client *client, size_t bytes, int unpaid)
{
    const struct attnd_control *control = client->service->control;
    const size_t all_bytes = sizeof(struct attnd_kept) + bytes;
    struct attnd_fault fault;
    const int refused = attnd_quota_charge(client, all_bytes, &fault) < 0;

    if (refused && !unpaid)
        return 1;
    const uint64_t charged = refused ? 0 : all_bytes;
    struct attnd_kept *kept = malloc(all_bytes);
    if (!kept) {
        attnd_quota_refund(client->service, attnd_quota_payer(client), charged);
        return 1;
    }
    client->again = kept;
    client->again_bytes = charged;
    attnd_admit_alloc_init(&kept->alloc, kept->buffer, bytes);
    return attnd_control_decode(control->received, control->received_bytes, &kept->alloc,
                                &kept->request);
}

/* Return: the code of attnd_control_decode(). */
static int decode(struct attnd_client *client, Attnd__Request **request)
{
    struct attnd_control *control = client->service->control;
    const int large = control->received_bytes >= LARGE_BYTES && client->state == ATTND_CLIENT_OPEN;
    const int code = large ? keep(client, ATTND_CONTROL_DECODE_BYTES, 0) : 1;

    if (code <= 0) {
        *request = client->again->request;
        return code;
    }
    return attnd_control_decode(control->received, control->received_bytes, &control->request_alloc,
                                request);
}

int attnd_control_receive(struct attnd_client *client, Attnd__Request **request, int *fds,
                          int *fds_count)
{
    struct attnd_control *control = client->service->control;
    const uint32_t owner = attnd_client_discards(client);

    const int carries = attnd_fdpass_carries(client->socket);
    if (carries && (!client->allowed || attnd_discard_full(owner))) {
        attnd_client_kill(client, client->allowed
                                      ? "its user's descriptors come faster than they are closed"
                                      : "it is not admitted, and sends descriptors");
        return 1;
    }
    if (carries && !attnd_fdpass_room())
        return ATTND_CONTROL_PAUSE;
    long received = attnd_fdpass_recv_from(client->socket, owner, control->received,
                                           sizeof(control->received), fds, fds_count);
    if (received == 0)
        return 1;
    if (received == -ATTND_E_DISCONNECTED) {
        attnd_client_end(client);
        return 1;
    }
    if (received < 0) {
        attnd_client_kill(client, "its datagram is too large or carries too many descriptors");
        return 1;
    }
    attnd_control_reset(client->service);
    control->received_bytes = (size_t)received;
    return decode(client, request);
}

/* It was good the first time, and took as much. A session that may have no more of the daemon's
 * memory waits all the same: it has one request, which is begun, and others are not to wait. */
int attnd_control_keep(struct attnd_client *client)
{
    const size_t bytes = client->service->control->request_alloc.used_bytes;

    if (client->again)
        return 0;
    const int code = keep(client, bytes, 1);
    assert(code > 0 || (code == 0 && client->again->request));
    return code > 0 ? -ATTND_E_NO_MEMORY : 0;
}

const Attnd__Request *attnd_control_kept(const struct attnd_client *client)
{
    return client->again->request;
}

void attnd_control_drop(struct attnd_client *client)
{
    client->again_done = 0;
    if (!client->again)
        return;
    attnd_quota_refund(client->service, attnd_quota_payer(client), client->again_bytes);
    free(client->again);
    client->again = NULL;
    client->again_bytes = 0;
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
    return attnd_client_send(call->client, control->sent, bytes, call->reply_fds,
                             call->reply_fds_count);
}

/* A call of a session that is refused; of one that was answered later only that. */
static void tell_refusal(const struct attnd_call *call)
{
    const struct attnd_client *client = call->client;
    struct attnd_monitor *monitor = &client->service->monitor;
    const ProtobufCFieldDescriptor *field;

    if (client->id == 0 || !attnd_monitor_wants(monitor))
        return;
    struct attnd_monitor_event event = {.time_ns = attnd_clock_ns(),
                                        .session = client->id,
                                        .uid = client->uid,
                                        .kind = ATTND_MONITOR_REFUSED,
                                        .fault = *call->fault};
    event.fault.code = call->reply->code;
    field = call->request ? protobuf_c_message_descriptor_get_field(
                                &attnd__request__descriptor, (unsigned)call->request->call_case)
                          : NULL;
    if (field)
        snprintf(event.text, sizeof(event.text), "%s", field->name);
    attnd_monitor_add(monitor, &event);
}

/* The daemon waits for nobody, not even here. */
void attnd_call_deliver(struct attnd_call *call, int code)
{
    struct attnd_client *client = call->client;
    if (client->state == ATTND_CLIENT_DYING)
        return;
    attnd_crash(ATTND_CRASH_DAEMON_REQUEST_SERVED);
    int rc = send_reply(call, code);
    attnd_crash(ATTND_CRASH_DAEMON_REPLIED);
    if (code < 0)
        tell_refusal(call);
    if (rc == -ATTND_E_DISCONNECTED)
        attnd_client_end(client);
    else if (rc < 0)
        attnd_client_kill(client, "it does not read its replies");
}

void attnd_control_answer(struct attnd_client *client, Attnd__Reply *reply, int fd,
                          const struct attnd_fault *fault)
{
    struct attnd_fault copy = *fault;
    struct attnd_call call = {
        .service = client->service, .client = client, .reply = reply, .fault = &copy};

    if (fd >= 0)
        call.reply_fds[call.reply_fds_count++] = fd;
    attnd_call_deliver(&call, copy.code);
}
