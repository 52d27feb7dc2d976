/*
 * tile.c - query rows into blocks, blocks into tiles.
 *
 * A block is what one pass over KV can serve: whole tokens of one entry, as many as fill
 * rows_per_tile packed rows. Its cost is known from the lengths. A worker takes queue items
 * (tile x KV head) longest first, so a batch is well spread when no item is large against a
 * worker's share, or when the items happen to come out even. Only if neither holds are blocks split
 * along KV, because a split is not free: its parts go through memory and somebody merges them.
 *
 * The last part of a block is open-ended and takes what later generations append. Interior
 * boundaries stay; a generation that shrinks below one leaves that part empty, which is legal. The
 * first part begins at key 0 even where a window hides it: only keys that a row sees cost anything,
 * and which these are is found anew with the lengths of each run.
 *
 * A block is also cut where an item of it would cost more than ATTND_ITEM_COST_MAX, now or once
 * its pages are full: then tiles stand ready for keys that are not there yet. Such splits have a
 * number of their own, so that balance cannot use up what the bound needs.
 */
#include "persistent/plan/private.h"
#include "persistent/visible.h"

#include <assert.h>

/* Unsplit is good enough when it is at most 1/8 slower than perfect. */
#define BALANCE_SLACK 1.125
/* A finer split must end by this much earlier. */
#define SPLIT_GAIN 0.95

struct batch_blocks {
    uint32_t tokens; /* rows of a full one */
    uint32_t count;
    double cost; /* of one KV head; double: the sum of many long blocks may exceed 64 bits */
    uint64_t cost_min, cost_max;
    uint32_t rows_max; /* packed */
};

static uint32_t packed_rows(const struct attnd_plan *plan, uint32_t row_count)
{
    return row_count * plan->shape.group;
}

/* Keys that the block's entry may come to have. */
static uint32_t reach_of(const struct attnd_plan *plan, const struct attnd_row_block *block)
{
    const uint64_t keys =
        (uint64_t)plan->state[block->entry].entry.page_count * plan->pool.page_size;

    return keys < INT32_MAX ? (uint32_t)keys : INT32_MAX;
}

/* Keys that rows of the block may come to see at once: all that there may be, or a window. */
static uint32_t seen_of(const struct attnd_plan *plan, const struct attnd_row_block *block)
{
    const struct attnd_entry *entry = &plan->state[block->entry].entry;
    const uint32_t rows = entry->causal ? block->row_count : entry->row_count;
    const uint64_t seen = (uint64_t)entry->window + rows - 1;
    const uint32_t reach = reach_of(plan, block);

    return entry->window && seen < reach ? (uint32_t)seen : reach;
}

/* What an item of the block may have. */
static uint32_t most_of(const struct attnd_plan *plan, const struct attnd_row_block *block)
{
    return attnd_plan_keys_max(&plan->limits.target, packed_rows(plan, block->row_count));
}

/* The keys that the block's rows see, from a granule's beginning on. Both ends of what a row sees
 * grow with the row. A window that may cost more than an item does is cut like all keys there are:
 * after an advance to shorter lengths the first part may have to hold any of them. */
static void visible_keys(const struct attnd_plan *plan, struct attnd_row_block *block)
{
    const struct attnd_entry_state *state = &plan->state[block->entry];
    const uint32_t granule = plan->limits.target.kv_granule, top = block->row_begin;
    const int32_t kv_len = (int32_t)state->kv_len;
    const struct attnd_visible early = attnd_visible_range(&state->entry, kv_len, top);
    const struct attnd_visible late =
        attnd_visible_range(&state->entry, kv_len, top + block->row_count - 1);

    if (seen_of(plan, block) <= most_of(plan, block))
        block->first = (uint32_t)early.begin / granule * granule;
    block->keys = late.end > early.begin ? (uint32_t)late.end - block->first : 0;
}

static void cut_entry(struct attnd_plan *plan, uint32_t index, struct batch_blocks *blocks)
{
    const struct attnd_entry_state *state = &plan->state[index];

    for (uint32_t row = 0; row < state->entry.row_count;) {
        uint32_t left = state->entry.row_count - row;
        uint32_t count = left < blocks->tokens ? left : blocks->tokens;
        uint32_t rows = packed_rows(plan, count);
        struct attnd_row_block *block = &plan->blocks[blocks->count++];

        assert(blocks->count <= plan->capacity.blocks);
        *block = (struct attnd_row_block){
            .entry = index, .row_begin = state->entry.row_begin + row, .row_count = count};
        visible_keys(plan, block);
        const uint64_t cost = block->cost = attnd_item_cost(block->keys, rows);
        blocks->cost += (double)cost;
        blocks->cost_max = cost > blocks->cost_max ? cost : blocks->cost_max;
        blocks->cost_min = cost < blocks->cost_min ? cost : blocks->cost_min;
        blocks->rows_max = rows > blocks->rows_max ? rows : blocks->rows_max;
        row += count;
    }
}

/* The blocks of all levels. The last level's entries always get theirs, so every row has a tile
 * even where it sees nothing (it may, after an advance); an entry of another level that has no
 * pages now will never have any and adds nothing. */
static struct batch_blocks cut_batch(struct attnd_plan *plan)
{
    const uint32_t rows_per_tile = plan->limits.target.rows_per_tile;
    const uint32_t group = plan->shape.group;
    struct batch_blocks blocks = {.tokens = rows_per_tile > group ? rows_per_tile / group : 1,
                                  .cost_min = UINT64_MAX};
    uint32_t index = 0;

    for (uint32_t l = 0; l < plan->shape.levels; l++) {
        plan->level_blocks[l] = blocks.count;
        for (; index < plan->shape.entries && plan->state[index].entry.level == l; index++)
            if (plan->state[index].pages_used || l + 1 == plan->shape.levels)
                cut_entry(plan, index, &blocks);
    }
    plan->level_blocks[plan->shape.levels] = blocks.count;
    return blocks;
}

/* How blocks are cut along KV: into parts of about @target cost, of at least that much or to the
 * nearest. */
struct split {
    double target;     /* 0: not at all */
    double round;      /* 0 or 0.5 */
    uint32_t shortest; /* keys of a part, at least */
};

static uint32_t split_parts(const struct attnd_plan *plan, const struct attnd_row_block *block,
                            const struct split *split)
{
    const uint32_t granule = plan->limits.target.kv_granule;
    const uint32_t shortest = granule > split->shortest ? granule : split->shortest;

    if (split->target <= 0)
        return 1;
    double wanted = (double)block->cost / split->target + split->round;
    uint32_t parts = block->keys / shortest; /* more are not worth it */
    if (parts > wanted)
        parts = (uint32_t)wanted;
    return parts ? parts : 1;
}

#define COST_CLASSES 32u

/* When the last item is done, all blocks cut as @split says. Two bounds, whichever is tighter:
 * items of the largest cost end in whole waves; and longest first, an item begins when those before
 * it are shared out at the latest, so it ends one of its own cost later. */
static double finish_of(const struct attnd_plan *plan, const struct batch_blocks *blocks,
                        const struct split *split)
{
    const uint32_t workers = plan->limits.target.tile_workers;
    double longest = 0, class_cost[COST_CLASSES] = {0}, list = 0, before = 0;
    uint64_t tiles = 0;

    for (uint32_t b = 0; b < blocks->count; b++) {
        const uint32_t parts = split_parts(plan, &plan->blocks[b], split);
        const double cost = (double)plan->blocks[b].cost / parts;

        tiles += parts;
        longest = cost > longest ? cost : longest;
    }
    for (uint32_t b = 0; b < blocks->count; b++) {
        const uint32_t parts = split_parts(plan, &plan->blocks[b], split);
        const double cost = (double)plan->blocks[b].cost / parts;

        class_cost[(uint32_t)(cost / longest * (COST_CLASSES - 1))] += cost * parts;
    }
    for (uint32_t c = COST_CLASSES; c-- > 0;) {
        before += class_cost[c] * plan->shape.heads_kv / workers;
        const double end = before + longest * (c + 1) / COST_CLASSES;
        list = class_cost[c] > 0 && end > list ? end : list;
    }
    const uint64_t waves = (tiles * plan->shape.heads_kv + workers - 1) / workers;
    const double even = (double)waves * longest;
    const double starts = split->target > 0 ? (double)waves * ATTND_COST_TILE : 0;
    return (even < list ? even : list) + starts;
}

/* Nothing is split if that comes out even. Else a worker's share is one part, because whatever is
 * split more finely pays more for its starts and merges; or two, three or four, if that much is
 * gained. */
static struct split choose_split(const struct attnd_plan *plan, const struct batch_blocks *blocks)
{
    const uint32_t workers = plan->limits.target.tile_workers, heads = plan->shape.heads_kv;
    const double share = blocks->cost * heads / workers;
    const uint64_t waves = ((uint64_t)blocks->count * heads + workers - 1) / workers;
    struct split chosen = {0, 0, ATTND_SPLIT_KEYS_MIN};

    if ((double)waves * (double)blocks->cost_max <= share * BALANCE_SLACK)
        return chosen; /* most batches: no second look at the blocks */
    double best = finish_of(plan, blocks, &chosen);
    if (best <= share * BALANCE_SLACK)
        return chosen;
    for (uint32_t i = 0; i < 2 * ATTND_SPLIT_TILES_PER_WORKER; i++) {
        const uint32_t parts = i / 2 + 1;
        const struct split split = {share / parts, i % 2 ? 0.5 : 0, ATTND_SPLIT_KEYS_MIN};
        const double finish = finish_of(plan, blocks, &split);

        if (finish < best * SPLIT_GAIN) {
            best = finish;
            chosen = split;
        }
    }
    return chosen;
}

/* Blocks at the end that are halved although nothing else is split, and the second half of them
 * once more: those of the last wave, if all are alike and bound by memory. Workers do not get the
 * same share of the bandwidth, so such items end far apart, and the few that are left at the end do
 * not fill the memory. Parts come last, the smallest at the very end. */
static uint32_t halved_blocks(const struct attnd_plan *plan, const struct batch_blocks *blocks)
{
    const uint32_t workers = plan->limits.target.tile_workers, heads = plan->shape.heads_kv;
    const uint64_t items = (uint64_t)blocks->count * heads;

    if (workers < ATTND_HALVES_WORKERS_MIN || items <= workers ||
        blocks->rows_max > ATTND_TILE_MEMORY_ROWS || blocks->cost_max / 2 > blocks->cost_min)
        return 0;
    const uint64_t last = (items - 1) % workers + 1;
    return (uint32_t)((last + heads - 1) / heads);
}

/* How one block is cut along KV. */
struct cut {
    uint32_t parts; /* of the keys that it has now, about equal */
    uint32_t tail;  /* more behind them, for keys that an advance may bring */
    uint32_t step;  /* keys of each of these */
};

/* Where part @part of the keys there are begins; the first begins at key 0. */
static uint32_t part_begin(const struct attnd_plan *plan, const struct attnd_row_block *block,
                           uint32_t part, uint32_t parts)
{
    const uint32_t granule = plan->limits.target.kv_granule;
    const uint64_t granules = block->keys / granule;

    assert(parts > 0);
    return part ? block->first + (uint32_t)(granules * part / parts) * granule : 0;
}

/* @parts, and more where one of them would cost more than an item may. */
static struct cut bound_block(const struct attnd_plan *plan, const struct attnd_row_block *block,
                              uint32_t parts)
{
    const uint32_t granule = plan->limits.target.kv_granule, most = most_of(plan, block);
    struct cut cut = {.parts = parts, .step = most};

    if (seen_of(plan, block) <= most)
        return cut;
    if (block->keys > most) {
        const uint32_t step = most / granule;
        assert(step > 0);
        const uint32_t needed = (block->keys / granule + step - 1) / step;
        cut.parts = needed > parts ? needed : parts;
    }
    const uint32_t open = reach_of(plan, block) - part_begin(plan, block, cut.parts - 1, cut.parts);
    if (open > most + granule)
        cut.tail = (open - 1) / most;
    return cut;
}

/* Emits the tiles of one block; returns the new number of tiles. */
static uint32_t split_block(struct attnd_plan *plan, struct attnd_row_block *block,
                            const struct cut *cut, uint32_t tiles)
{
    const uint32_t rows = packed_rows(plan, block->row_count);
    const uint32_t all = cut->parts + cut->tail;
    const uint32_t last = block->first + block->keys;
    uint32_t begin = 0;

    block->tile_begin = tiles;
    block->tile_count = all;
    block->partial = all > 1;
    for (uint32_t part = 1; part <= all; part++) {
        const uint32_t end =
            part < cut->parts ? part_begin(plan, block, part, cut->parts) : begin + cut->step;
        const uint32_t from = begin > block->first ? begin : block->first;
        const uint32_t to = part < all && end < last ? end : last;
        const uint64_t cost = attnd_item_cost(to > from ? to - from : 0, rows);
        plan->built[tiles++] = (struct attnd_tile){
            .entry = block->entry,
            .row_begin = block->row_begin,
            .row_count = block->row_count,
            .kv_begin = begin,
            .kv_end = part < all ? end : ATTND_KV_OPEN,
            .partial = ATTND_NONE,
            .cost = cost > UINT32_MAX ? UINT32_MAX : (uint32_t)cost,
            .tile_class = rows <= ATTND_TILE_MEMORY_ROWS ? ATTND_TILE_MEMORY : ATTND_TILE_COMPUTE,
            .of_entry = plan->state[block->entry].entry,
        };
        begin = end;
    }
    return tiles;
}

static int refuse_block(const struct attnd_plan *plan, const struct attnd_row_block *block,
                        uint32_t splits_left, struct attnd_fault *fault)
{
    return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_LEN, block->entry,
                           reach_of(plan, block),
                           (int64_t)most_of(plan, block) * (splits_left + 1));
}

int attnd_plan_build_tiles(struct attnd_plan *plan, struct attnd_fault *fault)
{
    const struct batch_blocks blocks = cut_batch(plan);
    const struct split split = choose_split(plan, &blocks);
    const uint32_t halved = split.target > 0 ? 0 : halved_blocks(plan, &blocks);
    const struct split halves = {(double)blocks.cost_max / 2, 0.5, ATTND_HALVES_KEYS_MIN};
    uint32_t splits_left = plan->capacity.splits, bound_left = plan->capacity.bound_splits;
    uint32_t tiles = 0;

    for (uint32_t b = 0; b < blocks.count; b++) {
        struct attnd_row_block *block = &plan->blocks[b];
        const struct split *how = b < blocks.count - halved ? &split : &halves;
        uint32_t parts = split_parts(plan, block, how);
        if (parts > 1 && b >= blocks.count - halved / 2)
            parts *= 2;
        parts = parts > splits_left + 1 ? splits_left + 1 : parts;
        splits_left -= parts - 1;
        const struct cut cut = bound_block(plan, block, parts);
        const uint32_t more = cut.parts + cut.tail - parts;
        if (more > bound_left)
            return refuse_block(plan, block, bound_left, fault);
        bound_left -= more;
        tiles = split_block(plan, block, &cut, tiles);
    }
    plan->shape.tiles = tiles;
    return 0;
}
