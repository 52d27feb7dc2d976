/*
 * test_e2e_random.c - random batches from two engine processes at once.
 *
 *   ATTND_SEED     repeats a run         ATTND_FIRST    number of the first batch (0)
 *   ATTND_ROUNDS   batches in all (1500)
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/random/seed.h"
#include "tests/support/random/soak.h"
#include "tests/support/trial/trial.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed, first, rounds;

static int client(void *context)
{
    const struct soak_engine *self = context;
    struct soak soak = {.seed = seed, .stride = 1};
    struct engine engine;

    engine_open(&engine, self->harness->socket, "random");
    int wrong = soak_shapes(&soak, &engine, self->number, first, rounds);
    engine_close(&engine);
    return wrong;
}

static void random_batches_of_two_engines_are_right(void **state)
{
    CHECK_EQUAL(soak_in_engines(*state, client), 0);
}

/* ---- several at a time in one session ---- */

#define TOGETHER 4

/* Pages of all levels and steps; lists that share pages need fewer. */
static uint32_t pages_of(const struct random_batch *batch)
{
    uint32_t pages = 0;

    for (uint32_t l = 0; l < batch->levels; l++)
        for (uint32_t e = 0; e < batch->level[l].requests; e++)
            pages += (uint32_t)random_batch_pages(batch, l, e, batch->steps - 1);
    return pages;
}

/* Begins batches first..first+TOGETHER, each in its part of the pool, its own plan and its own
 * lane, as far as they fit. Return: how many. */
static uint32_t begin_together(struct engine *engine, uint64_t number, struct trial *trials)
{
    uint32_t count = 0;
    uint64_t rows = 0;

    for (uint32_t t = 0; t < TOGETHER; t++) {
        struct random_batch batch;
        random_batch_draw(seed, number + t, &batch);
        engine_pool(engine, &batch.shape);
        engine->window_begin = t * engine->pages / TOGETHER;
        engine->window_end = (t + 1) * engine->pages / TOGETHER;
        if (pages_of(&batch) > engine->window_end - engine->window_begin ||
            (double)rows + random_batch_rows_bytes(&batch) > RANDOM_ROWS_BYTES)
            continue;
        batch.tight = 1;
        batch.lane = 7 * t;
        trial_begin(&trials[count], engine, &batch, rows);
        rows = trials[count++].rows_end;
    }
    return count;
}

static int crowded_client(void *context)
{
    const struct soak_engine *self = context;
    struct trial trials[TOGETHER];
    struct engine engine;

    engine_open(&engine, self->harness->socket, "crowded");
    for (uint64_t number = first + TOGETHER * self->number; number < first + rounds / 2;
         number += TOGETHER * SOAK_ENGINES) {
        uint32_t count = begin_together(&engine, number, trials);
        for (uint32_t t = 0; t < count; t++)
            trial_must(&trials[t], trial_submit(&trials[t]));
        for (uint32_t t = 0; t < count; t++)
            trial_must(&trials[t], trial_judge(&trials[t]));
        for (uint32_t t = 0; t < count; t++)
            trial_end(&trials[t]);
    }
    engine_close(&engine);
    return 0;
}

static void batches_in_several_lanes_at_once_are_right(void **state)
{
    CHECK_EQUAL(soak_in_engines(*state, crowded_client), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(random_batches_of_two_engines_are_right),
        E2E_TEST(batches_in_several_lanes_at_once_are_right),
    };

    harness_init();
    seed = test_seed();
    first = test_number("ATTND_FIRST", 0);
    rounds = test_number("ATTND_ROUNDS", 1500);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
