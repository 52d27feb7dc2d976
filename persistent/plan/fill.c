/*
 * fill.c - entries, their pages, and the lengths of generation 0.
 *
 * Page lists lie one behind the other in kv_pages. An entry of the last level has reserve_pages
 * empty slots behind its list, for advance to fill: the worker's view of an entry (page_begin,
 * page_count) never changes while the plan runs, only lengths and slots beyond them do.
 */
#include "persistent/plan/private.h"

#include <string.h>

/* kv_last_page_len of an entry without pages is not the caller's to fill in, so it is not read. */
static uint32_t planned_length(const struct attnd_level_view *level, uint32_t r, uint32_t pages,
                               uint32_t page_size)
{
    if (pages == 0)
        return 0;
    return (pages - 1) * page_size + (uint32_t)level->kv_last_page_len[r];
}

/* As the entry has it: keys from the row's own back, that one included. */
static uint32_t window_of(const struct attnd_batch_view *batch)
{
    if (!(batch->options & ATTND_OPTION_WINDOW))
        return 0;
    return batch->variant.window_left < INT32_MAX ? (uint32_t)batch->variant.window_left + 1
                                                  : INT32_MAX;
}

static struct attnd_entry_state entry_of(const struct attnd_plan *plan,
                                         const struct attnd_batch_view *batch, uint32_t l,
                                         uint32_t r, uint32_t page_begin)
{
    const struct attnd_level_view *level = &batch->level[l];
    const int last = l + 1 == batch->levels;
    const uint32_t used = (uint32_t)(level->kv_indptr[r + 1] - level->kv_indptr[r]);

    return (struct attnd_entry_state){
        .entry = {.row_begin = (uint32_t)level->qo_indptr[r],
                  .row_count = (uint32_t)(level->qo_indptr[r + 1] - level->qo_indptr[r]),
                  .page_begin = page_begin,
                  .page_count = used + (last ? batch->reserve_pages : 0),
                  .level = plan->shape.levels - batch->levels + l,
                  .causal = last && (batch->flags & ATTND_BATCH_CAUSAL),
                  .window = last ? window_of(batch) : 0},
        .pages_used = used,
        .kv_len = planned_length(level, r, used, plan->pool.page_size),
    };
}

static void copy_pages(struct attnd_plan *plan, const struct attnd_level_view *level,
                       const struct attnd_entry_state *state, uint32_t page_begin, uint32_t reserve)
{
    if (!reserve) { /* the lists lie in the batch as they will in the plan: one copy */
        if (level->pages)
            memcpy(plan->kv_pages + page_begin, level->kv_indices, level->pages * sizeof(int32_t));
        return;
    }
    for (uint32_t r = 0; r < level->entries; r++) {
        int32_t *slots = plan->kv_pages + state[r].entry.page_begin;
        const uint32_t used = state[r].pages_used;
        memcpy(slots, level->kv_indices + level->kv_indptr[r], used * sizeof(int32_t));
        memset(slots + used, 0, reserve * sizeof(int32_t));
    }
}

void attnd_plan_fill_entries(struct attnd_plan *plan, const struct attnd_batch_view *batch)
{
    uint32_t index = plan->shared, page = 0;

    for (uint32_t l = 0; l < batch->levels; l++) {
        const uint32_t reserve = l + 1 == batch->levels ? batch->reserve_pages : 0;
        const uint32_t first = index, page_begin = page;

        for (uint32_t r = 0; r < batch->level[l].entries; r++, index++) {
            plan->state[index] = entry_of(plan, batch, l, r, page);
            plan->entries[index] = plan->state[index].entry;
            plan->kv_len[index] = (int32_t)plan->state[index].kv_len;
            if (batch->options & ATTND_OPTION_MASK && l + 1 == batch->levels)
                plan->mask_begin[index] = (uint32_t)batch->mask_indptr[r];
            page += plan->state[index].entry.page_count;
        }
        copy_pages(plan, &batch->level[l], plan->state + first, page_begin, reserve);
    }
}
