/*
 * test_e2e_watchdog.c - a worker that is alive and does not move is killed, and another one works;
 * so it is with one that moves while its item does not.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define RUNS 4

struct worker {
    const struct harness *harness;
    pid_t pid;
};

static int another_runs(void *context)
{
    const struct worker *old = context;
    Attnd__Status *status = harness_status(old->harness);
    int runs =
        (pid_t)status->worker_pid != old->pid && strcmp(status->worker_state, "running") == 0;

    attnd__status__free_unpacked(status, NULL);
    return runs;
}

/* Killed by the watchdog, and the service says so. */
static void check_last_end(const struct harness *harness)
{
    static const char *const arguments[] = {"status", NULL};
    static char text[65536];
    Attnd__Status *status = harness_status(harness);

    CHECK(status->worker_last_end && strstr(status->worker_last_end, "signal 9"));
    attnd__status__free_unpacked(status, NULL);
    CHECK_EQUAL(harness_attnctl(harness, arguments, text, sizeof(text)), 0);
    CHECK(strstr(text, "the one before was killed by signal 9"));
}

static void a_stopped_worker_is_replaced_and_its_runs_are_answered(void **state)
{
    static const char *const options[] = {"--watchdog", "1", NULL};
    struct random_batch batch = e2e_batch();
    static struct harness harness;
    struct engine engine;
    struct trial trial;
    (void)state;

    harness_start(&harness, options);
    engine_open(&engine, harness.socket, "patient");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);

    struct worker old = {&harness, harness_stop_worker(&harness)};
    for (uint32_t i = 0; i < RUNS; i++)
        CHECK_OK(trial_submit_run(&trial, 0, 0, 0, 0));
    CHECK(trial_await(&trial) != 0); /* every one of them, and none before its time */
    CHECK_EQUAL(trial.failure.fault.code, -ATTND_E_WORKER_RESTARTED);
    harness_eventually(another_runs, &old, 5000, "a new worker runs");
    check_last_end(&harness);
    trial_end(&trial);

    trial_expect(&engine, &batch);
    engine_close(&engine);
    harness_stop(&harness);
}

/* The fault that tests inject: the first worker stops by itself, the second does not. */
static void a_fault_is_injected_into_the_first_worker_only(void **state)
{
    static const char *const options[] = {"--watchdog", "1", "--inject", "stop", NULL};
    struct random_batch batch = e2e_batch();
    static struct harness harness;
    struct engine engine;
    (void)state;

    harness_start(&harness, options);
    struct worker old = {&harness, harness_worker(&harness)};
    engine_open(&engine, harness.socket, "patient");
    batch.shape.layers = 1; /* one run, behind which it stops with nothing in flight */
    trial_expect(&engine, &batch);
    harness_eventually(another_runs, &old, 5000, "a new worker runs");
    check_last_end(&harness);
    old.pid = harness_worker(&harness);
    trial_expect(&engine, &batch);
    harness_sleep_ms(2000);
    CHECK_EQUAL(harness_worker(&harness), old.pid);
    engine_close(&engine);
    harness_stop(&harness);
}

/* Its process moves, and its item does not: the worker sees that by itself, after 5 s. */
static void an_item_that_does_not_get_on_ends_the_worker(void **state)
{
    static const char *const options[] = {"--inject", "stuck", NULL};
    struct random_batch batch = e2e_batch();
    static struct harness harness;
    struct engine engine;
    struct trial trial;
    (void)state;

    harness_start(&harness, options);
    engine_open(&engine, harness.socket, "patient");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    struct worker old = {&harness, harness_worker(&harness)};
    CHECK_OK(trial_submit_run(&trial, 0, 0, 0, 0));
    CHECK(trial_await(&trial) != 0);
    CHECK_EQUAL(trial.failure.fault.code, -ATTND_E_WORKER_RESTARTED);
    harness_eventually(another_runs, &old, 5000, "a new worker runs");
    trial_end(&trial);
    trial_expect(&engine, &batch); /* the second one has no fault */
    engine_close(&engine);
    harness_stop(&harness);
}

static void without_a_watchdog_a_stopped_worker_is_waited_for(void **state)
{
    static const char *const options[] = {"--watchdog", "0", NULL};
    struct random_batch batch = e2e_batch();
    static struct harness harness;
    struct engine engine;
    (void)state;

    harness_start(&harness, options);
    engine_open(&engine, harness.socket, "patient");
    pid_t worker = harness_stop_worker(&harness);
    harness_sleep_ms(2500);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    trial_expect(&engine, &batch);
    CHECK_EQUAL(harness_worker(&harness), worker);
    engine_close(&engine);
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(a_stopped_worker_is_replaced_and_its_runs_are_answered),
        E2E_OWN_TEST(a_fault_is_injected_into_the_first_worker_only),
        E2E_OWN_TEST(an_item_that_does_not_get_on_ends_the_worker),
        E2E_OWN_TEST(without_a_watchdog_a_stopped_worker_is_waited_for),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
