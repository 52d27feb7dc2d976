/*
 * test_plan_splits.c - into how many parts blocks are cut along KV, so that workers end together
 * and nobody waits for merges.
 *
 * Every plan made here also passes plan_check().
 */
#include "tests/support/rigs/checked_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define ENTRIES 300

static struct plan_case c;
static int32_t qo_len[ENTRIES], kv_len[ENTRIES];

static void level(uint32_t entries, int32_t qo, int32_t kv)
{
    plan_case_level_alike(&c, entries, qo, kv);
}

static void a_lone_long_decode_is_split_for_many_workers(void **state)
{
    (void)state;
    c.limits.target.tile_workers = 132;
    level(1, 1, 30000);
    const struct attnd_plan_head *head = checked_plan(&c);
    assert_int_equal(head->tiles, 132 / 8); /* an item a worker, or nearly */
    assert_int_equal(head->merges, 1);
    assert_int_equal(head->partial_rows, head->tiles);
    assert_int_equal(plan_merges(&c)[0].part_count, head->tiles);
}

static void a_few_decodes_are_split_to_one_item_a_worker(void **state)
{
    (void)state;
    c.limits.target.tile_workers = 131;
    level(8, 1, 4096);
    assert_int_equal(checked_plan(&c)->tiles, 2 * 8);
}

/* 88 items leave a third of 131 workers idle, and so do 176 in two waves; 352 make three full. */
static void decodes_that_fill_no_wave_are_split_until_they_do(void **state)
{
    (void)state;
    c.limits.target.tile_workers = 131;
    level(11, 1, 4096);
    assert_int_equal(checked_plan(&c)->tiles, 4 * 11);
}

/* Its last blocks are long, but the short ones fill what they leave. */
static void a_causal_prompt_balances_unsplit(void **state)
{
    (void)state;
    c.limits.target.tile_workers = 131;
    c.batch.flags = ATTND_BATCH_CAUSAL;
    level(1, 2048, 2048);
    assert_int_equal(checked_plan(&c)->merges, 0);
}

static void parts_of_a_split_stay_worth_a_merge(void **state)
{
    (void)state;
    c.limits.target.tile_workers = 1000;
    level(1, 1, 1000);
    checked_plan(&c);
    for (uint32_t t = 0; t < attnd_plan_head(c.plan)->tiles; t++) {
        const struct attnd_tile *tile = &plan_tiles(&c)[t];
        uint32_t kv_end = tile->kv_end == ATTND_KV_OPEN ? 1000 : tile->kv_end;
        assert_true(kv_end - tile->kv_begin >= 100);
    }
}

/* 268 us by one worker, 0.12 us for each part's rows: 47 parts, where 132 would be merged for 16.
 */
static void a_long_decode_of_one_head_has_no_parts_that_take_longer_to_merge(void **state)
{
    (void)state;
    plan_case_begin_gpu(&c);
    c.limits.target.tile_workers = 132;
    c.pool.heads_kv = 1;
    c.batch.heads_q = 8;
    level(1, 1, 32000);
    const uint32_t tiles = checked_plan(&c)->tiles;
    assert_in_range(tiles, 40, 50);
}

static void a_batch_that_comes_out_even_is_not_split(void **state)
{
    (void)state;
    level(1, 1, 30000); /* 8 heads for 2 workers */
    assert_int_equal(checked_plan(&c)->tiles, 1);
    assert_int_equal(attnd_plan_head(c.plan)->merges, 0);
}

/* 512 items on 132 workers: the fourth wave has 116 of them, of 15 decodes. */
static void of_many_equal_decodes_the_last_wave_ends_in_halves_and_quarters(void **state)
{
    (void)state;
    c.limits.target.tile_workers = 132;
    level(64, 1, 8192);
    const uint32_t whole = 64 - 15, halves = whole + 8 * 2, quarters = halves + 7 * 4;
    assert_int_equal(checked_plan(&c)->tiles, quarters);
    for (uint32_t t = 0; t < quarters; t++) {
        const struct attnd_tile *tile = &plan_tiles(&c)[t];
        const uint32_t end = tile->kv_end == ATTND_KV_OPEN ? 8192 : tile->kv_end;
        const uint32_t keys = t < whole ? 8192 : t < halves ? 4096 : 2048;
        assert_int_equal(end - tile->kv_begin, keys);
    }
    assert_int_equal(attnd_plan_head(c.plan)->merges, 15);
}

static void a_last_wave_of_short_items_is_not_halved(void **state)
{
    (void)state;
    c.limits.target.tile_workers = 132;
    level(64, 1, 8191);
    assert_int_equal(checked_plan(&c)->tiles, 64);
}

static void an_end_of_small_items_is_not_halved(void **state)
{
    (void)state;
    c.limits.target.tile_workers = 66;
    for (uint32_t r = 0; r < 64; r++) {
        qo_len[r] = 1;
        kv_len[r] = r < 63 ? 32768 : 10000;
    }
    plan_case_level(&c, 64, qo_len, kv_len);
    assert_int_equal(checked_plan(&c)->tiles, 64);
}

static void every_block_split_fits_the_capacities(void **state)
{
    (void)state;
    c.limits.target =
        (struct attnd_plan_target){.tile_workers = 100, .rows_per_tile = 64, .kv_granule = 64};
    c.pool.heads_kv = 1;
    c.batch.heads_q = 1;
    level(130, 64, 4096); /* two waves, the second nearly empty */
    const struct attnd_plan_head *head = checked_plan(&c);
    assert_int_equal(head->tiles, 3 * 130);
    assert_int_equal(head->partial_rows, 3 * 130 * 64);
}

static uint32_t parts_of_latents(uint32_t heads, uint32_t requests, int32_t keys)
{
    plan_case_begin_gpu(&c);
    c.limits.target.tile_workers = 132;
    c.pool.heads_kv = 1;
    c.pool.dim_qk = 576;
    c.pool.dim_vo = 512;
    c.batch.heads_q = heads;
    level(requests, 1, keys);
    return checked_plan(&c)->tiles / requests;
}

/* 4 us of a worker for each part of 128 rows, and 0.5 for one of 16: more parts than one worker
 * merges while another computes one would be waited for, by all the others. */
static void latents_have_a_power_of_two_of_parts_that_one_worker_merges_in_time(void **state)
{
    (void)state;
    const uint32_t long_128 = parts_of_latents(128, 1, 32000);
    assert_true(long_128 == 8 || long_128 == 16);
    checked_case_end(state);
    checked_case_begin(state);
    const uint32_t long_16 = parts_of_latents(16, 1, 32000);
    assert_true(long_16 == 32 || long_16 == 64);
    checked_case_end(state);
    checked_case_begin(state);
    assert_int_equal(parts_of_latents(128, 8, 1130), 2);
}

#define TEST(name)                                                                                 \
    cmocka_unit_test_prestate_setup_teardown(name, checked_case_begin, checked_case_end, &c)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_lone_long_decode_is_split_for_many_workers),
        TEST(a_few_decodes_are_split_to_one_item_a_worker),
        TEST(decodes_that_fill_no_wave_are_split_until_they_do),
        TEST(a_causal_prompt_balances_unsplit),
        TEST(parts_of_a_split_stay_worth_a_merge),
        TEST(a_long_decode_of_one_head_has_no_parts_that_take_longer_to_merge),
        TEST(a_batch_that_comes_out_even_is_not_split),
        TEST(of_many_equal_decodes_the_last_wave_ends_in_halves_and_quarters),
        TEST(a_last_wave_of_short_items_is_not_halved),
        TEST(an_end_of_small_items_is_not_halved),
        TEST(every_block_split_fits_the_capacities),
        TEST(latents_have_a_power_of_two_of_parts_that_one_worker_merges_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
