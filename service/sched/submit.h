/*
 * submit.h - slots become operations.
 */
#ifndef ATTND_SERVICE_SCHED_SUBMIT_H
#define ATTND_SERVICE_SCHED_SUBMIT_H

struct attnd_client_lanes;
struct attnd_work;

/** attnd_submit_sweep() - consume what the session's ring holds and there is room for, until the
 * piece is over. Return: slots consumed. */
int attnd_submit_sweep(struct attnd_client_lanes *session);
/** attnd_submit_go() - the same, as the item of the ring. */
int attnd_submit_go(struct attnd_work *work);

#endif
