/*
 * handshake.c - Hello and Mapped: from a connection to an open session.
 *
 * Hello makes the segments and answers with their descriptors; Mapped says that the client has
 * mapped them, so they can be sealed. Only then is the session open (segments.c says why).
 */
#include "schemas/crash.h"
#include "schemas/version.h"
#include "service/rpc/calls.h"
#include "service/rpc/data_status.h"
#include "service/sched/sched.h"
#include "service/session/segments.h"
#include "service/session/session.h"
#include "service/supervise/supervise.h"

#include <string.h>

#define RING_ENTRIES_DEFAULT 256u
#define ARENA_BYTES_DEFAULT (8u << 20)

static int check_hello(const Attnd__Hello *hello, struct attnd_client *client,
                       struct attnd_fault *fault)
{
    uint32_t entries = hello->has_ring_entries ? hello->ring_entries : RING_ENTRIES_DEFAULT;
    uint64_t arena_bytes = hello->has_arena_bytes ? hello->arena_bytes : ARENA_BYTES_DEFAULT;

    if (hello->version != ATTND_PROTOCOL_VERSION)
        return attnd_fault_set(fault, -ATTND_E_VERSION, ATTND_F_VERSION, 0, hello->version,
                               ATTND_PROTOCOL_VERSION);
    if (!attnd_ring_entries_valid(entries))
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_RING_ENTRIES, 0, entries,
                               ATTND_RING_ENTRIES_MAX);
    if (arena_bytes < ATTND_ARENA_BYTES_MIN || arena_bytes > ATTND_ARENA_BYTES_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_ARENA, 0, (int64_t)arena_bytes,
                               arena_bytes < ATTND_ARENA_BYTES_MIN ? ATTND_ARENA_BYTES_MIN
                                                                   : ATTND_ARENA_BYTES_MAX);
    client->ring_entries = entries;
    client->arena_bytes = arena_bytes;
    return 0;
}

/* The name goes to logs and terminals. */
static void take_name(struct attnd_client *client, const char *name)
{
    size_t length = 0;
    for (; name && name[length] && length < sizeof(client->name) - 1; length++)
        client->name[length] = name[length] >= 0x20 && name[length] < 0x7f ? name[length] : '?';
    client->name[length] = '\0';
}

static int reply_hello(struct attnd_call *call)
{
    const struct attnd_client *client = call->client;
    struct attnd_data_status data;
    Attnd__HelloReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_HELLO);

    if (!reply)
        return -ATTND_E_NO_MEMORY;
    attnd_data_status(call->service, &data);
    reply->version = ATTND_PROTOCOL_VERSION;
    reply->session = client->id;
    reply->ring_entries = client->ring_entries;
    reply->arena_offset_bytes = client->arena_offset_bytes;
    reply->arena_bytes = client->arena_bytes;
    reply->doorbell = client->doorbell_fd < 0 ? ATTND__DOORBELL__DOORBELL_FUTEX
                                              : ATTND__DOORBELL__DOORBELL_EVENTFD;
    /* protobuf-c's strings are not const, and packing does not write them. */
    reply->backend = (char *)(uintptr_t)data.backend;
    reply->isa = (char *)(uintptr_t)data.isa;
    reply->residency = (char *)(uintptr_t)data.residency;
    reply->daemon_version = (char *)(uintptr_t)ATTND_VERSION;
    const struct attnd_worker_info *worker = attnd_supervisor_worker(call->service);
    if (worker->sms) {
        reply->has_gpu_uuid = reply->has_mps = 1;
        reply->mps = worker->mps != 0;
        reply->gpu_uuid.len = sizeof(worker->gpu_uuid);
        reply->gpu_uuid.data = (uint8_t *)(uintptr_t)worker->gpu_uuid;
    }
    reply->has_results = reply->results = 1;

    int fds[] = {client->submission.fd, client->completion.fd, client->notify_peer_fd,
                 client->doorbell_fd};
    call->reply_fds_count = client->doorbell_fd < 0 ? 3 : 4;
    memcpy(call->reply_fds, fds, (size_t)call->reply_fds_count * sizeof(int));
    return 0;
}

int attnd_call_hello(struct attnd_call *call)
{
    struct attnd_client *client = call->client;
    const Attnd__Hello *hello = call->request->hello;
    int rc = check_hello(hello, client, call->fault);

    if (rc < 0)
        return rc;
    take_name(client, hello->name);
    rc = attnd_segments_new(client, call->fault);
    attnd_crash(ATTND_CRASH_DAEMON_SEGMENTS_MADE);
    if (rc == 0)
        rc = attnd_client_enroll(client, call->fault);
    if (rc < 0) {
        attnd_segments_free(client);
        return rc;
    }
    return reply_hello(call);
}

int attnd_call_mapped(struct attnd_call *call)
{
    struct attnd_client *client = call->client;

    if (attnd_segments_seal(client) < 0) {
        attnd_client_kill(client, "its submission segment could not be sealed in its size");
        return 0;
    }
    int rc = attnd_client_watch_doorbell(client);
    if (rc == 0)
        rc = attnd_sched_open(client, call->fault);
    if (rc < 0) {
        attnd_client_kill(client, "there is no memory for its session");
        return 0;
    }
    client->state = ATTND_CLIENT_OPEN;
    attnd_crash(ATTND_CRASH_DAEMON_SESSION_OPENED);
    attnd_client_opened(client);
    attnd_log(ATTND_LOG_INFO, "session %u: pid %d (%s) opened, %u ring entries", client->id,
              (int)client->pid, attnd_client_name(client), client->ring_entries);
    attnd_monitor_say(&client->service->monitor, ATTND_MONITOR_OPENED, client->id, client->uid,
                      client->pid, attnd_client_name(client));
    return 0;
}
