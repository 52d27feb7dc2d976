/*
 * cpu_rig_batch.c - struct rig_batch -> pages, values, a plan in the heap, and the judgement.
 *
 * Pages are dealt out in random order. Whatever no query may see is NaN: the tails of last pages,
 * pages nobody owns, the padding between rows.
 */
#include "tests/support/rigs/cpu_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "persistent/plan/plan.h"
#include "schemas/atomics.h"
#include "tests/support/oracle/bits16.h"

static void *heap_take(struct rig *rig, uint64_t bytes)
{
    void *at = (char *)rig->head + rig->heap_used_bytes;
    rig->heap_used_bytes += (bytes + 63) / 64 * 64;
    assert_true(rig->heap_used_bytes <= rig->segment_bytes);
    memset(at, 0, bytes);
    return at;
}

static uint32_t pages_of(const struct rig_batch *batch, uint32_t tokens)
{
    return (tokens + batch->page_size - 1) / batch->page_size;
}

static uint16_t not_a_number(const struct rig_work *work)
{
    return bits16_round(work->batch.dtype, (double)NAN);
}

static void fill_nan(const struct rig_work *work, struct rig_memory *memory)
{
    uint16_t *bits = memory->address;
    for (uint64_t i = 0; i < memory->size_bytes / 2; i++)
        bits[i] = not_a_number(work);
}

/* Near enough to normal. */
static uint16_t draw(const struct rig_work *work, struct prng *prng, double spread)
{
    double sum = -2;
    for (int i = 0; i < 4; i++)
        sum += prng_unit(prng);
    return bits16_round(work->batch.dtype, sum * spread * sqrt(3));
}

/* ---- CSR ---- */

/* Level @l of @levels; @next: the next page of the shuffled deck. */
static void make_level(struct rig_work *work, uint32_t l, uint32_t levels, const int32_t *deck,
                       uint32_t *next)
{
    const struct rig_batch *batch = &work->batch;
    const int prefix = l + 1 < levels;
    const uint32_t n = prefix ? 1 : batch->requests;
    work->qo_indptr[l] = calloc(n + 1, sizeof(int32_t));
    work->kv_indptr[l] = calloc(n + 1, sizeof(int32_t));
    work->kv_len[l] = calloc(n, sizeof(int32_t));
    work->kv_indices[l] = calloc(work->pool_pages, sizeof(int32_t));
    for (uint32_t r = 0; r < n; r++) {
        uint32_t len = prefix ? batch->prefix_len : batch->kv_len[r];
        work->kv_len[l][r] = (int32_t)len;
        work->qo_indptr[l][r + 1] =
            work->qo_indptr[l][r] + (int32_t)(prefix ? work->rows : batch->qo_len[r]);
        work->kv_indptr[l][r + 1] = work->kv_indptr[l][r] + (int32_t)pages_of(batch, len);
        for (int32_t p = work->kv_indptr[l][r]; p < work->kv_indptr[l][r + 1]; p++)
            work->kv_indices[l][p] = deck[(*next)++];
    }
    work->reference.level[l] = (struct reference_level){n, work->qo_indptr[l], work->kv_indptr[l],
                                                        work->kv_indices[l], work->kv_len[l]};
}

static int32_t *shuffled(uint32_t count, struct prng *prng)
{
    int32_t *deck = calloc(count, sizeof *deck);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = prng_below(prng, i + 1);
        deck[i] = deck[j];
        deck[j] = (int32_t)i;
    }
    return deck;
}

/* ---- memory ---- */

static void make_pool(struct rig_work *work, struct prng *prng)
{
    const struct rig_batch *batch = &work->batch;
    const int64_t dim = batch->dim + batch->pad;
    work->stride_token = batch->hnd ? dim : dim * batch->heads_kv;
    work->stride_head = batch->hnd ? dim * batch->page_size : dim;
    work->stride_page = dim * batch->heads_kv * batch->page_size + batch->pad;
    uint64_t plane = (uint64_t)work->stride_page * work->pool_pages;
    work->pool = rig_map(work->rig, 2 * plane * 2 + 64);
    fill_nan(work, &work->pool);
    work->k = work->pool.address;
    work->v = work->k + plane;
    for (uint32_t l = 0; l < work->reference.levels; l++)
        for (uint32_t r = 0; r < work->reference.level[l].requests; r++)
            for (int32_t t = 0; t < work->kv_len[l][r]; t++)
                for (uint32_t h = 0; h < batch->heads_kv; h++) {
                    int32_t page =
                        work->kv_indices[l][work->kv_indptr[l][r] + t / (int32_t)batch->page_size];
                    int64_t at = page * work->stride_page +
                                 t % (int32_t)batch->page_size * work->stride_token +
                                 h * work->stride_head;
                    for (uint32_t d = 0; d < batch->dim; d++) {
                        work->k[at + d] = draw(work, prng, 1);
                        work->v[at + d] = draw(work, prng, 1);
                    }
                }
    work->reference.k =
        (struct reference_plane){work->k, work->stride_page, work->stride_token, work->stride_head};
    work->reference.v = work->reference.k;
    work->reference.v.bits = work->v;
}

static void make_rows(struct rig_work *work, struct prng *prng)
{
    const struct rig_batch *batch = &work->batch;
    const uint64_t row = (uint64_t)(batch->dim + batch->pad) * work->heads_q + batch->pad;
    const uint64_t bytes = row * (work->rows + 1) * 2;
    work->q = rig_map(work->rig, bytes);
    work->o = rig_map(work->rig, bytes);
    work->new_k = rig_map(work->rig, bytes);
    work->new_v = rig_map(work->rig, bytes);
    work->lse = rig_map(work->rig, (uint64_t)(work->rows + 1) * (work->heads_q + 1) * 4);
    fill_nan(work, &work->q);
    fill_nan(work, &work->o);
    uint16_t *q = work->q.address, *k = work->new_k.address, *v = work->new_v.address;
    for (uint32_t r = 0; r < work->rows; r++)
        for (uint32_t h = 0; h < work->heads_q; h++)
            for (uint32_t d = 0; d < batch->dim; d++)
                q[r * row + h * (batch->dim + batch->pad) + d] =
                    draw(work, prng, batch->q_scale != 0 ? (double)batch->q_scale : 1);
    for (uint64_t i = 0; i < bytes / 2; i++) {
        k[i] = draw(work, prng, 1);
        v[i] = draw(work, prng, 1);
    }
    work->reference.q =
        (struct reference_rows){q, (int64_t)row, (int64_t)(batch->dim + batch->pad)};
}

/* ---- plan ---- */

static uint32_t count_of(uint32_t length, uint32_t step)
{
    return length == 0 || step == 0 ? 1 : (length + step - 1) / step;
}

/* Tiles of one entry: all row blocks times all KV pieces. */
static void cut_entry(const struct rig_work *work, uint32_t e, struct attnd_tile *tiles,
                      uint32_t *tile, uint32_t *partial, int direct)
{
    const struct rig_batch *batch = &work->batch;
    const struct attnd_entry *entry =
        (struct attnd_entry *)((char *)work->plan + work->plan->entries_offset_bytes) + e;
    const uint32_t len =
        (uint32_t)((int32_t *)((char *)work->plan + work->plan->kv_len_offset_bytes))[e];
    const uint32_t tokens = batch->tokens ? batch->tokens : entry->row_count;
    const uint32_t pieces = count_of(len, batch->split);
    for (uint32_t row = 0; row < entry->row_count; row += tokens)
        for (uint32_t p = 0; p < pieces; p++) {
            struct attnd_tile *t = &tiles[(*tile)++];
            uint32_t rows = entry->row_count - row < tokens ? entry->row_count - row : tokens;
            *t = (struct attnd_tile){
                .entry = e,
                .row_begin = entry->row_begin + row,
                .row_count = rows,
                .kv_begin = p * batch->split,
                .kv_end = p + 1 < pieces ? (p + 1) * batch->split : ATTND_KV_OPEN,
                .partial = direct ? ATTND_NONE : *partial,
                .merge_begin = entry->row_begin + row,
                .merge_count = direct ? 0 : rows,
                .tile_class = batch->tile_class,
            };
            *partial += direct ? 0 : rows;
        }
}

/* One merge a row; its parts are the tiles that hold the row, by level and then by KV. */
static void make_merges(struct rig_work *work, const struct attnd_tile *tiles)
{
    struct attnd_plan_head *plan = work->plan;
    struct attnd_merge *merges = (struct attnd_merge *)((char *)plan + plan->merges_offset_bytes);
    uint32_t *parts = (uint32_t *)((char *)plan + plan->merge_parts_offset_bytes);
    for (uint32_t row = 0; row < work->rows; row++) {
        merges[row] = (struct attnd_merge){row, 1, plan->parts, 0};
        for (uint32_t t = 0; t < plan->tiles; t++)
            if (row >= tiles[t].row_begin && row < tiles[t].row_begin + tiles[t].row_count) {
                parts[plan->parts++] = tiles[t].partial + row - tiles[t].row_begin;
                merges[row].part_count++;
            }
    }
    plan->merges = work->rows;
}

static void make_entries(struct rig_work *work)
{
    struct attnd_plan_head *plan = work->plan;
    struct attnd_entry *entries = (struct attnd_entry *)((char *)plan + plan->entries_offset_bytes);
    int32_t *pages = (int32_t *)((char *)plan + plan->kv_pages_offset_bytes);
    int32_t *len = (int32_t *)((char *)plan + plan->kv_len_offset_bytes);
    uint32_t page = 0;
    for (uint32_t l = 0; l < work->reference.levels; l++)
        for (uint32_t r = 0; r < work->reference.level[l].requests; r++) {
            const int32_t *qo = work->qo_indptr[l], *kv = work->kv_indptr[l];
            entries[plan->entries] = (struct attnd_entry){
                .row_begin = (uint32_t)qo[r],
                .row_count = (uint32_t)(qo[r + 1] - qo[r]),
                .page_begin = page,
                .page_count = (uint32_t)(kv[r + 1] - kv[r]),
                .level = l,
                .causal = work->batch.causal && l + 1 == work->reference.levels,
            };
            for (int32_t p = kv[r]; p < kv[r + 1]; p++)
                pages[page++] = work->kv_indices[l][p];
            for (uint32_t g = 0; g < ATTND_GENERATIONS; g++)
                len[g * plan->entries_max + plan->entries] = work->kv_len[l][r];
            plan->entries++;
        }
}

static uint64_t make_heap_pool(struct rig_work *work)
{
    const struct rig_batch *batch = &work->batch;
    struct attnd_heap_pool *pool =
        heap_take(work->rig, sizeof *pool + 2 * sizeof(struct attnd_heap_plane));
    struct attnd_heap_plane *planes = (struct attnd_heap_plane *)(pool + 1);
    *pool =
        (struct attnd_heap_pool){1,          work->pool_pages, batch->page_size, batch->heads_kv,
                                 batch->dim, batch->dim,       batch->dtype,     0};
    planes[0] = (struct attnd_heap_plane){
        work->pool.index, 0, 0, work->stride_page, work->stride_token, work->stride_head};
    planes[1] = planes[0];
    planes[1].offset_bytes = (uint64_t)((char *)work->v - (char *)work->k);
    return (uint64_t)((char *)pool - (char *)work->rig->head);
}

static void *plan_array(struct rig_work *work, uint64_t *offset_bytes, uint64_t bytes)
{
    void *array = heap_take(work->rig, bytes);
    *offset_bytes = (uint64_t)((char *)array - (char *)work->plan);
    return array;
}

static void make_plan(struct rig_work *work)
{
    const struct rig_batch *batch = &work->batch;
    const int64_t stride_head = batch->dim + batch->pad;
    const int64_t stride_row = stride_head * work->heads_q + batch->pad;
    uint64_t pool_offset_bytes = make_heap_pool(work);
    struct attnd_plan_head *plan = work->plan = heap_take(work->rig, sizeof *plan);
    work->plan_offset_bytes = (uint64_t)((char *)plan - (char *)work->rig->head);
    *plan = (struct attnd_plan_head){
        .pool_offset_bytes = pool_offset_bytes,
        .rows = work->rows,
        .levels = work->reference.levels,
        .heads_q = work->heads_q,
        .heads_kv = batch->heads_kv,
        .group = batch->group,
        .dim_qk = batch->dim,
        .dim_vo = batch->dim,
        .dtype = batch->dtype,
        .flags =
            (batch->causal ? ATTND_BATCH_CAUSAL : 0) | (batch->lse_ln ? ATTND_BATCH_LSE_LN : 0),
        .sm_scale = 1.0f / sqrtf((float)batch->dim),
        .entries_max = 16,
        .q_pitch.row = stride_row,
        .q_pitch.head = stride_head,
        .o_pitch.row = stride_row,
        .o_pitch.head = stride_head,
        .lse_pitch.row = work->heads_q + 1,
        .lse_pitch.head = 1,
        .k_pitch.row = stride_row,
        .k_pitch.head = stride_head,
        .v_pitch.row = stride_row,
        .v_pitch.head = stride_head,
    };
    (void)plan_array(work, &plan->entries_offset_bytes, 16 * sizeof(struct attnd_entry));
    (void)plan_array(work, &plan->kv_pages_offset_bytes, work->pool_pages * sizeof(int32_t));
    (void)plan_array(work, &plan->kv_len_offset_bytes,
                     ATTND_GENERATIONS * plan->entries_max * sizeof(int32_t));
    make_entries(work);

    uint32_t tiles_max = 0, pieces_max = 0;
    for (uint32_t l = 0; l < work->reference.levels; l++)
        for (uint32_t r = 0; r < work->reference.level[l].requests; r++) {
            uint32_t pieces = count_of((uint32_t)work->kv_len[l][r], batch->split);
            pieces_max += pieces;
            tiles_max += pieces * work->rows;
        }
    struct attnd_tile *tiles =
        plan_array(work, &plan->tiles_offset_bytes, (tiles_max + 1) * sizeof *tiles);
    int direct = plan->levels == 1 && batch->split == 0;
    for (uint32_t e = 0; e < plan->entries; e++)
        cut_entry(work, e, tiles, &plan->tiles, &plan->partial_rows, direct);
    (void)plan_array(work, &plan->merges_offset_bytes, work->rows * sizeof(struct attnd_merge));
    (void)plan_array(work, &plan->merge_parts_offset_bytes,
                     (uint64_t)(work->rows + 1) * (pieces_max + 1) * sizeof(uint32_t));
    if (!direct)
        make_merges(work, tiles);
}

/* ---- the whole ---- */

void rig_make(struct rig_work *work, struct rig *rig, const struct rig_batch *batch)
{
    struct prng prng = {batch->seed};
    *work = (struct rig_work){.batch = *batch, .rig = rig};
    work->heads_q = batch->heads_kv * batch->group;
    work->pool_pages = 3 + pages_of(batch, batch->prefix_len);
    for (uint32_t r = 0; r < batch->requests; r++) {
        work->rows += batch->qo_len[r];
        work->pool_pages += pages_of(batch, batch->kv_len[r]);
    }
    work->reference = (struct reference_batch){
        .dtype = batch->dtype,
        .rows = work->rows,
        .heads_q = work->heads_q,
        .heads_kv = batch->heads_kv,
        .dim = batch->dim,
        .page_size = batch->page_size,
        .causal = batch->causal,
        .lse_ln = batch->lse_ln,
        .levels = batch->prefix_len ? 2 : 1,
    };
    int32_t *deck = shuffled(work->pool_pages, &prng);
    uint32_t next = 0;
    for (uint32_t l = 0; l < work->reference.levels; l++)
        make_level(work, l, work->reference.levels, deck, &next);
    free(deck);
    make_pool(work, &prng);
    make_rows(work, &prng);
    make_plan(work);
}

void rig_make_endless(struct rig_work *work, struct rig *rig, uint32_t heads_kv)
{
    /* 2048 pages of one token; then a page has 2^20 tokens, all in the place of the first. */
    const struct rig_batch batch = {.seed = 31,
                                    .dtype = ATTND_BF16,
                                    .heads_kv = heads_kv,
                                    .group = 1,
                                    .dim = 64,
                                    .page_size = 1,
                                    .requests = 1,
                                    .qo_len = {1},
                                    .kv_len = {2048},
                                    .tile_class = ATTND_TILE_MEMORY};
    rig_make(work, rig, &batch);
    struct attnd_heap_pool *pool = (void *)((char *)rig->head + work->plan->pool_offset_bytes);
    struct attnd_heap_plane *planes = (struct attnd_heap_plane *)(pool + 1);
    pool->page_size = 1u << 20;
    planes[0].stride_token = planes[1].stride_token = 0;
    int32_t *len = (int32_t *)((char *)work->plan + work->plan->kv_len_offset_bytes);
    for (uint32_t g = 0; g < ATTND_GENERATIONS; g++)
        len[g * work->plan->entries_max] = INT32_MAX;
}

void rig_free(struct rig_work *work)
{
    for (int l = 0; l < 2; l++) {
        free(work->qo_indptr[l]);
        free(work->kv_indptr[l]);
        free(work->kv_indices[l]);
        free(work->kv_len[l]);
    }
    rig_unmap(work->rig, &work->pool);
    rig_unmap(work->rig, &work->q);
    rig_unmap(work->rig, &work->o);
    rig_unmap(work->rig, &work->lse);
    rig_unmap(work->rig, &work->new_k);
    rig_unmap(work->rig, &work->new_v);
}

void rig_run(struct rig_work *work, uint32_t run, uint32_t kind)
{
    const struct attnd_place none = {.memory = ATTND_NONE};
    const int attend = kind == ATTND_RUN_ATTEND;
    work->rig->runs[run] = (struct attnd_run){
        .kind = kind,
        .plan_offset_bytes = work->plan_offset_bytes,
        .items = attnd_plan_items(work->plan, kind),
        .scratch_offset_bytes = work->rig->scratch_used_bytes,
        .q = attend ? (struct attnd_place){.memory = work->q.index} : none,
        .o = attend ? (struct attnd_place){.memory = work->o.index} : none,
        .lse = attend ? (struct attnd_place){.memory = work->lse.index} : none,
        .k = attend ? none : (struct attnd_place){.memory = work->new_k.index},
        .v = attend ? none : (struct attnd_place){.memory = work->new_v.index},
    };
    if (attend)
        work->rig->scratch_used_bytes += attnd_plan_scratch_bytes(work->plan);
}

uint16_t *rig_element(const struct rig_work *work, uint16_t *plane, uint32_t request,
                      uint32_t token, uint32_t head)
{
    const uint32_t l = work->reference.levels - 1, page_size = work->batch.page_size;
    int32_t page = work->kv_indices[l][work->kv_indptr[l][request] + (int32_t)(token / page_size)];
    return plane + page * work->stride_page + token % page_size * work->stride_token +
           head * work->stride_head;
}

void rig_judge(const struct rig_work *work, const char *what)
{
    const struct rig_batch *batch = &work->batch;
    size_t rows = (size_t)work->rows * work->heads_q;
    double *o = malloc(rows * batch->dim * sizeof *o + 1), *lse = malloc(rows * sizeof *lse + 1);
    struct reference_mismatch mismatch;
    struct reference_rows got = {work->o.address, work->plan->o_pitch.row,
                                 work->plan->o_pitch.head};
    reference_attend(&work->reference, o, lse);
    int agrees =
        reference_compare(&work->reference, o, lse, &got, work->lse.address,
                          work->plan->lse_pitch.row, work->plan->lse_pitch.head, &mismatch);
    free(o);
    free(lse);
    if (!agrees)
        fail_msg("%s (seed %llu): %llu differ; %s[%u][%u][%u] is %g, want %g", what,
                 (unsigned long long)batch->seed, (unsigned long long)mismatch.count,
                 mismatch.tensor, mismatch.row, mismatch.head, mismatch.dim, mismatch.got,
                 mismatch.want);
    if (batch->pad) {
        const uint16_t *row = work->o.address;
        assert_int_equal(row[batch->dim], not_a_number(work));
        assert_int_equal(row[work->plan->o_pitch.row - 1], not_a_number(work));
    }
}

void rig_attend(struct rig *rig, const struct rig_batch *batch, const char *what)
{
    const uint64_t heap_used_bytes = rig->heap_used_bytes;
    struct rig_work work;
    rig_make(&work, rig, batch);
    rig_run(&work, 0, ATTND_RUN_ATTEND);
    rig->retires[0] = 0;
    rig_submit(rig, 0);
    struct attnd_retire retire = rig_wait(rig, 0, 1);
    assert_int_equal(retire.code, 0);
    assert_int_equal(retire.tiles, attnd_plan_items(work.plan, ATTND_RUN_ATTEND));
    assert_true(retire.begin_ns <= retire.end_ns);
    rig_judge(&work, what);
    rig_free(&work);
    rig->heap_used_bytes = heap_used_bytes;
    rig->scratch_used_bytes = 0;
}

struct rig_batch rig_small_batch(uint64_t seed)
{
    return (struct rig_batch){
        .seed = seed,
        .dtype = ATTND_BF16,
        .heads_kv = 4,
        .group = 2,
        .dim = 64,
        .page_size = 8,
        .requests = 3,
        .qo_len = {1, 1, 5},
        .kv_len = {100, 30, 9},
        .causal = 1,
        .split = 32,
        .tile_class = ATTND_TILE_MEMORY,
    };
}

void rig_open_started(struct rig *rig, uint32_t threads)
{
    rig_open(rig, threads, NULL);
    assert_int_equal(attnd_backend_cpu.start(rig->backend), 0);
    assert_int_equal(attnd_observe32(&rig->head->state), ATTND_WORKER_RUNNING);
}
