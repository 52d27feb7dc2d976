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
static int32_t planned_length(const struct attnd_level_view *level, uint32_t entry, uint32_t pages,
                              uint32_t page_size)
{
    if (pages == 0)
        return 0;
    return (int32_t)((pages - 1) * page_size) + level->kv_last_page_len[entry];
}

static void copy_pages(struct attnd_plan *plan, const struct attnd_level_view *level,
                       uint32_t first_entry, uint32_t reserve)
{
    const struct attnd_entry_pages *pages = plan->pages + first_entry;

    if (!reserve) { /* the lists lie in the batch as they will in the plan: one copy */
        if (level->pages)
            memcpy(plan->kv_pages + pages[0].begin, level->kv_indices,
                   level->pages * sizeof(int32_t));
        return;
    }
    for (uint32_t r = 0; r < level->entries; r++) {
        int32_t *slots = plan->kv_pages + pages[r].begin;
        memcpy(slots, level->kv_indices + level->kv_indptr[r], pages[r].used * sizeof(int32_t));
        memset(slots + pages[r].used, 0, reserve * sizeof(int32_t));
    }
}

void attnd_plan_fill_entries(struct attnd_plan *plan, const struct attnd_batch_view *batch)
{
    uint32_t index = 0, page = 0;

    for (uint32_t l = 0; l < batch->levels; l++) {
        const struct attnd_level_view *level = &batch->level[l];
        const uint32_t last = l + 1 == batch->levels;
        const uint32_t reserve = last ? batch->reserve_pages : 0;
        const uint32_t first_entry = index;

        for (uint32_t r = 0; r < level->entries; r++, index++) {
            uint32_t used = (uint32_t)(level->kv_indptr[r + 1] - level->kv_indptr[r]);
            plan->pages[index] = (struct attnd_entry_pages){page, used, used + reserve};
            plan->entries[index] = (struct attnd_entry){
                .row_begin = (uint32_t)level->qo_indptr[r],
                .row_count = (uint32_t)(level->qo_indptr[r + 1] - level->qo_indptr[r]),
                .page_begin = page,
                .page_count = used + reserve,
                .level = l,
                .causal = last && (batch->flags & ATTND_BATCH_CAUSAL),
            };
            plan->kv_len[index] = planned_length(level, r, used, plan->pool.page_size);
            page += used + reserve;
        }
        if (level->entries)
            copy_pages(plan, level, first_entry, reserve);
    }
}
