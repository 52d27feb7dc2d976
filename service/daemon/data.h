/*
 * data.h - the data plane as one thing: queue, worker, prepared runs, scheduler.
 */
#ifndef ATTND_SERVICE_DAEMON_DATA_H
#define ATTND_SERVICE_DAEMON_DATA_H

#include "service/service.h"

/** attnd_data_new() - everything but a worker, with the events of each wired to the others. The
 * service's loop is there. After a failure attnd_data_free() undoes what was made.
 * Return: 0; -ATTND_E_SYSTEM; -ATTND_E_NO_MEMORY. */
int attnd_data_new(struct attnd_service *service, struct attnd_fault *fault);

/** attnd_data_start() - the same, and the first worker; blocks until it is RUNNING, at most 10 s.
 * Termination signals are blocked in the daemon: the worker's process unblocks them. */
int attnd_data_start(struct attnd_service *service, struct attnd_fault *fault);

/** attnd_data_stop() - drain runs in flight (their completions are posted), park the worker, reap
 * it, unwatch everything; bounded by @timeout_ns. The loop no longer runs. What the service points
 * to stays valid: attnd_sched_close(), attnd_planobj_destroy(), attnd_heap_free() and
 * attnd_supervisor_unmap() are still called, and then end at once. */
void attnd_data_stop(struct attnd_service *service, uint64_t timeout_ns);

/** attnd_data_free() - last: the loop and every session are gone. NULL pointers are fine. */
void attnd_data_free(struct attnd_service *service);

#endif
