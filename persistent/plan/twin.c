/*
 * twin.c - what runs of several sessions may read at the same time (persistent/turns.h).
 *
 * Sessions that attach one pool may decode behind one prefix, each with a plan of its own. No plan
 * can read it for both, because neither may wait for the other. But if both are queued at the same
 * layer, and take items alternately, the second reads what the first has just brought into a cache.
 * A plan is known (reads_first, of its head) by 1 + the page with which the block begins that gains
 * most. Full tiles of rows gain nothing: their products take as long, and the next tile's rows read
 * the same keys anyway.
 */
#include "persistent/plan/block.h"
#include "persistent/plan/steps.h"
#include "persistent/plan/times.h"

/* The first of two twins ends later than it would alone, so reading again must save some time. */
#define TWIN_NS 2000.0

/* Of all heads, if all workers read its keys out of a cache. */
static double saved_ns(const struct attnd_plan *plan, const struct attnd_row_block *block)
{
    const uint32_t packed_rows = attnd_block_packed_rows(plan, block->row_count);
    if (packed_rows >= plan->limits.target.rates.rows_step)
        return 0;
    const double again_ns =
        attnd_plan_again_ns(plan, packed_rows) / plan->limits.target.tile_workers;

    return (attnd_plan_bytes_ns(plan) - again_ns) * block->keys * plan->shape.heads_kv;
}

uint64_t attnd_plan_reads_first(const struct attnd_plan *plan)
{
    double most_ns = TWIN_NS;
    uint64_t reads = 0;

    for (uint32_t b = 0; b < plan->level_blocks[plan->shape.levels]; b++) {
        const struct attnd_row_block *block = &plan->blocks[b];
        const struct attnd_entry_state *state = &plan->state[block->entry];
        if (block->first || state->keys_begin || !block->keys)
            continue; /* it does not begin with the first page */
        const double ns = saved_ns(plan, block);
        if (ns < most_ns)
            continue;
        most_ns = ns;
        reads = 1 + (uint64_t)state->page;
    }
    return reads;
}
