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
        cmocka_unit_test(shrinking_leaves_only_what_fails),
    };

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
