/*
 * memory.c - memory that both sides know by a number.
 *
 * The service makes it or the engine does; in both cases it is a memfd, and what travels is its
 * descriptor. The library maps only what the service made and the caller wants to see.
 */
#include "client/internal.h"

#include <stdlib.h>

/* Sends the registration; @expect_fds is what the reply must carry. */
static int register_memory(struct attnd_session *session, struct attnd_call *call,
                           uint64_t size_bytes, int expect_fds)
{
    Attnd__MemoryRegister message = ATTND__MEMORY_REGISTER__INIT;
    message.size_bytes = size_bytes;
    call->request.call_case = ATTND__REQUEST__CALL_MEMORY_REGISTER;
    call->request.memory_register = &message;
    int rc = attnd_call(session, call, ATTND__REPLY__RESULT_MEMORY);
    if (rc == 0 && (call->fd_count != expect_fds || call->reply->memory->memory == 0))
        return attnd_call_broken(session, call);
    return rc;
}

int attnd_memory_create(struct attnd_session *session, uint64_t size_bytes, uint32_t *memory,
                        void **address)
{
    if (memory == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MEMORY, 0, 0, 0);
    struct attnd_object *object = calloc(1, sizeof(*object));
    if (object == NULL)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_MEMORY, 0, 0, 0);
    struct attnd_call call = ATTND_CALL_INIT;
    int rc = register_memory(session, &call, size_bytes, 1);
    if (rc < 0) {
        free(object);
        return rc;
    }

    object->kind = ATTND_OBJECT_MEMORY;
    object->handle = call.reply->memory->memory;
    object->u.memory.uses = 1;
    object->u.memory.shm.fd = -1;
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

int attnd_memory_register(struct attnd_session *session, int fd, uint64_t size_bytes,
                          uint32_t *memory)
{
    if (memory == NULL || fd < 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MEMORY, 0, fd, 0);
    struct attnd_call call = ATTND_CALL_INIT;
    call.fd = fd;
    int rc = register_memory(session, &call, size_bytes, 0);
    if (rc < 0)
        return rc;
    *memory = call.reply->memory->memory;
    attnd_call_end(session, &call);
    return 0;
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
    struct attnd_call call = ATTND_CALL_INIT;
    call.request.call_case = ATTND__REQUEST__CALL_MEMORY_RELEASE;
    call.request.memory_release = &message;
    int rc = attnd_call(session, &call, ATTND__REPLY__RESULT__NOT_SET);
    if (rc < 0)
        return rc;
    attnd_object_drop(session, ATTND_OBJECT_MEMORY, memory);
    attnd_call_end(session, &call);
    return 0;
}
