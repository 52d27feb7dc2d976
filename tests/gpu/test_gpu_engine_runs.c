/*
 * test_gpu_engine_runs.c - runs that a stream of the engine's executes itself (attnd --execute
 * engine): random batches, graphs that are replayed while their plans change, and engines that die.
 *
 *   ATTND_SEED     repeats a run         ATTND_FIRST    number of the first batch (0)
 *   ATTND_ROUNDS   batches in all (160)
 */
#include "tests/gpu/support/by_stream.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/launched.h"
#include "tests/support/random/seed.h"
#include "tests/support/random/soak.h"

#include "schemas/atomics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define CLIENT_MS 110000
#define LANE 5u
#define TIMES 50u /* in a row */

static uint64_t seed, first, rounds;

/* ---- trials ---- */

static int draw_in_engine(const struct soak_engine *self, random_draw_fn *draw)
{
    struct soak soak = {.draw = draw, .seed = seed, .stride = 1};
    struct attnd_info info = {.size = sizeof(info)};
    struct engine engine;

    gpu_open();
    by_stream_open(&engine, self->harness->socket, "random");
    CHECK_OK(attnd_info(engine.session, &info));
    CHECK_EQUAL(info.executor, ATTND_EXECUTE_ENGINE);
    int wrong = soak_shapes(&soak, &engine, self->number, first, rounds);
    printf("engine %u: %llu batches, %llu runs right\n", self->number,
           (unsigned long long)soak.verified, (unsigned long long)soak.runs);
    engine_close(&engine);
    CHECK_EQUAL(soak.refused, 0);
    return wrong;
}

static int plain_client(void *context)
{
    return draw_in_engine(context, NULL);
}

static void random_batches_in_streams_of_two_engines_are_right(void **state)
{
    CHECK_EQUAL(soak_in_engines(*state, plain_client), 0);
}

static int variant_client(void *context)
{
    return draw_in_engine(context, random_contract_draw);
}

static void random_variants_in_streams_of_two_engines_are_right(void **state)
{
    CHECK_EQUAL(soak_in_engines(*state, variant_client), 0);
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
    CHECK_EQUAL(harness_join(harness_fork(each_option, *state), CLIENT_MS), 0);
}

/* ---- graphs ---- */

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
    const struct harness *harness = context;
    const struct random_batch batch = growing_batch();
    struct engine engine;
    struct layers layers;
    int32_t kv_len[3];

    gpu_open();
    gpu_engine_open(&engine, harness->socket, "graph");
    layers_begin(&layers, &engine, &batch, LANE);
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
    layers_unprepare(&layers);
    layers_end(&layers);
    engine_close(&engine);
    return 0;
}

static void a_graph_follows_advances_new_pages_and_sets(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(replay_while_it_changes, *state), CLIENT_MS), 0);
}

static int replay_what_another_kernel_executes(void *context)
{
    const struct harness *harness = context;
    struct random_batch batch = launched_batch();
    struct engine engine;
    struct layers layers;

    batch.steps = 1; /* as a mask wants it */
    batch.variant.mask = MASK_ANY;
    gpu_open();
    gpu_engine_open(&engine, harness->socket, "mask");
    layers_begin(&layers, &engine, &batch, LANE);
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
    layers_unprepare(&layers);
    layers_end(&layers);
    engine_close(&engine);
    return 0;
}

static void a_graph_whose_plan_wants_another_kernel_writes_nothing(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(replay_what_another_kernel_executes, *state), CLIENT_MS),
                0);
}

static int replay_what_is_gone(void *context)
{
    const struct harness *harness = context;
    struct random_batch batch = launched_batch();
    struct engine engine;
    struct layers layers;

    batch.tight = 1; /* a plan that goes with the trial */
    gpu_open();
    gpu_engine_open(&engine, harness->socket, "gone");
    layers_begin(&layers, &engine, &batch, LANE);
    layers_capture(&layers);
    layers_replay(&layers);
    layers_right(&layers);
    layers_unprepare(&layers);
    layers_replay(&layers);
    layers_failed(&layers, ATTND_E_UNKNOWN);
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
    CHECK_EQUAL(harness_join(harness_fork(replay_what_is_gone, *state), CLIENT_MS), 0);
}

/* ---- lanes and classes ---- */

static int two_lanes(void *context)
{
    const struct harness *harness = context;
    const struct random_batch batch = growing_batch();
    struct engine engine;
    struct layers layers;
    uint32_t other[ENGINE_LAYERS_MAX];
    CUstream stream;

    gpu_open();
    gpu_engine_open(&engine, harness->socket, "lanes");
    layers_begin(&layers, &engine, &batch, LANE);
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
    layers_unprepare(&layers);
    layers_end(&layers);
    engine_close(&engine);
    return 0;
}

static void two_lanes_in_two_streams_at_once_are_right(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(two_lanes, *state), CLIENT_MS), 0);
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
    CHECK_EQUAL(harness_join(harness_fork(both_classes, &harness), CLIENT_MS), 0);
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

    gpu_open();
    gpu_engine_open(&engine, scene->harness->socket, "dies");
    layers_begin(&layers, &engine, &batch, LANE);
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

    gpu_open();
    gpu_engine_open(&engine, scene->harness->socket, "goes on");
    layers_begin(&layers, &engine, &batch, LANE);
    layers_capture(&layers);
    harness_say(&scene->ready, 1);
    for (uint32_t after = 0; after < 20; after += attnd_peek32(&scene->killed)) {
        layers_replay(&layers);
        layers_right(&layers);
    }
    layers_unprepare(&layers);
    layers_end(&layers);
    engine_close(&engine);
    return 0;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(random_batches_in_streams_of_two_engines_are_right),
        E2E_TEST(random_variants_in_streams_of_two_engines_are_right),
        E2E_TEST(every_option_page_of_one_token_and_latents_are_right),
        E2E_TEST(a_graph_follows_advances_new_pages_and_sets),
        E2E_TEST(a_graph_whose_plan_wants_another_kernel_writes_nothing),
        E2E_TEST(a_graph_of_runs_and_of_a_plan_that_are_gone_writes_nothing),
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
    seed = test_seed();
    first = test_number("ATTND_FIRST", 0);
    rounds = test_number("ATTND_ROUNDS", 160);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
