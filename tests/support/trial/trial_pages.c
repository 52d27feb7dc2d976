/*
 * trial_pages.c - bytes of pages.
 *
 * Every page a batch lists is filled with finite values as far as some query may see it at some
 * step and with the batch's garbage beyond; positions that an append will store, and nobody sees
 * before, hold garbage too until then. Values are copied in rows out of a table drawn once, because
 * drawing each would take longer than judging it.
 */
#include "tests/support/trial/trial_internal.h"

#include "schemas/abi.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/oracle/bits8.h"

#include <string.h>

/* A few scales are in use; each is drawn once. */
const uint16_t *trial_values(uint32_t dtype, float scale)
{
    static struct {
        uint32_t dtype;
        float scale;
        uint16_t bits[TRIAL_VALUES + ATTND_HEAD_DIM_MAX];
    } tables[12];
    uint32_t t = 0;

    while (tables[t].dtype && (tables[t].dtype != dtype || tables[t].scale != scale))
        t = (t + 1) % 12;
    if (!tables[t].dtype) {
        struct prng prng = prng_fork(dtype, 1);
        tables[t].dtype = dtype;
        tables[t].scale = scale;
        for (uint32_t i = 0; i < TRIAL_VALUES + ATTND_HEAD_DIM_MAX; i++)
            tables[t].bits[i] = bits16_round(dtype, (double)scale * (2 * prng_unit(&prng) - 1));
    }
    return tables[t].bits;
}

void trial_draw_values(struct prng *prng, const uint16_t *values, uint16_t *to, uint32_t count)
{
    memcpy(to, values + prng_below(prng, TRIAL_VALUES), count * sizeof(*to));
}

static void draw_bytes(struct prng *prng, uint32_t dtype, uint8_t *to, uint32_t count)
{
    static uint8_t tables[2][TRIAL_VALUES + ATTND_HEAD_DIM_MAX];
    static int filled[2];
    const int which = dtype == ATTND_FP8_E4M3;

    if (!filled[which]) {
        struct prng own = prng_fork(dtype, 1);
        for (uint32_t i = 0; i < sizeof(tables[0]); i++)
            tables[which][i] = bits8_round(dtype, 2 * prng_unit(&own) - 1);
        filled[which] = 1;
    }
    memcpy(to, tables[which] + prng_below(prng, TRIAL_VALUES), count);
}

void trial_draw_kv(const struct trial *trial, struct prng *prng, uint8_t *to)
{
    const struct random_shape *shape = &trial->batch.shape;

    if (shape->kv_dtype)
        draw_bytes(prng, shape->kv_dtype, to, shape->dim);
    else
        trial_draw_values(prng, trial_values(shape->dtype, 1.0f), (uint16_t *)(void *)to,
                          shape->dim);
}

/* Without their sign. e4m3 has no infinity: NaN is the nearest to it. */
static uint32_t infinity_of(uint32_t dtype)
{
    return dtype == ATTND_BF16       ? 0x7f80
           : dtype == ATTND_FP16     ? 0x7c00
           : dtype == ATTND_FP8_E5M2 ? 0x7c
                                     : 0x7f;
}

static void fill_garbage(const struct trial *trial, struct prng *prng, uint8_t *to)
{
    const struct random_batch *batch = &trial->batch;
    const uint32_t dtype = random_shape_kv(&batch->shape), bytes = attnd_dtype_bytes(dtype);
    const uint32_t infinity = infinity_of(dtype), largest = infinity - 1;

    switch (batch->garbage) {
    case GARBAGE_NAN:
        memset(to, 0xff, batch->shape.dim * bytes);
        return;
    case GARBAGE_FINITE:
        trial_draw_kv(trial, prng, to);
        return;
    default:
        for (uint32_t d = 0; d < batch->shape.dim; d++) {
            const uint16_t bits =
                (uint16_t)((batch->garbage == GARBAGE_INFINITE ? infinity : largest) |
                           (prng_percent(prng, 50) ? 0x80u << 8 * (bytes - 1) : 0));
            memcpy(to + d * bytes, &bits, bytes); /* little-endian */
        }
    }
}

uint8_t *trial_token(const struct trial *trial, const struct attnd_plane *plane, uint8_t *base,
                     int32_t page, int32_t token, uint32_t head)
{
    const int64_t element =
        page * plane->stride_page + token * plane->stride_token + head * plane->stride_head;

    return base + plane->offset_bytes +
           element * attnd_dtype_bytes(random_shape_kv(&trial->batch.shape));
}

/* Token by token: seen ones hold values, the others garbage. */
static void fill_page(struct trial *trial, uint32_t used, const struct attnd_plane *plane,
                      struct prng *prng)
{
    const struct random_shape *shape = &trial->batch.shape;

    for (uint32_t token = 0; token < shape->page_size; token++)
        for (uint32_t head = 0; head < shape->heads_kv; head++) {
            uint8_t *to = trial_token(trial, plane, trial->engine->shadow, trial->pages_used[used],
                                      (int32_t)token, head);
            if ((int32_t)token < trial->filled[used])
                trial_draw_kv(trial, prng, to);
            else
                fill_garbage(trial, prng, to);
        }
}

/* What an append will store, and no earlier step sees, is garbage until it does. */
static void spoil_appended(struct trial *trial, const struct attnd_plane *plane, struct prng *prng)
{
    const struct random_batch *batch = &trial->batch;
    const struct random_level *last = &batch->level[batch->levels - 1];
    const struct trial_level *level = &trial->level[batch->levels - 1];
    const int32_t page_size = (int32_t)batch->shape.page_size;

    for (uint32_t e = 0; e < last->requests; e++) {
        const int32_t *list = level->list + level->list_indptr[e];
        int32_t seen = 0;
        for (uint32_t s = 0; s < batch->steps; s++) {
            int32_t end = last->entry[e].kv_len[s];
            int32_t begin = end - last->entry[e].qo_len;
            for (int32_t j = begin > seen ? begin : seen; j < end; j++)
                for (uint32_t head = 0; head < batch->shape.heads_kv; head++)
                    fill_garbage(trial, prng,
                                 trial_token(trial, plane, trial->engine->shadow,
                                             list[j / page_size], j % page_size, head));
            seen = end > seen ? end : seen;
        }
    }
}

/* One NaN where somebody will see it: in a key it takes a whole result, in a value one column. */
static void plant_nan(struct trial *trial, struct prng *prng)
{
    const struct random_batch *batch = &trial->batch;
    const uint32_t l = prng_below(prng, batch->levels);
    const struct random_level *level = &batch->level[l];
    const int32_t page_size = (int32_t)batch->shape.page_size;

    if (!level->requests)
        return;
    const uint32_t e = prng_below(prng, level->requests);
    if (!level->entry[e].kv_len[0])
        return;
    const int32_t j = prng_between(prng, 0, level->entry[e].kv_len[0] - 1);
    const struct attnd_plane *plane =
        prng_percent(prng, 50) ? &trial->engine->k[0] : &trial->engine->v[0];
    const uint32_t bytes = attnd_dtype_bytes(random_shape_kv(&batch->shape));
    uint8_t *at = trial_token(trial, plane, trial->engine->shadow,
                              trial->level[l].list[trial->level[l].list_indptr[e] + j / page_size],
                              j % page_size, prng_below(prng, batch->shape.heads_kv));
    memset(at + prng_below(prng, batch->shape.dim) * bytes, 0xff, bytes);
}

void trial_each_page(struct trial *trial, trial_page_fn *fn)
{
    const uint32_t element_bytes = attnd_dtype_bytes(random_shape_kv(&trial->batch.shape));
    const size_t bytes = (size_t)random_page_elements(&trial->batch.shape) * element_bytes;

    for (uint32_t i = 0; i < trial->pages_used_count; i++)
        for (uint32_t layer = 0; layer < trial->batch.shape.layers; layer++)
            for (int v = 0; v < 2; v++) {
                const struct attnd_plane *plane =
                    v ? &trial->engine->v[layer] : &trial->engine->k[layer];
                uint64_t offset =
                    plane->offset_bytes +
                    element_bytes * (uint64_t)(trial->pages_used[i] * plane->stride_page);
                fn(trial, i, layer, v, trial->engine->shadow + offset,
                   trial->engine->address + offset, bytes);
            }
}

static void publish_page(struct trial *trial, uint32_t used, uint32_t layer, int v, uint8_t *shadow,
                         uint8_t *pool, size_t bytes)
{
    (void)trial, (void)used, (void)layer, (void)v;
    memcpy(pool, shadow, bytes);
}

static void poison_page(struct trial *trial, uint32_t used, uint32_t layer, int v, uint8_t *shadow,
                        uint8_t *pool, size_t bytes)
{
    (void)used, (void)layer, (void)v, (void)shadow; /* it is filled again before it is looked at */
    if (trial->engine->fill == ENGINE_FILLS_PAGES)
        memset(pool, 0xff, bytes);
}

void trial_begin_pages(struct trial *trial, struct prng *prng)
{
    struct engine *engine = trial->engine;

    if (engine->fill == ENGINE_FILLS_NOTHING)
        return;
    for (uint32_t layer = 0; layer < trial->batch.shape.layers; layer++)
        for (int v = 0; v < 2; v++) {
            const struct attnd_plane *plane = v ? &engine->v[layer] : &engine->k[layer];
            for (uint32_t i = 0; i < trial->pages_used_count; i++)
                fill_page(trial, i, plane, prng);
            if (trial->batch.append)
                spoil_appended(trial, plane, prng);
        }
    if (trial->batch.seen_nan)
        plant_nan(trial, prng);
    if (engine->fill == ENGINE_FILLS_PAGES)
        trial_each_page(trial, publish_page);
}

void trial_poison_pages(struct trial *trial)
{
    trial_each_page(trial, poison_page);
}
