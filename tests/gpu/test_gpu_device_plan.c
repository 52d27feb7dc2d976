/*
 * test_gpu_device_plan.c - plans whose lengths only the GPU knows: one graph of a plan and of the
 * layers behind it serves any lengths, rows and page tables within its bounds, and what is wrong
 * among them harms nobody else.
 *
 *   ATTND_SEED     repeats a run         ATTND_ROUNDS   replays of each graph (6)
 */
#include "tests/gpu/support/device_plan.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define CLIENT_MS 110000

static uint64_t seed;

static void in_client(int (*client)(void *context), void *context)
{
    CHECK_EQUAL(harness_join(harness_fork(client, context), CLIENT_MS), 0);
}

static const struct device_shape decodes = {.dtype = ATTND_DTYPE_FP16,
                                            .dim = 64,
                                            .heads_kv = 2,
                                            .group = 4,
                                            .page_size = 16,
                                            .requests = 64,
                                            .rows = 64,
                                            .rows_each = 1,
                                            .keys = 3000};

/* A graph of @shape, launched with one batch after the other. */
static void replay(const struct harness *harness, const struct device_shape *shape)
{
    const uint32_t rounds = (uint32_t)test_number("ATTND_ROUNDS", 6);
    static struct device_plan plan;

    device_plan_open(&plan, harness->socket, shape);
    for (uint32_t i = 0; i < rounds; i++) {
        struct prng prng = prng_fork(seed, i + 100 * shape->rows);
        device_plan_draw(&plan, &prng);
        device_plan_launch(&plan);
        device_plan_right(&plan);
    }
    device_plan_close(&plan);
}

/* ---- any lengths ---- */

static int decode(void *context)
{
    struct device_shape shape = decodes;

    gpu_open();
    replay(context, &shape);
    shape.requests = shape.rows = 256;
    shape.keys = 900;
    replay(context, &shape);
    shape.requests = shape.rows = 1; /* parts of one request on all SMs */
    shape.keys = 40000;
    replay(context, &shape);
    shape.requests = shape.rows = 7;
    shape.keys = 9000;
    shape.heads_kv = 1;
    shape.page_size = 1;
    replay(context, &shape);
    return 0;
}

static void one_graph_decodes_any_lengths(void **state)
{
    in_client(decode, *state);
}

static int uniform(void *context)
{
    struct device_shape shape = decodes;

    gpu_open();
    shape.dtype = ATTND_DTYPE_BF16;
    shape.dim = 128;
    shape.requests = 32;
    shape.keys = 1500;
    for (shape.rows_each = 2; shape.rows_each <= 8; shape.rows_each += 3) {
        shape.rows = shape.requests * shape.rows_each;
        replay(context, &shape);
    }
    return 0;
}

static void one_graph_verifies_drafts_of_any_lengths(void **state)
{
    in_client(uniform, *state);
}

static int mixed(void *context)
{
    struct device_shape shape = decodes;

    gpu_open();
    shape.rows_each = 0;
    shape.requests = 40;
    shape.rows = 500;
    shape.keys = 1200;
    replay(context, &shape);
    shape.dtype = ATTND_DTYPE_BF16;
    shape.dim = 128;
    shape.heads_kv = 1;
    shape.group = 7;
    shape.page_size = 64;
    replay(context, &shape);
    shape = decodes; /* so much of both that they are in work at once */
    shape.rows_each = 0;
    shape.requests = 90;
    shape.rows = 700;
    shape.keys = 5000;
    replay(context, &shape);
    return 0;
}

static void one_graph_serves_prompts_and_decodes_of_any_rows(void **state)
{
    in_client(mixed, *state);
}

static int varied(void *context)
{
    struct device_shape shape = decodes;

    gpu_open();
    shape.rows_each = 0;
    shape.requests = 30;
    shape.rows = 300;
    shape.window = 200;
    shape.soft_cap = 20.0f;
    replay(context, &shape);
    shape.window = 0;
    shape.soft_cap = 0;
    shape.sinks = 1;
    replay(context, &shape);
    shape = (struct device_shape){.dtype = ATTND_DTYPE_BF16,
                                  .dim = 576,
                                  .dim_vo = 512,
                                  .heads_kv = 1,
                                  .group = 16,
                                  .page_size = 64,
                                  .requests = 12,
                                  .rows = 24,
                                  .rows_each = 2,
                                  .keys = 1500};
    replay(context, &shape);
    return 0;
}

static void windows_caps_sinks_and_latents_are_right(void **state)
{
    in_client(varied, *state);
}

/* ---- what is wrong ---- */

static void check_fault(const struct device_plan *plan, enum attnd_field field, uint32_t request,
                        int64_t value)
{
    struct attnd_fault fault;

    CHECK_ERROR(attnd_cuda_lane_error(plan->session, DEVICE_PLAN_LANE), ATTND_E_RANGE);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, field);
    CHECK_EQUAL(fault.index, request);
    CHECK_EQUAL(fault.value, value);
    CHECK_OK(attnd_cuda_lane_error(plan->session, DEVICE_PLAN_LANE));
}

/* Another batch, in which request @request has something wrong. */
static void draw_bad(struct device_plan *plan, uint64_t number, uint32_t request, int32_t length,
                     int32_t page)
{
    struct prng prng = prng_fork(seed, number);
    int32_t *pages = plan->host_table + (uint64_t)request * plan->stride;

    device_plan_draw(plan, &prng);
    for (uint32_t r = 0; r < plan->shape.requests; r++) /* rows of all */
        if (plan->host_lengths[r] == 0)
            plan->host_lengths[r] = 33;
    plan->host_lengths[request] = length;
    if (page != 0)
        pages[(length - 1) / (int32_t)plan->shape.page_size] = page;
    plan->refused[request] = 1;
}

static void expect_bad(struct device_plan *plan, uint32_t request, int32_t length, int32_t page)
{
    draw_bad(plan, (uint64_t)length * 31 + (uint64_t)page, request, length, page);
    device_plan_launch(plan);
    device_plan_right(plan);
    check_fault(plan, page ? ATTND_F_KV_INDICES : ATTND_F_KV_LEN, request, page ? page : length);
}

static void expect_all_bad(const struct harness *harness, const struct device_shape *shape)
{
    static struct device_plan plan;
    struct prng prng = prng_fork(seed, 77);

    device_plan_open(&plan, harness->socket, shape);
    const int32_t longest = (int32_t)shape->keys, beyond = (int32_t)plan.pages;
    expect_bad(&plan, 3, -1, 0);
    expect_bad(&plan, 0, INT32_MIN, 0);
    expect_bad(&plan, shape->requests - 1, longest + 1, 0);
    expect_bad(&plan, 5, INT32_MAX, 0);
    expect_bad(&plan, 0, longest, beyond);
    expect_bad(&plan, 1, 40, -1);
    expect_bad(&plan, 2, longest, INT32_MAX);
    expect_bad(&plan, shape->requests - 2, 1, INT32_MIN);
    draw_bad(&plan, 5, 4, longest, -7); /* and several at once */
    for (uint32_t r = 6; r < shape->requests; r += 2) {
        plan.host_lengths[r] = r % 4 ? -5 : 17;
        plan.host_table[(uint64_t)r * plan.stride] = beyond;
        plan.refused[r] = 1;
    }
    device_plan_launch(&plan);
    device_plan_right(&plan);
    CHECK_ERROR(attnd_cuda_lane_error(plan.session, DEVICE_PLAN_LANE), ATTND_E_RANGE);
    device_plan_draw(&plan, &prng); /* nothing of it is left */
    device_plan_launch(&plan);
    device_plan_right(&plan);
    device_plan_close(&plan);
}

static int bad_requests(void *context)
{
    struct device_shape shape = decodes;

    gpu_open();
    expect_all_bad(context, &shape);
    shape.requests = 12;
    shape.rows_each = 40; /* rows of many blocks, and of many tiles */
    shape.rows = 480;
    shape.keys = 1000;
    expect_all_bad(context, &shape);
    shape = (struct device_shape){.dtype = ATTND_DTYPE_BF16,
                                  .dim = 576,
                                  .dim_vo = 512,
                                  .heads_kv = 1,
                                  .group = 16,
                                  .page_size = 64,
                                  .requests = 10,
                                  .rows = 10,
                                  .rows_each = 1,
                                  .keys = 3000};
    expect_all_bad(context, &shape);
    return 0;
}

static void a_bad_length_or_page_is_nan_and_named_and_others_are_right(void **state)
{
    in_client(bad_requests, *state);
}

static int bad_rows(void *context)
{
    const struct harness *harness = context;
    struct device_shape shape = decodes;
    static struct device_plan plan;
    struct prng prng = prng_fork(seed, 3);

    gpu_open();
    shape.rows_each = 0;
    shape.requests = 20;
    shape.rows = 200;
    shape.keys = 500;
    device_plan_open(&plan, harness->socket, &shape);
    for (uint32_t i = 0; i < 3; i++) {
        device_plan_draw(&plan, &prng);
        plan.host_qo[i == 0 ? 7 : 20] = i == 0 ? -1 : i == 1 ? 201 : 0;
        if (i == 2)
            plan.host_qo[19] = 5;
        device_plan_launch(&plan);
        device_plan_untouched(&plan);
        check_fault(&plan, ATTND_F_QO_INDPTR, 0, 0);
    }
    device_plan_draw(&plan, &prng);
    device_plan_launch(&plan);
    device_plan_right(&plan);
    device_plan_close(&plan);
    return 0;
}

static void rows_that_are_no_array_of_begins_execute_nothing(void **state)
{
    in_client(bad_rows, *state);
}

static int bad_args(void *context)
{
    const struct harness *harness = context;
    static struct device_plan plan;

    gpu_open();
    device_plan_open(&plan, harness->socket, &decodes);
    const struct attnd_cuda_plan_args right = device_plan_args(&plan);
    struct attnd_cuda_plan_args args[8];
    const int errors[8] = {ATTND_E_RANGE, ATTND_E_RANGE,   ATTND_E_RANGE,   ATTND_E_RANGE,
                           ATTND_E_RANGE, ATTND_E_INVALID, ATTND_E_INVALID, ATTND_E_INVALID};
    for (uint32_t i = 0; i < 8; i++)
        args[i] = right;
    args[0].requests = 0;
    args[1].requests = 65;
    args[2].rows = 2;
    args[3].keys = plan.stride * 16 + 1;
    args[4].table_stride = 1u << 31;
    args[5].lengths = 0;
    args[6].table += 2;
    args[7].zero = 1;
    for (uint32_t i = 0; i < 8; i++)
        CHECK_ERROR(attnd_cuda_plan_on_stream(plan.session, plan.plan, DEVICE_PLAN_LANE, &args[i],
                                              plan.stream),
                    errors[i]);
    CHECK_ERROR(attnd_cuda_plan_on_stream(plan.session, plan.plan + 1, DEVICE_PLAN_LANE, &right,
                                          plan.stream),
                ATTND_E_UNKNOWN);
    device_plan_close(&plan);
    return 0;
}

static void bounds_that_do_not_fit_are_refused_by_name(void **state)
{
    in_client(bad_args, *state);
}

static int by_the_service(void *context)
{
    const struct harness *harness = context;
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness->socket, .execute = ATTND_EXECUTE_SERVICE};
    const struct attnd_cuda_plan_args none = {.size = sizeof(none)};
    struct attnd_session *session;
    struct attnd_fault fault;

    gpu_open();
    CHECK_OK(attnd_open(&args, &session));
    CHECK_ERROR(attnd_cuda_plan_on_stream(session, 1, 0, &none, NULL), ATTND_E_UNSUPPORTED);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_EXECUTOR);
    attnd_close(session);
    return 0;
}

static void where_the_service_executes_it_is_refused(void **state)
{
    in_client(by_the_service, *state);
}

/* ---- beside a graph ---- */

static int without_graph(void *context)
{
    const struct harness *harness = context;
    static struct device_plan plan;

    gpu_open();
    device_plan_open(&plan, harness->socket, &decodes);
    const struct attnd_cuda_plan_args args = device_plan_args(&plan);
    for (uint32_t i = 0; i < 4; i++) {
        struct prng prng = prng_fork(seed, i);
        device_plan_draw(&plan, &prng);
        device_plan_launch(&plan); /* brings the arrays there, too */
        CHECK_OK(attnd_cuda_plan_on_stream(plan.session, plan.plan, DEVICE_PLAN_LANE, &args,
                                           plan.stream));
        for (uint32_t layer = 0; layer < DEVICE_PLAN_LAYERS; layer++)
            CHECK_OK(attnd_cuda_run_on_stream(plan.session, DEVICE_PLAN_LANE, plan.prepared[layer],
                                              plan.stream));
        CHECK_CUDA(cuStreamSynchronize(plan.stream));
        device_plan_right(&plan);
    }
    device_plan_close(&plan);
    return 0;
}

static void launches_outside_of_a_graph_are_right(void **state)
{
    in_client(without_graph, *state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(one_graph_decodes_any_lengths),
        E2E_TEST(one_graph_verifies_drafts_of_any_lengths),
        E2E_TEST(one_graph_serves_prompts_and_decodes_of_any_rows),
        E2E_TEST(windows_caps_sinks_and_latents_are_right),
        E2E_TEST(a_bad_length_or_page_is_nan_and_named_and_others_are_right),
        E2E_TEST(rows_that_are_no_array_of_begins_execute_nothing),
        E2E_TEST(bounds_that_do_not_fit_are_refused_by_name),
        E2E_TEST(where_the_service_executes_it_is_refused),
        E2E_TEST(launches_outside_of_a_graph_are_right),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
