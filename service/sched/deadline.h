/*
 * deadline.h - cancel and timeouts.
 */
#ifndef ATTND_SERVICE_SCHED_DEADLINE_H
#define ATTND_SERVICE_SCHED_DEADLINE_H

#include <stdint.h>

struct attnd_client_lanes;
struct attnd_scheduler;
struct attnd_work;

/** attnd_deadline_start() - the timer. Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_deadline_start(struct attnd_scheduler *scheduler);
/** attnd_deadline_cancel() - end operations of @session that carry @user_data, as many as the
 * piece has time for. Return: 1 all of them are ended; 0 some may be left. */
int attnd_deadline_cancel(struct attnd_client_lanes *session, uint64_t user_data);
/** attnd_deadline_expire_go() - the item of deadlines that have passed. */
int attnd_deadline_expire_go(struct attnd_work *work);

#endif
