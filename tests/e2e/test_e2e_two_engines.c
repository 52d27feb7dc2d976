/*
 * test_e2e_two_engines.c - two processes, one pool, joined by a token.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/meeting.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 10

static void run_all(struct trial *trial)
{
    trial_must(trial, trial_submit(trial) || trial_judge(trial));
}

/* ---- one writes, the other reads ---- */

static int writer(void *context)
{
    struct meeting *meeting = context;
    struct engine engine;

    engine_open(&engine, meeting->harness->socket, "writer");
    meeting_write(meeting, &engine, ROUNDS);
    engine_close(&engine);
    return 0;
}

static int reader(void *context)
{
    struct meeting *meeting = context;
    struct engine engine;

    engine_open(&engine, meeting->harness->socket, "reader");
    meeting_read(meeting, &engine, ROUNDS);
    engine_close(&engine);
    return 0;
}

static void what_one_engine_writes_the_other_attends_to(void **state)
{
    struct meeting *meeting = meeting_new(*state, 0);
    pid_t a = harness_fork(writer, meeting), b = harness_fork(reader, meeting);

    CHECK_EQUAL(harness_join(a, 30000), 0);
    CHECK_EQUAL(harness_join(b, 30000), 0);
}

/* ---- both write, each its own half of the pages ---- */

static void use_half(struct engine *engine, uint32_t half, struct random_batch batch)
{
    engine->fill = ENGINE_FILLS_PAGES;
    engine->window_begin = half * engine->pages / 2;
    engine->window_end = (half + 1) * engine->pages / 2;
    batch.append = 1;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        batch.seed = 100 * half + round;
        trial_expect(engine, &batch);
    }
}

static int lower_half(void *context)
{
    struct meeting *meeting = context;
    struct engine engine;

    engine_open(&engine, meeting->harness->socket, "lower");
    engine_pool(&engine, &meeting->batch.shape);
    meeting_share(meeting, &engine);
    use_half(&engine, 0, meeting->batch);
    harness_await(&meeting->read, 1);
    engine_close(&engine);
    return 0;
}

static int upper_half(void *context)
{
    struct meeting *meeting = context;
    struct engine engine;

    engine_open(&engine, meeting->harness->socket, "upper");
    meeting_attach(meeting, &engine);
    use_half(&engine, 1, meeting->batch);
    harness_say(&meeting->read, 1);
    engine_close(&engine);
    return 0;
}

static void two_engines_append_to_one_pool_at_once(void **state)
{
    struct meeting *meeting = meeting_new(*state, 1);
    pid_t a = harness_fork(lower_half, meeting), b = harness_fork(upper_half, meeting);

    CHECK_EQUAL(harness_join(a, 30000), 0);
    CHECK_EQUAL(harness_join(b, 30000), 0);
}

/* ---- rights ---- */

static int trespasser(void *context)
{
    struct meeting *meeting = context;
    struct random_batch batch = meeting->batch;
    struct engine engine;
    struct trial trial;
    struct attnd_token token;

    engine_open(&engine, meeting->harness->socket, "trespasser");
    CHECK_ERROR(attnd_pool_attach(engine.session, &(struct attnd_token){{1, 2, 3}}, &engine.pool),
                ATTND_E_UNKNOWN);
    meeting_attach(meeting, &engine);
    CHECK_ERROR(attnd_pool_share(engine.session, engine.pool, 1, &token), ATTND_E_PERMISSION);
    batch.append = 1;
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_OK(trial_submit_append(&trial, 0, 0, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 1);
    CHECK_EQUAL(trial.failure.operation, ATTND_APPEND);
    CHECK_EQUAL(trial.failure.fault.code, -ATTND_E_PERMISSION);
    CHECK_EQUAL(trial.failure.fault.field, ATTND_F_POOL);
    engine_close(&engine);
    return 0;
}

static void a_pool_attached_for_reading_refuses_append(void **state)
{
    struct meeting *meeting = meeting_new(*state, 0);
    struct engine engine;
    struct trial trial;

    engine_open(&engine, meeting->harness->socket, "owner");
    trial_begin(&trial, &engine, &meeting->batch, 0);
    meeting_share(meeting, &engine);
    CHECK_EQUAL(harness_join(harness_fork(trespasser, meeting), 20000), 0);
    run_all(&trial); /* not a byte was changed */
    trial_end(&trial);
    engine_close(&engine);
}

/* ---- the creator goes first ---- */

static int creator(void *context)
{
    struct meeting *meeting = context;
    struct engine engine;
    struct trial trial;

    engine_open(&engine, meeting->harness->socket, "creator");
    trial_begin(&trial, &engine, &meeting->batch, 0);
    meeting_share(meeting, &engine);
    harness_say(&meeting->written, 1);
    harness_await(&meeting->read, 1); /* for ever: it is killed */
    return 1;
}

static void a_pool_outlives_its_creator(void **state)
{
    struct meeting *meeting = meeting_new(*state, 0);
    struct engine engine;
    struct trial trial;
    pid_t pid = harness_fork(creator, meeting);

    engine_open(&engine, meeting->harness->socket, "heir");
    harness_await(&meeting->written, 1);
    meeting_attach(meeting, &engine);
    harness_kill(pid);
    trial_begin(&trial, &engine, &meeting->batch, 0);
    run_all(&trial);
    trial_end(&trial);
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(what_one_engine_writes_the_other_attends_to),
        E2E_TEST(two_engines_append_to_one_pool_at_once),
        E2E_TEST(a_pool_attached_for_reading_refuses_append),
        E2E_TEST(a_pool_outlives_its_creator),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
