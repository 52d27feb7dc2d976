/*
 * trial_tables.c - which pages a batch lists, and how much of each anybody sees.
 *
 * Lists are first made of numbers 0..pages_used_count-1, which is where sharing is decided; the
 * numbers become page ids last.
 */
#include "tests/support/trial/trial_internal.h"

#include "tests/support/harness/check.h"

#include <string.h>

/* Leading pages that requests of the last level may share: seen whole by all, stored to by none. */
static int32_t leading_pages(const struct random_batch *batch)
{
    const struct random_level *last = &batch->level[batch->levels - 1];
    int32_t whole = INT32_MAX;

    for (uint32_t e = 0; e < last->requests; e++)
        for (uint32_t s = 0; s < batch->steps; s++) {
            const struct random_entry *entry = &last->entry[e];
            int32_t tokens = entry->kv_len[s] - (batch->append ? entry->qo_len : 0);
            whole = tokens < whole ? tokens : whole;
        }
    return last->requests ? whole / (int32_t)batch->shape.page_size : 0;
}

/* Fills list with numbers of used pages, 0..pages_used_count-1. */
static void number_pages(struct trial *trial, struct prng *prng)
{
    const struct random_batch *batch = &trial->batch;
    const int32_t leading = batch->sharing == SHARE_LEADING ? leading_pages(batch) : 0;
    uint32_t total = 0, next = 0;

    for (uint32_t l = 0; l < batch->levels; l++)
        total += (uint32_t)trial->level[l].list_indptr[batch->level[l].requests];
    const uint32_t distinct = (total + 1) / 2;

    for (uint32_t l = 0; l < batch->levels; l++)
        for (uint32_t e = 0; e < batch->level[l].requests; e++) {
            struct trial_level *level = &trial->level[l];
            int32_t *list = level->list + level->list_indptr[e];
            int32_t count = level->list_indptr[e + 1] - level->list_indptr[e];
            for (int32_t i = 0; i < count; i++) {
                if (batch->sharing == SHARE_ANY)
                    list[i] = (int32_t)prng_below(prng, distinct);
                else if (l + 1 == batch->levels && e > 0 && i < leading)
                    list[i] = level->list[i];
                else
                    list[i] = (int32_t)next++;
            }
        }
    trial->pages_used_count = batch->sharing == SHARE_ANY ? distinct : next;
}

/* How far each used page is seen by anyone at any step. */
static void measure_pages(struct trial *trial)
{
    const struct random_batch *batch = &trial->batch;
    const int32_t page_size = (int32_t)batch->shape.page_size;

    for (uint32_t l = 0; l < batch->levels; l++)
        for (uint32_t e = 0; e < batch->level[l].requests; e++) {
            const struct trial_level *level = &trial->level[l];
            int32_t kv_max = 0;
            for (uint32_t s = 0; s < batch->steps; s++)
                if (batch->level[l].entry[e].kv_len[s] > kv_max)
                    kv_max = batch->level[l].entry[e].kv_len[s];
            for (int32_t i = level->list_indptr[e]; i < level->list_indptr[e + 1]; i++) {
                int32_t *filled = &trial->filled[level->list[i]];
                int32_t tokens = kv_max < page_size ? kv_max : page_size;
                *filled = tokens > *filled ? tokens : *filled;
                kv_max -= tokens;
            }
        }
}

/* Used page i is number (start + i * stride) of the window: distinct, scattered, and the same for
 * every process that was given the same pages. */
static void choose_pages(struct trial *trial, struct prng *prng)
{
    const struct engine *engine = trial->engine;
    const uint32_t window = engine->window_end - engine->window_begin;
    const uint32_t start = prng_below(prng, window);
    uint32_t stride, a, b;

    do { /* coprime with the window */
        stride = 1 + prng_below(prng, window);
        for (a = window, b = stride; b;) {
            uint32_t rest = a % b;
            a = b;
            b = rest;
        }
    } while (a != 1);
    CHECK(trial->pages_used_count <= window);
    for (uint32_t i = 0; i < trial->pages_used_count; i++)
        trial->pages_used[i] =
            engine->page_ids[engine->window_begin + (start + (uint64_t)i * stride) % window];
    for (uint32_t l = 0; l < trial->batch.levels; l++) {
        struct trial_level *level = &trial->level[l];
        for (int32_t i = 0; i < level->list_indptr[trial->batch.level[l].requests]; i++)
            level->list[i] = trial->pages_used[level->list[i]];
    }
}

static void begin_level(struct trial *trial, uint32_t l)
{
    const struct random_batch *batch = &trial->batch;
    const int32_t page_size = (int32_t)batch->shape.page_size;
    struct trial_level *level = &trial->level[l];

    for (uint32_t e = 0; e < batch->level[l].requests; e++) {
        int32_t pages = random_batch_pages(batch, l, e, 0);
        level->qo_indptr[e + 1] = level->qo_indptr[e] + batch->level[l].entry[e].qo_len;
        level->kv_indptr[e + 1] = level->kv_indptr[e] + pages;
        level->list_indptr[e + 1] =
            level->list_indptr[e] + random_batch_pages(batch, l, e, batch->steps - 1);
        /* Of an empty list it is not to be looked at. */
        level->last_page_len[e] =
            pages ? batch->level[l].entry[e].kv_len[0] - page_size * (pages - 1) : -77;
    }
    level->list =
        trial_allocate((size_t)level->list_indptr[batch->level[l].requests], sizeof(*level->list));
    level->kv_indices = trial_allocate((size_t)level->kv_indptr[batch->level[l].requests],
                                       sizeof(*level->kv_indices));
}

void trial_begin_tables(struct trial *trial, struct prng *prng)
{
    const struct random_batch *batch = &trial->batch;

    for (uint32_t l = 0; l < batch->levels; l++)
        begin_level(trial, l);
    number_pages(trial, prng);
    trial->pages_used = trial_allocate(trial->pages_used_count, sizeof(*trial->pages_used));
    trial->filled = trial_allocate(trial->pages_used_count, sizeof(*trial->filled));
    memset(trial->filled, 0, trial->pages_used_count * sizeof(*trial->filled));
    measure_pages(trial);
    if (trial->pages_used_count)
        choose_pages(trial, prng);
    for (uint32_t l = 0; l < batch->levels; l++) {
        struct trial_level *level = &trial->level[l];
        for (uint32_t e = 0; e < batch->level[l].requests; e++)
            memcpy(level->kv_indices + level->kv_indptr[e], level->list + level->list_indptr[e],
                   (size_t)(level->kv_indptr[e + 1] - level->kv_indptr[e]) * sizeof(int32_t));
    }
}
