/*
 * engine_memory.c - where the memories of a session lie in this process.
 *
 * Tensors that attnd_cuda_export() named lie where the engine made them. Memory that the service
 * made is mapped here, host memory registered. A table of the session's block has the addresses by
 * the session's numbers, because that is what images of plans name.
 *
 * What the service has let go is forgotten at once, also in the table: the number and, of host
 * memory, the address may be another memory's next.
 */
#include "client/cuda/attnd_cuda.h"
#include "client/cuda/engine.h"

#include <stdlib.h>

/* What the session knows of a memory, copied. */
static int look_up(struct attnd_session *session, uint32_t handle, struct attnd_object *copy)
{
    pthread_mutex_lock(&session->objects_lock);
    const struct attnd_object *object = attnd_object_find(session, ATTND_OBJECT_MEMORY, handle);
    if (object)
        *copy = *object;
    pthread_mutex_unlock(&session->objects_lock);
    if (object == NULL)
        return attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_MEMORY, 0, handle, 0);
    return 0;
}

static int register_host(void *address, uint64_t size_bytes, struct engine_memory *memory)
{
    CUresult result = cuMemHostRegister(address, size_bytes, CU_MEMHOSTREGISTER_DEVICEMAP);

    if (result == CUDA_SUCCESS)
        memory->registered = address;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        result = cuMemHostGetDevicePointer((CUdeviceptr *)&memory->at.address, address, 0);
    memory->at.host = 1;
    return attnd_engine_fault(result);
}

static int find(struct attnd_engine *engine, const struct attnd_object *object,
                struct engine_memory *memory)
{
    CUdeviceptr address = 0;

    memory->handle = object->handle;
    memory->serial = object->serial;
    memory->at.size_bytes = object->u.memory.size_bytes;
    if (object->u.memory.origin.address) {
        memory->at.address = object->u.memory.origin.address;
        return 0;
    }
    if (object->u.memory.kind == ATTND_MEMORY_HOST && object->u.memory.shm.address)
        return register_host(object->u.memory.shm.address, object->u.memory.size_bytes, memory);
    if (object->u.memory.shm.fd < 0)
        return attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_MEMORY, 0, object->handle, 0);
    int rc = attnd_cuda_map(engine->session, object->handle, &address);
    memory->at.address = address;
    memory->mapped = rc == 0;
    return rc;
}

static void release(struct engine_memory *memory)
{
    if (memory->mapped)
        (void)attnd_cuda_unmap(memory->at.address);
    if (memory->registered)
        (void)cuMemHostUnregister(memory->registered);
    free(memory);
}

static CUresult tell(const struct attnd_engine *engine, uint32_t handle,
                     const struct attnd_engine_memory *at)
{
    CUdeviceptr to = engine->block + engine->facts.memories_at + handle * sizeof(*at);
    CUresult result = cuMemcpyHtoDAsync(to, at, sizeof(*at), engine->stream);

    return result == CUDA_SUCCESS ? cuStreamSynchronize(engine->stream) : result;
}

/* No prepared run and no plan names it, for the service has let it go; what is in streams may. */
static void forget(struct attnd_engine *engine, struct engine_memory **link)
{
    static const struct attnd_engine_memory nowhere;
    struct engine_memory *memory = *link;

    *link = memory->next;
    for (uint32_t lane = 0; lane < ATTND_LANES_MAX; lane++)
        attnd_engine_wait(engine, lane);
    (void)tell(engine, memory->handle, &nowhere);
    release(memory);
}

void attnd_engine_memory_ends(struct attnd_engine *engine, uint64_t serial)
{
    pthread_mutex_lock(&engine->lock);
    struct engine_memory **link = &engine->memories;
    while (*link && (*link)->serial != serial)
        link = &(*link)->next;
    if (*link)
        forget(engine, link);
    pthread_mutex_unlock(&engine->lock);
}

/* Forgets what the handle named before, if nobody has told of its end yet. Return: 1: it names the
 * same as then. */
static int is_known(struct attnd_engine *engine, const struct attnd_object *object)
{
    for (struct engine_memory **link = &engine->memories; *link; link = &(*link)->next) {
        struct engine_memory *memory = *link;
        if (memory->handle != object->handle)
            continue;
        if (memory->serial == object->serial)
            return 1;
        forget(engine, link);
        return 0;
    }
    return 0;
}

int attnd_engine_memory(struct attnd_engine *engine, uint32_t handle)
{
    struct attnd_object object = {.handle = 0};
    int rc = look_up(engine->session, handle, &object);

    if (rc < 0 || is_known(engine, &object))
        return rc;
    if (handle >= ATTND_MEMORIES_MAX)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_MEMORY, 0, handle, ATTND_MEMORIES_MAX - 1);
    struct engine_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_MEMORY, 0, 0, 0);
    rc = find(engine, &object, memory);
    if (rc == 0)
        rc = attnd_engine_fault(tell(engine, handle, &memory->at));
    if (rc < 0) {
        release(memory);
        return rc;
    }
    memory->next = engine->memories;
    engine->memories = memory;
    return 0;
}

void attnd_engine_memories_end(struct attnd_engine *engine)
{
    while (engine->memories) {
        struct engine_memory *memory = engine->memories;
        engine->memories = memory->next;
        release(memory);
    }
}
