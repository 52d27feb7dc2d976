/*
 * trace.h - the daemon's end of the worker's timeline (persistent/trace.h).
 */
#ifndef ATTND_SERVICE_SUPERVISE_TRACE_H
#define ATTND_SERVICE_SUPERVISE_TRACE_H

#include "service/supervise/queue.h"

/* Without a question for so long, nothing is recorded any more, if nobody says less. */
#define ATTND_TRACE_PATIENCE_MS ATTND_TRACE_AHEAD_MS

/** attnd_trace_workers() - rings that there are: tile workers; 0: too many for that. */
uint32_t attnd_trace_workers(const struct attnd_queue *queue);

/**
 * attnd_trace_watch() - records are wanted from now on, for @patience_ms, or longer if somebody
 * else has asked
 * @next: [attnd_trace_workers()] receives the number of each ring's next record; NULL: not wanted
 */
void attnd_trace_watch(struct attnd_queue *queue, uint64_t now_ns, uint32_t patience_ms,
                       uint32_t *next);

/**
 * attnd_trace_read() - records from these numbers on
 * @next:    [attnd_trace_workers()] of the ones that are wanted; receives where to go on
 * @records: [@count]; each ring has its share of them
 * @lost:    receives how many were written over before they were read
 *
 * The records are the worker's word. Return: how many there are.
 */
uint32_t attnd_trace_read(const struct attnd_queue *queue, uint32_t *next,
                          struct attnd_trace_record *records, uint32_t count, uint64_t *lost);

#endif
