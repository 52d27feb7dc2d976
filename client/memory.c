/*
 * memory.c - memory that both sides know by a number.
 *
 * The service makes it or the engine does (import.c); what travels is a descriptor. The library
 * maps only what the service made in host memory and the caller wants to see. Device memory is its
 * descriptor and nothing else here: a caller that maps it needs CUDA, and this library does not.
 */
#include "client/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

/* Asks the service for memory; the reply carries its descriptor. */
static int ask(struct attnd_session *session, struct attnd_rpc *call, uint64_t size_bytes,
               uint32_t kind)
{
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    message.size_bytes = size_bytes;
    message.has_memory_kind = kind != ATTND_KIND_HOST; /* what an older service need not know */
    message.memory_kind = (Attnd__MemoryKind)kind;
    call->request.call_case = ATTND__REQUEST__CALL_MEMORY_REGISTER;
    call->request.memory_register = &message;
    call->timeout_ns = ATTND_CALL_LONG_TIMEOUT_NS;
    int rc = attnd_call(session, call, ATTND__REPLY__RESULT_MEMORY);
    if (rc == 0 && (call->fd_count != 1 || call->reply->memory->memory == 0))
        return attnd_call_broken(session, call);
    return rc;
}

/* The session's record of memory that the service made. Return: an object, with call_lock held
 * until attnd_call_end(); NULL with *rc. */
static struct attnd_object *make(struct attnd_session *session, struct attnd_rpc *call,
                                 uint64_t size_bytes, uint32_t kind, int *rc)
{
    struct attnd_object *object = calloc(1, sizeof(*object));
    if (object == NULL) {
        *rc = attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_MEMORY, 0, 0, 0);
        return NULL;
    }
    *rc = ask(session, call, size_bytes, kind);
    if (*rc != 0) {
        free(object);
        return NULL;
    }
    const Attnd__MemoryReply *reply = call->reply->memory;
    object->kind = ATTND_OBJECT_MEMORY;
    object->handle = reply->memory;
    object->u.memory.uses = 1;
    object->u.memory.kind = kind;
    object->u.memory.size_bytes = reply->has_size_bytes ? reply->size_bytes : size_bytes;
    object->u.memory.shm.fd = -1;
    return object;
}

int attnd_memory_create(struct attnd_session *session, uint64_t size_bytes, uint32_t *memory,
                        void **address)
{
    if (memory == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MEMORY, 0, 0, 0);
    struct attnd_rpc call = ATTND_CALL_INIT;
    int rc;
    struct attnd_object *object = make(session, &call, size_bytes, ATTND_KIND_HOST, &rc);
    if (object == NULL)
        return rc;

    struct attnd_fault fault = {0};
    if (address) {
        rc = attnd_shm_map(call.fds[0], size_bytes, 1, &object->u.memory.shm, &fault);
        object->u.memory.shm.fd = -1; /* the call closes it; the mapping is enough */
    }
    uint32_t handle = object->handle;
    void *mapped = object->u.memory.shm.address;
    attnd_object_add(session, object);
    attnd_call_end(session, &call);
    if (rc < 0) {
        (void)attnd_memory_release(session, handle); /* the mapping's fault is the one to tell */
        return attnd_fault_keep(&fault);
    }
    *memory = handle;
    if (address)
        *address = mapped;
    return 0;
}

int attnd_memory_create_device(struct attnd_session *session, uint64_t size_bytes, uint32_t *memory)
{
    if (memory == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MEMORY, 0, 0, 0);
    struct attnd_rpc call = ATTND_CALL_INIT;
    int rc;
    struct attnd_object *object = make(session, &call, size_bytes, ATTND_KIND_DEVICE, &rc);
    if (object == NULL)
        return rc;
    object->u.memory.shm.fd = attnd_call_take_fd(&call, 0);
    *memory = object->handle;
    attnd_object_add(session, object);
    attnd_call_end(session, &call);
    return 0;
}

int attnd_wake_memory(struct attnd_session *session, uint32_t *memory, struct attnd_wake **wake)
{
    struct attnd_object *object = calloc(1, sizeof(*object));
    if (object == NULL)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_MEMORY, 0, 0, 0);
    Attnd__WakeOpen message = ATTND__WAKE_OPEN__INIT;
    struct attnd_rpc call = ATTND_CALL(WAKE_OPEN, .wake_open = &message);
    call.timeout_ns = ATTND_CALL_LONG_TIMEOUT_NS;
    int rc = attnd_call(session, &call, ATTND__REPLY__RESULT_MEMORY);
    if (rc < 0) {
        free(object);
        return rc;
    }
    const Attnd__MemoryReply *reply = call.reply->memory;
    if (call.fd_count != 1 || reply->memory == 0 || reply->size_bytes < sizeof(struct attnd_wake)) {
        free(object);
        return attnd_call_broken(session, &call);
    }
    struct attnd_fault fault = {0};
    object->kind = ATTND_OBJECT_MEMORY;
    object->handle = *memory = reply->memory;
    object->u.memory.uses = 1;
    object->u.memory.kind = ATTND_KIND_HOST;
    object->u.memory.size_bytes = reply->size_bytes;
    rc = attnd_shm_map(call.fds[0], reply->size_bytes, 1, &object->u.memory.shm, &fault);
    object->u.memory.shm.fd = -1; /* the call closes it; the mapping is enough */
    *wake = object->u.memory.shm.address;
    attnd_object_add(session, object);
    attnd_call_end(session, &call);
    if (rc < 0) {
        (void)attnd_memory_release(session, *memory);
        return attnd_fault_keep(&fault);
    }
    return 0;
}

int attnd_memory_info(struct attnd_session *session, uint32_t memory,
                      struct attnd_memory_info *info)
{
    int rc = attnd_session_check_owner(session);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&session->objects_lock);
    const struct attnd_object *object = attnd_object_find(session, ATTND_OBJECT_MEMORY, memory);
    if (object) {
        const struct attnd_memory_info own = {.size = sizeof(own),
                                              .memory_kind = object->u.memory.kind,
                                              .size_bytes = object->u.memory.size_bytes,
                                              .address = object->u.memory.shm.address};
        rc = attnd_args_give(info, &own, sizeof(own));
    } else {
        rc = attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_MEMORY, 0, memory, 0);
    }
    pthread_mutex_unlock(&session->objects_lock);
    return rc;
}

int attnd_memory_fd(struct attnd_session *session, uint32_t memory)
{
    int rc = attnd_session_check_owner(session);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&session->objects_lock);
    const struct attnd_object *object = attnd_object_find(session, ATTND_OBJECT_MEMORY, memory);
    if (object == NULL) {
        rc = attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_MEMORY, 0, memory, 0);
    } else if (object->u.memory.shm.fd < 0) {
        rc = attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND, 0, object->u.memory.kind,
                               ATTND_KIND_DEVICE);
    } else {
        rc = fcntl(object->u.memory.shm.fd, F_DUPFD_CLOEXEC, 0);
        if (rc < 0)
            rc = attnd_fault_raise(-ATTND_E_SYSTEM, ATTND_F_MEMORY, 0, errno, 0);
    }
    pthread_mutex_unlock(&session->objects_lock);
    return rc;
}

void *attnd_memory_address(const struct attnd_session *session, uint32_t memory)
{
    if (attnd_session_check_owner(session) < 0)
        return NULL;
    /* The lock is no part of what the caller sees as constant. */
    pthread_mutex_t *lock = (pthread_mutex_t *)&session->objects_lock;
    pthread_mutex_lock(lock);
    const struct attnd_object *object = attnd_object_find(session, ATTND_OBJECT_MEMORY, memory);
    void *address = object ? object->u.memory.shm.address : NULL;
    pthread_mutex_unlock(lock);
    return address;
}

int attnd_memory_release(struct attnd_session *session, uint32_t memory)
{
    Attnd__MemoryRelease message = ATTND__MEMORY_RELEASE__INIT;
    message.memory = memory;
    struct attnd_rpc call = ATTND_CALL(MEMORY_RELEASE, .memory_release = &message);
    call.timeout_ns = ATTND_CALL_LONG_TIMEOUT_NS;
    return attnd_object_release(session, &call, ATTND_OBJECT_MEMORY, memory);
}
