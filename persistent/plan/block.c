/*
 * block.c - query rows into blocks, and which keys each block may cost.
 *
 * A block is what one pass over KV can serve: whole tokens of one entry, as many as fill
 * rows_per_tile packed rows. Its cost is known from the lengths and from what its rows see of them.
 */
#include "persistent/plan/private.h"
#include "persistent/visible.h"

#include <assert.h>

uint32_t attnd_block_packed_rows(const struct attnd_plan *plan, uint32_t row_count)
{
    return row_count * plan->shape.group;
}

uint32_t attnd_block_reach(const struct attnd_plan *plan, const struct attnd_row_block *block)
{
    const uint64_t keys =
        (uint64_t)plan->state[block->entry].entry.page_count * plan->pool.page_size;

    return keys < INT32_MAX ? (uint32_t)keys : INT32_MAX;
}

uint32_t attnd_block_seen(const struct attnd_plan *plan, const struct attnd_row_block *block)
{
    const struct attnd_entry *entry = &plan->state[block->entry].entry;
    const uint32_t rows = entry->causal ? block->row_count : entry->row_count;
    const uint64_t seen = (uint64_t)entry->window + rows - 1;
    const uint32_t reach = attnd_block_reach(plan, block);

    return entry->window && seen < reach ? (uint32_t)seen : reach;
}

uint32_t attnd_block_keys_max(const struct attnd_plan *plan, const struct attnd_row_block *block)
{
    return attnd_plan_keys_max(&plan->limits.target,
                               attnd_block_packed_rows(plan, block->row_count));
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

    if (attnd_block_seen(plan, block) <= attnd_block_keys_max(plan, block))
        block->first = (uint32_t)early.begin / granule * granule;
    block->keys = late.end > early.begin ? (uint32_t)late.end - block->first : 0;
}

static void cut_entry(struct attnd_plan *plan, uint32_t index, struct attnd_blocks *blocks)
{
    const struct attnd_entry_state *state = &plan->state[index];

    for (uint32_t row = 0; row < state->entry.row_count;) {
        uint32_t left = state->entry.row_count - row;
        uint32_t count = left < blocks->tokens ? left : blocks->tokens;
        uint32_t rows = attnd_block_packed_rows(plan, count);
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
struct attnd_blocks attnd_plan_cut_blocks(struct attnd_plan *plan)
{
    const uint32_t rows_per_tile = plan->limits.target.rows_per_tile;
    const uint32_t group = plan->shape.group;
    struct attnd_blocks blocks = {.tokens = rows_per_tile > group ? rows_per_tile / group : 1,
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
