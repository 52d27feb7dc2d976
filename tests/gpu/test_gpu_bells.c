/*
 * test_gpu_bells.c - rings of a stream whose lane is not free, or whose service cannot hear them.
 */
#include "tests/gpu/support/gpu.h"
#include "tests/support/e2e.h"
#include "tests/support/rung.h"

#include "client/internal.h"
#include "schemas/atomics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define CLIENT_MS 30000
#define LANE 3u
#define LATE_MS 20u

struct ringer {
    struct engine engine;
    struct trial trial;
    CUstream stream;
    uint32_t prepared;
    CUdeviceptr words; /* the mailbox, where it lies on the GPU */
};

static void open_ringer(struct ringer *ringer, const struct harness *harness)
{
    const struct random_batch batch = rung_batch();
    uint32_t memory;

    *ringer = (struct ringer){.words = 0};
    gpu_open();
    gpu_engine_open(&ringer->engine, harness->socket, "ringer");
    rung_begin(&ringer->trial, &ringer->engine, &batch);
    CHECK_OK(rung_prepare(&ringer->trial, 0, LANE, &ringer->prepared));
    CHECK_CUDA(cuStreamCreate(&ringer->stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(attnd_cuda_stream_open(ringer->engine.session));
    CHECK_OK(attnd_mailbox(ringer->engine.session, &memory));
    if (ringer->engine.session->mailbox == NULL)
        CHECK_OK(attnd_cuda_map(ringer->engine.session, memory, &ringer->words));
}

static void close_ringer(struct ringer *ringer)
{
    CHECK_OK(attnd_unprepare(ringer->engine.session, ringer->prepared));
    if (ringer->words)
        CHECK_OK(attnd_cuda_unmap(ringer->words));
    rung_close(&ringer->engine, &ringer->trial);
}

static void write_bell(const struct ringer *ringer, uint32_t value)
{
    if (ringer->words)
        CHECK_CUDA(cuMemcpyHtoD(ringer->words + LANE * sizeof(value), &value, sizeof(value)));
    else
        attnd_publish32(&ringer->engine.session->mailbox->bell[LANE], value);
}

static uint32_t read_bell(const struct ringer *ringer)
{
    uint32_t value;

    if (!ringer->words)
        return attnd_observe32(&ringer->engine.session->mailbox->bell[LANE]);
    CHECK_CUDA(cuMemcpyDtoH(&value, ringer->words + LANE * sizeof(value), sizeof(value)));
    return value;
}

static void ring(const struct ringer *ringer)
{
    CHECK_OK(
        attnd_cuda_run_on_stream(ringer->engine.session, LANE, ringer->prepared, ringer->stream));
}

static void is_right(struct ringer *ringer)
{
    CHECK_CUDA(cuStreamSynchronize(ringer->stream));
    CHECK_OK(attnd_cuda_lane_error(ringer->engine.session, LANE));
    CHECK_EQUAL(read_bell(ringer), 1);
    engine_pull(&ringer->engine);
    rung_verify(&ringer->trial, 0);
    engine_push(&ringer->engine); /* poison again */
}

/* As after a ring that was given up: it was taken, and its answer is still to come. */
static int owed(void *context)
{
    struct ringer ringer;

    open_ringer(&ringer, context);
    for (uint32_t round = 0; round < 3; round++) {
        write_bell(&ringer, 0);
        ring(&ringer);
        harness_sleep_ms(LATE_MS);
        CHECK_EQUAL(cuStreamQuery(ringer.stream), CUDA_ERROR_NOT_READY);
        CHECK_EQUAL(read_bell(&ringer), 0); /* it has not rung */
        write_bell(&ringer, 1 + ATTND_E_WORKER_RESTARTED);
        is_right(&ringer);
    }
    close_ringer(&ringer);
    return 0;
}

static void a_ring_waits_for_the_answer_that_is_owed_to_the_one_before(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(owed, *state), CLIENT_MS), 0);
}

/* Whatever a lane rests at is no obstacle, and a ring that is rung twice is a ring. */
static int rest(void *context)
{
    static const uint32_t words[] = {1, 2, 1 + ATTND_E_TIMEOUT, 0x7fffffff};
    struct ringer ringer;

    open_ringer(&ringer, context);
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        write_bell(&ringer, words[i]);
        ring(&ringer);
        is_right(&ringer);
    }
    write_bell(&ringer, ATTND_BELL_RUNG + ringer.prepared);
    ring(&ringer);
    is_right(&ringer);
    close_ringer(&ringer);
    return 0;
}

static void a_lane_at_rest_is_rung_whatever_became_of_its_last_run(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(rest, *state), CLIENT_MS), 0);
}

#define ROOMY_BYTES (8u << 20) /* from the first of the rows; the trials need less */

/* A run of the ringer's first layer with room for more rows. */
static uint32_t prepare_roomy(const struct ringer *ringer, uint32_t lane)
{
    const uint64_t at = ringer->engine.rows_offset_bytes + ROOMY_BYTES;
    const struct attnd_prepare_args args = {.size = sizeof(args),
                                            .lane = lane,
                                            .q = {ringer->engine.memory, at},
                                            .o = {ringer->engine.memory, at + ROOMY_BYTES / 2}};
    uint32_t prepared;

    CHECK_OK(attnd_prepare(ringer->engine.session, ringer->trial.plan, &args, &prepared));
    return prepared;
}

/* One of the plan's runs cannot be executed, and must stay so while lengths advance beside runs of
 * another. */
static int beside_a_bad_one(void *context)
{
    struct ringer ringer;
    struct attnd_memory_info info = {.size = sizeof(info)};
    int32_t kv_len[3];
    uint32_t bad, roomy;

    open_ringer(&ringer, context);
    struct attnd_session *session = ringer.engine.session;
    const struct trial_place *place = &ringer.trial.place[0][0];
    const uint64_t rows = ringer.engine.rows_offset_bytes;
    CHECK_OK(attnd_memory_info(session, ringer.engine.memory, &info));
    const struct attnd_prepare_args args = {
        .size = sizeof(args),
        .lane = LANE + 1,
        .q = {ringer.engine.memory, rows + place->q},
        .o = {ringer.engine.memory,
              (info.size_bytes - (place->o_end - place->o_begin - 128)) & ~UINT64_C(15)}};
    CHECK_OK(attnd_prepare(session, ringer.trial.plan, &args, &bad));
    roomy = prepare_roomy(&ringer, LANE + 2);

    /* One row more than there is room for. */
    struct trial large;
    struct random_batch batch = ringer.trial.batch;
    batch.level[0].entry[0].qo_len = 2;
    ringer.engine.window_begin = ringer.engine.pages / 2;
    ringer.engine.window_end = ringer.engine.pages;
    trial_begin(&large, &ringer.engine, &batch, ringer.trial.rows_end);
    rung_set(&large, 0);
    CHECK_OK(attnd_cuda_run_on_stream(session, LANE + 1, bad, ringer.stream));
    CHECK_CUDA(cuStreamSynchronize(ringer.stream));
    CHECK_ERROR(attnd_cuda_lane_error(session, LANE + 1), ATTND_E_RANGE);
    for (uint32_t e = 0; e < 3; e++)
        kv_len[e] = batch.level[0].entry[e].kv_len[0];
    for (uint32_t step = 0; step < 20; step++) {
        for (uint32_t i = 0; i < 8; i++)
            CHECK_OK(attnd_cuda_run_on_stream(session, LANE + 2, roomy, ringer.stream));
        rung_advance(&large, 0, kv_len);
        CHECK_OK(attnd_cuda_run_on_stream(session, LANE + 1, bad, ringer.stream));
        CHECK_CUDA(cuStreamSynchronize(ringer.stream));
        CHECK_OK(attnd_cuda_lane_error(session, LANE + 2));
        CHECK_ERROR(attnd_cuda_lane_error(session, LANE + 1), ATTND_E_RANGE);
    }
    rung_set(&ringer.trial, 0); /* and a set mends it */
    CHECK_OK(attnd_cuda_run_on_stream(session, LANE + 1, bad, ringer.stream));
    CHECK_CUDA(cuStreamSynchronize(ringer.stream));
    CHECK_OK(attnd_cuda_lane_error(session, LANE + 1));
    CHECK_OK(attnd_unprepare(session, bad));
    CHECK_OK(attnd_unprepare(session, roomy));
    trial_end(&large);
    close_ringer(&ringer);
    return 0;
}

static void a_bad_run_stays_bad_while_its_plan_advances_and_a_set_mends_it(void **state)
{
    CHECK_EQUAL(harness_join(harness_fork(beside_a_bad_one, *state), CLIENT_MS), 0);
}

/* A worker of processors sleeps until attnd_ring() wakes it. */
static int ring_a_cpu(void *context)
{
    const struct harness *harness = context;
    struct attnd_fault fault;
    CUstream stream;

    gpu_open();
    struct attnd_session *session = e2e_open(harness);
    CHECK_CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK_ERROR(attnd_cuda_run_on_stream(session, LANE, 600, stream), ATTND_E_UNSUPPORTED);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_BACKEND);
    CHECK_ERROR(attnd_cuda_stream_open(session), ATTND_E_UNSUPPORTED);
    CHECK_ERROR(attnd_cuda_lane_error(session, LANE), ATTND_E_UNSUPPORTED);
    attnd_close(session);
    return 0;
}

static void a_worker_of_processors_cannot_be_rung_by_a_stream(void **state)
{
    static const char *const options[] = {"--backend", "cpu", NULL};
    struct harness *harness = *state;

    harness_stop(harness);
    harness_start(harness, options);
    CHECK_EQUAL(harness_join(harness_fork(ring_a_cpu, harness), CLIENT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_ring_waits_for_the_answer_that_is_owed_to_the_one_before),
        E2E_TEST(a_lane_at_rest_is_rung_whatever_became_of_its_last_run),
        E2E_TEST(a_bad_run_stays_bad_while_its_plan_advances_and_a_set_mends_it),
        E2E_TEST(a_worker_of_processors_cannot_be_rung_by_a_stream),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
