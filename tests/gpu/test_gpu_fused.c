/*
 * test_gpu_fused.c - runs that also rotate q and k and store k and v: what they leave is, to the
 * bit, what the separate steps leave.
 *
 *   ATTND_SEED     repeats a run         ATTND_ROUNDS   launches of each shape (4)
 */
#include "tests/gpu/support/fused.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define CLIENT_MS 110000

static uint64_t seed;

static void in_client(int (*client)(void *context), void *context)
{
    CHECK_EQUAL(harness_join(harness_fork(client, context), CLIENT_MS), 0);
}

static const struct fused_shape decodes = {.dtype = ATTND_DTYPE_FP16,
                                           .kv_dtype = ATTND_DTYPE_FP16,
                                           .dim = 128,
                                           .heads_kv = 2,
                                           .group = 4,
                                           .page_size = 16,
                                           .requests = 40,
                                           .rows_each = 1,
                                           .keys = 1500,
                                           .rotary_dim = 128};

/* Launches of @shape, with one batch after the other. */
static void launch(const struct harness *harness, const struct fused_shape *shape)
{
    const uint32_t rounds = (uint32_t)test_number("ATTND_ROUNDS", 4);
    static struct fused fused;

    fused_open(&fused, harness->socket, shape);
    for (uint32_t i = 0; i < rounds; i++) {
        struct prng prng = prng_fork(seed, i + 100 * shape->requests + shape->rows_each);
        fused_draw(&fused, &prng);
        fused_right(&fused);
    }
    fused_close(&fused);
}

/* In a stream and in a graph, with lengths that are set and that only the GPU knows. */
static void launch_all_ways(const struct harness *harness, struct fused_shape shape)
{
    for (uint32_t way = 0; way < 4; way++) {
        shape.on_device = way / 2;
        shape.in_graph = way % 2;
        shape.names = (shape.requests + way) % 2;
        launch(harness, &shape);
    }
}

static int decode(void *context)
{
    struct fused_shape shape = decodes;

    gpu_open();
    launch_all_ways(context, shape);
    shape.requests = 3; /* parts of each on many SMs */
    shape.keys = 20000;
    shape.page_size = 64;
    launch_all_ways(context, shape);
    shape.requests = 64; /* several items of each worker */
    shape.keys = 700;
    shape.heads_kv = 8;
    shape.page_size = 1;
    launch_all_ways(context, shape);
    shape.group = 8;
    shape.heads_kv = 1;
    shape.interleaved = 1;
    shape.rotary_dim = 64;
    launch_all_ways(context, shape);
    shape.rotary_dim = 0;
    launch_all_ways(context, shape);
    return 0;
}

static void decodes_are_as_by_separate_steps(void **state)
{
    in_client(decode, *state);
}

static int verify(void *context)
{
    struct fused_shape shape = decodes;

    gpu_open();
    for (shape.rows_each = 2; shape.rows_each <= 16; shape.rows_each += shape.rows_each / 2) {
        shape.requests = 12;
        shape.group = 16 / shape.rows_each ? 16 / shape.rows_each : 1;
        launch_all_ways(context, shape); /* all of decode */
        shape.requests = 11;
        shape.group = 7;
        launch_all_ways(context, shape); /* more rows than that */
    }
    return 0;
}

static void drafts_are_verified_as_by_separate_steps(void **state)
{
    in_client(verify, *state);
}

static int prompts(void *context)
{
    struct fused_shape shape = decodes;

    gpu_open();
    shape.rows_each = 0;
    shape.prompt = 300;
    shape.requests = 20;
    launch_all_ways(context, shape);
    shape.requests = 1;
    shape.prompt = 1000;
    launch_all_ways(context, shape);
    shape.interleaved = 1;
    shape.rotary_dim = 32;
    launch_all_ways(context, shape);
    return 0;
}

static void prompts_are_as_by_separate_steps(void **state)
{
    in_client(prompts, *state);
}

static int others(void *context)
{
    struct fused_shape shape = decodes;

    gpu_open();
    shape.dtype = shape.kv_dtype = ATTND_DTYPE_BF16;
    launch_all_ways(context, shape);
    shape.dim = 64;
    shape.rotary_dim = 64;
    launch_all_ways(context, shape);
    shape.dim = 256;
    shape.rotary_dim = 256;
    shape.rows_each = 2;
    launch_all_ways(context, shape);
    shape = decodes;
    shape.window = 100;
    launch_all_ways(context, shape);
    return 0;
}

static void other_types_dimensions_and_windows_are_as_by_separate_steps(void **state)
{
    in_client(others, *state);
}

static int narrow(void *context)
{
    struct fused_shape shape = decodes;

    gpu_open();
    shape.kv_dtype = ATTND_DTYPE_FP8_E4M3;
    shape.k_scale = 0.03f;
    shape.v_scale = 0.7f;
    launch_all_ways(context, shape);
    shape.kv_dtype = ATTND_DTYPE_FP8_E5M2;
    shape.dtype = ATTND_DTYPE_BF16;
    shape.dim = 64;
    shape.rotary_dim = 32;
    launch_all_ways(context, shape);
    shape.rows_each = 0;
    shape.prompt = 200;
    shape.requests = 8;
    launch_all_ways(context, shape);
    return 0;
}

static void pools_of_fp8_are_as_by_separate_steps(void **state)
{
    in_client(narrow, *state);
}

/* ---- what is wrong ---- */

static void expect_refused(const struct fused *fused, const struct attnd_cuda_fused_args *args,
                           int error, enum attnd_field field)
{
    struct attnd_fault fault;

    CHECK_ERROR(attnd_cuda_run_fused_on_stream(fused->session, FUSED_LANE, fused->prepared[0], args,
                                               fused->stream),
                error);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, field);
}

static int bad_args(void *context)
{
    const struct harness *harness = context;
    static struct fused fused;
    struct attnd_cuda_fused_args args;

    gpu_open();
    fused_open(&fused, harness->socket, &decodes);
    args = fused_args(&fused);
    args.k = 0;
    expect_refused(&fused, &args, ATTND_E_INVALID, ATTND_F_K);
    args = fused_args(&fused);
    args.v += 8;
    expect_refused(&fused, &args, ATTND_E_INVALID, ATTND_F_V);
    args = fused_args(&fused);
    args.k_row_stride += 4;
    expect_refused(&fused, &args, ATTND_E_INVALID, ATTND_F_K);
    args = fused_args(&fused);
    args.rows--;
    expect_refused(&fused, &args, ATTND_E_RANGE, ATTND_F_ROWS);
    args = fused_args(&fused);
    args.rotary_dim = 24;
    expect_refused(&fused, &args, ATTND_E_RANGE, ATTND_F_ROPE_DIM);
    args = fused_args(&fused);
    args.rotary_dim = 144;
    expect_refused(&fused, &args, ATTND_E_RANGE, ATTND_F_ROPE_DIM);
    args = fused_args(&fused);
    args.zero = 1;
    expect_refused(&fused, &args, ATTND_E_INVALID, ATTND_F_RESERVED);
    fused_close(&fused);
    return 0;
}

static void arguments_that_do_not_suit_are_refused_by_name(void **state)
{
    in_client(bad_args, *state);
}

/* A place or a position that is out of range, of one row. */
static int bad_places(void *context)
{
    const struct harness *harness = context;
    struct fused_shape shape = decodes;
    static struct fused fused;
    struct prng prng = prng_fork(seed, 9);

    gpu_open();
    shape.names = 1;
    for (shape.group = 4; shape.group <= 20; shape.group += 16) { /* one launch, and two */
        fused_open(&fused, harness->socket, &shape);
        const struct attnd_cuda_fused_args args = fused_args(&fused);
        const int32_t beyond = (int32_t)(fused.pages * shape.page_size);
        const int32_t values[] = {beyond, INT32_MAX, (int32_t)shape.keys, INT32_MAX, -1, INT32_MIN};
        for (uint32_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
            fused_draw(&fused, &prng);
            fused_right(&fused);
            const CUdeviceptr to = (i < 2 ? fused.slots : fused.positions) + 4 * i;
            CHECK_CUDA(cuMemcpyHtoD(to, &values[i], 4));
            CHECK_CUDA(cuCtxSynchronize()); /* pageable: it may still be on its way */
            CHECK_OK(attnd_cuda_run_fused_on_stream(fused.session, FUSED_LANE, fused.prepared[0],
                                                    &args, fused.stream));
            CHECK_CUDA(cuStreamSynchronize(fused.stream));
            CHECK_ERROR(attnd_cuda_lane_error(fused.session, FUSED_LANE), ATTND_E_RANGE);
        }
        fused_draw(&fused, &prng);
        fused_right(&fused);
        fused_close(&fused);
    }
    return 0;
}

static void places_and_positions_out_of_range_are_caught(void **state)
{
    in_client(bad_places, *state);
}

static int by_the_service(void *context)
{
    const struct harness *harness = context;
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness->socket, .execute = ATTND_EXECUTE_SERVICE};
    const struct attnd_cuda_fused_args none = {.size = sizeof(none)};
    struct attnd_session *session;
    struct attnd_fault fault;

    gpu_open();
    CHECK_OK(attnd_open(&args, &session));
    CHECK_ERROR(attnd_cuda_run_fused_on_stream(session, 0, 1, &none, NULL), ATTND_E_UNSUPPORTED);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_EXECUTOR);
    attnd_close(session);
    return 0;
}

static void where_the_service_executes_it_is_refused(void **state)
{
    in_client(by_the_service, *state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(decodes_are_as_by_separate_steps),
        E2E_TEST(drafts_are_verified_as_by_separate_steps),
        E2E_TEST(prompts_are_as_by_separate_steps),
        E2E_TEST(other_types_dimensions_and_windows_are_as_by_separate_steps),
        E2E_TEST(pools_of_fp8_are_as_by_separate_steps),
        E2E_TEST(arguments_that_do_not_suit_are_refused_by_name),
        E2E_TEST(places_and_positions_out_of_range_are_caught),
        E2E_TEST(where_the_service_executes_it_is_refused),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
