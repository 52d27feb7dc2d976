/*
 * test_e2e_stream.c - runs that are prepared once and rung, through real processes.
 */
#include "tests/support/e2e.h"
#include "tests/support/trial.h"

#include "schemas/abi.h"
#include "schemas/atomics.h"
#include "schemas/futex.h"

#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 4u
#define REPLAYS 1000u
#define LANE 5u

/* Decoding: one query a request, pages of 4, room for two more pages each. */
static struct random_batch decode_batch(void)
{
    struct random_batch batch = e2e_batch();

    batch.shape.layers = LAYERS;
    batch.shape.page_size = 4;
    batch.steps = 2;
    batch.append = 0;
    batch.reserve_pages = 2;
    batch.levels = 1;
    batch.level[0].requests = 3;
    for (uint32_t e = 0; e < 3; e++)
        batch.level[0].entry[e] =
            (struct random_entry){.qo_len = 1, .kv_len = {9 + 7 * (int32_t)e, 17 + 7 * (int32_t)e}};
    return batch;
}

static struct attnd_tensor at(const struct trial *trial, uint64_t offset_bytes)
{
    return (struct attnd_tensor){.memory = trial->engine->memory,
                                 .offset_bytes = trial->engine->rows_offset_bytes + offset_bytes};
}

static int prepare(const struct trial *trial, uint32_t layer, uint32_t lane, uint32_t *prepared)
{
    const struct trial_place *place = &trial->place[0][layer];
    struct attnd_prepare_args args = {.size = sizeof(args),
                                      .layer = layer,
                                      .lane = lane,
                                      .q = at(trial, place->q),
                                      .o = at(trial, place->o)};
    if (trial->batch.want_lse)
        args.lse = at(trial, place->lse);
    return attnd_prepare(trial->engine->session, trial->plan, &args, prepared);
}

static void prepare_layers(const struct trial *trial, uint32_t lane, uint32_t prepared[LAYERS])
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        CHECK_OK(prepare(trial, layer, lane, &prepared[layer]));
}

static int ring(const struct trial *trial, uint32_t lane, uint32_t prepared)
{
    CHECK_OK(attnd_ring(trial->engine->session, lane, prepared));
    return attnd_ring_wait(trial->engine->session, lane, TRIAL_WAIT_NS);
}

static void set(struct trial *trial, uint32_t lane)
{
    CHECK_OK(trial_submit_set(trial, lane, 0));
    trial_must(trial, trial_await(trial));
}

/* Lengths of the moment, for the advance and for the reference alike. */
static void advance_to(struct trial *trial, uint32_t lane, const int32_t *kv_len)
{
    const struct attnd_op op = {.user_data = (uint64_t)(uintptr_t)trial, .lane = (uint16_t)lane};
    const uint32_t entries = trial->batch.level[0].requests;
    const struct attnd_advance advance = {
        .size = sizeof(advance), .entries = entries, .kv_len = kv_len};

    CHECK_OK(attnd_plan_advance(trial->engine->session, trial->plan, &advance, &op));
    trial->expected++;
    trial_must(trial, trial_await(trial));
    for (uint32_t e = 0; e < entries; e++)
        trial->batch.level[0].entry[e].kv_len[0] = kv_len[e];
}

/* ---- the same result ---- */

static void a_ring_gives_the_bytes_that_a_run_gives(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;
    uint32_t prepared;

    engine_open(&engine, harness->socket, "stream");
    batch.want_lse = 1;
    for (uint32_t round = 0; round < 8; round++) {
        batch.seed = round;
        trial_begin(&trial, &engine, &batch, 0);
        set(&trial, 0);
        const struct trial_place *place = &trial.place[0][0];
        const size_t bytes = place->o_end - place->o_begin;
        uint8_t *o = engine.rows + place->o_begin, *run = test_malloc(bytes);
        CHECK_OK(trial_submit_run(&trial, 0, 0, 0, 0));
        trial_must(&trial, trial_await(&trial));
        memcpy(run, o, bytes);
        trial_must(&trial, trial_verify_run(&trial, 0, 0)); /* o is poison again */
        CHECK(memcmp(run, o, bytes) != 0);

        CHECK_OK(prepare(&trial, 0, LANE, &prepared));
        CHECK_EQUAL(ring(&trial, LANE, prepared), 0);
        CHECK_EQUAL(memcmp(run, o, bytes), 0);
        trial_must(&trial, trial_verify_run(&trial, 0, 0));
        CHECK_OK(attnd_unprepare(engine.session, prepared));
        test_free(run);
        trial_end(&trial);
    }
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_ring_gives_the_bytes_that_a_run_gives),
    };
    (void)decode_batch;
    (void)prepare_layers;
    (void)advance_to;
    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
