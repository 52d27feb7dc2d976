/*
 * test_gpu_engine_kills.c - engines that execute their own runs are killed within such a kernel,
 * many times, beside two honest ones that replay and verify all the while: no row of theirs is ever
 * wrong, and what the killed ones had comes back.
 *
 * Without MPS each process has a context of its own: nobody else notices, the worker included.
 * Under MPS a death may end all contexts (SECURITY.md). Honest engines then end by the driver's
 * error, and others take their place; how often that happens, and to the worker, is printed.
 *
 * $ATTND_KILLS: how many (default 24); $ATTND_KILLS_SECONDS: no round begins later (default 60).
 */
#include "tests/gpu/support/by_stream.h"
#include "tests/gpu/support/long_run.h"
#include "tests/support/harness/e2e.h"

#include "schemas/atomics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CLIENT_MS 60000
#define LANE 5u
#define HONEST 2u
#define AT_ONCE 8u    /* victims of a round */
#define LATE_MS 1500u /* under MPS: after a death others' contexts end so soon, or stay */
#define RIGHT 3u      /* results of each honest one behind a round */
#define STAGGER_MS 5u /* from one kill to the next, at most */

struct victim {
    const struct harness *harness;
    uint32_t in_kernel; /* 1: its kernel has begun, and takes some 100 ms more */
    uint32_t unable;    /* the driver's result: it has no context */
};

struct honest {
    const struct harness *harness;
    pid_t pid;
    uint32_t ready;
    uint32_t unsafe; /* somebody may be killed: look at no rows, because the context may end */
    uint32_t over;
    uint32_t right;  /* results that were verified */
    uint32_t result; /* the driver's, which ended it; 0 */
};

static struct tally {
    uint32_t kills, ended, restarts;
} tally;

static uint32_t number_of(const char *name, uint32_t otherwise)
{
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

/* ---- those that are killed ---- */

static int dies(void *context)
{
    struct victim *victim = context;
    struct engine engine;
    struct long_run run;
    CUevent begins;
    const CUresult result = gpu_try();

    if (result != CUDA_SUCCESS) {
        harness_say(&victim->unable, (uint32_t)result);
        return 0;
    }
    gpu_engine_open(&engine, victim->harness->socket, "victim");
    long_open(&run, engine.session, LANE);
    CHECK_CUDA(cuEventCreate(&begins, CU_EVENT_DISABLE_TIMING));
    CHECK_CUDA(cuEventRecord(begins, run.stream));
    for (uint32_t i = 0; i < 20; i++)
        long_ring(&run);
    CHECK_CUDA(cuEventSynchronize(begins));
    CHECK(long_runs(&run));
    harness_say(&victim->in_kernel, 1);
    for (;;)
        (void)pause();
}

/* ---- the honest ones ---- */

static int goes_on(void *context)
{
    struct honest *honest = context;
    struct engine engine;
    struct layers layers;

    captured_open(&layers, &engine, honest->harness->socket, "honest", LANE);
    harness_say(&honest->ready, 1);
    while (!attnd_peek32(&honest->over)) {
        const CUresult result = layers_try(&layers);
        if (gpu_under_mps() && result != CUDA_SUCCESS) {
            harness_say(&honest->result, (uint32_t)result);
            return 0;
        }
        CHECK_CUDA(result);
        if (attnd_peek32(&honest->unsafe))
            continue;
        layers_right(&layers);
        harness_say(&honest->right, honest->right + 1);
    }
    captured_close(&layers, &engine);
    return 0;
}

static void honest_begins(struct honest *honest)
{
    honest->ready = honest->result = honest->unsafe = 0;
    honest->pid = harness_fork(goes_on, honest);
    harness_await(&honest->ready, 1);
}

/* Since @right results of it: more, all of them right; or it has ended, which MPS may do. */
struct progress {
    const struct honest *honest;
    uint32_t right;
};

static int gets_on(void *context)
{
    const struct progress *progress = context;
    return attnd_peek32(&progress->honest->right) >= progress->right + RIGHT ||
           attnd_peek32(&progress->honest->result);
}

static void honest_goes_on(struct honest *honest)
{
    struct progress progress = {honest, attnd_peek32(&honest->right)};

    harness_say(&honest->unsafe, 0);
    harness_eventually(gets_on, &progress, CLIENT_MS, "an honest engine goes on");
    if (!honest->result)
        return;
    CHECK_EQUAL(harness_join(honest->pid, CLIENT_MS), 0);
    tally.ended++;
    honest_begins(honest);
}

/* ---- the service ---- */

struct crowd {
    const struct harness *harness;
    uint32_t sessions;
};

static int is_at_work(void *context)
{
    const struct crowd *crowd = context;
    Attnd__Status *status = harness_status(crowd->harness);
    const int is =
        status->n_sessions <= crowd->sessions && strcmp(status->worker_state, "running") == 0;

    attnd__status__free_unpacked(status, NULL);
    return is;
}

static void settles(const struct harness *harness, uint32_t sessions, pid_t *worker)
{
    struct crowd crowd = {harness, sessions};

    if (gpu_under_mps())
        gpu_await();
    harness_eventually(is_at_work, &crowd, CLIENT_MS, "sessions of the killed are gone");
    const pid_t now = harness_worker(harness);
    tally.restarts += now != *worker;
    *worker = now;
}

/* ---- the claim ---- */

static int is_in_kernel(void *context)
{
    const struct victim *victim = context;
    return attnd_peek32(&victim->in_kernel) || attnd_peek32(&victim->unable);
}

static void victims_die(const struct harness *harness, struct victim *victims, uint32_t count)
{
    pid_t pids[AT_ONCE];

    for (uint32_t i = 0; i < count; i++) {
        victims[i] = (struct victim){.harness = harness};
        pids[i] = harness_fork(dies, &victims[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        harness_eventually(is_in_kernel, &victims[i], CLIENT_MS, "a victim is within its kernel");
    for (uint32_t i = 0; i < count; i++) {
        tally.kills += victims[i].in_kernel;
        harness_kill(pids[i]);
        harness_sleep_ms((uint32_t)rand() % (STAGGER_MS + 1));
    }
}

static void what_is_killed_within_its_kernel_hurts_nobody(void **state)
{
    static struct harness harness;
    struct honest *honest = harness_shared(HONEST * sizeof(*honest));
    struct victim *victims = harness_shared(AT_ONCE * sizeof(*victims));
    const uint32_t kills = number_of("ATTND_KILLS", 24);
    const uint64_t end_ns =
        harness_now_ns() + number_of("ATTND_KILLS_SECONDS", 60) * UINT64_C(1000000000);

    (void)state;
    harness_start(&harness, NULL);
    for (uint32_t i = 0; i < HONEST; i++) {
        honest[i].harness = &harness;
        honest_begins(&honest[i]);
    }
    pid_t worker = harness_worker(&harness);
    while (tally.kills < kills && harness_now_ns() < end_ns) {
        for (uint32_t i = 0; i < HONEST && gpu_under_mps(); i++)
            harness_say(&honest[i].unsafe, 1);
        const uint32_t left = kills - tally.kills;
        victims_die(&harness, victims, left < AT_ONCE ? left : AT_ONCE);
        if (gpu_under_mps())
            harness_sleep_ms(LATE_MS);
        settles(&harness, HONEST, &worker);
        for (uint32_t i = 0; i < HONEST; i++)
            honest_goes_on(&honest[i]);
    }
    printf("%u kills within a kernel; honest engines: %u and %u right, %u ended by the driver; "
           "%u restarts of the worker\n",
           tally.kills, honest[0].right, honest[1].right, tally.ended, tally.restarts);
    for (uint32_t i = 0; i < HONEST; i++) {
        harness_say(&honest[i].over, 1);
        CHECK_EQUAL(harness_join(honest[i].pid, CLIENT_MS), 0);
    }
    CHECK(tally.kills > 0);
    if (!gpu_under_mps()) {
        CHECK_EQUAL(tally.restarts, 0);
        CHECK_EQUAL(tally.ended, 0);
    }
    settles(&harness, 0, &worker);
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(what_is_killed_within_its_kernel_hurts_nobody),
    };

    harness_init();
    (void)setenv("ATTND_TEST_EXECUTE", "engine", 1);
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
