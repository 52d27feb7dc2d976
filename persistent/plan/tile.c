/*
 * tile.c - blocks into tiles.
 *
 * A worker takes queue items
 * (tile x KV head) longest first, so a batch is well spread when no item is large against a
 * worker's share, or when the items happen to come out even. Only if neither holds are blocks split
 * along KV, because a split is not free: its parts go through memory and somebody merges them.
 *
 * The last part of a block is open-ended and takes what later generations append. Interior
 * boundaries stay; a generation that shrinks below one leaves that part empty, which is legal. The
 * first part begins at key 0 even where a window hides it: only keys that a row sees cost anything,
 * and which these are is found anew with the lengths of each run.
 *
 * With fixed splits the same keys of a request are always one part, whatever else is in the batch:
 * then results are the same to the bit, and balance is left to chance.
 *
 * A block is also cut where an item of it would cost more than ATTND_ITEM_COST_MAX, now or once
 * its pages are full: then tiles stand ready for keys that are not there yet. Such splits have a
 * number of their own, so that balance cannot use up what the bound needs.
 */
#include "persistent/plan/private.h"

#include <assert.h>

/* Unsplit is good enough when it is at most 1/8 slower than perfect. */
#define BALANCE_SLACK 1.125
/* A finer split must end by this much earlier. */
#define SPLIT_GAIN 0.95

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
static double finish_of(const struct attnd_plan *plan, const struct attnd_blocks *blocks,
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
static struct split choose_split(const struct attnd_plan *plan, const struct attnd_blocks *blocks)
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
static uint32_t halved_blocks(const struct attnd_plan *plan, const struct attnd_blocks *blocks)
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
    uint32_t from;  /* where the first of these is counted from, if there is no other part */
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
    const uint32_t granule = plan->limits.target.kv_granule,
                   most = attnd_block_keys_max(plan, block);
    struct cut cut = {.parts = parts, .step = most};

    if (attnd_block_seen(plan, block) <= most)
        return cut;
    if (block->keys > most) {
        const uint32_t step = most / granule;
        assert(step > 0);
        const uint32_t needed = (block->keys / granule + step - 1) / step;
        cut.parts = needed > parts ? needed : parts;
    }
    const uint32_t open =
        attnd_block_reach(plan, block) - part_begin(plan, block, cut.parts - 1, cut.parts);
    if (open > most + granule)
        cut.tail = (open - 1) / most;
    return cut;
}

/* Keys of a fixed split, of a block of so many rows. */
static uint32_t fixed_step(const struct attnd_plan *plan, const struct attnd_row_block *block,
                           uint32_t fixed_split)
{
    const uint64_t granule = plan->limits.target.kv_granule;
    const uint64_t step = (fixed_split + granule - 1) / granule * granule;
    const uint32_t most = attnd_block_keys_max(plan, block);

    return step < most ? (uint32_t)step : most;
}

/* At every multiple of a step, as far as the pages reach: nothing but the block itself decides. The
 * steps that a window hides are one part with the first that it shows. */
static struct cut fix_block(const struct attnd_plan *plan, const struct attnd_row_block *block,
                            uint32_t fixed_split)
{
    const uint32_t step = fixed_step(plan, block, fixed_split);
    const uint32_t reach = attnd_block_reach(plan, block);
    const uint32_t from = block->first / step * step;

    return (struct cut){.parts = 1,
                        .tail = reach > from ? (reach - from - 1) / step : 0,
                        .step = step,
                        .from = from};
}

/* Emits the tiles of one block; returns the new number of tiles. */
static uint32_t split_block(struct attnd_plan *plan, struct attnd_row_block *block,
                            const struct cut *cut, uint32_t tiles)
{
    const uint32_t rows = attnd_block_packed_rows(plan, block->row_count);
    const uint32_t all = cut->parts + cut->tail;
    const uint32_t last = block->first + block->keys;
    uint32_t begin = 0;

    block->tile_begin = tiles;
    block->tile_count = all;
    block->partial = all > 1;
    for (uint32_t part = 1; part <= all; part++) {
        const uint32_t end = part < cut->parts
                                 ? part_begin(plan, block, part, cut->parts)
                                 : (begin > cut->from ? begin : cut->from) + cut->step;
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
                           attnd_block_reach(plan, block),
                           (int64_t)attnd_block_keys_max(plan, block) * (splits_left + 1));
}

/* Tiles that fixed splits add, all blocks. */
static uint64_t fixed_splits(const struct attnd_plan *plan, const struct attnd_blocks *blocks,
                             uint32_t fixed_split)
{
    uint64_t splits = 0;

    for (uint32_t b = 0; b < blocks->count; b++)
        splits += fix_block(plan, &plan->blocks[b], fixed_split).tail;
    return splits;
}

/* Every block as its own keys say. */
static int build_fixed(struct attnd_plan *plan, const struct attnd_blocks *blocks,
                       uint32_t fixed_split, struct attnd_fault *fault)
{
    uint64_t fits = fixed_split;
    uint32_t tiles = 0;

    while (fits < INT32_MAX &&
           fixed_splits(plan, blocks, (uint32_t)fits) > plan->capacity.fixed_splits)
        fits *= 2;
    if (fits > fixed_split)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_FIXED_SPLIT, 0, fixed_split,
                               plan->limits.fixed_split ? (int64_t)fits : 0);
    for (uint32_t b = 0; b < blocks->count; b++) {
        const struct cut cut = fix_block(plan, &plan->blocks[b], fixed_split);
        tiles = split_block(plan, &plan->blocks[b], &cut, tiles);
    }
    plan->shape.tiles = tiles;
    return 0;
}

/* Blocks in parts, or not, so that all workers end at about the same time. */
static int build_balanced(struct attnd_plan *plan, const struct attnd_blocks *blocks,
                          struct attnd_fault *fault)
{
    const struct split split = choose_split(plan, blocks);
    const uint32_t halved = split.target > 0 ? 0 : halved_blocks(plan, blocks);
    const struct split halves = {(double)blocks->cost_max / 2, 0.5, ATTND_HALVES_KEYS_MIN};
    uint32_t splits_left = plan->capacity.splits, bound_left = plan->capacity.bound_splits;
    uint32_t tiles = 0;

    for (uint32_t b = 0; b < blocks->count; b++) {
        struct attnd_row_block *block = &plan->blocks[b];
        const struct split *how = b < blocks->count - halved ? &split : &halves;
        uint32_t parts = split_parts(plan, block, how);
        if (parts > 1 && b >= blocks->count - halved / 2)
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

int attnd_plan_build_tiles(struct attnd_plan *plan, uint32_t fixed_split, struct attnd_fault *fault)
{
    const struct attnd_blocks blocks = attnd_plan_cut_blocks(plan);

    return fixed_split ? build_fixed(plan, &blocks, fixed_split, fault)
                       : build_balanced(plan, &blocks, fault);
}
