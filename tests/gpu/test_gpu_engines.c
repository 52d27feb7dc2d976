/*
 * test_gpu_engines.c - several engines whose own kernels fill the GPU, all of which ring; and
 * engines and workers that die while kernels of the service come and go.
 *
 * An engine is a few lanes, each a stream of its own with a full-size kernel before every ring. One
 * of them also has a run that takes long, so that the service's kernels find something to do for
 * longer than a ring of positions lasts. A ring's kernel waits on some SM meanwhile; all results
 * are looked at in the end.
 */
#include "tests/gpu/support/load.h"
#include "tests/gpu/support/long_run.h"
#include "tests/gpu/support/neighbour.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/launched.h"
#include "tests/support/trial/trial.h"

#include "schemas/atomics.h"

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ENGINES 4u
#define LANES LAUNCHED_LAYERS /* a layer each */
#define STEPS_MPS 120u
#define STEPS_ALONE 12u /* without MPS contexts take turns */
#define LONG_LANE 9u
#define SMS 132u
#define CLIENT_MS 60000

static struct harness harness;

struct scene {
    int full; /* kernels of engines fill the GPU */
    uint32_t steps, ready, begin;
};

struct lane {
    CUstream stream;
    uint32_t prepared;
};

static void open_lanes(struct trial *trial, struct lane lanes[LANES])
{
    for (uint32_t i = 0; i < LANES; i++) {
        CHECK_OK(launched_prepare(trial, i, i, &lanes[i].prepared));
        CHECK_CUDA(cuStreamCreate(&lanes[i].stream, CU_STREAM_NON_BLOCKING));
    }
}

/* A full-size kernel of 50 us, and a ring. */
static void queue_step(struct attnd_session *session, struct neighbour *neighbour, int full,
                       const struct lane *lane, uint32_t number)
{
    neighbour->stream = lane->stream;
    if (full)
        neighbour_launch(neighbour, SMS, NEIGHBOUR_SHARED_BYTES, 100);
    CHECK_OK(attnd_cuda_run_on_stream(session, number, lane->prepared, lane->stream));
}

static void judge_lanes(struct engine *engine, struct trial *trial, const struct lane lanes[LANES])
{
    for (uint32_t i = 0; i < LANES; i++) {
        CHECK_CUDA(cuStreamSynchronize(lanes[i].stream));
        CHECK_OK(attnd_cuda_lane_error(engine->session, i));
    }
    engine_pull(engine);
    for (uint32_t i = 0; i < LANES; i++)
        launched_verify(trial, i);
    engine_push(engine);
}

static int ring_all(struct scene *scene, int long_too)
{
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    struct neighbour neighbour;
    struct lane lanes[LANES];
    struct long_run run;

    gpu_open();
    gpu_engine_open(&engine, harness.socket, "rings");
    launched_begin(&trial, &engine, &batch);
    open_lanes(&trial, lanes);
    if (scene->full) /* a module does not load beside kernels that take all SMs */
        neighbour_open(&neighbour);
    CHECK_OK(attnd_cuda_stream_open(engine.session));
    if (long_too)
        long_open(&run, engine.session, LONG_LANE);
    (void)attnd_arrive32(&scene->ready, 1);
    harness_await(&scene->begin, 1);
    for (uint32_t step = 0; step < scene->steps; step++) {
        if (long_too && step % 24 == 0)
            long_ring(&run);
        for (uint32_t i = 0; i < LANES; i++)
            queue_step(engine.session, &neighbour, scene->full, &lanes[i], i);
        if (step % 16 == 15)
            CHECK_CUDA(cuStreamSynchronize(lanes[step / 16 % LANES].stream));
    }
    judge_lanes(&engine, &trial, lanes);
    if (long_too) {
        CHECK_EQUAL(long_await(&run), 0);
        long_close(&run);
    }
    for (uint32_t i = 0; i < LANES; i++)
        CHECK_OK(attnd_unprepare(engine.session, lanes[i].prepared));
    launched_close(&engine, &trial);
    return 0;
}

static int plain_engine(void *context)
{
    return ring_all(context, 0);
}

static int long_engine(void *context)
{
    return ring_all(context, 1);
}

static void four_engines(const char *const *options, int full)
{
    struct scene *scene = harness_shared(sizeof(*scene));
    pid_t engines[ENGINES];

    scene->full = full;
    scene->steps = gpu_under_mps() ? STEPS_MPS : STEPS_ALONE;
    harness_start(&harness, options);
    for (uint32_t i = 0; i < ENGINES; i++)
        engines[i] = harness_fork(i == 0 ? long_engine : plain_engine, scene);
    harness_await(&scene->ready, ENGINES);
    uint64_t begin_ns = harness_now_ns();
    harness_say(&scene->begin, 1);
    for (uint32_t i = 0; i < ENGINES; i++)
        CHECK_EQUAL(harness_join(engines[i], CLIENT_MS), 0);
    printf("%u rings of %u engines: %.1f us each\n", scene->steps * ENGINES * LANES, ENGINES,
           (double)(harness_now_ns() - begin_ns) * 1e-3 / (scene->steps * ENGINES * LANES));
    harness_stop(&harness);
}

static void four_engines_that_fill_the_gpu_are_all_answered(void **state)
{
    (void)state;
    four_engines(NULL, 1);
}

static void so_they_are_beside_kernels_that_stay(void **state)
{
    static const char *const some[] = {"--residency", "shared", NULL};
    static const char *const all[] = {"--residency", "exclusive", NULL};
    static const char *const reserved[] = {"--reserve", "8", NULL};
    (void)state;
    four_engines(reserved, 1);
    four_engines(some, 1);
    four_engines(all, 0); /* nothing that fills an SM runs beside that */
}

/* ---- deaths ---- */

#define KILLERS 4u
#define DEATHS 52u /* each of them causes */
#define PATIENCE_NS 5000000000u

/* Most of an engine's life here is spent on its context, which takes turns with all others on the
 * GPU. So the load pauses, and kernels come and go the more often; and an engine has few queues to
 * the hardware, because each of them is made, and ended, in turn. */
#define LOAD_PAUSE_US 2000u
#define QUEUES "2"

struct mortal {
    struct graveyard *graveyard;
    uint32_t began;
};

struct graveyard {
    struct mortal mortals[KILLERS];
    struct load load;
    uint32_t deaths, rang; /* engines that died, and those of them that had rung */
};

/* Rings without end. */
static int ring_until_killed(void *context)
{
    struct mortal *mortal = context;
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    struct lane lanes[LANES];

    CHECK_EQUAL(setenv("CUDA_DEVICE_MAX_CONNECTIONS", QUEUES, 1), 0);
    gpu_open();
    gpu_engine_open(&engine, harness.socket, "mortal");
    launched_begin(&trial, &engine, &batch);
    open_lanes(&trial, lanes);
    for (;;) {
        for (uint32_t i = 0; i < LANES; i++)
            if (attnd_cuda_run_on_stream(engine.session, i, lanes[i].prepared, lanes[i].stream))
                return 0; /* the session ended first */
        harness_say(&mortal->began, 1);
        (void)cuStreamSynchronize(lanes[0].stream);
    }
}

/* It stays to be reaped. */
static int has_ended(pid_t pid)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid;
}

static int killer(void *context)
{
    struct mortal *mortal = context;
    struct graveyard *graveyard = mortal->graveyard;
    uint32_t random = (uint32_t)(uintptr_t)mortal;

    for (uint32_t i = 0; i < DEATHS; i++) {
        harness_say(&mortal->began, 0);
        pid_t engine = harness_fork(ring_until_killed, mortal);
        uint64_t begin_ns = harness_now_ns();
        /* A worker's death at the wrong moment ends its first calls. */
        while (!attnd_observe32(&mortal->began) && !has_ended(engine) &&
               harness_now_ns() - begin_ns < PATIENCE_NS)
            harness_sleep_ms(1);
        (void)attnd_arrive32(&graveyard->rang, attnd_observe32(&mortal->began));
        random = random * 1664525u + 1013904223u;
        usleep((random >> 16) % 20000);
        harness_kill(engine);
        (void)attnd_arrive32(&graveyard->deaths, 1);
    }
    return 0;
}

static void engines_and_workers_may_die_while_kernels_come_and_go(void **state)
{
    struct graveyard *graveyard = harness_shared(sizeof(*graveyard));
    pid_t killers[KILLERS];
    struct random_batch batch = e2e_batch();
    struct engine engine;
    const uint64_t begin_ns = harness_now_ns();
    uint32_t workers = 0;
    (void)state;

    if (gpu_under_mps()) {
        puts("under MPS others die with a process that is killed in a kernel");
        return;
    }
    harness_start(&harness, NULL);
    graveyard->load.harness = &harness;
    graveyard->load.pause_us = LOAD_PAUSE_US;
    pid_t busy = harness_fork(load_keep_up, &graveyard->load);
    harness_await(&graveyard->load.began, 1);
    for (uint32_t i = 0; i < KILLERS; i++) {
        graveyard->mortals[i].graveyard = graveyard;
        killers[i] = harness_fork(killer, &graveyard->mortals[i]);
    }
    while (attnd_observe32(&graveyard->deaths) < KILLERS * DEATHS) {
        if (attnd_observe32(&graveyard->deaths) / 40 > workers) { /* and a worker */
            CHECK_EQUAL(kill(harness_worker(&harness), SIGKILL), 0);
            workers++;
            fprintf(stderr, "%u of %u deaths in %" PRIu64 " s\n",
                    attnd_observe32(&graveyard->deaths), KILLERS * DEATHS,
                    (harness_now_ns() - begin_ns) / 1000000000u);
        }
        harness_sleep_ms(5);
    }
    for (uint32_t i = 0; i < KILLERS; i++)
        CHECK_EQUAL(harness_join(killers[i], CLIENT_MS), 0);
    engine_open(&engine, harness.socket, "witness");
    for (batch.seed = 1; batch.seed <= 10; batch.seed++)
        trial_expect(&engine, &batch);
    engine_close(&engine);
    harness_say(&graveyard->load.stop, 1);
    CHECK_EQUAL(harness_join(busy, CLIENT_MS), 0); /* every run was answered */
    printf(
        "%u engines, of which %u had rung, and %u workers died; %u runs of another engine, %u of "
        "them told of it\n",
        graveyard->deaths, graveyard->rang, workers, graveyard->load.answered,
        graveyard->load.restarted);
    CHECK(graveyard->rang >= KILLERS * DEATHS * 3 / 4);
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(four_engines_that_fill_the_gpu_are_all_answered),
        E2E_OWN_TEST(so_they_are_beside_kernels_that_stay),
        E2E_OWN_TEST(engines_and_workers_may_die_while_kernels_come_and_go),
    };

    harness_init();
    (void)setenv("ATTND_TEST_EXECUTE", "service", 1); /* rings are what is tested */
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
