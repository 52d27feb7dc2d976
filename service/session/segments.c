/*
 * segments.c - the two segments of a session and their doorbells, sealed in the order that holds.
 *
 * The completion segment is sealed before its descriptor leaves, so that no client ever has a
 * writable mapping of it. The submission segment must first be mapped by the client, writable, and
 * is sealed when it says that it has. In between the client could have shrunk or grown the file
 * under our mapping: nothing of ours reads it then, and its size is looked at again once the seals
 * make the answer final.
 */
#include "service/session/segments.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t round_to_pages(uint64_t bytes)
{
    return (bytes + ATTND_PAGE_BYTES - 1) / ATTND_PAGE_BYTES * ATTND_PAGE_BYTES;
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

int attnd_segments_new(struct attnd_client *client, struct attnd_fault *fault)
{
    client->arena_bytes = round_to_pages(client->arena_bytes);
    int rc = make_segments(client, fault);
    return rc < 0 ? rc : make_doorbells(client, fault);
}

void attnd_segments_free(struct attnd_client *client)
{
    attnd_shm_unmap(&client->submission);
    attnd_shm_unmap(&client->completion);
    close_fd(&client->notify_fd);
    close_fd(&client->notify_peer_fd);
    close_fd(&client->doorbell_fd);
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

int attnd_segments_seal(struct attnd_client *client)
{
    int rc = seal_submission(client);
    if (rc < 0)
        return rc;
    init_rings(client);
    /* The mappings stay; the client has its own descriptors. */
    close_fd(&client->submission.fd);
    close_fd(&client->completion.fd);
    close_fd(&client->notify_peer_fd);
    return 0;
}
