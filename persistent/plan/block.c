/*
 * block.c - query rows into blocks, and which keys each block may cost.
 *
 * A block is what one pass over KV can serve: whole tokens of one entry, as many as fill
 * rows_per_tile packed rows. Its time is known from the lengths and from what its rows see of them
 * (times.c).
 */
#include "persistent/plan/block.h"
#include "persistent/plan/layout.h"
#include "persistent/plan/place.h"
#include "persistent/plan/times.h"
#include "persistent/visible.h"

#include <assert.h>

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

/* Most blocks do even if they were the largest there are, and saw all: no more is asked of those.
 */
int attnd_block_fits(const struct attnd_plan *plan, const struct attnd_row_block *block)
{
    return attnd_block_reach(plan, block) <= plan->keys_any ||
           attnd_block_seen(plan, block) <= attnd_block_keys_max(plan, block);
}

struct attnd_entry attnd_block_entry(const struct attnd_plan *plan,
                                     const struct attnd_row_block *block)
{
    const struct attnd_entry *placed = &plan->state[block->placed].entry;
    struct attnd_entry entry = plan->state[block->entry].entry;

    entry.row_begin = placed->row_begin;
    entry.row_count = placed->row_count;
    entry.behind = block->behind;
    return entry;
}

/* The keys that the block's rows see, from a granule's beginning on. Both ends of what a row sees
 * grow with the row. A window that may cost more than an item does is cut like all keys there are:
 * after an advance to shorter lengths the first part may have to hold any of them. */
static void visible_keys(const struct attnd_plan *plan, struct attnd_row_block *block)
{
    const struct attnd_entry_state *state = &plan->state[block->entry];
    const uint32_t granule = plan->limits.target.kv_granule, top = block->row_begin;
    const int32_t kv_len = (int32_t)state->kv_len;
    struct attnd_entry entry = attnd_block_entry(plan, block);

    entry.behind = (uint32_t)block->keys_behind;
    const struct attnd_visible early = attnd_visible_range(&entry, kv_len, top);
    const struct attnd_visible late =
        attnd_visible_range(&entry, kv_len, top + block->row_count - 1);

    block->first = state->keys_begin;
    if (early.begin && !block->first && attnd_block_fits(plan, block))
        block->first = (uint32_t)early.begin / granule * granule;
    if (late.end > early.begin && late.end > (int32_t)block->first)
        block->keys = (uint32_t)late.end - block->first;
}

/* Rows [row, end) of @like's entry into blocks of at most @tokens rows each, from number @blocks
 * on. Return: how many there are then. In line, so that @like stays in registers: what was just
 * written field by field cannot be loaded as a whole before all of that is through. */
static inline __attribute__((always_inline)) uint32_t cut_rows(struct attnd_plan *plan,
                                                               const struct attnd_row_block *like,
                                                               uint32_t row, uint32_t end,
                                                               uint32_t tokens, uint32_t blocks)
{
    while (row < end) {
        uint32_t count = end - row < tokens ? end - row : tokens;
        uint32_t rows = attnd_block_packed_rows(plan, count);
        struct attnd_row_block *block = &plan->blocks[blocks++];

        assert(blocks <= plan->capacity.blocks);
        *block = (struct attnd_row_block){
            .entry = like->entry,
            .row_begin = row,
            .row_count = count,
            .placed = like->placed,
            .behind = like->behind,
            .keys_behind = like->keys_behind,
            .tile_class = rows <= ATTND_TILE_MEMORY_ROWS ? ATTND_TILE_MEMORY : ATTND_TILE_COMPUTE};
        visible_keys(plan, block);
        block->time_ns = (float)attnd_plan_item_ns(plan, block->keys, rows);
        row += count;
    }
    return blocks;
}

/* Likewise, entry @index. */
static uint32_t cut_entry(struct attnd_plan *plan, uint32_t index, uint32_t tokens, uint32_t blocks)
{
    const struct attnd_entry *entry = &plan->state[index].entry;
    const struct attnd_row_block like = {.entry = index, .placed = index};

    return cut_rows(plan, &like, entry->row_begin, entry->row_begin + entry->row_count, tokens,
                    blocks);
}

/* Are blocks of earlier levels those of pieces? With fixed splits a request's are its own. */
static int cuts_pieces(const struct attnd_plan *plan)
{
    return attnd_plan_in_pieces(plan) || plan->shape.options & ATTND_OPTION_FIXED_SPLIT;
}

/* Likewise, all pieces of an earlier level. */
static uint32_t cut_pieces(struct attnd_plan *plan, uint32_t level, uint32_t tokens,
                           uint32_t blocks)
{
    struct attnd_piece_walk walk = attnd_plan_walk_pieces(plan, level);
    const int placed = attnd_plan_in_pieces(plan);
    uint32_t place = plan->level_places[level];

    for (; attnd_plan_next_piece(plan, &walk); place++) {
        struct attnd_row_block like = {.entry = walk.entry, .placed = walk.entry};

        if (placed) {
            like.placed = walk.behind[plan->shape.levels - 1];
            like.behind = place;
            like.keys_behind = attnd_plan_keys_behind(plan, &walk, NULL);
        }
        if (plan->state[walk.entry].pages_used)
            blocks = cut_rows(plan, &like, walk.row, walk.row_end, tokens, blocks);
    }
    return blocks;
}

/* The last level's entries always get blocks, so every row has a tile even where it sees nothing
 * (it may, after an advance); an entry of another level that has no pages now will never have any
 * and adds nothing. */
void attnd_plan_cut_blocks(struct attnd_plan *plan)
{
    const uint32_t rows_per_tile = plan->limits.target.rows_per_tile;
    const uint32_t group = plan->shape.group;
    const uint32_t tokens = rows_per_tile > group ? rows_per_tile / group : 1;
    uint32_t index = 0, blocks = 0;

    plan->keys_any =
        attnd_plan_keys_max(&plan->limits.target, attnd_block_packed_rows(plan, tokens));

    for (uint32_t l = 0; l < plan->shape.levels; l++) {
        plan->level_blocks[l] = blocks;
        if (cuts_pieces(plan) && l + 1 < plan->shape.levels) {
            blocks = cut_pieces(plan, l, tokens, blocks);
            index = plan->level_entries[l + 1];
        }
        for (; index < plan->shape.entries && plan->state[index].entry.level == l; index++)
            if (plan->state[index].pages_used || l + 1 == plan->shape.levels)
                blocks = cut_entry(plan, index, tokens, blocks);
    }
    plan->level_blocks[plan->shape.levels] = blocks;
}
