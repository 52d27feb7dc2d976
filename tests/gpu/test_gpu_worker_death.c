/*
 * test_gpu_worker_death.c - kill -9 of a worker whose kernel is resident: every byte of KV is still
 * there, and another engine goes on with it.
 *
 * Under MPS the death ends the contexts of all engines, so the one that wrote cannot be asked: the
 * heir is a process that had no context when it happened. It attaches to the pool before the writer
 * leaves, because a pool lives as long as somebody holds it, and gets its context after, because
 * MPS takes no one in before the last victim is gone.
 */
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLIENT_MS 60000
#define COPY_BYTES (64u << 20)

struct legacy {
    const struct harness *harness;
    struct random_batch batch;
    struct attnd_token token;
    uint32_t written, killed, attached, left;
    uint64_t bytes;
    uint8_t copy[COPY_BYTES]; /* of the pool, before */
};

static int writer(void *context)
{
    struct legacy *legacy = context;
    struct engine engine;
    struct trial trial;

    gpu_open();
    gpu_engine_open(&engine, legacy->harness->socket, "writer");
    trial_begin(&trial, &engine, &legacy->batch, 0);
    trial_must(&trial, trial_submit(&trial) || trial_judge(&trial));
    legacy->bytes = engine.memory_mirror.size_bytes;
    CHECK(legacy->bytes <= COPY_BYTES);
    CHECK_CUDA(cuMemcpyDtoH(legacy->copy, engine.memory_mirror.device_address, legacy->bytes));
    CHECK_OK(attnd_pool_share(engine.session, engine.pool, 1, &legacy->token));
    harness_say(&legacy->written, 1);
    harness_await(&legacy->attached, 1);
    return 0; /* with its context, whatever state that is in */
}

static void compare(const struct legacy *legacy, struct attnd_session *session, uint32_t memory)
{
    CUdeviceptr address;
    uint64_t wrong = 0;
    uint8_t *now = malloc(legacy->bytes);

    CHECK(now != NULL);
    CHECK_OK(attnd_cuda_map(session, memory, &address));
    CHECK_CUDA(cuMemcpyDtoH(now, address, legacy->bytes));
    for (uint64_t i = 0; i < legacy->bytes; i++)
        wrong += now[i] != legacy->copy[i];
    printf("%llu bytes compared, %llu differ\n", (unsigned long long)legacy->bytes,
           (unsigned long long)wrong);
    CHECK_EQUAL(wrong, 0);
    CHECK_OK(attnd_cuda_unmap(address));
    free(now);
}

static void await_gpu(void)
{
    uint64_t begin_ns = harness_now_ns();

    gpu_await();
    gpu_open();
    printf("a context after %.0f ms\n", (double)(harness_now_ns() - begin_ns) / 1e6);
}

static int heir(void *context)
{
    struct legacy *legacy = context;
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .socket_path = legacy->harness->socket};
    struct attnd_pool_info info = {.size = sizeof(info)};
    struct attnd_session *session;
    struct engine engine;
    uint32_t pool;

    harness_await(&legacy->killed, 1);
    CHECK_OK(attnd_open(&args, &session));
    CHECK_OK(attnd_pool_attach(session, &legacy->token, &pool));
    CHECK_OK(attnd_pool_info(session, pool, &info));
    harness_say(&legacy->attached, 1);
    harness_await(&legacy->left, 1);
    await_gpu();
    compare(legacy, session, info.memory);

    uint64_t begin_ns = harness_now_ns();
    gpu_engine_open(&engine, legacy->harness->socket, "heir");
    trial_expect(&engine, &legacy->batch);
    printf("the next run was answered after %.0f ms\n",
           (double)(harness_now_ns() - begin_ns) / 1e6);
    engine_close(&engine);
    attnd_close(session);
    return 0;
}

static void every_byte_of_kv_survives_the_worker(void **state)
{
    struct legacy *legacy = harness_shared(sizeof(*legacy));

    legacy->harness = *state;
    legacy->batch = e2e_batch();
    legacy->batch.append = 1;
    pid_t a = harness_fork(writer, legacy), b = harness_fork(heir, legacy);
    harness_await(&legacy->written, 1);
    CHECK_EQUAL(kill(harness_worker(legacy->harness), SIGKILL), 0);
    harness_say(&legacy->killed, 1);
    (void)harness_join(a, CLIENT_MS);
    harness_say(&legacy->left, 1);
    CHECK_EQUAL(harness_join(b, CLIENT_MS), 0);
}

struct death {
    const struct harness *harness;
    pid_t old;
};

static int another_runs(void *context)
{
    const struct death *death = context;
    Attnd__Status *status = harness_status(death->harness);
    int runs =
        (pid_t)status->worker_pid != death->old && strcmp(status->worker_state, "running") == 0;

    attnd__status__free_unpacked(status, NULL);
    return runs;
}

/* Without MPS only the worker dies: the writer itself goes on. */
static int survivor(void *context)
{
    const struct harness *harness = context;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    gpu_open();
    gpu_engine_open(&engine, harness->socket, "survivor");
    batch.append = 1;
    batch.shape.service_pool = 1;
    for (int deaths = 0; deaths < 2; deaths++) {
        struct trial trial;
        trial_begin(&trial, &engine, &batch, 0);
        CHECK_OK(trial_submit_set(&trial, 0, 0));
        for (uint32_t layer = 0; layer < batch.shape.layers; layer++)
            CHECK_OK(trial_submit_append(&trial, 0, layer, 0, 0));
        CHECK_EQUAL(trial_await(&trial), 0);
        struct death death = {harness, harness_worker(harness)};
        CHECK_EQUAL(kill(death.old, SIGKILL), 0);
        harness_eventually(another_runs, &death, 5000, "another worker runs");
        for (uint32_t layer = 0; layer < batch.shape.layers; layer++)
            CHECK_OK(trial_submit_run(&trial, 0, layer, 0, 0));
        trial_must(&trial, trial_judge(&trial));
        trial_end(&trial);
    }
    engine_close(&engine);
    return 0;
}

static void an_engine_without_mps_goes_on_itself(void **state)
{
    if (gpu_under_mps()) {
        puts("under MPS its context dies too");
        return;
    }
    CHECK_EQUAL(harness_join(harness_fork(survivor, *state), CLIENT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(every_byte_of_kv_survives_the_worker),
        E2E_TEST(an_engine_without_mps_goes_on_itself),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
