/* test_plan_variant.c - what a window spares, and that fixed splits ask nothing of other requests.
 */
#include "tests/support/rigs/checked_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ENTRIES 100

static struct plan_case c;

static void level(uint32_t entries, int32_t qo, int32_t kv)
{
    plan_case_level_alike(&c, entries, qo, kv);
}

static void window(int32_t window_left)
{
    c.batch.options |= ATTND_OPTION_WINDOW;
    c.batch.variant.window_left = window_left;
    c.batch.flags = ATTND_BATCH_CAUSAL;
}

static uint64_t cost(void)
{
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    uint64_t sum = 0;

    for (uint32_t t = 0; t < head->tiles; t++)
        sum += plan_tiles(&c)[t].cost;
    return sum;
}

static void a_decode_costs_its_window_and_not_its_length(void **state)
{
    (void)state;
    level(1, 1, 32768);
    window(4095);
    assert_int_equal(checked_plan(&c)->tiles, 1);
    assert_int_equal(cost(), attnd_item_cost(4096, 4));
    assert_int_equal(plan_entries(&c)[0].window, 4096);
}

static void a_window_that_begins_inside_a_granule_costs_all_of_it(void **state)
{
    (void)state;
    level(1, 1, 1000); /* keys 900..999; granules of 64 */
    window(99);
    checked_plan(&c);
    assert_int_equal(cost(), attnd_item_cost(1000 - 896, 4));
}

static void a_prompt_costs_its_band(void **state)
{
    (void)state;
    level(1, 16384, 16384);
    window(1023);
    checked_plan(&c);
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    for (uint32_t t = 0; t < head->tiles; t++) { /* 32 tokens a tile */
        assert_in_range(plan_tiles(&c)[t].cost, 0, attnd_item_cost(1024 + 32 + 64, 128));
        assert_int_equal(plan_tiles(&c)[t].kv_begin, 0);
    }
}

static void parts_of_a_split_share_the_window(void **state)
{
    uint32_t seen = 0;

    (void)state;
    c.limits.target.tile_workers = 64;
    level(1, 1, 32768);
    window(8191);
    const struct attnd_plan_head *head = checked_plan(&c);
    assert_true(head->tiles > 4);
    for (uint32_t t = 0; t < head->tiles; t++) {
        const struct attnd_tile *tile = &plan_tiles(&c)[t];
        const uint32_t from = tile->kv_begin > 24576 ? tile->kv_begin : 24576;
        const uint32_t to = tile->kv_end < 32768 ? tile->kv_end : 32768;
        assert_true(to > from); /* none stands where the window hides everything */
        assert_in_range(to - from, 64, 2 * 8192 / head->tiles);
        seen += to - from;
    }
    assert_int_equal(seen, 8192);
}

static void a_window_may_be_longer_than_anything(void **state)
{
    (void)state;
    level(1, 2, 64);
    window(1 << 30); /* more than there will ever be: as if there were none */
    checked_plan(&c);
    assert_int_equal(plan_entries(&c)[0].window, (1 << 30) + 1);
    c.batch.variant.window_left = INT32_MAX;
    struct attnd_fault fault;
    assert_int_equal(attnd_planner_set(c.plan, &c.batch, &fault), 0);
    assert_int_equal(plan_entries(&c)[0].window, INT32_MAX);
}

static void without_rows_that_see_anything_there_is_a_tile_of_no_keys(void **state)
{
    (void)state;
    level(3, 5, 0);
    window(2);
    checked_plan(&c);
    for (uint32_t t = 0; t < attnd_plan_head(c.plan)->tiles; t++)
        assert_int_equal(plan_tiles(&c)[t].cost, ATTND_COST_TILE);
}

/* ---- levels ---- */

/* 64 keys for two requests, then 200 and 10 of their own. */
static void two_requests_behind_a_prefix(void)
{
    const int32_t rows[] = {2}, prefix[] = {64}, own_rows[] = {1, 1}, own[] = {200, 10};

    plan_case_level(&c, 1, rows, prefix);
    plan_case_level(&c, 2, own_rows, own);
}

static void a_window_reaches_into_a_prefix_as_far_as_the_row_stands_from_it(void **state)
{
    uint64_t seen = 0;

    (void)state;
    two_requests_behind_a_prefix();
    window(127); /* of the first request's own keys; of the other's, and of 118 there are */
    const struct attnd_plan_head *head = checked_plan(&c);
    assert_int_equal(head->tiles, 4);
    for (uint32_t t = 0; t < head->tiles; t++)
        if (plan_tiles(&c)[t].of_entry.level == 0)
            seen += plan_tiles(&c)[t].cost - ATTND_COST_TILE;
    assert_int_equal(seen, attnd_item_cost(64, 4) - ATTND_COST_TILE);
}

static void an_advance_moves_rows_away_from_a_prefix(void **state)
{
    const int32_t lengths[] = {60, 150, 3};
    const struct attnd_advance_view advance = {.entries = 3, .kv_len = lengths};
    struct attnd_fault fault;

    (void)state;
    two_requests_behind_a_prefix();
    window(127);
    const struct attnd_plan_head *head = checked_plan(&c);
    assert_int_equal(attnd_planner_advance(c.plan, &advance, 3, 1000, &fault), 0);
    for (uint32_t t = 0; t < head->tiles; t++) {
        const struct attnd_tile *tile = &plan_tiles(&c)[t];
        if (tile->of_entry.level == 0)
            assert_int_equal(plan_kv_len(&c, 3)[tile->of_entry.behind],
                             tile->row_begin == 0 ? 150 : 3);
    }
}

static void keys_that_are_stored_rotated_have_one_place(void **state)
{
    const int32_t rows[] = {1, 2}, prefix[] = {64, 32}, own_rows[] = {2, 1}, own[] = {200, 10};
    struct attnd_fault fault;
    char why[200];

    (void)state;
    plan_case_level(&c, 2, rows, prefix);
    plan_case_level(&c, 2, own_rows, own);
    c.batch.options |= ATTND_OPTION_ROPE;
    checked_plan(&c);
    c.batch.options ^= ATTND_OPTION_ROPE | ATTND_OPTION_ROPE_APPEND;
    assert_int_equal(attnd_planner_set(c.plan, &c.batch, &fault), -ATTND_E_UNSUPPORTED);
    assert_int_equal(fault.field, ATTND_F_POSITION_ENCODING);
    assert_int_equal(fault.index, ATTND_F_LEVELS);
    c.batch.options ^= ATTND_OPTION_ROPE | ATTND_OPTION_ROPE_APPEND;
    if (!plan_check(&c, why, sizeof(why))) /* the batch before it is still there */
        fail_msg("%s", why);
}

static void keys_in_front_of_an_entry_are_told_where_they_are_stored_rotated(void **state)
{
    (void)state;
    two_requests_behind_a_prefix();
    c.batch.options |= ATTND_OPTION_ROPE_APPEND;
    const struct attnd_plan_head *head = checked_plan(&c);
    const int32_t *before = plan_kv_len(&c, 0) + head->entries;
    assert_int_equal(before[0], 0);
    assert_int_equal(before[1], 64);
    assert_int_equal(before[2], 64);
}

static void rows_without_a_place_share_their_prefix(void **state)
{
    (void)state;
    two_requests_behind_a_prefix();
    c.batch.options |= ATTND_OPTION_SOFT_CAP | ATTND_OPTION_MASK;
    c.batch.mask_indptr = (const int32_t[]){0, 25, 27};
    assert_int_equal(checked_plan(&c)->tiles, 3);
}

/* ---- fixed splits ---- */

static void fix(uint32_t keys)
{
    c.limits.fixed_split = keys;
    c.batch.options |= ATTND_OPTION_FIXED_SPLIT;
    c.batch.variant.fixed_split = keys;
}

/* The tiles of entry @index, in the order of their keys. */
static uint32_t tiles_of(uint32_t index, struct attnd_tile *out)
{
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    uint32_t count = 0;

    for (uint32_t t = 0; t < head->tiles; t++) {
        const struct attnd_tile *tile = &plan_tiles(&c)[t];
        uint32_t at = count;
        if (tile->entry != index)
            continue;
        for (; at > 0 && out[at - 1].kv_begin > tile->kv_begin; at--)
            out[at] = out[at - 1];
        out[at] = *tile;
        count++;
    }
    return count;
}

static void a_request_is_cut_alike_alone_and_among_others(void **state)
{
    struct attnd_tile alone[64], among[64];

    (void)state;
    c.limits.target.tile_workers = 16;
    fix(1000); /* 1024: granules of 64 */
    level(1, 1, 9000);
    checked_plan(&c);
    const uint32_t count = tiles_of(0, alone);
    assert_int_equal(count, 9);
    plan_case_free(&c);
    plan_case_begin(&c);
    c.limits.target.tile_workers = 16;
    fix(1000);
    const int32_t qo_len[] = {7, 1, 1, 300}, kv_len[] = {7, 9000, 20000, 400};
    plan_case_level(&c, 4, qo_len, kv_len);
    checked_plan(&c);
    assert_int_equal(tiles_of(1, among), count);
    for (uint32_t t = 0; t < count; t++) {
        assert_int_equal(alone[t].kv_begin, 1024 * t);
        assert_int_equal(alone[t].kv_begin, among[t].kv_begin);
        assert_int_equal(alone[t].kv_end, among[t].kv_end);
        assert_int_equal(alone[t].row_count, among[t].row_count);
    }
}

/* Of the prefix, too, whose other requests would make another tile of its rows. */
static void a_request_behind_a_prefix_is_cut_alike_alone_and_among_others(void **state)
{
    const int32_t one[] = {1}, all[] = {8}, prefix[] = {700};
    const int32_t qo_len[] = {3, 1, 4}, kv_len[] = {40, 90, 2000};

    (void)state;
    fix(256);
    plan_case_level(&c, 1, one, prefix);
    plan_case_level(&c, 1, one, kv_len + 1);
    const uint32_t tiles = checked_plan(&c)->tiles;
    assert_int_equal(tiles, 3 + 1);
    const struct attnd_tile alone = plan_tiles(&c)[0];
    assert_int_equal(alone.tile_class, ATTND_TILE_MEMORY);
    plan_case_free(&c);
    plan_case_begin(&c);
    fix(256);
    plan_case_level(&c, 1, all, prefix);
    plan_case_level(&c, 3, qo_len, kv_len);
    const struct attnd_plan_head *head = checked_plan(&c);
    uint32_t of_prefix = 0;
    for (uint32_t t = 0; t < head->tiles; t++) {
        const struct attnd_tile *tile = &plan_tiles(&c)[t];
        if (tile->entry != 0)
            continue;
        of_prefix++;
        assert_true(tile->row_begin == 0 || tile->row_begin == 3 || tile->row_begin == 4);
        if (tile->row_begin != 3)
            continue;
        assert_int_equal(tile->row_count, 1);
        assert_int_equal(tile->tile_class, alone.tile_class);
        assert_int_equal(tile->kv_begin % 256, 0);
    }
    assert_int_equal(of_prefix, 3 * 3);
}

static void tiles_stand_ready_for_keys_that_an_advance_brings(void **state)
{
    struct attnd_tile tiles[64];

    (void)state;
    c.batch.reserve_pages = 128; /* 2048 tokens */
    fix(512);
    level(1, 1, 512);
    checked_plan(&c);
    assert_int_equal(tiles_of(0, tiles), 5);
    assert_int_equal(tiles[4].kv_begin, 2048);
}

static void parts_that_a_window_hides_are_one(void **state)
{
    struct attnd_tile tiles[64];

    (void)state;
    fix(512);
    level(1, 1, 8192);
    window(1099); /* keys 7092 on */
    checked_plan(&c);
    assert_int_equal(tiles_of(0, tiles), 3);
    assert_int_equal(tiles[0].kv_begin, 0);
    assert_int_equal(tiles[0].kv_end, 7168);
    assert_int_equal(tiles[1].kv_end, 7680);
}

/* A window cuts the prefix's four rows into a block for each request: four splits, not one. */
static void pieces_of_a_prefix_have_room_in_a_plan_that_just_fits(void **state)
{
    const int32_t rows[] = {4}, prefix[] = {1024}, own_rows[] = {1, 1, 1, 1}, own[] = {8, 8, 8, 8};
    struct attnd_tile tiles[64];

    (void)state;
    plan_case_level(&c, 1, rows, prefix);
    plan_case_level(&c, 4, own_rows, own);
    window(5000);
    fix(512);
    checked_plan(&c);
    assert_int_equal(tiles_of(0, tiles), 8);
}

static void a_plan_made_for_longer_parts_names_them(void **state)
{
    struct attnd_fault fault = {0};

    (void)state;
    level(4, 1, 8192);
    fix(64);
    plan_case_fit(&c);
    c.limits.fixed_split = 4096;
    assert_int_equal(plan_case_new(&c), 0);
    assert_int_equal(attnd_planner_set(c.plan, &c.batch, &fault), -ATTND_E_NO_SPACE);
    assert_int_equal(fault.field, ATTND_F_FIXED_SPLIT);
    assert_int_equal(fault.value, 64);
    assert_int_equal(fault.limit, 4096);
    assert_int_equal(attnd_plan_head(c.plan)->tiles, 0);
    c.batch.variant.fixed_split = (uint32_t)fault.limit;
    assert_int_equal(attnd_planner_set(c.plan, &c.batch, &fault), 0);
}

static void a_plan_made_without_says_so(void **state)
{
    struct attnd_fault fault = {0};

    (void)state;
    level(1, 1, 8192);
    fix(512);
    plan_case_fit(&c);
    c.limits.fixed_split = 0;
    assert_int_equal(plan_case_new(&c), 0);
    assert_int_equal(attnd_planner_set(c.plan, &c.batch, &fault), -ATTND_E_NO_SPACE);
    assert_int_equal(fault.field, ATTND_F_FIXED_SPLIT);
    assert_int_equal(fault.limit, 0);
}

#define TEST(name)                                                                                 \
    cmocka_unit_test_prestate_setup_teardown(name, checked_case_begin, checked_case_end, &c)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_decode_costs_its_window_and_not_its_length),
        TEST(a_window_that_begins_inside_a_granule_costs_all_of_it),
        TEST(a_prompt_costs_its_band),
        TEST(parts_of_a_split_share_the_window),
        TEST(a_window_may_be_longer_than_anything),
        TEST(a_window_reaches_into_a_prefix_as_far_as_the_row_stands_from_it),
        TEST(an_advance_moves_rows_away_from_a_prefix),
        TEST(keys_that_are_stored_rotated_have_one_place),
        TEST(keys_in_front_of_an_entry_are_told_where_they_are_stored_rotated),
        TEST(rows_without_a_place_share_their_prefix),
        TEST(without_rows_that_see_anything_there_is_a_tile_of_no_keys),
        TEST(a_request_is_cut_alike_alone_and_among_others),
        TEST(a_request_behind_a_prefix_is_cut_alike_alone_and_among_others),
        TEST(tiles_stand_ready_for_keys_that_an_advance_brings),
        TEST(parts_that_a_window_hides_are_one),
        TEST(pieces_of_a_prefix_have_room_in_a_plan_that_just_fits),
        TEST(a_plan_made_for_longer_parts_names_them),
        TEST(a_plan_made_without_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
