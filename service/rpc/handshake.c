/*
 * handshake.c - Hello and Mapped: two segments and their doorbells, sealed in the order that holds.
 *
 * The completion segment is sealed before its descriptor leaves, so that no client ever has a
 * writable mapping of it. The submission segment must first be mapped by the client, writable, and
 * is sealed when it says that it has. In between the client could have shrunk or grown the file
 * under our mapping: nothing of ours reads it then, and its size is looked at again once the seals
 * make the answer final.
 */
#include "service/rpc/control.h"
#include "service/supervise/device.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define RING_ENTRIES_DEFAULT 256u
#define ARENA_BYTES_DEFAULT (8u << 20)
#define ARENA_BYTES_MIN (64u << 10)
#define ARENA_BYTES_MAX (1u << 30)

static uint64_t round_to_pages(uint64_t bytes)
{
    return (bytes + ATTND_PAGE_BYTES - 1) / ATTND_PAGE_BYTES * ATTND_PAGE_BYTES;
}

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
    if (arena_bytes < ARENA_BYTES_MIN || arena_bytes > ARENA_BYTES_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_ARENA, 0, (int64_t)arena_bytes,
                               arena_bytes < ARENA_BYTES_MIN ? ARENA_BYTES_MIN : ARENA_BYTES_MAX);
    client->ring_entries = entries;
    client->arena_bytes = round_to_pages(arena_bytes);
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

static int make_segments(struct attnd_client *client, struct attnd_fault *fault)
{
    uint64_t slots_bytes = round_to_pages((uint64_t)client->ring_entries * ATTND_SLOT_BYTES);

    client->arena_offset_bytes = ATTND_PAGE_BYTES + slots_bytes;
    int rc = attnd_shm_create("attnd-submission", client->arena_offset_bytes + client->arena_bytes,
                              &client->submission, fault);
    if (rc < 0)
        return rc;
    client->results_offset_bytes = ATTND_PAGE_BYTES + slots_bytes;
    rc = attnd_shm_create("attnd-completion",
                          client->results_offset_bytes + ATTND_RESULT_WORDS * sizeof(int32_t),
                          &client->completion, fault);
    if (rc < 0)
        return rc;

    struct attnd_submit_head *submit = client->submission.address;
    struct attnd_complete_head *complete = client->completion.address;
    submit->magic = complete->magic = ATTND_SEGMENT_MAGIC;
    submit->version = complete->version = ATTND_PROTOCOL_VERSION;
    if (attnd_shm_seal(client->completion.fd, ATTND_SEAL_COMPLETION) < 0)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_SEALS, 0, errno, 0);
    return 0;
}

/* The client sleeps on a pipe: it cannot make our end of it block (ipc/wake.h). */
static int make_doorbells(struct attnd_client *client, struct attnd_fault *fault)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_NONE, 0, errno, 0);
    client->notify_peer_fd = ends[0];
    client->notify_fd = ends[1];
    if (attnd_loop_has_futex(client->service->loop))
        return 0;
    client->doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (client->doorbell_fd < 0)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_NONE, 0, errno, 0);
    return 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void attnd_client_unmap(struct attnd_client *client)
{
    attnd_shm_unmap(&client->submission);
    attnd_shm_unmap(&client->completion);
    close_fd(&client->notify_fd);
    close_fd(&client->notify_peer_fd);
    close_fd(&client->doorbell_fd);
}

static int reply_hello(struct attnd_call *call)
{
    const struct attnd_client *client = call->client;
    struct attnd_data_status data;
    Attnd__HelloReply *reply = attnd_call_alloc(call, sizeof(*reply));

    if (!reply)
        return attnd_fault_set(call->fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    attnd__hello_reply__init(reply);
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
    const struct attnd_worker_info *worker = attnd_data_worker(call->service);
    if (worker->sms) {
        reply->has_gpu_uuid = 1;
        reply->gpu_uuid.len = sizeof(worker->gpu_uuid);
        reply->gpu_uuid.data = (uint8_t *)(uintptr_t)worker->gpu_uuid;
    }
    reply->has_results = reply->results = 1;
    call->reply->hello = reply;
    call->reply->result_case = ATTND__REPLY__RESULT_HELLO;

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
    rc = make_segments(client, call->fault);
    if (rc == 0)
        rc = make_doorbells(client, call->fault);
    if (rc == 0)
        rc = attnd_client_enroll(client, call->fault);
    if (rc < 0) {
        attnd_client_unmap(client);
        return rc;
    }
    return reply_hello(call);
}

/* From here on no page of the submission segment can go away under our feet. */
static int seal_submission(const struct attnd_client *client)
{
    struct stat file;

    if (attnd_shm_seal(client->submission.fd, ATTND_SEAL_SUBMISSION) < 0 ||
        fstat(client->submission.fd, &file) < 0)
        return -ATTND_E_SYSTEM;
    return (uint64_t)file.st_size == client->submission.size_bytes ? 0 : -ATTND_E_PROTOCOL;
}

static void init_rings(struct attnd_client *client)
{
    struct attnd_submit_head *submit = client->submission.address;
    struct attnd_complete_head *complete = client->completion.address;

    attnd_consumer_init(&client->sq, (const char *)client->submission.address + ATTND_PAGE_BYTES,
                        &submit->sq_tail, &complete->sq_head, client->ring_entries);
    attnd_producer_init(&client->cq, (char *)client->completion.address + ATTND_PAGE_BYTES,
                        &complete->cq_tail, &submit->cq_head, client->ring_entries);
}

int attnd_call_mapped(struct attnd_call *call)
{
    struct attnd_client *client = call->client;

    if (seal_submission(client) < 0) {
        attnd_client_kill(client, "its submission segment could not be sealed in its size");
        return 0;
    }
    init_rings(client);
    /* The mappings stay; the client has its own descriptors. */
    close_fd(&client->submission.fd);
    close_fd(&client->completion.fd);
    close_fd(&client->notify_peer_fd);

    int rc = attnd_client_watch_doorbell(client);
    if (rc == 0)
        rc = attnd_sched_open(client);
    if (rc < 0) {
        attnd_client_kill(client, "there is no memory for its session");
        return 0;
    }
    client->state = ATTND_SESSION_OPEN;
    attnd_client_opened(client);
    attnd_log(ATTND_LOG_INFO, "session %u: pid %d (%s) opened, %u ring entries", client->id,
              (int)client->pid, attnd_client_name(client), client->ring_entries);
    return 0;
}
