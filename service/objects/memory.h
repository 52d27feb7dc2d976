/*
 * memory.h - memory objects: what pools lie in and runs name. The worker maps them, the daemon
 * never does.
 */
#ifndef ATTND_SERVICE_OBJECTS_MEMORY_H
#define ATTND_SERVICE_OBJECTS_MEMORY_H

#include "persistent/backend.h"
#include "service/objects/intervals.h"
#include "service/objects/quota.h"

struct attnd_memory {
    uint32_t index; /* in the worker's memory table */
    uint32_t refs;  /* session handles, pools and runs in flight */
    int fd;         /* -1: the kind has none, or unreferenced and the worker has not let go yet */
    struct attnd_payer payer;      /* that its entry of the table counts against, and its bytes */
    uint64_t charged_bytes;        /* those; 0: memory of the GPU, imported */
    uint32_t entries;              /* 1; 0: nobody's */
    uint32_t kind;                 /* enum attnd_memory_kind */
    uint32_t made;                 /* by the daemon; 0: imported */
    uint32_t pools;                /* that lie in it */
    struct attnd_interval *planes; /* of those: the bytes that belong to them */
    uint64_t size_bytes;
    uint8_t handle[ATTND_IPC_HANDLE_BYTES]; /* beside or instead of the descriptor, by kind */
    struct attnd_fault fault;               /* why the worker that lives cannot map it; code 0 */
    uint32_t release_session;               /* that waits until the worker let go; 0: none */
    uint64_t release_id;                    /* its request */
    struct attnd_memory_closing *closing;   /* memory.c; NULL: it is small */
};

/* Events of memory objects that others have asked to hear. */
struct attnd_memory_events {
    /* The worker has let go of what request @id of a session released. */
    void (*released)(struct attnd_service *service, uint32_t session, uint64_t id);
};

/**
 * attnd_memory_new() - an object known to the worker
 * @source: what stands for it, checked by the caller as far as that goes; its descriptor is taken
 *          over on success
 * @payer:  whose share of the table it counts against; NULL: nobody's
 * @counts: its bytes do too, after attnd_memory_afford()
 * Return: 0 with one reference, the caller's; -ATTND_E_NO_MEMORY the worker's table is full, or the
 * payer's share of it, or the daemon has no descriptor left for it (field memory).
 */
int attnd_memory_new(struct attnd_service *service, const struct attnd_memory_source *source,
                     struct attnd_client *payer, int counts, struct attnd_memory **out,
                     struct attnd_fault *fault);

/**
 * attnd_memory_afford() - do @size_bytes more of @kind fit in what is left of @payer's budget for
 * it and, of host memory, of its user's and of all sessions'? Return: 0; -ATTND_E_NO_MEMORY (field
 * size, limit what is left).
 */
int attnd_memory_afford(const struct attnd_client *payer, uint32_t kind, uint64_t size_bytes,
                        struct attnd_fault *fault);

/** attnd_memory_check_fd() - may a descriptor that was just made be kept for a session? Return: 0;
 * -ATTND_E_NO_MEMORY (field memory) it is one of those that connections and the next worker need.
 */
int attnd_memory_check_fd(int fd, struct attnd_fault *fault);

/** attnd_memory_wake() - the memory of the worker's wake word, which is made when it is first asked
 * for, by the daemon itself, and lives as long as the service. The worker is told when it has
 * mapped it. Return: 0 and *out, borrowed; -ATTND_E_UNSUPPORTED the worker's kernels do not leave;
 * as attnd_memory_new(). */
int attnd_memory_wake(struct attnd_service *service, struct attnd_memory **out,
                      struct attnd_fault *fault);

/** attnd_memory_make() - the same over memory of the daemon's making: a memfd sealed as a pool, or
 * memory of the GPU; @size_bytes is rounded up to pages of @kind.
 * @kind: as a client sent it. -ATTND_E_INVALID no such kind; -ATTND_E_UNSUPPORTED the worker's
 * backend has none of it. */
int attnd_memory_make(struct attnd_client *payer, uint32_t kind, uint64_t size_bytes,
                      struct attnd_memory **out, struct attnd_fault *fault);

/** attnd_memory_make_own() - host memory for the service itself, which counts it. Return: as
 * attnd_memory_make(). */
int attnd_memory_make_own(struct attnd_service *service, uint64_t size_bytes,
                          struct attnd_memory **out, struct attnd_fault *fault);

/** attnd_memory_ref()/unref() - count a use; the last unref unmaps it in the worker and closes it.
 */
void attnd_memory_ref(struct attnd_memory *memory);
void attnd_memory_unref(struct attnd_service *service, struct attnd_memory *memory);

/** attnd_memory_unmapped() - the supervisor's event: the worker let go of an index, which is free
 * from now on. */
void attnd_memory_unmapped(struct attnd_service *service, uint32_t index);

/** attnd_memory_bind() - a handle of the session, which takes over the caller's reference.
 * Return: 0, or -ATTND_E_NO_MEMORY (no handle free; the reference stays the caller's). */
int attnd_memory_bind(struct attnd_client *client, struct attnd_memory *memory, uint32_t *handle,
                      struct attnd_fault *fault);
void attnd_memory_unbind(struct attnd_client *client, uint32_t handle);

#endif
