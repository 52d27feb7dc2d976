/*
 * plan_case.h - batches for the planner and for admission, by hand, at random or from a fuzzer.
 *
 * A case owns everything a plan needs: pool, limits, the arrays of an admitted batch, heap memory,
 * and the plan. By hand: plan_case_begin(), plan_case_level() for each level, plan_case_plan().
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_PLAN_CASE_H
#define ATTND_TESTS_SUPPORT_RIGS_PLAN_CASE_H

#include "persistent/plan/plan.h"
#include "tests/support/random/prng.h"

#include <stddef.h>

/* Where choices come from: a generator, or while they last the bytes of a fuzzer. */
struct case_source {
    struct prng prng;
    const uint8_t *bytes;
    size_t bytes_left;
};

/** case_below() - a choice in 0..count-1; 0 once a fuzzer's bytes are used up. */
uint32_t case_below(struct case_source *source, uint32_t count);

struct plan_case {
    struct attnd_heap_pool pool;
    struct attnd_plan_limits limits;
    struct attnd_batch_view batch;
    void *heap;
    struct attnd_plan *plan;
};

/** plan_case_begin() - an empty case: 32/8 heads of 128, page_size 16, a target of 2 workers, 128
 * rows and 64 keys. Change what the test is about before the first level. */
void plan_case_begin(struct plan_case *c);

/** plan_case_begin_gpu() - the same with the workers and rates of an H200. */
void plan_case_begin_gpu(struct plan_case *c);

/**
 * plan_case_level() - add a level
 * @qo_len, @kv_len: [entries]; the pages are made up
 */
void plan_case_level(struct plan_case *c, uint32_t entries, const int32_t *qo_len,
                     const int32_t *kv_len);

/** plan_case_level_alike() - the same for @entries that are all alike. */
void plan_case_level_alike(struct plan_case *c, uint32_t entries, int32_t qo_len, int32_t kv_len);

/** plan_case_fit() - limits that the batch fills exactly. */
void plan_case_fit(struct plan_case *c);

/** plan_case_new() - heap memory and an unset plan for c->limits. Return: as attnd_plan_new(). */
int plan_case_new(struct plan_case *c);

/** plan_case_plan() - plan_case_fit(), plan_case_new() and attnd_planner_set(). Return: its code.
 */
int plan_case_plan(struct plan_case *c);

/** plan_case_draw() - any pool, target, batch and sufficient limits; not yet planned. */
void plan_case_draw(struct plan_case *c, struct case_source *source);

void plan_case_free(struct plan_case *c);

/** case_limits() - what admission would be given for this case. */
struct attnd_batch_limits case_limits(const struct plan_case *c);

/* A batch as a client writes it: header, then arrays. Offsets are into the arena. */
struct case_bytes {
    uint32_t header_offset_bytes, header_bytes;
    uint64_t qo_indptr[ATTND_LEVELS_MAX], kv_indptr[ATTND_LEVELS_MAX];
    uint64_t kv_indices[ATTND_LEVELS_MAX], kv_last_page_len[ATTND_LEVELS_MAX];
    uint64_t end;
};

/** case_write() - the batch into @arena. Return: where things are; .end is 0 if it does not fit. */
struct case_bytes case_write(const struct plan_case *c, uint8_t *arena, uint64_t arena_bytes);

#endif
