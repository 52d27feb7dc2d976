/* batch.c - a step as the service wants it: query rows in order, page lists in CSR form.
 *
 * Requests whose page lists begin alike stand next to each other and form one entry of level 0,
 * which is read once for all of them; each keeps the rest of its pages as an entry of level 1. The
 * causal limit applies to the last level only, so level 0 may hold nothing but pages that lie
 * wholly before the first row of every member. Requests that share nothing are covered at level 0
 * by entries without pages. When nothing at all is shared there is one level. */
#include "bench/replay/engine.h"

#include <stdlib.h>
#include <string.h>

#define RESERVE_TOKENS 64u /* a plan can be advanced this far before it must be set again */

static uint32_t pages_for(uint32_t tokens, uint32_t page_size)
{
    return tokens / page_size + (tokens % page_size != 0);
}

static uint32_t reserve_pages(const struct replay_options *options)
{
    return pages_for(RESERVE_TOKENS, options->page_size);
}

uint32_t replay_batch_pages_max(const struct replay_options *options, uint32_t pages_per_request)
{
    return options->batch * (pages_per_request + reserve_pages(options));
}

static int level_init(struct replay_level *level, uint32_t entries, uint32_t pages)
{
    level->qo_indptr = calloc(entries + 1, sizeof(int32_t));
    level->kv_indptr = calloc(entries + 1, sizeof(int32_t));
    level->kv_indices = calloc(pages, sizeof(int32_t));
    level->last_page_len = calloc(entries, sizeof(int32_t));
    return level->qo_indptr && level->kv_indptr && level->kv_indices && level->last_page_len ? 0
                                                                                             : -1;
}

int replay_batch_init(struct replay_batch *batch, const struct replay_options *options,
                      uint32_t pages_per_request)
{
    uint32_t slots = options->batch, pages = slots * pages_per_request;

    *batch = (struct replay_batch){.slots_max = slots, .reserve_pages = reserve_pages(options)};
    batch->slot = calloc(slots, sizeof(batch->slot[0]));
    batch->list = calloc(slots, sizeof(batch->list[0]));
    batch->group = calloc(slots, sizeof(batch->group[0]));
    batch->advance_len = calloc(2 * (size_t)slots, sizeof(int32_t));
    batch->advance_indptr = calloc(2 * (size_t)slots + 1, sizeof(int32_t));
    batch->advance_pages = calloc(slots, sizeof(int32_t));
    if (!batch->slot || !batch->list || !batch->group || !batch->advance_len ||
        !batch->advance_indptr || !batch->advance_pages)
        return -1;
    return level_init(&batch->level[0], slots, pages) || level_init(&batch->level[1], slots, pages)
               ? -1
               : 0;
}

/* The requests that take part, and with how many rows: every decoding request with one, prefilling
 * ones first come first served with what the chunk budget leaves. */
static void choose_slots(struct replay_batch *batch, const struct replay_engine *engine)
{
    uint32_t budget = engine->options->chunk;

    batch->slots = 0;
    batch->decode_only = true;
    for (uint32_t i = 0; i < engine->running_count; i++) {
        struct replay_request *request = engine->running[i];
        uint32_t rows = 1;

        if (request->stored < request->trace->input_tokens) {
            uint32_t left = request->trace->input_tokens - request->stored;
            rows = left < budget ? left : budget;
            budget -= rows;
            batch->decode_only = false;
        }
        if (rows)
            batch->slot[batch->slots++] = (struct replay_slot){
                .request = request, .row_count = rows, .position_begin = request->stored};
    }
}

/* Orders the slots so that members of a group are neighbours. Return: groups. */
static uint32_t group_slots(struct replay_batch *batch, const struct replay_engine *engine)
{
    struct replay_slot ordered[REPLAY_BATCH_MAX];
    uint32_t groups;

    for (uint32_t i = 0; i < batch->slots; i++) {
        const struct replay_slot *slot = &batch->slot[i];
        batch->list[i] = (struct replay_cascade_list){
            .pages = slot->request->pages,
            .count = engine->job->cache != REPLAY_CACHE_NONE
                         ? slot->position_begin / engine->options->page_size
                         : 0,
            .tag = i};
    }
    groups = replay_cascade_group(batch->list, batch->slots, batch->group);
    for (uint32_t i = 0; i < batch->slots; i++)
        ordered[i] = batch->slot[batch->list[i].tag];
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t i = batch->group[g].begin; i < batch->group[g].end; i++)
            ordered[i].prefix_pages = batch->group[g].pages;
    memcpy(batch->slot, ordered, batch->slots * sizeof(ordered[0]));
    return groups;
}

static void add_entry(struct replay_level *level, uint32_t rows_end, const int32_t *pages,
                      uint32_t pages_count, uint32_t last_page_len)
{
    uint32_t e = level->entries++, first = (uint32_t)level->kv_indptr[e];

    memcpy(level->kv_indices + first, pages, pages_count * sizeof(pages[0]));
    level->kv_indptr[e + 1] = (int32_t)(first + pages_count);
    level->qo_indptr[e + 1] = (int32_t)rows_end;
    level->last_page_len[e] = (int32_t)last_page_len;
}

static void fill_shared_level(struct replay_batch *batch, uint32_t groups, uint32_t page_size)
{
    struct replay_level *level = &batch->level[0];

    for (uint32_t g = 0; g < groups; g++) {
        const struct replay_cascade_group *group = &batch->group[g];
        const struct replay_slot *first = &batch->slot[group->begin];
        const struct replay_slot *last = &batch->slot[group->end - 1];

        add_entry(level, last->row_begin + last->row_count, first->request->pages, group->pages,
                  page_size);
        batch->kv_tokens += (uint64_t)group->pages * page_size;
    }
}

static void fill_last_level(struct replay_batch *batch, uint32_t page_size)
{
    struct replay_level *level = &batch->level[batch->levels - 1];

    for (uint32_t i = 0; i < batch->slots; i++) {
        struct replay_slot *slot = &batch->slot[i];
        uint32_t tokens = slot->position_begin + slot->row_count;

        slot->listed_pages = pages_for(tokens, page_size);
        slot->planned_pages = slot->listed_pages + batch->reserve_pages;
        add_entry(level, slot->row_begin + slot->row_count,
                  slot->request->pages + slot->prefix_pages,
                  slot->listed_pages - slot->prefix_pages, (tokens - 1) % page_size + 1);
        batch->kv_tokens += tokens - slot->prefix_pages * page_size;
        batch->kv_tokens_flat += tokens;
    }
}

void replay_batch_compose(struct replay_batch *batch, const struct replay_engine *engine)
{
    uint32_t page_size = engine->options->page_size, groups;

    choose_slots(batch, engine);
    groups = group_slots(batch, engine);
    batch->rows = 0;
    batch->levels = 1;
    batch->kv_tokens = batch->kv_tokens_flat = 0;
    batch->version = engine->running_version;
    for (uint32_t i = 0; i < batch->slots; i++) {
        batch->slot[i].row_begin = batch->rows;
        batch->rows += batch->slot[i].row_count;
        if (batch->slot[i].prefix_pages)
            batch->levels = 2;
    }
    batch->level[0].entries = batch->level[1].entries = 0;
    if (batch->levels == 2)
        fill_shared_level(batch, groups, page_size);
    fill_last_level(batch, page_size);
    for (uint32_t i = 0; i < batch->levels; i++)
        batch->view[i] = (struct attnd_level){.requests = batch->level[i].entries,
                                              .qo_indptr = batch->level[i].qo_indptr,
                                              .kv_indptr = batch->level[i].kv_indptr,
                                              .kv_indices = batch->level[i].kv_indices,
                                              .kv_last_page_len = batch->level[i].last_page_len};
}

/* Do the same requests decode again, within the pages the plan has room for? */
static bool can_advance(const struct replay_batch *batch, const struct replay_engine *engine)
{
    if (!batch->slots || !batch->decode_only || batch->version != engine->running_version)
        return false;
    for (uint32_t i = 0; i < batch->slots; i++) {
        const struct replay_slot *slot = &batch->slot[i];
        if (pages_for(slot->request->stored + 1, engine->options->page_size) > slot->planned_pages)
            return false;
    }
    return true;
}

bool replay_batch_advance(struct replay_batch *batch, const struct replay_engine *engine)
{
    uint32_t page_size = engine->options->page_size, entry = 0, pages = 0;

    if (!can_advance(batch, engine))
        return false;
    if (batch->levels == 2) /* what is shared does not grow */
        for (; entry < batch->level[0].entries; entry++) {
            const int32_t *indptr = batch->level[0].kv_indptr;
            batch->advance_len[entry] = (indptr[entry + 1] - indptr[entry]) * (int32_t)page_size;
            batch->advance_indptr[entry + 1] = 0;
        }
    for (uint32_t i = 0; i < batch->slots; i++, entry++) {
        struct replay_slot *slot = &batch->slot[i];
        uint32_t tokens = slot->request->stored + 1;

        slot->position_begin = slot->request->stored;
        batch->advance_len[entry] = (int32_t)(tokens - slot->prefix_pages * page_size);
        if (pages_for(tokens, page_size) > slot->listed_pages)
            batch->advance_pages[pages++] = slot->request->pages[slot->listed_pages++];
        batch->advance_indptr[entry + 1] = (int32_t)pages;
    }
    batch->kv_tokens += batch->slots;
    batch->kv_tokens_flat += batch->slots;
    return true;
}
