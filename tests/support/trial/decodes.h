/*
 * decodes.h - requests of one row each, whose plan changes while runs of it are in flight.
 *
 * The pool's contents never change: what a run computes depends on its lengths and page lists only.
 * The plan is set and advanced on lane 0, and runs go on lanes of their own, a place for the output
 * of each. A run is held against the reference with the lengths that it began with.
 */
#ifndef ATTND_TESTS_SUPPORT_TRIAL_DECODES_H
#define ATTND_TESTS_SUPPORT_TRIAL_DECODES_H

#include "tests/support/harness/harness.h"
#include "tests/support/random/prng.h"

#include "client/attnd.h"

#define DECODES_REQUESTS_MAX 48u
#define DECODES_PAGES_MAX 136u
#define DECODES_SLOTS 5u /* of submitted runs; one more place is the prepared run's */
#define DECODES_HEADS_Q 4u
#define DECODES_HEADS_KV 2u
#define DECODES_DIM 64u
#define DECODES_LANE_PREPARED 63u

struct decodes_shape {
    uint32_t requests, pages, page_size;
    uint32_t pages_begin, pages_each; /* of a request: when the plan is set, and at most */
};

struct decodes {
    struct decodes_shape shape;
    struct attnd_session *session;
    struct attnd_pool_info info;
    uint32_t memory, pool, plan, prepared;
    uint16_t *q, *o[DECODES_SLOTS + 1]; /* in `memory`, in this order */
    const uint16_t *pool_bits;
    int32_t page[DECODES_REQUESTS_MAX][DECODES_PAGES_MAX];
    int32_t kv_len[DECODES_REQUESTS_MAX]; /* as last set or advanced */
    int32_t begun[DECODES_SLOTS + 1][DECODES_REQUESTS_MAX];
    uint8_t busy[DECODES_SLOTS + 1]; /* begun, and not yet verified */
    uint32_t in_flight, advanced;
    uint64_t verified;
    struct attnd_variant
        variant;        /* of the next set; size 0: none. Cap, sinks and v_scale are judged */
    const float *sinks; /* [DECODES_HEADS_Q] that it has, or NULL */
};

/** decodes_open() - a session, a pool of random bits, and a plan that is not set.
 * decodes_close() - the session's end. */
void decodes_open(struct decodes *decodes, const struct harness *harness,
                  const struct decodes_shape *shape, struct prng *prng);
void decodes_close(struct decodes *decodes);

/** decodes_set() - the plan, of `page` as the caller has filled it in, each request with a random
 * length that ends in its last page. Awaited. Return: the completion. */
struct attnd_completion decodes_set(struct decodes *decodes, uint32_t flags, struct prng *prng);

/**
 * decodes_advance() - new lengths, which `kv_len` takes over; awaited
 * @page_indptr, @page_indices: pages that the caller has added to `page`; or NULL
 */
void decodes_advance(struct decodes *decodes, const int32_t *kv_len, const int32_t *page_indptr,
                     const int32_t *page_indices);

/** decodes_submit() - a run on the lane of @slot, which is free. */
void decodes_submit(struct decodes *decodes, uint32_t slot);
/** decodes_await_and_verify() - all submitted runs; fails the test if one is wrong. */
void decodes_await_and_verify(struct decodes *decodes);

/** decodes_prepare() - from here on every advance is published at once.
 * decodes_launch() - the prepared run, awaited and verified. */
void decodes_prepare(struct decodes *decodes);
void decodes_launch(struct decodes *decodes);

#endif
