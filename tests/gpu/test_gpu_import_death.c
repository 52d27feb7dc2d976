/*
 * test_gpu_import_death.c - memory of an engine that is gone, and of a worker that came back.
 *
 * A mapping outlives the process that made the memory. A new worker has no mapping: it imports
 * again, which works where there is a descriptor, and for a mere handle only while its maker lives.
 * Not under MPS, where the death of one ends the contexts of all.
 */
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/one_key.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1u << 20)
#define CLIENT_MS 60000
#define AT (3 * MIB + 8192)

struct affair {
    const struct harness *harness;
    uint32_t kind;
    struct attnd_token token;
    uint32_t shared, attached, maker_gone, worker_killed, checked;
    int32_t code; /* of the run after the worker was killed with the maker gone */
    uint32_t field;
    int64_t value;
};

/* ---- the maker: its pool is shared, and then it is killed ---- */

static int maker(void *context)
{
    struct affair *affair = context;
    struct attnd_session *session = e2e_open(affair->harness);
    struct attnd_tensor planes;

    gpu_open();
    const struct allocation allocation = allocate(affair->kind, 8 * MIB);
    one_key_fill(allocation.address + AT, allocation.address, 5);
    CHECK_OK(attnd_cuda_export(session, allocation.address + AT, ONE_KEY_PLANES_BYTES, &planes));
    uint32_t pool = one_key_pool(session, &planes);
    CHECK_OK(attnd_pool_share(session, pool, 0, &affair->token));
    harness_say(&affair->shared, 1);
    while (pause() < 0) /* until it is killed */
        continue;
    return 0;
}

/* ---- the one who goes on with it, rows in memory of the service ---- */

struct rows {
    CUdeviceptr address;
    struct attnd_tensor tensor;
};

static struct rows make_rows(struct attnd_session *session)
{
    struct rows rows = {.address = 0};

    CHECK_OK(attnd_memory_create_device(session, 2 * MIB, &rows.tensor.memory));
    CHECK_OK(attnd_cuda_map(session, rows.tensor.memory, &rows.address));
    one_key_fill(rows.address + MIB, rows.address, 0); /* q; the planes are the maker's */
    return rows;
}

static int heir(void *context)
{
    struct affair *affair = context;
    struct attnd_session *session = e2e_open(affair->harness);
    struct attnd_fault fault;
    uint32_t pool;

    gpu_open();
    harness_await(&affair->shared, 1);
    CHECK_OK(attnd_pool_attach(session, &affair->token, &pool));
    harness_say(&affair->attached, 1);
    harness_await(&affair->maker_gone, 1);

    struct rows rows = make_rows(session);
    CHECK_EQUAL(one_key_run(session, pool, &rows.tensor, &fault), 0);
    CHECK(one_key_right(rows.address, 5));
    harness_say(&affair->checked, 1);

    harness_await(&affair->worker_killed, 1);
    do { /* what was in flight when it died says so */
        affair->code = one_key_run(session, pool, &rows.tensor, &fault);
    } while (affair->code == -ATTND_E_WORKER_RESTARTED);
    affair->field = fault.field;
    affair->value = fault.value;
    if (affair->code == 0)
        CHECK(one_key_right(rows.address, 5));

    /* The session, and everybody else, goes on. */
    const struct allocation own = allocate(ATTND_MEMORY_IPC, MIB);
    struct attnd_tensor planes;
    one_key_fill(own.address, own.address + 65536, 9);
    CHECK_OK(attnd_cuda_export(session, own.address, ONE_KEY_PLANES_BYTES, &planes));
    uint32_t mine = one_key_pool(session, &planes);
    const struct attnd_tensor mine_rows = {planes.memory, 65536};
    CHECK_EQUAL(one_key_run(session, mine, &mine_rows, &fault), 0);
    CHECK(one_key_right(own.address + 65536, 9));
    attnd_close(session);
    return 0;
}

static struct affair *let_the_maker_die(const struct harness *harness, uint32_t kind)
{
    struct affair *affair = harness_shared(sizeof(*affair));

    affair->harness = harness;
    affair->kind = kind;
    pid_t making = harness_fork(maker, affair), going_on = harness_fork(heir, affair);
    harness_await(&affair->attached, 1);
    harness_kill(making);
    harness_say(&affair->maker_gone, 1);
    harness_await(&affair->checked, 1);

    pid_t worker = harness_worker(harness);
    CHECK_EQUAL(kill(worker, SIGKILL), 0);
    harness_say(&affair->worker_killed, 1);
    CHECK_EQUAL(harness_join(going_on, CLIENT_MS), 0);
    CHECK(harness_worker(harness) != worker);
    printf("kind %u after maker and worker died: %s, %s, value %lld\n", kind,
           attnd_error_name(affair->code), attnd_field_name(affair->field),
           (long long)affair->value);
    return affair;
}

static void created_memory_outlives_its_maker_and_the_worker(void **state)
{
    const struct affair *affair = let_the_maker_die(*state, ATTND_MEMORY_DEVICE);

    CHECK_EQUAL(affair->code, 0);
}

static void plain_memory_outlives_its_maker_until_the_worker_ends(void **state)
{
    const struct affair *affair = let_the_maker_die(*state, ATTND_MEMORY_IPC);

    CHECK_EQUAL(affair->code, -ATTND_E_DEVICE);
    CHECK_EQUAL(affair->field, ATTND_F_MEMORY);
}

static void pool_memory_outlives_its_maker_and_the_worker(void **state)
{
    const struct affair *affair = let_the_maker_die(*state, ATTND_MEMORY_POOL);

    CHECK_EQUAL(affair->code, 0); /* its descriptor holds the whole pool */
}

/* ---- a worker that comes back to a maker that lives ---- */

static int survivor(void *context)
{
    const struct harness *harness = context;
    static const uint32_t kinds[] = {ATTND_MEMORY_DEVICE, ATTND_MEMORY_POOL, ATTND_MEMORY_IPC};
    struct attnd_session *session = e2e_open(harness);
    struct attnd_tensor planes[3], rows[3];
    struct allocation allocation[3];
    struct attnd_fault fault;
    uint32_t pool[3];

    gpu_open();
    for (int i = 0; i < 3; i++) {
        allocation[i] = allocate(kinds[i], 8 * MIB);
        one_key_fill(allocation[i].address + AT, allocation[i].address, (uint32_t)i);
        CHECK_OK(attnd_cuda_export(session, allocation[i].address + AT, 1, &planes[i]));
        CHECK_OK(attnd_cuda_export(session, allocation[i].address, 1, &rows[i]));
        pool[i] = one_key_pool(session, &planes[i]);
    }
    CHECK_EQUAL(kill(harness_worker(harness), SIGKILL), 0);
    for (int i = 0; i < 3; i++) {
        int code;
        do {
            code = one_key_run(session, pool[i], &rows[i], &fault);
        } while (code == -ATTND_E_WORKER_RESTARTED);
        CHECK_EQUAL(code, 0);
        CHECK(one_key_right(allocation[i].address, (uint32_t)i));
    }
    attnd_close(session);
    return 0;
}

static void a_new_worker_imports_everything_again(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(survivor, *state), CLIENT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TRUST_TEST(created_memory_outlives_its_maker_and_the_worker),
        E2E_TRUST_TEST(plain_memory_outlives_its_maker_until_the_worker_ends),
        E2E_TRUST_TEST(pool_memory_outlives_its_maker_and_the_worker),
        E2E_TRUST_TEST(a_new_worker_imports_everything_again),
    };

    harness_init();
    if (!gpu_there() || gpu_under_mps()) {
        puts("no GPU, or under MPS");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
