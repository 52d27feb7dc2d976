/*
 * plan.h - page tables in, tiles out: the planner. Pure C, no I/O; refilling a plan allocates
 * nothing.
 *
 * The planner writes a plan into heap memory that the worker reads (struct attnd_plan_head and its
 * arrays, schemas/abi.h) and keeps what only the daemon needs (pages in use, scratch for ordering)
 * in struct attnd_plan. A tile is work for every KV head: {entry, query rows, KV range}. Query rows
 * are cut into blocks of about rows_per_tile packed rows (token x group); a block whose KV is long
 * against the average load of a worker is split along KV, and so is one of which an item might ever
 * cost more than ATTND_ITEM_COST_MAX: nobody's item keeps a worker for long. Rows that get several
 * parts (splits, or one part a cascade level) are cut into merges: maximal runs of rows that the
 * same tiles cover.
 *
 * attnd_planner_set() and attnd_planner_advance() are what attnd_plan_set() and
 * attnd_plan_advance() of client/attnd.h come to; a test links both.
 */
#ifndef ATTND_PERSISTENT_PLAN_H
#define ATTND_PERSISTENT_PLAN_H

#include "schemas/batch.h"
#include "schemas/cut.h"
#include "schemas/errors.h"

/* What one worker does in a time, and all of them. All 0: a processor's threads, of which each
 * reads a key in the time in which it computes eight rows, whatever the others do. */
struct attnd_plan_rates {
    uint32_t worker_gflops;  /* 10^9 operations a second: the products of one worker's tiles */
    uint32_t worker_gbps;    /* 10^9 bytes a second: what one worker reads if it need not wait */
    uint32_t worker_l2_gbps; /* and what it reads of keys that others have just read */
    uint32_t memory_gbps;    /* what all workers read together, at most */
    uint32_t rows_step;      /* a compute-bound tile takes as long as one of its packed rows rounded
                                up to this; above 1 keys are loaded while others are computed on */
};

/* Which tiles of a batch are in work at once, if it has compute-bound and memory-bound ones. */
enum attnd_plan_fusion {
    ATTND_FUSION_AUTO = 0, /* SM_SPLIT where it is expected to end earlier */
    ATTND_FUSION_OFF,      /* one after the other: tiles by cost */
    ATTND_FUSION_SM_SPLIT  /* both from the beginning to the end, on different workers */
};

/* In which batches equal leading pages are looked for, and read once (share.c). */
enum attnd_plan_cascade {
    ATTND_CASCADE_OFF = 0,
    ATTND_CASCADE_HINT, /* of batches that say so: ATTND_BATCH_SHARED_PAGES */
    ATTND_CASCADE_AUTO  /* of all batches of one level */
};

/* What the planner plans for: one backend's worker. From struct attnd_worker_info. */
struct attnd_plan_target {
    uint32_t tile_workers;
    uint32_t rows_per_tile;
    uint32_t kv_granule;
    struct attnd_plan_rates rates;
    enum attnd_plan_fusion fusion;
    enum attnd_plan_cascade cascade;
};

/* What was found when the plan was set. */
struct attnd_plan_found {
    uint32_t shared_groups; /* runs of requests whose equal leading pages are read once */
    uint32_t fused;         /* 1: compute-bound and memory-bound tiles are in work at once */
    uint64_t bytes_saved;   /* of K and V, that a run of one layer need not read again */
};

/* Capacities of a plan object, fixed when it is created. */
struct attnd_plan_limits {
    uint32_t requests; /* entries over all levels */
    uint32_t rows;
    uint32_t pages; /* over all levels, reserve included */
    uint32_t levels;
    uint32_t page_size; /* of the pool: with pages, how many keys there may come to be */
    uint32_t heads_q, heads_kv;
    uint32_t fixed_split; /* the shortest that a batch will ask for; 0: none will */
    struct attnd_plan_target target;
};

/* The cost of an item, that is a tile for one KV head: keys * (KEY + packed rows * ROW) + TILE. KEY
 * is what reading a key and a value costs in units of computing one packed row against them, TILE
 * what a tile costs that sees nothing. Only ratios matter, and they only have to be good enough to
 * balance and to be fair. */
#define ATTND_COST_KEY 8u
#define ATTND_COST_ROW 1u
#define ATTND_COST_TILE 256u

/* What no item costs more than, whatever lengths an advance may bring: 7 million keys of one row,
 * 330,000 of 192. It takes a CPU thread some 0.3 s and an SM a fraction of that. */
#define ATTND_ITEM_COST_MAX (1u << 26)

static inline uint64_t attnd_item_cost(uint32_t keys, uint32_t packed_rows)
{
    return (uint64_t)keys * (ATTND_COST_KEY + (uint64_t)packed_rows * ATTND_COST_ROW) +
           ATTND_COST_TILE;
}

struct attnd_plan; /* daemon-private half */

/** attnd_plan_private_bytes() - private memory of such a plan, which attnd_plan_new() allocates.
 * Return: 0 if the capacities are out of range. */
uint64_t attnd_plan_private_bytes(const struct attnd_plan_limits *limits);

/**
 * attnd_plan_heap_bytes() - heap memory a plan of these capacities needs
 * Return: bytes, a multiple of ATTND_CACHE_LINE; 0 if the capacities overflow or are out of range.
 */
uint64_t attnd_plan_heap_bytes(const struct attnd_plan_limits *limits);

/**
 * attnd_plan_new() - a plan object over caller-owned heap memory
 * @limits:    copied
 * @heap:      attnd_plan_heap_bytes() bytes, ATTND_CACHE_LINE aligned, zeroed; borrowed for life
 * @pool:      the pool it will read, in the same segment; borrowed
 * @pool_offset_bytes: where @pool lies in the segment
 *
 * Return: 0 and *out; -ATTND_E_RANGE, also where heads or page size of @limits are not those of
 * @pool, because capacities follow from them; -ATTND_E_NO_MEMORY.
 */
int attnd_plan_new(const struct attnd_plan_limits *limits, void *heap,
                   const struct attnd_heap_pool *pool, uint64_t pool_offset_bytes,
                   struct attnd_plan **out);

/** attnd_plan_free() - release the private half; the heap memory stays the caller's. NULL is fine.
 */
void attnd_plan_free(struct attnd_plan *plan);

/**
 * attnd_planner_set() - fill the plan from an admitted batch, lengths into generation 0
 * @batch: admitted (service/admission/admit.h): the planner asserts its capacities and does not
 *         check them again
 *
 * No run of the plan may be in flight. Threads: one. Allocates nothing. In two parts: what may fail
 * (attnd_planner_build()), and what then is written for the worker.
 * Return: 0; -ATTND_E_NO_SPACE, field fixed_split, for parts that do not fit (limit is the shortest
 * that do; 0: the plan was made without); -ATTND_E_RANGE for a batch whose items cannot be kept
 * below ATTND_ITEM_COST_MAX: field kv_len, index the entry, value the keys it may come to have,
 * limit how many of them fit; and what attnd_plan_place() refuses. Nothing is changed on failure.
 */
int attnd_planner_set(struct attnd_plan *plan, const struct attnd_batch_view *batch,
                      struct attnd_fault *fault);
/** attnd_planner_build() - the first part: attnd_plan_shape() is the batch's then, and the heap as
 * it was. attnd_planner_write() or attnd_planner_drop() follow. */
int attnd_planner_build(struct attnd_plan *plan, const struct attnd_batch_view *batch,
                        struct attnd_fault *fault);
/** attnd_planner_write() - the second part, of what was built of @batch. */
void attnd_planner_write(struct attnd_plan *plan, const struct attnd_batch_view *batch);
/** attnd_planner_drop() - the plan is what it was before the last build, which is not written. */
void attnd_planner_drop(struct attnd_plan *plan);

/**
 * attnd_planner_advance() - write new lengths into generation @generation and append pages
 * @advance:    the view of the client's arrays, private copy; this function checks them
 * @generation: one that no run in flight uses
 * @pool_pages: limit of page ids
 *
 * Lengths are absolute and may shrink or grow within the pages the entry then has in use; an
 * entry's page list only grows, up to its planned pages (pages of the batch + reserve). Pages
 * beyond the current lists are not visible to older generations, whose lengths do not reach them.
 * None may shrink into leading pages that are read once for several requests: then
 * attnd_planner_unshares(). Allocates nothing. Return: 0; -ATTND_E_UNSUPPORTED (field mask) the
 * plan has one, whose bits are for the lengths that were set; -ATTND_E_RANGE naming requests,
 * kv_len, kv_indptr or kv_indices with index, value and limit; nothing is changed on failure.
 */
int attnd_planner_advance(struct attnd_plan *plan, const struct attnd_advance_view *advance,
                          uint32_t generation, uint32_t pool_pages, struct attnd_fault *fault);

/**
 * attnd_plan_shared_keys() - what cascade levels save a run: keys of one KV head that are not read
 * @block_tokens: rows of a tile
 * Of a batch as it is set; an advance does not change it. 0 where a variant asks for places.
 */
uint64_t attnd_plan_shared_keys(const struct attnd_batch_view *batch, uint32_t page_size,
                                uint32_t block_tokens);

/** attnd_planner_unshares() - 1 if @advance shrinks a request into keys that tiles of other entries
 * read for it, and so needs attnd_planner_build_unshared(). */
int attnd_planner_unshares(const struct attnd_plan *plan, const struct attnd_advance_view *advance);

/**
 * attnd_planner_build_unshared(), attnd_planner_write_unshared() - an advance, in tiles of its own
 * Nothing is read for several requests any more. Lengths go into generation 0 of a new version. No
 * run of the plan may be in flight. Allocates nothing. In two parts, as a set, and dropped in the
 * same way. Return: 0; as attnd_planner_advance() and as attnd_planner_set(). Nothing is changed on
 * failure.
 */
int attnd_planner_build_unshared(struct attnd_plan *plan, const struct attnd_advance_view *advance,
                                 uint32_t pool_pages, struct attnd_fault *fault);
void attnd_planner_write_unshared(struct attnd_plan *plan,
                                  const struct attnd_advance_view *advance);

/** attnd_plan_head() - the shared half, for reading. Never NULL. */
const struct attnd_plan_head *attnd_plan_head(const struct attnd_plan *plan);

/** attnd_plan_shape() - the same in private memory, where no worker can have changed it. */
const struct attnd_plan_head *attnd_plan_shape(const struct attnd_plan *plan);
/** attnd_plan_entry() - likewise entry @index < shape's entries. */
const struct attnd_entry *attnd_plan_entry(const struct attnd_plan *plan, uint32_t index);

/** attnd_plan_found() - what was found in the batch that the plan has. */
struct attnd_plan_found attnd_plan_found(const struct attnd_plan *plan);

/** attnd_plan_shared_entries() - entries in front of the batch's own that the planner added. */
uint32_t attnd_plan_shared_entries(const struct attnd_plan *plan);

/** attnd_plan_scratch_bytes() - scratch one run of the plan as it is filled needs; 64-aligned. */
uint64_t attnd_plan_scratch_bytes(const struct attnd_plan_head *head);

/** attnd_plan_pace() - how long tiles of the plan's pool take, for a planner that cuts them
 * elsewhere. */
struct attnd_pace attnd_plan_pace(const struct attnd_plan *plan);

/* ---- the layout of a run's scratch, for backends ----------------------------------------------
 */

/* Scratch of a run: arrival counters uint32 [merges * heads_kv]; then, each 64-byte aligned, float
 * (m, l) [partial_rows * heads_q][2] and float O [partial_rows * heads_q][dim_vo]. m is in log2
 * units, O unnormalised; the empty state is m = -inf, l = 0. Row p, query head h is index
 * p * heads_q + h. */
uint64_t attnd_scratch_state_offset(const struct attnd_plan_head *head);
uint64_t attnd_scratch_output_offset(const struct attnd_plan_head *head);

/* Query rows an append item stores; an append run has ceil(rows / this) items. */
#define ATTND_APPEND_ROWS 64u

/* Rows of one head that an item of a merge does; of [rows * heads_q], a row's heads side by side.
 */
#define ATTND_MERGE_ROWS 64u

/** attnd_plan_items() - queue items of a run of @kind (enum attnd_run_kind) of this plan. */
uint32_t attnd_plan_items(const struct attnd_plan_head *head, uint32_t kind);

#endif
