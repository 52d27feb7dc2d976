/*
 * fill.c - entries, their pages, and the lengths of generation 0: first what each entry is, then
 * all of it into the heap.
 *
 * Page lists lie one behind the other in kv_pages. An entry of the last level has reserve_pages
 * empty slots behind its list, for advance to fill: the worker's view of an entry (page_begin,
 * page_count) never changes while the plan runs, only lengths and slots beyond them do.
 */
#include "persistent/plan/steps.h"

#include <string.h>

/* As the entry has it: keys from the row's own back, that one included. */
static uint32_t window_of(const struct attnd_batch_view *batch)
{
    if (batch->options & ATTND_OPTION_CHUNK)
        return batch->variant.chunk | ATTND_ENTRY_CHUNK;
    if (!(batch->options & ATTND_OPTION_WINDOW))
        return 0;
    return batch->variant.window_left < INT32_MAX ? (uint32_t)batch->variant.window_left + 1
                                                  : INT32_MAX;
}

/* The entries of level @l, from number @first on, whose pages begin at @page. Return: where the
 * pages of the next level do. */
static uint32_t fill_level(struct attnd_plan *plan, const struct attnd_batch_view *batch,
                           uint32_t l, uint32_t first, uint32_t page)
{
    const struct attnd_level_view *level = &batch->level[l];
    const int last = l + 1 == batch->levels;
    const uint32_t reserve = last ? batch->reserve_pages : 0;
    const struct attnd_entry alike = {.level = plan->shape.levels - batch->levels + l,
                                      .causal = last && (batch->flags & ATTND_BATCH_CAUSAL),
                                      .window = window_of(batch)};

    for (uint32_t r = 0; r < level->entries; r++) {
        struct attnd_entry_state *state = &plan->state[first + r];
        const uint32_t used = (uint32_t)(level->kv_indptr[r + 1] - level->kv_indptr[r]);

        state->entry = alike;
        state->entry.row_begin = (uint32_t)level->qo_indptr[r];
        state->entry.row_count = (uint32_t)(level->qo_indptr[r + 1] - level->qo_indptr[r]);
        state->entry.page_begin = page;
        state->entry.page_count = used + reserve;
        state->pages_used = used;
        state->kv_len = (uint32_t)attnd_level_keys(level, r, plan->pool.page_size);
        state->keys_begin = 0;
        state->page = used ? level->kv_indices[level->kv_indptr[r]] : 0;
        page += used + reserve;
    }
    return page;
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
        for (uint32_t i = 0; i < reserve; i++)
            slots[used + i] = 0;
    }
}

void attnd_plan_copy_entries(struct attnd_plan *plan, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) {
        plan->entries[i] = plan->state[i].entry;
        plan->kv_len[i] = (int32_t)plan->state[i].kv_len;
    }
}

void attnd_plan_fill_entries(struct attnd_plan *plan, const struct attnd_batch_view *batch)
{
    uint32_t index = plan->shared, page = 0;

    for (uint32_t l = 0; l < batch->levels; l++) {
        plan->level_entries[l] = index;
        page = fill_level(plan, batch, l, index, page);
        index += batch->level[l].entries;
    }
    plan->level_entries[batch->levels] = index;
}

void attnd_plan_write_entries(struct attnd_plan *plan, const struct attnd_batch_view *batch)
{
    const uint32_t last = batch->levels - 1;
    uint32_t page = 0;

    attnd_plan_copy_entries(plan, 0, plan->level_entries[batch->levels]);
    for (uint32_t g = 1; g < ATTND_GENERATIONS; g++) /* those of share.c: always the same */
        for (uint32_t i = 0; i < plan->shared; i++)
            plan->kv_len[(size_t)g * plan->capacity.entries + i] = (int32_t)plan->state[i].kv_len;
    for (uint32_t l = 0; l < batch->levels; l++) {
        const struct attnd_level_view *level = &batch->level[l];
        const uint32_t reserve = l == last ? batch->reserve_pages : 0;
        copy_pages(plan, level, plan->state + plan->level_entries[l], page, reserve);
        page += level->pages + level->entries * reserve;
    }
    if (batch->options & ATTND_OPTION_MASK)
        memcpy(plan->mask_begin + plan->level_entries[last], batch->mask_indptr,
               batch->level[last].entries * sizeof(*plan->mask_begin));
}
