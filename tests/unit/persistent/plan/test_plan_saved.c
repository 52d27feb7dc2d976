/* test_plan_saved.c - what cascade levels save is the difference of two counts of blocks. */
#include "persistent/plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define PAGE 16u

/* Two groups of requests: the first of three requests of 1, 1 and 2 rows on 3 pages with 5 tokens
 * in the last, the second of one request of 4 rows on one full page. */
static const int32_t outer_rows[] = {0, 4, 8}, outer_pages[] = {0, 3, 4}, outer_last[] = {5, 16};
static const int32_t inner_rows[] = {0, 1, 2, 4, 8}, inner_pages[] = {0, 1, 2, 3, 4};
static const int32_t inner_last[] = {1, 1, 1, 1};

static struct attnd_batch_view cascade(void)
{
    struct attnd_batch_view batch;

    memset(&batch, 0, sizeof(batch));
    batch.rows = 8;
    batch.levels = 2;
    batch.level[0] = (struct attnd_level_view){.entries = 2,
                                               .pages = 4,
                                               .qo_indptr = outer_rows,
                                               .kv_indptr = outer_pages,
                                               .kv_last_page_len = outer_last};
    batch.level[1] = (struct attnd_level_view){.entries = 4,
                                               .pages = 4,
                                               .qo_indptr = inner_rows,
                                               .kv_indptr = inner_pages,
                                               .kv_last_page_len = inner_last};
    return batch;
}

static void a_group_reads_its_prefix_once_for_each_block_of_rows(void **state)
{
    const struct attnd_batch_view batch = cascade();
    const uint64_t keys = 2 * PAGE + 5; /* of the first group; the second is of one request */

    (void)state;
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 64), (3 - 1) * keys);
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 4), (3 - 1) * keys);
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 2), (3 - 2) * keys);
    /* Blocks of a row are no fewer together than alone. */
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 1), 0);
}

static void what_is_not_shared_saves_nothing(void **state)
{
    static const int32_t no_pages[] = {0, 0, 0}, all_rows[] = {0, 8};
    struct attnd_batch_view batch = cascade();

    (void)state;
    batch.level[0].kv_indptr = no_pages;
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 64), 0);
    batch = cascade();
    batch.level[0] = batch.level[1];
    batch.levels = 1;
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 64), 0);
    batch = cascade();
    batch.level[1].entries = 1;
    batch.level[1].qo_indptr = all_rows;
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 64), 0);
}

static void each_level_but_the_last_counts(void **state)
{
    static const int32_t all_rows[] = {0, 8}, two_pages[] = {0, 2}, full[] = {16};
    struct attnd_batch_view batch = cascade();

    (void)state;
    batch.levels = 3;
    batch.level[2] = batch.level[1];
    batch.level[1] = batch.level[0];
    batch.level[0] = (struct attnd_level_view){.entries = 1,
                                               .pages = 2,
                                               .qo_indptr = all_rows,
                                               .kv_indptr = two_pages,
                                               .kv_last_page_len = full};
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 64),
                     (3 - 1) * (2 * PAGE + 5) + (4 - 1) * 2 * PAGE);
}

static void what_each_request_reads_for_itself_is_not_counted(void **state)
{
    struct attnd_batch_view batch = cascade();

    (void)state;
    batch.options = ATTND_OPTION_WINDOW;
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 64), 0);
    batch.options = ATTND_OPTION_ALIBI;
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 64), 0);
    batch.options = ATTND_OPTION_SOFT_CAP | ATTND_OPTION_MASK;
    assert_int_equal(attnd_plan_shared_keys(&batch, PAGE, 64), 2 * (2 * PAGE + 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_reads_its_prefix_once_for_each_block_of_rows),
        cmocka_unit_test(what_is_not_shared_saves_nothing),
        cmocka_unit_test(each_level_but_the_last_counts),
        cmocka_unit_test(what_each_request_reads_for_itself_is_not_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
