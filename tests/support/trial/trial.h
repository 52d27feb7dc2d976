/*
 * trial.h - one described batch made real, run through an engine's session, and judged.
 *
 * trial_run() does all of it. A test that wants its hands on the order of things (several lanes, a
 * worker killed in between) calls the parts: begin, submit_*, await, verify, end.
 *
 * Place [step][layer] is where the rows of one run lie; every run has its own.
 */
#ifndef ATTND_TESTS_SUPPORT_TRIAL_TRIAL_H
#define ATTND_TESTS_SUPPORT_TRIAL_TRIAL_H

#include "tests/support/harness/engine.h"
#include "tests/support/random/random_batch.h"

#define TRIAL_WAIT_NS 20000000000u

struct trial_place {
    uint64_t q, o, lse, k, v; /* bytes from engine->rows */
    uint64_t o_begin, o_end;  /* what is poisoned: the extent and some bytes around it */
    uint64_t lse_begin, lse_end;
};

/* CSR arrays of one level, as step 0 passes them; `list` holds later steps' pages too. */
struct trial_level {
    int32_t qo_indptr[RANDOM_REQUESTS_MAX + 1];
    int32_t kv_indptr[RANDOM_REQUESTS_MAX + 1];
    int32_t last_page_len[RANDOM_REQUESTS_MAX];
    int32_t *kv_indices;
    int32_t *list;                                /* [list_indptr[requests]] */
    int32_t list_indptr[RANDOM_REQUESTS_MAX + 1]; /* pages of all steps */
};

struct trial {
    struct engine *engine;
    struct random_batch batch;
    uint32_t rows, plan;
    struct trial_level level[RANDOM_LEVELS_MAX];
    int32_t *pages_used; /* [pages_used_count] distinct page ids */
    int32_t *filled;     /* [pages_used_count] tokens in use of each */
    uint32_t pages_used_count;
    struct trial_place place[RANDOM_STEPS_MAX][ENGINE_LAYERS_MAX];
    struct attnd_strides q, o, lse, kv; /* real ones */
    uint64_t sinks, mask, kv_scales;    /* bytes from engine->rows, if the variant has them */
    int32_t mask_indptr[RANDOM_REQUESTS_MAX + 1];
    uint64_t rows_end;            /* bytes of engine->rows in use: where a next trial may begin */
    uint32_t expected, completed; /* completions */
    int quiet;                    /* what succeeds and is no run posts nothing */
    struct attnd_completion failure; /* the first that was not a success */
    uint64_t verified;               /* runs held against the reference */
    int lost;                        /* a completion did not come */
    char why[256];                   /* what was wrong, of the last call that returned 1 */
};

/**
 * trial_begin() - pages, page tables, values, poison; a tight plan if the batch wants one
 * @rows_begin: where in engine->rows its rows may lie: 0, or rows_end of another trial under way.
 *              Trials under way together also need windows of pages that do not meet.
 */
void trial_begin(struct trial *trial, struct engine *engine, const struct random_batch *batch,
                 uint64_t rows_begin);
/** trial_end() - take pages and rows back to poison. Nothing may be in flight. */
void trial_end(struct trial *trial);
/** trial_forget() - free what the trial itself has: all that is left to do once its session is
 * gone, or while its work is in flight and its engine closes. */
void trial_forget(struct trial *trial);

/* Submit one operation on @lane. Return: what libattnd returned. flags: ATTND_SKIP_SUCCESS. */
int trial_submit_set(struct trial *trial, uint32_t lane, uint32_t flags);
int trial_submit_advance(struct trial *trial, uint32_t step, uint32_t lane, uint32_t flags);
int trial_submit_append(struct trial *trial, uint32_t step, uint32_t layer, uint32_t lane,
                        uint32_t flags);
int trial_submit_run(struct trial *trial, uint32_t step, uint32_t layer, uint32_t lane,
                     uint32_t flags);

/** trial_prepare() - the run of @step and @layer, for @lane. Return: as attnd_prepare(). */
int trial_prepare(const struct trial *trial, uint32_t step, uint32_t layer, uint32_t lane,
                  uint32_t *prepared);

/** trial_submit_as() - a run of step 0 with an operation of the caller's, who also collects its
 * completion. */
int trial_submit_as(const struct trial *trial, uint32_t layer, const struct attnd_op *op);

/** trial_submit() - the whole batch in order on its lane, without waiting in between.
 * Return: 0; 1 with why. */
int trial_submit(struct trial *trial);
/** trial_await() - collect every completion that is due. Return: 0; 1 with why. */
int trial_await(struct trial *trial);

/** trial_settle() - runs of the engine's runner are over, and their outputs are here; it does
 * nothing for other engines. Return: 0; 1 with why. */
int trial_settle(struct trial *trial);

/** trial_store() - bring the shadow to where it is after @step's append of @layer. */
void trial_store(struct trial *trial, uint32_t step, uint32_t layer);
/** trial_verify_run() - o and lse of one run against the reference, and the poison around them.
 * Steps must be verified in order, after trial_store(). Return: 0; 1 with why. */
int trial_verify_run(struct trial *trial, uint32_t step, uint32_t layer);
/** trial_verify_pages() - every page in use holds what the shadow holds. Return: 0; 1 with why. */
int trial_verify_pages(struct trial *trial);

/** trial_judge() - verify every run in order, then (if anything was appended, and sometimes if not)
 * the pages; awaits what is not there yet.
 * Return: 0; 1 with why. */
int trial_judge(struct trial *trial);

/** trial_must() - nothing was wrong: fails the test otherwise, saying which batch and why. */
void trial_must(const struct trial *trial, int wrong);

#define TRIAL_REFUSED 2

/** trial_run() - begin, submit, judge, end. Return: 0; 1 with @why filled; TRIAL_REFUSED the worker
 * lacks an option of the batch's variant, and plan_set said so. A completion that does
 * not come fails the test: nothing can be done with the session any more. */
int trial_run(struct engine *engine, const struct random_batch *batch, char *why, size_t why_bytes);

/** trial_expect() - begin, submit, judge, end; fails the test if anything is wrong. */
void trial_expect(struct engine *engine, const struct random_batch *batch);

#endif
