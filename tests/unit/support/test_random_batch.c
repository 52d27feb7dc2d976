/* test_random_batch.c - what the generator promises, and that the shrinker gets to the bottom. */
#include "tests/support/random/random_batch.h"
#include "tests/support/random/random_shrink.h"
#include "tests/support/random/seed.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define BATCHES 20000

static uint64_t seed;

static void the_same_seed_gives_the_same_batch(void **state)
{
    struct random_batch a, b;

    (void)state;
    for (uint64_t i = 0; i < 100; i++) {
        random_batch_draw(seed, i, &a);
        random_batch_draw(seed, 99, &b);
        random_batch_draw(seed, i, &b);
        assert_memory_equal(&a, &b, sizeof(a));
    }
}

static void every_batch_is_legal_and_a_tenth_is_long(void **state)
{
    struct random_batch batch;
    uint32_t is_long = 0;

    (void)state;
    for (uint64_t i = 0; i < BATCHES; i++) {
        random_batch_draw(seed, i, &batch);
        assert_true(random_batch_valid(&batch));
        is_long += random_batch_kv_max(&batch) > RANDOM_KV_LONG;
    }
    assert_in_range(is_long, BATCHES / 10, BATCHES / 5);
}

/* Each option is drawn, and none all the time. */
static void every_option_comes_up(void **state)
{
    enum { OPTIONS = 20 };
    uint32_t seen[OPTIONS] = {0};
    struct random_batch b;

    (void)state;
    for (uint64_t i = 0; i < BATCHES; i++) {
        random_batch_draw(seed, i, &b);
        const struct random_entry *first = &b.level[b.levels - 1].entry[0];
        const uint32_t options[OPTIONS] = {b.levels == 3,
                                           b.steps > 1,
                                           b.append,
                                           b.causal,
                                           b.want_lse,
                                           b.lse_ln,
                                           b.seen_nan,
                                           b.tight,
                                           b.sharing == SHARE_ANY,
                                           b.shape.hnd,
                                           b.shape.pad % 8,
                                           b.shape.service_pool,
                                           b.shape.interleaved,
                                           b.quiet,
                                           b.o.heads_first,
                                           b.shape.group > 16,
                                           b.reserve_pages > 0,
                                           first->qo_len == 0,
                                           b.shape.dim == 256,
                                           first->kv_len[0] == 0};
        for (int o = 0; o < OPTIONS; o++)
            seen[o] += options[o] != 0;
    }
    for (int o = 0; o < OPTIONS; o++)
        assert_in_range(seen[o], BATCHES / 200, BATCHES - BATCHES / 200);
}

/* Fields of four bytes that random_contract_draw() fills. */
static const struct {
    const char *name;
    size_t offset;
} contract_fields[] = {
#define FIELD(field)                                                                               \
    {                                                                                              \
#field, offsetof(struct random_batch, field)                                               \
    }
    FIELD(variant.window),   FIELD(variant.soft_cap),    FIELD(variant.position_encoding),
    FIELD(variant.sinks),    FIELD(variant.rope_theta),  FIELD(variant.rope_scale),
    FIELD(variant.rope_low), FIELD(variant.rope_high),   FIELD(variant.rope_old_context),
    FIELD(variant.rope_dim), FIELD(variant.rope_append), FIELD(variant.q_scale),
    FIELD(variant.k_scale),  FIELD(variant.v_scale),     FIELD(variant.kv_scales),
    FIELD(variant.mask),     FIELD(variant.fixed_split), FIELD(shape.kv_dtype),
    FIELD(shape.dim_vo),     FIELD(shape.one_plane),
#undef FIELD
};
#define CONTRACT_FIELDS (sizeof(contract_fields) / sizeof(contract_fields[0]))

/* Every field of the variant is above, so a new one that nobody draws fails. */
static void every_field_of_a_variant_is_drawn(void **state)
{
    const uint32_t none = 0;
    uint32_t seen[CONTRACT_FIELDS] = {0}, of_variant = 0;
    struct random_batch batch;

    (void)state;
    for (uint64_t i = 0; i < BATCHES; i++) {
        random_contract_draw(seed, i, &batch);
        assert_true(random_batch_valid(&batch));
        for (uint32_t f = 0; f < CONTRACT_FIELDS; f++)
            seen[f] += memcmp((const uint8_t *)&batch + contract_fields[f].offset, &none,
                              sizeof(none)) != 0;
    }
    for (uint32_t f = 0; f < CONTRACT_FIELDS; f++) {
        if (seen[f] < BATCHES / 500 || seen[f] > BATCHES - BATCHES / 200)
            fail_msg("%s is drawn in %u of %d batches", contract_fields[f].name, seen[f], BATCHES);
        of_variant += strncmp(contract_fields[f].name, "variant.", 8) == 0;
    }
    assert_int_equal(of_variant * sizeof(uint32_t), sizeof(struct random_variant));
}

static uint32_t kv_len_is_drawn(const struct random_batch *batch, int32_t kv_len)
{
    const struct random_level *last = &batch->level[batch->levels - 1];

    for (uint32_t e = 0; e < last->requests; e++)
        if (last->entry[e].kv_len[0] == kv_len)
            return 1;
    return 0;
}

/* What each of these conditions says comes up, and never always. */
static void every_kind_of_contract_comes_up(void **state)
{
    enum { KINDS = 23 };
    uint32_t seen[KINDS] = {0};
    struct random_batch b;

    (void)state;
    for (uint64_t i = 0; i < BATCHES; i++) {
        random_contract_draw(seed, i, &b);
        const struct random_variant *v = &b.variant;
        const uint32_t wide = b.shape.group > 32;
        const uint32_t kinds[KINDS] = {v->position_encoding == ATTND_POSITION_ALIBI,
                                       v->position_encoding == ATTND_POSITION_ROPE,
                                       v->mask == MASK_ANY,
                                       v->mask == MASK_TREE,
                                       v->mask == MASK_SPARSE,
                                       v->mask == MASK_IMAGES && !b.causal,
                                       v->fixed_split && b.levels > 1,
                                       v->fixed_split && b.steps > 1,
                                       v->rope_append && b.append,
                                       v->window == 1,
                                       b.q_scale == RANDOM_Q_EXTREME,
                                       b.q_scale == RANDOM_Q_EXTREME && v->soft_cap != 0,
                                       wide && b.shape.group != 128,
                                       b.shape.group == 128,
                                       wide && b.shape.heads_kv > 1,
                                       wide && random_batch_kv_max(&b) > 1000,
                                       b.shape.dim_vo == 128,
                                       kv_len_is_drawn(&b, 63),
                                       kv_len_is_drawn(&b, 64),
                                       kv_len_is_drawn(&b, 65),
                                       kv_len_is_drawn(&b, 127),
                                       kv_len_is_drawn(&b, 128),
                                       kv_len_is_drawn(&b, 129)};
        for (int k = 0; k < KINDS; k++)
            seen[k] += kinds[k] != 0;
    }
    for (int k = 0; k < KINDS; k++)
        if (seen[k] < BATCHES / 500 || seen[k] > BATCHES - BATCHES / 200)
            fail_msg("kind %d comes up in %u of %d batches", k, seen[k], BATCHES);
}

/* "Fails" when some request has at least 3 queries and 20 keys and the batch is causal. */
static int fails(void *context, const struct random_batch *batch)
{
    (void)context;
    const struct random_level *last = &batch->level[batch->levels - 1];
    for (uint32_t e = 0; batch->causal && e < last->requests; e++)
        if (last->entry[e].qo_len >= 3 && last->entry[e].kv_len[0] >= 20)
            return 1;
    return 0;
}

static void shrinking_leaves_only_what_fails(void **state)
{
    struct random_batch batch;
    int shrunk = 0;

    (void)state;
    for (uint64_t i = 0; i < 2000; i++) {
        random_batch_draw(seed, i, &batch);
        if (!fails(NULL, &batch))
            continue;
        random_shrink(&batch, fails, NULL, 100000);
        assert_true(random_batch_valid(&batch) && fails(NULL, &batch));
        assert_int_equal(batch.levels, 1);
        assert_int_equal(batch.steps, 1);
        assert_int_equal(batch.level[0].requests, 1);
        assert_int_equal(batch.level[0].entry[0].qo_len, 3);
        assert_int_equal(batch.level[0].entry[0].kv_len[0], 20);
        assert_int_equal(batch.shape.group * batch.shape.heads_kv * batch.shape.layers, 1);
        assert_int_equal(batch.append + batch.sharing + batch.tight + batch.o.pad, 0);
        shrunk++;
    }
    assert_true(shrunk > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_gives_the_same_batch),
        cmocka_unit_test(every_batch_is_legal_and_a_tenth_is_long),
        cmocka_unit_test(every_option_comes_up),
        cmocka_unit_test(every_field_of_a_variant_is_drawn),
        cmocka_unit_test(every_kind_of_contract_comes_up),
        cmocka_unit_test(shrinking_leaves_only_what_fails),
    };

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
