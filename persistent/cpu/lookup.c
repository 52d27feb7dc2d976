/*
 * lookup.c - page ids and lengths of a run, bounded by its pool and by its plan.
 *
 * They lie in memory that the daemon writes, so every value is bounded where it is read: no page
 * id leads outside the pool, and no length beyond the pages of its entry.
 */
#include "persistent/cpu/lookup.h"

int64_t attnd_cpu_page(const struct attnd_cpu_run *run, const struct attnd_entry *entry,
                       uint32_t index)
{
    int32_t page = run->kv_pages[entry->page_begin + index];
    return page >= 0 && (uint32_t)page < run->pool->pages ? page : -1;
}

uint32_t attnd_cpu_kv_len(const struct attnd_cpu_run *run, uint32_t entry)
{
    uint64_t planned = (uint64_t)run->entries[entry].page_count * run->pool->page_size;
    int32_t len = run->kv_len[entry];
    return len < 0 ? 0 : (uint64_t)len < planned ? (uint32_t)len : (uint32_t)planned;
}

int32_t attnd_cpu_keys_before(const struct attnd_cpu_run *run, uint32_t entry)
{
    const struct attnd_plan_head *plan = run->plan;

    if (!(plan->flags & ATTND_PLAN_PLACED) || !(plan->options & ATTND_OPTION_ROPE_APPEND) ||
        (uint64_t)plan->entries + entry >= plan->entries_max)
        return 0;
    return run->kv_len[plan->entries + entry];
}
