/*
 * test_plan_twin.c - by which page a plan is known to plans of other sessions that read the same.
 */
#include "tests/support/rigs/plan_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MANY 65536 /* keys; read again by 131 workers they save microseconds */
#define PAGE 16

static struct plan_case c;

static int begin(void **state)
{
    (void)state;
    plan_case_begin_gpu(&c);
    c.limits.target.cascade = ATTND_CASCADE_AUTO;
    return 0;
}

static int end(void **state)
{
    (void)state;
    plan_case_free(&c);
    return 0;
}

static uint64_t reads_first(void)
{
    assert_int_equal(plan_case_plan(&c), 0);
    return attnd_plan_head(c.plan)->reads_first;
}

static int32_t *pages_of(uint32_t r)
{
    const struct attnd_level_view *level = &c.batch.level[0];

    return (int32_t *)(uintptr_t)level->kv_indices + level->kv_indptr[r];
}

static void a_plan_is_known_by_the_first_page_of_its_longest_decode(void **state)
{
    const int32_t qo[] = {1, 1, 1}, kv[] = {MANY / 2, MANY, MANY / 4};
    (void)state;
    plan_case_level(&c, 3, qo, kv);
    assert_int_equal(reads_first(), 1 + (uint64_t)pages_of(1)[0]);
}

/* Whatever comes behind it, and whoever has it. */
static void a_prefix_that_is_read_once_is_known_by_its_first_page(void **state)
{
    (void)state;
    plan_case_level_alike(&c, 2, 1, MANY);
    memcpy(pages_of(1), pages_of(0), (MANY / PAGE - 1) * sizeof(int32_t));
    assert_int_equal(reads_first(), 1 + (uint64_t)pages_of(0)[0]);
    assert_int_equal(attnd_plan_found(c.plan).shared_groups, 1);
}

static void what_gains_nothing_is_not_known(void **state)
{
    (void)state;
    plan_case_level_alike(&c, 4, 1, 256); /* short */
    assert_int_equal(reads_first(), 0);
    end(NULL);
    begin(NULL);
    plan_case_level_alike(&c, 1, 128, MANY); /* a full tile */
    assert_int_equal(reads_first(), 0);
    end(NULL);
    begin(NULL);
    c.limits.target.rates.worker_l2_gbps = 33; /* a cache as slow as the memory */
    plan_case_level_alike(&c, 4, 1, MANY);
    assert_int_equal(reads_first(), 0);
    end(NULL);
    begin(NULL);
    plan_case_level_alike(&c, 2, 1, 0); /* no keys */
    assert_int_equal(reads_first(), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_plan_is_known_by_the_first_page_of_its_longest_decode),
        TEST(a_prefix_that_is_read_once_is_known_by_its_first_page),
        TEST(what_gains_nothing_is_not_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
