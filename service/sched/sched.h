/*
 * sched.h - the scheduler: everything between a submission slot and its completion.
 *
 * This is what the room offers. Everything belongs to the loop's thread. Nothing on the way of a
 * run allocates or makes a system call while the other side is awake.
 */
#ifndef ATTND_SERVICE_SCHED_SCHED_H
#define ATTND_SERVICE_SCHED_SCHED_H

#include "service/objects/client.h"
#include "service/sched/events.h"
#include "service/supervise/maps.h"

/** attnd_sched_new() - the scheduler of @service, whose queue, supervisor and prepared runs are
 * there; @events is copied. Return: 0 or -ATTND_E_NO_MEMORY. */
int attnd_sched_new(struct attnd_service *service, const struct attnd_maps *maps,
                    const struct attnd_sched_events *events, struct attnd_scheduler **out);
void attnd_sched_free(struct attnd_scheduler *scheduler);

/* ---- the worker comes and goes ---- */

/** attnd_sched_resume() - the worker is RUNNING with @scratch_bytes of scratch: dispatch again.
 * Return: 0 or -ATTND_E_NO_MEMORY. */
int attnd_sched_resume(struct attnd_scheduler *scheduler, uint64_t scratch_bytes);
/** attnd_sched_pause() - dispatch nothing from now on; runs wait in their lanes. */
void attnd_sched_pause(struct attnd_scheduler *scheduler);
/** attnd_sched_retry() - what waits for memory may go on: lanes take steps again, and flush. */
void attnd_sched_retry(struct attnd_scheduler *scheduler);
/** attnd_sched_arrived() - the same of layers that have arrived, from within anything: the sweep
 * flushes. */
void attnd_sched_arrived(struct attnd_scheduler *scheduler);
/** attnd_retire_lost() - the worker is gone for good: what it had is answered
 * -ATTND_E_WORKER_RESTARTED, and so is what is queued behind. Pauses the scheduler. */
void attnd_retire_lost(struct attnd_scheduler *scheduler);
/** attnd_sched_drain() - let runs that the worker has come to their end, until @deadline_ns; what
 * is queued stays queued. The loop does not run. */
void attnd_sched_drain(struct attnd_scheduler *scheduler, uint64_t deadline_ns);

/** attnd_deadline_stop() - no timer of the scheduler's is in the loop any more. */
void attnd_deadline_stop(struct attnd_scheduler *scheduler);

/* ---- sessions ---- */

/** attnd_sched_open()/close() - a session's lanes. close: queued operations are dropped, dispatched
 * ones cancelled and awaited, then the event drained follows (possibly at once). */
int attnd_sched_open(struct attnd_client *client, struct attnd_fault *fault);
void attnd_sched_close(struct attnd_client *client);

/** attnd_sched_caught_up() - sweep; is an open session's call next? A call comes after
 * everything that was submitted before it, unless the completion ring has no room for that; but one
 * sweep takes only so much of a session. The sweep may end the client.
 * Return: 1 serve it, 0 ask again in the loop's next turn. */
int attnd_sched_caught_up(struct attnd_client *client);

struct attnd_tree;
/** attnd_sched_wake() - claims of the tree have ended: matches that waited for them go on. */
void attnd_sched_wake(struct attnd_tree *tree);
/** attnd_claim_fits(), attnd_claim_ended() - the events of peers: of the operation that @context
 * is. */
int attnd_claim_fits(void *context, uint32_t count);
void attnd_claim_ended(void *context, const int32_t *pages, uint32_t count,
                       const struct attnd_fault *fault);
/** attnd_sched_counts() - runs that the worker has, and lanes whose head waits for something. */
void attnd_sched_counts(const struct attnd_scheduler *scheduler, uint32_t *runs, uint32_t *waiting);
/** attnd_sched_oldest_ns() - CLOCK_MONOTONIC when the oldest operation in flight of a
 * session was taken out of its ring; 0: none is. */
uint64_t attnd_sched_oldest_ns(const struct attnd_client *client);

/* ---- struct attnd_loop_hooks; the context is the service ---- */

int attnd_sched_sweep(void *service);
void attnd_sched_asleep(void *service, int asleep);
int attnd_sched_expecting(void *service); /* 1: the worker has runs */

#endif
