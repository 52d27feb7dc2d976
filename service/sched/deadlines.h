/*
 * deadlines.h - operations that have a deadline, the earliest first.
 */
#ifndef ATTND_SERVICE_SCHED_DEADLINES_H
#define ATTND_SERVICE_SCHED_DEADLINES_H

#include <stdint.h>

struct attnd_deadlines;
struct attnd_sched_op;
struct attnd_scheduler;

/** attnd_deadline_arm() - have the timer fire at @when_ns or earlier. */
void attnd_deadline_arm(struct attnd_scheduler *scheduler, uint64_t when_ns);
/** attnd_deadlines_add() - @op, which has one. */
void attnd_deadlines_add(struct attnd_deadlines *deadlines, struct attnd_sched_op *op);
/** attnd_deadlines_remove() - harmless without one. */
void attnd_deadlines_remove(struct attnd_deadlines *deadlines, struct attnd_sched_op *op);
/** attnd_deadlines_first() - NULL: none. */
struct attnd_sched_op *attnd_deadlines_first(const struct attnd_deadlines *deadlines);

#endif
