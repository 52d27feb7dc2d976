/*
 * watch.h - the worker's threads that look whether all is well.
 */
#ifndef ATTND_SERVICE_WORKER_WATCH_H
#define ATTND_SERVICE_WORKER_WATCH_H

#include "persistent/backend.h"

#include <pthread.h>

struct attnd_worker_watch {
    const struct attnd_backend_ops *ops;
    struct attnd_backend *backend;
    struct attnd_queue_head *queue;
    int stop_once; /* tests: stop this process after its first retire */
    uint32_t leave;
    uint64_t looked_ns; /* when the backend was asked last */
    pthread_t beat, look;
};

/**
 * attnd_worker_watch_start() - count the heartbeat of @watch->queue and ask the backend, until
 * stopped All other fields are the caller's to set before. If the backend is not well the thread
 * logs why, sends it to the daemon, and ends the process with enum attnd_worker_exit. Return: 0;
 * -ATTND_E_SYSTEM.
 */
int attnd_worker_watch_start(struct attnd_worker_watch *watch);

/** attnd_worker_watch_stop() - blocks for as long as a look takes. Not before a start. */
void attnd_worker_watch_stop(struct attnd_worker_watch *watch);

#endif
