/*
 * dispatch.h - the step of an append, a run or a merge.
 */
#ifndef ATTND_SERVICE_SCHED_DISPATCH_H
#define ATTND_SERVICE_SCHED_DISPATCH_H

#include "service/sched/op.h"

struct attnd_scheduler;

/**
 * attnd_dispatch_run() - the step of an append, a run or a merge
 * @in_line: 1: lanes that wait go first; 0: this is the first of them
 */
enum attnd_step attnd_dispatch_run(struct attnd_sched_op *op, int in_line);
/** attnd_dispatch_release() - give back what a run held. */
void attnd_dispatch_release(struct attnd_scheduler *scheduler, uint32_t run);

#endif
