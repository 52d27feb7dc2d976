/* trial_variant.c - tables of a variant: scales, sinks and masks. */
#include "tests/support/trial/trial_internal.h"

#include "tests/support/harness/check.h"

#include <string.h>

/* Around 1; one in ten is so small that what is appended is beyond the largest fp8. */
void trial_place_scales(struct trial *trial, struct prng *prng)
{
    const struct random_shape *shape = &trial->batch.shape;
    const uint32_t count =
        2 * shape->heads_kv * (trial->batch.variant.kv_scales == 2 ? shape->layers : 1);

    if (!trial->batch.variant.kv_scales)
        return;
    trial->kv_scales = trial_take(trial, prng, count * sizeof(float), 4);
    float *scales = (float *)(void *)(trial->engine->rows + trial->kv_scales);
    for (uint32_t i = 0; i < count; i++)
        scales[i] = prng_percent(prng, 10) ? 0.001f : (float)(0.25 + 1.5 * prng_unit(prng));
}

/* One in five is small enough that it does not matter, and one is what decides. */
void trial_place_sinks(struct trial *trial, struct prng *prng)
{
    const struct random_shape *shape = &trial->batch.shape;
    const uint32_t heads_q = shape->heads_kv * shape->group;
    const uint32_t count = heads_q * (trial->batch.variant.sinks == 2 ? shape->layers : 1);

    if (!trial->batch.variant.sinks)
        return;
    trial->sinks = trial_take(trial, prng, count * sizeof(float), 4);
    float *sinks = (float *)(void *)(trial->engine->rows + trial->sinks);
    for (uint32_t i = 0; i < count; i++)
        sinks[i] = (float)(prng_percent(prng, 20)   ? -40.0
                           : prng_percent(prng, 20) ? 12.0
                                                    : 6.0 * prng_unit(prng) - 3.0);
}

/* Which of the new tokens 0..i a token i of a tree descends from, itself included. */
static void fill_path(struct prng *prng, int32_t *parent, uint8_t *sees, int32_t i)
{
    parent[i] = i > 0 ? prng_between(prng, -1, i - 1) : -1;
    for (int32_t at = i; at >= 0; at = parent[at])
        sees[at] = 1;
}

/* Stretches of text and of images; last[j]: the last key that a query at j sees. */
static void draw_images(struct prng *prng, int32_t *last, int32_t keys)
{
    int32_t begin = 0;

    while (begin < keys) {
        const int32_t image = (int32_t)prng_percent(prng, 60);
        const int32_t end = begin + prng_between(prng, 1, 40);
        for (; begin < end && begin < keys; begin++)
            last[begin] = !image ? begin : end < keys ? end - 1 : keys - 1;
    }
}

static int draw_bit(struct prng *prng, uint32_t kind)
{
    return prng_percent(prng, kind == MASK_SPARSE ? 2 : 60) != 0;
}

/* The bits of one request; what is left of the last byte stays as it is. */
static void fill_mask(struct trial *trial, struct prng *prng, uint8_t *bits, int32_t queries,
                      int32_t keys)
{
    const uint32_t kind = trial->batch.variant.mask;
    int32_t *parent = trial_allocate((size_t)queries, sizeof(*parent));
    int32_t *last = trial_allocate((size_t)keys, sizeof(*last));
    uint8_t *sees = trial_allocate((size_t)queries, 1);

    if (kind == MASK_IMAGES)
        draw_images(prng, last, keys);
    for (int32_t i = 0; i < queries; i++) {
        memset(sees, 0, (size_t)queries);
        fill_path(prng, parent, sees, i);
        for (int32_t j = 0; j < keys; j++) {
            const int64_t bit = (int64_t)i * keys + j;
            const int32_t new = j - (keys - queries);
            const int32_t place = keys - queries + i; /* before the first key: sees nothing */
            const int set = kind == MASK_TREE     ? new < 0 || sees[new]
                            : kind == MASK_IMAGES ? place >= 0 && j <= last[place]
                                                  : draw_bit(prng, kind);
            bits[bit / 8] = (uint8_t)((bits[bit / 8] & ~(1 << bit % 8)) | set << bit % 8);
        }
    }
    trial_free(parent);
    trial_free(last);
    trial_free(sees);
}

void trial_place_mask(struct trial *trial, struct prng *prng)
{
    const struct random_batch *batch = &trial->batch;
    const struct random_level *last = &batch->level[batch->levels - 1];

    if (!batch->variant.mask)
        return;
    for (uint32_t e = 0; e < last->requests; e++) {
        const int64_t bits = (int64_t)last->entry[e].qo_len * last->entry[e].kv_len[0];
        const int32_t spare = prng_between(prng, 0, 2);
        trial->mask_indptr[e + 1] = trial->mask_indptr[e] + (int32_t)((bits + 7) / 8) + spare;
    }
    const uint64_t bytes = (uint64_t)trial->mask_indptr[last->requests];
    trial->mask = trial_take(trial, prng, bytes, 4);
    memset(trial->engine->rows + trial->mask, 0xff, bytes);
    for (uint32_t e = 0; e < last->requests; e++)
        fill_mask(trial, prng, trial->engine->rows + trial->mask + trial->mask_indptr[e],
                  last->entry[e].qo_len, last->entry[e].kv_len[0]);
}
