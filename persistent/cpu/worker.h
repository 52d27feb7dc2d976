/*
 * worker.h - threads that execute items, and make way in between.
 */
#ifndef ATTND_PERSISTENT_CPU_WORKER_H
#define ATTND_PERSISTENT_CPU_WORKER_H

#include "persistent/cpu/state.h"

/** attnd_cpu_worker_worked() - an item went on by @cost of the planner's units: now and then take
 * commands, and make way for a session that is behind. Threads: the worker's; blocks for that. */
static inline void attnd_cpu_worker_worked(struct attnd_cpu_worker *worker, uint64_t cost)
{
    worker->pace -= (int64_t)cost;
    if (worker->pace < 0)
        worker->pause(worker);
}

/** attnd_cpu_worker_init() - buffers of one worker. Return: 0, -ATTND_E_NO_MEMORY. */
int attnd_cpu_worker_init(struct attnd_cpu_worker *worker, struct attnd_backend *backend);
void attnd_cpu_worker_free(struct attnd_cpu_worker *worker);

/** attnd_cpu_worker_main() - a worker thread: returns when backend->stop is set. */
void *attnd_cpu_worker_main(void *worker);

/** attnd_cpu_workers_stop() - makes every worker thread return once its tile is done. */
void attnd_cpu_workers_stop(struct attnd_backend *backend);

#endif
