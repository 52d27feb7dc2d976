/* decodes.c - see decodes.h. */
#include "tests/support/trial/decodes.h"

#include "tests/support/harness/check.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/oracle/reference.h"

#include <stdio.h>
#include <string.h>

#define WAIT_NS 20000000000u
#define ROW (DECODES_HEADS_Q * DECODES_DIM)
#define ROWS_MAX (DECODES_REQUESTS_MAX * ROW)

static void fill(uint16_t *to, uint64_t count, struct prng *prng)
{
    for (uint64_t i = 0; i < count; i++) /* fp16: 1/8 to 2, of either sign */
        to[i] = (uint16_t)((prng_next(prng) & 0x8000u) | (0x3000u + prng_below(prng, 0x1000)));
}

static void make_pool(struct decodes *decodes, struct prng *prng)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = decodes->shape.pages,
                                         .page_size = decodes->shape.page_size,
                                         .heads_kv = DECODES_HEADS_KV,
                                         .dim_qk = DECODES_DIM,
                                         .dim_vo = DECODES_DIM,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE};

    CHECK_OK(attnd_pool_create(decodes->session, &desc, &decodes->pool));
    decodes->info.size = sizeof(decodes->info);
    CHECK_OK(attnd_pool_info(decodes->session, decodes->pool, &decodes->info));
    uint16_t *bits = attnd_memory_address(decodes->session, decodes->info.memory);
    CHECK(bits != NULL);
    fill(bits, decodes->info.memory_bytes / sizeof(*bits), prng);
    decodes->pool_bits = bits;
}

void decodes_open(struct decodes *decodes, const struct harness *harness,
                  const struct decodes_shape *shape, struct prng *prng)
{
    const uint64_t elements = (uint64_t)shape->requests * ROW;
    void *rows;

    CHECK(shape->requests <= DECODES_REQUESTS_MAX && shape->pages_each <= DECODES_PAGES_MAX);
    memset(decodes, 0, sizeof(*decodes));
    decodes->shape = *shape;
    decodes->session = e2e_open(harness);
    make_pool(decodes, prng);
    CHECK_OK(attnd_memory_create(decodes->session,
                                 (DECODES_SLOTS + 2) * elements * sizeof(uint16_t),
                                 &decodes->memory, &rows));
    decodes->q = rows;
    fill(decodes->q, elements, prng);
    for (uint32_t s = 0; s <= DECODES_SLOTS; s++)
        decodes->o[s] = decodes->q + (s + 1) * elements;
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = decodes->pool,
                                         .requests = shape->requests,
                                         .rows = shape->requests,
                                         .pages = shape->requests * shape->pages_each,
                                         .levels = 1,
                                         .heads_q = DECODES_HEADS_Q};
    CHECK_OK(attnd_plan_create(decodes->session, &args, &decodes->plan));
}

void decodes_close(struct decodes *decodes)
{
    attnd_close(decodes->session);
}

/* Collects completions, of runs too, until the operation of lane 0 is over. */
static struct attnd_completion await_lane_0(struct decodes *decodes)
{
    struct attnd_completion done;

    for (;;) {
        CHECK_EQUAL(attnd_wait(decodes->session, &done, 1, WAIT_NS), 1);
        CHECK_EQUAL(done.fault.code, 0);
        if (done.user_data == 0)
            return done;
        decodes->in_flight--;
    }
}

struct attnd_completion decodes_set(struct decodes *decodes, uint32_t flags, struct prng *prng)
{
    const struct decodes_shape *shape = &decodes->shape;
    int32_t qo_indptr[DECODES_REQUESTS_MAX + 1], kv_indptr[DECODES_REQUESTS_MAX + 1];
    static int32_t pages[DECODES_REQUESTS_MAX * DECODES_PAGES_MAX];
    int32_t last[DECODES_REQUESTS_MAX];
    const struct attnd_level level = {shape->requests, qo_indptr, kv_indptr, pages, last};
    const struct attnd_batch batch = {.size = sizeof(batch),
                                      .levels = 1,
                                      .flags = ATTND_CAUSAL | flags,
                                      .reserve_pages = shape->pages_each - shape->pages_begin,
                                      .level = &level,
                                      .variant = decodes->variant.size ? &decodes->variant : NULL};
    const struct attnd_op op = {0};

    for (uint32_t r = 0; r <= shape->requests; r++) {
        qo_indptr[r] = (int32_t)r;
        kv_indptr[r] = (int32_t)(r * shape->pages_begin);
    }
    for (uint32_t r = 0; r < shape->requests; r++) {
        last[r] = prng_between(prng, 1, (int32_t)shape->page_size);
        decodes->kv_len[r] = (int32_t)((shape->pages_begin - 1) * shape->page_size) + last[r];
        memcpy(pages + kv_indptr[r], decodes->page[r], shape->pages_begin * sizeof(*pages));
    }
    CHECK_OK(attnd_plan_set(decodes->session, decodes->plan, &batch, &op));
    return await_lane_0(decodes);
}

void decodes_advance(struct decodes *decodes, const int32_t *kv_len, const int32_t *page_indptr,
                     const int32_t *page_indices)
{
    const struct attnd_advance args = {.size = sizeof(args),
                                       .entries = decodes->shape.requests,
                                       .kv_len = kv_len,
                                       .page_indptr = page_indptr,
                                       .page_indices = page_indices};
    const struct attnd_op op = {0};

    memcpy(decodes->kv_len, kv_len, decodes->shape.requests * sizeof(*kv_len));
    CHECK_OK(attnd_plan_advance(decodes->session, decodes->plan, &args, &op));
    (void)await_lane_0(decodes);
    decodes->advanced++;
}

static struct attnd_tensor place(const struct decodes *decodes, const uint16_t *at)
{
    return (struct attnd_tensor){.memory = decodes->memory,
                                 .offset_bytes = (uint64_t)(at - decodes->q) * sizeof(*at)};
}

static void begin(struct decodes *decodes, uint32_t slot)
{
    memset(decodes->o[slot], 0xff, decodes->shape.requests * ROW * sizeof(uint16_t));
    memcpy(decodes->begun[slot], decodes->kv_len, sizeof(decodes->kv_len));
    decodes->busy[slot] = 1;
}

void decodes_submit(struct decodes *decodes, uint32_t slot)
{
    const struct attnd_run_args args = {.size = sizeof(args),
                                        .q = place(decodes, decodes->q),
                                        .o = place(decodes, decodes->o[slot])};
    const struct attnd_op op = {.user_data = 1 + slot, .lane = (uint16_t)(1 + slot)};

    begin(decodes, slot);
    CHECK_OK(attnd_run(decodes->session, decodes->plan, &args, &op));
    decodes->in_flight++;
}

static struct reference_plane plane_of(const struct decodes *decodes,
                                       const struct attnd_plane *plane)
{
    return (struct reference_plane){decodes->pool_bits + plane->offset_bytes / sizeof(uint16_t),
                                    plane->stride_page, plane->stride_token, plane->stride_head};
}

static void verify(struct decodes *decodes, uint32_t slot)
{
    static double o_want[ROWS_MAX], lse_want[DECODES_REQUESTS_MAX * DECODES_HEADS_Q];
    const uint32_t requests = decodes->shape.requests;
    int32_t qo_indptr[DECODES_REQUESTS_MAX + 1], kv_indptr[DECODES_REQUESTS_MAX + 1];
    struct reference_mismatch wrong;
    struct reference_batch batch = {
        .dtype = ATTND_DTYPE_FP16,
        .rows = requests,
        .heads_q = DECODES_HEADS_Q,
        .heads_kv = DECODES_HEADS_KV,
        .dim = DECODES_DIM,
        .page_size = decodes->shape.page_size,
        .causal = 1,
        .levels = 1,
        .variant = {.soft_cap = (double)decodes->variant.logits_soft_cap,
                    .v_scale = (double)decodes->variant.v_scale,
                    .sinks = decodes->sinks},
        .q = {decodes->q, ROW, DECODES_DIM},
        .k = plane_of(decodes, &decodes->info.desc.k[0]),
        .v = plane_of(decodes, &decodes->info.desc.v[0])};
    const struct reference_rows o = {decodes->o[slot], ROW, DECODES_DIM};

    for (uint32_t r = 0; r <= requests; r++) {
        qo_indptr[r] = (int32_t)r;
        kv_indptr[r] = (int32_t)(r * DECODES_PAGES_MAX);
    }
    batch.level[0] = (struct reference_level){requests, qo_indptr, kv_indptr, &decodes->page[0][0],
                                              decodes->begun[slot]};
    reference_attend(&batch, o_want, lse_want);
    if (!reference_compare(&batch, o_want, lse_want, &o, NULL, 0, 0, &wrong)) {
        printf("after %u advances, run %u: %llu elements differ; o of request %u, head %u, dim %u "
               "is %g, not %g\n",
               decodes->advanced, slot, (unsigned long long)wrong.count, wrong.row, wrong.head,
               wrong.dim, wrong.got, wrong.want);
        CHECK_FAIL("a run is not the reference's");
    }
    decodes->busy[slot] = 0;
    decodes->verified++;
}

void decodes_await_and_verify(struct decodes *decodes)
{
    struct attnd_completion done;

    for (; decodes->in_flight; decodes->in_flight--) {
        CHECK_EQUAL(attnd_wait(decodes->session, &done, 1, WAIT_NS), 1);
        CHECK_EQUAL(done.fault.code, 0);
    }
    for (uint32_t s = 0; s < DECODES_SLOTS; s++)
        if (decodes->busy[s])
            verify(decodes, s);
}

void decodes_prepare(struct decodes *decodes)
{
    const struct attnd_prepare_args args = {.size = sizeof(args),
                                            .lane = DECODES_LANE_PREPARED,
                                            .q = place(decodes, decodes->q),
                                            .o = place(decodes, decodes->o[DECODES_SLOTS])};
    CHECK_OK(attnd_prepare(decodes->session, decodes->plan, &args, &decodes->prepared));
}

void decodes_launch(struct decodes *decodes)
{
    begin(decodes, DECODES_SLOTS);
    CHECK_OK(attnd_launch(decodes->session, DECODES_LANE_PREPARED, decodes->prepared));
    CHECK_EQUAL(attnd_launch_wait(decodes->session, DECODES_LANE_PREPARED, WAIT_NS), 0);
    verify(decodes, DECODES_SLOTS);
}
