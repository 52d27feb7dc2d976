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
    double row_ns;   /* a key, computed against a packed row */
    double read_ns;  /* and read by one worker */
    double again_ns; /* the same if others have just read it */
    double bytes_ns; /* and by the memory, for all workers */
    double start_ns; /* of a tile */
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

/** attnd_plan_capacity() - derive capacities and heap layout. Return: 0 or -ATTND_E_RANGE. */
int attnd_plan_capacity(const struct attnd_plan_limits *limits,
                        struct attnd_plan_capacity *capacity);

/* ---- times, for one KV head, in nanoseconds (times.c) ---- */

/** attnd_plan_default_rates() - those of a processor, where a target has none. */
void attnd_plan_default_rates(struct attnd_plan_target *target);
/** attnd_plan_take_times() - plan->times, of rates and pool. */
void attnd_plan_take_times(struct attnd_plan *plan);
/** attnd_plan_key_ns() - one key against @packed_rows. */
double attnd_plan_key_ns(const struct attnd_plan *plan, uint32_t packed_rows);
/** attnd_plan_again_ns() - the same if others have just read the key. */
double attnd_plan_again_ns(const struct attnd_plan *plan, uint32_t packed_rows);
/** attnd_plan_tile_cost() - what a tile is ordered by: attnd_item_cost(), or its time in units of a
 * packed row's, where rows are computed in steps: then few rows take as long as many. */
uint64_t attnd_plan_tile_cost(const struct attnd_plan *plan, uint32_t keys, uint32_t packed_rows);
/** attnd_plan_start_ns() - a tile that sees nothing. */
double attnd_plan_start_ns(const struct attnd_plan *plan);
/** attnd_plan_item_ns() - a tile of @keys and @packed_rows. */
double attnd_plan_item_ns(const struct attnd_plan *plan, uint32_t keys, uint32_t packed_rows);
/** attnd_plan_part_ns() - what it costs that @packed_rows are a partial: written and merged.
 * @shared: of a level whose rows have keys of their own as well, with which they are merged. */
double attnd_plan_part_ns(const struct attnd_plan *plan, uint32_t packed_rows, int shared);
/** attnd_plan_bytes_ns() - the memory, on one key, if all workers read. */
double attnd_plan_bytes_ns(const struct attnd_plan *plan);

/** attnd_plan_share() - find equal leading pages of @batch and decide which are read once.
 * Sets plan->shared; the entries are for attnd_plan_fill_entries() to write. */
void attnd_plan_share(struct attnd_plan *plan, const struct attnd_batch_view *batch);
/** attnd_plan_share_entries() - the entries that were found, when the batch's are there, into the
 * private half. */
void attnd_plan_share_entries(struct attnd_plan *plan);

/* How blocks are cut along KV: into parts of about @target time, of at least that much or to the
 * nearest. */
struct attnd_split {
    double target_ns;  /* 0: not at all */
    double round;      /* 0 or 0.5 */
    uint32_t shortest; /* keys of a part, at least */
};

/* The splits of a batch, by enum attnd_tile_class; and how many memory-bound blocks are halved,
 * behind how many that are not. */
struct attnd_splits {
    struct attnd_split of[2];
    uint32_t unhalved, halved;
    struct attnd_split halves;
    uint32_t whole, parts; /* of a fused plan: compute-bound blocks in front, and parts of others */
};

/** attnd_plan_choose_splits() - for the blocks that were cut; sets plan->mix. */
struct attnd_splits attnd_plan_choose_splits(struct attnd_plan *plan);
/** attnd_plan_split_parts() - into how many parts @split cuts @block. */
uint32_t attnd_plan_split_parts(const struct attnd_plan *plan, const struct attnd_row_block *block,
                                const struct attnd_split *split);

/** attnd_plan_fill_entries() - entries, into the private half. */
void attnd_plan_fill_entries(struct attnd_plan *plan, const struct attnd_batch_view *batch);
/** attnd_plan_write_entries() - those, page lists and generation 0 into the heap. */
void attnd_plan_write_entries(struct attnd_plan *plan, const struct attnd_batch_view *batch);
/** attnd_plan_copy_entries() - some entries, and their lengths of generation 0, into the heap. */
void attnd_plan_copy_entries(struct attnd_plan *plan, uint32_t begin, uint32_t end);

/* Rows of an entry that have the same entry on each later level (place.c). */
struct attnd_piece_walk {
    uint32_t level, entry;
    uint32_t row, row_end;
    uint32_t behind[ATTND_LEVELS_MAX]; /* entries of later levels */
};

/** attnd_plan_walk_pieces() - those of @level, in the order of rows: for attnd_plan_next_piece().
 */
struct attnd_piece_walk attnd_plan_walk_pieces(const struct attnd_plan *plan, uint32_t level);
/** attnd_plan_next_piece() - Return: 0 if there is none. */
int attnd_plan_next_piece(const struct attnd_plan *plan, struct attnd_piece_walk *walk);
/** attnd_plan_place() - of entries and lengths that are there, of generation 0.
 * Return: 0; -ATTND_E_RANGE more keys than a place can count; -ATTND_E_UNSUPPORTED keys that were
 * rotated when they were stored, and have no place of their own. */
int attnd_plan_place(struct attnd_plan *plan, struct attnd_fault *fault);
/** attnd_plan_check_places() - Return: 0; -ATTND_E_RANGE as attnd_plan_place().
 * @lengths: of all entries, here and below; NULL: those that were set */
int attnd_plan_check_places(const struct attnd_plan *plan, const int32_t *lengths,
                            struct attnd_fault *fault);
/** attnd_plan_write_places() - into the heap, behind the lengths of @generation. */
void attnd_plan_write_places(const struct attnd_plan *plan, uint32_t generation,
                             const int32_t *lengths);
/** attnd_plan_keys_behind() - keys of the piece's rows behind those of its entry. */
int32_t attnd_plan_keys_behind(const struct attnd_plan *plan, const struct attnd_piece_walk *walk,
                               const int32_t *lengths);
/** attnd_plan_in_pieces() - 1: tiles of earlier levels are those of pieces, and know their place.
 */
int attnd_plan_in_pieces(const struct attnd_plan *plan);

/** attnd_plan_keys_max() - whole granules of keys that an item of @packed_rows may have and stay
 * below ATTND_ITEM_COST_MAX, with a granule more to spare; at least one granule. */
uint32_t attnd_plan_keys_max(const struct attnd_plan_target *target, uint32_t packed_rows);

/** attnd_plan_cut_blocks() - entries into plan->blocks, by level, and how long they take. */
void attnd_plan_cut_blocks(struct attnd_plan *plan);

/** attnd_block_entry() - the block's, as its tiles have it. */
struct attnd_entry attnd_block_entry(const struct attnd_plan *plan,
                                     const struct attnd_row_block *block);
/** attnd_block_packed_rows() - query heads of @row_count tokens. */
static inline uint32_t attnd_block_packed_rows(const struct attnd_plan *plan, uint32_t row_count)
{
    return row_count * plan->shape.group;
}
/** attnd_block_reach() - keys that the block's entry may come to have. */
static inline uint32_t attnd_block_reach(const struct attnd_plan *plan,
                                         const struct attnd_row_block *block)
{
    const uint64_t keys =
        (uint64_t)plan->state[block->entry].entry.page_count * plan->pool.page_size;

    return keys < INT32_MAX ? (uint32_t)keys : INT32_MAX;
}
/** attnd_block_seen() - keys that its rows may come to see at once: all of these, or a window. */
uint32_t attnd_block_seen(const struct attnd_plan *plan, const struct attnd_row_block *block);
/** attnd_block_keys_max() - keys that an item of the block may have. */
uint32_t attnd_block_keys_max(const struct attnd_plan *plan, const struct attnd_row_block *block);
/** attnd_block_fits() - 1: an item may have all keys that its rows may come to see. */
int attnd_block_fits(const struct attnd_plan *plan, const struct attnd_row_block *block);

/** attnd_plan_build_tiles() - blocks, then tiles by splitting them, into plan->built.
 * @fixed_split: keys of a part; 0: as balance wants
 * Return: 0; -ATTND_E_RANGE and -ATTND_E_NO_SPACE as attnd_planner_set(). */
int attnd_plan_build_tiles(struct attnd_plan *plan, uint32_t fixed_split,
                           struct attnd_fault *fault);

/** attnd_plan_begin() - a new version of the plan, which attnd_planner_drop() takes back. What a
 * worker has of the plan is stale when it is written. */
void attnd_plan_begin(struct attnd_plan *plan);
/** attnd_plan_build() - tiles and how many merges, of entries that are there, in the private half.
 * Return: as attnd_planner_set(). */
int attnd_plan_build(struct attnd_plan *plan, uint32_t fixed_split, struct attnd_fault *fault);
/** attnd_plan_write() - merges, tiles in order and the head into the heap. */
void attnd_plan_write(struct attnd_plan *plan);

/** attnd_plan_reads_first() - of blocks that are there, what the plan's head has by that name. */
uint64_t attnd_plan_reads_first(const struct attnd_plan *plan);

/** attnd_plan_count_merges() - give partial rows to tiles whose rows have several parts, and count
 * merges and their parts. */
void attnd_plan_count_merges(struct attnd_plan *plan);
/** attnd_plan_build_merges() - those that were counted, into the heap. */
void attnd_plan_build_merges(struct attnd_plan *plan);

/** attnd_plan_order_tiles() - plan->built into the heap: largest cost first, equals in order; of a
 * fused plan whole compute-bound blocks, then their parts, then the rest, each so. */
void attnd_plan_order_tiles(struct attnd_plan *plan);

#endif
