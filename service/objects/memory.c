/*
 * memory.c - memory objects: a descriptor the daemon holds and the worker maps.
 *
 * The descriptor is a memfd or memory of the GPU (device.c), or an engine sent it, with or instead
 * of a handle of the driver's (memory_calls.c); once it is here nothing asks which. The daemon
 * never touches the bytes. It owns the descriptor so that the memory outlives its users: engines,
 * and the worker, which gets every object again when it is restarted. An object is counted: by
 * session handles, by pools that lie in it, by runs in flight. Its index in the worker's table is
 * not given out again before the worker has said that it let go.
 */
#include "service/objects/memory.h"

#include "ipc/closer.h"
#include "service/supervise/device.h"
#include "service/supervise/supervise.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* From here on the last close() may take longer than others should wait: 1 MiB is some 50 us. */
#define LARGE_BYTES (1u << 20)

static uint32_t find_index(const struct attnd_service *service)
{
    for (uint32_t i = 0; i < ATTND_MEMORIES_MAX; i++)
        if (!service->memories[i])
            return i;
    return ATTND_NONE;
}

/* ---- budgets ---- */

/* A budget can become smaller than what is used (SIGHUP). */
static uint64_t left_bytes_of(uint64_t max_bytes, uint64_t used_bytes)
{
    return max_bytes > used_bytes ? max_bytes - used_bytes : 0;
}

/* Host memory has to be counted: a worker that pins too much of it is killed. The GPU counts its
 * own, and says no itself. */
static uint64_t device_left_bytes(const struct attnd_client *payer)
{
    uint64_t max_bytes = payer->service->options.device_memory_max_bytes;

    return max_bytes ? left_bytes_of(max_bytes, payer->device_memory_bytes) : UINT64_MAX;
}

int attnd_memory_afford(const struct attnd_client *payer, uint32_t kind, uint64_t size_bytes,
                        struct attnd_fault *fault)
{
    uint64_t left_bytes = kind == ATTND_KIND_HOST ? attnd_quota_left(payer, ATTND_QUOTA_HOST)
                                                  : device_left_bytes(payer);

    if (size_bytes <= left_bytes)
        return 0;
    return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_SIZE, 0, (int64_t)size_bytes,
                           (int64_t)left_bytes);
}

/* It was afforded. */
static void charge(struct attnd_client *payer, struct attnd_memory *memory)
{
    memory->charged_bytes = memory->size_bytes;
    if (memory->kind != ATTND_KIND_HOST)
        payer->device_memory_bytes += memory->size_bytes;
    else if (attnd_quota_take(payer, ATTND_QUOTA_HOST, memory->size_bytes, NULL) < 0)
        assert(0);
}

/* This happens when the last reference goes, not when the worker has let go: the worker is sent
 * what takes the room after it was sent the order to give this up. The session may be gone, and its
 * pool live on. */
static void refund(struct attnd_service *service, const struct attnd_memory *memory)
{
    if (memory->kind == ATTND_KIND_HOST) {
        attnd_quota_give(service, memory->payer, ATTND_QUOTA_HOST, memory->charged_bytes);
        return;
    }
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (service->clients[i] && service->clients[i]->id == memory->payer.session)
            service->clients[i]->device_memory_bytes -= memory->charged_bytes;
}

/* ---- descriptors ---- */

/* Descriptors that as many connections as there can be hold at most, and the daemon itself, to
 * start a worker too. */
#define FDS_KEPT (4 * (ATTND_SESSIONS_MAX + ATTND_VISITORS_MAX) + 64)

/* The kernel gives out the lowest that is free: so many are in use, or nearly. */
int attnd_memory_check_fd(int fd, struct attnd_fault *fault)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0;
    rlim_t kept = limit.rlim_cur / 2 < FDS_KEPT ? limit.rlim_cur / 2 : FDS_KEPT;
    rlim_t end = limit.rlim_cur - kept;
    if (fd < 0 || (rlim_t)fd < end)
        return 0;
    return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_MEMORY, 0, fd, (int64_t)end);
}

static int map(struct attnd_service *service, const struct attnd_memory *memory)
{
    const struct attnd_memory_source kept = {.kind = memory->kind,
                                             .fd = memory->fd,
                                             .size_bytes = memory->size_bytes,
                                             .handle = memory->handle};
    return attnd_supervisor_map(service->supervisor, memory->index, &kept);
}

/* An entry of the table, in @payer's name. */
static struct attnd_memory *entry_new(struct attnd_service *service, struct attnd_client *payer,
                                      struct attnd_fault *fault)
{
    if (payer && attnd_quota_take(payer, ATTND_QUOTA_MEMORIES, 1, fault) < 0)
        return NULL;
    uint32_t index = find_index(service);
    struct attnd_memory *memory = index == ATTND_NONE ? NULL : calloc(1, sizeof(*memory));

    if (!memory) {
        if (payer)
            attnd_quota_give(service, attnd_quota_payer(payer), ATTND_QUOTA_MEMORIES, 1);
        attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_MEMORY, 0, ATTND_MEMORIES_MAX,
                        ATTND_MEMORIES_MAX);
        return NULL;
    }
    memory->index = index;
    memory->refs = 1;
    if (payer) {
        memory->payer = attnd_quota_payer(payer);
        memory->entries = 1;
    }
    service->memories[index] = memory;
    return memory;
}

/* Allocated with the memory, so that the closer can always be given its descriptor. */
struct attnd_memory_closing {
    struct attnd_closing closing;
    int fd;
};

static void close_fd(struct attnd_closing *closing)
{
    struct attnd_memory_closing *held = (struct attnd_memory_closing *)(void *)closing;

    close(held->fd);
    free(held);
}

/* Small files need none. Return: 0; -ATTND_E_NO_MEMORY. */
static int make_closing(struct attnd_memory *memory)
{
    if (memory->fd < 0 || memory->size_bytes < LARGE_BYTES)
        return 0;
    memory->closing = calloc(1, sizeof(*memory->closing));
    return memory->closing ? 0 : -ATTND_E_NO_MEMORY;
}

/* Of the last reference: the descriptor goes, now or soon. */
static void let_go(struct attnd_memory *memory, int fd)
{
    struct attnd_memory_closing *closing = memory->closing;

    memory->closing = NULL;
    if (!closing) {
        if (fd >= 0)
            close(fd);
        return;
    }
    closing->fd = fd;
    closing->closing = (struct attnd_closing){.close = close_fd, .bytes = memory->size_bytes};
    attnd_closer_take(&closing->closing);
}

/* Nothing of it is left but that. */
static void entry_free(struct attnd_service *service, struct attnd_memory *memory)
{
    service->memories[memory->index] = NULL;
    if (memory->entries)
        attnd_quota_give(service, memory->payer, ATTND_QUOTA_MEMORIES, 1);
    free(memory->closing);
    free(memory);
}

int attnd_memory_new(struct attnd_service *service, const struct attnd_memory_source *source,
                     struct attnd_client *payer, int counts, struct attnd_memory **out,
                     struct attnd_fault *fault)
{
    int rc = attnd_memory_check_fd(source->fd, fault);
    if (rc < 0)
        return rc;
    struct attnd_memory *memory = entry_new(service, payer, fault);
    if (!memory)
        return -ATTND_E_NO_MEMORY;
    memory->kind = source->kind;
    memory->fd = source->fd;
    memory->size_bytes = source->size_bytes;
    if (source->handle)
        memcpy(memory->handle, source->handle, sizeof(memory->handle));
    rc = make_closing(memory);
    if (rc == 0)
        rc = map(service, memory);
    if (rc < 0) {
        attnd_fault_set(fault, rc, ATTND_F_MEMORY, 0, memory->index, 0);
        entry_free(service, memory);
        return rc;
    }
    if (counts)
        charge(payer, memory);
    *out = memory;
    return 0;
}

static int make_host(uint64_t size_bytes, int *fd, struct attnd_fault *fault)
{
    int rc = attnd_shm_create_unmapped("attnd-memory", size_bytes, fd, fault);
    if (rc < 0)
        return rc;
    if (attnd_shm_seal(*fd, ATTND_SEAL_POOL) == 0)
        return 0;
    rc = attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_SEALS, 0, errno, 0);
    close(*fd);
    return rc;
}

static int check_kind(const struct attnd_service *service, uint32_t kind, struct attnd_fault *fault)
{
    if (kind != ATTND_KIND_HOST && kind != ATTND_KIND_DEVICE)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MEMORY_KIND, 0, kind,
                               ATTND_KIND_DEVICE);
    if (kind == ATTND_KIND_DEVICE && !service->device)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND, 0, kind,
                               ATTND_KIND_HOST);
    return 0;
}

int attnd_memory_make(struct attnd_client *payer, uint32_t kind, uint64_t size_bytes,
                      struct attnd_memory **out, struct attnd_fault *fault)
{
    struct attnd_service *service = payer->service;
    int fd, rc = check_kind(service, kind, fault);

    if (rc < 0)
        return rc;
    uint64_t page_bytes =
        kind == ATTND_KIND_DEVICE ? attnd_device_page_bytes(service->device) : ATTND_PAGE_BYTES;
    if (size_bytes == 0 || size_bytes > INT64_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SIZE, 0, (int64_t)size_bytes,
                               size_bytes ? INT64_MAX : 1);
    size_bytes = (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
    rc = attnd_memory_afford(payer, kind, size_bytes, fault);
    if (rc < 0)
        return rc;
    rc = kind == ATTND_KIND_DEVICE ? attnd_device_make(service->device, size_bytes, &fd, fault)
                                   : make_host(size_bytes, &fd, fault);
    if (rc < 0)
        return rc;
    const struct attnd_memory_source source = {.kind = kind, .fd = fd, .size_bytes = size_bytes};
    rc = attnd_memory_new(service, &source, payer, 1, out, fault);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    (*out)->made = 1;
    return 0;
}

int attnd_memory_make_own(struct attnd_service *service, uint64_t size_bytes,
                          struct attnd_memory **out, struct attnd_fault *fault)
{
    int fd, rc = make_host(size_bytes, &fd, fault);

    if (rc < 0)
        return rc;
    const struct attnd_memory_source source = {
        .kind = ATTND_KIND_HOST, .fd = fd, .size_bytes = size_bytes};
    rc = attnd_memory_new(service, &source, NULL, 0, out, fault);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    (*out)->made = 1;
    return 0;
}

int attnd_memory_wake(struct attnd_service *service, struct attnd_memory **out,
                      struct attnd_fault *fault)
{
    *out = service->wake;
    if (service->wake)
        return 0;
    if (attnd_supervisor_worker(service)->residency != ATTND_RESIDENCY_ELASTIC)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY, 0, 0, 0);
    int rc = attnd_memory_make_own(service, ATTND_PAGE_BYTES, out, fault);
    if (rc == 0)
        service->wake = *out;
    return rc;
}

void attnd_memory_ref(struct attnd_memory *memory)
{
    assert(memory->refs > 0 && memory->refs < UINT32_MAX);
    memory->refs++;
}

void attnd_memory_unref(struct attnd_service *service, struct attnd_memory *memory)
{
    assert(memory->refs > 0);
    if (--memory->refs > 0)
        return;
    refund(service, memory);
    /* The worker may answer at once, and the object is gone then. */
    int fd = memory->fd;
    memory->fd = -1;
    let_go(memory, fd);
    attnd_supervisor_unmap(service->supervisor, memory->index);
}

void attnd_memory_unmapped(struct attnd_service *service, uint32_t index)
{
    struct attnd_memory *memory = service->memories[index];

    assert(memory && memory->refs == 0);
    uint32_t session = memory->release_session;
    uint64_t id = memory->release_id;
    entry_free(service, memory);
    if (session)
        service->memory_events->released(service, session, id);
}

int attnd_memory_bind(struct attnd_client *client, struct attnd_memory *memory, uint32_t *handle,
                      struct attnd_fault *fault)
{
    *handle = attnd_client_vacant((void *const *)client->memories);
    if (*handle == 0)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_MEMORY, 0, ATTND_HANDLES_MAX,
                               ATTND_HANDLES_MAX);
    client->memories[*handle - 1] = memory;
    return 0;
}

void attnd_memory_unbind(struct attnd_client *client, uint32_t handle)
{
    struct attnd_memory *memory = client->memories[handle - 1];

    client->memories[handle - 1] = NULL;
    attnd_memory_unref(client->service, memory);
}
