/*
 * test_e2e_backpressure.c - full rings and arenas are answers; nothing is lost and nothing hangs.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define OPS 2000
#define LANES 5

static void open_tiny(struct engine *engine, const struct harness *harness, uint64_t arena_bytes)
{
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .ring_entries = 8,
                                         .arena_bytes = arena_bytes,
                                         .socket_path = harness->socket,
                                         .name = "tiny"};
    engine_open_with(engine, &args, 0);
}

/* Collects what there is; counts in @answered by user_data. Return: how many. */
static uint32_t collect(struct engine *engine, uint8_t *answered, uint64_t timeout_ns)
{
    struct attnd_completion completions[3]; /* fewer than the ring holds */
    int count = attnd_wait(engine->session, completions, 3, timeout_ns);

    CHECK(count >= 0);
    for (int i = 0; i < count; i++) {
        CHECK_EQUAL(completions[i].fault.code, 0);
        CHECK(completions[i].user_data < OPS);
        answered[completions[i].user_data]++;
    }
    return (uint32_t)count;
}

static int run_numbered(const struct trial *trial, uint32_t number)
{
    const struct attnd_op op = {.user_data = number, .lane = (uint16_t)(number % LANES)};
    return trial_submit_as(trial, number % trial->batch.shape.layers, &op);
}

/* Submits @count runs as fast as the ring takes them; waits only when it is told FULL. Return: how
 * often it was. */
static uint32_t flood(struct engine *engine, struct trial *trial, uint32_t count)
{
    uint8_t *answered = calloc(OPS, 1);
    uint32_t full = 0, got = 0;

    CHECK(answered != NULL);
    for (uint32_t i = 0; i < count;) {
        int code = run_numbered(trial, i);
        if (code == -ATTND_E_FULL) {
            full++;
            got += collect(engine, answered, TRIAL_WAIT_NS);
            continue;
        }
        CHECK_OK(code);
        i++;
    }
    while (got < count) {
        uint32_t more = collect(engine, answered, TRIAL_WAIT_NS);
        CHECK(more > 0);
        got += more;
    }
    for (uint32_t i = 0; i < count; i++)
        CHECK_EQUAL(answered[i], 1);
    CHECK_EQUAL(collect(engine, answered, 1000000), 0);
    free(answered);
    return full;
}

static void a_full_ring_says_full_and_loses_nothing(void **state)
{
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;

    open_tiny(&engine, *state, 0);
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    CHECK(flood(&engine, &trial, OPS) > 0);
    for (uint32_t layer = 0; layer < batch.shape.layers; layer++)
        trial_must(&trial, trial_verify_run(&trial, 0, layer));
    trial_end(&trial);
    engine_close(&engine);
}

/* Nobody reads completions: after a while the ring takes nothing more, says so every time, and goes
 * on as soon as one is read. */
static void a_client_that_does_not_read_is_told_full_until_it_does(void **state)
{
    struct random_batch batch = e2e_batch();
    uint8_t answered[OPS] = {0};
    uint32_t accepted = 0, got = 0;
    struct engine engine;
    struct trial trial;

    open_tiny(&engine, *state, 0);
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, ATTND_SKIP_SUCCESS));
    for (int refused = 0; refused < 200;) {
        int code = run_numbered(&trial, accepted);
        if (code == -ATTND_E_FULL) {
            refused++;
            harness_sleep_ms(1);
            continue;
        }
        CHECK_OK(code);
        accepted++;
    }
    CHECK(accepted >= 8 && accepted <= 16); /* one ring of submissions, one of completions */
    while (got < accepted)
        got += collect(&engine, answered, TRIAL_WAIT_NS);
    for (uint32_t i = 0; i < accepted; i++)
        CHECK_EQUAL(answered[i], 1);
    CHECK_OK(run_numbered(&trial, 0));
    CHECK_EQUAL(collect(&engine, answered, TRIAL_WAIT_NS), 1);
    trial_end(&trial);
    engine_close(&engine);
}

/* Batches of 8,000 page ids through an arena that holds two of them. */
static void a_full_arena_says_full_and_loses_nothing(void **state)
{
    struct random_batch batch = e2e_batch();
    struct attnd_completion completions[8];
    uint32_t full = 0, done = 0;
    struct engine engine;
    struct trial trial;

    open_tiny(&engine, *state, 80 << 10);
    batch.shape.page_size = 1;
    batch.shape.heads_kv = 1;
    batch.shape.layers = 1;
    batch.level[0].requests = 1;
    batch.level[0].entry[0] = (struct random_entry){.qo_len = 1, .kv_len = {8000}};
    trial_begin(&trial, &engine, &batch, 0);
    for (uint32_t i = 0; i < 100;) {
        int code = trial_submit_set(&trial, 0, 0);
        if (code == -ATTND_E_FULL) {
            full++;
            int count = attnd_wait(engine.session, completions, 8, 100000000);
            CHECK(count >= 0);
            done += (uint32_t)count;
            continue;
        }
        CHECK_OK(code);
        i++;
        if (i % 10 == 0) /* something to queue behind */
            CHECK_OK(trial_submit_run(&trial, 0, 0, 0, ATTND_SKIP_SUCCESS));
    }
    while (done < 100) {
        int count = attnd_wait(engine.session, completions, 8, TRIAL_WAIT_NS);
        CHECK(count > 0);
        for (int i = 0; i < count; i++)
            CHECK_EQUAL(completions[i].fault.code, 0);
        done += (uint32_t)count;
    }
    CHECK(full > 0);
    trial.expected = trial.completed = 0;
    CHECK_OK(trial_submit_run(&trial, 0, 0, 0, 0));
    trial_must(&trial, trial_judge(&trial));
    trial_end(&trial);
    engine_close(&engine);
}

static void a_batch_that_can_never_fit_is_refused_for_good(void **state)
{
    struct random_batch batch = e2e_batch();
    struct attnd_fault fault;
    struct engine engine;
    struct trial trial;

    open_tiny(&engine, *state, 64 << 10);
    batch.shape.page_size = 1;
    batch.shape.heads_kv = 1;
    batch.level[0].requests = 1;
    batch.level[0].entry[0] = (struct random_entry){.qo_len = 1, .kv_len = {16380}};
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_ERROR(trial_submit_set(&trial, 0, 0), ATTND_E_NO_SPACE);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_ARENA);
    trial_end(&trial);
    batch = e2e_batch();
    trial_expect(&engine, &batch); /* a smaller one does */
    engine_close(&engine);
}

/* More runs than the run table and the worker's scratch hold, of several sessions. */
struct crowd {
    const struct harness *harness;
    uint32_t number;
};

static int one_of_the_crowd(void *context)
{
    const struct crowd *self = context;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, self->harness->socket, "crowd");
    batch.seed = self->number;
    batch.shape.heads_kv = 1;
    batch.level[0].entry[0].kv_len[0] = 6000; /* long enough to be split: partials */
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    (void)flood(&engine, &trial, 600);
    for (uint32_t layer = 0; layer < batch.shape.layers; layer++)
        trial_must(&trial, trial_verify_run(&trial, 0, layer));
    trial_end(&trial);
    engine_close(&engine);
    return 0;
}

static void a_crowd_with_little_scratch_is_served_in_full(void **state)
{
    static const char *const options[] = {"--scratch", "256K", NULL};
    struct harness *harness = *state;
    struct crowd crowd[4];
    pid_t pids[4];

    harness_stop(harness);
    harness_start(harness, options);
    for (uint32_t i = 0; i < 4; i++) {
        crowd[i] = (struct crowd){harness, i};
        pids[i] = harness_fork(one_of_the_crowd, &crowd[i]);
    }
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQUAL(harness_join(pids[i], 50000), 0);
}

/* Its partials are measured when it is planned: no run of it could ever begin. */
static void a_batch_whose_partials_exceed_the_scratch_is_refused_by_name(void **state)
{
    static const char *const options[] = {"--scratch", "4K", NULL};
    struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;

    harness_stop(harness);
    harness_start(harness, options);
    engine_open(&engine, harness->socket, "scratch");
    batch.shape.heads_kv = 1; /* so that the long request is shared out by splits alone */
    batch.shape.group = 16;
    batch.level[0].entry[0].kv_len[0] = 6000;
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK(trial_await(&trial));
    CHECK_EQUAL(trial.failure.fault.code, -ATTND_E_NO_SPACE);
    CHECK_EQUAL(trial.failure.fault.field, ATTND_F_PARTIALS);
    CHECK(trial.failure.fault.limit > 0 && trial.failure.fault.limit <= 4096);
    CHECK(trial.failure.fault.value > trial.failure.fault.limit);
    trial_end(&trial);
    batch = e2e_batch();
    for (uint32_t e = 0; e < batch.level[0].requests; e++) /* one tile each: no partials */
        if (batch.level[0].entry[e].kv_len[0] > 16)
            batch.level[0].entry[e].kv_len[0] = 16;
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_full_ring_says_full_and_loses_nothing),
        E2E_TEST(a_client_that_does_not_read_is_told_full_until_it_does),
        E2E_TEST(a_full_arena_says_full_and_loses_nothing),
        E2E_TEST(a_batch_that_can_never_fit_is_refused_for_good),
        E2E_TEST(a_crowd_with_little_scratch_is_served_in_full),
        E2E_TEST(a_batch_whose_partials_exceed_the_scratch_is_refused_by_name),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
