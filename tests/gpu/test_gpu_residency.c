/*
 * test_gpu_residency.c - the service and kernels of other processes on one GPU, with and without
 * MPS; parking; and everything that can go wrong with a worker while its kernels are there.
 *
 * The engines of runs that only have to be there hold no CUDA context: host memory does, and what
 * ends contexts does not end them.
 */
#include "tests/gpu/support/neighbour.h"
#include "tests/support/e2e.h"
#include "tests/support/trial.h"

#include "schemas/abi.h"
#include "schemas/atomics.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define CLIENT_MS 60000
#define IN_FLIGHT 16u
#define SMS 132u

static struct harness harness;

static int under_mps(void)
{
    return getenv("CUDA_MPS_PIPE_DIRECTORY") != NULL;
}

static void start(const char *const *options)
{
    harness_start(&harness, options);
}

/* ---- an engine that keeps the service busy ---- */

struct load {
    uint32_t stop, answered, restarted, began;
    int on_device; /* where q, o and the keys are */
};

static uint32_t collect(struct engine *engine, struct load *load)
{
    struct attnd_completion completions[IN_FLIGHT];
    int n = attnd_wait(engine->session, completions, IN_FLIGHT, TRIAL_WAIT_NS);

    CHECK(n > 0);
    for (int i = 0; i < n; i++) {
        int code = completions[i].fault.code;
        CHECK(code == 0 || code == -ATTND_E_WORKER_RESTARTED);
        if (code == 0)
            harness_say(&load->answered, load->answered + 1);
        else
            load->restarted++;
    }
    return (uint32_t)n;
}

static int keep_busy(void *context)
{
    struct load *load = context;
    struct random_batch batch = e2e_long_batch();
    struct engine engine;
    struct trial trial;
    uint32_t in_flight = 0, number = 0; /* all lanes in turn: a lane is one run at a time */

    if (load->on_device) {
        gpu_open();
        gpu_engine_open(&engine, harness.socket, "busy");
    } else {
        engine_open(&engine, harness.socket, "busy");
    }
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    while (in_flight || !attnd_peek32(&load->stop)) {
        for (; in_flight < IN_FLIGHT && !attnd_peek32(&load->stop); in_flight++) {
            const struct attnd_op op = {.lane = (uint16_t)(number++ % IN_FLIGHT)};
            CHECK_OK(trial_submit_as(&trial, 0, &op));
        }
        in_flight -= collect(&engine, load);
        harness_say(&load->began, 1);
    }
    trial_end(&trial);
    engine_close(&engine);
    return 0;
}

/* ---- kernels of others ---- */

struct others {
    struct load load;
    uint32_t ctas, before, started, done;
    double alone_us, beside_us;
};

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

    start(NULL);
    pid_t busy = harness_fork(keep_busy, &others->load);
    harness_await(&others->load.began, 1);
    pid_t other = harness_fork(full_size, others);
    CHECK_EQUAL(harness_join(other, 20000), 0);
    uint32_t answered = attnd_peek32(&others->load.answered);
    harness_sleep_ms(200);
    CHECK(attnd_peek32(&others->load.answered) > answered); /* nor is the service kept off */
    printf("%u runs meanwhile\n", answered);
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
    (void)neighbour_time_us(&neighbour, others->ctas, 0, 400, 200); /* clocks up */
    others->alone_us = neighbour_time_us(&neighbour, others->ctas, 0, 400, 200);
    harness_say(&others->before, 1);
    harness_await(&others->started, 1);
    (void)neighbour_time_us(&neighbour, others->ctas, 0, 400, 200);
    others->beside_us = neighbour_time_us(&neighbour, others->ctas, 0, 400, 200);
    return 0;
}

/* Not what it costs, but that it costs nothing: a kernel that fits on what is left is as fast
 * beside an idle service as without one. In `isolated` that is all of the GPU. */
static void an_idle_service_slows_nobody_down(void **state)
{
    struct others *others = harness_shared(sizeof(*others));
    struct random_batch batch = e2e_batch();
    struct engine engine;
    (void)state;

    others->ctas = under_mps() ? SMS / 2 - 2 : SMS;
    pid_t other = harness_fork(before_and_beside, others);
    harness_await(&others->before, 1);
    start(NULL);
    engine_open(&engine, harness.socket, "idle");
    trial_expect(&engine, &batch); /* it has been there, and done something */
    harness_sleep_ms(100);
    harness_say(&others->started, 1);
    CHECK_EQUAL(harness_join(other, CLIENT_MS), 0);
    printf("%u CTAs: %.1f us alone, %.1f us beside the idle service, ratio %.3f\n", others->ctas,
           others->alone_us, others->beside_us, others->beside_us / others->alone_us);
    CHECK(others->beside_us <= 1.05 * others->alone_us);
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
    } ways[] = {{NULL, under_mps() ? "shared" : "isolated", under_mps() ? SMS / 2 : SMS},
                {three, "shared", 3},
                {all, "exclusive", SMS}};
    (void)state;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct random_batch batch = e2e_batch();
        struct attnd_info info = {.size = sizeof(info)};
        struct engine engine;
        start(ways[i].options);
        Attnd__Status *status = harness_status(&harness);
        CHECK(status->residency && strcmp(status->residency, ways[i].residency) == 0);
        CHECK_EQUAL(status->sms_resident, ways[i].sms);
        CHECK_EQUAL(status->mps, under_mps());
        attnd__status__free_unpacked(status, NULL);
        engine_open(&engine, harness.socket, "asks");
        CHECK_OK(attnd_info(engine.session, &info));
        CHECK(strcmp(info.residency, ways[i].residency) == 0);
        trial_expect(&engine, &batch);
        engine_close(&engine);
        harness_stop(&harness);
    }
}

/* ---- bursts ---- */

static uint32_t answered_in(struct load *load, uint32_t ms)
{
    uint32_t before = attnd_peek32(&load->answered);
    harness_sleep_ms(ms);
    return attnd_peek32(&load->answered) - before;
}

/* On a few SMs and with much queued; results are looked at meanwhile. */
static uint32_t runs_on_few_sms(const char *const *options, int check_neighbour)
{
    struct others *others = harness_shared(sizeof(*others));
    struct random_batch batch = e2e_batch();
    struct engine engine;

    others->load.on_device = 1; /* else it waits for the bus */
    batch.shape.dim = 128;      /* of the same variant as the load: bursts are of one */
    start(options);
    pid_t busy = harness_fork(keep_busy, &others->load);
    harness_await(&others->load.began, 1);
    uint32_t runs = answered_in(&others->load, 500);
    engine_open(&engine, harness.socket, "looks");
    for (uint64_t seed = 1; seed <= 20; seed++) {
        batch.seed = seed;
        trial_expect(&engine, &batch);
    }
    if (check_neighbour)
        CHECK_EQUAL(harness_join(harness_fork(full_size, others), 20000), 0);
    harness_say(&others->load.stop, 1);
    CHECK_EQUAL(harness_join(busy, CLIENT_MS), 0);
    CHECK_EQUAL(others->load.restarted, 0);
    trial_expect(&engine, &batch);
    engine_close(&engine);
    harness_stop(&harness);
    return runs;
}

static void bursts_help_when_much_is_queued_and_make_way(void **state)
{
    static const char *const few[] = {"--residency", "shared", "--sms", "16", NULL};
    static const char *const more[] = {"--residency", "shared", "--sms", "16", "--burst", NULL};
    (void)state;

    uint32_t without = runs_on_few_sms(few, 0), with = runs_on_few_sms(more, 1);
    printf("runs in 500 ms: %u on 16 SMs, %u with bursts\n", without, with);
    CHECK(with > 2 * without);
}

/* ---- kernels that leave and come back lose nothing ---- */

/* Kernels have left, are leaving, or are on their way: commands come in every state of that. */
static void kernels_that_leave_when_idle_lose_no_run(void **state)
{
    static const char *const options[] = {"--residency", "isolated", NULL};
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
            (void)collect(&engine, &load);
    }
    while (load.answered < 3000)
        (void)collect(&engine, &load);
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

    start(NULL);
    pid_t busy = harness_fork(keep_busy, &others->load);
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
    uint32_t answered = attnd_peek32(&others->load.answered);
    harness_sleep_ms(300);
    CHECK(attnd_peek32(&others->load.answered) > answered);
    harness_say(&others->load.stop, 1);
    CHECK_EQUAL(harness_join(busy, CLIENT_MS), 0); /* every run was answered */
    CHECK_EQUAL(others->load.restarted, 0);
    engine_close(&engine);
    harness_stop(&harness);
}

/* Rings that come while kernels leave, park, or are on their way. */
static void parking_loses_no_doorbell(void **state)
{
    static const char *const options[] = {"--residency", "isolated", NULL};
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;
    uint32_t random = 7, prepared, memory = 0;
    (void)state;

    start(options);
    engine_open(&engine, harness.socket, "rings");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    const struct trial_place *place = &trial.place[0][0];
    const uint64_t rows = engine.rows_offset_bytes;
    const struct attnd_prepare_args args = {.size = sizeof(args),
                                            .lane = 1,
                                            .q = {engine.memory, rows + place->q},
                                            .o = {engine.memory, rows + place->o},
                                            .lse = {engine.memory, rows + place->lse}};
    CHECK_OK(attnd_prepare(engine.session, trial.plan, &args, &prepared));
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
        CHECK_OK(attnd_ring(engine.session, 1, prepared));
        CHECK_OK(attnd_ring_wait(engine.session, 1, TRIAL_WAIT_NS));
    }
    printf("2000 rings, and parked 200 times: %.1f us each\n",
           (double)(harness_now_ns() - begin_ns) / 2e6);
    CHECK_OK(attnd_unprepare(engine.session, prepared));
    trial_end(&trial);
    trial_expect(&engine, &batch);
    engine_close(&engine);
    harness_stop(&harness);
}

/* ---- faults ---- */

static int log_says(const char *what)
{
    static char text[1 << 20];
    FILE *log = fopen(harness.log, "r");

    CHECK(log != NULL);
    text[fread(text, 1, sizeof(text) - 1, log)] = 0;
    (void)fclose(log);
    return strstr(text, what) != NULL;
}

/* The first worker fails in this way; whoever runs then is answered, and the next one works. */
static void expect_restart(const char *fault, const char *end, const char *const *says)
{
    const char *const options[] = {"--inject", fault, NULL};
    struct random_batch batch = e2e_batch();
    struct load load = {0};
    struct engine engine;
    struct trial trial;

    start(options);
    engine_open(&engine, harness.socket, "victim");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    uint64_t begin_ns = harness_now_ns();
    for (uint32_t restarts = 0; !restarts;) {
        const struct attnd_op op = {.lane = 1};
        CHECK_OK(trial_submit_as(&trial, 0, &op));
        (void)collect(&engine, &load);
        Attnd__Status *status = harness_status(&harness);
        restarts = status->worker_restarts;
        attnd__status__free_unpacked(status, NULL);
        CHECK(harness_now_ns() - begin_ns < 20000000000u);
    }
    printf("%s: noticed after %.0f ms\n", fault, (double)(harness_now_ns() - begin_ns) / 1e6);
    trial_end(&trial);
    CHECK(log_says(end));
    for (; *says; says++)
        CHECK(log_says(*says));
    begin_ns = harness_now_ns();
    trial_expect(&engine, &batch);
    printf("%s: a run is right again %.0f ms later\n", fault,
           (double)(harness_now_ns() - begin_ns) / 1e6);
    engine_close(&engine);
    harness_stop(&harness);
}

static void a_tile_that_does_not_end_ends_the_worker(void **state)
{
    static const char *const says[] = {"a tile does not end",
                                       "dispatcher: ", "run 0: ", "workers 0..", NULL};
    (void)state;
    expect_restart("stall", "exited with 5 (a tile did not end)", says);
}

static void a_wait_in_vain_ends_the_worker(void **state)
{
    static const char *const says[] = {"a thread is stuck", "waited in vain: barrier", NULL};
    (void)state;
    expect_restart("stuck", "exited with 5 (a tile did not end)", says);
}

static void an_error_of_the_device_ends_the_worker(void **state)
{
    static const char *const says[] = {"cudaErrorIllegalAddress", NULL};
    (void)state;
    expect_restart("fault", "exited with 4 (its device failed)", says);
}

/* ---- a worker that was stopped ---- */

struct witness {
    uint32_t there, look;
};

static int witness(void *context)
{
    struct witness *witness = context;
    struct neighbour neighbour;

    gpu_open();
    neighbour_open(&neighbour);
    harness_say(&witness->there, 1);
    harness_await(&witness->look, 1);
    (void)neighbour_time_us(&neighbour, 8, 0, 10, 1); /* its context is alive */
    return 0;
}

static int restarted(void *context)
{
    Attnd__Status *status = harness_status(&harness);
    int is = (pid_t)status->worker_pid != *(const pid_t *)context &&
             strcmp(status->worker_state, "running") == 0;
    attnd__status__free_unpacked(status, NULL);
    return is;
}

/* Its kernels miss their host's heart before the watchdog kills it: nobody is taken along. */
static void kernels_leave_a_stopped_process_before_it_is_killed(void **state)
{
    struct witness *shared = harness_shared(sizeof(*shared));
    struct random_batch batch = e2e_batch();
    struct engine engine;
    (void)state;

    start(NULL);
    pid_t other = harness_fork(witness, shared), worker = harness_worker(&harness);
    engine_open(&engine, harness.socket, "patient");
    trial_expect(&engine, &batch);
    harness_await(&shared->there, 1);
    CHECK_EQUAL(kill(worker, SIGSTOP), 0);
    double ms = harness_eventually(restarted, &worker, 15000, "a new worker runs");
    printf("a stopped worker was replaced after %.0f ms\n", ms);
    harness_say(&shared->look, 1);
    CHECK_EQUAL(harness_join(other, CLIENT_MS), 0);
    trial_expect(&engine, &batch);
    engine_close(&engine);
    harness_stop(&harness);
}

/* ---- an engine that takes the worker along ---- */

#define COPY_BYTES (64u << 20)

struct legacy {
    struct random_batch batch;
    struct attnd_token token;
    uint32_t written, attached, launched, killed;
    uint64_t bytes, killed_ns;
    uint8_t copy[COPY_BYTES]; /* of the pool, before */
};

static int writer(void *context)
{
    struct legacy *legacy = context;
    struct engine engine;
    struct trial trial;

    gpu_open();
    gpu_engine_open(&engine, harness.socket, "writer");
    trial_begin(&trial, &engine, &legacy->batch, 0);
    trial_must(&trial, trial_submit(&trial) || trial_judge(&trial));
    legacy->bytes = engine.pool_mirror.size_bytes;
    CHECK(legacy->bytes > 0 && legacy->bytes <= COPY_BYTES);
    CHECK_CUDA(cuMemcpyDtoH(legacy->copy, engine.pool_mirror.device_address, legacy->bytes));
    CHECK_OK(attnd_pool_share(engine.session, engine.pool, 1, &legacy->token));
    harness_say(&legacy->written, 1);
    harness_await(&legacy->attached, 1);
    return 0;
}

static int victim(void *context)
{
    struct legacy *legacy = context;
    struct neighbour neighbour;

    gpu_open();
    neighbour_open(&neighbour);
    neighbour_launch(&neighbour, 32, 0, 40000000); /* some 20 s */
    harness_sleep_ms(50);
    harness_say(&legacy->launched, 1);
    harness_sleep_ms(60000);
    return 0;
}

static void compare_pool(const struct legacy *legacy, struct attnd_session *session,
                         uint32_t memory)
{
    uint64_t wrong = 0;
    CUdeviceptr address;
    uint8_t *now = malloc(legacy->bytes);

    CHECK(now != NULL);
    gpu_open();
    CHECK_OK(attnd_cuda_map(session, memory, &address));
    CHECK_CUDA(cuMemcpyDtoH(now, address, legacy->bytes));
    for (uint64_t i = 0; i < legacy->bytes; i++)
        wrong += now[i] != legacy->copy[i];
    printf("%llu bytes of KV compared, %llu differ\n", (unsigned long long)legacy->bytes,
           (unsigned long long)wrong);
    CHECK_EQUAL(wrong, 0);
    free(now);
}

/* Runs, one after the other, until one is answered by another worker than the first. */
static double run_until_restarted(struct engine *engine, const struct legacy *legacy, pid_t first)
{
    struct random_batch batch = e2e_batch();
    struct load load = {0};
    struct trial trial;
    pid_t worker = first;

    trial_begin(&trial, engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    harness_await(&legacy->killed, 1);
    while (worker == first || !load.answered) {
        const struct attnd_op op = {.lane = 0};
        Attnd__Status *status = harness_status(&harness);
        worker = (pid_t)status->worker_pid;
        attnd__status__free_unpacked(status, NULL);
        if (worker == first)
            load.answered = 0; /* by the one that is going to die */
        CHECK_OK(trial_submit_as(&trial, 0, &op));
        (void)collect(engine, &load);
    }
    double ms = (double)(harness_now_ns() - legacy->killed_ns) / 1e6;
    trial_end(&trial);
    trial_expect(engine, &batch);
    return ms;
}

static int heir(void *context)
{
    struct legacy *legacy = context;
    struct attnd_pool_info info = {.size = sizeof(info)};
    struct engine engine;
    uint32_t pool;

    harness_await(&legacy->written, 1);
    engine_open(&engine, harness.socket, "heir");
    CHECK_OK(attnd_pool_attach(engine.session, &legacy->token, &pool));
    CHECK_OK(attnd_pool_info(engine.session, pool, &info));
    harness_say(&legacy->attached, 1);
    double ms = run_until_restarted(&engine, legacy, harness_worker(&harness));
    printf("gpu.worker_restart_ms %.0f: from the engine's death to the next run answered\n", ms);
    compare_pool(legacy, engine.session, info.memory);
    CHECK(ms <= 1000);
    engine_close(&engine);
    return 0;
}

static void a_worker_that_dies_with_an_engine_is_back_within_a_second(void **state)
{
    struct legacy *legacy = harness_shared(sizeof(*legacy));
    (void)state;

    if (!under_mps()) {
        puts("without MPS nobody's death is another's");
        return;
    }
    legacy->batch = e2e_batch();
    legacy->batch.append = 1;
    legacy->batch.shape.service_pool = 1;
    start(NULL);
    pid_t a = harness_fork(writer, legacy), b = harness_fork(heir, legacy);
    harness_await(&legacy->attached, 1);
    CHECK_EQUAL(harness_join(a, CLIENT_MS), 0);
    pid_t c = harness_fork(victim, legacy);
    harness_await(&legacy->launched, 1);
    legacy->killed_ns = harness_now_ns();
    harness_kill(c);
    harness_say(&legacy->killed, 1);
    CHECK_EQUAL(harness_join(b, CLIENT_MS), 0);
    CHECK(log_says("exited with 4 (its device failed)"));
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_how_it_lives),
        cmocka_unit_test(an_idle_service_slows_nobody_down),
        cmocka_unit_test(kernels_of_full_size_finish_beside_a_saturated_service),
        cmocka_unit_test(bursts_help_when_much_is_queued_and_make_way),
        cmocka_unit_test(kernels_that_leave_when_idle_lose_no_run),
        cmocka_unit_test(parking_loses_no_run),
        cmocka_unit_test(parking_loses_no_doorbell),
        cmocka_unit_test(a_tile_that_does_not_end_ends_the_worker),
        cmocka_unit_test(a_wait_in_vain_ends_the_worker),
        cmocka_unit_test(an_error_of_the_device_ends_the_worker),
        cmocka_unit_test(kernels_leave_a_stopped_process_before_it_is_killed),
        cmocka_unit_test(a_worker_that_dies_with_an_engine_is_back_within_a_second),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
