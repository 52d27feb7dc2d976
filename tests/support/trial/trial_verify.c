/*
 * trial_verify.c - is it right, and was nothing else touched?
 *
 * The shadow is moved on by this file's own reading of "append": row i of a request goes to
 * position kv_len - qo_len + i of the last level. The reference reads the shadow; at the end the
 * pool must be the shadow, so an append that stored too much or in the wrong place shows even where
 * no query looks.
 */
#include "tests/support/trial/trial_internal.h"

#include "schemas/abi.h"
#include "tests/support/harness/check.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/oracle/bits8.h"
#include "tests/support/oracle/reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint16_t *rows_at(const struct trial *trial, uint64_t offset_bytes)
{
    return (const uint16_t *)(const void *)(trial->engine->rows + offset_bytes);
}

static void describe_variant(const struct trial *trial, uint32_t layer,
                             struct reference_variant *to)
{
    const struct random_variant *from = &trial->batch.variant;
    const uint32_t heads_q = trial->batch.shape.heads_kv * trial->batch.shape.group;

    *to = (struct reference_variant){.windowed = from->window > 0,
                                     .window_left = from->window ? (int32_t)(from->window - 1) : -1,
                                     .soft_cap = (double)from->soft_cap,
                                     .alibi = from->position_encoding == ATTND_POSITION_ALIBI};
    to->qk_scale = (double)(from->q_scale != 0 ? from->q_scale : 1) *
                   (double)(from->k_scale != 0 ? from->k_scale : 1);
    to->v_scale = (double)from->v_scale;
    if (from->position_encoding == ATTND_POSITION_ROPE) {
        to->rope_theta = from->rope_theta != 0 ? (double)from->rope_theta : 10000;
        to->rope_scale = from->rope_scale != 0 ? (double)from->rope_scale : 1;
        to->rope_low = from->rope_low != 0 ? (double)from->rope_low : 1;
        to->rope_high = from->rope_high != 0 ? (double)from->rope_high : 4;
        to->rope_old_context = from->rope_old_context;
        to->rope_dim = from->rope_dim ? from->rope_dim : trial->batch.shape.dim;
        to->rope_keys_stored = from->rope_append;
    }
    if (from->mask) {
        to->mask = trial->engine->rows + trial->mask;
        to->mask_indptr = trial->mask_indptr;
    }
    if (from->kv_scales)
        to->kv_scales = (const float *)(const void *)(trial->engine->rows + trial->kv_scales) +
                        (from->kv_scales == 2 ? layer * 2 * trial->batch.shape.heads_kv : 0);
    if (from->sinks)
        to->sinks = (const float *)(const void *)(trial->engine->rows + trial->sinks) +
                    (from->sinks == 2 ? layer * heads_q : 0);
}

/* Where a row of K or V comes from, and how it changes on its way. */
struct store {
    const struct trial *trial;
    const struct reference_variant *variant; /* of the layer */
    const struct attnd_plane *plane;
    uint64_t rows; /* bytes from engine->rows */
    uint32_t dim;
    int rotated;
    float scale, table_scale; /* of the head: of the batch, and of its table */
};

/* How far rotations in fp32 and in fp64 of numbers in +-1 may be apart. */
#define ROTATED_WITHIN 1e-5

/* As schemas/variant.h has it: in fp32 times the reciprocal, then rounded. What was rotated before
 * may have come out on the other side of a tie: there the pool has the word. */
static uint8_t quantised(const struct store *store, double x, uint8_t stored)
{
    const uint32_t dtype = store->trial->batch.shape.kv_dtype;
    const float scale = store->scale * store->table_scale;
    const float reciprocal = 1.0f / scale, y = (float)x * reciprocal;
    const uint8_t nearest = bits8_round(dtype, (double)y);
    const double within = ROTATED_WITHIN * (double)reciprocal;
    const double error = fabs(bits8_value(dtype, nearest) - (double)y);

    if (store->rotated && bits8_near_tie(dtype, (double)y, within) &&
        fabs(bits8_value(dtype, stored) - (double)y) <= error + 2 * within)
        return stored;
    return nearest;
}

/* One row of one head, to position @j. */
static void store_row(const struct store *store, const uint16_t *from, int32_t page, int32_t token,
                      uint32_t head, int32_t j)
{
    const struct trial *trial = store->trial;
    const struct random_shape *shape = &trial->batch.shape;
    uint8_t *to = trial_token(trial, store->plane, trial->engine->shadow, page, token, head);
    const uint8_t *pool =
        trial_token(trial, store->plane, trial->engine->address, page, token, head);
    double row[ATTND_HEAD_DIM_MAX];

    if (!store->rotated && !shape->kv_dtype) {
        memcpy(to, from, store->dim * sizeof(*from));
        return;
    }
    for (uint32_t d = 0; d < store->dim; d++)
        row[d] = bits_of_kv(shape->dtype, from, d);
    if (store->rotated)
        reference_rotate(store->variant, row, j);
    for (uint32_t d = 0; d < store->dim; d++) {
        if (shape->kv_dtype)
            to[d] = quantised(store, row[d], pool[d]);
        else
            ((uint16_t *)(void *)to)[d] = bits16_round(shape->dtype, row[d]);
    }
}

/* Keys that a request of the last level has on the earlier ones, which do not cut it. */
static int32_t trial_keys_before(const struct trial *trial, uint32_t step, uint32_t request)
{
    const struct random_batch *batch = &trial->batch;
    const int32_t row = trial->level[batch->levels - 1].qo_indptr[request];
    int32_t keys = 0;

    for (uint32_t l = 0; l + 1 < batch->levels; l++) {
        uint32_t outer = 0;
        while (trial->level[l].qo_indptr[outer + 1] <= row)
            outer++;
        keys += batch->level[l].entry[outer].kv_len[step];
    }
    return keys;
}

/* The rows of all requests of a run. */
static void store_rows(struct store *store, uint32_t step, const float *table)
{
    const struct trial *trial = store->trial;
    const struct random_batch *batch = &trial->batch;
    const struct random_level *last = &batch->level[batch->levels - 1];
    const struct trial_level *level = &trial->level[batch->levels - 1];
    const int32_t page_size = (int32_t)batch->shape.page_size;

    for (uint32_t e = 0; e < last->requests; e++) {
        const struct random_entry *entry = &last->entry[e];
        const int32_t *list = level->list + level->list_indptr[e];
        for (int32_t i = 0; i < entry->qo_len; i++)
            for (uint32_t head = 0; head < batch->shape.heads_kv; head++) {
                int32_t j = entry->kv_len[step] - entry->qo_len + i;
                int64_t from = (level->qo_indptr[e] + i) * trial->kv.row + head * trial->kv.head;
                store->table_scale = table ? table[head] : 1;
                store_row(store, rows_at(trial, store->rows) + from, list[j / page_size],
                          j % page_size, head, trial_keys_before(trial, step, e) + j);
            }
    }
}

void trial_store(struct trial *trial, uint32_t step, uint32_t layer)
{
    const struct random_variant *variant = &trial->batch.variant;
    const struct random_shape *shape = &trial->batch.shape;
    struct reference_variant reference;

    if (!trial->batch.append)
        return;
    if (variant->rope_append && shape->kv_dtype)
        (void)trial_await(trial); /* a failure shows where the run is looked at */
    describe_variant(trial, layer, &reference);
    struct store store = {.trial = trial,
                          .variant = &reference,
                          .plane = &trial->engine->k[layer],
                          .rows = trial->place[step][layer].k,
                          .dim = shape->dim,
                          .rotated = variant->rope_append != 0,
                          .scale = variant->k_scale != 0 ? variant->k_scale : 1};
    store_rows(&store, step, reference.kv_scales);
    store.plane = &trial->engine->v[layer];
    store.rows = trial->place[step][layer].v;
    store.dim = random_shape_vo(shape);
    store.rotated = 0;
    store.scale = variant->v_scale != 0 ? variant->v_scale : 1;
    store_rows(&store, step, reference.kv_scales ? reference.kv_scales + shape->heads_kv : NULL);
}

/* ---- one run ---- */

static struct reference_plane shadow_plane(const struct engine *engine,
                                           const struct attnd_plane *plane)
{
    return (struct reference_plane){.bits = engine->shadow + plane->offset_bytes,
                                    .stride_page = plane->stride_page,
                                    .stride_token = plane->stride_token,
                                    .stride_head = plane->stride_head};
}

/* @kv_len: room for the lengths of all levels. */
static void describe(const struct trial *trial, uint32_t step, uint32_t layer,
                     int32_t kv_len[RANDOM_LEVELS_MAX][RANDOM_REQUESTS_MAX],
                     struct reference_batch *to)
{
    const struct random_batch *batch = &trial->batch;
    const struct random_shape *shape = &batch->shape;

    *to = (struct reference_batch){.dtype = shape->dtype,
                                   .kv_dtype = shape->kv_dtype,
                                   .rows = trial->rows,
                                   .heads_q = shape->heads_kv * shape->group,
                                   .heads_kv = shape->heads_kv,
                                   .dim = shape->dim,
                                   .dim_vo = random_shape_vo(shape),
                                   .page_size = shape->page_size,
                                   .causal = batch->causal,
                                   .lse_ln = batch->lse_ln,
                                   .sm_scale = (double)batch->sm_scale,
                                   .levels = batch->levels,
                                   .k = shadow_plane(trial->engine, &trial->engine->k[layer]),
                                   .v = shadow_plane(trial->engine, &trial->engine->v[layer])};
    describe_variant(trial, layer, &to->variant);
    to->q.bits = rows_at(trial, trial->place[step][layer].q);
    to->q.stride_row = trial->q.row;
    to->q.stride_head = trial->q.head;
    for (uint32_t l = 0; l < batch->levels; l++) {
        const struct trial_level *level = &trial->level[l];
        for (uint32_t e = 0; e < batch->level[l].requests; e++)
            kv_len[l][e] = batch->level[l].entry[e].kv_len[step];
        to->level[l] = (struct reference_level){.requests = batch->level[l].requests,
                                                .qo_indptr = level->qo_indptr,
                                                .kv_indptr = level->list_indptr,
                                                .kv_indices = level->list,
                                                .kv_len = kv_len[l]};
    }
}

/* After the comparison: poison what was to be written, and all must be poison again. */
static int check_poison(struct trial *trial, const struct trial_place *place)
{
    const uint32_t heads_q = trial->batch.shape.heads_kv * trial->batch.shape.group;
    uint8_t *rows = trial->engine->rows;
    const int lse = (int)trial->batch.want_lse;

    for (uint32_t row = 0; row < trial->rows; row++)
        for (uint32_t head = 0; head < heads_q; head++) {
            uint8_t *o = rows + place->o + 2 * (row * trial->o.row + head * trial->o.head);
            uint8_t *l = rows + place->lse + 4 * (row * trial->lse.row + head * trial->lse.head);
            trial_poison(o, o + 2 * random_shape_vo(&trial->batch.shape), &trial_poison_o, 2);
            if (lse)
                trial_poison(l, l + 4, &trial_poison_lse, 4);
        }
    for (uint64_t at = place->o_begin; at < place->o_end; at += 2)
        if (memcmp(rows + at, &trial_poison_o, 2)) {
            snprintf(trial->why, sizeof(trial->why), "wrote beside o, %lld bytes from its start",
                     (long long)(at - place->o));
            return 1;
        }
    for (uint64_t at = place->lse_begin; at < place->lse_end; at += 4)
        if (memcmp(rows + at, &trial_poison_lse, 4)) {
            snprintf(trial->why, sizeof(trial->why), "wrote beside lse, %lld bytes from its start",
                     (long long)(at - place->lse));
            return 1;
        }
    return 0;
}

int trial_verify_run(struct trial *trial, uint32_t step, uint32_t layer)
{
    const struct trial_place *place = &trial->place[step][layer];
    int32_t kv_len[RANDOM_LEVELS_MAX][RANDOM_REQUESTS_MAX];
    struct reference_batch reference;
    struct reference_mismatch mismatch;

    describe(trial, step, layer, kv_len, &reference);
    const size_t states = (size_t)reference.rows * reference.heads_q;
    double *o = trial_allocate(states * reference.dim_vo, sizeof(*o));
    double *lse = trial_allocate(states, sizeof(*lse));
    if (trial->batch.q_scale >= RANDOM_Q_EXTREME) {
        reference.o_error = trial_allocate(states * reference.dim_vo, sizeof(*reference.o_error));
        reference.lse_error = trial_allocate(states, sizeof(*reference.lse_error));
    }
    reference_attend(&reference, o, lse);

    int wrong = trial_await(trial); /* the service had the time of the reference */
    if (!wrong) {
        const struct reference_rows got = {rows_at(trial, place->o), trial->o.row, trial->o.head};
        const float *got_lse = (const float *)(const void *)(trial->engine->rows + place->lse);
        wrong = !reference_compare(&reference, o, lse, &got, trial->batch.want_lse ? got_lse : NULL,
                                   trial->lse.row, trial->lse.head, &mismatch);
        if (wrong)
            snprintf(trial->why, sizeof(trial->why),
                     "step %u, layer %u: %llu of %zu elements differ, the first is %s[row %u, head "
                     "%u, dim %u]: got %.9g, want %.9g",
                     step, layer, (unsigned long long)mismatch.count, states * reference.dim_vo,
                     mismatch.tensor, mismatch.row, mismatch.head, mismatch.dim, mismatch.got,
                     mismatch.want);
    }
    trial_free(o);
    trial_free(lse);
    trial_free(reference.o_error);
    trial_free(reference.lse_error);
    if (!wrong)
        wrong = check_poison(trial, place);
    trial->verified += !wrong;
    return wrong;
}

/* ---- pages ---- */

/* What was rotated on its way may have been rounded to the neighbour of what the judge has; and
 * where two products nearly cancel, numbers this near to each other are further apart than that. */
static int nearly(const struct trial *trial, const uint8_t *shadow, const uint8_t *pool, size_t at)
{
    const struct random_batch *batch = &trial->batch;
    uint16_t want, got;

    if (!batch->variant.rope_append || !batch->append || batch->shape.kv_dtype)
        return 0;
    memcpy(&want, shadow + (at & ~(size_t)1), sizeof(want));
    memcpy(&got, pool + (at & ~(size_t)1), sizeof(got));
    return want - got == 1 || got - want == 1 ||
           fabs(bits16_value(batch->shape.dtype, want) - bits16_value(batch->shape.dtype, got)) <=
               ROTATED_WITHIN;
}

static void compare_page(struct trial *trial, uint32_t used, uint32_t layer, int v, uint8_t *shadow,
                         uint8_t *pool, size_t bytes)
{
    size_t at = 0;

    if (trial->why[0] || memcmp(shadow, pool, bytes) == 0)
        return;
    while (at < bytes && (shadow[at] == pool[at] || (!v && nearly(trial, shadow, pool, at))))
        at++;
    if (at == bytes)
        return;
    snprintf(trial->why, sizeof(trial->why),
             "layer %u, %c of page %d: byte %zu is 0x%02x, want 0x%02x", layer, v ? 'V' : 'K',
             trial->pages_used[used], at, pool[at], shadow[at]);
}

int trial_verify_pages(struct trial *trial)
{
    trial->why[0] = 0;
    trial_each_page(trial, compare_page);
    return trial->why[0] != 0;
}
