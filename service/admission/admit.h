/*
 * admit.h - bytes from shared memory -> a checked private copy, once.
 *
 * A client may change any byte of its arena at any time and lie in every field. So: copy the packed
 * header to private memory, unpack it there with a bounded allocator, copy every array it names,
 * and check only the copies, with arithmetic that cannot overflow. The result is safe to use.
 */
#ifndef ATTND_SERVICE_ADMISSION_ADMIT_H
#define ATTND_SERVICE_ADMISSION_ADMIT_H

#include "schemas/batch.h"
#include "schemas/errors.h"

#define ATTND_BATCH_HEADER_BYTES_MAX 4096u

/* Private memory for one batch: grows, is kept, is reused. Zero-initialise. */
struct attnd_staging {
    int32_t *words;
    uint64_t words_max;
    uint64_t words_limit; /* it does not grow beyond; 0: there is no limit */
};

void attnd_staging_free(struct attnd_staging *staging);

/**
 * attnd_admit_batch() - copy and check one batch
 * @arena, @arena_bytes: the client's arena as mapped here
 * @header_offset_bytes, @header_bytes: from the submission slot
 * @limits:  pool and plan the batch is for
 * @staging: receives the copies; @batch points into it until the next admission
 *
 * Output strides must follow one of two layouts, padded or not: heads inside rows, or rows inside
 * heads. Threads: one a staging. Allocates only when the staging must grow.
 * Return: 0; -ATTND_E_RANGE, -ATTND_E_INVALID, -ATTND_E_NO_SPACE, -ATTND_E_PROTOCOL (header does
 * not unpack, unknown fields), -ATTND_E_NO_MEMORY with field, index, value, limit in @fault. The
 * limit is the nearest value that would do. An index counts from the start of the array of its own
 * level; for q, o, lse, k, v index 0 is the row stride and 1 the head stride; for arena it is the
 * level.
 */
int attnd_admit_batch(const void *arena, uint64_t arena_bytes, uint64_t header_offset_bytes,
                      uint32_t header_bytes, const struct attnd_batch_limits *limits,
                      struct attnd_staging *staging, struct attnd_batch_view *batch,
                      struct attnd_fault *fault);

/* What is done with one array: copied, or checked when it is a copy. */
struct attnd_admit_step {
    uint8_t kind, level;
    uint16_t field;       /* of an indptr */
    int32_t *copy;        /* private */
    uint64_t from, count; /* bytes into the arena; elements, of an indptr one more */
    uint32_t total;       /* that an indptr ends at */
};
#define ATTND_ADMIT_STEPS_MAX (8u * ATTND_LEVELS_MAX + 3u)

/* An admission in parts, because a batch may be large. What it was begun with stays until it is
 * over. */
struct attnd_admission {
    const void *arena;
    uint64_t arena_bytes;
    struct attnd_batch_limits limits;
    struct attnd_batch_view *batch; /* NULL: it is an advance */
    uint32_t outside;               /* bit l: a page id of level l is not in the pool */
    uint32_t steps, step;           /* how many there are, and which is next */
    uint64_t at;                    /* elements of it that are done */
    struct attnd_admit_step list[ATTND_ADMIT_STEPS_MAX];
};

/** attnd_admit_batch_begin(), attnd_admit_advance_begin() - the header and the room for copies; the
 * rest as for attnd_admit_batch() and attnd_admit_advance(). Return: 0: go on; < 0. */
int attnd_admit_batch_begin(struct attnd_admission *admission, const void *arena,
                            uint64_t arena_bytes, uint64_t header_offset_bytes,
                            uint32_t header_bytes, const struct attnd_batch_limits *limits,
                            struct attnd_staging *staging, struct attnd_batch_view *batch,
                            struct attnd_fault *fault);
int attnd_admit_advance_begin(struct attnd_admission *admission, const void *arena,
                              uint64_t arena_bytes, const struct attnd_sqe_advance *sqe,
                              const struct attnd_batch_limits *limits,
                              struct attnd_staging *staging, struct attnd_advance_view *advance,
                              struct attnd_fault *fault);
/** attnd_admit_go() - some ten microseconds of it. Return: 1 there is more; 0 it is over, and all
 * is well; < 0. */
int attnd_admit_go(struct attnd_admission *admission, struct attnd_fault *fault);

/** attnd_admit_leased() - 1: @held is negative for each of @pages, which are inside it. */
int attnd_admit_leased(const int16_t *held, const int32_t *pages, uint64_t count);

/**
 * attnd_admit_advance() - copy the arrays of an advance; attnd_planner_advance() checks the values
 * Checks: ranges inside the arena, counts against @limits, page_indptr monotonic from 0 to pages.
 */
int attnd_admit_advance(const void *arena, uint64_t arena_bytes,
                        const struct attnd_sqe_advance *sqe,
                        const struct attnd_batch_limits *limits, struct attnd_staging *staging,
                        struct attnd_advance_view *advance, struct attnd_fault *fault);

/**
 * attnd_admit_prefix() - copy the keys of a prefix operation, and the pages of a publish, which
 * has tables to be looked at with too
 * @opcode:      one of ATTND_OP_PREFIX_*
 * @block_pages: of the namespace; @pool_pages: page ids are below it
 * Checks: counts against ATTND_PREFIX_PAGES_MAX, flags, ranges inside the arena, page ids.
 * Return: 0; -ATTND_E_RANGE, -ATTND_E_INVALID, -ATTND_E_NO_MEMORY with field blocks, flags, arena
 * or pages.
 */
int attnd_admit_prefix(const void *arena, uint64_t arena_bytes, uint8_t opcode,
                       const struct attnd_sqe_prefix *sqe, uint32_t block_pages,
                       uint32_t pool_pages, struct attnd_staging *staging,
                       struct attnd_prefix_view *view, struct attnd_fault *fault);

/**
 * attnd_admit_merge() - copy the places of a merge; whether there is such memory is the daemon's to
 * know
 * Return: 0; -ATTND_E_RANGE or -ATTND_E_INVALID with field arena; -ATTND_E_INVALID with field
 * reserved.
 */
int attnd_admit_merge(const void *arena, uint64_t arena_bytes, const struct attnd_sqe_merge *sqe,
                      struct attnd_merge_view *view, struct attnd_fault *fault);

/**
 * attnd_extent_bytes() - bytes from the first to past the last element of a strided block
 * counts[i] steps of strides[i] elements (>= 0) over @rank dimensions, elements of element_bytes.
 * Return: 0 and *bytes (0 when a count is 0); -ATTND_E_RANGE on overflow or a negative stride.
 */
int attnd_extent_bytes(const uint64_t *counts, const int64_t *strides, int rank,
                       uint32_t element_bytes, uint64_t *bytes);

#endif
