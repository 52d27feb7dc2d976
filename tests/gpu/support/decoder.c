/* decoder.c - tables of tokens on the device, which the engine's own kernels move. */
#include "tests/gpu/support/decoder.h"

#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/check.h"
#include "tests/support/oracle/reference.h"
#include "tests/support/trial/trial.h"

#include "schemas/atomics.h"

#include <stdio.h>
#include <string.h>

#define JUDGES 8u
#define JUDGE_MS 110000

/* Tokens of each request before the first replay: one begins a page early on, one in the middle. */
static const uint32_t begins[DECODER_REQUESTS] = {14, 117};

static void fill(uint16_t *to, uint64_t count, uint32_t *state)
{
    for (uint64_t i = 0; i < count; i++) { /* 1/8 to 2, of either sign */
        *state = *state * 1664525u + 1013904223u;
        to[i] = (uint16_t)((*state >> 16 & 0x8000u) | (0x3000u + (*state >> 8) % 0x1000u));
    }
}

#define LAYER_ROWS_BYTES (sizeof(uint16_t) * DECODER_REQUESTS * DECODER_HEADS_Q * DECODER_DIM)

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
    int64_t page = decoder->history->page[request][token / DECODER_PAGE_SIZE];
    return 2 *
           (uint64_t)(page * plane->stride_page + token % DECODER_PAGE_SIZE * plane->stride_token);
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
    static uint64_t offsets[DECODER_REPLAYS];

    for (uint32_t layer = 0; layer < DECODER_LAYERS; layer++)
        for (uint32_t r = 0; r < DECODER_REQUESTS; r++)
            for (uint32_t t = 0; t < begins[r]; t++) {
                uint64_t at = token_offset_bytes(decoder, r, t);
                CHECK_CUDA(cuMemcpyHtoD(plane_at(decoder, decoder->info.desc.k, layer) + at,
                                        history->k[layer][r][t], 2 * DECODER_ROW));
                CHECK_CUDA(cuMemcpyHtoD(plane_at(decoder, decoder->info.desc.v, layer) + at,
                                        history->v[layer][r][t], 2 * DECODER_ROW));
            }
    for (uint32_t r = 0; r < DECODER_REQUESTS; r++) {
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
                                         .layers = DECODER_LAYERS,
                                         .pages = DECODER_PAGES,
                                         .page_size = DECODER_PAGE_SIZE,
                                         .heads_kv = DECODER_HEADS_KV,
                                         .dim_qk = DECODER_DIM,
                                         .dim_vo = DECODER_DIM,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .memory_kind = ATTND_MEMORY_DEVICE};

    CHECK_OK(attnd_pool_create(decoder->session, &desc, &decoder->pool_handle));
    decoder->info.size = sizeof(decoder->info);
    CHECK_OK(attnd_pool_info(decoder->session, decoder->pool_handle, &decoder->info));
    CHECK_OK(attnd_cuda_map(decoder->session, decoder->info.memory, &decoder->pool));
    CHECK_OK(attnd_memory_create_device(decoder->session, 2 * DECODER_LAYERS * LAYER_ROWS_BYTES,
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
                                         .requests = DECODER_REQUESTS,
                                         .rows = DECODER_REQUESTS,
                                         .pages = DECODER_PAGES,
                                         .levels = 1,
                                         .heads_q = DECODER_HEADS_Q};
    int32_t qo_indptr[DECODER_REQUESTS + 1] = {0}, kv_indptr[DECODER_REQUESTS + 1] = {0},
                                         last[DECODER_REQUESTS];
    int32_t pages[DECODER_PAGES];
    const struct attnd_level level = {DECODER_REQUESTS, qo_indptr, kv_indptr, pages, last};
    struct attnd_batch batch = {
        .size = sizeof(batch), .levels = 1, .flags = ATTND_CAUSAL, .level = &level};
    const struct attnd_op op = {.lane = DECODER_LANE};
    uint32_t most = 0;

    for (uint32_t r = 0; r < DECODER_REQUESTS; r++) {
        uint32_t len = begins[r] + 1, count = (len + DECODER_PAGE_SIZE - 1) / DECODER_PAGE_SIZE;
        qo_indptr[r + 1] = (int32_t)r + 1;
        memcpy(pages + kv_indptr[r], history->page[r], count * sizeof(pages[0]));
        kv_indptr[r + 1] = kv_indptr[r] + (int32_t)count;
        last[r] = (int32_t)((len - 1) % DECODER_PAGE_SIZE + 1);
        most = count > most ? count : most;
    }
    batch.reserve_pages =
        (DECODER_PAGES - (uint32_t)kv_indptr[DECODER_REQUESTS]) / DECODER_REQUESTS;
    CHECK_OK(attnd_plan_create(decoder->session, &args, &decoder->plan));
    CHECK_OK(attnd_plan_set(decoder->session, decoder->plan, &batch, &op));
    await_one(decoder);
}

static void prepare(struct decoder *decoder)
{
    for (uint32_t layer = 0; layer < DECODER_LAYERS; layer++) {
        const struct attnd_prepare_args args = {
            .size = sizeof(args),
            .layer = layer,
            .lane = DECODER_LANE,
            .q = {decoder->memory, layer * LAYER_ROWS_BYTES},
            .o = {decoder->memory, (DECODER_LAYERS + layer) * LAYER_ROWS_BYTES}};
        CHECK_OK(attnd_prepare(decoder->session, decoder->plan, &args, &decoder->prepared[layer]));
    }
}

/* The new token's row of one plane: the tables hold all tokens of all requests, layer by layer. */
static void store_token(const struct decoder *decoder, CUdeviceptr table, CUdeviceptr plane,
                        uint32_t layer, uint32_t request)
{
    const uint64_t first =
        ((uint64_t)(layer * DECODER_REQUESTS + request) * DECODER_TOKENS_MAX + begins[request]) *
        2 * DECODER_ROW;
    mover_move(&decoder->mover, decoder->stream,
               (struct moving){.base = plane, .offsets = decoder->offsets[request]},
               (struct moving){.base = table + first, .step_bytes = 2 * DECODER_ROW},
               DECODER_ROW / 2);
}

void decoder_queue_run(const struct decoder *decoder, uint32_t layer)
{
    CHECK_OK(attnd_cuda_run_on_stream(decoder->session, DECODER_LANE, decoder->prepared[layer],
                                      decoder->stream));
}

void decoder_queue_layer(const struct decoder *decoder, uint32_t layer)
{
    const uint64_t step_bytes = DECODER_LAYERS * LAYER_ROWS_BYTES, at = layer * LAYER_ROWS_BYTES;

    mover_move(&decoder->mover, decoder->stream, (struct moving){.base = decoder->rows + at},
               (struct moving){.base = decoder->q_all + at, .step_bytes = step_bytes},
               LAYER_ROWS_BYTES / 4);
    for (uint32_t r = 0; r < DECODER_REQUESTS; r++) {
        store_token(decoder, decoder->k_all, plane_at(decoder, decoder->info.desc.k, layer), layer,
                    r);
        store_token(decoder, decoder->v_all, plane_at(decoder, decoder->info.desc.v, layer), layer,
                    r);
    }
    decoder_queue_run(decoder, layer);
    mover_move(&decoder->mover, decoder->stream,
               (struct moving){.base = decoder->o_all + at, .step_bytes = step_bytes},
               (struct moving){.base = decoder->rows + step_bytes + at}, LAYER_ROWS_BYTES / 4);
}

/* Lengths of replay @step, and a page for each request that begins one. */
void decoder_advance(const struct decoder *decoder, uint32_t step)
{
    int32_t kv_len[DECODER_REQUESTS], indptr[DECODER_REQUESTS + 1] = {0}, pages[DECODER_REQUESTS];
    struct attnd_advance args = {.size = sizeof(args),
                                 .entries = DECODER_REQUESTS,
                                 .kv_len = kv_len,
                                 .page_indptr = indptr,
                                 .page_indices = pages};
    const struct attnd_op op = {.lane = DECODER_LANE};

    for (uint32_t r = 0; r < DECODER_REQUESTS; r++) {
        uint32_t token = begins[r] + step;
        kv_len[r] = (int32_t)token + 1;
        indptr[r + 1] = indptr[r];
        if (token % DECODER_PAGE_SIZE == 0)
            pages[indptr[r + 1]++] = decoder->history->page[r][token / DECODER_PAGE_SIZE];
    }
    if (indptr[DECODER_REQUESTS] == 0)
        args.page_indptr = args.page_indices = NULL;
    CHECK_OK(attnd_plan_advance(decoder->session, decoder->plan, &args, &op));
    await_one(decoder);
}

void decoder_open(struct decoder *decoder, struct history *history)
{
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .socket_path = history->harness->socket,
                                         .name = "decoder",
                                         .execute = history->execute};

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

void decoder_close(struct decoder *decoder)
{
    struct history *history = decoder->history;

    CHECK_OK(attnd_cuda_lane_error(decoder->session, DECODER_LANE));
    CHECK_CUDA(cuMemcpyDtoH(history->o, decoder->o_all, sizeof(history->o)));
    attnd_close(decoder->session);
}

/* All layers, each as @queue has it. */
CUgraphExec decoder_capture(const struct decoder *decoder,
                            void (*queue)(const struct decoder *decoder, uint32_t layer))
{
    CUgraph graph;
    CUgraphExec executable;

    CHECK_CUDA(cuStreamBeginCapture(decoder->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (uint32_t layer = 0; layer < DECODER_LAYERS; layer++)
        queue(decoder, layer);
    mover_next(&decoder->mover, decoder->stream);
    CHECK_CUDA(cuStreamEndCapture(decoder->stream, &graph));
    CHECK_CUDA(cuGraphInstantiate(&executable, graph, 0));
    return executable;
}

/* ---- judging ---- */

static void judge_replay(const struct history *history, uint32_t step, uint32_t layer)
{
    static double want[DECODER_REQUESTS * DECODER_HEADS_Q * DECODER_DIM],
        lse[DECODER_REQUESTS * DECODER_HEADS_Q];

    for (uint32_t r = 0; r < DECODER_REQUESTS; r++) {
        const int32_t len = (int32_t)(begins[r] + step + 1);
        const int32_t qo_indptr[2] = {0, 1}, kv_indptr[2] = {0, 1}, page = 0;
        struct reference_mismatch wrong;
        struct reference_batch batch = {
            .dtype = ATTND_DTYPE_FP16,
            .rows = 1,
            .heads_q = DECODER_HEADS_Q,
            .heads_kv = DECODER_HEADS_KV,
            .dim = DECODER_DIM,
            .page_size = DECODER_TOKENS_MAX, /* the table holds a request's tokens in their order */
            .causal = 1,
            .levels = 1,
            .level = {{.requests = 1,
                       .qo_indptr = qo_indptr,
                       .kv_indptr = kv_indptr,
                       .kv_indices = &page,
                       .kv_len = &len}},
            .q = {history->q[step][layer][r][0], DECODER_HEADS_Q * DECODER_DIM, DECODER_DIM},
            .k = {history->k[layer][r][0], DECODER_TOKENS_MAX * DECODER_ROW, DECODER_ROW,
                  DECODER_DIM},
            .v = {history->v[layer][r][0], DECODER_TOKENS_MAX * DECODER_ROW, DECODER_ROW,
                  DECODER_DIM}};
        const struct reference_rows o = {history->o[step][layer][r][0],
                                         DECODER_HEADS_Q * DECODER_DIM, DECODER_DIM};
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
        for (uint32_t layer = 0; layer < DECODER_LAYERS; layer++)
            judge_replay(history, step, layer);
    }
}

void history_judge(struct history *history)
{
    pid_t judges[JUDGES];

    for (uint32_t i = 0; i < JUDGES; i++)
        judges[i] = harness_fork(judge, history);
    for (uint32_t i = 0; i < JUDGES; i++)
        CHECK_EQUAL(harness_join(judges[i], JUDGE_MS), 0);
    CHECK(history->next_judge >= history->replays);
    printf("%u results right\n", history->replays * DECODER_LAYERS * DECODER_REQUESTS);
}

struct history *history_new(const struct harness *harness, uint32_t replays)
{
    struct history *history = harness_shared(sizeof(*history));
    uint32_t state = 12345;

    history->harness = harness;
    history->replays = replays;
    fill(history->k[0][0][0], sizeof(history->k) / 2, &state);
    fill(history->v[0][0][0], sizeof(history->v) / 2, &state);
    fill(history->q[0][0][0][0], sizeof(history->q) / 2, &state);
    for (uint32_t i = 0; i < DECODER_PAGES;
         i++) /* neighbours of a request are not neighbours in memory */
        history->page[i / DECODER_PAGES_EACH][i % DECODER_PAGES_EACH] =
            (int32_t)(i * 59 % DECODER_PAGES);
    return history;
}
