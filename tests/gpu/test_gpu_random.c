/*
 * test_gpu_random.c - random batches in device memory, from two engine processes at once.
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

#define ENGINES 2
#define EACH 8 /* batches of one shape in a row */

static uint64_t seed, first, rounds;

struct client {
    const struct harness *harness;
    uint32_t number;
};

static int client(void *context)
{
    const struct client *self = context;
    struct soak soak = {.seed = seed, .stride = 1};
    struct engine engine;
    int wrong = 0;

    gpu_open();
    gpu_engine_open(&engine, self->harness->socket, "random");
    for (uint64_t shape = self->number; shape * EACH < rounds && !wrong; shape += ENGINES) {
        soak.next = first + shape * EACH;
        for (uint64_t i = shape * EACH; i < shape * EACH + EACH && i < rounds && !wrong; i++)
            wrong = soak_step(&soak, &engine);
    }
    printf("engine %u: %llu batches, %llu runs right\n", self->number,
           (unsigned long long)soak.verified, (unsigned long long)soak.runs);
    engine_close(&engine);
    return wrong;
}

static void random_batches_of_two_engines_are_right(void **state)
{
    struct client clients[ENGINES];
    pid_t pids[ENGINES];
    int wrong = 0;

    for (uint32_t i = 0; i < ENGINES; i++) {
        clients[i] = (struct client){*state, i};
        pids[i] = harness_fork(client, &clients[i]);
    }
    for (uint32_t i = 0; i < ENGINES; i++)
        wrong += harness_join(pids[i], 600000);
    CHECK_EQUAL(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(random_batches_of_two_engines_are_right),
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
