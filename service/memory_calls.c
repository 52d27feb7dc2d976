/*
 * memory_calls.c - MemoryRegister and MemoryRelease.
 *
 * Without a descriptor the daemon makes the memory and counts it against the session's budget; with
 * one the engine brings its own. An engine's memfd must be sealed against shrinking, or the worker
 * could be made to fault, and must be writable, because outputs go there.
 */
#include "service/control.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

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

static int import(struct attnd_call *call, struct attnd_memory **memory)
{
    const Attnd__MemoryRegister *request = call->request->memory_register;
    uint64_t size_bytes = request->size_bytes;

    if (request->memory_kind != ATTND__MEMORY_KIND__MEMORY_HOST)
        return attnd_fault_set(call->fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND, 0,
                               (int64_t)request->memory_kind, ATTND_KIND_HOST);
    int rc = attnd_shm_check_import(call->fds[0], size_bytes, call->fault);
    if (rc == 0)
        rc = check_writable(call->fds[0], call->fault);
    if (rc == 0)
        rc = attnd_memory_new(call->service, ATTND_KIND_HOST, call->fds[0], size_bytes, NULL,
                              memory, call->fault);
    if (rc == 0)
        call->fds[0] = -1;
    return rc;
}

int attnd_call_memory_register(struct attnd_call *call)
{
    const Attnd__MemoryRegister *request = call->request->memory_register;
    Attnd__MemoryReply *reply = attnd_call_alloc(call, sizeof(*reply));
    struct attnd_memory *memory = NULL;

    if (!reply)
        return attnd_fault_set(call->fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    if (call->fds_count > 1)
        return attnd_fault_set(call->fault, -ATTND_E_INVALID, ATTND_F_COUNT, 0, call->fds_count, 1);
    int rc = call->fds_count ? import(call, &memory)
                             : attnd_memory_make(call->client, (uint32_t)request->memory_kind,
                                                 request->size_bytes, &memory, call->fault);
    if (rc != 0 || !memory)
        return rc;

    attnd__memory_reply__init(reply);
    reply->has_size_bytes = 1;
    reply->size_bytes = memory->size_bytes;
    rc = attnd_memory_bind(call->client, memory, &reply->memory, call->fault);
    if (rc < 0) {
        attnd_memory_unref(call->service, memory);
        return rc;
    }
    if (memory->payer)
        call->reply_fds[call->reply_fds_count++] = memory->fd;
    call->reply->memory = reply;
    call->reply->result_case = ATTND__REPLY__RESULT_MEMORY;
    return 0;
}

int attnd_call_memory_release(struct attnd_call *call)
{
    uint32_t handle = call->request->memory_release->memory;
    const struct attnd_memory *memory = attnd_client_memory(call->client, handle);

    if (!memory)
        return attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_MEMORY, 0, handle, 0);
    /* Beyond the handle: pools that lie in it, operations in flight that name it. */
    if (memory->refs > 1)
        return attnd_fault_set(call->fault, -ATTND_E_BUSY, ATTND_F_MEMORY, 0, handle, 0);
    attnd_memory_unbind(call->client, handle);
    return 0;
}
