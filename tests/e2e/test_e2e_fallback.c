/*
 * test_e2e_fallback.c - where io_uring is refused: the epoll loop does all of the same.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/oracle/refuse.h"
#include "tests/support/random/seed.h"
#include "tests/support/random/soak.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t seed;

static int start_epoll(void **state)
{
    static const char *const options[] = {"--loop", "epoll", NULL};
    static struct harness harness;

    harness_start(&harness, options);
    *state = &harness;
    return 0;
}

static void the_status_says_which_loop_it_is(void **state)
{
    Attnd__Status *status = harness_status(*state);

    CHECK(strcmp(status->loop, "epoll") == 0);
    attnd__status__free_unpacked(status, NULL);
}

static void a_batch_with_append_and_advance_is_right(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "fallback");
    batch.append = 1;
    batch.steps = 3;
    batch.reserve_pages = 1;
    for (uint32_t e = 0; e < batch.level[0].requests; e++)
        for (uint32_t s = 1; s < batch.steps; s++)
            batch.level[0].entry[e].kv_len[s] =
                batch.level[0].entry[e].kv_len[0] + (batch.level[0].entry[e].qo_len ? (int)s : 0);
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

/* Pauses let both sides fall asleep in between, so that every wake-up is a real one. */
static void sleepers_are_woken(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "fallback");
    for (int round = 0; round < 40; round++) {
        trial_expect(&engine, &batch);
        harness_sleep_ms((uint32_t)round % 8); /* awake, falling asleep, asleep */
    }
    engine_close(&engine);
}

static int client(void *context)
{
    const struct harness *harness = context;
    struct soak soak = {.seed = seed, .next = (uint64_t)getpid() * 8, .stride = 1};
    struct engine engine;
    int wrong = 0;

    engine_open(&engine, harness->socket, "fallback");
    for (int i = 0; i < 100 && !wrong; i++)
        wrong = soak_step(&soak, &engine);
    engine_close(&engine);
    return wrong;
}

static void random_batches_are_right(void **state)
{
    pid_t a = harness_fork(client, *state), b = harness_fork(client, *state);

    CHECK_EQUAL(harness_join(a, 50000), 0);
    CHECK_EQUAL(harness_join(b, 50000), 0);
}

static int is_alone(void *context)
{
    Attnd__Status *status = harness_status(context);
    int alone = !status->n_sessions && !status->queue_runs && !status->heap_used_bytes;

    attnd__status__free_unpacked(status, NULL);
    return alone;
}

static int endless(void *context)
{
    const struct harness *harness = context;
    const struct random_batch batch = e2e_long_batch();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "victim");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    while (1)
        if (trial_submit_run(&trial, 0, 0, 0, ATTND_SKIP_SUCCESS))
            harness_sleep_ms(1);
    return 1;
}

static void deaths_of_client_and_worker_are_survived(void **state)
{
    struct harness *harness = *state;
    const struct random_batch batch = e2e_batch();
    struct engine engine;
    pid_t pid = harness_fork(endless, harness);

    harness_eventually(harness_is_busy, harness, 5000, "runs of the client are under way");
    harness_kill(pid);
    harness_eventually(is_alone, harness, 5000, "nothing is left of the client");
    kill(harness_worker(harness), SIGKILL);
    engine_open(&engine, harness->socket, "fallback");
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

/* Nobody chose here: the kernel refuses, and the daemon finds out. The filter stays, so this test
 * is the last. */
static int start_refused(void **state)
{
    static struct harness harness;

    if (!refuse_io_uring())
        return -1;
    harness_start(&harness, NULL);
    *state = &harness;
    return 0;
}

static void a_daemon_that_is_refused_io_uring_falls_back_and_says_so(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = e2e_batch();
    struct engine engine;
    char log[4096];
    FILE *file = fopen(harness->log, "r");

    CHECK(file != NULL);
    log[fread(log, 1, sizeof(log) - 1, file)] = 0;
    (void)fclose(file);
    CHECK(strstr(log, "loop is epoll") != NULL);
    the_status_says_which_loop_it_is(state);
    engine_open(&engine, harness->socket, "refused");
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_status_says_which_loop_it_is, start_epoll, e2e_stop),
        cmocka_unit_test_setup_teardown(a_batch_with_append_and_advance_is_right, start_epoll,
                                        e2e_stop),
        cmocka_unit_test_setup_teardown(sleepers_are_woken, start_epoll, e2e_stop),
        cmocka_unit_test_setup_teardown(random_batches_are_right, start_epoll, e2e_stop),
        cmocka_unit_test_setup_teardown(deaths_of_client_and_worker_are_survived, start_epoll,
                                        e2e_stop),
        cmocka_unit_test_setup_teardown(a_daemon_that_is_refused_io_uring_falls_back_and_says_so,
                                        start_refused, e2e_stop),
    };

    harness_init();
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
