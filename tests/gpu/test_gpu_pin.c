/*
 * test_gpu_pin.c - many GiB of host memory come and go while others run.
 *
 * Half a second a GiB, part of it under a lock of the driver's that launches need too, and to let
 * go of it kernels have to rest. A neighbour notices that: an engine whose small runs go one after
 * the other, and which notes how long each took and what was going on when it began.
 */
#include "tests/gpu/support/load.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "schemas/atomics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLIENT_MS 60000
#define GIB (UINT64_C(1) << 30)
#define LET_GO_MS 200u /* a GiB, by and by */
#define SAMPLES_MAX (1u << 19)

/* What a run may take beside it. Without pieces it is the whole time: 1.7 s to pin 4 GiB where
 * kernels are launched on demand, 0.4 s to let go of them everywhere. */
#define LONGEST_US 100000.0f

static struct harness harness;

enum phase { QUIET, PINNING, PINNED, LETTING_GO, PHASES };

struct scene {
    uint32_t there, phase, stop, samples;
    struct {
        float us;
        uint8_t phase;
    } sample[SAMPLES_MAX];
};

static int neighbour(void *context)
{
    struct scene *scene = context;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct load load = {0};
    struct trial trial;

    engine_open(&engine, harness.socket, "neighbour");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    while (!attnd_peek32(&scene->stop) && scene->samples < SAMPLES_MAX) {
        const struct attnd_op op = {.lane = 0};
        uint32_t phase = attnd_peek32(&scene->phase);
        uint64_t begin_ns = harness_now_ns();
        CHECK_OK(trial_submit_as(&trial, 0, &op));
        CHECK_EQUAL(load_collect(&engine, &load), 1);
        scene->sample[scene->samples].us = (float)(harness_now_ns() - begin_ns) / 1e3f;
        scene->sample[scene->samples++].phase = (uint8_t)phase;
        harness_say(&scene->there, 1);
    }
    CHECK_EQUAL(load.restarted, 0);
    trial_end(&trial);
    engine_close(&engine);
    return 0;
}

static int by_us(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Return: the longest. */
static float report(const struct scene *scene, enum phase phase, const char *name, double ms)
{
    float *us = malloc(sizeof(*us) * (scene->samples + 1));
    uint32_t count = 0;

    CHECK(us != NULL);
    for (uint32_t i = 0; i < scene->samples; i++)
        if (scene->sample[i].phase == phase)
            us[count++] = scene->sample[i].us;
    CHECK(count > 0);
    qsort(us, count, sizeof(*us), by_us);
    float longest = us[count - 1];
    printf("%-11s %6.0f ms: %7u runs, p50 %.0f, p99 %.0f, the longest %.0f us\n", name, ms, count,
           us[count / 2], us[count * 99ull / 100], longest);
    free(us);
    return longest;
}

static double enter(struct scene *scene, enum phase phase, uint64_t *began_ns)
{
    double ms = (double)(harness_now_ns() - *began_ns) / 1e6;

    attnd_publish32(&scene->phase, phase);
    *began_ns = harness_now_ns();
    return ms;
}

static void pin_beside(struct scene *scene, uint64_t bytes)
{
    uint64_t began_ns = harness_now_ns();
    double ms[PHASES];
    uint32_t memory;

    scene->there = scene->stop = scene->samples = 0;
    attnd_publish32(&scene->phase, QUIET);
    pid_t pid = harness_fork(neighbour, scene);
    harness_await(&scene->there, 1);
    struct attnd_session *session = e2e_open(&harness);
    began_ns = harness_now_ns();
    harness_sleep_ms(300);
    ms[QUIET] = enter(scene, PINNING, &began_ns);
    CHECK_OK(attnd_memory_create(session, bytes, &memory, NULL));
    ms[PINNING] = enter(scene, PINNED, &began_ns);
    harness_sleep_ms(300);
    ms[PINNED] = enter(scene, LETTING_GO, &began_ns);
    CHECK_OK(attnd_memory_release(session, memory));
    harness_sleep_ms((uint32_t)(bytes / GIB) * LET_GO_MS); /* the call does not wait for it */
    ms[LETTING_GO] = enter(scene, QUIET, &began_ns);
    harness_sleep_ms(50);
    harness_say(&scene->stop, 1);
    CHECK_EQUAL(harness_join(pid, CLIENT_MS), 0);
    attnd_close(session);
    printf("%.0f GiB:\n", (double)bytes / (double)GIB);
    (void)report(scene, QUIET, "nothing", ms[QUIET]);
    float pinning_us = report(scene, PINNING, "pinning", ms[PINNING]);
    (void)report(scene, PINNED, "pinned", ms[PINNED]);
    float letting_go_us = report(scene, LETTING_GO, "letting go", ms[LETTING_GO]);
    CHECK(pinning_us <= LONGEST_US);
    CHECK(letting_go_us <= LONGEST_US);
}

/* $ATTND_PIN_GIB: how many, a digit each. */
static void runs_of_others_go_on_while_many_gib_are_pinned(void **state)
{
    const char *const options[] = {"--residency", gpu_under_mps() ? "exclusive" : "elastic", NULL};
    const char *sizes = getenv("ATTND_PIN_GIB");
    struct scene *scene = harness_shared(sizeof(*scene));
    (void)state;

    harness_start(&harness, options);
    for (sizes = sizes ? sizes : "4"; *sizes; sizes++)
        pin_beside(scene, (uint64_t)(*sizes - '0') * GIB);
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(runs_of_others_go_on_while_many_gib_are_pinned),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
