/*
 * test_e2e_contract_random.c - random variants of attention from two engine processes at once.
 *
 *   ATTND_SEED     repeats a run         ATTND_FIRST    number of the first batch (0)
 *   ATTND_ROUNDS   batches in all (1500)
 *
 * Every worker has all of the contract: nothing may be refused.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/random/seed.h"
#include "tests/support/random/soak.h"
#include "tests/support/trial/trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed, first, rounds;

static int client(void *context)
{
    const struct soak_engine *self = context;
    struct soak soak = {.draw = random_contract_draw, .seed = seed, .stride = 1};
    struct engine engine;

    engine_open(&engine, self->harness->socket, "contract");
    int wrong = soak_shapes(&soak, &engine, self->number, first, rounds);
    engine_close(&engine);
    CHECK_EQUAL(soak.refused, 0);
    return wrong;
}

static void random_variants_of_two_engines_are_right(void **state)
{
    CHECK_EQUAL(soak_in_engines(*state, client), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {E2E_TEST(random_variants_of_two_engines_are_right)};

    harness_init();
    seed = test_seed();
    first = test_number("ATTND_FIRST", 0);
    rounds = test_number("ATTND_ROUNDS", 1500);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
