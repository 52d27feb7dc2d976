/*
 * complete.h - operations end.
 */
#ifndef ATTND_SERVICE_SCHED_COMPLETE_H
#define ATTND_SERVICE_SCHED_COMPLETE_H

#include <stdint.h>

struct attnd_client_lanes;
struct attnd_sched_op;
struct attnd_sqe;

/** attnd_complete() - post op->fault (code 0: success) and free the operation; it is in no lane. */
void attnd_complete(struct attnd_sched_op *op, uint64_t begin_ns, uint64_t end_ns);
/** attnd_lane_failed_append() - of an append of @op's lane that failed, and whose completion the
 * client has not read yet. Return: its code; 0: there is none. */
int attnd_lane_failed_append(const struct attnd_sched_op *op);
/** attnd_lanes_mark_dirty() - have the next flush look at the session. */
void attnd_lanes_mark_dirty(struct attnd_client_lanes *session);
/** attnd_lanes_break() - its indices are impossible: the next flush kills it. */
void attnd_lanes_break(struct attnd_client_lanes *session);
/** attnd_op_new() - an operation for a slot; its lane is the first until it is put in another. */
struct attnd_sched_op *attnd_op_new(struct attnd_client_lanes *session,
                                    const struct attnd_sqe *sqe);
/** attnd_op_free() - back to the session without a completion; it is in no lane. */
void attnd_op_free(struct attnd_sched_op *op);

#endif
