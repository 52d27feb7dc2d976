/*
 * memory_calls.c - MemoryRegister and MemoryRelease.
 *
 * With neither descriptor nor handle the daemon makes the memory; otherwise the engine brings its
 * own. A memfd must be sealed against shrinking, or the worker could be made to fault, and must be
 * writable, because outputs go there: both can be seen here. It costs what memory of the daemon's
 * making costs: however little of it its maker ever touched, a worker that pins it holds all. What
 * the worker has to try first is answered later (imports.c).
 *
 * Two kinds are only for engines that are trusted (--trust). Their handles are 64 bytes that the
 * driver parses in the worker's process, and no descriptor keeps the allocation from being freed by
 * its maker: what the worker reads there then is whatever comes to lie there next. So the reply to
 * a release waits too, until the worker has let go.
 */
#include "ipc/shm.h"
#include "service/objects/memory.h"
#include "service/rpc/calls.h"
#include "service/supervise/device.h"
#include "service/supervise/supervise.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* ---- what an engine brings ---- */

/* The worker maps it read-write; better refused here by name than failing there. */
static int check_writable(int fd, struct attnd_fault *fault)
{
    int access = fcntl(fd, F_GETFL);
    int seals = fcntl(fd, F_GET_SEALS);

    if (access < 0 || (access & O_ACCMODE) != O_RDWR)
        return attnd_fault_set(fault, -ATTND_E_PERMISSION, ATTND_F_MEMORY, 0, access, O_RDWR);
    if (seals < 0 || seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
        return attnd_fault_set(fault, -ATTND_E_PERMISSION, ATTND_F_SEALS, 0, seals, F_SEAL_SHRINK);
    return 0;
}

/* Whether the service takes memory of this kind from engines at all. */
static int check_kind(const struct attnd_call *call, uint32_t kind)
{
    struct attnd_fault *fault = call->fault;

    if (kind < ATTND_KIND_HOST || kind > ATTND_KIND_IPC)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_MEMORY_KIND, 0, kind,
                               ATTND_KIND_IPC);
    if (kind > ATTND_KIND_DEVICE && !call->service->options.trust)
        return attnd_fault_set(fault, -ATTND_E_PERMISSION, ATTND_F_MEMORY_KIND, 0, kind,
                               ATTND_KIND_DEVICE);
    if (!(attnd_supervisor_worker(call->service)->memory_kinds >> kind & 1))
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND, 0, kind,
                               ATTND_KIND_HOST);
    return 0;
}

/* Descriptor and handle as the kind wants them, and a size that makes sense. */
static int check_form(const struct attnd_call *call, const struct attnd_memory_source *source)
{
    const Attnd__MemoryRegister *request = call->request->memory_register;
    int fds = source->kind != ATTND_KIND_IPC;
    size_t handle_bytes = source->kind > ATTND_KIND_DEVICE ? ATTND_IPC_HANDLE_BYTES : 0;

    if (call->fds_count != fds)
        return attnd_fault_set(call->fault, -ATTND_E_INVALID, ATTND_F_COUNT, 0, call->fds_count,
                               fds);
    if (request->handle.len != handle_bytes)
        return attnd_fault_set(call->fault, -ATTND_E_INVALID, ATTND_F_MEMORY, 0,
                               (int64_t)request->handle.len, (int64_t)handle_bytes);
    if (source->size_bytes == 0 || source->size_bytes > INT64_MAX)
        return attnd_fault_set(call->fault, -ATTND_E_RANGE, ATTND_F_SIZE, 0,
                               (int64_t)source->size_bytes, source->size_bytes ? INT64_MAX : 1);
    if (source->kind == ATTND_KIND_IPC)
        return 0;
    if (source->kind != ATTND_KIND_HOST)
        return attnd_device_check_fd(source->fd, call->fault);
    int rc = attnd_shm_check_import(source->fd, source->size_bytes, call->fault);
    return rc < 0 ? rc : check_writable(source->fd, call->fault);
}

static int make(struct attnd_call *call, struct attnd_memory **memory)
{
    const Attnd__MemoryRegister *request = call->request->memory_register;
    uint32_t kind = (uint32_t)request->memory_kind;
    int rc = kind == ATTND_KIND_HOST ? attnd_memory_check_now(call, kind) : 0;

    return rc < 0 ? rc
                  : attnd_memory_make(call->client, kind, request->size_bytes, memory, call->fault);
}

static int import(struct attnd_call *call, struct attnd_memory **memory)
{
    const Attnd__MemoryRegister *request = call->request->memory_register;
    const struct attnd_memory_source source = {.kind = (uint32_t)request->memory_kind,
                                               .fd = call->fds_count ? call->fds[0] : -1,
                                               .size_bytes = request->size_bytes,
                                               .handle = request->handle.len ? request->handle.data
                                                                             : NULL};
    /* Memory of the GPU is the engine's own and has its limit there. */
    const int counts = source.kind == ATTND_KIND_HOST;
    int rc = check_kind(call, source.kind);

    if (rc == 0)
        rc = check_form(call, &source);
    if (rc == 0)
        rc = attnd_memory_check_now(call, source.kind);
    if (rc == 0 && counts)
        rc = attnd_memory_afford(call->client, source.kind, source.size_bytes, call->fault);
    if (rc == 0)
        rc = attnd_memory_new(call->service, &source, call->client, counts, memory, call->fault);
    if (rc == 0 && call->fds_count)
        call->fds[0] = -1;
    return rc;
}

/* ---- the calls ---- */

/* A handle of the session's, and the reply that names it. */
static int bind_as(struct attnd_call *call, struct attnd_memory *memory, Attnd__MemoryReply *reply)
{
    reply->has_size_bytes = 1;
    reply->size_bytes = memory->size_bytes;
    return attnd_memory_bind(call->client, memory, &reply->memory, call->fault);
}

int attnd_call_memory_register(struct attnd_call *call)
{
    const Attnd__MemoryRegister *request = call->request->memory_register;
    Attnd__MemoryReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_MEMORY);
    struct attnd_memory *memory = NULL;
    int brought = call->fds_count || request->has_handle;

    if (!reply)
        return -ATTND_E_NO_MEMORY;
    int rc = brought ? import(call, &memory) : make(call, &memory);
    if (rc != 0 || !memory)
        return rc;

    rc = bind_as(call, memory, reply);
    if (rc < 0) {
        attnd_memory_unref(call->service, memory);
        return rc;
    }
    if (attnd_memory_waits(call->service, memory)) {
        call->client->import = reply->memory;
        call->client->import_id = call->request->id;
        return ATTND_CALL_LATER;
    }
    if (memory->made)
        call->reply_fds[call->reply_fds_count++] = memory->fd;
    return 0;
}

/* Every session that asks has a handle and with it a reference. */
int attnd_call_wake_open(struct attnd_call *call)
{
    Attnd__MemoryReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_MEMORY);
    struct attnd_memory *memory;

    if (!reply)
        return -ATTND_E_NO_MEMORY;
    int rc = attnd_memory_wake(call->service, &memory, call->fault);
    if (rc == 0)
        rc = bind_as(call, memory, reply);
    if (rc < 0)
        return rc;
    attnd_memory_ref(memory);
    call->reply_fds[call->reply_fds_count++] = memory->fd;
    return 0;
}

int attnd_call_memory_release(struct attnd_call *call)
{
    uint32_t handle = call->request->memory_release->memory;
    struct attnd_memory *memory = attnd_client_memory(call->client, handle);

    if (!memory)
        return attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_MEMORY, 0, handle, 0);
    /* Beyond the handle: pools that lie in it, operations in flight that name it, its import. */
    if (memory->refs > 1 || handle == call->client->import)
        return attnd_fault_set(call->fault, -ATTND_E_BUSY, ATTND_F_MEMORY, 0, handle, 0);
    int waits = memory->kind == ATTND_KIND_POOL || memory->kind == ATTND_KIND_IPC;
    if (waits) { /* its maker frees it next, and must not while the worker has it open */
        memory->release_session = call->client->id;
        memory->release_id = call->request->id;
    }
    attnd_memory_unbind(call->client, handle);
    return waits ? ATTND_CALL_LATER : 0;
}
