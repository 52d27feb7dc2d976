/*
 * test_gpu_faults.c - everything that can go wrong with a worker while its kernels are there.
 *
 * The engines of runs that only have to be there hold no CUDA context: what ends contexts does not
 * end them.
 */
#include "tests/gpu/support/load.h"
#include "tests/gpu/support/neighbour.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "client/cuda/attnd_cuda.h"
#include "client/internal.h"
#include "schemas/abi.h"
#include "schemas/atomics.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CLIENT_MS 60000

static struct harness harness;

static void start(const char *const *options)
{
    harness_start(&harness, options);
}

/* ---- faults made on purpose ---- */

static int log_says(const char *what)
{
    static char text[1 << 20];
    FILE *log = fopen(harness.log, "r");

    CHECK(log != NULL);
    text[fread(text, 1, sizeof(text) - 1, log)] = 0;
    (void)fclose(log);
    return strstr(text, what) != NULL;
}

struct calls {
    uint32_t stop, made;
};

/* An engine that sets the word as one that rings does, and never rings. */
static int call_extras(void *context)
{
    struct calls *calls = context;
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = harness.socket};
    struct attnd_session *session;
    struct attnd_wake *wake;
    uint32_t memory;

    CHECK_OK(attnd_open(&args, &session));
    CHECK_OK(attnd_wake_memory(session, &memory, &wake));
    while (!attnd_peek32(&calls->stop)) {
        attnd_publish32(&wake->wake, 1);
        harness_say(&calls->made, calls->made + 1);
        usleep(500);
    }
    return 0;
}

/* Often enough for the kernels to have come back with the word that engines see. */
static int are_called(void *context)
{
    return attnd_peek32(&((struct calls *)context)->made) > 200;
}

/* The first worker fails in this way; runs of that time are answered, and the next one works.
 * @reserve: SMs that stay; NULL: as it is. */
static void expect_restart(const char *fault, const char *reserve, const char *end,
                           const char *const *says)
{
    const char *const options[] = {"--inject", fault, reserve ? "--reserve" : NULL, reserve, NULL};
    struct random_batch batch = e2e_batch();
    struct load load = {0};
    struct engine engine;
    struct trial trial;
    struct calls *calls = harness_shared(sizeof(*calls));
    pid_t caller = 0;

    start(options);
    if (reserve) {
        caller = harness_fork(call_extras, calls);
        harness_eventually(are_called, calls, CLIENT_MS, "extra workers are called");
    }
    engine_open(&engine, harness.socket, "victim");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    uint64_t begin_ns = harness_now_ns();
    for (uint32_t restarts = 0; !restarts;) {
        const struct attnd_op op = {.lane = 1};
        CHECK_OK(trial_submit_as(&trial, 0, &op));
        (void)load_collect(&engine, &load);
        Attnd__Status *status = harness_status(&harness);
        restarts = status->worker_restarts;
        attnd__status__free_unpacked(status, NULL);
        CHECK(harness_now_ns() - begin_ns < 20000000000u);
    }
    printf("%s: noticed after %.0f ms\n", fault, (double)(harness_now_ns() - begin_ns) / 1e6);
    harness_say(&calls->stop, 1);
    if (caller) {
        CHECK_EQUAL(harness_join(caller, CLIENT_MS), 0);
        printf("%s: extra workers were called %u times\n", fault, calls->made);
        CHECK(calls->made > 1000);
    }
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
    expect_restart("stall", NULL, "exited with 5 (a tile did not end)", says);
}

/* They walk past the run that nobody ends, and take tickets of it: that is no progress. */
static void so_it_does_beside_extra_workers_that_come_and_go(void **state)
{
    static const char *const says[] = {"a tile does not end", NULL};
    (void)state;
    if (!gpu_under_mps()) {
        puts("without MPS no SM is reserved, and there are no extra workers");
        return;
    }
    expect_restart("stall", "8", "exited with 5 (a tile did not end)", says);
}

static void a_wait_in_vain_ends_the_worker(void **state)
{
    static const char *const says[] = {"a thread is stuck", "waited in vain: barrier", NULL};
    (void)state;
    expect_restart("stuck", NULL, "exited with 5 (a tile did not end)", says);
}

static void an_error_of_the_device_ends_the_worker(void **state)
{
    static const char *const says[] = {"cudaErrorIllegalAddress", NULL};
    (void)state;
    expect_restart("fault", NULL, "exited with 4 (its device failed)", says);
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

/* Its kernels miss their host's heartbeat before the watchdog kills it: nobody is taken along. */
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
    CHECK_CUDA(cuEventRecord(neighbour.begin, neighbour.stream));
    neighbour_launch(&neighbour, 32, 0, 40000000);   /* some 20 s */
    CHECK_CUDA(cuEventSynchronize(neighbour.begin)); /* nothing stands before it any more */
    harness_say(&legacy->launched, 1);
    for (;;)
        (void)pause();
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
        (void)load_collect(engine, &load);
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

    if (!gpu_under_mps()) {
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
        E2E_OWN_TEST(a_tile_that_does_not_end_ends_the_worker),
        E2E_OWN_TEST(so_it_does_beside_extra_workers_that_come_and_go),
        E2E_OWN_TEST(a_wait_in_vain_ends_the_worker),
        E2E_OWN_TEST(an_error_of_the_device_ends_the_worker),
        E2E_OWN_TEST(kernels_leave_a_stopped_process_before_it_is_killed),
        E2E_OWN_TEST(a_worker_that_dies_with_an_engine_is_back_within_a_second),
    };

    harness_init();
    (void)setenv("ATTND_TEST_EXECUTE", "service", 1); /* rings are what is tested */
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
