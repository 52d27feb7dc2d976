/*
 * test_gpu_stream.c - attention as a part of an engine's stream: a graph of 32 layers, replayed
 * (decoder.h). At the end every o is held against fp64, by several processes: the engine leaves
 * what it used and what it got in memory they share.
 *
 * Without MPS contexts take turns on the GPU, some milliseconds each, and every ring is two turns:
 * a few replays only.
 */
#include "tests/gpu/support/decoder.h"
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "schemas/atomics.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REPLAYS_ALONE 4u /* without MPS */
#define CLIENT_MS 110000

static int replay(void *context)
{
    struct history *history = context;
    struct decoder decoder;

    decoder_open(&decoder, history);
    const CUgraphExec executable = decoder_capture(&decoder, decoder_queue_layer);
    uint64_t begin_ns = harness_now_ns();
    for (uint32_t step = 0; step < history->replays; step++) {
        if (step > 0)
            decoder_advance(&decoder, step);
        CHECK_CUDA(cuGraphLaunch(executable, decoder.stream));
        CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    }
    printf("%u replays of %u layers: %.2f ms each\n", history->replays, DECODER_LAYERS,
           (double)(harness_now_ns() - begin_ns) / 1e6 / history->replays);
    decoder_close(&decoder);
    return 0;
}

static int without_graph(void *context)
{
    struct history *history = context;
    struct decoder decoder;

    decoder_open(&decoder, history);
    for (uint32_t step = 0; step < history->replays; step++) {
        if (step > 0)
            decoder_advance(&decoder, step);
        for (uint32_t layer = 0; layer < DECODER_LAYERS; layer++)
            decoder_queue_layer(&decoder, layer);
        mover_next(&decoder.mover, decoder.stream);
        CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    }
    decoder_close(&decoder);
    return 0;
}

/* ---- another session, at work all the time ---- */

static int other(void *context)
{
    struct history *history = context;
    struct engine engine;

    engine_open(&engine, history->harness->socket, "other");
    do {
        struct random_batch batch = e2e_batch();
        batch.seed = history->others;
        trial_expect(&engine, &batch);
        harness_say(&history->others, history->others + 1);
    } while (!attnd_peek32(&history->stop));
    engine_close(&engine);
    return 0;
}

/* ---- the claims ---- */

static void a_graph_replays_with_lengths_that_advance(void **state)
{
    struct history *history =
        history_new(*state, gpu_under_mps() ? DECODER_REPLAYS : REPLAYS_ALONE);
    pid_t busy = harness_fork(other, history);
    pid_t engine = harness_fork(replay, history);

    CHECK_EQUAL(harness_join(engine, CLIENT_MS), 0);
    harness_say(&history->stop, 1);
    CHECK_EQUAL(harness_join(busy, CLIENT_MS), 0);
    printf("%u batches of another session meanwhile\n", history->others);
    history_judge(history);
}

static void a_stream_needs_no_graph(void **state)
{
    struct history *history = history_new(*state, gpu_under_mps() ? 50 : 2);

    CHECK_EQUAL(harness_join(harness_fork(without_graph, history), CLIENT_MS), 0);
    history_judge(history);
}

static int ring_nothing(void *context)
{
    struct history *history = context;
    struct decoder decoder;

    decoder_open(&decoder, history);
    const uint32_t nobody = decoder.prepared[DECODER_LAYERS - 1] + 1000;
    CHECK_OK(attnd_cuda_run_on_stream(decoder.session, DECODER_LANE, nobody, decoder.stream));
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    CHECK_ERROR(attnd_cuda_lane_error(decoder.session, DECODER_LANE), ATTND_E_UNKNOWN);
    CHECK_OK(attnd_cuda_lane_error(decoder.session, DECODER_LANE));
    /* Another lane's is nobody's either. */
    CHECK_OK(attnd_cuda_run_on_stream(decoder.session, DECODER_LANE + 1, decoder.prepared[0],
                                      decoder.stream));
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    CHECK_ERROR(attnd_cuda_lane_error(decoder.session, DECODER_LANE + 1), ATTND_E_UNKNOWN);
    CHECK_ERROR(attnd_cuda_run_on_stream(decoder.session, 64, 0, decoder.stream), ATTND_E_RANGE);
    /* And the lane goes on. */
    decoder_queue_layer(&decoder, 0);
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    CHECK_OK(attnd_cuda_lane_error(decoder.session, DECODER_LANE));
    attnd_close(decoder.session);
    return 0;
}

static void a_ring_of_nothing_is_an_error_of_the_lane(void **state)
{
    struct history *history = history_new(*state, 1);

    history->execute = ATTND_EXECUTE_SERVICE;
    CHECK_EQUAL(harness_join(harness_fork(ring_nothing, history), CLIENT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_graph_replays_with_lengths_that_advance),
        E2E_TEST(a_stream_needs_no_graph),
        E2E_TEST(a_ring_of_nothing_is_an_error_of_the_lane),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
