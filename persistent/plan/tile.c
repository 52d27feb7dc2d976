/*
 * tile.c - query rows into blocks, blocks into tiles.
 *
 * A block is what one pass over KV can serve: whole tokens of one entry, as many as fill
 * rows_per_tile packed rows. Its time is known from the lengths (times.c), and split.c says into
 * how many parts of its keys it is cut, so that workers end at about the same time.
 *
 * The last part of a block is open-ended and takes what later generations append. Interior
 * boundaries stay; a generation that shrinks below one leaves that part empty, which is legal. The
 * first part begins at key 0 even where a window hides it: only keys that a row sees cost anything,
 * and which these are is found anew with the lengths of each run. Where leading keys are read for
 * the entry by another (share.c), it begins behind those.
 *
 * A block is also cut where an item of it would cost more than ATTND_ITEM_COST_MAX, now or once
 * its pages are full: then tiles stand ready for keys that are not there yet. Such splits have a
 * number of their own, so that balance cannot use up what the bound needs.
 */
#include "persistent/plan/private.h"
#include "persistent/visible.h"

#include <assert.h>

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

    block->first = state->keys_begin;
    if (!block->first && seen_of(plan, block) <= most_of(plan, block))
        block->first = (uint32_t)early.begin / granule * granule;
    if (late.end > early.begin && late.end > (int32_t)block->first)
        block->keys = (uint32_t)late.end - block->first;
}

/* What one worker takes for one KV head. */
static double time_ns(const struct attnd_plan *plan, uint32_t keys, uint32_t rows)
{
    return keys * attnd_plan_key_ns(plan, rows) + attnd_plan_start_ns(plan);
}

/* Blocks of entry @index, of at most @tokens rows each, from number @blocks on. Return: how many
 * there are then. */
static uint32_t cut_entry(struct attnd_plan *plan, uint32_t index, uint32_t tokens, uint32_t blocks)
{
    const struct attnd_entry_state *state = &plan->state[index];

    for (uint32_t row = 0; row < state->entry.row_count;) {
        uint32_t left = state->entry.row_count - row;
        uint32_t count = left < tokens ? left : tokens;
        uint32_t rows = packed_rows(plan, count);
        struct attnd_row_block *block = &plan->blocks[blocks++];

        assert(blocks <= plan->capacity.blocks);
        *block = (struct attnd_row_block){
            .entry = index,
            .row_begin = state->entry.row_begin + row,
            .row_count = count,
            .tile_class = rows <= ATTND_TILE_MEMORY_ROWS ? ATTND_TILE_MEMORY : ATTND_TILE_COMPUTE};
        visible_keys(plan, block);
        block->time_ns = (float)time_ns(plan, block->keys, rows);
        row += count;
    }
    return blocks;
}

/* The blocks of all levels. The last level's entries always get theirs, so every row has a tile
 * even where it sees nothing (it may, after an advance); an entry of another level that has no
 * pages now will never have any and adds nothing. */
static void cut_batch(struct attnd_plan *plan)
{
    const uint32_t rows_per_tile = plan->limits.target.rows_per_tile;
    const uint32_t group = plan->shape.group;
    const uint32_t tokens = rows_per_tile > group ? rows_per_tile / group : 1;
    uint32_t index = 0, blocks = 0;

    for (uint32_t l = 0; l < plan->shape.levels; l++) {
        plan->level_blocks[l] = blocks;
        for (; index < plan->shape.entries && plan->state[index].entry.level == l; index++)
            if (plan->state[index].pages_used || l + 1 == plan->shape.levels)
                blocks = cut_entry(plan, index, tokens, blocks);
    }
    plan->level_blocks[plan->shape.levels] = blocks;
}

/* How one block is cut along KV. */
struct cut {
    uint32_t parts; /* of the keys that it has now, about equal */
    uint32_t tail;  /* more behind them, for keys that an advance may bring */
    uint32_t step;  /* keys of each of these */
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
    uint32_t begin = plan->state[block->entry].keys_begin;

    block->tile_begin = tiles;
    block->tile_count = all;
    block->partial = all > 1;
    for (uint32_t part = 1; part <= all; part++) {
        const uint32_t end =
            part < cut->parts ? part_begin(plan, block, part, cut->parts) : begin + cut->step;
        const uint32_t from = begin > block->first ? begin : block->first;
        const uint32_t to = part < all && end < last ? end : last;
        const uint32_t keys = to > from ? to - from : 0;
        const uint64_t cost = attnd_item_cost(keys, rows);
        plan->tile_ns[tiles] = (float)time_ns(plan, keys, rows);
        plan->built[tiles++] = (struct attnd_tile){
            .entry = block->entry,
            .row_begin = block->row_begin,
            .row_count = block->row_count,
            .kv_begin = begin,
            .kv_end = part < all ? end : ATTND_KV_OPEN,
            .partial = ATTND_NONE,
            .cost = cost > UINT32_MAX ? UINT32_MAX : (uint32_t)cost,
            .tile_class = block->tile_class,
            .of_entry = plan->state[block->entry].entry,
        };
        begin = end;
    }
    return tiles;
}

static int refuse_block(const struct attnd_plan *plan, const struct attnd_row_block *block,
                        uint32_t splits_left, struct attnd_fault *fault)
{
    const uint32_t entry = block->entry > plan->shared ? block->entry - plan->shared : 0;

    return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_LEN, entry,
                           reach_of(plan, block),
                           (int64_t)most_of(plan, block) * (splits_left + 1));
}

int attnd_plan_build_tiles(struct attnd_plan *plan, struct attnd_fault *fault)
{
    cut_batch(plan);
    const uint32_t blocks = plan->level_blocks[plan->shape.levels];
    const struct attnd_splits splits = attnd_plan_choose_splits(plan);
    uint32_t splits_left = plan->capacity.splits, bound_left = plan->capacity.bound_splits;
    uint32_t tiles = 0, memories = 0;

    for (uint32_t b = 0; b < blocks; b++) {
        struct attnd_row_block *block = &plan->blocks[b];
        const uint32_t nth = block->tile_class == ATTND_TILE_MEMORY ? ++memories : 0;
        const struct attnd_split *how =
            nth > splits.unhalved ? &splits.halves : &splits.of[block->tile_class];
        uint32_t parts = attnd_plan_split_parts(plan, block, how);
        if (parts > 1 && nth > splits.unhalved + splits.halved - splits.halved / 2)
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
