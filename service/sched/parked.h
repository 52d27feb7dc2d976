/*
 * parked.h - matches that wait, in no lane.
 */
#ifndef ATTND_SERVICE_SCHED_PARKED_H
#define ATTND_SERVICE_SCHED_PARKED_H

#include <stdint.h>

struct attnd_client_lanes;
struct attnd_prefix_view;
struct attnd_sched_op;
struct attnd_tree_result;
struct attnd_work;

/** attnd_prefix_park() - a match that found @result waits for the rest. Return: 1 it is parked;
 * 0 it does not wait: too many of the session do, or the claim has just ended. */
int attnd_prefix_park(struct attnd_sched_op *op, const struct attnd_prefix_view *view,
                      const struct attnd_tree_result *result);
/** attnd_prefix_cancel() - end those of @user_data. Return: how many. */
int attnd_prefix_cancel(struct attnd_client_lanes *session, uint64_t user_data);
/** attnd_prefix_expire() - end one whose deadline has passed. */
void attnd_prefix_expire(struct attnd_sched_op *op);
/** attnd_prefix_close() - the session is closing: an operation more, until nothing of it waits or
 * is claimed any more. Return: 1 there is more; 0. */
int attnd_prefix_close(struct attnd_client_lanes *session);
/** attnd_prefix_leave_go() - the item of matches that are over, and found too much. */
int attnd_prefix_leave_go(struct attnd_work *work);
/** attnd_prefix_wake_go() - the item of matches that are woken. */
int attnd_prefix_wake_go(struct attnd_work *work);

#endif
