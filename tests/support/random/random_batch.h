/*
 * random_batch.h - a batch as options, drawn from a seed.
 *
 * A batch here is only a description: small numbers that say what pool, lengths, layouts and steps
 * to use. trial.h makes pages, rows and bytes of it, runs it and judges it; random_shrink.h makes a
 * failing one smaller. Everything that is not a number below (page ids, values) follows from
 * `seed`, so a description printed is a description repeated. A later option is one more field of
 * struct random_batch: 0 must mean "not used", random_batch_draw() draws it, random_shrink() sets
 * it back to 0.
 */
#ifndef ATTND_TESTS_SUPPORT_RANDOM_RANDOM_BATCH_H
#define ATTND_TESTS_SUPPORT_RANDOM_RANDOM_BATCH_H

#include "tests/support/random/prng.h"

#include <stdint.h>
#include <stdio.h>

#define RANDOM_REQUESTS_MAX 8
#define RANDOM_LEVELS_MAX 3
#define RANDOM_STEPS_MAX 4
#define RANDOM_SHAPE_BATCHES 8 /* in a row that share a pool */
#define RANDOM_KV_LONG 2048    /* tokens: "long" is more */
#define RANDOM_Q_EXTREME 1000  /* a q_scale whose scores are in the hundreds */

/* What a pool is made for. Consecutive batches of a seed share one. */
struct random_shape {
    uint32_t dtype, dim, heads_kv, group;
    uint32_t dim_vo;    /* 0: dim */
    uint32_t one_plane; /* 1: a row of V is the front of the row of K */
    uint32_t kv_dtype;  /* of K and V in the pool; 0: dtype */
    uint32_t page_size;
    uint32_t layers;
    uint32_t
        service_pool;     /* 1: memory and pages of the service; 0: planes in the engine's memory */
    uint32_t hnd;         /* 1: [page, head, token, dim]; 0: [page, token, head, dim] */
    uint32_t interleaved; /* 1: K and V of a page side by side; 0: in planes of their own */
    uint32_t pad;         /* elements left free after each head and after each page */
};

/* Where rows lie in q, o, lse or appended k, v. */
struct random_rows {
    uint32_t heads_first; /* 1: [heads, rows, dim]; 0: [rows, heads, dim] */
    uint32_t pad;         /* elements after each inner and each outer block; 0 with heads_first 0 is
                             passed as "contiguous" */
};

/* One request of one level. Step 0 is the plan as set, each later step an advance. */
struct random_entry {
    int32_t qo_len;
    int32_t kv_len[RANDOM_STEPS_MAX];
};

struct random_level {
    uint32_t requests;
    struct random_entry entry[RANDOM_REQUESTS_MAX];
};

enum random_garbage { GARBAGE_FINITE, GARBAGE_NAN, GARBAGE_INFINITE, GARBAGE_LARGE };
enum random_sharing {
    SHARE_NONE,    /* every page is in one list once */
    SHARE_LEADING, /* requests of the last level begin with the first one's full pages */
    SHARE_ANY      /* any page may be anywhere, and in one list twice; not with append */
};

/* What struct attnd_variant is made of; all zero: none. */
struct random_variant {
    uint32_t window; /* 1 + window_left; 0: none */
    float soft_cap;
    uint32_t position_encoding; /* enum attnd_position_encoding */
    uint32_t sinks;             /* 1: one for all layers; 2: one a layer */
    float rope_theta, rope_scale;
    uint32_t rope_old_context, rope_dim, rope_append;
    float rope_low, rope_high;       /* factors beside rope_old_context; 0: 1 and 4 */
    float q_scale, k_scale, v_scale; /* 0: 1 */
    uint32_t kv_scales;              /* 1: one table for all layers; 2: one a layer */
    uint32_t mask;                   /* enum random_mask; of one step */
    uint32_t fixed_split;            /* keys; the plan is then the batch's own. 0: none */
};

enum random_mask {
    MASK_NONE,
    MASK_ANY,    /* any bits */
    MASK_TREE,   /* all keys that were there before, and of the new ones a path to a root */
    MASK_SPARSE, /* hardly a bit: rows that see nothing */
    MASK_IMAGES  /* what is past, and of an image all of it, what comes later too */
};

struct random_batch {
    uint64_t seed; /* of page ids and values */
    struct random_shape shape;
    uint32_t levels;
    struct random_level level[RANDOM_LEVELS_MAX]; /* each level's qo_len add up to the same rows */
    uint32_t steps;                               /* runs of each layer: 1 + advances */
    uint32_t append;                              /* k, v rows of the batch are stored first */
    uint32_t reserve_pages;
    uint32_t sharing; /* enum random_sharing */
    uint32_t garbage; /* enum random_garbage: in what no query may see */
    uint32_t causal, want_lse, lse_ln;
    uint32_t seen_nan; /* 1: one NaN among the keys or values in use */
    float sm_scale;    /* 0: default */
    float q_scale;     /* values of q are in +-q_scale: how peaked the softmax is; 0 means 1 */
    struct random_variant variant;
    struct random_rows q, o, lse, kv_rows;
    uint32_t tight; /* 1: a plan of exactly these capacities */
    uint32_t lane;
    uint32_t quiet; /* 1: only runs post a completion when they succeed */
};

/**
 * random_batch_draw() - batch number @index of @seed
 * B 1..8, kv 0..300 and more than a tenth of the batches with one beyond RANDOM_KV_LONG, every
 * option of struct random_batch. Lengths are cut until the work (multiplications in the reference)
 * is small: most batches take well under a millisecond.
 */
void random_batch_draw(uint64_t seed, uint64_t index, struct random_batch *batch);

/** random_batch_draw_group() - the same in a shape of @group queries a KV head; 0: of any number.
 */
void random_batch_draw_group(uint64_t seed, uint64_t index, uint32_t group,
                             struct random_batch *batch);

/**
 * random_contract_draw() - the same with a variant: the product of its options, biased to edges
 * (windows of one key, of a page, of a block and one beside them; slopes of odd head counts), and
 * some pools of other head dimensions, groups and types
 */
void random_contract_draw(uint64_t seed, uint64_t index, struct random_batch *batch);

typedef void random_draw_fn(uint64_t seed, uint64_t index, struct random_batch *batch);

/** random_batch_valid() - 1 if the service must accept it: what draw makes, what shrink may make.
 */
int random_batch_valid(const struct random_batch *batch);

/** random_batch_nested() - 1 if no entry of an earlier level ends inside one of a later. */
int random_batch_nested(const struct random_batch *batch);

/** random_shape_vo() - elements of a row of V and of o. */
static inline uint32_t random_shape_vo(const struct random_shape *shape)
{
    return shape->dim_vo ? shape->dim_vo : shape->dim;
}

/** random_shape_kv() - enum attnd_dtype of K and V. */
static inline uint32_t random_shape_kv(const struct random_shape *shape)
{
    return shape->kv_dtype ? shape->kv_dtype : shape->dtype;
}

/* Bytes all planes of a pool may take, and pages of a pool of this shape under that limit. */
#define RANDOM_POOL_BYTES (24u << 20)
uint32_t random_shape_pages(const struct random_shape *shape);
/** random_page_elements() - one layer's K (or V) of one page, padding included; a multiple of 8. */
uint32_t random_page_elements(const struct random_shape *shape);

uint32_t random_batch_rows(const struct random_batch *batch);
/** random_batch_rows_bytes() - of q, o, lse, k and v of all runs, at most. */
double random_batch_rows_bytes(const struct random_batch *batch);
#define RANDOM_ROWS_BYTES (20u << 20) /* what a valid batch may need */
/** random_batch_pages() - pages that entry @e of level @l lists at @step; lists only grow. */
int32_t random_batch_pages(const struct random_batch *batch, uint32_t l, uint32_t e, uint32_t step);
/** random_batch_kv_max() - the longest kv_len of any entry and step. */
int32_t random_batch_kv_max(const struct random_batch *batch);
/** random_batch_work() - multiplications of the reference, all steps and layers. */
double random_batch_work(const struct random_batch *batch);

/** random_batch_print() - every field that is not 0, for a bug report. */
void random_batch_print(FILE *file, const struct random_batch *batch);

#endif
