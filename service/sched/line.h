/*
 * line.h - the line for run slots and scratch.
 */
#ifndef ATTND_SERVICE_SCHED_LINE_H
#define ATTND_SERVICE_SCHED_LINE_H

struct attnd_client_lanes;
struct attnd_lane;
struct attnd_scheduler;

/** attnd_line_slot() - may the session take a run slot now? */
int attnd_line_slot(const struct attnd_client_lanes *session);
/** attnd_line_count() - the worker has @more runs of it, 1 or -1. */
void attnd_line_count(struct attnd_client_lanes *session, int more);
/** attnd_line_next() - the lane that is next in the line; NULL: none. */
struct attnd_lane *attnd_line_next(const struct attnd_scheduler *scheduler);
/** attnd_line_is_before() - 1: a run that comes now has others before it. */
int attnd_line_is_before(const struct attnd_client_lanes *session);

#endif
