/*
 * test_gpu_engine_runs.c - runs that a stream of the engine's executes itself (attnd --execute
 * engine): random batches, graphs that are replayed while their plans change, and engines that die.
 *
 *   ATTND_SEED     repeats a run         ATTND_FIRST    number of the first batch (0)
 *   ATTND_ROUNDS   batches in all (160)
 */
#include "tests/gpu/support/by_stream.h"
#include "tests/gpu/support/draws.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/launched.h"

#include "schemas/atomics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define CLIENT_MS 110000
#define LANE 5u
#define TIMES 50u /* in a row */

static void in_client(int (*client)(void *context), void *context)
{
    CHECK_EQUAL(harness_join(harness_fork(client, context), CLIENT_MS), 0);
}

/* ---- trials ---- */

static void open_in_stream(struct engine *engine, const char *socket_path, const char *name)
{
    struct attnd_info info = {.size = sizeof(info)};

    by_stream_open(engine, socket_path, name);
    CHECK_OK(attnd_info(engine->session, &info));
    CHECK_EQUAL(info.executor, ATTND_EXECUTE_ENGINE);
}

static void random_batches_in_streams_of_two_engines_are_right(void **state)
{
    CHECK_EQUAL(draws_in_engines(*state, open_in_stream, NULL), 0);
}

static void random_variants_in_streams_of_two_engines_are_right(void **state)
{
    CHECK_EQUAL(draws_in_engines(*state, open_in_stream, random_contract_draw), 0);
}

/* Each of what a draw may be unlucky not to have. */
static int each_option(void *context)
{
    static const struct random_variant variants[] = {
        {.sinks = 1},
        {.sinks = 2},
        {.window = 1},
        {.window = 18},
        {.soft_cap = 20.0f},
        {.position_encoding = ATTND_POSITION_ALIBI},
        {.position_encoding = ATTND_POSITION_ROPE},
    };
    const struct harness *harness = context;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    gpu_open();
    by_stream_open(&engine, harness->socket, "options");
    for (uint32_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        batch.variant = variants[i];
        trial_expect(&engine, &batch);
    }
    batch.shape.kv_dtype = ATTND_FP8_E4M3;
    batch.variant = (struct random_variant){.kv_scales = 2, .q_scale = 0.5f};
    trial_expect(&engine, &batch);
    batch.variant = (struct random_variant){.window = 0};
    batch.shape.kv_dtype = 0;
    batch.shape.page_size = 1;
    trial_expect(&engine, &batch);
    batch.shape.dim = 192;
    batch.shape.dim_vo = 128;
    trial_expect(&engine, &batch);
    batch.shape.page_size = 16;
    trial_expect(&engine, &batch);
    batch.variant.window = 18; /* of the other kernel, by the same tensor maps */
    trial_expect(&engine, &batch);
    batch.variant.window = 0;
    batch.shape = (struct random_shape){.dtype = ATTND_BF16,
                                        .dim = 576,
                                        .dim_vo = 512,
                                        .one_plane = 1,
                                        .heads_kv = 1,
                                        .group = 16,
                                        .page_size = 64,
                                        .layers = 2};
    trial_expect(&engine, &batch);
    engine_close(&engine);
    return 0;
}

static void every_option_page_of_one_token_and_latents_are_right(void **state)
{
    in_client(each_option, *state);
}

/* ---- graphs ---- */

static void begin(const struct harness *harness, const char *name, const struct random_batch *batch,
                  struct engine *engine, struct layers *layers)
{
    gpu_open();
    gpu_engine_open(engine, harness->socket, name);
    layers_begin(layers, engine, batch, LANE);
}

/* Return: of the process. */
static int end(struct layers *layers)
{
    layers_unprepare(layers);
    layers_end(layers);
    engine_close(layers->trial.engine);
    return 0;
}

/* Some tiles with parts that are merged, and pages that a step appends. */
static struct random_batch growing_batch(void)
{
    struct random_batch batch = launched_batch();

    for (int32_t e = 0; e < 3; e++)
        batch.level[0].entry[e].kv_len[0] = 9 + 900 * e;
    for (int32_t e = 0; e < 3; e++)
        batch.level[0].entry[e].kv_len[1] = batch.level[0].entry[e].kv_len[0] + 10;
    return batch;
}

/* The plan is set once more, to its first @requests with the lengths it began with. */
static void set_again(struct layers *layers, const struct random_batch *batch, uint32_t requests)
{
    layers->trial.batch.level[0] = batch->level[0];
    layers->trial.batch.level[0].requests = requests;
    layers->trial.rows = requests;
    launched_set(&layers->trial, LANE);
}

static int replay_while_it_changes(void *context)
{
    const struct random_batch batch = growing_batch();
    struct engine engine;
    struct layers layers;
    int32_t kv_len[3];

    begin(context, "graph", &batch, &engine, &layers);
    layers_capture(&layers);
    layers_replay(&layers);
    layers_right(&layers);
    launched_extend(&layers.trial, LANE); /* new pages */
    for (int32_t step = 1; step <= 10; step++) {
        for (uint32_t e = 0; e < 3; e++)
            kv_len[e] = batch.level[0].entry[e].kv_len[0] + step;
        launched_advance(&layers.trial, LANE, kv_len);
        layers_replay(&layers);
        layers_right(&layers);
    }
    for (uint32_t requests = 1; requests <= 3; requests++) { /* fewer tiles, then more again */
        set_again(&layers, &batch, requests);
        layers_replay(&layers);
        layers_right(&layers);
    }
    layers_queue(&layers); /* and beside the graph */
    layers_right(&layers);
    return end(&layers);
}

static void a_graph_follows_advances_new_pages_and_sets(void **state)
{
    in_client(replay_while_it_changes, *state);
}

static int replay_what_another_kernel_executes(void *context)
{
    struct random_batch batch = launched_batch();
    struct engine engine;
    struct layers layers;

    batch.steps = 1; /* as a mask wants it */
    batch.variant.mask = MASK_ANY;
    begin(context, "mask", &batch, &engine, &layers);
    layers.trial.batch.variant.mask = MASK_NONE;
    launched_set(&layers.trial, LANE);
    layers_capture(&layers);
    layers_replay(&layers);
    layers_right(&layers);
    layers.trial.batch.variant.mask = MASK_ANY;
    launched_set(&layers.trial, LANE);
    layers_replay(&layers);
    layers_failed(&layers, ATTND_E_UNSUPPORTED);
    layers_queue(&layers); /* a launch of its own finds the right one */
    layers_right(&layers);
    layers.trial.batch.variant.mask = MASK_NONE;
    launched_set(&layers.trial, LANE);
    layers_replay(&layers);
    layers_right(&layers);
    return end(&layers);
}

static void a_graph_whose_plan_wants_another_kernel_writes_nothing(void **state)
{
    in_client(replay_what_another_kernel_executes, *state);
}

static int replay_what_is_gone(void *context)
{
    struct random_batch batch = launched_batch();
    struct engine engine;
    struct layers layers;

    batch.tight = 1; /* a plan that goes with the trial */
    begin(context, "gone", &batch, &engine, &layers);
    layers_capture(&layers);
    layers_replay(&layers);
    layers_right(&layers);
    layers_unprepare(&layers);
    layers_replay(&layers);
    layers_failed(&layers, ATTND_E_UNKNOWN);
    layers_prepare_anew(&layers); /* others in their slots */
    layers_replay(&layers);
    layers_failed(&layers, ATTND_E_UNKNOWN);
    layers_queue(&layers);
    layers_right(&layers);
    layers_unprepare(&layers);
    CHECK_OK(attnd_plan_destroy(engine.session, layers.trial.plan));
    layers_replay(&layers);
    layers_failed(&layers, ATTND_E_UNKNOWN);
    layers.trial.plan = engine.plan;
    layers_end(&layers);
    engine_close(&engine);
    return 0;
}

static void a_graph_of_runs_and_of_a_plan_that_are_gone_writes_nothing(void **state)
{
    in_client(replay_what_is_gone, *state);
}

/* Where tables lie changes with each set. The graph's refresh looks for them while the run is made
 * known that is launched behind it, and writes what the graph's last layer has written. */
static int prepare_beside_refreshes(void *context)
{
    struct random_batch batch = growing_batch();
    struct engine engine;
    struct layers layers;
    uint32_t other;

    batch.variant.sinks = 2;
    begin(context, "sinks", &batch, &engine, &layers);
    layers_capture(&layers);
    for (uint32_t time = 0; time < 4 * TIMES; time++) {
        CHECK_OK(launched_prepare(&layers.trial, LAUNCHED_LAYERS - 1, LANE, &other));
        layers.trial.batch.variant.sinks = 1 + time % 2;
        launched_set(&layers.trial, LANE);
        layers_replay(&layers);
        CHECK_OK(attnd_cuda_run_on_stream(engine.session, LANE, other, layers.stream));
        layers_right(&layers);
        CHECK_OK(attnd_unprepare(engine.session, other));
    }
    return end(&layers);
}

static void a_run_prepared_beside_a_refresh_has_the_tables_of_the_plan_that_is_set(void **state)
{
    in_client(prepare_beside_refreshes, *state);
}

static int launch_after_a_set_that_failed(void *context)
{
    struct random_batch batch = growing_batch();
    struct engine engine;
    struct layers layers;

    batch.tight = 1; /* no room behind what is used */
    begin(context, "failed", &batch, &engine, &layers);
    for (uint32_t time = 0; time < 2; time++) {
        layers.trial.level[0].kv_indices[0] = INT32_MAX;
        CHECK_OK(trial_submit_set(&layers.trial, LANE, 0));
        CHECK_EQUAL(trial_await(&layers.trial), 1);
        layers.trial.failure.fault.code = 0;
        layers.trial.level[0].kv_indices[0] = layers.trial.level[0].list[0];
        layers_queue(&layers);
        layers_right(&layers);
    }
    launched_set(&layers.trial, LANE);
    layers_queue(&layers);
    layers_right(&layers);
    return end(&layers);
}

static void a_run_behind_a_set_that_was_refused_is_of_the_batch_before_it(void **state)
{
    in_client(launch_after_a_set_that_failed, *state);
}

/* ---- lanes and classes ---- */

static int two_lanes(void *context)
{
    const struct random_batch batch = growing_batch();
    struct engine engine;
    struct layers layers;
    uint32_t other[ENGINE_LAYERS_MAX];
    CUstream stream;

    begin(context, "lanes", &batch, &engine, &layers);
    CHECK_CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (uint32_t i = 2; i < 4; i++) /* the latter half goes elsewhere */
        CHECK_OK(launched_prepare(&layers.trial, i, LANE + 1, &other[i]));
    for (uint32_t time = 0; time < TIMES; time++)
        for (uint32_t i = 0; i < 2; i++) {
            CHECK_OK(
                attnd_cuda_run_on_stream(engine.session, LANE, layers.prepared[i], layers.stream));
            CHECK_OK(attnd_cuda_run_on_stream(engine.session, LANE + 1, other[2 + i], stream));
        }
    CHECK_CUDA(cuStreamSynchronize(stream));
    CHECK_OK(attnd_cuda_lane_error(engine.session, LANE + 1));
    layers_right(&layers);
    for (uint32_t i = 2; i < 4; i++)
        CHECK_OK(attnd_unprepare(engine.session, other[i]));
    return end(&layers);
}

static void two_lanes_in_two_streams_at_once_are_right(void **state)
{
    in_client(two_lanes, *state);
}

static void in_a_row(struct engine *engine, const struct random_batch *batch)
{
    struct layers layers;

    layers_begin(&layers, engine, batch, LANE);
    for (uint32_t time = 0; time < TIMES; time++)
        layers_queue(&layers);
    layers_right(&layers);
    layers_queue(&layers); /* and after the poison */
    layers_right(&layers);
    layers_unprepare(&layers);
    layers_end(&layers);
}

static int both_classes(void *context)
{
    const struct harness *harness = context;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    batch.shape.layers = 1;
    batch.level[0] = (struct random_level){.requests = 6,
                                           .entry = {{.qo_len = 1, .kv_len = {1200}},
                                                     {.qo_len = 448, .kv_len = {1900}},
                                                     {.qo_len = 1, .kv_len = {900}},
                                                     {.qo_len = 8, .kv_len = {700}},
                                                     {.qo_len = 1, .kv_len = {400}},
                                                     {.qo_len = 1, .kv_len = {40}}}};
    gpu_open();
    gpu_engine_open(&engine, harness->socket, "classes");
    in_a_row(&engine, &batch);
    batch.level[0].requests = 8; /* more items than workers, all of one class */
    batch.shape.heads_kv = 8;
    for (uint32_t i = 0; i < 8; i++)
        batch.level[0].entry[i] = (struct random_entry){.qo_len = 130, .kv_len = {260}};
    in_a_row(&engine, &batch);
    engine_close(&engine);
    return 0;
}

static void classes_and_more_items_than_workers_are_right_many_times_in_a_row(void **state)
{
    static const char *const options[] = {"--fusion", "sm-split", NULL};
    static struct harness harness;

    (void)state;
    harness_start(&harness, options);
    in_client(both_classes, &harness);
    harness_stop(&harness);
}

/* ---- deaths ---- */

struct scene {
    const struct harness *harness;
    uint32_t ready, killed;
};

/* Queues runs until it is killed. */
static int dies(void *context)
{
    struct scene *scene = context;
    const struct random_batch batch = e2e_long_batch();
    struct engine engine;
    struct layers layers;

    begin(scene->harness, "dies", &batch, &engine, &layers);
    for (uint32_t time = 0; time < 100000000; time++) {
        layers_queue(&layers);
        if (time == 200)
            harness_say(&scene->ready, 1);
        if (time % 256 == 255)
            CHECK_CUDA(cuStreamSynchronize(layers.stream));
    }
    return 0;
}

static int goes_on(void *context)
{
    struct scene *scene = context;
    const struct random_batch batch = growing_batch();
    struct engine engine;
    struct layers layers;

    begin(scene->harness, "goes on", &batch, &engine, &layers);
    layers_capture(&layers);
    harness_say(&scene->ready, 1);
    for (uint32_t after = 0; after < 20; after += attnd_peek32(&scene->killed)) {
        layers_replay(&layers);
        layers_right(&layers);
    }
    return end(&layers);
}

static void an_engine_that_is_killed_in_a_run_harms_nobody(void **state)
{
    struct scene *scene = harness_shared(2 * sizeof(*scene));
    struct scene *other = scene + 1;

    if (gpu_under_mps()) {
        puts("under MPS a client that is killed may end the others' contexts");
        return;
    }
    scene->harness = other->harness = *state;
    const pid_t worker = harness_worker(*state);
    const pid_t lasting = harness_fork(goes_on, other), dying = harness_fork(dies, scene);
    harness_await(&other->ready, 1);
    harness_await(&scene->ready, 1);
    harness_kill(dying);
    harness_say(&other->killed, 1);
    CHECK_EQUAL(harness_join(lasting, CLIENT_MS), 0);
    CHECK_EQUAL(harness_worker(*state), worker);
}

/* ---- what the service knows of it ---- */

#define COUNTED 20u

struct counted {
    const struct harness *harness;
    uint32_t replayed, looked_at;
};

static int replays(void *context)
{
    struct counted *counted = context;
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct layers layers;

    gpu_open();
    begin(counted->harness, "counted", &batch, &engine, &layers);
    layers_capture(&layers);
    for (uint32_t i = 0; i < COUNTED; i++) {
        layers_replay(&layers);
        layers_right(&layers);
    }
    harness_say(&counted->replayed, 1);
    harness_await(&counted->looked_at, 1);
    layers_unprepare(&layers);
    layers_end(&layers);
    engine_close(&engine);
    return 0;
}

/* The last replay is told by the next one. */
static void runs_and_their_time_are_told_to_the_service(void **state)
{
    struct counted *counted = harness_shared(sizeof(*counted));

    counted->harness = *state;
    const pid_t engine = harness_fork(replays, counted);
    harness_await(&counted->replayed, 1);
    Attnd__Status *status = harness_status(*state);
    CHECK_EQUAL(status->n_sessions, 1);
    CHECK_EQUAL(status->sessions[0]->launches, (COUNTED - 1) * LAUNCHED_LAYERS);
    CHECK(status->sessions[0]->launch_busy_ns > 0);
    CHECK_EQUAL(status->sessions[0]->launch_errors, 0);
    attnd__status__free_unpacked(status, NULL);
    harness_say(&counted->looked_at, 1);
    CHECK_EQUAL(harness_join(engine, CLIENT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(runs_and_their_time_are_told_to_the_service),
        E2E_TEST(random_batches_in_streams_of_two_engines_are_right),
        E2E_TEST(random_variants_in_streams_of_two_engines_are_right),
        E2E_TEST(every_option_page_of_one_token_and_latents_are_right),
        E2E_TEST(a_graph_follows_advances_new_pages_and_sets),
        E2E_TEST(a_graph_whose_plan_wants_another_kernel_writes_nothing),
        E2E_TEST(a_graph_of_runs_and_of_a_plan_that_are_gone_writes_nothing),
        E2E_TEST(a_run_prepared_beside_a_refresh_has_the_tables_of_the_plan_that_is_set),
        E2E_TEST(a_run_behind_a_set_that_was_refused_is_of_the_batch_before_it),
        E2E_TEST(two_lanes_in_two_streams_at_once_are_right),
        E2E_OWN_TEST(classes_and_more_items_than_workers_are_right_many_times_in_a_row),
        E2E_TEST(an_engine_that_is_killed_in_a_run_harms_nobody),
    };

    harness_init();
    (void)setenv("ATTND_TEST_EXECUTE", "engine", 1);
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    draws_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
