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
    enum { FACTORS = 7 };
    static const float thetas[] = {0, 100, 500000}, scales[] = {0, 4, 0.5f};
    static const float low_high[FACTORS][2] = {{0, 0}, {1, 4},       {0.25f, 0.5f}, {2, 2.5f},
                                               {0, 8}, {0.0625f, 0}, {1, 32}};
    struct random_variant *variant = &batch->variant;

    variant->position_encoding = ATTND_POSITION_ROPE;
    variant->rope_theta = thetas[prng_below(prng, 3)];
    variant->rope_scale = scales[prng_below(prng, 3)];
    if (prng_percent(prng, 40)) {
        const uint32_t factors = prng_below(prng, FACTORS);
        variant->rope_old_context = 1 + prng_below(prng, 500);
        variant->rope_low = low_high[factors][0];
        variant->rope_high = low_high[factors][1];
    }
    if (prng_percent(prng, 30))
        variant->rope_dim = 2 * (1 + prng_below(prng, batch->shape.dim / 2));
    variant->rope_append = prng_percent(prng, 40);
}

static void draw_variant(struct prng *prng, struct random_batch *batch)
{
    static const float caps[] = {0.1f, 5.0f, 30.0f, 50.0f, 1e6f};
    static const uint32_t splits[] = {1, 63, 64, 65, 100, 128, 129, 256, 1000};
    struct random_variant *variant = &batch->variant;

    /* shows: sliding window | yes | yes | windows of 1 key to all, at pages, blocks and requests |
     * test_e2e_contract_random */
    if (prng_percent(prng, 50))
        variant->window = draw_window(prng, batch);
    /* shows: logits soft cap | yes | yes | caps of 0.1 to 1e6 | test_e2e_contract_random */
    if (prng_percent(prng, 40))
        variant->soft_cap = caps[prng_below(prng, sizeof(caps) / sizeof(caps[0]))];
    /* shows: ALiBi | yes | yes | 1 to 128 heads, powers of two and others |
     * test_e2e_contract_random */
    /* shows: rotary embeddings in the kernel (Llama, and scaled as in 3.1), of K at use or at
     * append | yes | yes, without tensor cores | thetas of 100 to 500,000, some or all dimensions |
     * test_e2e_contract_random */
    if (prng_percent(prng, 30))
        variant->position_encoding = ATTND_POSITION_ALIBI;
    else if (prng_percent(prng, 35))
        draw_rope(prng, batch);
    /* shows: attention sinks | yes | yes | one table for all layers or one a layer |
     * test_e2e_contract_random, test_e2e_variant */
    if (prng_percent(prng, 35))
        variant->sinks = 1 + prng_below(prng, 2);
    /* shows: `q_scale`, `k_scale`, `v_scale` | yes | yes | 0.3 to 1.75 | test_e2e_contract_random
     */
    if (prng_percent(prng, 15)) {
        variant->q_scale = 0.5f;
        variant->k_scale = prng_percent(prng, 50) ? 1.75f : 0;
        variant->v_scale = prng_percent(prng, 50) ? 0.3f : 0;
    }
    if (prng_percent(prng, 20))
        variant->fixed_split = splits[prng_below(prng, sizeof(splits) / sizeof(splits[0]))];
    /* shows: scales of K and V for each head | yes | yes | with pools of fp8 and others |
     * test_e2e_contract_random, test_e2e_fp8 */
    if (prng_percent(prng, batch->shape.kv_dtype ? 40 : 8))
        variant->kv_scales = 1 + prng_below(prng, 2);
    /* shows: custom and tree masks, a bit for each query and key | yes | yes | any bits, trees,
     * images that see all of themselves, rows that see nothing | test_e2e_contract_random,
     * test_e2e_variant */
    if (batch->steps == 1 && prng_percent(prng, 25))
        variant->mask = 1 + prng_below(prng, MASK_IMAGES);
    /* One plane: what is appended to V would lie in what was rotated of K. */
    if (batch->shape.one_plane || (batch->shape.kv_dtype && batch->steps > 1))
        variant->rope_append = 0;
    if (batch->shape.one_plane && batch->shape.kv_dtype)
        variant->v_scale = variant->k_scale;
    /* shows: levels of a cascade with all of these | yes | yes | 1 to 3 levels, nested and, without
     * keys that are stored rotated, not | test_e2e_contract_random, test_plan_variant */
    if (batch->levels > 1 && variant->rope_append && !random_batch_nested(batch))
        variant->rope_append = 0; /* keys would stand at several places */
}

/* shows: other multiples of 16 up to 256 | yes | yes, filled up with zeros | 16, 48, 80, 96, 112,
 * 192 | test_e2e_contract_random */
/* shows: 192/128 | yes | yes; over fp8 filled up with zeros | groups of 1 to 128 |
 * test_e2e_contract_random */
/* shows: 576/512 (MLA) | yes | yes; in two planes without tensor cores | one plane and two, groups
 * of 1 to 128 | test_e2e_contract_random, test_e2e_variant, test_e2e_families */
/* For all batches of a shape: more queries a KV head than most models have; 0: no more. */
static uint32_t draw_group(struct prng *prng)
{
    static const uint32_t groups[] = {33, 48, 64, 65, 71, 100, 127, 128};

    return prng_percent(prng, 15) ? groups[prng_below(prng, sizeof(groups) / sizeof(groups[0]))]
                                  : 0;
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

/* shows: fp8 pools, e4m3 and e5m2, quantised by append | yes | yes; with 576/512 without tensor
 * cores | beside q of fp16 and bf16 | test_e2e_contract_random, test_e2e_fp8, test_cpu_kernel */
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

    random_batch_draw_group(seed, index, draw_group(&shape_prng), batch);
    const struct random_shape shape = batch->shape;
    draw_dims(&shape_prng, &batch->shape);
    draw_types(&shape_prng, &batch->shape);
    if (!random_batch_valid(batch)) /* longer rows: too much memory */
        batch->shape = shape;
    draw_variant(&prng, batch);
    /* Where keys are stored rotated the judge's may be the neighbours of the worker's, which so
     * large queries would make much of. */
    if (prng_percent(&prng, 10) && !batch->variant.rope_append)
        batch->q_scale = RANDOM_Q_EXTREME;
}
