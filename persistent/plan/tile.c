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
 * boundaries stay; a generation that shrinks below one leaves that part empty, which is legal.
 */
#include "persistent/plan/private.h"

#include <assert.h>

/* Unsplit is good enough when it is at most 1/8 slower than perfect. */
#define BALANCE_SLACK 1.125

struct batch_blocks {
    uint32_t tokens; /* rows of a full one */
    uint32_t count;
    double cost; /* of one KV head; double: the sum of many long blocks may exceed 64 bits */
    uint64_t cost_max;
};

static uint64_t tile_cost(uint32_t keys, uint32_t packed_rows)
{
    return (uint64_t)keys * (ATTND_COST_KEY + (uint64_t)packed_rows * ATTND_COST_ROW) +
           ATTND_COST_TILE;
}

static uint32_t packed_rows(const struct attnd_plan *plan, uint32_t row_count)
{
    return row_count * plan->shape.group;
}

/* Keys that the last of the entry's first @rows rows sees. */
static uint32_t visible_keys(const struct attnd_entry_state *state, uint32_t rows)
{
    if (!state->entry.causal)
        return state->kv_len;
    int64_t keys = (int64_t)state->kv_len - state->entry.row_count + rows;
    return keys > 0 ? (uint32_t)keys : 0;
}

static void cut_entry(struct attnd_plan *plan, uint32_t index, struct batch_blocks *blocks)
{
    const struct attnd_entry_state *state = &plan->state[index];

    for (uint32_t row = 0; row < state->entry.row_count;) {
        uint32_t left = state->entry.row_count - row;
        uint32_t count = left < blocks->tokens ? left : blocks->tokens;
        uint32_t keys = visible_keys(state, row + count);
        uint64_t cost = tile_cost(keys, packed_rows(plan, count));

        assert(blocks->count < plan->capacity.blocks);
        plan->blocks[blocks->count++] = (struct attnd_block){
            .entry = index,
            .row_begin = state->entry.row_begin + row,
            .row_count = count,
            .keys = keys,
            .cost = cost,
        };
        blocks->cost += (double)cost;
        blocks->cost_max = cost > blocks->cost_max ? cost : blocks->cost_max;
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
    struct batch_blocks blocks = {.tokens = rows_per_tile > group ? rows_per_tile / group : 1};
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

/* The cost an item should have, for splitting; 0 if no block should be split. Longest-first leaves
 * the last worker at most one item behind the average; items of equal size end in whole waves.
 * Whichever bound is tighter for the unsplit batch decides. */
static double split_target(const struct attnd_plan *plan, const struct batch_blocks *blocks)
{
    const uint32_t workers = plan->limits.target.tile_workers;
    const uint64_t items = (uint64_t)blocks->count * plan->shape.heads_kv;
    const uint64_t waves = (items + workers - 1) / workers;
    const double share = blocks->cost * plan->shape.heads_kv / workers;
    const double longest = (double)blocks->cost_max;
    double finish = share + longest;

    if (finish > (double)waves * longest)
        finish = (double)waves * longest;
    return finish <= share * BALANCE_SLACK ? 0 : share / ATTND_SPLIT_TILES_PER_WORKER;
}

/* Parts for one block: cost / target, rounded, as long as parts stay worth it. */
static uint32_t split_parts(const struct attnd_plan *plan, const struct attnd_block *block,
                            double target, uint32_t splits_left)
{
    const uint32_t granule = plan->limits.target.kv_granule;
    const uint32_t shortest = granule > ATTND_SPLIT_KEYS_MIN ? granule : ATTND_SPLIT_KEYS_MIN;

    if (target <= 0)
        return 1;
    uint32_t parts = block->keys / shortest;
    double wanted = (double)block->cost / target + 0.5;
    if (parts > wanted)
        parts = (uint32_t)wanted;
    if (parts > splits_left + 1)
        parts = splits_left + 1;
    return parts ? parts : 1;
}

/* Emits the tiles of one block; returns the new number of tiles. */
static uint32_t split_block(struct attnd_plan *plan, struct attnd_block *block, uint32_t parts,
                            uint32_t tiles)
{
    const uint32_t granule = plan->limits.target.kv_granule;
    /* At least one a part: split_parts() sees to it. */
    const uint64_t granules = parts > 1 ? block->keys / granule : 0;
    const uint32_t rows = packed_rows(plan, block->row_count);
    uint32_t begin = 0;

    block->tile_begin = tiles;
    block->tile_count = parts;
    block->partial = parts > 1;
    for (uint32_t part = 1; part <= parts; part++) {
        uint32_t end = part < parts ? (uint32_t)(granules * part / parts) * granule : block->keys;
        uint64_t cost = tile_cost(end - begin, rows);
        plan->built[tiles++] = (struct attnd_tile){
            .entry = block->entry,
            .row_begin = block->row_begin,
            .row_count = block->row_count,
            .kv_begin = begin,
            .kv_end = part < parts ? end : ATTND_KV_OPEN,
            .partial = ATTND_NONE,
            .cost = cost > UINT32_MAX ? UINT32_MAX : (uint32_t)cost,
            .tile_class = rows <= ATTND_TILE_MEMORY_ROWS ? ATTND_TILE_MEMORY : ATTND_TILE_COMPUTE,
        };
        begin = end;
    }
    return tiles;
}

void attnd_plan_build_tiles(struct attnd_plan *plan)
{
    const struct batch_blocks blocks = cut_batch(plan);
    const double target = split_target(plan, &blocks);
    uint32_t splits_left = plan->capacity.splits, tiles = 0;

    for (uint32_t b = 0; b < blocks.count; b++) {
        uint32_t parts = split_parts(plan, &plan->blocks[b], target, splits_left);
        splits_left -= parts - 1;
        tiles = split_block(plan, &plan->blocks[b], parts, tiles);
    }
    plan->shape.tiles = tiles;
}
