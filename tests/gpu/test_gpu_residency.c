/*
 * test_gpu_residency.c - the service and kernels of other processes on one GPU, with and without
 * MPS; and kernels that leave and come back.
 */
#include "tests/gpu/support/load.h"
#include "tests/gpu/support/neighbour.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/launched.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"
#include "schemas/atomics.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLIENT_MS 60000
#define SMS 132u

static struct harness harness;

static void start(const char *const *options)
{
    harness_start(&harness, options);
}

/* ---- kernels of others ---- */

struct others {
    struct load load;
    uint32_t ctas, before, started, done;
    double alone_us, beside_us;
};

struct answers {
    const struct load *load;
    uint32_t before;
};

static int are_more(void *context)
{
    const struct answers *answers = context;

    return attnd_peek32(&answers->load->answered) > answers->before;
}

static void await_more_answers(const struct load *load)
{
    struct answers answers = {load, attnd_peek32(&load->answered)};

    harness_eventually(are_more, &answers, 1000, "runs go on being answered");
}

/* As large as a CTA can be, more of them than the GPU has SMs, again and again. */
static int full_size(void *context)
{
    struct others *others = context;
    struct neighbour neighbour;

    gpu_open();
    neighbour_open(&neighbour);
    printf("a CTA of the neighbour takes %d registers and %u bytes of shared memory\n",
           neighbour.registers, NEIGHBOUR_SHARED_BYTES);
    CHECK(neighbour.registers > 56 * 1024); /* allocated by eights: 64 a thread */
    harness_say(&others->started, 1);
    double us = neighbour_time_us(&neighbour, 2 * SMS, NEIGHBOUR_SHARED_BYTES, 1000, 20);
    printf("%u CTAs beside the saturated service: %.0f us\n", 2 * SMS, us);
    harness_say(&others->done, 1);
    return 0;
}

static void kernels_of_full_size_finish_beside_a_saturated_service(void **state)
{
    struct others *others = harness_shared(sizeof(*others));
    (void)state;

    others->load.harness = &harness;
    start(NULL);
    pid_t busy = harness_fork(load_keep_up, &others->load);
    harness_await(&others->load.began, 1);
    pid_t other = harness_fork(full_size, others);
    CHECK_EQUAL(harness_join(other, 20000), 0);
    printf("%u runs meanwhile\n", attnd_peek32(&others->load.answered));
    await_more_answers(&others->load); /* nor is the service kept off */
    harness_say(&others->load.stop, 1);
    CHECK_EQUAL(harness_join(busy, CLIENT_MS), 0);
    CHECK_EQUAL(others->load.restarted, 0);
    harness_stop(&harness);
}

static int before_and_beside(void *context)
{
    struct others *others = context;
    struct neighbour neighbour;

    gpu_open();
    neighbour_open(&neighbour);
    (void)neighbour_time_us(&neighbour, others->ctas, NEIGHBOUR_SHARED_BYTES, 400,
                            200); /* clocks up */
    others->alone_us =
        neighbour_time_us(&neighbour, others->ctas, NEIGHBOUR_SHARED_BYTES, 400, 200);
    harness_say(&others->before, 1);
    harness_await(&others->started, 1);
    (void)neighbour_time_us(&neighbour, others->ctas, NEIGHBOUR_SHARED_BYTES, 400, 200);
    others->beside_us =
        neighbour_time_us(&neighbour, others->ctas, NEIGHBOUR_SHARED_BYTES, 400, 200);
    return 0;
}

/* A kernel of @ctas is as fast beside the idle service as without one. */
static void nobody_is_slowed_down(uint32_t ctas, const char *const *options)
{
    struct others *others = harness_shared(sizeof(*others));
    struct random_batch batch = e2e_batch();
    struct engine engine;

    others->ctas = ctas;
    pid_t other = harness_fork(before_and_beside, others);
    harness_await(&others->before, 1);
    start(options);
    engine_open(&engine, harness.socket, "idle");
    trial_expect(&engine, &batch); /* it has been there, and done something */
    harness_sleep_ms(100);
    harness_say(&others->started, 1);
    CHECK_EQUAL(harness_join(other, CLIENT_MS), 0);
    printf("%u CTAs: %.1f us alone, %.1f us beside the idle service, ratio %.3f\n", others->ctas,
           others->alone_us, others->beside_us, others->beside_us / others->alone_us);
    CHECK(others->beside_us <= 1.02 * others->alone_us);
    engine_close(&engine);
    harness_stop(&harness);
}

/* Not what it costs, but that it costs nothing: a kernel that fits on what is left is as fast
 * beside an idle service as without one, and in `elastic` all of the GPU is left. */
static void an_idle_service_slows_nobody_down(void **state)
{
    (void)state;
    if (load_reserves()) {
        puts("SMs are reserved: a kernel that wants all of them takes two waves");
        return;
    }
    nobody_is_slowed_down(SMS, NULL);
}

/* ---- SMs that stay ---- */

static const char *const reserving[] = {"--residency", "elastic", "--reserve", "8", NULL};

static void what_is_not_reserved_is_left_to_others(void **state)
{
    (void)state;
    nobody_is_slowed_down(SMS - 8, reserving);
}

/* One kernel on every SM that it gets, for a second, and then on those that it did not get. */
static int fill(void *context)
{
    struct others *others = context;
    struct neighbour neighbour;

    gpu_open();
    neighbour_open(&neighbour);
    neighbour_launch(&neighbour, SMS, NEIGHBOUR_SHARED_BYTES, 2000000);
    harness_say(&others->started, 1);
    CHECK_CUDA(cuStreamSynchronize(neighbour.stream));
    harness_say(&others->done, 1);
    return 0;
}

static void reserved_sms_answer_while_a_kernel_has_all_others(void **state)
{
    struct others *others = harness_shared(sizeof(*others));
    struct random_batch batch = e2e_batch();
    struct engine engine;
    (void)state;

    start(reserving);
    engine_open(&engine, harness.socket, "reserved");
    trial_expect(&engine, &batch);
    pid_t other = harness_fork(fill, others);
    harness_await(&others->started, 1);
    for (uint32_t i = 0; i < 5; i++)
        trial_expect(&engine, &batch);
    CHECK_EQUAL(attnd_peek32(&others->done), 0); /* it still has them */
    CHECK_EQUAL(harness_join(other, CLIENT_MS), 0);
    for (uint32_t i = 0; i < 5; i++)
        trial_expect(&engine, &batch);
    engine_close(&engine);
    harness_stop(&harness);
}

static void it_says_how_it_lives(void **state)
{
    static const char *const three[] = {"--residency", "shared", "--sms", "3", NULL};
    static const char *const all[] = {"--residency", "exclusive", NULL};
    const struct {
        const char *const *options;
        const char *residency;
        uint32_t sms;
    } ways[] = {{NULL, "elastic", SMS}, {three, "shared", 3}, {all, "exclusive", SMS}};
    (void)state;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct random_batch batch = e2e_batch();
        struct attnd_info info = {.size = sizeof(info)};
        struct engine engine;
        start(ways[i].options);
        Attnd__Status *status = harness_status(&harness);
        CHECK(status->residency && strcmp(status->residency, ways[i].residency) == 0);
        CHECK_EQUAL(status->sms_resident, ways[i].sms);
        CHECK_EQUAL(status->mps, gpu_under_mps());
        attnd__status__free_unpacked(status, NULL);
        engine_open(&engine, harness.socket, "asks");
        CHECK_OK(attnd_info(engine.session, &info));
        CHECK(strcmp(info.residency, ways[i].residency) == 0);
        CHECK_EQUAL(info.mps, gpu_under_mps());
        trial_expect(&engine, &batch);
        engine_close(&engine);
        harness_stop(&harness);
    }
}

/* What no tile worker of 128 rows exceeds: half as much again as an SM's tensor cores can. */
#define WORKER_GFLOPS_MAX 12000u

/* Under MPS one that comes right behind a worker that was killed may find no device (46), and is
 * followed by another. */
static int worker_runs_again(void *context)
{
    Attnd__Status *status = harness_status(context);
    const int runs = status->worker_restarts >= 1 && strcmp(status->worker_state, "running") == 0;

    attnd__status__free_unpacked(status, NULL);
    return runs;
}

/* By the first worker of a service, and for all that follow. */
static void rates_of_plans_are_measured_once(void **state)
{
    uint32_t gflops = 0;
    (void)state;

    start(NULL);
    for (uint32_t deaths = 0; deaths < 2; deaths++) {
        Attnd__Status *status = harness_status(&harness);
        CHECK(status->rates && strcmp(status->rates, "measured") == 0);
        CHECK(status->worker_gflops > 1000 && status->worker_gflops < WORKER_GFLOPS_MAX);
        CHECK(status->worker_gbps > 10 && status->memory_gbps > status->worker_gbps);
        CHECK(deaths == 0 || status->worker_gflops == gflops);
        gflops = status->worker_gflops;
        printf("a worker %u GFLOP/s, %u GB/s, %u of the L2; all %u GB/s\n", gflops,
               status->worker_gbps, status->worker_l2_gbps, status->memory_gbps);
        attnd__status__free_unpacked(status, NULL);
        if (deaths)
            break;
        CHECK_EQUAL(kill(harness_worker(&harness), SIGKILL), 0);
        harness_eventually(worker_runs_again, &harness, 10000, "another worker runs");
    }
    harness_stop(&harness);
}

/* What two switches take on any GPU that is not kept by others. */
#define SWITCH_COST_US_MIN 20u
#define SWITCH_COST_US_MAX 5000u

/* By the first worker of a service: those that follow tell the same figure. */
static void without_mps_a_switch_cost_is_measured_once(void **state)
{
    uint32_t switch_cost_us = 0;
    (void)state;

    start(NULL);
    for (uint32_t deaths = 0; deaths < 2; deaths++) {
        Attnd__Status *status = harness_status(&harness);
        CHECK_EQUAL(status->has_switch_cost_us, !status->mps);
        CHECK(status->mps || status->switch_cost_us >= SWITCH_COST_US_MIN);
        CHECK(status->switch_cost_us <= SWITCH_COST_US_MAX);
        CHECK(deaths == 0 || status->switch_cost_us == switch_cost_us);
        switch_cost_us = status->switch_cost_us;
        attnd__status__free_unpacked(status, NULL);
        if (deaths)
            break;
        printf("to the worker and back: %u us\n", switch_cost_us);
        CHECK_EQUAL(kill(harness_worker(&harness), SIGKILL), 0);
        harness_eventually(worker_runs_again, &harness, 10000, "another worker runs");
    }
    harness_stop(&harness);
}

/* ---- kernels that leave and come back lose nothing ---- */

/* Kernels have left, are leaving, or are on their way: commands come in every state of that. */
static void kernels_that_leave_when_idle_lose_no_run(void **state)
{
    static const char *const options[] = {"--residency", "elastic", NULL};
    struct random_batch batch = e2e_batch();
    struct load load = {0};
    struct engine engine;
    struct trial trial;
    uint32_t random = 1;
    (void)state;

    start(options);
    engine_open(&engine, harness.socket, "sparse");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    uint64_t begin_ns = harness_now_ns();
    for (uint32_t i = 0; i < 3000; i++) {
        const struct attnd_op op = {.lane = (uint16_t)(i % 3)};
        random = random * 1664525u + 1013904223u;
        uint64_t until_ns = harness_now_ns() + (random >> 16) % 120000;
        CHECK_OK(trial_submit_as(&trial, i % 2, &op));
        while (harness_now_ns() < until_ns)
            ;
        while (i + 1 - load.answered > 3)
            (void)load_collect(&engine, &load);
    }
    while (load.answered < 3000)
        (void)load_collect(&engine, &load);
    printf("3000 sparse runs: %.1f us each\n", (double)(harness_now_ns() - begin_ns) / 3e6);
    CHECK_EQUAL(load.restarted, 0);
    trial_end(&trial);
    trial_expect(&engine, &batch);
    engine_close(&engine);
    harness_stop(&harness);
}

/* Giving registered host memory back parks the kernels, each time. */
static void parking_loses_no_run(void **state)
{
    struct others *others = harness_shared(sizeof(*others));
    struct engine engine;
    (void)state;

    others->load.harness = &harness;
    start(NULL);
    pid_t busy = harness_fork(load_keep_up, &others->load);
    harness_await(&others->load.began, 1);
    engine_open(&engine, harness.socket, "parks");
    uint64_t begin_ns = harness_now_ns();
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t memory;
        CHECK_OK(attnd_memory_create(engine.session, 65536, &memory, NULL));
        harness_sleep_ms(1); /* the worker has it */
        CHECK_OK(attnd_memory_release(engine.session, memory));
    }
    printf("200 times host memory came and went: %.2f ms each\n",
           (double)(harness_now_ns() - begin_ns) / 2e8);
    await_more_answers(&others->load);
    harness_say(&others->load.stop, 1);
    CHECK_EQUAL(harness_join(busy, CLIENT_MS), 0); /* every run was answered */
    CHECK_EQUAL(others->load.restarted, 0);
    engine_close(&engine);
    harness_stop(&harness);
}

/* Rings that come while kernels leave, park, or are on their way. */
static int ring_and_park(void *context)
{
    const struct harness *service = context;
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    CUstream stream;
    uint32_t random = 7, prepared, memory = 0;

    gpu_open();
    gpu_engine_open(&engine, service->socket, "rings");
    launched_begin(&trial, &engine, &batch);
    CHECK_OK(launched_prepare(&trial, 0, 1, &prepared));
    CHECK_CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    uint64_t begin_ns = harness_now_ns();
    for (uint32_t i = 0; i < 2000; i++) {
        if (i % 10 == 0)
            CHECK_OK(attnd_memory_create(engine.session, 65536, &memory, NULL));
        else if (i % 10 == 5)
            CHECK_OK(attnd_memory_release(engine.session, memory));
        random = random * 1664525u + 1013904223u;
        uint64_t until_ns = harness_now_ns() + (random >> 16) % 300000;
        while (harness_now_ns() < until_ns)
            ;
        CHECK_OK(attnd_cuda_run_on_stream(engine.session, 1, prepared, stream));
        if (i % 3)
            CHECK_CUDA(cuStreamSynchronize(stream));
    }
    CHECK_CUDA(cuStreamSynchronize(stream));
    CHECK_OK(attnd_cuda_lane_error(engine.session, 1));
    printf("2000 rings, and parked 200 times: %.1f us each\n",
           (double)(harness_now_ns() - begin_ns) / 2e6);
    engine_pull(&engine);
    launched_verify(&trial, 0);
    CHECK_OK(attnd_unprepare(engine.session, prepared));
    launched_close(&engine, &trial);
    return 0;
}

static void parking_loses_no_doorbell(void **state)
{
    static const char *const options[] = {"--residency", "elastic", NULL};
    (void)state;

    start(options);
    CHECK_EQUAL(harness_join(harness_fork(ring_and_park, &harness), CLIENT_MS), 0);
    harness_stop(&harness);
}

/* ---- kernels that nobody needs any more ---- */

struct user {
    struct engine engine;
    struct random_batch batch;
};

static int others_have_its_workers(void *context)
{
    struct user *user = context;
    char line[512];
    int found = 0;

    user->batch.seed++;
    trial_expect(&user->engine, &user->batch);
    FILE *log = fopen(harness.log, "r");
    while (log && fgets(line, sizeof(line), log))
        found |= strstr(line, "no run of ") && strstr(line, "_bf16_");
    if (log)
        (void)fclose(log);
    return found;
}

static void a_kernel_without_runs_gives_its_workers_to_the_others(void **state)
{
    static const char *const options[] = {"--residency", "elastic", NULL};
    struct user user = {.batch = e2e_batch()};
    (void)state;

    if (load_reserves()) {
        puts("SMs are reserved: kernels keep their workers until the next change of variants");
        return;
    }
    start(options);
    engine_open(&user.engine, harness.socket, "stays");
    trial_expect(&user.engine, &user.batch);
    user.batch.shape.dtype = ATTND_BF16;
    trial_expect(&user.engine, &user.batch);
    user.batch.shape.dtype = ATTND_FP16;
    harness_eventually(others_have_its_workers, &user, 10000, "the log says whose workers went");
    for (uint32_t i = 0; i < 20; i++) { /* and it comes back, as often as it is asked for */
        user.batch.shape.dtype = i % 2 ? ATTND_FP16 : ATTND_BF16;
        trial_expect(&user.engine, &user.batch);
    }
    engine_close(&user.engine);
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(it_says_how_it_lives),
        E2E_OWN_TEST(rates_of_plans_are_measured_once),
        E2E_OWN_TEST(without_mps_a_switch_cost_is_measured_once),
        E2E_OWN_TEST(an_idle_service_slows_nobody_down),
        E2E_OWN_TEST(what_is_not_reserved_is_left_to_others),
        E2E_OWN_TEST(reserved_sms_answer_while_a_kernel_has_all_others),
        E2E_OWN_TEST(kernels_of_full_size_finish_beside_a_saturated_service),
        E2E_OWN_TEST(kernels_that_leave_when_idle_lose_no_run),
        E2E_OWN_TEST(parking_loses_no_run),
        E2E_OWN_TEST(parking_loses_no_doorbell),
        E2E_OWN_TEST(a_kernel_without_runs_gives_its_workers_to_the_others),
    };

    harness_init();
    (void)setenv("ATTND_TEST_EXECUTE", "service", 1); /* rings are what is tested */
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
