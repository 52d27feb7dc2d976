/*
 * trial_rows.c - where q, o, lse and new k, v rows lie.
 *
 * Outputs lie in poison, with some of it around them: an element not written, or one written beside
 * its place, shows. What pads the inputs is NaN.
 */
#include "tests/support/trial/trial_internal.h"

#include "tests/support/harness/check.h"

#include <string.h>

#define POISON_AROUND_BYTES 64u

const uint16_t trial_poison_o = 0x7fa5;        /* NaN in fp16 and bf16 */
const uint32_t trial_poison_lse = 0x7fa5a5a5u; /* and in fp32 */

static struct attnd_strides strides_of(const struct random_rows *layout, uint32_t rows,
                                       uint32_t heads, uint32_t dim)
{
    const int64_t inner = dim + layout->pad;

    if (layout->heads_first)
        return (struct attnd_strides){.row = inner, .head = rows * inner + layout->pad};
    return (struct attnd_strides){.row = heads * inner + layout->pad, .head = inner};
}

static uint64_t extent_bytes(const struct attnd_strides *strides, uint32_t rows, uint32_t heads,
                             uint32_t dim, uint32_t element_bytes)
{
    if (rows == 0)
        return 0;
    return ((rows - 1) * (uint64_t)strides->row + (heads - 1) * (uint64_t)strides->head + dim) *
           element_bytes;
}

/* Takes @bytes at an address that is a multiple of @align and often of nothing more, with room for
 * poison on both sides. */
uint64_t trial_take(struct trial *trial, struct prng *prng, uint64_t bytes, uint32_t align)
{
    uint64_t begin = (trial->rows_end + POISON_AROUND_BYTES + 63) & ~63ull;

    begin += (uint64_t)align * prng_below(prng, 64 / align);
    trial->rows_end = begin + bytes + POISON_AROUND_BYTES;
    CHECK(trial->rows_end <= ENGINE_ROWS_BYTES);
    return begin;
}

static void fill_rows(struct trial *trial, struct prng *prng, uint64_t at,
                      const struct attnd_strides *strides, uint32_t heads, float scale)
{
    const uint32_t dim = trial->batch.shape.dim;
    const uint16_t *values = trial_values(trial->batch.shape.dtype, scale);
    uint16_t *rows = (uint16_t *)(void *)(trial->engine->rows + at);

    memset(rows, 0xff, extent_bytes(strides, trial->rows, heads, dim, 2));
    for (uint32_t row = 0; row < trial->rows; row++)
        for (uint32_t head = 0; head < heads; head++)
            trial_draw_values(prng, values, rows + row * strides->row + head * strides->head, dim);
}

void trial_poison(uint8_t *begin, uint8_t *end, const void *pattern, size_t pattern_bytes)
{
    for (; begin + pattern_bytes <= end; begin += pattern_bytes)
        memcpy(begin, pattern, pattern_bytes);
}

static void place_run(struct trial *trial, struct prng *prng, struct trial_place *place)
{
    const struct random_batch *batch = &trial->batch;
    const uint32_t dim = batch->shape.dim, heads_kv = batch->shape.heads_kv;
    const uint32_t heads_q = heads_kv * batch->shape.group;
    const uint32_t dim_vo = random_shape_vo(&batch->shape);
    const uint64_t o_bytes = extent_bytes(&trial->o, trial->rows, heads_q, dim_vo, 2);
    const uint64_t lse_bytes = extent_bytes(&trial->lse, trial->rows, heads_q, 1, 4);
    uint8_t *rows = trial->engine->rows;

    place->q = trial_take(trial, prng, extent_bytes(&trial->q, trial->rows, heads_q, dim, 2), 16);
    fill_rows(trial, prng, place->q, &trial->q, heads_q, batch->q_scale != 0 ? batch->q_scale : 1);
    if (batch->append) {
        const uint64_t bytes = extent_bytes(&trial->kv, trial->rows, heads_kv, dim, 2);
        place->k = trial_take(trial, prng, bytes, 16);
        place->v = trial_take(trial, prng, bytes, 16);
        fill_rows(trial, prng, place->k, &trial->kv, heads_kv, 1);
        fill_rows(trial, prng, place->v, &trial->kv, heads_kv, 1);
    }
    place->o = trial_take(trial, prng, o_bytes, 16);
    place->o_begin = place->o - POISON_AROUND_BYTES;
    place->o_end = place->o + o_bytes + POISON_AROUND_BYTES;
    trial_poison(rows + place->o_begin, rows + place->o_end, &trial_poison_o,
                 sizeof(trial_poison_o));
    place->lse = trial_take(trial, prng, lse_bytes, 4);
    place->lse_begin = place->lse - POISON_AROUND_BYTES;
    place->lse_end = place->lse + lse_bytes + POISON_AROUND_BYTES;
    trial_poison(rows + place->lse_begin, rows + place->lse_end, &trial_poison_lse,
                 sizeof(trial_poison_lse));
}

void trial_begin_rows(struct trial *trial, struct prng *prng)
{
    const struct random_batch *batch = &trial->batch;
    const struct random_shape *shape = &batch->shape;
    const uint32_t heads_q = shape->heads_kv * shape->group;

    trial->q = strides_of(&batch->q, trial->rows, heads_q, shape->dim);
    trial->o = strides_of(&batch->o, trial->rows, heads_q, random_shape_vo(shape));
    trial->lse = strides_of(&batch->lse, trial->rows, heads_q, 1);
    trial->kv = strides_of(&batch->kv_rows, trial->rows, shape->heads_kv, shape->dim);
    for (uint32_t step = 0; step < batch->steps; step++)
        for (uint32_t layer = 0; layer < shape->layers; layer++)
            place_run(trial, prng, &trial->place[step][layer]);
    trial_place_scales(trial, prng);
    trial_place_sinks(trial, prng);
    trial_place_mask(trial, prng);
}
