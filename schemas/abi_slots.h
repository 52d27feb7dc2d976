/*
 * abi_slots.h - the part of abi.h that operations differ in: what a submission slot says of each,
 * and what of the prefix tree's lies in the arena and in the completion segment. Included by abi.h.
 */
#ifndef ATTND_SCHEMAS_ABI_SLOTS_H
#define ATTND_SCHEMAS_ABI_SLOTS_H

#include "schemas/abi_assert.h"

#include <stdint.h>

#define ATTND_RESULT_WORDS 32768u         /* of a completion segment */
#define ATTND_PREFIX_PAGES_MAX 16384u     /* of one prefix operation */
#define ATTND_PREFIX_BLOCKS_MAX 4096u     /* and its blocks: others wait meanwhile */
#define ATTND_PREFIX_SPACES_MAX 64u       /* namespaces of a pool's prefix tree */
#define ATTND_PREFIX_BLOCK_PAGES_MAX 256u /* pages of one block */

/* A place in registered memory; memory 0 means none. refusals, here and below: completions of sets
 * that were refused which the client has taken when it submits this. So the daemon knows what was
 * meant for a batch that it has refused since. */
struct attnd_sqe_run {
    uint32_t layer;
    uint32_t timeout_us; /* from submission; 0: none */
    uint32_t q_memory, o_memory;
    uint64_t q_offset_bytes, o_offset_bytes, lse_offset_bytes;
    uint32_t lse_memory;
    uint32_t refusals;
};
ATTND_ASSERT_SIZE(attnd_sqe_run, 48);
ATTND_ASSERT_AT(attnd_sqe_run, q_offset_bytes, 16);
ATTND_ASSERT_AT(attnd_sqe_run, lse_memory, 40);

struct attnd_sqe_append {
    uint32_t layer;
    uint32_t timeout_us;
    uint32_t k_memory, v_memory;
    uint64_t k_offset_bytes, v_offset_bytes;
    uint32_t refusals;
    uint32_t zero0;
    uint64_t zero;
};
ATTND_ASSERT_SIZE(attnd_sqe_append, 48);
ATTND_ASSERT_AT(attnd_sqe_append, k_offset_bytes, 16);

/* A packed Attnd.Batch (attnd.proto) in the arena, which names its arrays by arena offset. */
struct attnd_sqe_set {
    uint64_t header_offset_bytes;
    uint32_t header_bytes;
    uint32_t zero0;
    uint64_t zero[4];
};
ATTND_ASSERT_SIZE(attnd_sqe_set, 48);
ATTND_ASSERT_AT(attnd_sqe_set, zero, 16);

/* In the arena: int32 kv_len[entries]; with pages > 0 also int32 page_indptr[entries + 1] and
 * int32 page_indices[pages], the pages appended to each entry. Entries of all levels, level 0
 * first. */
struct attnd_sqe_advance {
    uint64_t arrays_offset_bytes;
    uint32_t entries;
    uint32_t pages;
    uint32_t refusals;
    uint32_t zero0;
    uint64_t zero[3];
};
ATTND_ASSERT_SIZE(attnd_sqe_advance, 48);
ATTND_ASSERT_AT(attnd_sqe_advance, zero, 24);

struct attnd_sqe_cancel {
    uint64_t target_user_data;
    uint64_t zero[5];
};
ATTND_ASSERT_SIZE(attnd_sqe_cancel, 48);

/* Names a block of a prompt and all before it: the engine's hash, chained. */
struct attnd_block_key {
    uint64_t word[2];
};
ATTND_ASSERT_SIZE(attnd_block_key, 16);

#define ATTND_PREFIX_PARENT 0x1u /* the first key in the arena is the parent of the others */
#define ATTND_PREFIX_WAIT 0x2u   /* match: wait while somebody computes the next block */
#define ATTND_PREFIX_FLAGS 0x3u

/* In the arena, 8-byte aligned: with ATTND_PREFIX_PARENT a key, then key[blocks]; of a publish then
 * int32 page[pages]. */
struct attnd_sqe_prefix {
    uint64_t arrays_offset_bytes;
    uint32_t blocks;
    uint32_t pages;      /* match and publish: blocks times the namespace's block_pages; else 0 */
    uint32_t flags;      /* ATTND_PREFIX_* */
    uint32_t timeout_us; /* of a match that waits; 0: none */
    uint64_t zero[3];
};
ATTND_ASSERT_SIZE(attnd_sqe_prefix, 48);
ATTND_ASSERT_AT(attnd_sqe_prefix, flags, 16);

#define ATTND_TICKET_BYTES 16u
#define ATTND_TICKET_PAGES_MAX 16384u /* as of every call */

/* Names a pool where others name a plan. */
struct attnd_sqe_claim {
    uint8_t ticket[ATTND_TICKET_BYTES];
    uint32_t pages_max;
    uint32_t timeout_us; /* from submission; 0: none */
    uint32_t flags;      /* ATTND_PAGES_EARLY */
    uint32_t zero0;
    uint64_t zero[2];
};
ATTND_ASSERT_SIZE(attnd_sqe_claim, 48);
ATTND_ASSERT_AT(attnd_sqe_claim, zero, 32);

#define ATTND_PAGES_EARLY 0x1u /* completes when the pages are leased; their bytes arrive later */

/* Of a ticket of this session's that was offered by layer. */
struct attnd_sqe_ready {
    uint8_t ticket[ATTND_TICKET_BYTES];
    uint32_t layers; /* that are whole, from the first on */
    uint32_t zero0;
    uint64_t zero[3];
};
ATTND_ASSERT_SIZE(attnd_sqe_ready, 48);
ATTND_ASSERT_AT(attnd_sqe_ready, zero, 24);

/* In the arena, 8-byte aligned: struct attnd_merge_place[ATTND_MERGE_PLACES]. */
struct attnd_sqe_merge {
    uint64_t places_offset_bytes;
    uint32_t timeout_us; /* from submission; 0: none */
    uint32_t refusals;
    uint64_t zero[4];
};
ATTND_ASSERT_SIZE(attnd_sqe_merge, 48);
ATTND_ASSERT_AT(attnd_sqe_merge, zero, 16);

/* As a client names it: memory by handle. */
struct attnd_merge_place {
    uint32_t memory; /* 0: absent */
    uint32_t zero;
    uint64_t offset_bytes;
};
ATTND_ASSERT_SIZE(attnd_merge_place, 16);

/* Two results, and where the result of both goes; rows and heads as far apart as the plan says of o
 * and lse. */
enum attnd_merge_at {
    ATTND_MERGE_O_A,
    ATTND_MERGE_LSE_A,
    ATTND_MERGE_O_B,
    ATTND_MERGE_LSE_B,
    ATTND_MERGE_O,
    ATTND_MERGE_LSE,
    ATTND_MERGE_PLACES
};

/* Why a prefix operation went no further. */
enum attnd_prefix_stop {
    ATTND_PREFIX_STOP_END = 0,       /* it was the end of the keys */
    ATTND_PREFIX_STOP_MISSING = 1,   /* the next block, or the parent, is not published */
    ATTND_PREFIX_STOP_CLAIMED = 2,   /* somebody computes the next block */
    ATTND_PREFIX_STOP_PUBLISHED = 3, /* claim: the next block is published */
    ATTND_PREFIX_STOP_FULL = 4,      /* no room: budgets, or a page has all its leases */
    ATTND_PREFIX_STOP_ABANDONED = 5  /* a match waited, and the next block's claim was given up */
};

#endif
