/*
 * trace.h - a worker tells what it executes, while somebody looks at it (attnctl trace).
 *
 * The daemon writes until when records are wanted, and the worker looks at that word once an item.
 * Each thread writes into a ring of its own, in the worker's half of the queue segment. Nobody
 * waits for the reader: the oldest records are written over.
 */
#ifndef ATTND_PERSISTENT_TRACE_H
#define ATTND_PERSISTENT_TRACE_H

#include "schemas/abi.h"
#include "schemas/atomics.h"

/** attnd_trace_wanted() - 1: records of what ends @now_ns (CLOCK_MONOTONIC) are wanted. */
static inline int attnd_trace_wanted(const struct attnd_queue_head *head, uint64_t now_ns)
{
    return attnd_trace_on(attnd_peek32(&head->trace_until_ms), (uint32_t)(now_ns / 1000000)) != 0;
}

/**
 * attnd_trace_add() - one record of tile worker @worker
 * @workers: as info.tile_workers has it, at most ATTND_TRACE_WORKERS_MAX
 * @record:  copied; its seal is made here
 *
 * Threads: one a worker. Blocking: never.
 */
void attnd_trace_add(struct attnd_queue_head *head, uint32_t worker, uint32_t workers,
                     const struct attnd_trace_record *record);

#endif
