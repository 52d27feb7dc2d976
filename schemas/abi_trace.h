/*
 * abi_trace.h - the part of abi.h that a timeline is made of: what was executed, where and when.
 * Included by abi.h.
 *
 * The records lie in the worker's half of the queue segment, struct attnd_trace_head in front. Each
 * tile worker writes a ring of its own, so no two writers meet: worker w the ATTND_TRACE_RECORDS /
 * tile_workers records from w times as many on. Nothing orders a record's words behind a bus. So it
 * carries a sum over them, and with it the record is there or not.
 */
#ifndef ATTND_SCHEMAS_ABI_TRACE_H
#define ATTND_SCHEMAS_ABI_TRACE_H

#include "schemas/abi_assert.h"

#include <stdint.h>

#define ATTND_TRACE_RECORDS 131072u /* of all tile workers; the oldest are written over */
#define ATTND_TRACE_WORKERS_MAX 1024u
#define ATTND_TRACE_AHEAD_MS 2000u /* trace_until_ms is no further ahead, or long past */

enum attnd_trace_kind {
    ATTND_TRACE_COMPUTE = 0, /* as enum attnd_tile_class */
    ATTND_TRACE_MEMORY = 1,
    ATTND_TRACE_APPEND = 2,
    ATTND_TRACE_MERGE = 3
};

struct attnd_trace_head {
    uint64_t offset_ns; /* of the worker's clock: CLOCK_MONOTONIC is so much later, or around */
    uint64_t zero[7];
    uint32_t next[ATTND_TRACE_WORKERS_MAX]; /* records begun, free-running, by tile worker */
};
ATTND_ASSERT_SIZE(attnd_trace_head, 4160);
ATTND_ASSERT_AT(attnd_trace_head, next, 64);

/* An item, or neighbouring ones that were executed as one: KV heads of a tile. */
struct attnd_trace_record {
    uint64_t begin_ns; /* of the worker's clock; to readers of the daemon's, CLOCK_MONOTONIC */
    uint32_t end_low;  /* the lower half of when it ended */
    uint32_t session;
    uint32_t item;  /* of the run: the first */
    uint16_t track; /* where: thread, or SM */
    uint16_t count; /* items */
    uint16_t layer;
    uint8_t kind;  /* enum attnd_trace_kind */
    uint8_t group; /* consumer group of the SM */
    uint32_t seal; /* attnd_trace_seal() */
};
ATTND_ASSERT_SIZE(attnd_trace_record, 32);
ATTND_ASSERT_AT(attnd_trace_record, item, 16);
ATTND_ASSERT_AT(attnd_trace_record, seal, 28);

#define ATTND_TRACE_WORDS 7u /* of 32 bits, in front of the seal */

#ifdef __CUDACC__
#define ATTND_TRACE_FUNCTION static __host__ __device__ __forceinline__
#else
#define ATTND_TRACE_FUNCTION static inline
#endif

/** attnd_trace_on() - 1: records are wanted at @now_ms, of CLOCK_MONOTONIC, free-running.
 * @until_ms: 0: nobody ever asked. */
ATTND_TRACE_FUNCTION uint32_t attnd_trace_on(uint32_t until_ms, uint32_t now_ms)
{
    return until_ms != 0 && until_ms - now_ms - 1 < ATTND_TRACE_AHEAD_MS;
}

/* A seal is the sum of what its words add, each at its place, and the record's number: it tells a
 * record from an older one, and from parts of both. */
ATTND_TRACE_FUNCTION uint32_t attnd_trace_word(uint32_t word, uint32_t place)
{
    return word * (0x9e3779b1u + 2 * place);
}

ATTND_TRACE_FUNCTION uint32_t attnd_trace_number(uint32_t number)
{
    return (number + 1) * 0xc2b2ae35u;
}

/** attnd_trace_seal() - of the worker's record number @number. @words: [ATTND_TRACE_WORDS] */
static inline uint32_t attnd_trace_seal(const uint32_t *words, uint32_t number)
{
    uint32_t seal = attnd_trace_number(number);

    for (uint32_t i = 0; i < ATTND_TRACE_WORDS; i++)
        seal += attnd_trace_word(words[i], i);
    return seal;
}

/** attnd_trace_lasted_ns() - less than 4 s, and less than an item may last. */
static inline uint32_t attnd_trace_lasted_ns(const struct attnd_trace_record *record)
{
    return record->end_low - (uint32_t)record->begin_ns;
}

static inline uint64_t attnd_trace_end_ns(const struct attnd_trace_record *record)
{
    return record->begin_ns + attnd_trace_lasted_ns(record);
}

#endif
