/*
 * imports.c - what the worker has to try before a call can be answered.
 *
 * Of memory of the GPU the daemon can see little without a context, and whether host memory can be
 * pinned, which may take seconds, it cannot see at all. So where the worker says that it has to try
 * (ATTND_KIND_TRIED), the reply waits for it: an engine learns of a bad handle, or of too much,
 * when it registers it and not from some later run. Other sessions' calls and all runs go on
 * meanwhile.
 */
#include "schemas/atomics.h"
#include "service/objects/memory.h"
#include "service/rpc/calls.h"
#include "service/supervise/supervise.h"

#include <assert.h>

static int is_tried(const struct attnd_service *service, uint32_t kind)
{
    return kind <= ATTND_KIND_IPC &&
           (attnd_supervisor_worker(service)->memory_kinds & ATTND_KIND_TRIED(kind)) != 0;
}

/* While there is no worker to try it the call fails: it would wait for a start that may take
 * longer than its patience with a call. Host memory is taken all the same: there is nothing to be
 * found out about it but that it is too much. */
int attnd_memory_check_now(const struct attnd_call *call, uint32_t kind)
{
    const struct attnd_client *client = call->client;

    if (!is_tried(call->service, kind))
        return 0;
    if (kind != ATTND_KIND_HOST && !attnd_supervisor_running(call->service))
        return attnd_fault_set(call->fault, -ATTND_E_WORKER_RESTARTED, ATTND_F_MEMORY, 0, 0, 0);
    if (client->import) /* libattnd makes one call at a time */
        return attnd_fault_set(call->fault, -ATTND_E_BUSY, ATTND_F_MEMORY, 0, client->import, 0);
    return 0;
}

/* Memory that the daemon makes on the GPU is there; on the host it only says how much may be. */
int attnd_memory_waits(const struct attnd_service *service, const struct attnd_memory *memory)
{
    return is_tried(service, memory->kind) && attnd_supervisor_running(service) &&
           (!memory->made || memory->kind == ATTND_KIND_HOST);
}

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
         * what the worker may have died of there has been an answer (supervise/life.c). */
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
