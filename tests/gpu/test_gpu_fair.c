/*
 * test_gpu_fair.c - a small session beside one whose runs fill all workers for 50 ms and more each,
 * by stream or by ring, however long the workers stay. Such a run has thousands of items. What is
 * claimed is bounded by runs and not by time: the small session is answered several times before
 * the first of the large runs is over. In the order in which they came it would be never.
 */
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/long_run.h"
#include "tests/gpu/support/one_key.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define CLIENT_MS 60000
#define WAIT_NS 20000000000u
#define FLOOD_RUNS 4u
#define ANSWERS_MIN 4u
#define ROUNDS_MAX 100000u

struct small {
    struct attnd_session *session;
    uint32_t memory, pool;
    CUdeviceptr address;
};

static struct attnd_session *session_open(const struct harness *harness, const char *name)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness->socket, .name = name};
    struct attnd_session *session;

    CHECK_OK(attnd_open(&args, &session));
    return session;
}

static void small_open(struct small *small, const struct harness *harness)
{
    small->session = session_open(harness, "small");
    CHECK_OK(attnd_memory_create_device(small->session, 1u << 20, &small->memory));
    CHECK_OK(attnd_cuda_map(small->session, small->memory, &small->address));
    one_key_fill(small->address, small->address + ONE_KEY_PLANES_BYTES, 5);
    const struct attnd_tensor planes = {small->memory, 0};
    small->pool = one_key_pool(small->session, &planes);
}

static void small_run(const struct small *small)
{
    const struct attnd_tensor rows = {small->memory, ONE_KEY_PLANES_BYTES};
    struct attnd_fault fault;

    CHECK_EQUAL(one_key_run(small->session, small->pool, &rows, &fault), 0);
}

static void small_close(const struct small *small)
{
    CHECK(one_key_right(small->address + ONE_KEY_PLANES_BYTES, 5));
    attnd_close(small->session);
}

static int beside_a_launched_run(void *context)
{
    const struct harness *harness = context;
    struct small small;
    struct long_run large;
    uint32_t answers = 0;

    gpu_open();
    small_open(&small, harness);
    long_open(&large, session_open(harness, "large"), 0);
    small_run(&small);
    long_ring(&large);
    long_await_taken(&large);
    for (; answers < ROUNDS_MAX && long_runs(&large); answers++)
        small_run(&small);
    CHECK_EQUAL(long_await(&large), 0);
    printf("%u small runs beside a launched one\n", answers);
    CHECK(answers > ANSWERS_MIN); /* the last may have ended behind it */
    long_close(&large);
    attnd_close(large.session);
    small_close(&small);
    return 0;
}

static int beside_submitted_runs(void *context)
{
    const struct harness *harness = context;
    struct small small;
    struct long_run large;
    struct attnd_completion done[FLOOD_RUNS];
    uint32_t answers = 0;
    int over = 0;

    gpu_open();
    small_open(&small, harness);
    long_open(&large, session_open(harness, "large"), 0);
    small_run(&small);
    for (uint16_t lane = 1; lane <= FLOOD_RUNS; lane++)
        long_submit(&large, lane);
    for (; answers < ROUNDS_MAX && over == 0; answers++) {
        small_run(&small);
        over = attnd_wait(large.session, done, FLOOD_RUNS, 0);
        CHECK(over >= 0);
    }
    while (over < (int)FLOOD_RUNS) {
        const int more =
            attnd_wait(large.session, done + over, FLOOD_RUNS - (uint32_t)over, WAIT_NS);
        CHECK(more > 0);
        over += more;
    }
    for (uint32_t i = 0; i < FLOOD_RUNS; i++)
        CHECK_EQUAL(done[i].fault.code, 0);
    printf("%u small runs beside submitted ones\n", answers);
    CHECK(answers > ANSWERS_MIN);
    long_close(&large);
    attnd_close(large.session);
    small_close(&small);
    return 0;
}

static void is_answered(struct harness *harness, int (*client)(void *context))
{
    CHECK_EQUAL(harness_join(harness_fork(client, harness), CLIENT_MS), 0);
}

static void a_small_run_is_answered_before_a_launched_one_of_another_session_is_over(void **state)
{
    is_answered(*state, beside_a_launched_run);
}

static void small_runs_are_answered_before_submitted_ones_in_front_of_them(void **state)
{
    is_answered(*state, beside_submitted_runs);
}

static int start_exclusive(void **state)
{
    static const char *const options[] = {"--residency", "exclusive", NULL};
    static struct harness harness;

    *state = &harness;
    harness_start(&harness, options);
    return 0;
}

#define ELASTIC(name) E2E_TEST(name)
#define EXCLUSIVE(name) cmocka_unit_test_setup_teardown(name, start_exclusive, e2e_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ELASTIC(a_small_run_is_answered_before_a_launched_one_of_another_session_is_over),
        ELASTIC(small_runs_are_answered_before_submitted_ones_in_front_of_them),
        EXCLUSIVE(a_small_run_is_answered_before_a_launched_one_of_another_session_is_over),
        EXCLUSIVE(small_runs_are_answered_before_submitted_ones_in_front_of_them),
    };

    harness_init();
    (void)setenv("ATTND_TEST_EXECUTE", "service", 1); /* rings are what is tested */
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
