/*
 * tile.c - blocks into tiles.
 *
 * split.c says into how many parts of its keys a block is cut, so that workers end at about the
 * same time.
 *
 * The last part of a block is open-ended and takes what later generations append. Interior
 * boundaries stay; a generation that shrinks below one leaves that part empty, which is legal. The
 * first part begins at key 0 even where a window hides it: only keys that a row sees cost anything,
 * and which these are is found anew with the lengths of each run. Where leading keys are read for
 * the entry by another (share.c), it begins behind those.
 *
 * With fixed splits the same keys of a request are always one part, whatever else is in the batch:
 * then results are the same to the bit, and balance is left to chance.
 *
 * A block is also cut where an item of it would cost more than ATTND_ITEM_COST_MAX, now or once
 * its pages are full: then tiles stand ready for keys that are not there yet. Such splits have a
 * number of their own, so that balance cannot use up what the bound needs.
 */
#include "persistent/plan/block.h"
#include "persistent/plan/split.h"
#include "persistent/plan/steps.h"
#include "persistent/plan/times.h"

#include <assert.h>

/* How one block is cut along KV. */
struct cut {
    uint32_t parts; /* of the keys that it has now, about equal */
    uint32_t tail;  /* more behind them, for keys that an advance may bring */
    uint32_t step;  /* keys of each of these */
    uint32_t from;  /* where the first of these is counted from, if there is no other part */
};

/* Where part @part of the keys there are begins; the first begins where the entry's own keys do. */
static uint32_t part_begin(const struct attnd_plan *plan, const struct attnd_row_block *block,
                           uint32_t part, uint32_t parts)
{
    const uint32_t granule = plan->limits.target.kv_granule;
    const uint64_t granules = block->keys / granule;

    assert(parts > 0);
    return part ? block->first + (uint32_t)(granules * part / parts) * granule
                : plan->state[block->entry].keys_begin;
}

/* @parts, and more where one of them would cost more than an item may. */
static struct cut bound_block(const struct attnd_plan *plan, const struct attnd_row_block *block,
                              uint32_t parts)
{
    if (attnd_block_fits(plan, block))
        return (struct cut){.parts = parts};
    const uint32_t granule = plan->limits.target.kv_granule,
                   most = attnd_block_keys_max(plan, block);
    struct cut cut = {.parts = parts, .step = most};

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

/* Each field that is not written below: a compiler clears so many bytes at once by a loop of
 * microcode. */
static void clear_tile(struct attnd_tile *tile)
{
    _Static_assert(sizeof(*tile) == 12 * 4 + sizeof(tile->of_entry) + sizeof(tile->first_merge),
                   "fields that are there");
    tile->partial = ATTND_NONE;
    tile->merge_begin = tile->merge_count = 0;
    tile->parts_alone = tile->before = 0;
    tile->first_merge = (struct attnd_merge){0};
}

/* The entry of a tile of @block. In place: one that was just made field by field cannot be loaded
 * as a whole before all of that is through. */
static void put_entry(const struct attnd_plan *plan, const struct attnd_row_block *block,
                      struct attnd_entry *entry)
{
    *entry = plan->state[block->entry].entry;
    if (block->placed == block->entry)
        return;
    const struct attnd_entry *placed = &plan->state[block->placed].entry;
    entry->row_begin = placed->row_begin;
    entry->row_count = placed->row_count;
    entry->behind = block->behind;
}

/* Emits the tiles of one block; returns the new number of tiles. */
static uint32_t split_block(struct attnd_plan *plan, struct attnd_row_block *block,
                            const struct cut *cut, uint32_t tiles)
{
    const uint32_t rows = attnd_block_packed_rows(plan, block->row_count);
    const uint32_t all = cut->parts + cut->tail;
    const uint32_t last = block->first + block->keys;
    uint32_t begin = plan->state[block->entry].keys_begin;

    block->tile_begin = tiles;
    block->tile_count = all;
    block->partial = all > 1;
    for (uint32_t part = 1; part <= all; part++) {
        const uint32_t end = part < cut->parts
                                 ? part_begin(plan, block, part, cut->parts)
                                 : (begin > cut->from ? begin : cut->from) + cut->step;
        const uint32_t from = begin > block->first ? begin : block->first;
        const uint32_t to = part < all && end < last ? end : last;
        const uint32_t keys = to > from ? to - from : 0;
        const uint64_t cost = attnd_plan_tile_cost(plan, keys, rows);
        struct attnd_tile *tile = &plan->built[tiles++];
        clear_tile(tile);
        tile->entry = block->entry;
        tile->row_begin = block->row_begin;
        tile->row_count = block->row_count;
        tile->kv_begin = begin;
        tile->kv_end = part < all ? end : ATTND_KV_OPEN;
        tile->cost = cost > UINT32_MAX ? UINT32_MAX : (uint32_t)cost;
        tile->tile_class = block->tile_class;
        put_entry(plan, block, &tile->of_entry);
        begin = end;
    }
    return tiles;
}

static int refuse_block(const struct attnd_plan *plan, const struct attnd_row_block *block,
                        uint32_t splits_left, struct attnd_fault *fault)
{
    const uint32_t entry = block->entry > plan->shared ? block->entry - plan->shared : 0;

    return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_LEN, entry,
                           attnd_block_reach(plan, block),
                           (int64_t)attnd_block_keys_max(plan, block) * (splits_left + 1));
}

/* Tiles that fixed splits add, all blocks. */
static uint64_t fixed_splits(const struct attnd_plan *plan, uint32_t blocks, uint32_t fixed_split)
{
    uint64_t splits = 0;

    for (uint32_t b = 0; b < blocks; b++)
        splits += fix_block(plan, &plan->blocks[b], fixed_split).tail;
    return splits;
}

/* Every block as its own keys say. */
static int build_fixed(struct attnd_plan *plan, uint32_t blocks, uint32_t fixed_split,
                       struct attnd_fault *fault)
{
    uint64_t fits = fixed_split;
    uint32_t tiles = 0;

    while (fits < INT32_MAX &&
           fixed_splits(plan, blocks, (uint32_t)fits) > plan->capacity.fixed_splits)
        fits *= 2;
    if (fits > fixed_split)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_FIXED_SPLIT, 0, fixed_split,
                               plan->limits.fixed_split ? (int64_t)fits : 0);
    for (uint32_t b = 0; b < blocks; b++) {
        const struct cut cut = fix_block(plan, &plan->blocks[b], fixed_split);
        tiles = split_block(plan, &plan->blocks[b], &cut, tiles);
    }
    plan->shape.tiles = tiles;
    return 0;
}

/* Parts of @block, the @nth of its class. */
static uint32_t wanted_parts(const struct attnd_plan *plan, const struct attnd_row_block *block,
                             uint32_t nth, const struct attnd_splits *splits)
{
    if (block->tile_class == ATTND_TILE_COMPUTE && plan->mix.fused) {
        const uint32_t granule = plan->limits.target.kv_granule;
        const uint32_t shortest = granule > ATTND_SPLIT_KEYS_MIN ? granule : ATTND_SPLIT_KEYS_MIN;
        const uint32_t most = block->keys / shortest;
        const uint32_t parts = nth > splits->whole && most > 1 ? splits->parts : 1;
        return parts < most ? parts : most > 1 ? most : 1;
    }
    const int halved = block->tile_class == ATTND_TILE_MEMORY && nth > splits->unhalved;
    const struct attnd_split *how = halved ? &splits->halves : &splits->of[block->tile_class];
    const uint32_t parts = attnd_plan_split_parts(plan, block, how);
    const int again = halved && nth > splits->unhalved + splits->halved - splits->halved / 2;

    return parts > 1 && again ? 2 * parts : parts;
}

/* Blocks in parts, or not, so that all workers end at about the same time. */
static int build_balanced(struct attnd_plan *plan, uint32_t blocks, struct attnd_fault *fault)
{
    const struct attnd_splits splits = attnd_plan_choose_splits(plan);
    uint32_t splits_left = plan->capacity.splits, bound_left = plan->capacity.bound_splits;
    uint32_t tiles = 0, seen[2] = {0};

    for (uint32_t b = 0; b < blocks; b++) {
        struct attnd_row_block *block = &plan->blocks[b];
        uint32_t parts = wanted_parts(plan, block, ++seen[block->tile_class], &splits);
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
    attnd_plan_cut_blocks(plan);
    const uint32_t blocks = plan->level_blocks[plan->shape.levels];

    return fixed_split ? build_fixed(plan, blocks, fixed_split, fault)
                       : build_balanced(plan, blocks, fault);
}
