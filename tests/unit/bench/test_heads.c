/* test_heads.c - what --heads of the programs of bench takes. */
#include "bench/support/heads.h"

#include "schemas/errors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void heads_are_two_numbers_of_which_the_first_is_a_multiple(void **state)
{
    (void)state;
    const char *const bad[] = {
        "",       "32",    "32/",  "/8",    "32/8x", "32/8/2",
        "-32/8",  "32/0",  "0/8",  "6/4",   "8/32",  "32 / 8",
        "1025/1", "+32/8", "32x8", "1/1.0", "0x8/8", "12345678901234567890/1"};
    uint32_t heads_q = 7, heads_kv = 9;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(bench_heads_parse(bad[i], &heads_q, &heads_kv), -ATTND_E_INVALID);
    assert_int_equal(heads_q, 7);
    assert_int_equal(heads_kv, 9);
    assert_int_equal(bench_heads_parse("32/8", &heads_q, &heads_kv), 0);
    assert_int_equal(heads_q, 32);
    assert_int_equal(heads_kv, 8);
    assert_int_equal(bench_heads_parse("1024/1024", &heads_q, &heads_kv), 0);
    assert_int_equal(heads_kv, BENCH_HEADS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_two_numbers_of_which_the_first_is_a_multiple),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
