/*
 * test_gpu_random.c - random batches in device memory, from two engine processes at once: plain
 * ones, then any attention variant and head dimension.
 *
 *   ATTND_SEED     repeats a run         ATTND_FIRST    number of the first batch (0)
 *   ATTND_ROUNDS   batches in all (160)
 */
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/random/seed.h"
#include "tests/support/random/soak.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed, first, rounds;

static int draw_in_engine(const struct soak_engine *self, random_draw_fn *draw)
{
    struct soak soak = {.draw = draw, .seed = seed, .stride = 1};
    struct engine engine;

    gpu_open();
    gpu_engine_open(&engine, self->harness->socket, "random");
    int wrong = soak_shapes(&soak, &engine, self->number, first, rounds);
    printf("engine %u: %llu batches, %llu runs right\n", self->number,
           (unsigned long long)soak.verified, (unsigned long long)soak.runs);
    engine_close(&engine);
    CHECK_EQUAL(soak.refused, 0);
    return wrong;
}

static int plain_client(void *context)
{
    return draw_in_engine(context, NULL);
}

static void random_batches_of_two_engines_are_right(void **state)
{
    CHECK_EQUAL(soak_in_engines(*state, plain_client), 0);
}

static int variant_client(void *context)
{
    return draw_in_engine(context, random_contract_draw);
}

static void random_variants_of_two_engines_are_right(void **state)
{
    CHECK_EQUAL(soak_in_engines(*state, variant_client), 0);
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
    seed = test_seed();
    first = test_number("ATTND_FIRST", 0);
    rounds = test_number("ATTND_ROUNDS", 160);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
