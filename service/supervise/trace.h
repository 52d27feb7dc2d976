/*
 * trace.h - the daemon's end of the worker's timeline (persistent/trace.h).
 */
#ifndef ATTND_SERVICE_SUPERVISE_TRACE_H
#define ATTND_SERVICE_SUPERVISE_TRACE_H

#include "service/supervise/queue.h"

/* Without a question for so long, nothing is recorded any more. */
#define ATTND_TRACE_PATIENCE_NS 2000000000u

/** attnd_trace_watch() - records are wanted from now on, for ATTND_TRACE_PATIENCE_NS.
 * Return: the number of the next. */
uint64_t attnd_trace_watch(struct attnd_queue *queue, uint64_t now_ns);

/**
 * attnd_trace_read() - records from a number on
 * @next:    of the one that is wanted; receives where to go on. Beyond all that there are: the
 *           worker is another one since, and its first is meant.
 * @records: [@count]
 * @lost:    receives how many were written over before they were read, or were read in the middle
 *
 * What the records say is the worker's word. Return: how many there are.
 */
uint32_t attnd_trace_read(const struct attnd_queue *queue, uint64_t *next,
                          struct attnd_trace_record *records, uint32_t count, uint64_t *lost);

/** attnd_trace_groups() - tracks of a tile worker, at least 1. */
uint32_t attnd_trace_groups(const struct attnd_queue *queue);

#endif
