/*
 * test_plan.c - what the planner promises, one promise a test; of splits in test_plan_splits.c.
 *
 * Every plan made here also passes plan_check(): coverage, merges, partials, order. The tests say
 * what a plan should look like beyond being right.
 */
#include "tests/support/rigs/checked_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ENTRIES 300

static struct plan_case c;
static int32_t qo_len[ENTRIES], kv_len[ENTRIES];

static void level(uint32_t entries, int32_t qo, int32_t kv)
{
    plan_case_level_alike(&c, entries, qo, kv);
}

static void a_batch_without_requests_is_an_empty_plan(void **state)
{
    (void)state;
    level(0, 0, 0);
    const struct attnd_plan_head *head = checked_plan(&c);
    assert_int_equal(head->rows, 0);
    assert_int_equal(head->tiles, 0);
    assert_int_equal(attnd_plan_items(head, ATTND_RUN_ATTEND), 0);
    assert_int_equal(attnd_plan_items(head, ATTND_RUN_APPEND), 0);
    assert_int_equal(attnd_plan_scratch_bytes(head), 0);
}

static void requests_without_query_rows_have_no_tiles(void **state)
{
    (void)state;
    level(5, 0, 100);
    const struct attnd_plan_head *head = checked_plan(&c);
    assert_int_equal(head->entries, 5);
    assert_int_equal(head->tiles, 0);
}

static void rows_without_keys_have_a_tile_all_the_same(void **state)
{
    (void)state;
    level(3, 2, 0);
    const struct attnd_plan_head *head = checked_plan(&c);
    assert_int_equal(head->tiles, 3);
    assert_int_equal(plan_tiles(&c)[0].kv_end, ATTND_KV_OPEN);
}

/* Keys that a tile may ever have to read. */
static uint32_t reach(const struct attnd_tile *tile)
{
    const uint64_t pages = (uint64_t)tile->of_entry.page_count * c.pool.page_size;
    const uint32_t end = pages < INT32_MAX ? (uint32_t)pages : INT32_MAX;
    return (tile->kv_end < end ? tile->kv_end : end) - tile->kv_begin;
}

static void expect_bounded(void)
{
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    for (uint32_t t = 0; t < head->tiles; t++) {
        const struct attnd_tile *tile = &plan_tiles(&c)[t];
        assert_true(attnd_item_cost(reach(tile), tile->row_count * head->group) <=
                    ATTND_ITEM_COST_MAX);
    }
}

static void no_item_costs_more_than_the_bound(void **state)
{
    const struct {
        int32_t rows, kv_len;
        uint32_t heads_q, page_size, reserve_pages;
    } cases[] = {
        {1, INT32_MAX, 8, 1u << 20, 0},    /* the longest there is */
        {1, 1, 8, 1u << 20, 2047},         /* and what may become it */
        {1, 8000000, 8, 1u << 20, 8},      /* cut, and then some */
        {3, 7456500, 8, 16, 1},            /* about the bound */
        {1, 7456400, 8, 1, 70000},         /* a little below, and then above */
        {128, 1 << 21, 8, 1u << 16, 3},    /* many rows */
        {128, 493000, 8, 64, 1000},        /* the same about the bound */
        {1, 1 << 24, 1024, 1u << 20, 100}, /* a group of 128 */
    };
    (void)state;
    plan_case_free(&c);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint32_t workers = 1; workers < 2000; workers = workers * 11 + 1) {
            plan_case_begin(&c);
            c.pool.page_size = cases[i].page_size;
            c.limits.target.tile_workers = workers;
            c.batch.heads_q = cases[i].heads_q;
            c.batch.reserve_pages = cases[i].reserve_pages;
            level(1, cases[i].rows, cases[i].kv_len);
            (void)checked_plan(&c);
            expect_bounded();
            plan_case_free(&c);
        }
    }
}

/* A million keys, and a prompt of as many as engines have: not worth a split for this. */
static void what_engines_ask_for_is_below_the_bound(void **state)
{
    (void)state;
    c.batch.reserve_pages = 512;
    level(8, 1, 1 << 20);
    assert_int_equal(checked_plan(&c)->tiles, 8);
    plan_case_free(&c);
    plan_case_begin(&c);
    level(1, 32, 1 << 17);
    assert_int_equal(checked_plan(&c)->tiles, 1);
}

static void a_batch_that_cannot_be_bounded_is_refused_by_name(void **state)
{
    struct attnd_fault fault = {0};
    (void)state;
    c.pool.page_size = 1u << 20;
    c.batch.heads_q = 8;
    level(32, 1, INT32_MAX);
    plan_case_fit(&c);
    assert_int_equal(plan_case_new(&c), 0);
    assert_int_equal(attnd_planner_set(c.plan, &c.batch, &fault), -ATTND_E_RANGE);
    assert_int_equal(fault.field, ATTND_F_KV_LEN);
    assert_in_range(fault.index, 1, 31); /* those before it took the splits */
    assert_int_equal(fault.value, INT32_MAX);
    assert_true(fault.limit > 0 && fault.limit < INT32_MAX);
    assert_int_equal(attnd_plan_head(c.plan)->tiles, 0);
    assert_int_equal(attnd_plan_head(c.plan)->rows, 0);
}

static void a_long_chunk_on_a_million_keys_is_planned(void **state)
{
    (void)state;
    c.pool.page_size = 128;
    c.batch.heads_q = 8 * c.pool.heads_kv;
    c.batch.flags = ATTND_BATCH_CAUSAL;
    level(1, 32768, 1 << 20);
    const struct attnd_plan_head *head = checked_plan(&c);
    for (uint32_t t = 0; t < head->tiles; t++)
        assert_in_range(plan_tiles(&c)[t].cost, 1, ATTND_ITEM_COST_MAX);
}

/* How often blocks may be cut follows from the limits, and how long they are from the pool. */
static void limits_of_another_page_size_than_the_pools_are_refused(void **state)
{
    (void)state;
    c.pool.page_size = 128;
    level(1, 32, 4096);
    plan_case_fit(&c);
    c.limits.page_size = 0;
    assert_int_equal(plan_case_new(&c), -ATTND_E_RANGE);
    free(c.heap);
    c.heap = NULL;
    c.limits.page_size = 128;
    assert_int_equal(plan_case_new(&c), 0);
}

static void causal_blocks_cost_only_what_they_see(void **state)
{
    (void)state;
    c.batch.flags = ATTND_BATCH_CAUSAL;
    level(1, 2048, 2048);
    const uint32_t tiles = checked_plan(&c)->tiles;
    assert_int_equal(tiles, 2048 * 4 / 128);
    for (uint32_t t = 1; t < tiles; t++) /* largest first, so the last rows first */
        assert_true(plan_tiles(&c)[t].row_begin < plan_tiles(&c)[t - 1].row_begin);
    assert_true(plan_tiles(&c)[0].cost > 40 * plan_tiles(&c)[tiles - 1].cost);
}

static void few_last_rows_are_begun_first_where_they_take_as_long_as_many(void **state)
{
    (void)state;
    c.limits.target.rates = (struct attnd_plan_rates){5200, 60, 60, 4400, 128};
    c.limits.target.tile_workers = 131;
    c.batch.flags = ATTND_BATCH_CAUSAL;
    level(1, 1000, 1000); /* the last 8 tokens see all keys */
    const uint32_t tiles = checked_plan(&c)->tiles;
    assert_int_equal(tiles, 32);
    assert_int_equal(plan_tiles(&c)[0].row_count, 8);
    for (uint32_t t = 1; t < tiles; t++)
        assert_true(plan_tiles(&c)[t].row_begin < plan_tiles(&c)[t - 1].row_begin);
}

static void queries_longer_than_their_keys_are_legal(void **state)
{
    (void)state;
    c.batch.flags = ATTND_BATCH_CAUSAL;
    level(1, 500, 3);
    checked_plan(&c);
}

static void tiles_are_whole_tokens_whatever_the_group(void **state)
{
    (void)state;
    plan_case_free(&c);
    for (uint32_t group = 1; group <= 64; group++) {
        plan_case_begin(&c);
        c.pool.heads_kv = 2;
        c.batch.heads_q = 2 * group;
        level(3, 150, 400);
        const struct attnd_plan_head *head = checked_plan(&c);
        const uint32_t tokens = 128 / group;
        assert_int_equal(head->group, group);
        assert_int_equal(head->tiles, 3 * ((150 + tokens - 1) / tokens));
        plan_case_free(&c);
    }
}

static void a_group_larger_than_a_tile_makes_tiles_of_one_token(void **state)
{
    (void)state;
    c.limits.target.rows_per_tile = 16;
    c.pool.heads_kv = 1;
    c.batch.heads_q = 64;
    level(2, 5, 100);
    assert_int_equal(checked_plan(&c)->tiles, 10);
}

static void prefill_and_decode_share_a_batch_in_two_classes(void **state)
{
    uint32_t count[2] = {0, 0};

    (void)state;
    qo_len[0] = 512;
    kv_len[0] = 1024;
    qo_len[1] = qo_len[2] = 1;
    kv_len[1] = kv_len[2] = 2000;
    plan_case_level(&c, 3, qo_len, kv_len);
    checked_plan(&c);
    for (uint32_t t = 0; t < attnd_plan_head(c.plan)->tiles; t++)
        count[plan_tiles(&c)[t].tile_class]++;
    assert_int_equal(count[ATTND_TILE_COMPUTE], 16);
    assert_int_equal(count[ATTND_TILE_MEMORY], 2);
}

/* 64 decodes of 4 heads each against one prefix: two tiles of 128 packed rows, not 64. */
static void a_shared_prefix_is_read_once_for_all_requests(void **state)
{
    (void)state;
    qo_len[0] = 64;
    kv_len[0] = 1600;
    plan_case_level(&c, 1, qo_len, kv_len);
    level(64, 1, 40);
    const struct attnd_plan_head *head = checked_plan(&c);
    assert_int_equal(head->tiles, 2 + 64);
    assert_int_equal(head->merges, 64);
    assert_int_equal(head->parts, 128);
    assert_int_equal(plan_tiles(&c)[0].entry, 0);
    assert_int_equal(plan_tiles(&c)[0].merge_count, 32);
}

static void a_prefix_level_without_pages_costs_nothing(void **state)
{
    (void)state;
    level(4, 1, 0);
    c.batch.reserve_pages = 1;
    level(4, 1, 100);
    const struct attnd_plan_head *head = checked_plan(&c);
    assert_int_equal(head->tiles, 4);
    assert_int_equal(head->merges, 0);
}

/* Level 0: rows 0..6 with a prefix, 6..10 without; level 1: 0..4 and 4..10. The second tile of
 * level 1 shares rows 4 and 5 only. */
static void levels_may_partition_the_rows_differently(void **state)
{
    (void)state;
    qo_len[0] = 6;
    qo_len[1] = 4;
    kv_len[0] = 160;
    kv_len[1] = 0;
    plan_case_level(&c, 2, qo_len, kv_len);
    qo_len[0] = 4;
    qo_len[1] = 6;
    kv_len[0] = kv_len[1] = 50;
    plan_case_level(&c, 2, qo_len, kv_len);
    const struct attnd_plan_head *head = checked_plan(&c);
    const struct attnd_merge *merge = plan_merges(&c);
    assert_int_equal(head->tiles, 3);
    assert_int_equal(head->merges, 3);
    assert_int_equal(merge[0].row_count, 4);
    assert_int_equal(merge[1].row_count, 2);
    assert_int_equal(merge[2].row_count, 4);
    assert_int_equal(merge[2].part_count, 1);
}

/* List scheduling of the tiles in their order, as the workers do it. */
static double finish_over_share(void)
{
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    const uint32_t workers = c.limits.target.tile_workers;
    double *busy = calloc(workers, sizeof(*busy)), sum = 0, last = 0;

    assert_non_null(busy);
    for (uint32_t i = 0; i < attnd_plan_items(head, ATTND_RUN_ATTEND); i++) {
        uint32_t first = 0;
        for (uint32_t w = 1; w < workers; w++)
            first = busy[w] < busy[first] ? w : first;
        const uint32_t tile = i / head->heads_kv;
        busy[first] += plan_tiles(&c)[tile].cost;
        sum += plan_tiles(&c)[tile].cost;
        last = busy[first] > last ? busy[first] : last;
    }
    free(busy);
    return last * workers / sum;
}

static void workers_finish_close_together(void **state)
{
    struct prng prng = {7};

    (void)state;
    plan_case_free(&c);
    for (uint32_t i = 0; i < 200; i++) {
        plan_case_begin(&c);
        c.limits.target.tile_workers = 2 + prng_below(&prng, 140);
        c.batch.flags = ATTND_BATCH_CAUSAL;
        const uint32_t entries = 1 + prng_below(&prng, 40);
        for (uint32_t r = 0; r < entries; r++) {
            qo_len[r] = prng_percent(&prng, 80) ? 1 : prng_between(&prng, 1, 1500);
            kv_len[r] = prng_between(&prng, 0, 3000) + qo_len[r];
        }
        kv_len[0] += 20000; /* work for everyone */
        plan_case_level(&c, entries, qo_len, kv_len);
        checked_plan(&c);
        assert_true(finish_over_share() < 1.3);
        plan_case_free(&c);
    }
}

static void capacities_out_of_range_need_no_heap(void **state)
{
    (void)state;
    level(1, 1, 1);
    plan_case_fit(&c);
    const struct attnd_plan_limits good = c.limits;
    assert_true(attnd_plan_heap_bytes(&good) > 0);
    struct attnd_plan_limits bad[] = {good, good, good, good, good, good, good, good, good};
    bad[0].levels = 0;
    bad[1].levels = ATTND_LEVELS_MAX + 1;
    bad[2].heads_q = 12;
    bad[3].heads_kv = 0;
    bad[4].rows = UINT32_MAX;
    bad[5].target.tile_workers = 0;
    bad[6].target.rows_per_tile = 0;
    bad[7].target.kv_granule = 0;
    bad[8].rows = INT32_MAX; /* in range by itself; its partial rows are not */
    bad[8].levels = 8;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(attnd_plan_heap_bytes(&bad[i]), 0);
}

static void scratch_holds_counters_states_and_outputs(void **state)
{
    (void)state;
    c.limits.target.tile_workers = 132;
    level(3, 1, 20000);
    const struct attnd_plan_head *head = checked_plan(&c);
    const uint64_t states = (uint64_t)head->partial_rows * 32;
    assert_true(head->partial_rows > 0);
    assert_true(attnd_scratch_state_offset(head) >= head->merges * 8 * 4);
    assert_true(attnd_scratch_output_offset(head) >= attnd_scratch_state_offset(head) + states * 8);
    assert_true(attnd_plan_scratch_bytes(head) >=
                attnd_scratch_output_offset(head) + states * 128 * 4);
    assert_int_equal(attnd_scratch_state_offset(head) % 64, 0);
    assert_int_equal(attnd_scratch_output_offset(head) % 64, 0);
    assert_int_equal(attnd_plan_scratch_bytes(head) % 64, 0);
}

static void an_append_has_an_item_for_each_block_of_rows(void **state)
{
    (void)state;
    level(1, 2 * ATTND_APPEND_ROWS + 1, 400);
    assert_int_equal(attnd_plan_items(checked_plan(&c), ATTND_RUN_APPEND), 3);
}

static void no_two_sets_have_the_same_version(void **state)
{
    struct attnd_fault fault;

    (void)state;
    level(1, 1, 1);
    uint64_t first = checked_plan(&c)->set_version;
    assert_int_equal(attnd_planner_set(c.plan, &c.batch, &fault), 0);
    uint64_t second = attnd_plan_head(c.plan)->set_version;
    attnd_plan_free(c.plan);
    free(c.heap);
    uint64_t other = checked_plan(&c)->set_version;
    assert_true(first != second && second != other && first != other && first != 0);
}

int main(void)
{
#define TEST(name)                                                                                 \
    cmocka_unit_test_prestate_setup_teardown(name, checked_case_begin, checked_case_end, &c)
    const struct CMUnitTest tests[] = {
        TEST(a_batch_without_requests_is_an_empty_plan),
        TEST(requests_without_query_rows_have_no_tiles),
        TEST(rows_without_keys_have_a_tile_all_the_same),
        TEST(no_item_costs_more_than_the_bound),
        TEST(what_engines_ask_for_is_below_the_bound),
        TEST(a_batch_that_cannot_be_bounded_is_refused_by_name),
        TEST(a_long_chunk_on_a_million_keys_is_planned),
        TEST(limits_of_another_page_size_than_the_pools_are_refused),
        TEST(causal_blocks_cost_only_what_they_see),
        TEST(few_last_rows_are_begun_first_where_they_take_as_long_as_many),
        TEST(queries_longer_than_their_keys_are_legal),
        TEST(tiles_are_whole_tokens_whatever_the_group),
        TEST(a_group_larger_than_a_tile_makes_tiles_of_one_token),
        TEST(prefill_and_decode_share_a_batch_in_two_classes),
        TEST(a_shared_prefix_is_read_once_for_all_requests),
        TEST(a_prefix_level_without_pages_costs_nothing),
        TEST(levels_may_partition_the_rows_differently),
        TEST(workers_finish_close_together),
        TEST(capacities_out_of_range_need_no_heap),
        TEST(scratch_holds_counters_states_and_outputs),
        TEST(an_append_has_an_item_for_each_block_of_rows),
        TEST(no_two_sets_have_the_same_version),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
