/* device_plan.c - see device_plan.h. */
#include "tests/gpu/support/device_plan.h"

#include "tests/gpu/support/on_device.h"
#include "tests/support/harness/check.h"
#include "tests/support/oracle/reference.h"
#include "tests/support/trial/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0x5au /* of each byte: a number, and no small one */

static uint32_t heads_q(const struct device_plan *plan)
{
    return plan->shape.heads_kv * plan->shape.group;
}

static uint32_t dim_vo(const struct device_plan *plan)
{
    return plan->shape.dim_vo ? plan->shape.dim_vo : plan->shape.dim;
}

static uint64_t q_elements(const struct device_plan *plan)
{
    return (uint64_t)plan->shape.rows * heads_q(plan) * plan->shape.dim;
}

static uint64_t o_elements(const struct device_plan *plan)
{
    return (uint64_t)plan->shape.rows * heads_q(plan) * dim_vo(plan);
}

static uint64_t lse_elements(const struct device_plan *plan)
{
    return (uint64_t)plan->shape.rows * heads_q(plan);
}

/* Where o of a layer lies, from the rows' beginning; and its lse. */
static uint64_t o_at(const struct device_plan *plan, uint32_t layer)
{
    return on_device_line(q_elements(plan) * 2) +
           layer * (on_device_line(o_elements(plan) * 2) + on_device_line(lse_elements(plan) * 4));
}

static uint64_t lse_at(const struct device_plan *plan, uint32_t layer)
{
    return o_at(plan, layer) + on_device_line(o_elements(plan) * 2);
}

static uint64_t plane_elements(const struct device_plan *plan)
{
    return (uint64_t)plan->pages * plan->shape.page_size * plan->shape.heads_kv * plan->shape.dim;
}

/* ---- opening ---- */

static void make_pool(struct device_plan *plan)
{
    const struct device_shape *shape = &plan->shape;
    const int one_plane = shape->dim_vo != 0;
    const uint64_t plane = plane_elements(plan) * 2, layer = one_plane ? plane : 2 * plane;
    struct attnd_plane k[DEVICE_PLAN_LAYERS], v[DEVICE_PLAN_LAYERS];
    struct prng prng = prng_fork(7, shape->dim);
    uint32_t memory;
    CUdeviceptr at;

    CHECK_OK(attnd_memory_create_device(plan->session, DEVICE_PLAN_LAYERS * layer, &memory));
    CHECK_OK(attnd_cuda_map(plan->session, memory, &at));
    for (uint32_t i = 0; i < DEVICE_PLAN_LAYERS; i++) {
        k[i] = (struct attnd_plane){.memory = memory,
                                    .offset_bytes = i * layer,
                                    .stride_page = shape->page_size * shape->heads_kv * shape->dim,
                                    .stride_token = shape->heads_kv * shape->dim,
                                    .stride_head = shape->dim};
        v[i] = k[i];
        v[i].offset_bytes += one_plane ? 0 : plane;
        plan->k[i] = on_device_host(plane_elements(plan), 2);
        on_device_fill(plan->shape.dtype, plan->k[i], plane_elements(plan), &prng);
        CHECK_CUDA(cuMemcpyHtoD(at + k[i].offset_bytes, plan->k[i], plane));
        plan->v[i] = plan->k[i];
        if (one_plane)
            continue;
        plan->v[i] = on_device_host(plane_elements(plan), 2);
        on_device_fill(plan->shape.dtype, plan->v[i], plane_elements(plan), &prng);
        CHECK_CUDA(cuMemcpyHtoD(at + v[i].offset_bytes, plan->v[i], plane));
    }
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = DEVICE_PLAN_LAYERS,
                                         .pages = plan->pages,
                                         .page_size = shape->page_size,
                                         .heads_kv = shape->heads_kv,
                                         .dim_qk = shape->dim,
                                         .dim_vo = dim_vo(plan),
                                         .dtype = shape->dtype,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .k = k,
                                         .v = v};
    CHECK_OK(attnd_pool_create(plan->session, &desc, &plan->pool));
}

/* Behind o and lse of all layers. */
static uint64_t sinks_at(const struct device_plan *plan)
{
    return o_at(plan, DEVICE_PLAN_LAYERS);
}

static void make_rows(struct device_plan *plan)
{
    const uint32_t sinks = DEVICE_PLAN_LAYERS * heads_q(plan);
    struct prng prng = prng_fork(11, plan->shape.rows);

    CHECK_OK(attnd_memory_create_device(plan->session, sinks_at(plan) + sinks * 4, &plan->memory));
    CHECK_OK(attnd_cuda_map(plan->session, plan->memory, &plan->rows));
    plan->q = on_device_host(q_elements(plan), 2);
    plan->o = on_device_host(o_elements(plan), 2);
    plan->lse = on_device_host(lse_elements(plan), 4);
    plan->sinks = on_device_host(sinks, 4);
    on_device_fill(plan->shape.dtype, plan->q, q_elements(plan), &prng);
    for (uint32_t i = 0; i < sinks; i++)
        plan->sinks[i] = (float)(i % 7) - 1.0f;
    CHECK_CUDA(cuMemcpyHtoD(plan->rows, plan->q, q_elements(plan) * 2));
    CHECK_CUDA(cuMemcpyHtoD(plan->rows + sinks_at(plan), plan->sinks, sinks * 4));
}

/* A batch of as many rows as there may be, and of no pages. */
static void make_plan(struct device_plan *plan)
{
    const struct device_shape *shape = &plan->shape;
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = plan->pool,
                                         .requests = shape->requests,
                                         .rows = shape->rows,
                                         .pages = 1,
                                         .levels = 1,
                                         .heads_q = heads_q(plan)};
    struct attnd_variant variant = ATTND_VARIANT_INIT;
    int32_t *qo = on_device_host(shape->requests + 1, 4),
            *kv = on_device_host(shape->requests + 1, 4);
    int32_t *last = on_device_host(shape->requests, 4);
    const struct attnd_level level = {shape->requests, qo, kv, last, last};
    const struct attnd_batch batch = {
        .size = sizeof(batch), .flags = ATTND_CAUSAL, .level = &level, .variant = &variant};
    const struct attnd_op op = {.lane = DEVICE_PLAN_LANE};

    for (uint32_t r = 0; r <= shape->requests; r++)
        qo[r] = (int32_t)((uint64_t)shape->rows * r / shape->requests);
    variant.window_left = shape->window ? (int32_t)shape->window - 1 : -1;
    variant.logits_soft_cap = shape->soft_cap;
    if (shape->sinks)
        variant.sinks = (struct attnd_variant_table){plan->memory, heads_q(plan), sinks_at(plan)};
    CHECK_OK(attnd_plan_create(plan->session, &args, &plan->plan));
    CHECK_OK(attnd_plan_set(plan->session, plan->plan, &batch, &op));
    on_device_await(plan->session);
    free(qo);
    free(kv);
    free(last);
}

static void prepare(struct device_plan *plan)
{
    for (uint32_t i = 0; i < DEVICE_PLAN_LAYERS; i++) {
        const struct attnd_prepare_args args = {.size = sizeof(args),
                                                .layer = i,
                                                .lane = DEVICE_PLAN_LANE,
                                                .q = {plan->memory, 0},
                                                .o = {plan->memory, o_at(plan, i)},
                                                .lse = {plan->memory, lse_at(plan, i)}};
        CHECK_OK(attnd_prepare(plan->session, plan->plan, &args, &plan->prepared[i]));
    }
}

struct attnd_cuda_plan_args device_plan_args(const struct device_plan *plan)
{
    const struct device_shape *shape = &plan->shape;

    return (struct attnd_cuda_plan_args){.size = sizeof(struct attnd_cuda_plan_args),
                                         .requests = shape->requests,
                                         .rows = shape->rows_each ? shape->rows_each : shape->rows,
                                         .keys = shape->keys,
                                         .table_stride = plan->stride,
                                         .lengths = plan->lengths,
                                         .table = plan->table,
                                         .qo_indptr = shape->rows_each ? 0 : plan->qo_indptr,
                                         .errors = plan->errors};
}

static void capture(struct device_plan *plan)
{
    const struct attnd_cuda_plan_args args = device_plan_args(plan);
    CUgraph graph;

    CHECK_CUDA(cuStreamBeginCapture(plan->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_OK(attnd_cuda_plan_on_stream(plan->session, plan->plan, DEVICE_PLAN_LANE, &args,
                                       plan->stream));
    for (uint32_t i = 0; i < DEVICE_PLAN_LAYERS; i++)
        CHECK_OK(attnd_cuda_run_on_stream(plan->session, DEVICE_PLAN_LANE, plan->prepared[i],
                                          plan->stream));
    CHECK_CUDA(cuStreamEndCapture(plan->stream, &graph));
    CHECK_CUDA(cuGraphInstantiate(&plan->graph, graph, 0));
    CHECK_CUDA(cuGraphDestroy(graph));
}

void device_plan_open(struct device_plan *plan, const char *socket_path,
                      const struct device_shape *shape)
{
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .socket_path = socket_path,
                                         .name = "device plan",
                                         .execute = ATTND_EXECUTE_ENGINE};

    *plan = (struct device_plan){.shape = *shape};
    plan->stride = (shape->keys + shape->page_size - 1) / shape->page_size + 3;
    plan->pages = plan->stride * 3;
    CHECK_OK(attnd_open(&args, &plan->session));
    CHECK_CUDA(cuStreamCreate(&plan->stream, CU_STREAM_NON_BLOCKING));
    CHECK_CUDA(cuMemAlloc(&plan->lengths, shape->requests * 4));
    CHECK_CUDA(cuMemAlloc(&plan->table, (uint64_t)shape->requests * plan->stride * 4));
    CHECK_CUDA(cuMemAlloc(&plan->qo_indptr, (shape->requests + 1) * 4));
    CHECK_CUDA(cuMemAlloc(&plan->errors, shape->requests * 4));
    plan->host_lengths = on_device_host(shape->requests, 4);
    plan->host_table = on_device_host((uint64_t)shape->requests * plan->stride, 4);
    plan->host_qo = on_device_host(shape->requests + 1, 4);
    make_pool(plan);
    make_rows(plan);
    make_plan(plan);
    prepare(plan);
    capture(plan);
}

void device_plan_close(struct device_plan *plan)
{
    CHECK_OK(attnd_cuda_lane_error(plan->session, DEVICE_PLAN_LANE));
    CHECK_CUDA(cuGraphExecDestroy(plan->graph));
    attnd_close(plan->session);
    for (uint32_t i = 0; i < DEVICE_PLAN_LAYERS; i++) {
        if (plan->v[i] != plan->k[i])
            free(plan->v[i]);
        free(plan->k[i]);
    }
    free(plan->q);
    free(plan->o);
    free(plan->lse);
    free(plan->sinks);
    free(plan->host_lengths);
    free(plan->host_table);
    free(plan->host_qo);
}

/* ---- launching ---- */

void device_plan_draw(struct device_plan *plan, struct prng *prng)
{
    const struct device_shape *shape = &plan->shape;
    const uint32_t longest = 1 + prng_below(prng, shape->keys);
    uint32_t row = 0;

    for (uint32_t r = 0; r < shape->requests; r++) {
        const uint32_t chunk = prng_below(prng, 4) ? 1 : 1 + prng_below(prng, 150);
        const uint32_t rows = prng_below(prng, 8) == 0 ? 0 : chunk;
        plan->host_qo[r] = (int32_t)row;
        row += row + rows <= shape->rows ? rows : 0;
        plan->host_lengths[r] = (int32_t)(1 + prng_below(prng, longest));
        if (shape->rows_each && prng_below(prng, 8) == 0)
            plan->host_lengths[r] = 0;
        plan->refused[r] = 0;
        for (uint32_t p = 0; p < plan->stride; p++)
            plan->host_table[(uint64_t)r * plan->stride + p] =
                (int32_t)prng_below(prng, plan->pages);
    }
    plan->host_qo[shape->requests] = (int32_t)row;
    for (uint32_t r = 0; shape->rows_each && r <= shape->requests; r++)
        plan->host_qo[r] = (int32_t)(r * shape->rows_each);
}

void device_plan_launch(struct device_plan *plan)
{
    const struct device_shape *shape = &plan->shape;
    const uint64_t begin = o_at(plan, 0), end = o_at(plan, DEVICE_PLAN_LAYERS);

    CHECK_CUDA(cuMemcpyHtoD(plan->lengths, plan->host_lengths, shape->requests * 4));
    CHECK_CUDA(
        cuMemcpyHtoD(plan->table, plan->host_table, (uint64_t)shape->requests * plan->stride * 4));
    CHECK_CUDA(cuMemcpyHtoD(plan->qo_indptr, plan->host_qo, (shape->requests + 1) * 4));
    CHECK_CUDA(cuMemsetD8(plan->errors, POISON, shape->requests * 4));
    CHECK_CUDA(cuMemsetD8(plan->rows + begin, POISON, end - begin));
    CHECK_CUDA(cuCtxSynchronize());
    CHECK_CUDA(cuGraphLaunch(plan->graph, plan->stream));
    CHECK_CUDA(cuStreamSynchronize(plan->stream));
}

/* ---- judging ---- */

static int is_nan(const struct device_plan *plan, uint16_t bits)
{
    const uint16_t top = plan->shape.dtype == ATTND_DTYPE_FP16 ? 0x7c00 : 0x7f80;

    return (bits & 0x7fff) > top;
}

static void fetch(struct device_plan *plan, uint32_t layer)
{
    CHECK_CUDA(cuMemcpyDtoH(plan->o, plan->rows + o_at(plan, layer), o_elements(plan) * 2));
    CHECK_CUDA(cuMemcpyDtoH(plan->lse, plan->rows + lse_at(plan, layer), lse_elements(plan) * 4));
}

enum row_state { ROW_LEFT, ROW_NAN };

/* Rows [begin, end) are all as they were, or no numbers; what the reference says of rows that see
 * nothing takes their place. */
static void expect_rows(struct device_plan *plan, uint32_t begin, uint32_t end,
                        enum row_state state)
{
    const uint64_t width = (uint64_t)heads_q(plan) * dim_vo(plan);
    const uint32_t poison = POISON * 0x01010101u;

    for (uint64_t i = begin * width; i < end * width; i++) {
        CHECK(state == ROW_NAN ? is_nan(plan, plan->o[i]) : plan->o[i] == (uint16_t)poison);
        plan->o[i] = 0;
    }
    for (uint64_t i = (uint64_t)begin * heads_q(plan); i < (uint64_t)end * heads_q(plan); i++) {
        uint32_t bits;
        memcpy(&bits, &plan->lse[i], sizeof(bits));
        CHECK(state == ROW_NAN ? isnan(plan->lse[i]) : bits == poison);
        plan->lse[i] = -INFINITY;
    }
}

/* The batch as the reference wants it: requests that are not executed have no keys. */
static struct reference_batch reference_of(const struct device_plan *plan, uint32_t layer,
                                           int32_t *kv, int32_t *indices, int32_t *len)
{
    const struct device_shape *shape = &plan->shape;
    const int64_t head = shape->dim, token = head * shape->heads_kv,
                  page = token * shape->page_size;
    struct reference_batch batch = {.dtype = shape->dtype,
                                    .rows = (uint32_t)plan->host_qo[shape->requests],
                                    .heads_q = heads_q(plan),
                                    .heads_kv = shape->heads_kv,
                                    .dim = shape->dim,
                                    .dim_vo = dim_vo(plan),
                                    .page_size = shape->page_size,
                                    .causal = 1,
                                    .levels = 1,
                                    .level = {{.requests = shape->requests,
                                               .qo_indptr = plan->host_qo,
                                               .kv_indptr = kv,
                                               .kv_indices = indices,
                                               .kv_len = len}},
                                    .q = {plan->q, (int64_t)heads_q(plan) * shape->dim, shape->dim},
                                    .k = {plan->k[layer], page, token, head},
                                    .v = {plan->v[layer], page, token, head}};

    batch.variant.windowed = shape->window != 0;
    batch.variant.window_left = (int32_t)shape->window - 1;
    if (shape->sinks)
        batch.variant.sinks = plan->sinks + layer * heads_q(plan);
    batch.variant.soft_cap = (double)shape->soft_cap;
    for (uint32_t r = 0; r < shape->requests; r++) {
        len[r] = plan->refused[r] ? 0 : plan->host_lengths[r];
        const int32_t pages =
            (int32_t)(((uint32_t)len[r] + shape->page_size - 1) / shape->page_size);
        memcpy(indices + kv[r], plan->host_table + (uint64_t)r * plan->stride,
               (size_t)pages * sizeof(*indices));
        kv[r + 1] = kv[r] + pages;
    }
    return batch;
}

static void judge_layer(struct device_plan *plan, uint32_t layer)
{
    const struct device_shape *shape = &plan->shape;
    int32_t *kv = on_device_host(shape->requests + 1, 4), *len = on_device_host(shape->requests, 4);
    int32_t *indices = on_device_host((uint64_t)shape->requests * plan->stride, 4);
    const struct reference_batch batch = reference_of(plan, layer, kv, indices, len);
    double *want = on_device_host(o_elements(plan), sizeof(double));
    double *lse = on_device_host(lse_elements(plan), sizeof(double));
    const struct reference_rows o = {plan->o, (int64_t)heads_q(plan) * dim_vo(plan), dim_vo(plan)};
    struct reference_mismatch wrong;

    fetch(plan, layer);
    for (uint32_t r = 0; r < shape->requests; r++)
        if (len[r] == 0)
            expect_rows(plan, (uint32_t)plan->host_qo[r], (uint32_t)plan->host_qo[r + 1],
                        plan->refused[r] ? ROW_NAN : ROW_LEFT);
    expect_rows(plan, batch.rows, shape->rows, ROW_LEFT);
    reference_attend(&batch, want, lse);
    if (!reference_compare(&batch, want, lse, &o, plan->lse, heads_q(plan), 1, &wrong)) {
        printf("layer %u: %llu of %s differ; row %u, head %u, dim %u: %g, not %g\n", layer,
               (unsigned long long)wrong.count, wrong.tensor, wrong.row, wrong.head, wrong.dim,
               wrong.got, wrong.want);
        CHECK_FAIL("a wrong result");
    }
    free(kv);
    free(len);
    free(indices);
    free(want);
    free(lse);
}

void device_plan_right(struct device_plan *plan)
{
    static uint32_t errors[DEVICE_PLAN_REQUESTS_MAX];

    for (uint32_t layer = 0; layer < DEVICE_PLAN_LAYERS; layer++)
        judge_layer(plan, layer);
    CHECK_CUDA(cuMemcpyDtoH(errors, plan->errors, plan->shape.requests * 4));
    for (uint32_t r = 0; r < plan->shape.requests; r++)
        CHECK_EQUAL(errors[r], plan->refused[r] ? ATTND_E_RANGE : 0);
}

void device_plan_untouched(struct device_plan *plan)
{
    for (uint32_t layer = 0; layer < DEVICE_PLAN_LAYERS; layer++) {
        fetch(plan, layer);
        expect_rows(plan, 0, plan->shape.rows, ROW_LEFT);
    }
}
