/*
 * test_gpu_stream.c - attention as a part of an engine's stream: a graph of 32 layers, replayed.
 *
 * The engine is a decoder of two requests. In every replay its own kernels write q of each layer,
 * and K and V of one new token of each request into the pages; the service attends; another kernel
 * keeps o. What is written differs from replay to replay and lies in tables on the device, so the
 * graph alone does it all. Between replays the lengths are advanced, with pages where a new one is
 * begun. At the end every o is held against fp64, by several processes: the engine leaves what it
 * used and what it got in memory they share.
 *
 * Without MPS contexts take turns on the GPU, some milliseconds each, and every ring is two turns:
 * a few replays only.
 */
#include "tests/gpu/support/mover.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/oracle/reference.h"
#include "tests/support/trial/trial.h"

#include "schemas/atomics.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 32u
#define REQUESTS 2u
#define HEADS_Q 4u
#define HEADS_KV 2u
#define DIM 64u
#define PAGE_SIZE 16u
#define REPLAYS 1000u
#define REPLAYS_ALONE 4u /* without MPS */
#define TOKENS_MAX 1152u /* of a request */
#define PAGES_EACH (TOKENS_MAX / PAGE_SIZE)
#define PAGES (REQUESTS * PAGES_EACH)
#define ROW (HEADS_KV * DIM) /* elements of a token's K */
#define LANE 3u
#define JUDGES 8u
#define CLIENT_MS 110000

/* Tokens of each request before the first replay: one begins a page early on, one in the middle. */
static const uint32_t begins[REQUESTS] = {14, 117};

/* What the engine leaves behind. */
struct history {
    const struct harness *harness;
    uint32_t replays, stop, others, next_judge;
    int32_t page[REQUESTS][PAGES_EACH];
    uint16_t k[LAYERS][REQUESTS][TOKENS_MAX][ROW], v[LAYERS][REQUESTS][TOKENS_MAX][ROW];
    uint16_t q[REPLAYS][LAYERS][REQUESTS][HEADS_Q][DIM], o[REPLAYS][LAYERS][REQUESTS][HEADS_Q][DIM];
};

static int under_mps(void)
{
    return getenv("CUDA_MPS_PIPE_DIRECTORY") != NULL;
}

static void fill(uint16_t *to, uint64_t count, uint32_t *state)
{
    for (uint64_t i = 0; i < count; i++) { /* 1/8 to 2, of either sign */
        *state = *state * 1664525u + 1013904223u;
        to[i] = (uint16_t)((*state >> 16 & 0x8000u) | (0x3000u + (*state >> 8) % 0x1000u));
    }
}

/* ---- the engine ---- */

struct decoder {
    struct history *history;
    struct attnd_session *session;
    struct mover mover;
    CUstream stream;
    CUdeviceptr rows, pool, q_all, k_all, v_all, o_all, offsets[REQUESTS];
    struct attnd_pool_info info;
    uint32_t memory, pool_handle, plan;
    uint32_t prepared[LAYERS];
};

#define LAYER_ROWS_BYTES (sizeof(uint16_t) * REQUESTS * HEADS_Q * DIM)

static CUdeviceptr upload(const void *from, uint64_t bytes)
{
    CUdeviceptr to;

    CHECK_CUDA(cuMemAlloc(&to, bytes));
    CHECK_CUDA(cuMemcpyHtoD(to, from, bytes));
    CHECK_CUDA(cuCtxSynchronize());
    return to;
}

static uint64_t token_offset_bytes(const struct decoder *decoder, uint32_t request, uint32_t token)
{
    const struct attnd_plane *plane = &decoder->info.desc.k[0];
    int64_t page = decoder->history->page[request][token / PAGE_SIZE];
    return 2 * (uint64_t)(page * plane->stride_page + token % PAGE_SIZE * plane->stride_token);
}

static CUdeviceptr plane_at(const struct decoder *decoder, const struct attnd_plane *planes,
                            uint32_t layer)
{
    return decoder->pool + planes[layer].offset_bytes;
}

/* Tokens that are there before the first replay, and where those of each replay go. */
static void fill_pages(struct decoder *decoder)
{
    struct history *history = decoder->history;
    static uint64_t offsets[REPLAYS];

    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t r = 0; r < REQUESTS; r++)
            for (uint32_t t = 0; t < begins[r]; t++) {
                uint64_t at = token_offset_bytes(decoder, r, t);
                CHECK_CUDA(cuMemcpyHtoD(plane_at(decoder, decoder->info.desc.k, layer) + at,
                                        history->k[layer][r][t], 2 * ROW));
                CHECK_CUDA(cuMemcpyHtoD(plane_at(decoder, decoder->info.desc.v, layer) + at,
                                        history->v[layer][r][t], 2 * ROW));
            }
    for (uint32_t r = 0; r < REQUESTS; r++) {
        for (uint32_t s = 0; s < history->replays; s++)
            offsets[s] = token_offset_bytes(decoder, r, begins[r] + s);
        decoder->offsets[r] = upload(offsets, sizeof(offsets));
    }
    decoder->q_all = upload(history->q, sizeof(history->q));
    decoder->k_all = upload(history->k, sizeof(history->k));
    decoder->v_all = upload(history->v, sizeof(history->v));
    CHECK_CUDA(cuMemAlloc(&decoder->o_all, sizeof(history->o)));
    CHECK_CUDA(cuMemsetD8(decoder->o_all, 0xff, sizeof(history->o)));
    CHECK_CUDA(cuCtxSynchronize());
}

static void make_pool(struct decoder *decoder)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = LAYERS,
                                         .pages = PAGES,
                                         .page_size = PAGE_SIZE,
                                         .heads_kv = HEADS_KV,
                                         .dim_qk = DIM,
                                         .dim_vo = DIM,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .memory_kind = ATTND_MEMORY_DEVICE};

    CHECK_OK(attnd_pool_create(decoder->session, &desc, &decoder->pool_handle));
    decoder->info.size = sizeof(decoder->info);
    CHECK_OK(attnd_pool_info(decoder->session, decoder->pool_handle, &decoder->info));
    CHECK_OK(attnd_cuda_map(decoder->session, decoder->info.memory, &decoder->pool));
    CHECK_OK(attnd_memory_create_device(decoder->session, 2 * LAYERS * LAYER_ROWS_BYTES,
                                        &decoder->memory));
    CHECK_OK(attnd_cuda_map(decoder->session, decoder->memory, &decoder->rows));
}

static void await_one(const struct decoder *decoder)
{
    struct attnd_completion done;

    CHECK_EQUAL(attnd_wait(decoder->session, &done, 1, TRIAL_WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
}

/* The batch as it is in the first replay; pages for the rest come with the advances. */
static void make_plan(struct decoder *decoder)
{
    const struct history *history = decoder->history;
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = decoder->pool_handle,
                                         .requests = REQUESTS,
                                         .rows = REQUESTS,
                                         .pages = PAGES,
                                         .levels = 1,
                                         .heads_q = HEADS_Q};
    int32_t qo_indptr[REQUESTS + 1] = {0}, kv_indptr[REQUESTS + 1] = {0}, last[REQUESTS];
    int32_t pages[PAGES];
    const struct attnd_level level = {REQUESTS, qo_indptr, kv_indptr, pages, last};
    struct attnd_batch batch = {
        .size = sizeof(batch), .levels = 1, .flags = ATTND_CAUSAL, .level = &level};
    const struct attnd_op op = {.lane = LANE};
    uint32_t most = 0;

    for (uint32_t r = 0; r < REQUESTS; r++) {
        uint32_t len = begins[r] + 1, count = (len + PAGE_SIZE - 1) / PAGE_SIZE;
        qo_indptr[r + 1] = (int32_t)r + 1;
        memcpy(pages + kv_indptr[r], history->page[r], count * sizeof(pages[0]));
        kv_indptr[r + 1] = kv_indptr[r] + (int32_t)count;
        last[r] = (int32_t)((len - 1) % PAGE_SIZE + 1);
        most = count > most ? count : most;
    }
    batch.reserve_pages = (PAGES - (uint32_t)kv_indptr[REQUESTS]) / REQUESTS;
    CHECK_OK(attnd_plan_create(decoder->session, &args, &decoder->plan));
    CHECK_OK(attnd_plan_set(decoder->session, decoder->plan, &batch, &op));
    await_one(decoder);
}

static void prepare(struct decoder *decoder)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const struct attnd_prepare_args args = {
            .size = sizeof(args),
            .layer = layer,
            .lane = LANE,
            .q = {decoder->memory, layer * LAYER_ROWS_BYTES},
            .o = {decoder->memory, (LAYERS + layer) * LAYER_ROWS_BYTES}};
        CHECK_OK(attnd_prepare(decoder->session, decoder->plan, &args, &decoder->prepared[layer]));
    }
}

/* The new token's row of one plane: the tables hold all tokens of all requests, layer by layer. */
static void store_token(const struct decoder *decoder, CUdeviceptr table, CUdeviceptr plane,
                        uint32_t layer, uint32_t request)
{
    const uint64_t first =
        ((uint64_t)(layer * REQUESTS + request) * TOKENS_MAX + begins[request]) * 2 * ROW;
    mover_move(&decoder->mover, decoder->stream,
               (struct moving){.base = plane, .offsets = decoder->offsets[request]},
               (struct moving){.base = table + first, .step_bytes = 2 * ROW}, ROW / 2);
}

static void queue_run(const struct decoder *decoder, uint32_t layer)
{
    CHECK_OK(attnd_cuda_run_on_stream(decoder->session, LANE, decoder->prepared[layer],
                                      decoder->stream));
}

static void queue_layer(const struct decoder *decoder, uint32_t layer)
{
    const uint64_t step_bytes = LAYERS * LAYER_ROWS_BYTES, at = layer * LAYER_ROWS_BYTES;

    mover_move(&decoder->mover, decoder->stream, (struct moving){.base = decoder->rows + at},
               (struct moving){.base = decoder->q_all + at, .step_bytes = step_bytes},
               LAYER_ROWS_BYTES / 4);
    for (uint32_t r = 0; r < REQUESTS; r++) {
        store_token(decoder, decoder->k_all, plane_at(decoder, decoder->info.desc.k, layer), layer,
                    r);
        store_token(decoder, decoder->v_all, plane_at(decoder, decoder->info.desc.v, layer), layer,
                    r);
    }
    queue_run(decoder, layer);
    mover_move(&decoder->mover, decoder->stream,
               (struct moving){.base = decoder->o_all + at, .step_bytes = step_bytes},
               (struct moving){.base = decoder->rows + step_bytes + at}, LAYER_ROWS_BYTES / 4);
}

/* Lengths of replay @step, and a page for each request that begins one. */
static void advance(const struct decoder *decoder, uint32_t step)
{
    int32_t kv_len[REQUESTS], indptr[REQUESTS + 1] = {0}, pages[REQUESTS];
    struct attnd_advance args = {.size = sizeof(args),
                                 .entries = REQUESTS,
                                 .kv_len = kv_len,
                                 .page_indptr = indptr,
                                 .page_indices = pages};
    const struct attnd_op op = {.lane = LANE};

    for (uint32_t r = 0; r < REQUESTS; r++) {
        uint32_t token = begins[r] + step;
        kv_len[r] = (int32_t)token + 1;
        indptr[r + 1] = indptr[r];
        if (token % PAGE_SIZE == 0)
            pages[indptr[r + 1]++] = decoder->history->page[r][token / PAGE_SIZE];
    }
    if (indptr[REQUESTS] == 0)
        args.page_indptr = args.page_indices = NULL;
    CHECK_OK(attnd_plan_advance(decoder->session, decoder->plan, &args, &op));
    await_one(decoder);
}

static void open_decoder(struct decoder *decoder, struct history *history)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = history->harness->socket, .name = "decoder"};

    *decoder = (struct decoder){.history = history};
    gpu_open();
    CHECK_OK(attnd_open(&args, &decoder->session));
    mover_open(&decoder->mover);
    CHECK_CUDA(cuStreamCreate(&decoder->stream, CU_STREAM_NON_BLOCKING));
    make_pool(decoder);
    fill_pages(decoder);
    make_plan(decoder);
    prepare(decoder);
}

static void close_decoder(struct decoder *decoder)
{
    struct history *history = decoder->history;

    CHECK_OK(attnd_cuda_lane_error(decoder->session, LANE));
    CHECK_CUDA(cuMemcpyDtoH(history->o, decoder->o_all, sizeof(history->o)));
    attnd_close(decoder->session);
}

/* All layers, each as @queue has it. */
static CUgraphExec capture(const struct decoder *decoder,
                           void (*queue)(const struct decoder *decoder, uint32_t layer))
{
    CUgraph graph;
    CUgraphExec executable;

    CHECK_CUDA(cuStreamBeginCapture(decoder->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        queue(decoder, layer);
    mover_next(&decoder->mover, decoder->stream);
    CHECK_CUDA(cuStreamEndCapture(decoder->stream, &graph));
    CHECK_CUDA(cuGraphInstantiate(&executable, graph, 0));
    return executable;
}

static int replay(void *context)
{
    struct history *history = context;
    struct decoder decoder;

    open_decoder(&decoder, history);
    const CUgraphExec executable = capture(&decoder, queue_layer);
    uint64_t begin_ns = harness_now_ns();
    for (uint32_t step = 0; step < history->replays; step++) {
        if (step > 0)
            advance(&decoder, step);
        CHECK_CUDA(cuGraphLaunch(executable, decoder.stream));
        CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    }
    printf("%u replays of %u layers: %.2f ms each\n", history->replays, LAYERS,
           (double)(harness_now_ns() - begin_ns) / 1e6 / history->replays);
    close_decoder(&decoder);
    return 0;
}

static int without_graph(void *context)
{
    struct history *history = context;
    struct decoder decoder;

    open_decoder(&decoder, history);
    for (uint32_t step = 0; step < history->replays; step++) {
        if (step > 0)
            advance(&decoder, step);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            queue_layer(&decoder, layer);
        mover_next(&decoder.mover, decoder.stream);
        CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    }
    close_decoder(&decoder);
    return 0;
}

/* Layers with nothing between their runs: a graph of such, again and again. */
static int replay_runs_alone(void *context)
{
    struct history *history = context;
    struct decoder decoder;

    open_decoder(&decoder, history);
    const CUgraphExec executable = capture(&decoder, queue_run);
    for (uint32_t step = 0; step < history->replays; step++)
        CHECK_CUDA(cuGraphLaunch(executable, decoder.stream));
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    CHECK_OK(attnd_cuda_lane_error(decoder.session, LANE));
    attnd_close(decoder.session);
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

/* ---- judging ---- */

static void judge_replay(const struct history *history, uint32_t step, uint32_t layer)
{
    static double want[REQUESTS * HEADS_Q * DIM], lse[REQUESTS * HEADS_Q];

    for (uint32_t r = 0; r < REQUESTS; r++) {
        const int32_t len = (int32_t)(begins[r] + step + 1);
        const int32_t qo_indptr[2] = {0, 1}, kv_indptr[2] = {0, 1}, page = 0;
        struct reference_mismatch wrong;
        struct reference_batch batch = {
            .dtype = ATTND_DTYPE_FP16,
            .rows = 1,
            .heads_q = HEADS_Q,
            .heads_kv = HEADS_KV,
            .dim = DIM,
            .page_size = TOKENS_MAX, /* the table holds a request's tokens in their order */
            .causal = 1,
            .levels = 1,
            .level = {{.requests = 1,
                       .qo_indptr = qo_indptr,
                       .kv_indptr = kv_indptr,
                       .kv_indices = &page,
                       .kv_len = &len}},
            .q = {history->q[step][layer][r][0], HEADS_Q * DIM, DIM},
            .k = {history->k[layer][r][0], TOKENS_MAX * ROW, ROW, DIM},
            .v = {history->v[layer][r][0], TOKENS_MAX * ROW, ROW, DIM}};
        const struct reference_rows o = {history->o[step][layer][r][0], HEADS_Q * DIM, DIM};
        reference_attend(&batch, want, lse);
        if (!reference_compare(&batch, want, lse, &o, NULL, 0, 0, &wrong)) {
            printf("replay %u, layer %u, request %u, head %u, dim %u: %g, not %g\n", step, layer, r,
                   wrong.head, wrong.dim, wrong.got, wrong.want);
            CHECK_FAIL("a wrong result");
        }
    }
}

static int judge(void *context)
{
    struct history *history = context;

    for (;;) {
        uint32_t step = attnd_arrive32(&history->next_judge, 1);
        if (step >= history->replays)
            return 0;
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            judge_replay(history, step, layer);
    }
}

static void judge_all(struct history *history)
{
    pid_t judges[JUDGES];

    for (uint32_t i = 0; i < JUDGES; i++)
        judges[i] = harness_fork(judge, history);
    for (uint32_t i = 0; i < JUDGES; i++)
        CHECK_EQUAL(harness_join(judges[i], CLIENT_MS), 0);
    CHECK(history->next_judge >= history->replays);
    printf("%u results right\n", history->replays * LAYERS * REQUESTS);
}

static struct history *new_history(const struct harness *harness, uint32_t replays)
{
    struct history *history = harness_shared(sizeof(*history));
    uint32_t state = 12345;

    history->harness = harness;
    history->replays = replays;
    fill(history->k[0][0][0], sizeof(history->k) / 2, &state);
    fill(history->v[0][0][0], sizeof(history->v) / 2, &state);
    fill(history->q[0][0][0][0], sizeof(history->q) / 2, &state);
    for (uint32_t i = 0; i < PAGES; i++) /* neighbours of a request are not neighbours in memory */
        history->page[i / PAGES_EACH][i % PAGES_EACH] = (int32_t)(i * 59 % PAGES);
    return history;
}

/* ---- the claims ---- */

static void a_graph_replays_with_lengths_that_advance(void **state)
{
    struct history *history = new_history(*state, under_mps() ? REPLAYS : REPLAYS_ALONE);
    pid_t busy = harness_fork(other, history);
    pid_t engine = harness_fork(replay, history);

    CHECK_EQUAL(harness_join(engine, CLIENT_MS), 0);
    harness_say(&history->stop, 1);
    CHECK_EQUAL(harness_join(busy, CLIENT_MS), 0);
    printf("%u batches of another session meanwhile\n", history->others);
    judge_all(history);
}

static void a_stream_needs_no_graph(void **state)
{
    struct history *history = new_history(*state, under_mps() ? 50 : 2);

    CHECK_EQUAL(harness_join(harness_fork(without_graph, history), CLIENT_MS), 0);
    judge_all(history);
}

static uint32_t kernels_launched(const struct harness *harness)
{
    Attnd__Status *status = harness_status(harness);
    const uint32_t launches = status->launches;

    attnd__status__free_unpacked(status, NULL);
    return launches;
}

/* A gang is a launch of two kernels and more. */
static void runs_of_small_layers_share_a_gang(void **state)
{
    struct history *history = new_history(*state, 100);
    const uint32_t before = kernels_launched(*state);

    if (!under_mps() || getenv("ATTND_TEST_RESERVE")) {
        puts("gangs are shared under MPS, where none is reserved");
        return;
    }
    CHECK_EQUAL(harness_join(harness_fork(replay_runs_alone, history), CLIENT_MS), 0);
    const uint32_t launches = kernels_launched(*state) - before, runs = history->replays * LAYERS;
    printf("%u kernels for %u runs\n", launches, runs);
    CHECK(launches < runs / 2);
}

static int ring_nothing(void *context)
{
    struct history *history = context;
    struct decoder decoder;

    open_decoder(&decoder, history);
    const uint32_t nobody = decoder.prepared[LAYERS - 1] + 1000;
    CHECK_OK(attnd_cuda_run_on_stream(decoder.session, LANE, nobody, decoder.stream));
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    CHECK_ERROR(attnd_cuda_lane_error(decoder.session, LANE), ATTND_E_UNKNOWN);
    CHECK_OK(attnd_cuda_lane_error(decoder.session, LANE));
    /* Another lane's is nobody's either. */
    CHECK_OK(
        attnd_cuda_run_on_stream(decoder.session, LANE + 1, decoder.prepared[0], decoder.stream));
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    CHECK_ERROR(attnd_cuda_lane_error(decoder.session, LANE + 1), ATTND_E_UNKNOWN);
    CHECK_ERROR(attnd_cuda_run_on_stream(decoder.session, 64, 0, decoder.stream), ATTND_E_RANGE);
    /* And the lane goes on. */
    queue_layer(&decoder, 0);
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    CHECK_OK(attnd_cuda_lane_error(decoder.session, LANE));
    attnd_close(decoder.session);
    return 0;
}

static void a_ring_of_nothing_is_an_error_of_the_lane(void **state)
{
    struct history *history = new_history(*state, 1);
    CHECK_EQUAL(harness_join(harness_fork(ring_nothing, history), CLIENT_MS), 0);
}

/* The worker dies while the stream waits, or just before it rings. */
static int outlive_the_worker(void *context)
{
    struct history *history = context;
    struct decoder decoder;

    open_decoder(&decoder, history);
    for (uint32_t death = 0; death < 3; death++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            queue_layer(&decoder, layer);
        harness_sleep_ms(death);
        CHECK_EQUAL(kill(harness_worker(history->harness), SIGKILL), 0);
        uint64_t begin_ns = harness_now_ns();
        CHECK_CUDA(cuStreamSynchronize(decoder.stream));
        int code = attnd_cuda_lane_error(decoder.session, LANE);
        printf("released after %.0f ms, code %d\n", (double)(harness_now_ns() - begin_ns) / 1e6,
               code);
        CHECK(code == 0 || code == -ATTND_E_WORKER_RESTARTED);
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        queue_layer(&decoder, layer);
    CHECK_CUDA(cuStreamSynchronize(decoder.stream));
    close_decoder(&decoder);
    return 0;
}

static void a_stream_that_waits_is_released_when_the_worker_dies(void **state)
{
    struct history *history = new_history(*state, 1);

    if (under_mps()) {
        puts("under MPS its context dies too");
        return;
    }
    CHECK_EQUAL(harness_join(harness_fork(outlive_the_worker, history), CLIENT_MS), 0);
    judge_all(history);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_graph_replays_with_lengths_that_advance),
        E2E_TEST(a_stream_needs_no_graph),
        E2E_TEST(runs_of_small_layers_share_a_gang),
        E2E_TEST(a_ring_of_nothing_is_an_error_of_the_lane),
        E2E_TEST(a_stream_that_waits_is_released_when_the_worker_dies),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
