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

static void fill_garbage(const struct random_batch *batch, struct prng *prng, uint16_t *to)
{
    const int bf16 = batch->shape.dtype == ATTND_BF16;
    const uint16_t infinity = bf16 ? 0x7f80 : 0x7c00, largest = bf16 ? 0x7f7f : 0x7bff;

    switch (batch->garbage) {
    case GARBAGE_NAN:
        memset(to, 0xff, batch->shape.dim * sizeof(*to));
        return;
    case GARBAGE_FINITE:
        trial_draw_values(prng, trial_values(batch->shape.dtype, 1.0f), to, batch->shape.dim);
        return;
    default:
        for (uint32_t d = 0; d < batch->shape.dim; d++)
            to[d] = (uint16_t)((batch->garbage == GARBAGE_INFINITE ? infinity : largest) |
                               (prng_percent(prng, 50) ? 0x8000 : 0));
    }
}

uint16_t *trial_token(const struct attnd_plane *plane, uint8_t *base, int32_t page, int32_t token,
                      uint32_t head)
{
    return (uint16_t *)(void *)(base + plane->offset_bytes) + page * plane->stride_page +
           token * plane->stride_token + head * plane->stride_head;
}

/* Token by token: seen ones hold values, the others garbage. */
static void fill_page(struct trial *trial, uint32_t used, const struct attnd_plane *plane,
                      struct prng *prng)
{
    const struct random_shape *shape = &trial->batch.shape;
    const uint16_t *values = trial_values(shape->dtype, 1.0f);

    for (uint32_t token = 0; token < shape->page_size; token++)
        for (uint32_t head = 0; head < shape->heads_kv; head++) {
            uint16_t *to = trial_token(plane, trial->engine->shadow, trial->pages_used[used],
                                       (int32_t)token, head);
            if ((int32_t)token < trial->filled[used])
                trial_draw_values(prng, values, to, shape->dim);
            else
                fill_garbage(&trial->batch, prng, to);
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
                    fill_garbage(batch, prng,
                                 trial_token(plane, trial->engine->shadow, list[j / page_size],
                                             j % page_size, head));
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
    uint16_t *at = trial_token(plane, trial->engine->shadow,
                               trial->level[l].list[trial->level[l].list_indptr[e] + j / page_size],
                               j % page_size, prng_below(prng, batch->shape.heads_kv));
    at[prng_below(prng, batch->shape.dim)] = 0x7fff;
}

void trial_each_page(struct trial *trial, trial_page_fn *fn)
{
    const size_t bytes = random_page_elements(&trial->batch.shape) * sizeof(uint16_t);

    for (uint32_t i = 0; i < trial->pages_used_count; i++)
        for (uint32_t layer = 0; layer < trial->batch.shape.layers; layer++)
            for (int v = 0; v < 2; v++) {
                const struct attnd_plane *plane =
                    v ? &trial->engine->v[layer] : &trial->engine->k[layer];
                uint64_t offset =
                    plane->offset_bytes + 2 * (uint64_t)(trial->pages_used[i] * plane->stride_page);
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
