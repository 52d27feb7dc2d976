/*
 * test_e2e_basic.c - one engine: plan, append, run, on every layer, every element against fp64.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void set_append_and_run_on_every_layer_is_right(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "basic");
    batch.shape.layers = 3;
    batch.append = 1;
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

/* The engine gives arrays in memory that the service reads in place; they may be others as soon as
 * the plan is set, so each trial overwrites those of the last. */
static void page_tables_are_read_where_they_lie(void **state)
{
    const struct harness *harness = *state;
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .tables_bytes = 1 << 20,
                                         .socket_path = harness->socket,
                                         .name = "tables"};
    struct engine engine;

    engine_open_with(&engine, &args, 0);
    for (uint32_t requests = 1; requests <= 3; requests++) {
        struct random_batch batch = e2e_batch();
        batch.level[0].requests = requests;
        trial_expect(&engine, &batch);
    }
    engine_close(&engine);
}

/* Three tokens for every request, planned once. */
static void decoding_goes_on_by_advance(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = e2e_decoding_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "basic");
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

static void every_type_and_head_dim_is_right(void **state)
{
    const struct harness *harness = *state;
    struct engine engine;

    engine_open(&engine, harness->socket, "basic");
    for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++)
        for (uint32_t dim = 64; dim <= 256; dim *= 2)
            for (uint32_t causal = 0; causal < 2; causal++) {
                struct random_batch batch = e2e_batch();
                batch.shape.dtype = dtype;
                batch.shape.dim = dim;
                batch.causal = causal;
                batch.lse_ln = causal;
                trial_expect(&engine, &batch);
            }
    engine_close(&engine);
}

static void every_group_and_page_size_is_right(void **state)
{
    static const uint32_t groups[] = {1, 3, 4, 7, 8, 16, 33, 64};
    static const uint32_t page_sizes[] = {1, 2, 3, 5, 16, 64, 128, 1000};
    const struct harness *harness = *state;
    struct engine engine;

    engine_open(&engine, harness->socket, "basic");
    for (int i = 0; i < 8; i++) {
        struct random_batch batch = e2e_batch();
        batch.shape.heads_kv = 1;
        batch.shape.group = groups[i];
        batch.shape.page_size = page_sizes[i];
        batch.shape.layers = 1;
        trial_expect(&engine, &batch);
    }
    engine_close(&engine);
}

static void long_lists_are_split_and_merged_right(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "basic");
    batch.shape.heads_kv = 1;
    batch.shape.layers = 1;
    batch.level[0].requests = 2;
    batch.level[0].entry[0] = (struct random_entry){.qo_len = 1, .kv_len = {20000}};
    batch.level[0].entry[1] = (struct random_entry){.qo_len = 3, .kv_len = {5000}};
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

static void cascade_levels_with_other_partitions_are_right(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "basic");
    batch.levels = 3;
    batch.level[2] = batch.level[0]; /* 55 rows: 1, 37, 0, 16, 1 */
    batch.level[0] =
        (struct random_level){.requests = 1, .entry = {{.qo_len = 55, .kv_len = {500}}}};
    batch.level[1] = (struct random_level){.requests = 3,
                                           .entry = {{.qo_len = 20, .kv_len = {64}},
                                                     {.qo_len = 0, .kv_len = {10}},
                                                     {.qo_len = 35, .kv_len = {77}}}};
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

static void a_batch_of_nothing_completes(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "basic");
    for (uint32_t e = 0; e < batch.level[0].requests; e++)
        batch.level[0].entry[e].qo_len = 0;
    trial_expect(&engine, &batch); /* keys, but no queries */
    batch.level[0].requests = 0;
    trial_expect(&engine, &batch); /* no requests at all */
    batch = e2e_batch();
    for (uint32_t e = 0; e < batch.level[0].requests; e++)
        batch.level[0].entry[e].kv_len[0] = 0;
    trial_expect(&engine, &batch); /* queries that see nothing: o = 0, lse = -inf */
    engine_close(&engine);
}

static void memory_of_the_engine_and_pools_of_the_service_do_as_well(void **state)
{
    const struct harness *harness = *state;
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness->socket, .name = "own"};
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open_with(&engine, &args, 1);
    batch.append = 1;
    trial_expect(&engine, &batch);
    batch.shape.service_pool = 1;
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

static void device_memory_is_made_by_the_cuda_worker_and_refused_by_name_elsewhere(void **state)
{
    const struct harness *harness = *state;
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = harness->socket};
    struct attnd_info info = {.size = sizeof(info)};
    struct attnd_session *session;
    struct attnd_fault fault;
    uint32_t memory = 0;

    CHECK_OK(attnd_open(&args, &session));
    CHECK_OK(attnd_info(session, &info));
    if (strcmp(info.backend, "cuda") == 0) {
        CHECK_OK(attnd_memory_create_device(session, 1, &memory));
        CHECK_OK(attnd_memory_release(session, memory));
    } else {
        CHECK_ERROR(attnd_memory_create_device(session, 1, &memory), ATTND_E_UNSUPPORTED);
        attnd_last_fault(&fault);
        CHECK_EQUAL(fault.field, ATTND_F_MEMORY_KIND);
    }
    attnd_close(session);
}

static void an_ended_session_has_closed_its_own_descriptors_alone(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = e2e_batch();
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct engine engine;

    CHECK(null >= 0);
    CHECK_EQUAL(dup2(null, 0), 0); /* the number that a forgotten field would name */
    close(null);
    const uint32_t before = harness_descriptors(getpid());
    engine_open(&engine, harness->socket, "tidy");
    trial_expect(&engine, &batch);
    engine_close(&engine);
    CHECK_EQUAL(harness_descriptors(getpid()), before);
    CHECK(fcntl(0, F_GETFD) >= 0);
}

static int use_after_fork(void *context)
{
    struct engine *engine = context;
    const struct attnd_op op = {0};
    const struct attnd_run_args args = {.size = sizeof(args)};
    struct attnd_completion completion;
    struct attnd_info info = {.size = sizeof(info)};

    CHECK_ERROR(attnd_run(engine->session, engine->plan, &args, &op), ATTND_E_FORKED);
    CHECK_ERROR(attnd_wait(engine->session, &completion, 1, 0), ATTND_E_FORKED);
    CHECK_ERROR(attnd_plan_destroy(engine->session, engine->plan), ATTND_E_FORKED);
    CHECK_ERROR(attnd_info(engine->session, &info), ATTND_E_FORKED);
    attnd_close(engine->session);
    return 0;
}

static void a_forked_child_is_refused_and_disturbs_nothing(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "parent");
    trial_expect(&engine, &batch);
    CHECK_EQUAL(harness_join(harness_fork(use_after_fork, &engine), 10000), 0);
    trial_expect(&engine, &batch);
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(set_append_and_run_on_every_layer_is_right),
        E2E_TEST(page_tables_are_read_where_they_lie),
        E2E_TEST(decoding_goes_on_by_advance),
        E2E_TEST(every_type_and_head_dim_is_right),
        E2E_TEST(every_group_and_page_size_is_right),
        E2E_TEST(long_lists_are_split_and_merged_right),
        E2E_TEST(cascade_levels_with_other_partitions_are_right),
        E2E_TEST(a_batch_of_nothing_completes),
        E2E_TEST(memory_of_the_engine_and_pools_of_the_service_do_as_well),
        E2E_TEST(device_memory_is_made_by_the_cuda_worker_and_refused_by_name_elsewhere),
        E2E_TEST(an_ended_session_has_closed_its_own_descriptors_alone),
        E2E_TEST(a_forked_child_is_refused_and_disturbs_nothing),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
