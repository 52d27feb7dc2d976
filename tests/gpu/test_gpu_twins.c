/*
 * test_gpu_twins.c - two sessions decode behind one prefix of a pool that both have, each with a
 * plan of its own. Where both runs are queued while a third session's has the workers, they are
 * named as twins; with a pool each they are not. Each run's result is that of the run alone. How
 * long both take, and how far apart they end, is printed and not judged: by those one sees that
 * workers take items of both.
 */
#include "schemas/abi.h"
#include "schemas/atomics.h"
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/oracle/bits16.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define CLIENT_MS 25000
#define WAIT_NS 20000000000u
#define ROUNDS 41u  /* of submitted runs */
#define LAUNCHED 8u /* rounds of launched ones */
#define REQUESTS 4u
#define HEADS_Q 32u
#define HEADS_KV 8u
#define DIM 128u
#define PAGE_SIZE 64u
#define PAGES 512u /* of the prefix: 32,768 tokens */
#define ROW_BYTES (HEADS_Q * DIM * 2u)
#define TOKEN (HEADS_KV * DIM) /* elements */
#define PLANE_BYTES ((uint64_t)PAGES * PAGE_SIZE * TOKEN * 2u)
#define O_BYTES (REQUESTS * ROW_BYTES)
#define BLOCKER_ROWS 4096u

struct side {
    struct attnd_session *session;
    uint32_t memory, pool, plan, rows; /* rows: memory of q, then o */
    CUdeviceptr address, rows_address;
    uint32_t requests, rows_each;
    uint32_t prepared; /* for lane 0 */
    CUstream stream;
};

static void side_open(struct side *side, const struct harness *harness, const char *name)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness->socket, .name = name};

    *side = (struct side){.requests = REQUESTS, .rows_each = 1};
    CHECK_OK(attnd_open(&args, &side->session));
}

/* Some bits of an fp16 below 2, of either sign. */
static void fill(CUdeviceptr address, uint64_t bytes, uint32_t salt)
{
    uint16_t *values = malloc(bytes);
    uint64_t state = 0x9e3779b97f4a7c15u * (salt + 1);

    CHECK(values);
    for (uint64_t i = 0; i < bytes / 2; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (uint16_t)((state >> 33 & 0x8fff) | 0x3000);
    }
    CHECK_CUDA(cuMemcpyHtoD(address, values, bytes));
    free(values);
}

static void make_pool(struct side *side, uint32_t salt)
{
    const struct attnd_plane base = {
        .stride_page = (int64_t)PAGE_SIZE * TOKEN, .stride_token = TOKEN, .stride_head = DIM};
    struct attnd_plane k = base, v = base;

    CHECK_OK(attnd_memory_create_device(side->session, 2 * PLANE_BYTES, &side->memory));
    CHECK_OK(attnd_cuda_map(side->session, side->memory, &side->address));
    fill(side->address, 2 * PLANE_BYTES, salt);
    k.memory = v.memory = side->memory;
    v.offset_bytes = PLANE_BYTES;
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = PAGES,
                                         .page_size = PAGE_SIZE,
                                         .heads_kv = HEADS_KV,
                                         .dim_qk = DIM,
                                         .dim_vo = DIM,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .k = &k,
                                         .v = &v};
    CHECK_OK(attnd_pool_create(side->session, &desc, &side->pool));
}

static void await(struct side *side, struct attnd_completion *done)
{
    CHECK_EQUAL(attnd_wait(side->session, done, 1, WAIT_NS), 1);
    CHECK_EQUAL(done->fault.code, 0);
}

/* All requests have the pages of the prefix; rows of q are made of @salt. */
static void make_plan(struct side *side, uint32_t salt)
{
    const uint32_t rows = side->requests * side->rows_each, pages = side->requests * PAGES;
    int32_t *page = malloc(pages * sizeof(*page));
    int32_t qo[REQUESTS + 1] = {0}, kv[REQUESTS + 1] = {0}, last[REQUESTS];
    const struct attnd_level level = {side->requests, qo, kv, page, last};
    const struct attnd_batch batch = {.size = sizeof(batch), .level = &level};
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = side->pool,
                                         .requests = side->requests,
                                         .rows = rows,
                                         .pages = pages,
                                         .levels = 1,
                                         .heads_q = HEADS_Q};
    const struct attnd_op op = {.user_data = 1};
    struct attnd_completion done;

    CHECK(page);
    for (uint32_t r = 0; r < side->requests; r++) {
        qo[r + 1] = (int32_t)((r + 1) * side->rows_each);
        kv[r + 1] = (int32_t)((r + 1) * PAGES);
        last[r] = PAGE_SIZE;
        for (uint32_t i = 0; i < PAGES; i++)
            page[r * PAGES + i] = (int32_t)((i * 37 + 11) % PAGES); /* each once */
    }
    CHECK_OK(attnd_plan_create(side->session, &args, &side->plan));
    CHECK_OK(attnd_plan_set(side->session, side->plan, &batch, &op));
    await(side, &done);
    free(page);
    CHECK_OK(attnd_memory_create_device(side->session, 2ull * rows * ROW_BYTES, &side->rows));
    CHECK_OK(attnd_cuda_map(side->session, side->rows, &side->rows_address));
    fill(side->rows_address, (uint64_t)rows * ROW_BYTES, salt);
}

/* Of q, and of o behind it. */
static uint64_t rows_bytes(const struct side *side)
{
    return (uint64_t)side->requests * side->rows_each * ROW_BYTES;
}

static void submit(struct side *side)
{
    const struct attnd_run_args args = {
        .size = sizeof(args), .q = {side->rows, 0}, .o = {side->rows, rows_bytes(side)}};
    const struct attnd_op op = {.user_data = 2};

    CHECK_OK(attnd_run(side->session, side->plan, &args, &op));
}

/* The same run for the side's stream. */
static void prepare(struct side *side)
{
    const struct attnd_prepare_args args = {
        .size = sizeof(args), .q = {side->rows, 0}, .o = {side->rows, rows_bytes(side)}};

    CHECK_OK(attnd_prepare(side->session, side->plan, &args, &side->prepared));
    CHECK_CUDA(cuStreamCreate(&side->stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(attnd_cuda_stream_open(side->session));
}

/* As soon as @gate is at least @number. */
static void ring(const struct side *side, const uint32_t *gate, uint32_t number)
{
    CHECK_CUDA(cuStreamWaitValue32(side->stream, (CUdeviceptr)(uintptr_t)gate, number,
                                   CU_STREAM_WAIT_VALUE_GEQ));
    CHECK_OK(attnd_cuda_run_on_stream(side->session, 0, side->prepared, side->stream));
}

static void await_stream(const struct side *side)
{
    CHECK_CUDA(cuStreamSynchronize(side->stream));
    CHECK_EQUAL(attnd_cuda_lane_error(side->session, 0), 0);
}

static void poison(const struct side *side)
{
    CHECK_CUDA(cuMemsetD8(side->rows_address + O_BYTES, 0xff, O_BYTES));
    CHECK_CUDA(cuCtxSynchronize());
}

static void read_o(const struct side *side, uint16_t o[O_BYTES / 2])
{
    CHECK_CUDA(cuMemcpyDtoH(o, side->rows_address + O_BYTES, O_BYTES));
}

static uint64_t twin_runs(const struct harness *harness)
{
    Attnd__Status *status = harness_status(harness);
    const uint64_t runs = status->twin_runs;

    attnd__status__free_unpacked(status, NULL);
    return runs;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Elements are some 0.01, of either sign; parts of a row may be added up in another order. */
static void check_same(const uint16_t o[O_BYTES / 2], const uint16_t expected[O_BYTES / 2])
{
    for (uint32_t i = 0; i < O_BYTES / 2; i++)
        CHECK(fabs(bits16_value(ATTND_DTYPE_FP16, o[i]) -
                   bits16_value(ATTND_DTYPE_FP16, expected[i])) < 1e-4);
}

/* What @side has after a run alone. */
static void expect_alone(struct side *side, uint16_t o[O_BYTES / 2])
{
    struct attnd_completion done;

    poison(side);
    submit(side);
    await(side, &done);
    read_o(side, o);
    check_same(o, o); /* no NaN */
}

struct scene {
    const struct harness *harness;
    struct side blocker, sides[2];
    struct attnd_completion blocker_done;
    int blocker_over;
    uint16_t expected[2][O_BYTES / 2];
    CUdeviceptr mailbox;    /* the blocker's */
    uint32_t *gate, rounds; /* pinned: how many rounds may ring */
};

static void begin_round(struct scene *scene)
{
    poison(&scene->sides[0]);
    poison(&scene->sides[1]);
}

static void end_round(struct scene *scene)
{
    static uint16_t o[O_BYTES / 2];

    for (uint32_t s = 0; s < 2; s++) {
        read_o(&scene->sides[s], o);
        check_same(o, scene->expected[s]);
    }
}

/* The worker has it, or it is over already. */
static int blocker_is_dispatched(void *context)
{
    struct scene *scene = context;
    Attnd__Status *status = harness_status(scene->harness);
    const uint32_t runs = status->queue_runs;

    attnd__status__free_unpacked(status, NULL);
    if (runs == 0)
        scene->blocker_over = attnd_wait(scene->blocker.session, &scene->blocker_done, 1, 0) == 1;
    return runs > 0 || scene->blocker_over;
}

/* Both sides behind the blocker, which the worker has first: of slots that the service finds at
 * once it takes those of the session that has had less of its time. Return: from the first begin of
 * the two to the last end, us; *apart_us: between their ends. */
static double submitted(struct scene *scene, double *apart_us)
{
    struct side *sides = scene->sides;
    struct attnd_completion done[2];

    begin_round(scene);
    scene->blocker_over = 0;
    submit(&scene->blocker);
    harness_eventually(blocker_is_dispatched, scene, 20000, "the worker has the blocker");
    submit(&sides[0]);
    submit(&sides[1]);
    if (!scene->blocker_over)
        await(&scene->blocker, &scene->blocker_done);
    CHECK_EQUAL(scene->blocker_done.fault.code, 0);
    await(&sides[0], &done[0]);
    await(&sides[1], &done[1]);
    end_round(scene);
    const uint64_t begin_ns =
        done[0].begin_ns < done[1].begin_ns ? done[0].begin_ns : done[1].begin_ns;
    const uint64_t end_ns = done[0].end_ns > done[1].end_ns ? done[0].end_ns : done[1].end_ns;
    *apart_us = fabs((double)done[0].end_ns - (double)done[1].end_ns) * 1e-3;
    return (double)(end_ns - begin_ns) * 1e-3;
}

/* By a worker, or answered already. */
static int blocker_is_taken(void *context)
{
    const struct scene *scene = context;
    uint32_t word; /* of lane 0 */

    CHECK_CUDA(cuMemcpyDtoH(&word, scene->mailbox, sizeof(word)));
    return word >= ATTND_DOORBELL_TAKEN || cuStreamQuery(scene->blocker.stream) == CUDA_SUCCESS;
}

/* Both sides ring at once, while the blocker has the workers. */
static void launched(struct scene *scene)
{
    begin_round(scene);
    ring(&scene->blocker, scene->gate, scene->rounds);
    harness_eventually(blocker_is_taken, scene, 20000, "a worker takes the blocker");
    ring(&scene->sides[0], scene->gate, scene->rounds + 1);
    ring(&scene->sides[1], scene->gate, scene->rounds + 1);
    attnd_publish32(scene->gate, ++scene->rounds); /* R1: to the driver's waits */
    await_stream(&scene->sides[0]);
    await_stream(&scene->sides[1]);
    await_stream(&scene->blocker);
    end_round(scene);
}

static void scene_open(struct scene *scene, const struct harness *harness, int one_pool)
{
    struct side *blocker = &scene->blocker, *sides = scene->sides;
    uint32_t mailbox;
    struct attnd_token token;

    scene->harness = harness;
    gpu_open();
    side_open(blocker, harness, "blocker");
    blocker->requests = 1;
    blocker->rows_each = BLOCKER_ROWS;
    side_open(&sides[0], harness, "one");
    side_open(&sides[1], harness, "other");
    make_pool(blocker, 1);
    make_pool(&sides[0], 2);
    if (one_pool) {
        CHECK_OK(attnd_pool_share(sides[0].session, sides[0].pool, 0, &token));
        CHECK_OK(attnd_pool_attach(sides[1].session, &token, &sides[1].pool));
    } else {
        make_pool(&sides[1], 2);
    }
    make_plan(blocker, 3);
    prepare(blocker);
    CHECK_OK(attnd_mailbox(blocker->session, &mailbox));
    CHECK_OK(attnd_cuda_map(blocker->session, mailbox, &scene->mailbox));
    CHECK_CUDA(
        cuMemHostAlloc((void **)&scene->gate, sizeof(*scene->gate), CU_MEMHOSTALLOC_PORTABLE));
    *scene->gate = 0;
    for (uint32_t s = 0; s < 2; s++) {
        make_plan(&sides[s], 4 + s);
        prepare(&sides[s]);
        expect_alone(&sides[s], scene->expected[s]);
    }
}

static int two_sessions(const struct harness *harness, int one_pool)
{
    static struct scene scene;
    double took_us[ROUNDS], apart_us[ROUNDS];

    scene_open(&scene, harness, one_pool);
    ring(&scene.sides[0], scene.gate, 0); /* a run's position is not its place in a table now */
    await_stream(&scene.sides[0]);
    const uint64_t first = twin_runs(harness);
    for (uint32_t i = 0; i < ROUNDS; i++)
        took_us[i] = submitted(&scene, &apart_us[i]);
    const uint64_t second = twin_runs(harness);
    for (uint32_t i = 0; i < LAUNCHED; i++)
        launched(&scene);
    const uint64_t third = twin_runs(harness);
    qsort(took_us, ROUNDS, sizeof(*took_us), by_value);
    qsort(apart_us, ROUNDS, sizeof(*apart_us), by_value);
    printf("%s: of %u submitted runs %" PRIu64 " met, two in %.1f us, with ends %.1f apart; of %u "
           "launched ones %" PRIu64 "\n",
           one_pool ? "one pool" : "a pool each", 2 * ROUNDS, second - first, took_us[ROUNDS / 2],
           apart_us[ROUNDS / 2], 2 * LAUNCHED, third - second);
    if (one_pool)
        CHECK(second - first >= ROUNDS && third - second >= 2 &&
              third - first <= 2 * (ROUNDS + LAUNCHED));
    else
        CHECK_EQUAL(third - first, 0);
    for (uint32_t s = 0; s < 2; s++)
        attnd_close(scene.sides[s].session);
    attnd_close(scene.blocker.session);
    return 0;
}

static int with_one_pool(void *context)
{
    return two_sessions(context, 1);
}

static int with_a_pool_each(void *context)
{
    return two_sessions(context, 0);
}

static void runs_of_two_sessions_that_read_the_same_pages_meet(void **state)
{
    struct harness *harness = *state;

    CHECK_EQUAL(harness_join(harness_fork(with_one_pool, harness), CLIENT_MS), 0);
}

static void runs_of_two_pools_do_not_meet(void **state)
{
    struct harness *harness = *state;

    CHECK_EQUAL(harness_join(harness_fork(with_a_pool_each, harness), CLIENT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(runs_of_two_sessions_that_read_the_same_pages_meet),
        E2E_TEST(runs_of_two_pools_do_not_meet),
    };

    harness_init();
    (void)setenv("ATTND_TEST_EXECUTE", "service", 1); /* rings are what is tested */
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
