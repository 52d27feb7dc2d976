/*
 * lane.h - queued operations take their steps, one lane at a time.
 */
#ifndef ATTND_SERVICE_SCHED_LANE_H
#define ATTND_SERVICE_SCHED_LANE_H

#include <stdint.h>

struct attnd_lane;
struct attnd_plan_change;
struct attnd_sched_op;
struct attnd_scheduler;
struct attnd_work;

/** attnd_lane_push() - at the tail. Its lengths are pinned if no set or advance is before it. */
void attnd_lane_push(struct attnd_lane *lane, struct attnd_sched_op *op);
/** attnd_lane_pop() - take the head off; nothing of it is under way. Behind a set or an advance,
 * lengths of what follows are pinned up to the next. */
struct attnd_sched_op *attnd_lane_pop(struct attnd_lane *lane);
/** attnd_lane_unlist() - out of the line it stands in, if it does; IDLE then. */
void attnd_lane_unlist(struct attnd_lane *lane);
/** attnd_lane_remove() - take a queued (not dispatched) operation out, wherever it stands. */
void attnd_lane_remove(struct attnd_lane *lane, struct attnd_sched_op *op);
/** attnd_lane_users() - operations of other lanes on the plan of @op that keep the lengths which it
 * has now: those with no set or advance in front of them. */
uint32_t attnd_lane_users(const struct attnd_sched_op *op);
/** attnd_lane_go() - give turns until the lane is empty, waits, or the worker has its head; or the
 * piece is over: then it is ready, and goes on by turns. */
void attnd_lane_go(struct attnd_lane *lane);
/** attnd_lane_ready_go() - the item of lanes that are ready. */
int attnd_lane_ready_go(struct attnd_work *work);
/** attnd_lane_retry_go() - the item of blocked lanes. */
int attnd_lane_retry_go(struct attnd_work *work);
/** attnd_lane_line_go() - the item of a long line for run slots and scratch. */
int attnd_lane_line_go(struct attnd_work *work);
/** attnd_lane_acked() - the event acked of prepared runs: the lane of the change goes on. */
void attnd_lane_acked(struct attnd_plan_change *change, uint32_t kind);
/** attnd_lane_retry() - lanes that wait take a step again, in order, as far as it goes. */
void attnd_lane_retry(struct attnd_scheduler *scheduler);

/** attnd_lane_let_plan_go() - of a closing session: a plan that its head has held must be let go,
 * or a plan that comes to lie there will never run. Return: 1 it was sent the PUBLISH; 0 nothing is
 * held. */
int attnd_lane_let_plan_go(struct attnd_lane *lane);
/** attnd_lane_planned() - the thread is done with the head, or will not begin: the lane goes on. */
void attnd_lane_planned(struct attnd_sched_op *op);

#endif
