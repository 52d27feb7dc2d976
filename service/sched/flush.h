/*
 * flush.h - what happens once at the end of every entry into the scheduler.
 */
#ifndef ATTND_SERVICE_SCHED_FLUSH_H
#define ATTND_SERVICE_SCHED_FLUSH_H

struct attnd_client_lanes;
struct attnd_scheduler;

/** attnd_sched_flush() - ring doorbells, notify clients, kill the broken: the end of every entry
 * into the scheduler. Sessions may be gone afterwards. */
void attnd_sched_flush(struct attnd_scheduler *scheduler);

/** attnd_lanes_drain() - if the worker has nothing of a closing session any more, it is over: the
 * session is freed, and the event drained follows. */
void attnd_lanes_drain(struct attnd_client_lanes *session);

#endif
