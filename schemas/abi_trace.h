/*
 * abi_trace.h - the part of abi.h that a timeline is made of: what was executed, where and when.
 * Included by abi.h.
 */
#ifndef ATTND_SCHEMAS_ABI_TRACE_H
#define ATTND_SCHEMAS_ABI_TRACE_H

#include "schemas/abi_assert.h"

#include <stdint.h>

#define ATTND_TRACE_RECORDS 65536u /* a power of two; the oldest is written over */

enum attnd_trace_kind {
    ATTND_TRACE_COMPUTE = 0, /* as enum attnd_tile_class */
    ATTND_TRACE_MEMORY = 1,
    ATTND_TRACE_APPEND = 2,
    ATTND_TRACE_MERGE = 3
};

/* Queue segment, before its records. Written by the worker. */
struct attnd_trace_head {
    uint64_t next;   /* records that were begun: record n lies at n % ATTND_TRACE_RECORDS */
    uint32_t groups; /* consumer groups of a tile worker, each with a track; 0: 1 */
    uint32_t zero0;
    uint64_t zero[6];
};
ATTND_ASSERT_SIZE(attnd_trace_head, 64);

/* An item, or neighbouring ones that were executed as one: KV heads of a tile. Its last word, with
 * the number, is written last: then the others are there. */
struct attnd_trace_record {
    uint64_t begin_ns; /* CLOCK_MONOTONIC */
    uint32_t lasted_ns;
    uint32_t session;
    uint32_t item;  /* of the run: the first; ATTEND: tile * heads_kv + KV head */
    uint16_t track; /* tile worker * groups + consumer group */
    uint8_t kind;   /* enum attnd_trace_kind */
    uint8_t zero0;
    uint16_t layer;
    uint16_t count;  /* items */
    uint32_t number; /* of the record, and one: the low bits; 0: it is being written */
};
ATTND_ASSERT_SIZE(attnd_trace_record, 32);
ATTND_ASSERT_AT(attnd_trace_record, item, 16);
ATTND_ASSERT_AT(attnd_trace_record, number, 28);

#endif
