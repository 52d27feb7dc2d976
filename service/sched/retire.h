/*
 * retire.h - the worker is done with a run, or gone.
 */
#ifndef ATTND_SERVICE_SCHED_RETIRE_H
#define ATTND_SERVICE_SCHED_RETIRE_H

struct attnd_scheduler;
struct attnd_work;

/** attnd_retire_sweep() - take what the worker retired. Return: slots consumed. */
int attnd_retire_sweep(struct attnd_scheduler *scheduler);
/** attnd_retire_lost_go() - the item of lanes whose head a worker took with it. */
int attnd_retire_lost_go(struct attnd_work *work);

#endif
