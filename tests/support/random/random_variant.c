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
                              1 + prng_below(prng, 300),
                              (uint32_t)INT32_MAX};
    const uint32_t edge = edges[prng_below(prng, sizeof(edges) / sizeof(edges[0]))];
    const uint32_t window = edge + prng_below(prng, 3); /* one less, it, one more */

    return window > 2 ? window - 1 : 1;
}

static void draw_variant(struct prng *prng, struct random_batch *batch)
{
    static const float caps[] = {0.1f, 5.0f, 30.0f, 50.0f, 1e6f};
    struct random_variant *variant = &batch->variant;

    if (prng_percent(prng, 50))
        variant->window = draw_window(prng, batch);
    if (prng_percent(prng, 40))
        variant->soft_cap = caps[prng_below(prng, sizeof(caps) / sizeof(caps[0]))];
    if (prng_percent(prng, 35))
        variant->position_encoding = ATTND_POSITION_ALIBI;
    if (prng_percent(prng, 35))
        variant->sinks = 1 + prng_below(prng, 2);
    if (batch->levels > 1)
        variant->window = variant->position_encoding = 0;
}

void random_contract_draw(uint64_t seed, uint64_t index, struct random_batch *batch)
{
    struct prng prng = prng_fork(seed + 2, index);

    random_batch_draw(seed, index, batch);
    draw_variant(&prng, batch);
}
