/*
 * attnd_plan.h - plans: a batch, planned once for all layers, and its next tokens. Part of attnd.h.
 */
#ifndef ATTND_PLAN_H
#define ATTND_PLAN_H

#include "attnd_operation.h"
#include "schemas/variant.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Capacities; what attnd_plan_set() is given must fit in them. */
struct attnd_plan_args {
    uint32_t size;
    uint32_t pool;
    uint32_t requests;    /* entries of all levels together, 1..2^20 */
    uint32_t rows;        /* query rows (tokens), 1..2^22 */
    uint32_t pages;       /* of all entries together, reserve_pages included, 1..2^26 */
    uint32_t levels;      /* 1 without cascade; at most 8 */
    uint32_t heads_q;     /* multiple of the pool's heads_kv, up to 128 times and 1024 */
    uint32_t fixed_split; /* the shortest fixed_split of a variant set on it; 0: none has one */
};

/**
 * attnd_plan_create() - room for batches on one pool
 * @args: borrowed for the call
 * Return: 0 and *plan; -ATTND_E_UNKNOWN; -ATTND_E_RANGE and -ATTND_E_INVALID naming the capacity;
 * -ATTND_E_UNSUPPORTED the worker has no variant for the pool's head_dim or dtype (as for
 * attnd_pool_create(); the worker may have been replaced since); -ATTND_E_NO_MEMORY the service's
 * --heap is used up; -ATTND_E_NO_SPACE, field arena: the session was opened without arena_bytes, a
 * batch that fills the plan is longer than what it got, and value says what to ask for.
 */
int attnd_plan_create(struct attnd_session *session, const struct attnd_plan_args *args,
                      uint32_t *plan);
/** attnd_plan_destroy() - -ATTND_E_BUSY while operations of it are in flight. */
int attnd_plan_destroy(struct attnd_session *session, uint32_t plan);

/* One cascade level: its requests partition the same query rows. int32 CSR arrays, borrowed for the
 * call that submits them. A row's keys are those of its request at every level, all of them but at
 * the last, where ATTND_CAUSAL holds and qo_len and kv_len are that level's. */
struct attnd_level {
    uint32_t requests;               /* 0 is a batch without work: its runs complete at once */
    const int32_t *qo_indptr;        /* [requests + 1] */
    const int32_t *kv_indptr;        /* [requests + 1] */
    const int32_t *kv_indices;       /* [kv_indptr[requests]] page ids */
    const int32_t *kv_last_page_len; /* [requests]; 1..page_size; of no pages: ignored */
};

/* Elements of 2 bytes, of lse 4; not negative; both 0: contiguous. */
struct attnd_strides {
    int64_t row, head;
};

struct attnd_batch {
    uint32_t size;
    uint32_t levels;        /* 0: 1 */
    uint32_t heads_q;       /* 0: the plan's */
    uint32_t dtype;         /* of q, o, appended k, v: the pool's, or 0; beside fp8 of 16 bits */
    uint32_t flags;         /* ATTND_CAUSAL (last level only), ATTND_LSE_LN, ATTND_SHARED_PAGES */
    uint32_t reserve_pages; /* page slots of each request of the last level kept for advance */
    float sm_scale;         /* finite, not negative; 0: 1/sqrt(head_dim) */
    const struct attnd_level *level; /* [levels], outermost (shared prefix) first */
    struct attnd_strides q, o, lse, k, v;
    const struct attnd_variant *variant; /* schemas/variant.h; borrowed for the call; NULL: plain */
    const int32_t *mask_indptr; /* [requests + 1] of the last level, bytes: with a mask only */
};

/* A row that sees no key at all is o = 0, lse = -inf; or lse = its sink, where its head has one. */
#define ATTND_CAUSAL 0x1u       /* query i of a request sees keys j <= kv_len - qo_len + i */
#define ATTND_LSE_LN 0x2u       /* lse in natural logarithm; base 2 otherwise */
#define ATTND_SHARED_PAGES 0x4u /* requests side by side begin with the same pages: a hint */

/**
 * attnd_plan_set() - plan a batch
 * @batch: copied before the call returns, except for arrays in attnd_tables_memory(). Its arrays
 * are as long as struct attnd_level and struct attnd_batch say; of each level kv_indptr[requests]
 * says how many entries kv_indices has, and of level 0 qo_indptr[requests] how many rows there are
 * Completes when the tiles are where the worker reads them; a run of the same lane may be submitted
 * at once behind it. Completes with -ATTND_E_BUSY if another lane's operation of this plan is in
 * flight, and with -ATTND_E_RANGE, -ATTND_E_INVALID, -ATTND_E_NO_SPACE, -ATTND_E_NOT_LEASED naming
 * field, index, value and limit if the batch is malformed; the plan then is what it was. Operations
 * of the plan that were submitted behind it in its lane, before its completion was taken, were
 * meant for the batch that was refused: they complete with -ATTND_E_INVALID, field plan. The memory
 * for split results of the batch is part of the plan: more than the service has for it
 * (--scratch; half of that where streams are served too) completes with -ATTND_E_NO_SPACE, field
 * partials. Runs that do not fit beside others wait. Return: 0 submitted; -ATTND_E_FULL ring or
 * arena have no room: wait for completions and repeat; -ATTND_E_NO_SPACE the batch can never fit in
 * the arena; -ATTND_E_DISCONNECTED.
 */
int attnd_plan_set(struct attnd_session *session, uint32_t plan, const struct attnd_batch *batch,
                   const struct attnd_op *op);

/* New absolute lengths of all entries, level 0's first, and pages appended to their lists. Lengths
 * may shrink too. Query rows stay as they were set. An advance that shrinks a request into shared
 * leading pages (attnd --cascade) plans again, and waits for runs of the plan. */
struct attnd_advance {
    uint32_t size;
    uint32_t entries;            /* of the batch, over all levels */
    const int32_t *kv_len;       /* [entries] tokens, at most the planned pages hold */
    const int32_t *page_indptr;  /* [entries + 1] or NULL: no new pages */
    const int32_t *page_indices; /* [page_indptr[entries]] */
};

/**
 * attnd_plan_advance() - a new generation of lengths
 * @advance: copied before the call returns. entries is how many the caller's arrays have, and it is
 * refused unless it is how many the batch has; page_indptr[entries] says how many page_indices has
 * What was submitted before keeps its lengths, however long it waits; what comes behind it in its
 * lane reads the new ones; another lane's, before it has completed, either.
 * Completes with the faults of attnd_plan_set(), by whose names it calls what it refuses: requests
 * (entries), kv_indptr (page_indptr: more pages than are reserved), kv_indices (page_indices); the
 * plan then is what it was. Return: as attnd_plan_set().
 */
int attnd_plan_advance(struct attnd_session *session, uint32_t plan,
                       const struct attnd_advance *advance, const struct attnd_op *op);

/* The findings of the service in a batch; of a plan_set that succeeded. */
struct attnd_plan_info {
    uint32_t size;
    uint32_t shared_groups; /* runs of requests whose equal leading pages are read once */
    uint32_t fused;         /* 1: compute-bound and memory-bound work is done at once */
    uint64_t bytes_saved;   /* of K and V, that a run of one layer need not read again */
};

/**
 * attnd_plan_info() - what a plan_set found
 * @completion: of attnd_plan_set(), with fault code 0
 * @info: receives it; size is set by the caller
 *
 * Threads: any. Blocking: never. Return: 0; -ATTND_E_INVALID it is no such completion.
 */
int attnd_plan_info(const struct attnd_completion *completion, struct attnd_plan_info *info);

#ifdef __cplusplus
}
#endif

#endif
