/*
 * worker_abi.h - messages between daemon and worker on their SEQPACKET socketpair.
 *
 * Only what is not on the way of a run: memory that comes and goes, pages that are copied, and
 * whether the worker came up. The worker answers every MAP and UNMAP in order. End of file means
 * that the other one is gone.
 */
#ifndef ATTND_SERVICE_SUPERVISE_WORKER_ABI_H
#define ATTND_SERVICE_SUPERVISE_WORKER_ABI_H

#include "schemas/abi.h"

/* How the worker ends, told apart by its exit code. */
enum attnd_worker_exit {
    ATTND_WORKER_EXIT_PARKED = 0,
    ATTND_WORKER_EXIT_USAGE = 1,
    ATTND_WORKER_EXIT_NO_QUEUE = 2,
    ATTND_WORKER_EXIT_NO_BACKEND = 3,
    ATTND_WORKER_EXIT_DEVICE = 4, /* a CUDA error, or a dispatcher that gave up */
    ATTND_WORKER_EXIT_STUCK = 5   /* a tile that does not end */
};

enum attnd_worker_message_kind {
    ATTND_WORKER_READY = 1,  /* worker: RUNNING, queue->info is filled */
    ATTND_WORKER_FAILED = 2, /* worker: cannot start, or not go on; code, field, value, limit; it
                                exits */
    ATTND_WORKER_MAP = 3,    /* daemon: index, size, kind, handle, a descriptor where the kind has
                                one; answered with code, field, value, limit */
    ATTND_WORKER_UNMAP = 4,  /* daemon: index; answered */
    ATTND_WORKER_PARK = 5,   /* daemon: park; the answer is the state in the queue segment */
    ATTND_WORKER_COPY = 6    /* daemon: index, its own; size_bytes: where in the queue segment the
                                struct attnd_copy or attnd_bring lies; value: the way. Answered with
                                index and code, those of one way in order */
};

/* Ways that pages go, a thread of the worker each: somebody waits for the first, and nobody for the
 * second. */
enum attnd_copy_way {
    ATTND_COPY_IN,    /* struct attnd_copy, from host memory */
    ATTND_COPY_OUT,   /* struct attnd_copy, to host memory */
    ATTND_COPY_BRING, /* struct attnd_bring, from a pool of another service */
    ATTND_COPY_WAYS
};

struct attnd_worker_message {
    uint32_t kind;
    uint32_t index; /* in the memory table */
    uint64_t size_bytes;
    int32_t code;
    uint32_t field;
    int64_t value, limit;
    uint32_t memory_kind; /* enum attnd_memory_kind */
    uint32_t zero;
    uint8_t handle[ATTND_IPC_HANDLE_BYTES];
};
ATTND_ASSERT_SIZE(attnd_worker_message, 112);

/* Descriptors the worker inherits. */
#define ATTND_WORKER_FD_CONTROL 3
#define ATTND_WORKER_FD_QUEUE 4  /* of the queue segment everything before the heap: its own */
#define ATTND_WORKER_FD_HEAP 5   /* and the heap, which is behind it */
#define ATTND_WORKER_FD_RETIRE 6 /* eventfd, only where the daemon cannot sleep on futex words */

#endif
