/*
 * test_plan_fusion.c - batches with compute-bound and memory-bound tiles: when both are in work at
 * once, and in which order.
 *
 * Every plan made here also passes plan_check().
 */
#include "tests/support/rigs/plan_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define WORKERS 131u
#define ENTRIES 256u

static struct plan_case c;

static int begin(void **state)
{
    (void)state;
    plan_case_begin(&c);
    c.limits.target.tile_workers = WORKERS;
    c.limits.target.rates = (struct attnd_plan_rates){5200, 67, 4400, 128};
    c.batch.flags = ATTND_BATCH_CAUSAL;
    return 0;
}

static int end(void **state)
{
    (void)state;
    plan_case_free(&c);
    return 0;
}

/* A chunk of @rows at @context (0: none), and @decodes of @length. Return: what the plan found. */
static struct attnd_plan_found plan(int32_t rows, int32_t context, uint32_t decodes, int32_t length)
{
    int32_t qo_len[ENTRIES], kv_len[ENTRIES];
    uint32_t entries = 0;
    char why[200];

    if (rows) {
        qo_len[entries] = rows;
        kv_len[entries++] = context;
    }
    for (uint32_t i = 0; i < decodes; i++) {
        qo_len[entries] = 1;
        kv_len[entries++] = length;
    }
    plan_case_level(&c, entries, qo_len, kv_len);
    assert_int_equal(plan_case_plan(&c), 0);
    if (!plan_check(&c, why, sizeof(why)))
        fail_msg("%s", why);
    return attnd_plan_found(c.plan);
}

static uint32_t count(uint32_t first, uint32_t behind, uint32_t tile_class)
{
    uint32_t tiles = 0;

    for (uint32_t t = first; t < behind; t++)
        tiles += plan_tiles(&c)[t].tile_class == tile_class;
    return tiles;
}

/* Of each stretch of tiles that all workers have in hand at once, until one class is over. */
static void both_classes_are_in_work_until_one_is_over(void **state)
{
    const uint32_t at_once = WORKERS / 8;

    (void)state;
    assert_int_equal(plan(2048, 12288, 128, 12288).fused, 1);
    const uint32_t tiles = attnd_plan_head(c.plan)->tiles;
    const uint32_t computes = count(0, tiles, ATTND_TILE_COMPUTE);
    for (uint32_t t = 0; count(0, t + at_once, ATTND_TILE_COMPUTE) < computes; t += at_once) {
        assert_true(count(t, t + at_once, ATTND_TILE_COMPUTE) > 0);
        assert_true(count(t, t + at_once, ATTND_TILE_MEMORY) > 0);
    }
    assert_true(attnd_plan_head(c.plan)->flags & ATTND_PLAN_ONE_PASS);
}

static void compute_bound_blocks_of_a_fused_batch_stay_whole(void **state)
{
    (void)state;
    assert_int_equal(plan(1024, 16384, 32, 12288).fused, 1);
    for (uint32_t t = 0; t < attnd_plan_head(c.plan)->tiles; t++)
        if (plan_tiles(&c)[t].tile_class == ATTND_TILE_COMPUTE)
            assert_int_equal(plan_tiles(&c)[t].merge_count, 0);
}

/* The longer class is expected to take as long as both together. */
static void what_gains_nothing_is_not_fused(void **state)
{
    (void)state;
    assert_int_equal(plan(1024, 1024, 255, 4096).fused, 0);
    end(NULL);
    begin(NULL);
    assert_int_equal(plan(2048, 16384, 1, 4096).fused, 0);
}

static void one_class_alone_is_not_fused(void **state)
{
    (void)state;
    c.limits.target.fusion = ATTND_FUSION_SM_SPLIT;
    assert_int_equal(plan(0, 0, 64, 8192).fused, 0);
    end(NULL);
    begin(NULL);
    c.limits.target.fusion = ATTND_FUSION_SM_SPLIT;
    assert_int_equal(plan(8192, 8192, 0, 0).fused, 0);
}

static void off_takes_one_class_after_the_other(void **state)
{
    (void)state;
    c.limits.target.fusion = ATTND_FUSION_OFF;
    assert_int_equal(plan(2048, 12288, 128, 12288).fused, 0);
    const uint32_t tiles = attnd_plan_head(c.plan)->tiles;
    const uint32_t computes = count(0, tiles, ATTND_TILE_COMPUTE);
    assert_int_equal(count(0, computes, ATTND_TILE_COMPUTE), computes);
}

static void sm_split_is_obeyed_where_auto_would_not(void **state)
{
    (void)state;
    c.limits.target.fusion = ATTND_FUSION_SM_SPLIT;
    assert_int_equal(plan(1024, 1024, 255, 4096).fused, 1);
}

/* Its threads share no memory that one of them could fill. */
static void a_processor_is_not_fused_by_itself(void **state)
{
    (void)state;
    c.limits.target.rates = (struct attnd_plan_rates){0};
    assert_int_equal(plan(2048, 12288, 128, 12288).fused, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(both_classes_are_in_work_until_one_is_over),
        TEST(compute_bound_blocks_of_a_fused_batch_stay_whole),
        TEST(what_gains_nothing_is_not_fused),
        TEST(one_class_alone_is_not_fused),
        TEST(off_takes_one_class_after_the_other),
        TEST(sm_split_is_obeyed_where_auto_would_not),
        TEST(a_processor_is_not_fused_by_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
