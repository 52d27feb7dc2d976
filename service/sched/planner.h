/*
 * planner.h - a thread that fills large plans, so that nobody else waits for them.
 *
 * A job is worked on the thread and done with on the loop. The thread is made by the first job.
 */
#ifndef ATTND_SERVICE_SCHED_PLANNER_H
#define ATTND_SERVICE_SCHED_PLANNER_H

#include "ipc/loop.h"

struct attnd_planner;

/* Embedded in what it is about, which stays until done() was called. */
struct attnd_planner_job {
    struct attnd_planner_job *next;
    uint64_t *last; /* number of the last job of its session: the smallest is next */
    void (*work)(struct attnd_planner_job *job);             /* on the thread */
    void (*done)(struct attnd_planner_job *job, int worked); /* on the loop's */
};

/**
 * attnd_planner_new()
 * @idle: called on the loop's thread after some jobs are done
 * Return: 0; -ATTND_E_NO_MEMORY; -ATTND_E_SYSTEM no thread or descriptor.
 */
int attnd_planner_new(struct attnd_loop *loop, void (*idle)(void *context), void *context,
                      struct attnd_planner **out);

/** attnd_planner_submit() - have @job worked; filled except for next. Threads: the loop's. */
void attnd_planner_submit(struct attnd_planner *planner, struct attnd_planner_job *job);

/** attnd_planner_free() - wait for the job that is worked on, and be done with all others as they
 * are: worked 0. Threads: the loop's, which runs no more. NULL is fine. */
void attnd_planner_free(struct attnd_planner *planner);

#endif
