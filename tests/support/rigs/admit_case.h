/*
 * admit_case.h - one batch in an arena, and its admission: the fixture of the admission tests.
 *
 * The arena is exactly as long as what is in it, so a sanitizer sees every read too far.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_ADMIT_CASE_H
#define ATTND_TESTS_SUPPORT_RIGS_ADMIT_CASE_H

#include "service/admission/admit.h"
#include "tests/support/rigs/plan_case.h"

struct admit_case {
    struct plan_case c;
    struct attnd_batch_limits limits;
    uint8_t *arena;
    uint64_t arena_bytes;
    struct case_bytes at;
    struct attnd_staging staging;
    struct attnd_batch_view batch; /* what came out */
    struct attnd_fault fault;
};

/**
 * admit_case_begin() - two levels in an arena: a prefix of 3 pages for all 7 rows; 3 requests of 5,
 * 0 and 2 rows with 50, 0 and 33 tokens, one page in reserve each; a plan that just fits
 */
void admit_case_begin(struct admit_case *a);

/** admit_case_one() - instead: one request of one row; @page_size, @kv_len. a->c may be changed
 * before admit_case_write(). */
void admit_case_one(struct admit_case *a, uint32_t page_size, int32_t kv_len);

/** admit_case_write() - a->c into the arena, afresh; the limits from it. */
void admit_case_write(struct admit_case *a);

/** admit_case_admit() - attnd_admit_batch() of what is in the arena. */
int admit_case_admit(struct admit_case *a);

/** admit_case_word() - overwrite one element of an array in the arena. */
void admit_case_word(struct admit_case *a, uint64_t array_offset_bytes, uint32_t index,
                     int32_t value);

void admit_case_end(struct admit_case *a);

#endif
