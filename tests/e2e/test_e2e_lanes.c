/*
 * test_e2e_lanes.c - order within a lane, independence between lanes, and how operations end early.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define TRIALS 8

/* Every operation depends on the one before: a step stores keys that the next step sees. */
static struct random_batch decode_steps(void)
{
    struct random_batch batch = e2e_batch();

    batch.append = 1;
    batch.steps = 4;
    batch.reserve_pages = 2;
    for (uint32_t e = 0; e < batch.level[0].requests; e++) {
        struct random_entry *entry = &batch.level[0].entry[e];
        for (uint32_t s = 1; s < batch.steps; s++)
            entry->kv_len[s] = entry->kv_len[s - 1] + (entry->qo_len < 9 ? entry->qo_len : 9);
    }
    return batch;
}

static void operations_of_a_lane_take_effect_in_order(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = decode_steps();
    struct engine engine;

    engine_open(&engine, harness->socket, "lanes");
    for (uint32_t round = 0; round < 20; round++) {
        batch.seed = round;
        batch.lane = round * 3 % ATTND_LANES_MAX;
        batch.quiet = round % 2;
        trial_expect(&engine, &batch); /* submits all of it before it waits for anything */
    }
    engine_close(&engine);
}

/* More steps than a plan keeps generations of lengths. */
static void advances_wait_for_a_generation_in_order(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = decode_steps();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "lanes");
    batch.steps = 1;
    batch.append = 0;
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    for (uint32_t round = 0; round < 4 * ATTND_GENERATIONS; round++) {
        CHECK_OK(trial_submit_run(&trial, 0, 0, 0, 0));
        if (round + 1 < 4 * ATTND_GENERATIONS) { /* the same lengths again, as a new generation */
            trial.batch.steps = 2;
            for (uint32_t e = 0; e < batch.level[0].requests; e++)
                trial.batch.level[0].entry[e].kv_len[1] = batch.level[0].entry[e].kv_len[0];
            CHECK_OK(trial_submit_advance(&trial, 1, 0, 0));
            trial.batch.steps = 1;
        }
    }
    trial_must(&trial, trial_verify_run(&trial, 0, 0));
    trial_end(&trial);
    engine_close(&engine);
}

/* Eight plans in eight lanes, operations dealt out in turn. */
static void lanes_do_not_disturb_each_other(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = decode_steps();
    struct engine engine;
    struct trial trials[TRIALS];
    uint64_t rows = 0;

    engine_open(&engine, harness->socket, "lanes");
    engine_pool(&engine, &batch.shape);
    for (uint32_t t = 0; t < TRIALS; t++) {
        engine.window_begin = t * engine.pages / TRIALS;
        engine.window_end = (t + 1) * engine.pages / TRIALS;
        batch.seed = t;
        batch.tight = 1;
        trial_begin(&trials[t], &engine, &batch, rows);
        rows = trials[t].rows_end;
    }
    for (uint32_t t = 0; t < TRIALS; t++)
        CHECK_OK(trial_submit_set(&trials[t], t, 0));
    for (uint32_t step = 0; step < batch.steps; step++) {
        for (uint32_t t = 0; t < TRIALS && step > 0; t++)
            CHECK_OK(trial_submit_advance(&trials[t], step, t, 0));
        for (uint32_t layer = 0; layer < batch.shape.layers; layer++)
            for (uint32_t t = 0; t < TRIALS; t++) {
                CHECK_OK(trial_submit_append(&trials[t], step, layer, t, 0));
                CHECK_OK(trial_submit_run(&trials[t], step, layer, t, 0));
            }
    }
    for (uint32_t t = 0; t < TRIALS; t++) {
        trial_must(&trials[t], trial_judge(&trials[t]));
        trial_end(&trials[t]);
    }
    engine_close(&engine);
}

/* A run that is in flight for as long as the worker is held, and on a GPU, which cannot be, for
 * longer than some calls take. */
static struct random_batch long_batch(void)
{
    struct random_batch batch = e2e_long_batch();

    if (e2e_on_gpu()) {
        batch.shape.group = 16;
        batch.level[0].entry[0].qo_len = 512;
        batch.level[0].entry[0].kv_len[0] = 16384;
    }
    return batch;
}

/* ---- BUSY ---- */

static void a_plan_that_runs_on_another_lane_is_busy(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = long_batch();
    struct attnd_completion done;
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "lanes");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 1, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    pid_t worker = e2e_hold_worker(harness);
    CHECK_OK(trial_submit_run(&trial, 0, 0, 1, 0));
    CHECK_OK(trial_submit_set(&trial, 2, 0));
    CHECK_EQUAL(attnd_wait(engine.session, &done, 1, TRIAL_WAIT_NS), 1);
    trial.expected--; /* collected here */
    e2e_let_go(worker);
    CHECK_EQUAL(done.operation, ATTND_PLAN_SET);
    CHECK_EQUAL(done.lane, 2);
    CHECK_EQUAL(done.fault.code, -ATTND_E_BUSY);
    CHECK_EQUAL(done.fault.field, ATTND_F_PLAN);
    CHECK_EQUAL(done.fault.value, trial.plan);

    CHECK_OK(trial_submit_run(&trial, 0, 0, 2, 0)); /* the plan is what it was */
    CHECK_EQUAL(trial_await(&trial), 0);
    CHECK_OK(trial_submit_set(&trial, 2, 0)); /* and idle now */
    CHECK_EQUAL(trial_await(&trial), 0);
    trial_end(&trial);
    engine_close(&engine);
}

static void a_plan_in_use_is_not_destroyed_and_its_memory_not_released(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = long_batch();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "lanes");
    batch.shape.service_pool = 1; /* so that only the run holds the memory of the rows */
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    pid_t worker = e2e_hold_worker(harness);
    CHECK_OK(trial_submit_run(&trial, 0, 0, 0, 0));
    CHECK_ERROR(attnd_plan_destroy(engine.session, engine.plan), ATTND_E_BUSY);
    CHECK_ERROR(attnd_pool_release(engine.session, engine.pool), ATTND_E_BUSY);
    CHECK_ERROR(attnd_memory_release(engine.session, engine.memory), ATTND_E_BUSY);
    e2e_let_go(worker);
    CHECK_EQUAL(trial_await(&trial), 0);
    trial_end(&trial);
    CHECK_OK(attnd_plan_destroy(engine.session, engine.plan));
    CHECK_OK(attnd_pool_release(engine.session, engine.pool));
    CHECK_OK(attnd_memory_release(engine.session, engine.memory));
    engine_close(&engine);
}

/* ---- ending early ---- */

struct counts {
    uint32_t ok, cancelled, timed_out;
};

static int submit_as(const struct trial *trial, uint64_t user_data, uint32_t lane,
                     uint32_t timeout_us)
{
    const struct attnd_op op = {
        .user_data = user_data, .lane = (uint16_t)lane, .timeout_us = timeout_us};
    return trial_submit_as(trial, 0, &op);
}

/* Collects @count completions; those of other operations than @user_data must be successes. */
static void count_ends(struct engine *engine, uint32_t count, uint64_t user_data,
                       struct counts *counts)
{
    struct attnd_completion completion;

    while (count-- > 0) {
        CHECK_EQUAL(attnd_wait(engine->session, &completion, 1, TRIAL_WAIT_NS), 1);
        counts->cancelled += completion.fault.code == -ATTND_E_CANCELLED;
        counts->timed_out += completion.fault.code == -ATTND_E_TIMEOUT;
        counts->ok += completion.fault.code == 0;
        if (completion.user_data != user_data)
            CHECK_EQUAL(completion.fault.code, 0);
        if (completion.fault.code == -ATTND_E_TIMEOUT)
            CHECK_EQUAL(completion.fault.field, ATTND_F_TIMEOUT);
    }
}

static void cancelling_stops_what_it_names_and_nothing_else(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = long_batch(), after = e2e_batch();
    struct engine engine;
    struct trial trial;
    struct counts counts = {0};

    engine_open(&engine, harness->socket, "lanes");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    pid_t worker = e2e_hold_worker(harness);
    for (uint32_t i = 0; i < 30; i++)
        CHECK_OK(submit_as(&trial, 7, 0, 0));
    CHECK_OK(submit_as(&trial, 8, 0, 0)); /* behind them, in their lane */
    CHECK_OK(attnd_cancel(engine.session, 7));
    CHECK_OK(attnd_cancel(engine.session, 12345)); /* nobody's: nothing happens */
    count_ends(&engine, 25, 7, &counts);           /* what is queued ends at once */
    e2e_let_go(worker);
    count_ends(&engine, 6, 7, &counts);
    CHECK(counts.cancelled >= 25 && counts.ok >= 1);
    CHECK_EQUAL(counts.cancelled + counts.ok, 31);
    trial_end(&trial);
    trial_expect(&engine, &after);
    engine_close(&engine);
}

static void deadlines_end_what_is_late_and_the_lane_goes_on(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = long_batch(), after = e2e_batch();
    struct engine engine;
    struct trial trial;
    struct counts counts = {0}, last = {0};

    engine_open(&engine, harness->socket, "lanes");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    pid_t worker = e2e_hold_worker(harness);
    for (uint32_t i = 0; i < 30; i++)
        CHECK_OK(submit_as(&trial, 7, 0, 2000)); /* 2 ms for all of them */
    CHECK_OK(submit_as(&trial, 8, 0, 0));
    count_ends(&engine, 25, 7, &counts); /* what is queued ends at once */
    e2e_let_go(worker);
    count_ends(&engine, 6, 7, &counts);
    CHECK(counts.timed_out >= 25 && counts.ok >= 1);
    CHECK_EQUAL(counts.timed_out + counts.ok, 31);
    CHECK_OK(submit_as(&trial, 9, 0, 60000000)); /* time enough */
    count_ends(&engine, 1, 0, &last);
    CHECK_EQUAL(last.ok, 1);
    trial_end(&trial);
    trial_expect(&engine, &after);
    engine_close(&engine);
}

/* A lane behind a long run does not hold up another lane's plan_set, nor another session. */
static void short_work_of_another_lane_does_not_wait_for_a_long_queue(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_long_batch(), small = e2e_batch();
    struct engine engine, other;
    struct counts counts = {0};
    struct trial trial;

    engine_open(&engine, harness->socket, "long");
    engine_open(&other, harness->socket, "short");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, ATTND_SKIP_SUCCESS));
    for (uint32_t i = 0; i < 100; i++)
        CHECK_OK(submit_as(&trial, 7, 0, 0));
    trial_expect(&other, &small);
    Attnd__Status *status = harness_status(harness);
    CHECK(status->queue_runs > 0); /* the long queue is still at work */
    attnd__status__free_unpacked(status, NULL);
    CHECK_OK(attnd_cancel(engine.session, 7));
    count_ends(&engine, 100, 7, &counts);
    trial_end(&trial);
    engine_close(&engine);
    engine_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(operations_of_a_lane_take_effect_in_order),
        E2E_TEST(advances_wait_for_a_generation_in_order),
        E2E_TEST(lanes_do_not_disturb_each_other),
        E2E_TEST(a_plan_that_runs_on_another_lane_is_busy),
        E2E_TEST(a_plan_in_use_is_not_destroyed_and_its_memory_not_released),
        E2E_TEST(cancelling_stops_what_it_names_and_nothing_else),
        E2E_TEST(deadlines_end_what_is_late_and_the_lane_goes_on),
        E2E_TEST(short_work_of_another_lane_does_not_wait_for_a_long_queue),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
