/*
 * test_e2e_launch.c - runs that are prepared once and launched, through real processes. What can go
 * wrong with them is in test_e2e_launch_faults.c.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/launched.h"
#include "tests/support/random/seed.h"

#include "schemas/atomics.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REPLAYS 1000u
#define LANE 5u

static uint64_t seed;

static void a_ring_gives_the_bytes_that_a_run_gives(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;
    uint32_t prepared;

    engine_open(&engine, harness->socket, "stream");
    for (uint32_t round = 0; round < 8; round++) {
        batch.seed = round;
        launched_begin(&trial, &engine, &batch);
        const struct trial_place *place = &trial.place[0][0];
        const size_t bytes = place->o_end - place->o_begin;
        uint8_t *o = engine.rows + place->o_begin, *run = malloc(bytes);
        CHECK(run != NULL);
        CHECK_OK(trial_submit_run(&trial, 0, 0, 0, 0));
        trial_must(&trial, trial_await(&trial));
        memcpy(run, o, bytes);
        launched_verify(&trial, 0); /* o is poison again */
        CHECK(memcmp(run, o, bytes) != 0);

        CHECK_OK(launched_prepare(&trial, 0, LANE, &prepared));
        CHECK_EQUAL(launched_ring(&trial, LANE, prepared), 0);
        CHECK_EQUAL(memcmp(run, o, bytes), 0);
        launched_verify(&trial, 0);
        CHECK_OK(attnd_unprepare(engine.session, prepared));
        free(run);
        trial_end(&trial);
    }
    engine_close(&engine);
}

/* ---- replays ---- */

struct neighbour {
    const struct harness *harness;
    uint32_t stop, started, right;
};

static int neighbour(void *context)
{
    struct neighbour *self = context;
    struct engine engine;

    engine_open(&engine, self->harness->socket, "neighbour");
    for (uint64_t number = 0; !attnd_peek32(&self->stop); number++) {
        struct random_batch batch;
        random_batch_draw(seed, number, &batch);
        trial_expect(&engine, &batch);
        self->right++;
        harness_say(&self->started, 1);
    }
    engine_close(&engine);
    return 0;
}

/* One step further, and after a while back to a short prefix: over page boundaries both ways. */
static void next_lengths(const struct random_batch *batch, uint32_t replay, int32_t kv_len[3])
{
    for (uint32_t e = 0; e < batch->level[0].requests; e++) {
        int32_t most = batch->level[0].entry[e].kv_len[1];
        kv_len[e] = 1 + (int32_t)((replay + 5 * e) % (uint32_t)most);
    }
}

static void a_thousand_replays_of_four_layers_are_right_while_lengths_advance(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = launched_batch();
    struct neighbour *beside = harness_shared(sizeof(*beside));
    struct engine engine;
    struct trial trial;
    uint32_t prepared[LAUNCHED_LAYERS];

    beside->harness = harness;
    pid_t pid = harness_fork(neighbour, beside);
    launched_open_all(&engine, &trial, harness->socket, "stream", &batch, LANE, prepared);
    launched_extend(&trial, 0);
    harness_await(&beside->started, 1); /* it is at work from the first replay to the last */
    for (uint32_t replay = 0; replay < REPLAYS; replay++) {
        int32_t kv_len[3];
        next_lengths(&batch, replay, kv_len);
        launched_advance(&trial, 0, kv_len);
        for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++)
            CHECK_EQUAL(launched_ring(&trial, LANE, prepared[layer]), 0);
        for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++)
            launched_verify(&trial, layer);
    }
    harness_say(&beside->stop, 1);
    CHECK_EQUAL(harness_join(pid, 30000), 0);
    printf("%u replays, %u batches of a neighbour\n", REPLAYS, beside->right);
    CHECK(beside->right > 1);
    CHECK_EQUAL(attnd_lane_error(engine.session, LANE), 0);
    launched_close_all(&engine, &trial, prepared);
}

/* ---- sets ---- */

#define PLACES_BEGIN (16u << 20)
#define PLACE_BYTES (1u << 20)

static void poison(uint8_t *rows, uint64_t at, uint64_t bytes, uint64_t *begin, uint64_t *end)
{
    *begin = at - 64;
    *end = at + bytes + 64;
    memset(rows + *begin, 0x7f, *end - *begin);
}

/* The rows of a batch to where those of the batch before were. */
static void move_rows(struct trial *trial)
{
    static const uint16_t o_poison = 0x7fa5;
    static const uint32_t lse_poison = 0x7fa5a5a5u;
    struct trial_place *place = &trial->place[0][0];
    uint8_t *rows = trial->engine->rows;
    const uint64_t o_bytes = place->o_end - place->o_begin - 128;
    const uint64_t lse_bytes = place->lse_end - place->lse_begin - 128;

    CHECK(trial->rows_end <= PLACES_BEGIN && o_bytes < PLACE_BYTES - 128);
    memmove(rows + PLACES_BEGIN, rows + place->q, o_bytes);
    *place = (struct trial_place){
        .q = PLACES_BEGIN, .o = PLACES_BEGIN + PLACE_BYTES, .lse = PLACES_BEGIN + 2 * PLACE_BYTES};
    poison(rows, place->o, o_bytes, &place->o_begin, &place->o_end);
    poison(rows, place->lse, lse_bytes, &place->lse_begin, &place->lse_end);
    for (uint64_t at = place->o_begin; at < place->o_end; at += 2)
        memcpy(rows + at, &o_poison, 2);
    for (uint64_t at = place->lse_begin; at < place->lse_end; at += 4)
        memcpy(rows + at, &lse_poison, 4);
}

/* Other rows, lengths, pages and splits each time; the prepared run is the same. */
static void a_plan_that_is_set_again_is_what_the_next_ring_executes(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;
    uint32_t prepared = 0;

    engine_open(&engine, harness->socket, "stream");
    batch.shape.layers = 1;
    for (uint32_t round = 0; round < 60; round++) {
        struct random_entry *entry = batch.level[0].entry;
        batch.seed = round;
        entry[0].kv_len[0] = 200 + 370 * (int32_t)(round % 7);
        entry[1].qo_len = 37 - (int32_t)(round % 5);
        entry[3].kv_len[0] = 80 + (int32_t)(round % 4);
        trial_begin(&trial, &engine, &batch, 0);
        move_rows(&trial);
        launched_set(&trial, round % 3);
        if (round == 0)
            CHECK_OK(launched_prepare(&trial, 0, LANE, &prepared));
        CHECK_EQUAL(launched_ring(&trial, LANE, prepared), 0);
        launched_verify(&trial, 0);
        trial_end(&trial);
    }
    CHECK_OK(attnd_unprepare(engine.session, prepared));
    engine_close(&engine);
}

/* Room for o of half of the rows only: rings say so, and are right again after a set that fits. */
static void a_set_that_does_not_suit_is_answered_until_one_does(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial, large;
    struct attnd_memory_info info = {.size = sizeof(info)};
    uint32_t prepared, at_end;

    launched_open(&engine, &trial, harness->socket, "stream", &batch);
    CHECK_OK(attnd_memory_info(engine.session, engine.memory, &info));
    const uint64_t o_bytes = trial.place[0][0].o_end - trial.place[0][0].o_begin - 128;
    const struct attnd_prepare_args args = {
        .size = sizeof(args),
        .lane = LANE,
        .q = {engine.memory, engine.rows_offset_bytes + trial.place[0][0].q},
        .o = {engine.memory, (info.size_bytes - o_bytes) & ~UINT64_C(15)}};
    CHECK_OK(attnd_prepare(engine.session, trial.plan, &args, &at_end));
    CHECK_OK(launched_prepare(&trial, 0, LANE, &prepared));
    CHECK_EQUAL(launched_ring(&trial, LANE, at_end), 0);

    engine.window_begin = engine.pages / 2; /* the small one's pages stay as they are */
    engine.window_end = engine.pages;
    batch.level[0].entry[0].qo_len = 40;
    batch.level[0].entry[0].kv_len[0] = batch.level[0].entry[0].kv_len[1] = 40;
    trial_begin(&large, &engine, &batch, trial.rows_end);
    launched_set(&large, 0);
    CHECK_EQUAL(launched_ring(&trial, LANE, at_end), -ATTND_E_RANGE);
    CHECK_EQUAL(launched_ring(&trial, LANE, at_end), -ATTND_E_RANGE);
    CHECK_EQUAL(attnd_lane_error(engine.session, LANE), -ATTND_E_RANGE);
    CHECK_EQUAL(attnd_lane_error(engine.session, LANE), 0);
    launched_set(&trial, 1);
    CHECK_EQUAL(launched_ring(&trial, LANE, at_end), 0);
    CHECK_EQUAL(launched_ring(&trial, LANE, prepared), 0);
    launched_verify(&trial, 0);

    /* A set that is refused leaves the batch before it. */
    trial.level[0].kv_indices[0] = INT32_MAX;
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 1);
    trial.failure.fault.code = 0;
    CHECK_EQUAL(launched_ring(&trial, LANE, prepared), 0);
    launched_verify(&trial, 0);
    trial.level[0].kv_indices[0] = trial.level[0].list[0];
    launched_set(&trial, 0);
    CHECK_EQUAL(launched_ring(&trial, LANE, prepared), 0);
    launched_verify(&trial, 0);
    CHECK_OK(attnd_unprepare(engine.session, prepared));
    CHECK_OK(attnd_unprepare(engine.session, at_end));
    trial_end(&large);
    launched_close(&engine, &trial);
}

/* ---- sets, advances and rings at the same time ---- */

struct ringer {
    struct trial *trial;
    uint32_t lane, prepared, stop, rings;
    const uint8_t *want; /* o of the place below, when it is right */
    const struct trial_place *place;
};

static void *ring_on(void *context)
{
    struct ringer *self = context;
    const uint8_t *o = self->trial->engine->rows + self->place->o_begin;
    const size_t bytes = self->place->o_end - self->place->o_begin;

    for (; !attnd_peek32(&self->stop); self->rings++) {
        CHECK_EQUAL(launched_ring(self->trial, self->lane, self->prepared), 0);
        CHECK_EQUAL(memcmp(self->want, o, bytes), 0);
    }
    return NULL;
}

/* The same batch and the same lengths again and again: every ring must give the same bytes, and
 * none may fail, whatever is under way with its plan. */
static void rings_in_any_lane_see_a_plan_before_or_after_a_change_and_nothing_between(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    struct ringer ringers[LAUNCHED_LAYERS];
    pthread_t threads[LAUNCHED_LAYERS];
    uint32_t prepared[LAUNCHED_LAYERS], rings = 0;

    launched_open(&engine, &trial, harness->socket, "stream", &batch);
    for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++) {
        CHECK_OK(launched_prepare(&trial, layer, layer, &prepared[layer]));
        CHECK_EQUAL(launched_ring(&trial, layer, prepared[layer]), 0);
        const struct trial_place *place = &trial.place[0][layer];
        const size_t bytes = place->o_end - place->o_begin;
        uint8_t *want = malloc(bytes);
        CHECK(want != NULL);
        memcpy(want, engine.rows + place->o_begin, bytes);
        launched_verify(&trial, layer); /* so the bytes are right, and o is poison */
        ringers[layer] = (struct ringer){.trial = &trial,
                                         .lane = layer,
                                         .prepared = prepared[layer],
                                         .want = want,
                                         .place = place};
        CHECK_EQUAL(pthread_create(&threads[layer], NULL, ring_on, &ringers[layer]), 0);
    }
    int32_t kv_len[3];
    for (uint32_t e = 0; e < 3; e++)
        kv_len[e] = batch.level[0].entry[e].kv_len[0];
    for (uint32_t change = 0; change < 400; change++) {
        if (change % 25 == 0)
            launched_set(&trial, change % 2);
        else
            launched_advance(&trial, change % 2, kv_len);
    }
    for (uint32_t i = 0; i < LAUNCHED_LAYERS; i++) {
        attnd_poke32(&ringers[i].stop, 1);
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
        free((void *)(uintptr_t)ringers[i].want);
        rings += ringers[i].rings;
    }
    printf("%u rings beside 400 changes\n", rings);
    launched_close_all(&engine, &trial, prepared);
}

/* ---- what may be prepared, and for how long ---- */

static void what_is_unprepared_is_found_no_more_and_holds_nothing(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    uint32_t prepared[LAUNCHED_LAYERS], again;

    batch.tight = 1;
    launched_open_all(&engine, &trial, harness->socket, "stream", &batch, LANE, prepared);
    CHECK_EQUAL(attnd_plan_destroy(engine.session, trial.plan), -ATTND_E_BUSY);
    CHECK_EQUAL(attnd_memory_release(engine.session, engine.memory), -ATTND_E_BUSY);
    CHECK_OK(attnd_unprepare(engine.session, prepared[0]));
    CHECK_EQUAL(attnd_unprepare(engine.session, prepared[0]), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(launched_ring(&trial, LANE, prepared[0]), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(launched_ring(&trial, LANE, prepared[1]), 0);
    launched_verify(&trial, 1);
    CHECK_OK(launched_prepare(&trial, 0, LANE + 1, &again));
    CHECK_EQUAL(launched_ring(&trial, LANE, again), -ATTND_E_UNKNOWN); /* of another lane */
    CHECK_EQUAL(launched_ring(&trial, LANE + 1, again), 0);
    launched_verify(&trial, 0);
    prepared[0] = again;
    launched_close_all(&engine, &trial, prepared);
}

static void what_cannot_be_prepared_is_refused_by_name(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    struct attnd_fault fault;
    uint32_t prepared, memory;

    engine_open(&engine, harness->socket, "stream");
    CHECK_EQUAL(attnd_launch(engine.session, 0, 1), -ATTND_E_INVALID);
    CHECK_EQUAL(attnd_unprepare(engine.session, 600), -ATTND_E_INVALID);
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_EQUAL(launched_prepare(&trial, 0, 0, &prepared), -ATTND_E_INVALID); /* an empty plan */
    launched_set(&trial, 0);
    CHECK_EQUAL(launched_prepare(&trial, LAUNCHED_LAYERS, 0, &prepared), -ATTND_E_RANGE);
    CHECK_EQUAL(launched_prepare(&trial, 0, 64, &prepared), -ATTND_E_RANGE);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_LANE);
    const uint64_t o = trial.place[0][0].o;
    trial.place[0][0].o = trial.place[0][0].q;
    CHECK_EQUAL(launched_prepare(&trial, 0, 0, &prepared), -ATTND_E_OVERLAP);
    trial.place[0][0].o = UINT64_MAX - 15 - engine.rows_offset_bytes;
    CHECK_EQUAL(launched_prepare(&trial, 0, 0, &prepared), -ATTND_E_RANGE);
    trial.place[0][0].o = o;
    trial.plan += 100;
    CHECK_EQUAL(launched_prepare(&trial, 0, 0, &prepared), -ATTND_E_UNKNOWN);
    trial.plan -= 100;
    CHECK_EQUAL(attnd_launch(engine.session, 64, 600), -ATTND_E_RANGE);
    CHECK_OK(launched_prepare(&trial, 0, 0, &prepared));
    CHECK_OK(attnd_mailbox(engine.session, &memory));
    CHECK_EQUAL(attnd_memory_release(engine.session, memory), -ATTND_E_BUSY);
    CHECK_OK(attnd_unprepare(engine.session, prepared));

    launched_close(&engine, &trial);
}

/* Partials of a long decode, one block a lane, until the session's share is used up. */
static void prepared_runs_beyond_a_sessions_share_of_scratch_are_refused_by_name(void **state)
{
    static const char *const options[] = {"--scratch=8M", "--threads=3", NULL};
    struct harness *harness = *state;
    struct random_batch batch = e2e_long_batch();
    struct engine engine, other;
    struct trial trial, beside;
    struct attnd_fault fault;
    uint32_t prepared[64], lanes = 0, others;

    harness_stop(harness);
    harness_start(harness, options);
    batch.level[0].entry[0].qo_len = 4;
    launched_open(&engine, &trial, harness->socket, "stream", &batch);
    while (lanes < 64 && launched_prepare(&trial, 0, lanes, &prepared[lanes]) == 0)
        lanes++;
    CHECK(lanes > 0 && lanes < 64);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.code, -ATTND_E_NO_SPACE);
    CHECK_EQUAL(fault.field, ATTND_F_PARTIALS);
    CHECK_EQUAL(launched_ring(&trial, 0, prepared[0]), 0);
    launched_verify(&trial, 0);
    CHECK_OK(trial_submit_run(&trial, 0, 0, 0, 0)); /* runs that are submitted have their own */
    launched_verify(&trial, 0);
    CHECK_OK(attnd_unprepare(engine.session, prepared[0]));
    CHECK_OK(launched_prepare(&trial, 0, 63, &prepared[0]));
    CHECK_EQUAL(launched_ring(&trial, 63, prepared[0]), 0);
    launched_verify(&trial, 0);

    launched_open(&other, &beside, harness->socket, "other", &batch); /* its share is its own */
    CHECK_OK(launched_prepare(&beside, 0, LANE, &others));
    CHECK_EQUAL(launched_ring(&beside, LANE, others), 0);
    launched_verify(&beside, 0);
    CHECK_OK(attnd_unprepare(other.session, others));
    launched_close(&other, &beside);
    for (uint32_t lane = 0; lane < lanes; lane++)
        CHECK_OK(attnd_unprepare(engine.session, prepared[lane]));
    launched_close(&engine, &trial);
}

/* A session that attaches a pool holds a handle of all of its memory, not of the planes alone. */
static void memory_of_another_session_is_no_place_for_a_prepared_output(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = launched_batch();
    struct engine owner, reader;
    struct trial trial;
    struct attnd_token token;
    struct attnd_pool_info info = {.size = sizeof(info)};
    uint32_t prepared;

    engine_open(&owner, harness->socket, "owner");
    engine_pool(&owner, &batch.shape);
    CHECK_OK(attnd_pool_share(owner.session, owner.pool, 0, &token));
    engine_open(&reader, harness->socket, "reader");
    engine_attach(&reader, &batch.shape, &token);
    launched_begin(&trial, &reader, &batch);
    CHECK_OK(attnd_pool_info(reader.session, reader.pool, &info));
    CHECK(info.memory != 0);
    struct attnd_prepare_args args = {
        .size = sizeof(args),
        .q = {reader.memory, reader.rows_offset_bytes + trial.place[0][0].q},
        .o = {info.memory, owner.rows_offset_bytes}};
    CHECK_EQUAL(attnd_prepare(reader.session, trial.plan, &args, &prepared), -ATTND_E_PERMISSION);
    args.o = (struct attnd_tensor){reader.memory, reader.rows_offset_bytes + trial.place[0][0].o};
    args.lse = (struct attnd_tensor){info.memory, owner.rows_offset_bytes};
    CHECK_EQUAL(attnd_prepare(reader.session, trial.plan, &args, &prepared), -ATTND_E_PERMISSION);
    args.lse.memory = 0;
    CHECK_OK(attnd_prepare(reader.session, trial.plan, &args, &prepared));
    CHECK_EQUAL(launched_ring(&trial, 0, prepared), 0);
    CHECK_OK(attnd_unprepare(reader.session, prepared));
    launched_close(&reader, &trial);
    engine_close(&owner);
}

static void status_shows_what_is_prepared_and_how_rings_went(void **state)
{
    const struct harness *harness = *state;
    static const char *const arguments[] = {"status", NULL};
    const struct random_batch batch = launched_batch();
    char output[4096];
    struct engine engine;
    struct trial trial;
    uint32_t prepared[LAUNCHED_LAYERS];

    launched_open_all(&engine, &trial, harness->socket, "stream", &batch, LANE, prepared);
    for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++)
        CHECK_EQUAL(launched_ring(&trial, LANE, prepared[layer]), 0);
    CHECK_EQUAL(launched_ring(&trial, LANE, 123456), -ATTND_E_UNKNOWN);

    Attnd__Status *status = harness_status(harness);
    const Attnd__SessionStatus *session = status->sessions[0];
    CHECK_EQUAL(session->prepared, LAUNCHED_LAYERS);
    CHECK_EQUAL(session->launches, LAUNCHED_LAYERS + 1);
    CHECK(session->launch_busy_ns > 0);
    CHECK_EQUAL(session->launch_errors, 1);
    CHECK_EQUAL(session->launch_error, ATTND_E_UNKNOWN);
    CHECK_EQUAL(session->launch_error_lane, LANE);
    attnd__status__free_unpacked(status, NULL);
    CHECK_EQUAL(harness_attnctl(harness, arguments, output, sizeof(output)), 0);
    CHECK(strstr(output, "ATTND_E_UNKNOWN on lane 5") != NULL);
    launched_close_all(&engine, &trial, prepared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_ring_gives_the_bytes_that_a_run_gives),
        E2E_TEST(a_thousand_replays_of_four_layers_are_right_while_lengths_advance),
        E2E_TEST(a_plan_that_is_set_again_is_what_the_next_ring_executes),
        E2E_TEST(a_set_that_does_not_suit_is_answered_until_one_does),
        E2E_TEST(rings_in_any_lane_see_a_plan_before_or_after_a_change_and_nothing_between),
        E2E_TEST(what_is_unprepared_is_found_no_more_and_holds_nothing),
        E2E_TEST(what_cannot_be_prepared_is_refused_by_name),
        E2E_TEST(prepared_runs_beyond_a_sessions_share_of_scratch_are_refused_by_name),
        E2E_TEST(memory_of_another_session_is_no_place_for_a_prepared_output),
        E2E_TEST(status_shows_what_is_prepared_and_how_rings_went),
    };

    harness_init();
    if (!launched_from_host())
        return 77;
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
