/*
 * trace.h - a worker tells what it executes, while somebody looks at it (attnctl trace).
 *
 * The daemon writes until when records are wanted, and the worker looks at that word once an item.
 * All threads write into one ring, in the worker's half of the queue segment. Nobody waits for the
 * reader: the oldest records are written over.
 */
#ifndef ATTND_PERSISTENT_TRACE_H
#define ATTND_PERSISTENT_TRACE_H

#include "schemas/abi.h"
#include "schemas/atomics.h"

/** attnd_trace_wanted() - 1: records of what ends @now_ns (CLOCK_MONOTONIC) are wanted. */
static inline int attnd_trace_wanted(const struct attnd_queue_head *head, uint64_t now_ns)
{
    return attnd_peek64(&head->trace_until_ns) > now_ns;
}

/**
 * attnd_trace_add() - one record
 * @record: copied; its number is filled in here
 *
 * Threads: any, also at once. Blocking: never. A record that is written over while a thread is in
 * the middle of it, a whole ring later, may be lost.
 */
void attnd_trace_add(struct attnd_queue_head *head, const struct attnd_trace_record *record);

#endif
