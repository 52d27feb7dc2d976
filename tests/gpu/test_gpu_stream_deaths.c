/*
 * test_gpu_stream_deaths.c - streams in which runs wait, when the worker or the daemon is gone.
 */
#include "tests/gpu/support/decoder.h"
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define RING_S 30.0 /* a ring waits so long */
#define CLIENT_MS 110000

/* The worker dies while the stream waits, or just before it rings. */
static int outlive_the_worker(void *context)
{
    struct history *history = context;
    struct decoder decoder;

    decoder_open(&decoder, history);
    for (uint32_t death = 0; death < 3; death++) {
        for (uint32_t layer = 0; layer < DECODER_LAYERS; layer++)
            decoder_queue_layer(&decoder, layer);
        harness_sleep_ms(death);
        CHECK_EQUAL(kill(harness_worker(history->harness), SIGKILL), 0);
        uint64_t begin_ns = harness_now_ns();
        CHECK_CUDA(cuStreamSynchronize(decoder.stream));
        int code = attnd_cuda_lane_error(decoder.session, DECODER_LANE);
        printf("released after %.0f ms, code %d\n", (double)(harness_now_ns() - begin_ns) / 1e6,
               code);
        CHECK(code == 0 || code == -ATTND_E_WORKER_RESTARTED);
    }
    for (uint32_t layer = 0; layer < DECODER_LAYERS; layer++)
        decoder_queue_layer(&decoder, layer);
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    decoder_close(&decoder);
    return 0;
}

static void a_stream_that_waits_is_released_when_the_worker_dies(void **state)
{
    struct history *history = history_new(*state, 1);

    if (gpu_under_mps()) {
        puts("under MPS its context dies too");
        return;
    }
    CHECK_EQUAL(harness_join(harness_fork(outlive_the_worker, history), CLIENT_MS), 0);
    history_judge(history);
}

/* The first layer waits for as long as a ring waits; those behind it would, too, each on its own.
 * That an earlier run has failed, and nobody asked, makes no difference. */
static int outlive_the_daemon(void *context)
{
    struct history *history = context;
    struct decoder decoder;

    decoder_open(&decoder, history);
    const CUgraphExec executable = decoder_capture(&decoder, decoder_queue_run);
    CHECK_OK(attnd_cuda_run_on_stream(decoder.session, DECODER_LANE,
                                      decoder.prepared[DECODER_LAYERS - 1] + 1000, decoder.stream));
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    harness_say(&history->others, 1);
    harness_await(&history->stop, 1);
    const uint64_t begin_ns = harness_now_ns();
    CHECK_CUDA(cuGraphLaunch(executable, decoder.stream));
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    const double took_s = (double)(harness_now_ns() - begin_ns) / 1e9;
    const int code = attnd_cuda_lane_error(decoder.session, DECODER_LANE);
    printf("%u layers given up after %.1f s, code %d\n", DECODER_LAYERS, took_s, code);
    CHECK_EQUAL(code, -ATTND_E_UNKNOWN);
    CHECK(took_s > 0.5 * RING_S);
    CHECK(took_s < 1.5 * RING_S);
    attnd_close(decoder.session);
    return 0;
}

static void layers_of_a_graph_are_given_up_together_when_the_daemon_is_gone(void **state)
{
    static struct harness harness;

    (void)state;
    if (!gpu_under_mps()) {
        puts("rings are given up under MPS");
        return;
    }
    harness_start(&harness, NULL);
    struct history *history = history_new(&harness, 1);
    const pid_t engine = harness_fork(outlive_the_daemon, history);
    harness_await(&history->others, 1);
    harness_kill_daemon(&harness);
    harness_say(&history->stop, 1);
    CHECK_EQUAL(harness_join(engine, CLIENT_MS), 0);
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_stream_that_waits_is_released_when_the_worker_dies),
        E2E_OWN_TEST(layers_of_a_graph_are_given_up_together_when_the_daemon_is_gone),
    };

    harness_init();
    (void)setenv("ATTND_TEST_EXECUTE", "service", 1); /* rings are what is tested */
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
