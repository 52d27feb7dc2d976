/*
 * private.h - the daemon's half of a plan, shared by the files of the planner. Nobody else includes
 * it.
 *
 * The heap half is only ever written here: whatever the planner needs to know again (shape, pages
 * in use) it keeps in this half, so a worker gone wrong cannot lead the daemon astray.
 */
#ifndef ATTND_PERSISTENT_PLAN_PRIVATE_H
#define ATTND_PERSISTENT_PLAN_PRIVATE_H

#include "persistent/plan/plan.h"

/* Tiles with at most this many packed rows are bound by memory: their time is that of reading KV.
 */
#define ATTND_TILE_MEMORY_ROWS 16u

/* A split aims at tiles of a worker's share of the batch, at finest of 1/this of it... */
#define ATTND_SPLIT_TILES_PER_WORKER 4u
/* ...but no part of a split is shorter than this: partials and their merge must stay cheap. */
#define ATTND_SPLIT_KEYS_MIN 128u

/* The end of a batch is halved (tile.c) where a few workers do not fill the memory, and down to
 * this: half of 4,096 keys cost a GPU more for its start and merge than it brought. */
#define ATTND_HALVES_WORKERS_MIN 32u
#define ATTND_HALVES_KEYS_MIN 4096u

/* Splits that only keep items below ATTND_ITEM_COST_MAX: enough for one row and 2^31 keys, and for
 * 32,768 tokens of a group of 8 on a million keys. */
#define ATTND_BOUND_SPLITS_MAX 4096u

/* Levels that share.c may put in front of a batch's, and intervals it has open at a time. */
#define ATTND_SHARED_LEVELS 3u
#define ATTND_SHARED_OPEN_MAX 32u

/* Tiles that fixed splits may add to a plan: 64 requests of half a million keys in parts of 512. */
#define ATTND_FIXED_SPLITS_MAX 65536u

/* What the capacities of a plan come to. Derived in layout.c and nowhere else. */
struct attnd_plan_capacity {
    uint32_t blocks;       /* tiles before any split */
    uint32_t splits;       /* tiles that splitting may add, for balance */
    uint32_t bound_splits; /* and to keep items below ATTND_ITEM_COST_MAX */
    uint32_t fixed_splits; /* or at fixed keys, instead of both */
    uint32_t tiles;        /* blocks and all splits */
    uint32_t merges;       /* row segments */
    uint32_t partial_rows; /* rows of all partial tiles together; also bounds merge parts */
    uint32_t shared;       /* entries that share.c may add */
    uint32_t entries;      /* of batch and share.c, rounded up: generations start on cache lines */

    uint64_t entries_offset_bytes, tiles_offset_bytes, merges_offset_bytes;
    uint64_t merge_parts_offset_bytes, kv_pages_offset_bytes, kv_len_offset_bytes;
    uint64_t mask_begin_offset_bytes;
    uint64_t heap_bytes;
};

/* Query rows of one entry before splitting: its tiles are built[tile_begin..+tile_count]. */
struct attnd_row_block {
    uint32_t entry;
    uint32_t row_begin, row_count;
    uint32_t first; /* key that one of its rows sees when planned, rounded down to a granule */
    uint32_t keys;  /* from there to the last that one of its rows sees then */
    uint32_t tile_begin, tile_count;
    uint32_t partial;    /* 1: several tiles cover some of its rows, so all its tiles are partial */
    uint32_t placed;     /* entry from whose rows its rows' places are counted */
    uint32_t behind;     /* as a tile's of_entry has it */
    int32_t keys_behind; /* what stands there when planned */
    uint32_t tile_class;
    float time_ns; /* of one KV head */
};

/* An entry as the heap has it, and what only the planner knows of it. */
struct attnd_entry_state {
    struct attnd_entry entry;
    uint32_t pages_used; /* of entry.page_count: advance appends behind them */
    uint32_t kv_len;     /* of generation 0 */
    uint32_t keys_begin; /* keys before it are read by tiles of another entry */
    int32_t page;        /* the first, if there is one */
};

/* What a batch takes of each resource if nobody waits, of all KV heads. Times are of all workers
 * together, nanoseconds. */
struct attnd_plan_load {
    double compute_ns; /* workers on compute-bound tiles */
    double memory_ns;  /* workers on memory-bound tiles, if the memory keeps up */
    double bytes_ns;   /* the memory, on what those read */
};

/* What follows from the rates and the pool: the units of which times are made (times.c). */
struct attnd_plan_times {
    double row_ns;       /* a key, computed against a packed row */
    double read_ns;      /* and read by one worker */
    double again_ns;     /* the same if others have just read it */
    double bytes_ns;     /* and by the memory, for all workers */
    double start_ns;     /* of a tile */
    double wave_ns;      /* of a wave of parts, where none is compute-bound */
    double merge_row_ns; /* a packed row of a part, where one worker merges all parts of a block */
    int merges_many;     /* one does so of many rows, too; else those are added up in pairs */
};

/* How blocks are cut and ordered: split.c, fuse.c. */
struct attnd_plan_mix {
    uint32_t classes; /* of tiles that there are: 0 to 2 */
    uint32_t fused;
    uint32_t compute_workers; /* of a fused plan: those that begin with compute-bound items */
    double stretch; /* of memory-bound items, because the memory does not keep up with those */
};

/* An interval of requests with equal leading pages; see share.c. */
struct attnd_shared_node {
    uint32_t begin, end;       /* requests */
    uint32_t keys_begin, keys; /* what it reads: behind the interval around it, to its own end */
    uint32_t depth, used;
};

struct attnd_plan {
    struct attnd_plan_limits limits;
    struct attnd_plan_capacity capacity;
    struct attnd_heap_pool pool;
    struct attnd_plan_head shape; /* what the heap's head says */
    struct attnd_plan_found found;
    struct attnd_plan_mix mix;
    struct attnd_plan_times times;
    uint32_t keys_any; /* that a block of any rows of this batch may have in one item */
    uint32_t shared, shared_levels; /* entries and levels of share.c, in front of the batch's */
    uint32_t level_entries[ATTND_LEVELS_MAX + 1]; /* without shared levels: of level l, [l]..[l+1]
                                                   */
    uint32_t
        level_places[ATTND_LEVELS_MAX]; /* of level l: where its numbers begin, among lengths */
    double keys_again; /* of one KV head, that memory-bound blocks read of the L2: share.c */

    /* heap: written, never read */
    struct attnd_plan_head *head;
    struct attnd_variant *variant;
    struct attnd_entry *entries;
    struct attnd_tile *tiles;
    struct attnd_merge *merges;
    uint32_t *merge_parts;
    int32_t *kv_pages;
    int32_t *kv_len; /* [ATTND_GENERATIONS][capacity.entries] */
    uint32_t *mask_begin;

    /* private, one allocation */
    void *memory;
    struct attnd_row_block *blocks;        /* [blocks]: by level, then by row */
    struct attnd_tile *built;              /* [tiles]: by block, then by kv_begin */
    struct attnd_entry_state *state;       /* [requests]: by level */
    struct attnd_entry_state *state_spare; /* [requests]: of `before`, or unused */
    struct attnd_plan *before;             /* while a set may still be dropped: what the plan was */
    uint32_t *order, *order_spare;         /* [tiles] */
    float *tile_ns;                        /* [tiles] */
    struct attnd_shared_node *nodes;       /* [2 * shared] */
    double *key_ns;                        /* [requests + 1]: sums over requests; share.c */
    uint32_t level_blocks[ATTND_LEVELS_MAX + 1]; /* level l owns blocks [l]..[l + 1] */
};

#endif
