/*
 * test_gpu_engine_faults.c - what an engine that executes its own runs does to itself (attnd
 * --execute engine) is nothing to two honest ones beside it: an illegal address, a kernel that does
 * not end, a death in the middle of runs.
 *
 * Without MPS each process has a context of its own: the honest ones go on, and the worker too.
 * Under MPS a fault may end all contexts (SECURITY.md). Then an honest engine gets an error where
 * it would have got its rows, never wrong ones, and never waits for good; and when MPS takes
 * clients again the service is there, and new engines are right.
 */
#include "tests/gpu/support/by_stream.h"
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
#define ROUNDS 20u         /* right ones, at each stage */
#define ALL_SMS 1056u      /* CTAs, several for each */
#define LATE_NS 2000000000 /* under MPS: after a death others' contexts end so soon, or stay */

enum harm { ILLEGAL_ADDRESS, ENDLESS_KERNEL, DEATH_IN_RUNS };

struct scene {
    const struct harness *harness;
    enum harm harm;
    uint32_t ready;  /* it has had a right result */
    uint32_t strike; /* harmful: now */
    uint32_t struck;
    uint32_t over;   /* honest: the harm is done */
    uint32_t rounds; /* honest: right ones so far */
    uint32_t before; /* as they were when the harm began */
    uint32_t result; /* honest: the driver's, which ended it; 0 */
};

static const char harmful_text[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry wrong(.param .u64 word)\n{\n"
    ".reg .u64 %a;\nmov.u64 %a, 16;\nst.global.u32 [%a], 1;\nret;\n}\n"
    ".visible .entry endless(.param .u64 word)\n{\n"
    ".reg .u64 %a;\n.reg .u32 %n;\n"
    "ld.param.u64 %a, [word];\ncvta.to.global.u64 %a, %a;\n"
    "again:\natom.global.add.u32 %n, [%a], 1;\nbra again;\n}\n";

static void begin(const struct scene *scene, const char *name, struct engine *engine,
                  struct layers *layers)
{
    captured_open(layers, engine, scene->harness->socket, name, LANE);
    layers_replay(layers);
    layers_right(layers);
}

/* ---- the harmful one ---- */

static void launch(const struct layers *layers, const char *name, uint32_t ctas)
{
    CUmodule module;
    CUfunction function;
    CUdeviceptr word;
    void *parameters[] = {&word};

    CHECK_CUDA(cuModuleLoadData(&module, harmful_text));
    CHECK_CUDA(cuModuleGetFunction(&function, module, name));
    CHECK_CUDA(cuMemAlloc(&word, sizeof(uint32_t)));
    CHECK_CUDA(cuLaunchKernel(function, ctas, 1, 1, 1, 1, 1, 0, layers->stream, parameters, NULL));
}

static int harms(void *context)
{
    struct scene *scene = context;
    struct engine engine;
    struct layers layers;

    begin(scene, "harmful", &engine, &layers);
    harness_say(&scene->ready, 1);
    harness_await(&scene->strike, 1);
    if (scene->harm == ENDLESS_KERNEL)
        launch(&layers, "endless", gpu_under_mps() ? 1 : ALL_SMS);
    if (scene->harm == ILLEGAL_ADDRESS) {
        launch(&layers, "wrong", 1);
        CHECK(cuStreamSynchronize(layers.stream) != CUDA_SUCCESS);
        CHECK_ERROR(
            attnd_cuda_run_on_stream(engine.session, LANE, layers.prepared[0], layers.stream),
            ATTND_E_DEVICE);
        CHECK_ERROR(attnd_cuda_lane_error(engine.session, LANE), ATTND_E_DEVICE);
        attnd_close(engine.session);
        return 0;
    }
    for (uint32_t time = 0; scene->harm == DEATH_IN_RUNS; time++) {
        layers_queue(&layers);
        if (time == ROUNDS)
            harness_say(&scene->struck, 1);
    }
    harness_say(&scene->struck, 1);
    for (;;)
        (void)pause();
}

/* ---- the honest ones ---- */

/* Under MPS, when the harm is done: until the context has ended or it is sure that it has not. */
static CUresult replay_for_long(const struct layers *layers)
{
    const uint64_t begin_ns = harness_now_ns();
    CUresult result = CUDA_SUCCESS;

    while (result == CUDA_SUCCESS && harness_now_ns() - begin_ns < LATE_NS)
        result = layers_try(layers);
    return result;
}

static int goes_on(void *context)
{
    struct scene *scene = context;
    struct engine engine;
    struct layers layers;

    begin(scene, "honest", &engine, &layers);
    harness_say(&scene->ready, 1);
    for (uint32_t after = 0; after < ROUNDS; after += attnd_peek32(&scene->over)) {
        /* What ends contexts is told before it is done, because nobody can look at rows then. */
        const int may_end = gpu_under_mps() && attnd_peek32(&scene->over) && after == 0;
        const CUresult result = may_end ? replay_for_long(&layers) : layers_try(&layers);
        if (gpu_under_mps() && result != CUDA_SUCCESS) {
            harness_say(&scene->result, (uint32_t)result);
            return 0;
        }
        CHECK_CUDA(result);
        layers_right(&layers);
        harness_say(&scene->rounds, scene->rounds + 1);
    }
    captured_close(&layers, &engine);
    return 0;
}

static int new_one(void *context)
{
    struct engine engine;
    struct layers layers;

    begin(context, "new", &engine, &layers);
    captured_close(&layers, &engine);
    return 0;
}

/* ---- the claims ---- */

static int has_rounds(void *context)
{
    const struct scene *scene = context;
    return attnd_peek32(&scene->rounds) - scene->before > ROUNDS || attnd_peek32(&scene->result);
}

static int is_alone(void *context)
{
    Attnd__Status *status = harness_status(context);
    const int alone = status->n_sessions == 0 && strcmp(status->worker_state, "running") == 0;

    attnd__status__free_unpacked(status, NULL);
    return alone;
}

static void harm_is_done(struct scene *harmful, pid_t pid, struct scene *honest)
{
    if (harmful->harm == ENDLESS_KERNEL) { /* beside it */
        harness_say(&harmful->strike, 1);
        harness_await(&harmful->struck, 1);
        for (uint32_t i = 0; i < HONEST; i++) {
            honest[i].before = attnd_peek32(&honest[i].rounds);
            harness_eventually(has_rounds, &honest[i], CLIENT_MS, "an honest engine goes on");
        }
    }
    for (uint32_t i = 0; i < HONEST && gpu_under_mps(); i++)
        harness_say(&honest[i].over, 1);
    harness_say(&harmful->strike, 1);
    if (harmful->harm == ILLEGAL_ADDRESS) {
        CHECK_EQUAL(harness_join(pid, CLIENT_MS), 0);
    } else {
        harness_await(&harmful->struck, 1);
        harness_kill(pid);
    }
    for (uint32_t i = 0; i < HONEST; i++)
        harness_say(&honest[i].over, 1);
}

static void beside_honest_ones(enum harm harm)
{
    struct scene *scenes = harness_shared((1 + HONEST) * sizeof(*scenes)), *honest = scenes + 1;
    static struct harness harness;
    pid_t pids[1 + HONEST];

    harness_start(&harness, NULL);
    const pid_t worker = harness_worker(&harness);
    for (uint32_t i = 0; i < 1 + HONEST; i++) {
        scenes[i].harness = &harness;
        scenes[i].harm = harm;
        pids[i] = harness_fork(i ? goes_on : harms, &scenes[i]);
    }
    for (uint32_t i = 0; i < 1 + HONEST; i++)
        harness_await(&scenes[i].ready, 1);
    harm_is_done(scenes, pids[0], honest);
    for (uint32_t i = 0; i < HONEST; i++) {
        CHECK_EQUAL(harness_join(pids[1 + i], CLIENT_MS), 0);
        printf("an honest engine: %u right, ended by the driver's result %u\n", honest[i].rounds,
               honest[i].result);
    }
    harness_eventually(is_alone, &harness, CLIENT_MS, "the service is alone and at work");
    if (!gpu_under_mps())
        CHECK_EQUAL(harness_worker(&harness), worker);
    gpu_await();
    for (uint32_t i = 0; i < HONEST; i++)
        CHECK_EQUAL(harness_join(harness_fork(new_one, &honest[i]), CLIENT_MS), 0);
    harness_stop(&harness);
}

static void an_illegal_address_hurts_its_own_engine_only(void **state)
{
    (void)state;
    beside_honest_ones(ILLEGAL_ADDRESS);
}

static void a_kernel_that_does_not_end_hurts_its_own_engine_only(void **state)
{
    (void)state;
    beside_honest_ones(ENDLESS_KERNEL);
}

static void a_death_in_the_middle_of_runs_hurts_its_own_engine_only(void **state)
{
    (void)state;
    beside_honest_ones(DEATH_IN_RUNS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(an_illegal_address_hurts_its_own_engine_only),
        E2E_OWN_TEST(a_kernel_that_does_not_end_hurts_its_own_engine_only),
        E2E_OWN_TEST(a_death_in_the_middle_of_runs_hurts_its_own_engine_only),
    };

    harness_init();
    (void)setenv("ATTND_TEST_EXECUTE", "engine", 1);
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
