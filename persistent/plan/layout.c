/*
 * layout.c - the one place where capacities are derived: how many tiles, merges and partial rows a
 * batch within the limits can come to, and where the arrays for them lie in the heap.
 *
 * Blocks: an entry of n rows has ceil(n / t) blocks of t tokens, so a level of N rows and E entries
 * has at most N / t + E, and never more than N. Of several levels each but the last may be cut
 * where entries of it or of later ones begin (place.c), which are no more than there are requests.
 * Each piece has a number beside the lengths of a generation, and each entry has one. Splits: a
 * block of cost c gets round(c / target) parts, that is at most c / target more; over all blocks
 * that is total / target, which the choice of target makes TILES_PER_WORKER * workers queue items,
 * each tile being heads_kv of them. tile.c holds this as a hard budget. Splits that bound an item:
 * a block needs one for each time that the longest item's keys fit into the keys which its entry
 * may come to have (and one, because the keys there are are cut evenly); all pages of the plan may
 * be one entry's. There are no more than ATTND_BOUND_SPLITS_MAX; a batch that would need more is
 * refused. Fixed splits: a block has one for each step of its entry's keys but the last; they take
 * the place of all others. Merges: a row segment ends where a block begins or ends; levels are
 * partitions of the same rows, so there are no more segments than blocks, and no more than rows.
 * Partial rows: every level's blocks cover a row at most once, and each added tile repeats at most
 * one block's rows. Where equal pages are looked for (share.c), a batch of one level may come to
 * have ATTND_SHARED_LEVELS more, and half as many entries again. With one level only split blocks
 * have partials, at least one added tile each. Parts: each (merge, part) pair stands for at least
 * one partial row of its own.
 */
#include "persistent/plan/layout.h"

#define TARGET_MAX 65536u /* workers, rows of a tile, granule: far beyond any device */

static int in_range(uint32_t value, uint32_t min, uint32_t max)
{
    return value >= min && value <= max;
}

static int limits_valid(const struct attnd_plan_limits *limits)
{
    const struct attnd_plan_target *target = &limits->target;

    return limits->requests <= INT32_MAX && limits->rows <= INT32_MAX &&
           limits->pages <= INT32_MAX && in_range(limits->levels, 1, ATTND_LEVELS_MAX) &&
           in_range(limits->heads_q, 1, ATTND_HEADS_MAX) &&
           in_range(limits->heads_kv, 1, limits->heads_q) &&
           limits->heads_q % limits->heads_kv == 0 &&
           limits->heads_q / limits->heads_kv <= ATTND_GROUP_MAX &&
           in_range(target->tile_workers, 1, TARGET_MAX) &&
           in_range(target->rows_per_tile, 1, TARGET_MAX) &&
           in_range(target->kv_granule, 1, TARGET_MAX);
}

uint32_t attnd_plan_keys_max(const struct attnd_plan_target *target, uint32_t packed_rows)
{
    const uint64_t key_cost = ATTND_COST_KEY + (uint64_t)packed_rows * ATTND_COST_ROW;
    const uint64_t keys = (ATTND_ITEM_COST_MAX - ATTND_COST_TILE) / key_cost;
    const uint64_t granules = keys / target->kv_granule;

    return (granules > 1 ? (uint32_t)granules - 1 : 1) * target->kv_granule;
}

static uint64_t min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Places an array of @count elements at *bytes and moves *bytes behind it, on a cache line. */
static uint64_t place(uint64_t *bytes, uint64_t count, uint64_t element_bytes)
{
    uint64_t offset_bytes = *bytes;
    uint64_t end_bytes = offset_bytes + count * element_bytes;

    *bytes = (end_bytes + ATTND_CACHE_LINE - 1) / ATTND_CACHE_LINE * ATTND_CACHE_LINE;
    return offset_bytes;
}

/* Of @keys that entries have between them, each entry's for at most @entry_blocks. */
static uint64_t fixed_splits_of(const struct attnd_plan_limits *limits, uint64_t keys,
                                uint64_t entry_blocks)
{
    const uint64_t granule = limits->target.kv_granule;

    if (limits->fixed_split == 0)
        return 0;
    const uint64_t step = (limits->fixed_split + granule - 1) / granule * granule;
    return min64(keys / step * entry_blocks, ATTND_FIXED_SPLITS_MAX);
}

/* @shared: entries that share.c may add, on levels of its own. */
static int derive(const struct attnd_plan_limits *limits, uint32_t shared,
                  struct attnd_plan_capacity *capacity)
{
    const uint64_t rows = limits->rows, requests = (uint64_t)limits->requests + shared;
    const uint64_t levels =
        shared && limits->levels <= ATTND_SHARED_LEVELS ? ATTND_SHARED_LEVELS + 1 : limits->levels;
    const uint64_t group = limits->heads_q / limits->heads_kv;
    /* A batch may use fewer heads than the plan allows: blocks then hold more tokens. */
    const uint64_t tokens_max = limits->target.rows_per_tile;
    const uint64_t tokens_min = tokens_max > group ? tokens_max / group : 1;
    const uint64_t items = (uint64_t)limits->target.tile_workers * ATTND_SPLIT_TILES_PER_WORKER;

    /* Levels of a batch may be cut into pieces: place.c. */
    const uint64_t pieces = limits->levels > 1 ? (limits->levels - 1) * requests : 0;

    uint64_t blocks = min64(levels * rows, levels * (rows / tokens_min) + requests + pieces);
    uint64_t splits = (items + limits->heads_kv - 1) / limits->heads_kv;
    const uint64_t keys = min64((uint64_t)limits->pages * limits->page_size, INT32_MAX);
    const uint32_t packed_max = (uint32_t)(tokens_max > group ? tokens_max : group);
    const uint64_t longest = keys / attnd_plan_keys_max(&limits->target, packed_max);
    uint64_t bound_splits = min64(longest ? blocks * (longest + 1) : 0, ATTND_BOUND_SPLITS_MAX);
    /* An entry's rows are cut where pieces begin, too: in the worst case at every request. */
    const uint64_t entry_blocks =
        min64(rows, (rows + tokens_min - 1) / tokens_min + (pieces ? requests : 0));
    uint64_t fixed_splits = fixed_splits_of(limits, keys, entry_blocks);
    const uint64_t added =
        splits + bound_splits > fixed_splits ? splits + bound_splits : fixed_splits;
    uint64_t split_rows = added * min64(tokens_max, rows);
    uint64_t partial_rows = levels * rows + split_rows;
    if (levels == 1)
        partial_rows = min64(partial_rows, 2 * split_rows);
    uint64_t merges = min64(rows, blocks);
    if (partial_rows > INT32_MAX || (blocks + added) * limits->heads_kv > INT32_MAX)
        return -ATTND_E_RANGE;

    const uint64_t line = ATTND_CACHE_LINE / sizeof(int32_t);
    const uint64_t numbers = requests + (pieces ? requests + pieces : 0);
    uint64_t entries = (numbers + line - 1) / line * line;
    uint64_t bytes = sizeof(struct attnd_plan_head) + sizeof(struct attnd_variant);
    *capacity = (struct attnd_plan_capacity){
        .blocks = (uint32_t)blocks,
        .splits = (uint32_t)splits,
        .bound_splits = (uint32_t)bound_splits,
        .fixed_splits = (uint32_t)fixed_splits,
        .tiles = (uint32_t)(blocks + added),
        .merges = (uint32_t)merges,
        .partial_rows = (uint32_t)partial_rows,
        .shared = shared,
        .entries = (uint32_t)entries,
    };
    capacity->entries_offset_bytes = place(&bytes, requests, sizeof(struct attnd_entry));
    capacity->tiles_offset_bytes = place(&bytes, capacity->tiles, sizeof(struct attnd_tile));
    capacity->merges_offset_bytes = place(&bytes, merges, sizeof(struct attnd_merge));
    capacity->merge_parts_offset_bytes = place(&bytes, partial_rows, sizeof(uint32_t));
    capacity->kv_pages_offset_bytes = place(&bytes, limits->pages, sizeof(int32_t));
    capacity->kv_len_offset_bytes = place(&bytes, ATTND_GENERATIONS * entries, sizeof(int32_t));
    capacity->mask_begin_offset_bytes = place(&bytes, requests, sizeof(uint32_t));
    capacity->heap_bytes = bytes;
    return 0;
}

int attnd_plan_capacity(const struct attnd_plan_limits *limits,
                        struct attnd_plan_capacity *capacity)
{
    if (!limits_valid(limits))
        return -ATTND_E_RANGE;
    const uint32_t shared = limits->target.cascade == ATTND_CASCADE_OFF ? 0 : limits->requests / 2;
    /* Where there is no room for more levels, nothing is shared. */
    if (shared && !derive(limits, shared, capacity))
        return 0;
    return derive(limits, 0, capacity);
}

uint64_t attnd_plan_heap_bytes(const struct attnd_plan_limits *limits)
{
    struct attnd_plan_capacity capacity;

    return attnd_plan_capacity(limits, &capacity) ? 0 : capacity.heap_bytes;
}
