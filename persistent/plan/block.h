/*
 * block.h - rows of an entry in blocks of one pass over KV.
 */
#ifndef ATTND_PERSISTENT_PLAN_BLOCK_H
#define ATTND_PERSISTENT_PLAN_BLOCK_H

#include "persistent/plan/private.h"

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

#endif
