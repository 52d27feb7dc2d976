/*
 * import.c - memory of the engine's own making becomes memory of the session.
 *
 * The message has a descriptor, a handle of the driver's, or both; the reply says whether the
 * worker could map it. Many tensors lie in one allocation, which the service should map once: so an
 * import can be found again by where the allocation lies in this process, and by the number that
 * the driver gave it, because addresses come back and numbers do not.
 */
#include "client/internal.h"

#include <stdlib.h>

static int check(const struct attnd_memory_desc *desc)
{
    int wants_fd = desc->memory_kind != ATTND_MEMORY_IPC;

    if (desc->memory_kind < ATTND_MEMORY_HOST || desc->memory_kind > ATTND_MEMORY_IPC)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MEMORY_KIND, 0, desc->memory_kind,
                                 ATTND_MEMORY_IPC);
    if (desc->reserved != 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_RESERVED, 0, desc->reserved, 0);
    if ((desc->fd >= 0) != wants_fd)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MEMORY, 0, desc->fd, wants_fd - 1);
    return 0;
}

static struct attnd_object *describe(const struct attnd_memory_desc *desc,
                                     const struct attnd_origin *origin)
{
    struct attnd_object *object = calloc(1, sizeof(*object));

    if (object == NULL)
        return NULL;
    object->kind = ATTND_OBJECT_MEMORY;
    object->u.memory.uses = 1;
    object->u.memory.kind = desc->memory_kind;
    object->u.memory.size_bytes = desc->size_bytes;
    object->u.memory.origin = *origin;
    object->u.memory.shm.fd = -1;
    return object;
}

static int send_import(struct attnd_session *session, struct attnd_rpc *call,
                       struct attnd_memory_desc *desc)
{
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;

    message.size_bytes = desc->size_bytes;
    message.has_memory_kind = desc->memory_kind != ATTND_MEMORY_HOST;
    message.memory_kind = (Attnd__MemoryKind)desc->memory_kind;
    message.has_handle = desc->memory_kind > ATTND_MEMORY_DEVICE;
    if (message.has_handle)
        message.handle =
            (ProtobufCBinaryData){.len = ATTND_MEMORY_HANDLE_BYTES, .data = desc->handle};
    call->fd = desc->fd;
    call->request.call_case = ATTND__REQUEST__CALL_MEMORY_REGISTER;
    call->request.memory_register = &message;
    call->timeout_ns = ATTND_CALL_LONG_TIMEOUT_NS;
    int rc = attnd_call(session, call, ATTND__REPLY__RESULT_MEMORY);
    if (rc == 0 && (call->fd_count != 0 || call->reply->memory->memory == 0))
        return attnd_call_broken(session, call);
    return rc;
}

int attnd_import(struct attnd_session *session, struct attnd_memory_desc *desc,
                 const struct attnd_origin *origin, uint32_t *memory)
{
    struct attnd_rpc call = ATTND_CALL_INIT;
    struct attnd_object *object = describe(desc, origin);

    if (object == NULL) /* before the daemon has what nobody here would know of */
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_MEMORY, 0, 0, 0);
    int rc = send_import(session, &call, desc);
    if (rc < 0) {
        free(object);
        return rc;
    }
    object->handle = call.reply->memory->memory;
    *memory = object->handle;
    attnd_object_add(session, object);
    attnd_call_end(session, &call);
    return 0;
}

uint32_t attnd_import_find(struct attnd_session *session, const struct attnd_origin *origin)
{
    uint32_t handle = 0;

    if (origin->id == 0) /* the driver has no number for it: it may be another one by now */
        return 0;
    pthread_mutex_lock(&session->objects_lock);
    for (const struct attnd_object *object = session->objects; object && !handle;
         object = object->next)
        if (object->kind == ATTND_OBJECT_MEMORY && object->u.memory.origin.id == origin->id &&
            object->u.memory.origin.address == origin->address)
            handle = object->handle;
    pthread_mutex_unlock(&session->objects_lock);
    return handle;
}

static int overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b ? b - a < a_bytes : a - b < b_bytes;
}

uint32_t attnd_import_stale(struct attnd_session *session, const struct attnd_origin *origin,
                            uint64_t size_bytes)
{
    uint32_t handle = 0;

    if (origin->id == 0)
        return 0;
    pthread_mutex_lock(&session->objects_lock);
    for (const struct attnd_object *object = session->objects; object && !handle;
         object = object->next)
        if (object->kind == ATTND_OBJECT_MEMORY && object->u.memory.origin.id != 0 &&
            object->u.memory.origin.id != origin->id &&
            overlap(object->u.memory.origin.address, object->u.memory.size_bytes, origin->address,
                    size_bytes))
            handle = object->handle;
    pthread_mutex_unlock(&session->objects_lock);
    return handle;
}

int attnd_memory_import(struct attnd_session *session, const struct attnd_memory_desc *desc,
                        uint32_t *memory)
{
    static const struct attnd_origin unknown = {0};
    struct attnd_memory_desc own;
    int rc = attnd_args_take(&own, sizeof(own), desc);

    if (memory == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MEMORY, 0, 0, 0);
    if (rc == 0)
        rc = check(&own);
    return rc < 0 ? rc : attnd_import(session, &own, &unknown, memory);
}

int attnd_memory_register(struct attnd_session *session, int fd, uint64_t size_bytes,
                          uint32_t *memory)
{
    const struct attnd_memory_desc desc = {
        .size = sizeof(desc), .memory_kind = ATTND_MEMORY_HOST, .fd = fd, .size_bytes = size_bytes};

    return attnd_memory_import(session, &desc, memory);
}
