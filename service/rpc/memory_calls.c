/*
 * memory_calls.c - MemoryRegister and MemoryRelease.
 *
 * With neither descriptor nor handle the daemon makes the memory; otherwise the engine brings its
 * own. A memfd must be sealed against shrinking, or the worker could be made to fault, and must be
 * writable, because outputs go there: both can be seen here. It costs what memory of the daemon's
 * making costs: however little of it its maker ever touched, a worker that pins it holds all. Of
 * memory of the GPU little can be seen without a context, and whether host memory can be pinned,
 * which may take seconds, not at all. So where the worker says that it has to try
 * (ATTND_KIND_TRIED), the reply waits for it: an engine learns of a bad handle, or of too much,
 * when it registers it and not from some later run. Other sessions' calls and all runs go on
 * meanwhile.
 *
 * Two kinds are only for engines that are trusted (--trust). Their handles are 64 bytes that the
 * driver parses in the worker's process, and no descriptor keeps the allocation from being freed by
 * its maker: what the worker reads there then is whatever comes to lie there next. So the reply to
 * a release waits too, until the worker has let go.
 */
#include "service/rpc/control.h"

#include "schemas/atomics.h"
#include "service/supervise/device.h"
#include "service/supervise/queue.h"

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
    if (!(attnd_data_worker(call->service)->memory_kinds >> kind & 1))
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND, 0, kind,
                               ATTND_KIND_HOST);
    return 0;
}

static int is_tried(const struct attnd_service *service, uint32_t kind)
{
    return kind <= ATTND_KIND_IPC &&
           (attnd_data_worker(service)->memory_kinds & ATTND_KIND_TRIED(kind)) != 0;
}

/* While there is nobody to try it an engine is told so: it would wait for a start that may take
 * longer than its patience with a call. Host memory is taken all the same: there is nothing to be
 * found out about it but that it is too much. */
int attnd_memory_check_now(const struct attnd_call *call, uint32_t kind)
{
    const struct attnd_client *client = call->client;

    if (!is_tried(call->service, kind))
        return 0;
    if (kind != ATTND_KIND_HOST && !attnd_data_running(call->service))
        return attnd_fault_set(call->fault, -ATTND_E_WORKER_RESTARTED, ATTND_F_MEMORY, 0, 0, 0);
    if (client->import) /* libattnd makes one call at a time */
        return attnd_fault_set(call->fault, -ATTND_E_BUSY, ATTND_F_MEMORY, 0, client->import, 0);
    return 0;
}

/* What the daemon makes on the GPU is there; on the host it only says how much may be. */
int attnd_memory_waits(const struct attnd_service *service, const struct attnd_memory *memory)
{
    return is_tried(service, memory->kind) && attnd_data_running(service) &&
           (!memory->made || memory->kind == ATTND_KIND_HOST);
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
    struct attnd_client *payer = source.kind == ATTND_KIND_HOST ? call->client : NULL;
    int rc = check_kind(call, source.kind);

    if (rc == 0)
        rc = check_form(call, &source);
    if (rc == 0)
        rc = attnd_memory_check_now(call, source.kind);
    if (rc == 0)
        rc = attnd_memory_share(call->client, call->fault);
    if (rc == 0 && payer)
        rc = attnd_memory_afford(payer, source.kind, source.size_bytes, call->fault);
    if (rc == 0)
        rc = attnd_memory_new(call->service, &source, payer, memory, call->fault);
    if (rc == 0 && call->fds_count)
        call->fds[0] = -1;
    return rc;
}

/* ---- what came of it ---- */

static void finish_import(struct attnd_client *client, const struct attnd_fault *fault)
{
    uint32_t handle = client->import;
    const struct attnd_memory *memory = client->memories[handle - 1];
    int fd = memory->made ? memory->fd : -1;
    Attnd__Reply reply = ATTND__REPLY__INIT;
    Attnd__MemoryReply result = ATTND__MEMORY_REPLY__INIT;

    client->import = 0;
    result.memory = handle;
    result.has_size_bytes = 1;
    result.size_bytes = memory->size_bytes;
    reply.id = client->import_id;
    reply.memory = &result;
    reply.result_case = ATTND__REPLY__RESULT_MEMORY;
    if (fault->code < 0) {
        attnd_memory_unbind(client, handle);
        fd = -1;
    }
    attnd_control_answer(client, &reply, fd, fault);
}

static void finish(struct attnd_client *client, const struct attnd_fault *fault)
{
    if (client->import_pool)
        attnd_pool_tried(client, fault);
    else
        finish_import(client, fault);
}

void attnd_memory_mapped(struct attnd_service *service, uint32_t index,
                         const struct attnd_fault *fault)
{
    struct attnd_memory *memory = service->memories[index];

    assert(memory);
    memory->fault = *fault;
    if (fault->code == 0)
        memory->deaths = 0; /* it kills nobody */
    if (fault->code == 0 && memory == service->wake)
        attnd_publish32(&service->queue->head->wake_memory, 1 + index);
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++) {
        struct attnd_client *client = service->clients[i];
        if (client && client->import && client->memories[client->import - 1] == memory) {
            finish(client, fault);
            return; /* the one that brought it; the object may be gone */
        }
    }
}

void attnd_memory_lost(struct attnd_service *service)
{
    static const struct attnd_fault restarted = {.code = -ATTND_E_WORKER_RESTARTED,
                                                 .field = ATTND_F_MEMORY};
    static const struct attnd_fault none = {0};

    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++) {
        struct attnd_client *client = service->clients[i];
        if (!client || !client->import)
            continue;
        /* As what is registered while nobody runs: the next worker gets it with all the rest. Of
         * what the worker may have died of there has been an answer (supervise.c). */
        const int is_host = client->memories[client->import - 1]->kind == ATTND_KIND_HOST;
        finish(client, is_host ? &none : &restarted);
    }
}

void attnd_memory_released(struct attnd_service *service, uint32_t session, uint64_t id)
{
    static const struct attnd_fault none = {0};
    Attnd__Reply reply = ATTND__REPLY__INIT;

    reply.id = id;
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (service->clients[i] && service->clients[i]->id == session) {
            attnd_control_answer(service->clients[i], &reply, -1, &none);
            return; /* it may be gone */
        }
}

/* ---- the calls ---- */

int attnd_call_memory_register(struct attnd_call *call)
{
    const Attnd__MemoryRegister *request = call->request->memory_register;
    Attnd__MemoryReply *reply = attnd_call_alloc(call, sizeof(*reply));
    struct attnd_memory *memory = NULL;
    int brought = call->fds_count || request->has_handle;

    if (!reply)
        return attnd_fault_set(call->fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    int rc = brought ? import(call, &memory) : make(call, &memory);
    if (rc != 0 || !memory)
        return rc;

    memory->maker = call->client->pid;
    attnd__memory_reply__init(reply);
    reply->has_size_bytes = 1;
    reply->size_bytes = memory->size_bytes;
    rc = attnd_memory_bind(call->client, memory, &reply->memory, call->fault);
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
    call->reply->memory = reply;
    call->reply->result_case = ATTND__REPLY__RESULT_MEMORY;
    return 0;
}

/* Every session that asks has a handle and with it a reference. */
int attnd_call_wake_open(struct attnd_call *call)
{
    Attnd__MemoryReply *reply = attnd_call_alloc(call, sizeof(*reply));
    struct attnd_memory *memory;

    if (!reply)
        return attnd_fault_set(call->fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    int rc = attnd_memory_wake(call->service, &memory, call->fault);
    attnd__memory_reply__init(reply);
    if (rc == 0)
        rc = attnd_memory_bind(call->client, memory, &reply->memory, call->fault);
    if (rc < 0)
        return rc;
    attnd_memory_ref(memory);
    reply->has_size_bytes = 1;
    reply->size_bytes = memory->size_bytes;
    call->reply_fds[call->reply_fds_count++] = memory->fd;
    call->reply->memory = reply;
    call->reply->result_case = ATTND__REPLY__RESULT_MEMORY;
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
