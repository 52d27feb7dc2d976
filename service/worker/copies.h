/*
 * copies.h - the worker's answers to COPY: pages between pools and host memory, and from pools of
 * other services, beside the runs.
 */
#ifndef ATTND_SERVICE_WORKER_COPIES_H
#define ATTND_SERVICE_WORKER_COPIES_H

#include "persistent/backend.h"
#include "service/supervise/worker_abi.h"

#include <pthread.h>

/* More the daemon does not ask for at a time, in one way. */
#define ATTND_WORKER_COPIES_MAX 8u

struct attnd_worker_copies;

/* A thread, and what stands in line for it: of one way. */
struct attnd_worker_copier {
    struct attnd_worker_copies *copies;
    pthread_t thread;
    struct attnd_worker_message jobs[ATTND_WORKER_COPIES_MAX]; /* circular */
    uint32_t begin, count;
    int started;
};

/* The fields down to `answer` are the caller's to fill before start(). */
struct attnd_worker_copies {
    const struct attnd_backend_ops *ops;
    struct attnd_backend *backend;
    /* Called by all threads, also at once. */
    void (*answer)(void *context, const struct attnd_worker_message *message);
    void *context;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    int leave;
    struct attnd_worker_copier copier[ATTND_COPY_WAYS];
};

/** attnd_worker_copies_start() - Return: 0 or -ATTND_E_SYSTEM. */
int attnd_worker_copies_start(struct attnd_worker_copies *copies);

/** attnd_worker_copies_serve() - a COPY of the daemon. One that is too many is answered
 * -ATTND_E_FULL. Threads: one. Never blocks for a copy. */
void attnd_worker_copies_serve(struct attnd_worker_copies *copies,
                               const struct attnd_worker_message *request);

/** attnd_worker_copies_stop() - ends what is being copied; the rest stays undone and unanswered.
 * Harmless if it was never started. */
void attnd_worker_copies_stop(struct attnd_worker_copies *copies);

#endif
