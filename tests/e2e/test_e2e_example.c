/*
 * test_e2e_example.c - the engine that the README prints, as a program of its own.
 */
#include "tests/support/e2e.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Keys are all zero, so the last of 8 tokens weighs 8 keys the same: log2(8). */
static void the_engine_of_the_readme_prints_what_it_says(void **state)
{
    char output[256];

    CHECK_EQUAL(harness_example(*state, "examples/engine", output, sizeof(output)), 0);
    check_true(!strcmp(output, "lse of the last token: 3\n"), output, __FILE__, __LINE__);
}

static void without_a_service_it_fails(void **state)
{
    char output[256];

    harness_kill_daemon(*state);
    CHECK_EQUAL(harness_example(*state, "examples/engine", output, sizeof(output)), 1);
    CHECK_EQUAL(strlen(output), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(the_engine_of_the_readme_prints_what_it_says),
        E2E_TEST(without_a_service_it_fails),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
