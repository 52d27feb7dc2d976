/*
 * memory.h - the worker's answers to MAP and UNMAP, on two threads.
 */
#ifndef ATTND_SERVICE_WORKER_MEMORY_H
#define ATTND_SERVICE_WORKER_MEMORY_H

#include "persistent/backend.h"
#include "service/supervise/worker_abi.h"
#include "service/worker/port.h"

#include <pthread.h>

/* Host memory from here on stands in line: it takes 30 ms. */
#define ATTND_WORKER_LARGE_BYTES (64u << 20)
/* Tests: what kills one that is to die of memory (--inject). */
#define ATTND_WORKER_DEADLY_BYTES (60u << 20)

/* An index is asked to come, and to go, before either is answered. */
#define ATTND_WORKER_JOBS_MAX (2 * ATTND_MEMORIES_MAX)

struct attnd_worker_job {
    struct attnd_worker_message request;
    int fd; /* -1: none */
};

/* The fields down to `answer` are the caller's to fill before start(). */
struct attnd_worker_memory {
    const struct attnd_backend_ops *ops;
    struct attnd_backend *backend;
    const struct attnd_worker_port *port;
    /* Called by either thread, also by both at once. */
    void (*answer)(void *context, const struct attnd_worker_message *message);
    void *context;
    int dies; /* tests: by a signal, of memory that large */

    uint8_t rests[ATTND_MEMORIES_MAX]; /* 1: it is let go at rest; one thread's */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint8_t goes[ATTND_MEMORIES_MAX];                    /* 1: it stands in line to go */
    struct attnd_worker_job jobs[ATTND_WORKER_JOBS_MAX]; /* circular */
    uint32_t begin, count;
    int busy, leave;
};

/** attnd_worker_memory_start() - Return: 0 or -ATTND_E_SYSTEM. */
int attnd_worker_memory_start(struct attnd_worker_memory *memory);

/** attnd_worker_memory_serve() - a MAP or UNMAP of the daemon
 * @fd: of a MAP, or -1; taken over
 *
 * Threads: one. Blocking: for what the driver brings or lets go at once, until that is done and
 * answered; for the rest not at all. */
void attnd_worker_memory_serve(struct attnd_worker_memory *memory,
                               const struct attnd_worker_message *request, int fd);

/** attnd_worker_memory_stop() - what is not done stays undone. Return: 1 the thread is gone; 0 it
 * is in a call that may take long, and the backend may not be destroyed. */
int attnd_worker_memory_stop(struct attnd_worker_memory *memory);

#endif
