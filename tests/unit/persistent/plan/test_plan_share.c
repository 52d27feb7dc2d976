/*
 * test_plan_share.c - equal leading pages of a batch of one level: what is read once, and what is
 * not.
 *
 * Every plan made here also passes plan_check(): each row sees each of its keys exactly once, from
 * pages that are its own.
 */
#include "tests/support/rigs/checked_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define ENTRIES 64u
#define PAGE 16

static struct plan_case c;

static int begin(void **state)
{
    (void)state;
    plan_case_begin_gpu(&c);
    c.limits.target.cascade = ATTND_CASCADE_AUTO;
    c.batch.flags = ATTND_BATCH_CAUSAL;
    return 0;
}

static int end(void **state)
{
    (void)state;
    plan_case_free(&c);
    return 0;
}

static void level(uint32_t entries, int32_t qo, int32_t kv)
{
    plan_case_level_alike(&c, entries, qo, kv);
}

/* Requests @first..@last begin with the pages of @first. */
static void alike(uint32_t first, uint32_t last, int32_t pages)
{
    const struct attnd_level_view *level0 = &c.batch.level[0];
    int32_t *indices = (int32_t *)(uintptr_t)level0->kv_indices;

    for (uint32_t r = first + 1; r <= last; r++)
        memcpy(indices + level0->kv_indptr[r], indices + level0->kv_indptr[first],
               (uint32_t)pages * sizeof(*indices));
}

static struct attnd_plan_found plan(void)
{
    checked_plan(&c);
    return attnd_plan_found(c.plan);
}

/* Where tiles of the batch's own entry @r begin. */
static uint32_t own_begin(uint32_t r)
{
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    uint32_t first = ATTND_KV_OPEN;

    for (uint32_t t = 0; t < head->tiles; t++) {
        const struct attnd_tile *tile = &plan_tiles(&c)[t];
        if (tile->entry == attnd_plan_shared_entries(c.plan) + r && tile->kv_begin < first)
            first = tile->kv_begin;
    }
    return first;
}

static void what_all_requests_begin_with_is_read_once(void **state)
{
    (void)state;
    level(64, 1, 8192 + 128);
    alike(0, 63, 8192 / PAGE);
    const struct attnd_plan_found found = plan();
    assert_int_equal(found.shared_groups, 1);
    assert_int_equal(found.bytes_saved, 63ull * 8192 * 8 * 2 * 2 * 128);
    assert_int_equal(attnd_plan_head(c.plan)->levels, 2);
    for (uint32_t r = 0; r < 64; r++)
        assert_int_equal(own_begin(r), 8192);
}

static void groups_side_by_side_are_found_each(void **state)
{
    (void)state;
    level(64, 1, 8192 + 128);
    alike(0, 20, 4096 / PAGE);
    alike(21, 50, 8192 / PAGE);
    const struct attnd_plan_found found = plan();
    assert_int_equal(found.shared_groups, 2);
    assert_int_equal(own_begin(20), 4096);
    assert_int_equal(own_begin(21), 8192);
    assert_int_equal(own_begin(51), 0);
}

static void prefixes_within_prefixes_make_a_tree(void **state)
{
    (void)state;
    level(64, 1, 16384);
    alike(0, 63, 4096 / PAGE);
    alike(32, 63, 12288 / PAGE);
    const struct attnd_plan_found found = plan();
    assert_int_equal(found.shared_groups, 2);
    assert_int_equal(attnd_plan_head(c.plan)->levels, 3);
    assert_int_equal(own_begin(31), 4096);
    assert_int_equal(own_begin(32), 12288);
    assert_int_equal(plan_entries(&c)[0].row_count, 64);
    assert_int_equal(plan_entries(&c)[1].row_begin, 32);
    assert_int_equal(found.bytes_saved, (63ull * 4096 + 31ull * 8192) * 8 * 2 * 2 * 128);
}

static void nothing_is_shared_that_costs_more_than_it_saves(void **state)
{
    (void)state;
    level(2, 1, 4096);
    alike(0, 1, 256 / PAGE);
    assert_int_equal(plan().shared_groups, 0);
    assert_int_equal(attnd_plan_head(c.plan)->levels, 1);
    assert_int_equal(own_begin(1), 0);
}

/* One of them saves less than a level costs, and all together much more. */
static void many_small_groups_pay_for_one_level(void **state)
{
    (void)state;
    level(64, 1, 2048 + 128);
    alike(0, 7, 2048 / PAGE);
    assert_int_equal(plan().shared_groups, 0);
    end(NULL);
    begin(NULL);
    level(64, 1, 2048 + 128);
    for (uint32_t group = 0; group < 8; group++)
        alike(8 * group, 8 * group + 7, 2048 / PAGE);
    assert_int_equal(plan().shared_groups, 8);
    assert_int_equal(attnd_plan_head(c.plan)->levels, 2);
}

/* What two requests have in common beyond the prefix of all does not pay for a third level. */
static void a_level_pays_for_itself(void **state)
{
    (void)state;
    level(64, 1, 8192 + 2048);
    alike(0, 63, 8192 / PAGE);
    alike(0, 7, (8192 + 1024) / PAGE);
    assert_int_equal(plan().shared_groups, 1);
    assert_int_equal(attnd_plan_head(c.plan)->levels, 2);
}

/* What is read again comes out of the L2: the faster that is, the less is saved. */
static void what_the_l2_gives_at_once_is_not_shared(void **state)
{
    (void)state;
    for (uint32_t fast = 0; fast < 2; fast++) {
        end(NULL);
        begin(NULL);
        c.limits.target.rates.worker_l2_gbps = fast ? 1340 : 67;
        level(16, 1, 4096 + 128);
        alike(0, 15, 4096 / PAGE);
        assert_int_equal(plan().shared_groups, !fast);
    }
}

/* Each pair saves less than a level costs. The memory has their keys once all the same, so reading
 * is over sooner, and more workers compute beside it. */
static void keys_that_pairs_have_in_common_are_bytes_once(void **state)
{
    uint32_t computing[2];

    (void)state;
    for (uint32_t pairs = 0; pairs < 2; pairs++) {
        int32_t qo_len[121], kv_len[121];
        end(NULL);
        begin(NULL);
        c.limits.target.fusion = ATTND_FUSION_SM_SPLIT;
        for (uint32_t r = 0; r < 121; r++) {
            qo_len[r] = r ? 1 : 1024;
            kv_len[r] = r ? 2048 + 64 : 2048;
        }
        plan_case_level(&c, 121, qo_len, kv_len);
        for (uint32_t r = 1; pairs && r < 121; r += 2)
            alike(r, r + 1, 2048 / PAGE);
        assert_int_equal(plan().shared_groups, 0);
        computing[pairs] = attnd_plan_head(c.plan)->compute_workers;
    }
    printf("%u and %u workers compute\n", computing[0], computing[1]);
    assert_true(computing[0] < computing[1]);
}

static void a_batch_with_nothing_in_common_is_planned_as_ever(void **state)
{
    (void)state;
    level(64, 1, 4096);
    const uint32_t shared = plan().shared_groups;
    const struct attnd_plan_head with = *attnd_plan_head(c.plan);

    assert_int_equal(shared, 0);
    plan_case_free(&c);
    begin(NULL);
    c.limits.target.cascade = ATTND_CASCADE_OFF;
    level(64, 1, 4096);
    plan();
    assert_int_equal(with.tiles, attnd_plan_head(c.plan)->tiles);
    assert_int_equal(with.merges, attnd_plan_head(c.plan)->merges);
    assert_int_equal(with.flags, attnd_plan_head(c.plan)->flags);
}

/* All pages are the same, the last one is half full: it stays each request's own, and so does the
 * page in front of it, which holds a query row's own key; and shared keys are whole granules. */
static void equal_lists_keep_their_last_keys(void **state)
{
    (void)state;
    level(64, 9, 8192 + 8);
    alike(0, 63, 8192 / PAGE + 1);
    assert_int_equal(plan().shared_groups, 1);
    assert_int_equal(own_begin(5), 8192 - 64);
}

static void one_key_less_than_a_page_is_not_shared(void **state)
{
    (void)state;
    level(64, 1, 8192);
    alike(0, 63, 8192 / PAGE); /* the last key is the row's own */
    assert_int_equal(plan().shared_groups, 1);
    assert_int_equal(own_begin(5), 8192 - 64);
}

static void a_hint_is_asked_for_where_only_hints_count(void **state)
{
    (void)state;
    for (int hint = 0; hint < 2; hint++) {
        c.limits.target.cascade = ATTND_CASCADE_HINT;
        c.batch.flags = ATTND_BATCH_CAUSAL | (hint ? ATTND_BATCH_SHARED_PAGES : 0);
        level(64, 1, 8192 + 128);
        alike(0, 63, 8192 / PAGE);
        assert_int_equal(plan().shared_groups, hint);
        plan_case_free(&c);
        begin(NULL);
    }
}

static void options_that_ask_where_a_row_stands_share_nothing(void **state)
{
    static const struct {
        uint32_t options, groups;
    } of[] = {{ATTND_OPTION_SOFT_CAP, 1}, {ATTND_OPTION_SINKS, 1},       {ATTND_OPTION_SCALES, 1},
              {ATTND_OPTION_WINDOW, 0},   {ATTND_OPTION_HEAD_SCALES, 1}, {ATTND_OPTION_ALIBI, 0},
              {ATTND_OPTION_ROPE, 0},     {ATTND_OPTION_ROPE_APPEND, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        level(64, 1, 8192 + 128);
        alike(0, 63, 8192 / PAGE);
        c.batch.options = of[i].options;
        assert_int_equal(plan().shared_groups, of[i].groups);
        plan_case_free(&c);
        begin(NULL);
    }
}

static void levels_of_the_batch_are_left_as_they_are(void **state)
{
    const int32_t rows = 64, prefix = 4096;

    (void)state;
    plan_case_level(&c, 1, &rows, &prefix);
    level(64, 1, 8192);
    assert_int_equal(plan().shared_groups, 0);
    assert_int_equal(attnd_plan_head(c.plan)->levels, 2);
}

static int advance(const int32_t *lengths, uint32_t generation, struct attnd_fault *fault)
{
    const struct attnd_advance_view view = {.entries = 64, .kv_len = lengths};

    assert_false(attnd_planner_unshares(c.plan, &view));
    return attnd_planner_advance(c.plan, &view, generation, c.pool.pages, fault);
}

static void an_advance_moves_own_lengths_and_no_shared_one(void **state)
{
    struct attnd_fault fault = {0};
    int32_t kv_len[ENTRIES];

    (void)state;
    level(64, 1, 8192 + 100);
    alike(0, 63, 8192 / PAGE);
    plan();
    for (uint32_t r = 0; r < 64; r++)
        kv_len[r] = 8193 + (int32_t)r;
    assert_int_equal(advance(kv_len, 3, &fault), 0);
    assert_int_equal(plan_kv_len(&c, 3)[0], 8192);
    for (uint32_t r = 0; r < 64; r++)
        assert_int_equal(plan_kv_len(&c, 3)[1 + r], 8193 + (int32_t)r);
}

static void an_advance_into_shared_keys_is_planned_again_without_them(void **state)
{
    int32_t kv_len[ENTRIES];
    const struct attnd_advance_view view = {.entries = 64, .kv_len = kv_len};
    struct attnd_fault fault = {0};

    (void)state;
    for (uint32_t r = 0; r < 64; r++)
        kv_len[r] = 8192 + 100;
    level(64, 1, 8192 + 100);
    alike(0, 63, 8192 / PAGE);
    plan();
    const uint64_t version = attnd_plan_head(c.plan)->set_version;
    kv_len[7] = 8192;
    assert_true(attnd_planner_unshares(c.plan, &view));
    assert_int_equal(attnd_planner_build_unshared(c.plan, &view, c.pool.pages, &fault), 0);
    assert_int_equal(attnd_plan_head(c.plan)->set_version, version);
    attnd_planner_drop(c.plan);
    assert_true(attnd_planner_unshares(c.plan, &view));
    assert_int_equal(attnd_planner_build_unshared(c.plan, &view, c.pool.pages, &fault), 0);
    attnd_planner_write_unshared(c.plan, &view);
    assert_int_equal(attnd_plan_found(c.plan).shared_groups, 0);
    assert_int_equal(attnd_plan_shared_entries(c.plan), 0);
    assert_int_equal(attnd_plan_head(c.plan)->entries, 64);
    assert_int_equal(attnd_plan_head(c.plan)->levels, 1);
    assert_true(attnd_plan_head(c.plan)->set_version > version);
    for (uint32_t r = 0; r < 64; r++) {
        assert_int_equal(plan_kv_len(&c, 0)[r], kv_len[r]);
        assert_int_equal(plan_entries(&c)[r].row_begin, r);
        assert_int_equal(plan_kv_pages(&c)[plan_entries(&c)[r].page_begin],
                         c.batch.level[0].kv_indices[c.batch.level[0].kv_indptr[r]]);
        assert_int_equal(own_begin(r), 0);
    }
}

/* Neighbours with ever fewer pages in common make as many intervals as there are places for; what
 * finds none is read by each. */
static void intervals_beyond_the_places_for_them_are_left_out(void **state)
{
    (void)state;
    level(64, 1, 16384);
    for (uint32_t r = 62; r > 0; r--)
        alike(r - 1, r, 64 + 8 * (int32_t)(63 - r));
    for (uint32_t r = 1; r < 64; r++)
        alike(r - 1, r, 1000 - 12 * (int32_t)r);
    const struct attnd_plan_found found = plan();
    assert_true(found.shared_groups <= 32);
    assert_true(attnd_plan_head(c.plan)->levels <= 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_all_requests_begin_with_is_read_once),
        TEST(groups_side_by_side_are_found_each),
        TEST(prefixes_within_prefixes_make_a_tree),
        TEST(nothing_is_shared_that_costs_more_than_it_saves),
        TEST(many_small_groups_pay_for_one_level),
        TEST(a_level_pays_for_itself),
        TEST(what_the_l2_gives_at_once_is_not_shared),
        TEST(keys_that_pairs_have_in_common_are_bytes_once),
        TEST(a_batch_with_nothing_in_common_is_planned_as_ever),
        TEST(equal_lists_keep_their_last_keys),
        TEST(one_key_less_than_a_page_is_not_shared),
        TEST(a_hint_is_asked_for_where_only_hints_count),
        TEST(options_that_ask_where_a_row_stands_share_nothing),
        TEST(levels_of_the_batch_are_left_as_they_are),
        TEST(an_advance_moves_own_lengths_and_no_shared_one),
        TEST(an_advance_into_shared_keys_is_planned_again_without_them),
        TEST(intervals_beyond_the_places_for_them_are_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
