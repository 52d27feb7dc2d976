/* test_recent.c - which kernels of a GPU's workers had runs lately. */
#include "persistent/recent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define BEGIN_NS 5000000000ull

static struct attnd_recent recent;
static uint32_t gang[ATTND_KERNELS];

static int start(void **state)
{
    (void)state;
    memset(&recent, 0, sizeof(recent));
    memset(gang, 0, sizeof(gang));
    return 0;
}

static void nothing_was_there_before_the_first_run(void **state)
{
    (void)state;
    assert_int_equal(attnd_recent_note(&recent, gang, BEGIN_NS), 0);
    assert_int_equal(attnd_recent_note(&recent, gang, 1), 0); /* soon after the machine began */
}

static void a_kernel_whose_runs_come_stays(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < 100; i++) {
        gang[3] = i;
        assert_int_equal(attnd_recent_note(&recent, gang, BEGIN_NS + i * (ATTND_RECENT_NS - 1)),
                         1u << 3);
    }
}

static void a_kernel_without_runs_is_not_recent_and_comes_back_with_one(void **state)
{
    (void)state;
    gang[0] = gang[ATTND_KERNELS - 1] = 7;
    assert_int_equal(attnd_recent_note(&recent, gang, BEGIN_NS), 1u | 1u << (ATTND_KERNELS - 1));
    gang[0] = 8;
    assert_int_equal(attnd_recent_note(&recent, gang, BEGIN_NS + ATTND_RECENT_NS), 1u);
    gang[ATTND_KERNELS - 1] = 9;
    assert_int_equal(attnd_recent_note(&recent, gang, BEGIN_NS + ATTND_RECENT_NS + 1),
                     1u | 1u << (ATTND_KERNELS - 1));
}

static void a_kernel_that_is_asked_for_counts_before_its_first_run(void **state)
{
    (void)state;
    attnd_recent_ask(&recent, 2, BEGIN_NS);
    assert_int_equal(attnd_recent_note(&recent, gang, BEGIN_NS + ATTND_RECENT_NS - 1), 1u << 2);
    assert_int_equal(attnd_recent_note(&recent, gang, BEGIN_NS + ATTND_RECENT_NS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nothing_was_there_before_the_first_run, start),
        cmocka_unit_test_setup(a_kernel_whose_runs_come_stays, start),
        cmocka_unit_test_setup(a_kernel_without_runs_is_not_recent_and_comes_back_with_one, start),
        cmocka_unit_test_setup(a_kernel_that_is_asked_for_counts_before_its_first_run, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
