/*
 * random_variant.c - the dice of the contract.
 *
 * Any of the options may come with any other that goes with it. Windows are drawn around what the
 * code in between counts in: a key, a page, a block of keys, a request.
 */
#include "tests/support/random/random_batch.h"

#include "schemas/abi.h"

static uint32_t draw_window(struct prng *prng, const struct random_batch *batch)
{
    const uint32_t edges[] = {1,
                              batch->shape.page_size,
                              16,
                              64,
                              128,
                              (uint32_t)random_batch_kv_max(batch),
                              (uint32_t)(batch->level[0].entry[0].kv_len[0] +
                                         batch->level[batch->levels - 1].entry[0].kv_len[0]),
                              1 + prng_below(prng, 300),
                              (uint32_t)INT32_MAX};
    const uint32_t edge = edges[prng_below(prng, sizeof(edges) / sizeof(edges[0]))];
    const uint32_t window = edge + prng_below(prng, 3); /* one less, it, one more */

    return window > 2 ? window - 1 : 1;
}

static void draw_rope(struct prng *prng, struct random_batch *batch)
{
    static const float thetas[] = {0, 100, 500000}, scales[] = {0, 4, 0.5f};
    struct random_variant *variant = &batch->variant;

    variant->position_encoding = ATTND_POSITION_ROPE;
    variant->rope_theta = thetas[prng_below(prng, 3)];
    variant->rope_scale = scales[prng_below(prng, 3)];
    if (prng_percent(prng, 40))
        variant->rope_old_context = 1 + prng_below(prng, 500);
    if (prng_percent(prng, 30))
        variant->rope_dim = 2 * (1 + prng_below(prng, batch->shape.dim / 2));
    variant->rope_append = prng_percent(prng, 40);
}

static void draw_variant(struct prng *prng, struct random_batch *batch)
{
    static const float caps[] = {0.1f, 5.0f, 30.0f, 50.0f, 1e6f};
    struct random_variant *variant = &batch->variant;

    if (prng_percent(prng, 50))
        variant->window = draw_window(prng, batch);
    if (prng_percent(prng, 40))
        variant->soft_cap = caps[prng_below(prng, sizeof(caps) / sizeof(caps[0]))];
    if (prng_percent(prng, 30))
        variant->position_encoding = ATTND_POSITION_ALIBI;
    else if (prng_percent(prng, 35))
        draw_rope(prng, batch);
    if (prng_percent(prng, 35))
        variant->sinks = 1 + prng_below(prng, 2);
    if (prng_percent(prng, 15)) {
        variant->q_scale = 0.5f;
        variant->k_scale = prng_percent(prng, 50) ? 1.75f : 0;
        variant->v_scale = prng_percent(prng, 50) ? 0.3f : 0;
    }
    if (prng_percent(prng, batch->shape.kv_dtype ? 40 : 8))
        variant->kv_scales = 1 + prng_below(prng, 2);
    if (batch->steps == 1 && prng_percent(prng, 25))
        variant->mask = 1 + prng_below(prng, MASK_SPARSE);
    /* One plane: what is appended to V would lie in what was rotated of K. */
    if (batch->shape.one_plane || (batch->shape.kv_dtype && batch->steps > 1))
        variant->rope_append = 0;
    if (batch->levels > 1 && variant->rope_append && !random_batch_nested(batch))
        variant->rope_append = 0; /* keys would stand at several places */
}

/* For all batches of a shape: dimensions that no kernel takes as they are. */
static void draw_dims(struct prng *prng, struct random_shape *shape)
{
    static const uint32_t dims[][2] = {{80, 0},  {96, 0},    {112, 0},   {16, 0},   {48, 0},
                                       {192, 0}, {192, 128}, {576, 512}, {576, 512}};
    const uint32_t *chosen = dims[prng_below(prng, sizeof(dims) / sizeof(dims[0]))];

    if (prng_percent(prng, 60))
        return;
    shape->dim = chosen[0];
    shape->dim_vo = chosen[1];
    /* As latents have it, in two of three such pools. */
    shape->one_plane = chosen[1] == 512 && !shape->service_pool && prng_percent(prng, 67);
    if (shape->one_plane)
        shape->interleaved = 0;
}

/* For all batches of a shape. */
static void draw_types(struct prng *prng, struct random_shape *shape)
{
    if (prng_percent(prng, 40))
        shape->kv_dtype = prng_percent(prng, 60) ? ATTND_FP8_E4M3 : ATTND_FP8_E5M2;
}

void random_contract_draw(uint64_t seed, uint64_t index, struct random_batch *batch)
{
    struct prng prng = prng_fork(seed + 2, index);
    struct prng shape_prng = prng_fork(seed + 3, index / RANDOM_SHAPE_BATCHES);

    random_batch_draw(seed, index, batch);
    const struct random_shape shape = batch->shape;
    draw_dims(&shape_prng, &batch->shape);
    draw_types(&shape_prng, &batch->shape);
    if (!random_batch_valid(batch)) /* longer rows: too much memory */
        batch->shape = shape;
    draw_variant(&prng, batch);
}
