/*
 * test_gpu_random.c - random batches in device memory, from two engine processes at once: plain
 * ones, then any attention variant and head dimension.
 *
 *   ATTND_SEED     repeats a run         ATTND_FIRST    number of the first batch (0)
 *   ATTND_ROUNDS   batches in all (160)
 */
#include "tests/gpu/support/draws.h"
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void random_batches_of_two_engines_are_right(void **state)
{
    CHECK_EQUAL(draws_in_engines(*state, gpu_engine_open, NULL), 0);
}

static void random_variants_of_two_engines_are_right(void **state)
{
    CHECK_EQUAL(draws_in_engines(*state, gpu_engine_open, random_contract_draw), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(random_batches_of_two_engines_are_right),
        E2E_TEST(random_variants_of_two_engines_are_right),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    draws_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
