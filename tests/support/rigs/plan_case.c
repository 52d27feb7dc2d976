/* plan_case.c - admitted batches without admission: arrays made to the contract of
 * schemas/batch.h. */
#include "tests/support/rigs/plan_case.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

uint32_t case_below(struct case_source *source, uint32_t count)
{
    if (!source->bytes)
        return prng_below(&source->prng, count);
    uint32_t choice = 0;
    for (uint32_t reach = 1; reach < count && source->bytes_left; reach <<= 8) {
        choice = choice << 8 | *source->bytes++;
        source->bytes_left--;
        if (reach > UINT32_MAX >> 8)
            break;
    }
    return choice % count;
}

void plan_case_begin(struct plan_case *c)
{
    memset(c, 0, sizeof(*c));
    c->pool = (struct attnd_heap_pool){.layers = 1,
                                       .pages = 100000,
                                       .page_size = 16,
                                       .heads_kv = 8,
                                       .dim_qk = 128,
                                       .dim_vo = 128,
                                       .dtype = ATTND_FP16};
    c->limits.target =
        (struct attnd_plan_target){.tile_workers = 2, .rows_per_tile = 128, .kv_granule = 64};
    c->batch.heads_q = 32;
    c->batch.dtype = ATTND_FP16;
    c->batch.sm_scale = 0.1f;
}

void plan_case_begin_gpu(struct plan_case *c)
{
    plan_case_begin(c);
    c->limits.target.tile_workers = 131;
    c->limits.target.rates = (struct attnd_plan_rates){5200, 67, 67, 4400, 128};
}

static int32_t *new_words(uint64_t count)
{
    int32_t *words = calloc(count ? count : 1, sizeof(int32_t));
    assert(words);
    return words;
}

/* Exactly as long as the contract says, so that a sanitizer sees a read too far. */
void plan_case_level(struct plan_case *c, uint32_t entries, const int32_t *qo_len,
                     const int32_t *kv_len)
{
    struct attnd_level_view *level = &c->batch.level[c->batch.levels];
    const int32_t page_size = (int32_t)c->pool.page_size;
    int32_t *qo_indptr = new_words((uint64_t)entries + 1);
    int32_t *kv_indptr = new_words((uint64_t)entries + 1);
    int32_t *last = new_words(entries);

    for (uint32_t r = 0; r < entries; r++) {
        int32_t pages = kv_len[r] / page_size + (kv_len[r] % page_size != 0);
        qo_indptr[r + 1] = qo_indptr[r] + qo_len[r];
        kv_indptr[r + 1] = kv_indptr[r] + pages;
        last[r] = pages ? kv_len[r] - (pages - 1) * page_size : -1;
    }
    level->entries = entries;
    level->pages = (uint32_t)kv_indptr[entries];
    int32_t *indices = new_words(level->pages);
    for (uint32_t p = 0; p < level->pages; p++)
        indices[p] = (int32_t)((p * 7919ull + c->batch.levels * 31) % c->pool.pages);

    assert(!c->batch.levels || c->batch.rows == (uint32_t)qo_indptr[entries]);
    c->batch.rows = (uint32_t)qo_indptr[entries];
    c->batch.entries += entries;
    c->batch.pages += level->pages;
    c->batch.levels++;
    level->qo_indptr = qo_indptr;
    level->kv_indptr = kv_indptr;
    level->kv_indices = indices;
    level->kv_last_page_len = last;
}

void plan_case_level_alike(struct plan_case *c, uint32_t entries, int32_t qo_len, int32_t kv_len)
{
    int32_t *qo = new_words(entries), *kv = new_words(entries);

    for (uint32_t r = 0; r < entries; r++) {
        qo[r] = qo_len;
        kv[r] = kv_len;
    }
    plan_case_level(c, entries, qo, kv);
    free(qo);
    free(kv);
}

void plan_case_fit(struct plan_case *c)
{
    const struct attnd_batch_view *batch = &c->batch;

    c->limits.requests = batch->entries;
    c->limits.rows = batch->rows;
    c->limits.levels = batch->levels;
    c->limits.page_size = c->pool.page_size;
    c->limits.pages = batch->pages + batch->level[batch->levels - 1].entries * batch->reserve_pages;
    c->limits.heads_q = batch->heads_q;
    c->limits.heads_kv = c->pool.heads_kv;
}

int plan_case_new(struct plan_case *c)
{
    uint64_t bytes = attnd_plan_heap_bytes(&c->limits);

    assert(bytes && bytes % ATTND_CACHE_LINE == 0);
    c->heap = aligned_alloc(ATTND_CACHE_LINE, bytes);
    assert(c->heap);
    memset(c->heap, 0, bytes);
    return attnd_plan_new(&c->limits, c->heap, &c->pool, 4096, &c->plan);
}

int plan_case_plan(struct plan_case *c)
{
    struct attnd_fault fault;

    plan_case_fit(c);
    int code = plan_case_new(c);
    return code ? code : attnd_planner_set(c->plan, &c->batch, &fault);
}

void plan_case_free(struct plan_case *c)
{
    for (uint32_t l = 0; l < c->batch.levels; l++) {
        free((void *)(uintptr_t)c->batch.level[l].qo_indptr);
        free((void *)(uintptr_t)c->batch.level[l].kv_indptr);
        free((void *)(uintptr_t)c->batch.level[l].kv_indices);
        free((void *)(uintptr_t)c->batch.level[l].kv_last_page_len);
    }
    attnd_plan_free(c->plan);
    free(c->heap);
    memset(c, 0, sizeof(*c));
}

struct attnd_batch_limits case_limits(const struct plan_case *c)
{
    return (struct attnd_batch_limits){
        .pool_pages = c->pool.pages,
        .page_size = c->pool.page_size,
        .heads_kv = c->pool.heads_kv,
        .dim_qk = c->pool.dim_qk,
        .dim_vo = c->pool.dim_vo,
        .pool_dtype = c->pool.dtype,
        .requests = c->limits.requests,
        .rows = c->limits.rows,
        .pages = c->limits.pages,
        .levels = c->limits.levels,
        .heads_q = c->limits.heads_q,
    };
}
