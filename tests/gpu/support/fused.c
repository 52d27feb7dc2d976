/* fused.c - see fused.h. */
#include "tests/gpu/support/fused.h"

#include "tests/gpu/support/on_device.h"
#include "tests/support/harness/check.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/oracle/bits8.h"
#include "tests/support/trial/trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0x5au /* of each byte: a number, and no small one */

/* ---- places ---- */

static uint32_t heads_q(const struct fused *fused)
{
    return fused->shape.heads_kv * fused->shape.group;
}

/* Of a row of the product. */
static uint64_t row_elements(const struct fused *fused)
{
    return (uint64_t)(heads_q(fused) + 2 * fused->shape.heads_kv) * fused->shape.dim;
}

static uint64_t qkv_bytes(const struct fused *fused)
{
    return on_device_line(fused->rows * row_elements(fused) * 2);
}

static uint64_t o_bytes(const struct fused *fused)
{
    return on_device_line((uint64_t)fused->rows * heads_q(fused) * fused->shape.dim * 2);
}

static uint64_t lse_bytes(const struct fused *fused)
{
    return on_device_line((uint64_t)fused->rows * heads_q(fused) * 4);
}

static uint64_t o_at(const struct fused *fused, uint32_t which)
{
    return 2 * qkv_bytes(fused) + which * (o_bytes(fused) + lse_bytes(fused));
}

static int is_narrow(const struct fused *fused)
{
    return fused->shape.kv_dtype != fused->shape.dtype;
}

static uint64_t plane_elements(const struct fused *fused)
{
    const struct fused_shape *shape = &fused->shape;

    return (uint64_t)fused->pages * shape->page_size * shape->heads_kv * shape->dim;
}

static uint64_t plane_bytes(const struct fused *fused)
{
    return plane_elements(fused) * (is_narrow(fused) ? 1 : 2);
}

static uint64_t planes_at(const struct fused *fused)
{
    return o_at(fused, 2);
}

static void to_device(CUdeviceptr to, const void *from, uint64_t bytes)
{
    CHECK_CUDA(cuMemcpyHtoD(to, from, bytes));
}

/* ---- opening ---- */

static void make_pool(struct fused *fused, uint32_t memory)
{
    const struct fused_shape *shape = &fused->shape;
    struct attnd_plane planes[2];

    for (uint32_t i = 0; i < 2; i++)
        planes[i] =
            (struct attnd_plane){.memory = memory,
                                 .offset_bytes = planes_at(fused) + i * plane_bytes(fused),
                                 .stride_page = shape->page_size * shape->heads_kv * shape->dim,
                                 .stride_token = shape->heads_kv * shape->dim,
                                 .stride_head = shape->dim};
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = fused->pages,
                                         .page_size = shape->page_size,
                                         .heads_kv = shape->heads_kv,
                                         .dim_qk = shape->dim,
                                         .dim_vo = shape->dim,
                                         .dtype = shape->kv_dtype,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .k = &planes[0],
                                         .v = &planes[1]};
    CHECK_OK(attnd_pool_create(fused->session, &desc, &fused->pool));
}

static void set_plan(struct fused *fused)
{
    const struct fused_shape *shape = &fused->shape;
    const uint64_t row = row_elements(fused);
    const uint32_t pages = shape->on_device ? 0 : fused->stride;
    int32_t kv[FUSED_REQUESTS_MAX + 1], last[FUSED_REQUESTS_MAX];
    struct attnd_variant variant = ATTND_VARIANT_INIT;
    const struct attnd_level level = {shape->requests, fused->host_qo, kv, fused->host_table, last};
    const struct attnd_batch batch = {.size = sizeof(batch),
                                      .flags = ATTND_CAUSAL,
                                      .dtype = shape->dtype,
                                      .level = &level,
                                      .q = {(int64_t)row, shape->dim},
                                      .variant = &variant};
    const struct attnd_op op = {.lane = FUSED_LANE};

    for (uint32_t r = 0; r <= shape->requests; r++)
        kv[r] = (int32_t)(r * pages);
    for (uint32_t r = 0; r < shape->requests; r++)
        last[r] = (int32_t)shape->page_size;
    variant.window_left = shape->window ? (int32_t)shape->window - 1 : -1;
    variant.k_scale = shape->k_scale;
    variant.v_scale = shape->v_scale;
    CHECK_OK(attnd_plan_set(fused->session, fused->plan, &batch, &op));
    on_device_await(fused->session);
}

static void make_plan(struct fused *fused)
{
    const struct fused_shape *shape = &fused->shape;
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = fused->pool,
                                         .requests = shape->requests,
                                         .rows = fused->rows,
                                         .pages = fused->pages,
                                         .levels = 1,
                                         .heads_q = heads_q(fused)};

    CHECK_OK(attnd_plan_create(fused->session, &args, &fused->plan));
    set_plan(fused);
}

static void prepare(struct fused *fused, uint32_t memory)
{
    for (uint32_t i = 0; i < 2; i++) {
        const struct attnd_prepare_args args = {.size = sizeof(args),
                                                .lane = FUSED_LANE,
                                                .q = {memory, i * qkv_bytes(fused)},
                                                .o = {memory, o_at(fused, i)},
                                                .lse = {memory, o_at(fused, i) + o_bytes(fused)}};
        CHECK_OK(attnd_prepare(fused->session, fused->plan, &args, &fused->prepared[i]));
    }
}

static void plan_on_stream(const struct fused *fused)
{
    const struct fused_shape *shape = &fused->shape;
    const struct attnd_cuda_plan_args args = {
        .size = sizeof(args),
        .requests = shape->requests,
        .rows = shape->rows_each ? shape->rows_each : fused->rows,
        .keys = shape->keys,
        .table_stride = fused->stride,
        .lengths = fused->lengths,
        .table = fused->table,
        .qo_indptr = shape->rows_each ? 0 : fused->positions + fused->rows * 4};

    if (shape->on_device)
        CHECK_OK(attnd_cuda_plan_on_stream(fused->session, fused->plan, FUSED_LANE, &args,
                                           fused->stream));
}

struct attnd_cuda_fused_args fused_args(const struct fused *fused)
{
    const struct fused_shape *shape = &fused->shape;
    const uint32_t row = (uint32_t)row_elements(fused);
    const CUdeviceptr k = fused->memory + (uint64_t)heads_q(fused) * shape->dim * 2;

    return (struct attnd_cuda_fused_args){.size = sizeof(struct attnd_cuda_fused_args),
                                          .rows = fused->rows,
                                          .k = k,
                                          .v = k + (uint64_t)shape->heads_kv * shape->dim * 2,
                                          .k_row_stride = row,
                                          .k_head_stride = shape->dim,
                                          .v_row_stride = row,
                                          .v_head_stride = shape->dim,
                                          .cos_sin = shape->rotary_dim ? fused->cos_sin : 0,
                                          .positions = shape->names ? fused->positions : 0,
                                          .slots = shape->names ? fused->slots : 0,
                                          .table_rows = shape->keys,
                                          .rotary_dim = shape->rotary_dim,
                                          .interleaved = shape->interleaved};
}

static void launch_fused(const struct fused *fused)
{
    const struct attnd_cuda_fused_args args = fused_args(fused);

    plan_on_stream(fused);
    CHECK_OK(attnd_cuda_run_fused_on_stream(fused->session, FUSED_LANE, fused->prepared[0], &args,
                                            fused->stream));
}

static void capture(struct fused *fused)
{
    CUgraph graph;

    CHECK_CUDA(cuStreamBeginCapture(fused->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch_fused(fused);
    CHECK_CUDA(cuStreamEndCapture(fused->stream, &graph));
    CHECK_CUDA(cuGraphInstantiate(&fused->graph, graph, 0));
    CHECK_CUDA(cuGraphDestroy(graph));
}

static void make_arrays(struct fused *fused)
{
    const struct fused_shape *shape = &fused->shape;
    const uint64_t angles = (uint64_t)shape->keys * (shape->rotary_dim ? shape->rotary_dim : 1);
    struct prng prng = prng_fork(5, shape->dim);

    CHECK_CUDA(cuMemAlloc(&fused->cos_sin, angles * 4));
    CHECK_CUDA(cuMemAlloc(&fused->positions, (fused->rows + shape->requests + 1) * 4));
    CHECK_CUDA(cuMemAlloc(&fused->slots, fused->rows * 4));
    CHECK_CUDA(cuMemAlloc(&fused->lengths, shape->requests * 4));
    CHECK_CUDA(cuMemAlloc(&fused->table, (uint64_t)fused->pages * 4));
    fused->host_cos_sin = on_device_host(angles, 4);
    fused->host_positions = on_device_host(fused->rows, 4);
    fused->host_slots = on_device_host(fused->rows, 4);
    fused->host_lengths = on_device_host(shape->requests, 4);
    fused->host_table = on_device_host(fused->pages, 4);
    fused->host_qo = on_device_host(shape->requests + 1, 4);
    fused->qkv = on_device_host(qkv_bytes(fused), 1);
    fused->turned = on_device_host(qkv_bytes(fused), 1);
    fused->planes = on_device_host(2 * plane_bytes(fused), 1);
    fused->poisoned = on_device_host(2 * plane_bytes(fused), 1);
    for (uint64_t i = 0; i < angles; i++)
        fused->host_cos_sin[i] = (float)(2.0 * prng_unit(&prng) - 1.0);
    to_device(fused->cos_sin, fused->host_cos_sin, angles * 4);
    for (uint32_t i = 0; i < fused->pages; i++) { /* no page is of two requests */
        const uint32_t other = prng_below(&prng, i + 1);
        fused->host_table[i] = fused->host_table[other];
        fused->host_table[other] = (int32_t)i;
    }
    to_device(fused->table, fused->host_table, (uint64_t)fused->pages * 4);
    for (uint32_t r = 0; r < shape->requests; r++)
        fused->host_qo[r + 1] = fused->host_qo[r] + (int32_t)(shape->rows_each ? shape->rows_each
                                                              : r == 0         ? shape->prompt
                                                                               : 1);
}

void fused_open(struct fused *fused, const char *socket_path, const struct fused_shape *shape)
{
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .socket_path = socket_path,
                                         .name = "fused",
                                         .execute = ATTND_EXECUTE_ENGINE};
    uint32_t memory;

    *fused = (struct fused){.shape = *shape};
    fused->rows =
        shape->rows_each ? shape->requests * shape->rows_each : shape->requests - 1 + shape->prompt;
    fused->stride = (shape->keys + shape->page_size - 1) / shape->page_size;
    fused->pages = fused->stride * shape->requests;
    CHECK_OK(attnd_open(&args, &fused->session));
    CHECK_CUDA(cuStreamCreate(&fused->stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(attnd_memory_create_device(fused->session, planes_at(fused) + 2 * plane_bytes(fused),
                                        &memory));
    CHECK_OK(attnd_cuda_map(fused->session, memory, &fused->memory));
    make_arrays(fused);
    make_pool(fused, memory);
    make_plan(fused);
    prepare(fused, memory);
    if (shape->in_graph)
        capture(fused);
}

void fused_close(struct fused *fused)
{
    void *const memories[] = {fused->qkv,        fused->turned,       fused->planes,
                              fused->poisoned,   fused->host_cos_sin, fused->host_positions,
                              fused->host_slots, fused->host_lengths, fused->host_table,
                              fused->host_qo};

    CHECK_OK(attnd_cuda_lane_error(fused->session, FUSED_LANE));
    if (fused->graph)
        CHECK_CUDA(cuGraphExecDestroy(fused->graph));
    attnd_close(fused->session);
    CHECK_CUDA(cuMemFree(fused->cos_sin));
    CHECK_CUDA(cuMemFree(fused->positions));
    CHECK_CUDA(cuMemFree(fused->slots));
    CHECK_CUDA(cuMemFree(fused->lengths));
    CHECK_CUDA(cuMemFree(fused->table));
    for (uint32_t i = 0; i < sizeof(memories) / sizeof(memories[0]); i++)
        free(memories[i]);
}

/* ---- what is to come ---- */

/* Finite in any type. */
static void fill_planes(struct fused *fused, struct prng *prng)
{
    const uint64_t bytes = 2 * plane_bytes(fused);

    if (!is_narrow(fused)) {
        on_device_fill(fused->shape.dtype, (uint16_t *)(void *)fused->planes, bytes / 2, prng);
        return;
    }
    for (uint64_t i = 0; i < bytes; i++)
        fused->planes[i] = (uint8_t)(prng_next(prng) % 0x50 | (prng_next(prng) & 0x80));
}

/* By its definition, of the numbers that @row has. */
static void turn(const struct fused *fused, uint16_t *row, int32_t position)
{
    const struct fused_shape *shape = &fused->shape;
    const uint32_t half = shape->rotary_dim / 2;
    const float *cosine =
        fused->host_cos_sin + (uint64_t)(position < 0 ? 0 : position) * shape->rotary_dim;

    for (uint32_t i = 0; i < half; i++) {
        uint16_t *first = row + (shape->interleaved ? 2 * i : i);
        uint16_t *second = shape->interleaved ? first + 1 : first + half;
        const float a = (float)bits16_value(shape->dtype, *first);
        const float b = (float)bits16_value(shape->dtype, *second);
        const float c = cosine[i], s = cosine[half + i];
        volatile float by_sine = b * s, by_cosine = b * c; /* rounded */
        *first = bits16_round(shape->dtype, (double)fmaf(a, c, -by_sine));
        *second = bits16_round(shape->dtype, (double)fmaf(a, s, by_cosine));
    }
}

/* A row of K or V to its place in what the pool is to have; and poison to there. */
static void store(struct fused *fused, const uint16_t *row, uint32_t of_v, uint32_t slot,
                  uint32_t head)
{
    const struct fused_shape *shape = &fused->shape;
    const uint64_t at =
        of_v * plane_elements(fused) + ((uint64_t)slot * shape->heads_kv + head) * shape->dim;
    const float scale = of_v ? shape->v_scale : shape->k_scale;
    const float by = 1.0f / (scale != 0 ? scale : 1.0f);

    if (!is_narrow(fused)) {
        memcpy(fused->planes + at * 2, row, shape->dim * 2);
        memset(fused->poisoned + at * 2, POISON, shape->dim * 2);
        return;
    }
    for (uint32_t i = 0; i < shape->dim; i++) {
        const float value = (float)bits16_value(shape->dtype, row[i]) * by;
        fused->planes[at + i] = bits8_round(shape->kv_dtype, (double)value);
    }
    memset(fused->poisoned + at, POISON, shape->dim);
}

/* Row @row, which is key @key of request @request. */
static void expect_row(struct fused *fused, uint32_t request, uint32_t row, int32_t key, int stores)
{
    const struct fused_shape *shape = &fused->shape;
    uint16_t *turned = fused->turned + row * row_elements(fused);
    const int32_t position = shape->names ? fused->host_positions[row] : key;
    const uint32_t turns = heads_q(fused) + shape->heads_kv;

    for (uint32_t head = 0; head < turns; head++)
        turn(fused, turned + (uint64_t)head * shape->dim, position);
    if (!stores) {
        fused->host_slots[row] = -1;
        return;
    }
    const int32_t page =
        fused->host_table[request * fused->stride + (uint32_t)key / shape->page_size];
    const uint32_t slot = (uint32_t)page * shape->page_size + (uint32_t)key % shape->page_size;
    if (shape->names && fused->host_slots[row] == -1)
        return;
    fused->host_slots[row] = (int32_t)slot;
    for (uint32_t i = 0; i < 2 * shape->heads_kv; i++)
        store(fused, turned + (uint64_t)(heads_q(fused) + i) * shape->dim, i / shape->heads_kv,
              slot, i % shape->heads_kv);
}

static void draw_lengths(struct fused *fused, struct prng *prng)
{
    const struct fused_shape *shape = &fused->shape;

    for (uint32_t r = 0; r < shape->requests; r++) {
        const uint32_t rows = (uint32_t)(fused->host_qo[r + 1] - fused->host_qo[r]);
        fused->host_lengths[r] = prng_between(prng, (int32_t)rows, (int32_t)shape->keys);
        if (prng_below(prng, 6) == 0) /* rows in front of the first key, too */
            fused->host_lengths[r] = prng_between(prng, 1, (int32_t)rows + 2);
        if (prng_below(prng, 6) == 0) /* new keys on both sides of a block's end */
            fused->host_lengths[r] = (int32_t)shape->keys / 256 * 128 + prng_between(prng, 1, 9);
        if (shape->on_device && prng_below(prng, 8) == 0)
            fused->host_lengths[r] = 0;
    }
}

void fused_draw(struct fused *fused, struct prng *prng)
{
    const struct fused_shape *shape = &fused->shape;

    draw_lengths(fused, prng);
    on_device_fill(fused->shape.dtype, fused->qkv, qkv_bytes(fused) / 2, prng);
    fill_planes(fused, prng);
    memcpy(fused->turned, fused->qkv, qkv_bytes(fused));
    memcpy(fused->poisoned, fused->planes, 2 * plane_bytes(fused));
    for (uint32_t row = 0; row < fused->rows; row++) {
        fused->host_positions[row] = (int32_t)prng_below(prng, shape->keys);
        fused->host_slots[row] = prng_below(prng, 4) == 0 ? -1 : 0;
    }
    for (uint32_t r = 0; r < shape->requests; r++)
        for (int32_t row = fused->host_qo[r]; row < fused->host_qo[r + 1]; row++) {
            const int32_t key = fused->host_lengths[r] - (fused->host_qo[r + 1] - row);
            expect_row(fused, r, (uint32_t)row, key, key >= 0);
        }
}

/* ---- launching and judging ---- */

static void advance(const struct fused *fused)
{
    const struct attnd_advance advance = {
        .size = sizeof(advance), .entries = fused->shape.requests, .kv_len = fused->host_lengths};
    const struct attnd_op op = {.lane = FUSED_LANE};

    if (fused->shape.on_device)
        return;
    CHECK_OK(attnd_plan_advance(fused->session, fused->plan, &advance, &op));
    on_device_await(fused->session);
}

static void bring(const struct fused *fused)
{
    const struct fused_shape *shape = &fused->shape;

    to_device(fused->memory, fused->qkv, qkv_bytes(fused));
    to_device(fused->memory + qkv_bytes(fused), fused->turned, qkv_bytes(fused));
    to_device(fused->positions, fused->host_positions, fused->rows * 4);
    to_device(fused->positions + fused->rows * 4, fused->host_qo, (shape->requests + 1) * 4);
    to_device(fused->slots, fused->host_slots, fused->rows * 4);
    to_device(fused->lengths, fused->host_lengths, shape->requests * 4);
    CHECK_CUDA(cuMemsetD8(fused->memory + o_at(fused, 0), POISON, o_at(fused, 2) - o_at(fused, 0)));
    advance(fused);
}

static void attend(const struct fused *fused, uint32_t which, const uint8_t *planes)
{
    to_device(fused->memory + planes_at(fused), planes, 2 * plane_bytes(fused));
    CHECK_CUDA(cuCtxSynchronize());
    if (which == 1) {
        plan_on_stream(fused);
        CHECK_OK(attnd_cuda_run_on_stream(fused->session, FUSED_LANE, fused->prepared[1],
                                          fused->stream));
    } else if (fused->graph) {
        CHECK_CUDA(cuGraphLaunch(fused->graph, fused->stream));
    } else {
        launch_fused(fused);
    }
    CHECK_CUDA(cuStreamSynchronize(fused->stream));
    CHECK_OK(attnd_cuda_lane_error(fused->session, FUSED_LANE));
}

/* Where the bytes differ first; @bytes: nowhere. */
static uint64_t difference(const uint8_t *a, const uint8_t *b, uint64_t bytes)
{
    uint64_t at = 0;

    while (at < bytes && a[at] == b[at])
        at++;
    return at;
}

void fused_right(struct fused *fused)
{
    const uint64_t bytes = 2 * plane_bytes(fused), rows = o_at(fused, 2);
    uint8_t *found = on_device_host(rows + bytes, 1);

    bring(fused);
    attend(fused, 1, fused->planes);
    attend(fused, 0, fused->poisoned);
    CHECK_CUDA(cuMemcpyDtoH(found, fused->memory, rows + bytes));
    CHECK_EQUAL(difference(found, (const uint8_t *)fused->qkv, qkv_bytes(fused)), qkv_bytes(fused));
    CHECK_EQUAL(difference(found + rows, fused->planes, bytes), bytes);
    CHECK_EQUAL(
        difference(found + o_at(fused, 0), found + o_at(fused, 1), o_at(fused, 1) - o_at(fused, 0)),
        o_at(fused, 1) - o_at(fused, 0));
    free(found);
}
