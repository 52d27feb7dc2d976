/*
 * test_e2e_variant.c - promises of variants that a random batch does not show.
 */
#include "tests/support/harness/check.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DIM 64u
#define HEADS 4u
#define PAGES 512u
#define PAGE_SIZE 16u
#define ROWS_MAX 256u
#define ROW (HEADS * DIM) /* elements of q and o */
#define O_BYTES ((uint64_t)ROWS_MAX * ROW * 2)

/* One pool of 2 KV heads of 64, its pages filled at random, and a plan that may cut as it is told.
 */
struct scene {
    struct attnd_session *session;
    uint32_t pool, plan, memory;
    uint16_t *rows; /* q at 0, o at ROWS_MAX rows, lse behind it */
    struct attnd_variant variant;
};

static uint16_t small(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint16_t)(0x3000u | (*state >> 16 & 0x83ffu)); /* +-0.125 to 0.25 in fp16 */
}

static void scene_open(struct scene *scene, const struct harness *harness, uint32_t fixed_split)
{
    struct attnd_pool_info info = {.size = sizeof(info)};
    uint32_t state = 5;
    void *address;

    *scene = (struct scene){.session = e2e_open(harness), .variant = ATTND_VARIANT_INIT};
    CHECK_OK(attnd_pool_create_leased(scene->session, 1, PAGES, PAGE_SIZE, 2, DIM, ATTND_DTYPE_FP16,
                                      &scene->pool));
    CHECK_OK(attnd_pool_info(scene->session, scene->pool, &info));
    uint16_t *pool = info.address;
    for (uint64_t i = 0; i < info.memory_bytes / 2; i++)
        pool[i] = small(&state);
    int32_t pages[PAGES];
    CHECK_OK(attnd_pages_alloc(scene->session, scene->pool, PAGES, pages));
    CHECK_OK(attnd_memory_create(scene->session, 2 * O_BYTES + ROWS_MAX * HEADS * sizeof(float),
                                 &scene->memory, &address));
    scene->rows = address;
    for (uint32_t i = 0; i < ROWS_MAX * ROW; i++)
        scene->rows[i] = (uint16_t)(small(&state) + 0x1c00); /* 128 times that: peaked softmax */
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = scene->pool,
                                         .requests = 16,
                                         .rows = ROWS_MAX,
                                         .pages = PAGES,
                                         .levels = 2,
                                         .heads_q = HEADS,
                                         .fixed_split = fixed_split};
    CHECK_OK(attnd_plan_create(scene->session, &args, &scene->plan));
}

/* Requests of @qo and @kv, whose pages lie one behind the other from page @first on; behind
 * @prefix tokens of the pages at the end, if there are any. Return: the code that plan_set
 * completes with. */
static int set_behind(struct scene *scene, int32_t prefix, uint32_t requests, const int32_t *qo,
                      const int32_t *kv, int32_t first, const int32_t *mask_indptr,
                      struct attnd_fault *fault)
{
    int32_t qo_indptr[17] = {0}, kv_indptr[17] = {0}, last[16], indices[PAGES];
    struct attnd_completion done;

    for (uint32_t r = 0; r < requests; r++) {
        const int32_t pages = (kv[r] + (int32_t)PAGE_SIZE - 1) / (int32_t)PAGE_SIZE;
        qo_indptr[r + 1] = qo_indptr[r] + qo[r];
        kv_indptr[r + 1] = kv_indptr[r] + pages;
        last[r] = kv[r] - (pages - 1) * (int32_t)PAGE_SIZE;
    }
    for (int32_t p = 0; p < kv_indptr[requests]; p++)
        indices[p] = first + p;
    const int32_t pages = (prefix + (int32_t)PAGE_SIZE - 1) / (int32_t)PAGE_SIZE;
    const int32_t rows[] = {0, qo_indptr[requests]}, list[] = {0, pages};
    const int32_t in_last = prefix - (pages - 1) * (int32_t)PAGE_SIZE;
    int32_t shared[PAGES];
    for (int32_t p = 0; p < pages; p++)
        shared[p] = (int32_t)PAGES - pages + p;
    const struct attnd_level level[] = {{1, rows, list, shared, &in_last},
                                        {requests, qo_indptr, kv_indptr, indices, last}};
    const struct attnd_batch batch = {.size = sizeof(batch),
                                      .levels = prefix ? 2 : 1,
                                      .level = prefix ? level : level + 1,
                                      .flags = ATTND_CAUSAL,
                                      .variant = &scene->variant,
                                      .mask_indptr = mask_indptr};
    CHECK_OK(attnd_plan_set(scene->session, scene->plan, &batch, NULL));
    CHECK_EQUAL(attnd_wait(scene->session, &done, 1, TRIAL_WAIT_NS), 1);
    if (fault)
        *fault = done.fault;
    return done.fault.code;
}

static int set(struct scene *scene, uint32_t requests, const int32_t *qo, const int32_t *kv,
               int32_t first, const int32_t *mask_indptr, struct attnd_fault *fault)
{
    return set_behind(scene, 0, requests, qo, kv, first, mask_indptr, fault);
}

/* What a row came to. */
struct result {
    uint16_t o[ROW];
    uint32_t lse[HEADS]; /* the bits of floats */
};

/* Row @row of the batch that is set, whose rows of q begin at @from. */
static struct result run(struct scene *scene, uint32_t from, uint32_t row)
{
    const struct attnd_run_args args = {.size = sizeof(args),
                                        .q = {scene->memory, (uint64_t)from * ROW * 2},
                                        .o = {scene->memory, O_BYTES},
                                        .lse = {scene->memory, 2 * O_BYTES}};
    const uint16_t *o = scene->rows + ROWS_MAX * ROW;
    const uint32_t *lse = (const uint32_t *)(const void *)(o + ROWS_MAX * ROW);
    struct result result;

    CHECK_OK(attnd_run_sync(scene->session, scene->plan, &args));
    memcpy(result.o, o + row * ROW, sizeof(result.o));
    memcpy(result.lse, lse + row * HEADS, sizeof(result.lse));
    return result;
}

/* shows: fixed splits: a request's result is the same to the bit beside any others, behind a shared
 * prefix too | yes | yes | splits of 1 to 1,024 keys | test_e2e_variant, test_e2e_contract_random,
 * test_plan_variant */
/* The request in the middle has 1 query, 3,000 keys, and the same pages and query each time. How
 * its parts are summed shows in the last bits of lse. */
static void with_a_fixed_split_a_result_is_the_same_to_the_bit_beside_any_others(void **state)
{
    static const int32_t qo[] = {7, 1, 100}, kv[] = {2000, 3000, 900};
    struct scene scene;

    scene_open(&scene, *state, 256);
    scene.variant.fixed_split = 256;
    CHECK_OK(set(&scene, 1, qo + 1, kv + 1, 125, NULL, NULL));
    const struct result alone = run(&scene, 7, 0);
    CHECK_OK(set(&scene, 3, qo, kv, 0, NULL, NULL));
    const struct result among = run(&scene, 0, 7);
    CHECK(memcmp(&among, &alone, sizeof(alone)) == 0);
    scene.variant.fixed_split = 1024;
    CHECK_OK(set(&scene, 1, qo + 1, kv + 1, 125, NULL, NULL));
    const struct result other = run(&scene, 7, 0);
    CHECK(memcmp(&other, &alone, sizeof(alone)) != 0);
    attnd_close(scene.session);
}

/* Alone its row would be in a tile of few rows, of another loop. */
static void so_it_is_behind_a_prefix_that_others_share(void **state)
{
    static const int32_t qo[] = {7, 1, 100}, kv[] = {60, 500, 90};
    struct scene scene;

    scene_open(&scene, *state, 64);
    scene.variant.fixed_split = 64;
    for (int32_t prefix = 100; prefix < 1000; prefix += 50) {
        CHECK_OK(set_behind(&scene, prefix, 1, qo + 1, kv + 1, 4, NULL, NULL));
        const struct result alone = run(&scene, 7, 0);
        CHECK_OK(set_behind(&scene, prefix, 3, qo, kv, 0, NULL, NULL));
        const struct result among = run(&scene, 0, 7);
        CHECK(memcmp(&among, &alone, sizeof(alone)) == 0);
    }
    attnd_close(scene.session);
}

static void a_plan_made_without_fixed_splits_says_so(void **state)
{
    const int32_t qo[] = {1}, kv[] = {4000};
    struct attnd_fault fault;
    struct scene scene;

    scene_open(&scene, *state, 0);
    scene.variant.fixed_split = 256;
    CHECK_EQUAL(set(&scene, 1, qo, kv, 0, NULL, &fault), -ATTND_E_NO_SPACE);
    CHECK_EQUAL(fault.field, ATTND_F_FIXED_SPLIT);
    CHECK_EQUAL(fault.value, 256);
    CHECK_EQUAL(fault.limit, 0);
    attnd_close(scene.session);
}

static void a_plan_keeps_the_memory_of_its_tables_until_it_is_set_again(void **state)
{
    const int32_t qo[] = {1}, kv[] = {40};
    struct attnd_fault fault;
    struct scene scene;
    uint32_t sinks;

    if (e2e_on_gpu())
        skip();
    scene_open(&scene, *state, 0);
    CHECK_OK(attnd_memory_create(scene.session, 4096, &sinks, NULL));
    scene.variant.sinks.memory = sinks;
    scene.variant.sinks.offset_bytes = 4096 - 12; /* 3 of 4 heads */
    CHECK_EQUAL(set(&scene, 1, qo, kv, 0, NULL, &fault), -ATTND_E_RANGE);
    CHECK_EQUAL(fault.field, ATTND_F_SINKS);
    CHECK_EQUAL(fault.value, 4096 + 4);
    CHECK_EQUAL(fault.limit, 4096);
    scene.variant.sinks.offset_bytes = 4096 - 16;
    CHECK_OK(set(&scene, 1, qo, kv, 0, NULL, NULL));
    CHECK_EQUAL(attnd_memory_release(scene.session, sinks), -ATTND_E_BUSY);
    (void)run(&scene, 0, 0);
    scene.variant = (struct attnd_variant)ATTND_VARIANT_INIT;
    CHECK_OK(set(&scene, 1, qo, kv, 0, NULL, NULL));
    CHECK_OK(attnd_memory_release(scene.session, sinks));
    scene.variant.sinks.memory = sinks;
    CHECK_EQUAL(set(&scene, 1, qo, kv, 0, NULL, &fault), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(fault.field, ATTND_F_SINKS);
    attnd_close(scene.session);
}

/* shows: a row that sees no key while its head has a sink: o is 0, lse is the sink | yes | yes |
 * rows in front of all keys, alone, beside others and as parts | test_e2e_variant,
 * test_e2e_contract_random */
/* Of causal requests with fewer keys than rows the first rows see none. */
static void a_row_without_keys_has_its_sink_as_lse(void **state)
{
    static const float given[HEADS] = {-3.5f, 0.0f, 40.0f, -INFINITY};
    static const int32_t qo[] = {1, 20, 190}, kv[] = {700, 5, 60};
    struct scene scene;
    void *address;

    scene_open(&scene, *state, 0);
    CHECK_OK(attnd_memory_create(scene.session, 4096, &scene.variant.sinks.memory, &address));
    memcpy(address, given, sizeof(given));
    for (uint32_t from = 0; from < 3; from++) {
        CHECK_OK(set(&scene, 3 - from, qo + from, kv + from, 0, NULL, NULL));
        for (uint32_t r = from, row = 0; r < 3; row += (uint32_t)qo[r++]) {
            if (qo[r] <= kv[r])
                continue;
            const struct result got = run(&scene, 0, row + (uint32_t)(qo[r] - kv[r]) / 2);
            for (uint32_t i = 0; i < ROW; i++)
                CHECK_EQUAL(got.o[i], 0);
            for (uint32_t h = 0; h < HEADS; h++) {
                float lse;
                memcpy(&lse, &got.lse[h], sizeof(lse));
                CHECK(h == 3 ? lse == -INFINITY : fabs((double)lse - given[h] / log(2)) < 1e-4);
            }
        }
    }
    attnd_close(scene.session);
}

/* A tensor in memory of the session, behind what run() uses. */
static float *slopes_of(struct scene *scene)
{
    void *address;

    CHECK_OK(
        attnd_memory_create(scene->session, 4096, &scene->variant.alibi_slopes.memory, &address));
    scene->variant.position_encoding = ATTND_POSITION_ALIBI;
    return address;
}

/* Where q is 0 a score is a slope times a distance. A rank with four of a model's eight heads has
 * slopes that none of four heads has in the paper, and any others besides. */
static void slopes_of_the_caller_are_those_of_its_heads(void **state)
{
    static const float given[HEADS] = {0x1p-5f, 0x1p-6f, 0.0f, -0.125f};
    const int32_t qo[] = {1, 7}, kv[] = {40, 90};
    struct scene scene;

    if (e2e_on_gpu())
        skip();
    scene_open(&scene, *state, 0);
    memset(scene.rows, 0, ROWS_MAX * ROW * 2);
    memcpy(slopes_of(&scene), given, sizeof(given));
    CHECK_OK(set(&scene, 2, qo, kv, 0, NULL, NULL));
    for (uint32_t row = 0; row < 8; row++) {
        const int32_t keys = row ? 90 - 7 + (int32_t)row : 40;
        const struct result got = run(&scene, 0, row);
        for (uint32_t h = 0; h < HEADS; h++) {
            float lse;
            double sum = 0;
            memcpy(&lse, &got.lse[h], sizeof(lse));
            for (int32_t j = 0; j < keys; j++)
                sum += exp((double)given[h] * (j - (keys - 1)));
            CHECK(fabs((double)lse - log2(sum)) < 1e-4);
        }
    }
    attnd_close(scene.session);
}

/* The contract's default said by the caller: the same bits. */
static void slopes_of_the_paper_may_be_given_too(void **state)
{
    static const float paper[HEADS] = {0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f};
    const int32_t qo[] = {3}, kv[] = {200};
    struct scene scene;

    if (e2e_on_gpu())
        skip();
    scene_open(&scene, *state, 0);
    scene.variant.position_encoding = ATTND_POSITION_ALIBI;
    CHECK_OK(set(&scene, 1, qo, kv, 0, NULL, NULL));
    const struct result own = run(&scene, 0, 2);
    memcpy(slopes_of(&scene), paper, sizeof(paper));
    CHECK_OK(set(&scene, 1, qo, kv, 0, NULL, NULL));
    const struct result given = run(&scene, 0, 2);
    CHECK(memcmp(&own, &given, sizeof(own)) == 0);
    scene.variant.alibi_slopes.memory = 999;
    struct attnd_fault fault;
    CHECK_EQUAL(set(&scene, 1, qo, kv, 0, NULL, &fault), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(fault.field, ATTND_F_ALIBI_SLOPES);
    attnd_close(scene.session);
}

/* Where q is 0 a row's lse is the logarithm of how many keys it sees. */
static void sees_its_chunk(struct scene *scene, uint32_t row, int32_t place)
{
    const int32_t chunk = (int32_t)scene->variant.chunk;
    const struct result got = run(scene, 0, row);
    float lse;

    memcpy(&lse, &got.lse[0], sizeof(lse));
    CHECK(fabs((double)lse - log2(place % chunk + 1)) < 1e-4);
}

/* shows: chunked attention (Llama 4) | yes | refused by name | chunks of 1 to 1,000 keys, decodes,
 * chunks of prompts, advances | test_e2e_variant */
static void a_row_sees_the_keys_of_its_own_chunk(void **state)
{
    static const uint32_t chunks[] = {1, 7, 16, 64, 100, 128, 1000};
    const int32_t qo[] = {1, 1, 130}, kv[] = {40, 700, 300};
    struct scene scene;

    if (e2e_on_gpu())
        skip();
    scene_open(&scene, *state, 0);
    memset(scene.rows, 0, ROWS_MAX * ROW * 2);
    for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
        scene.variant.chunk = chunks[c];
        CHECK_OK(set(&scene, 3, qo, kv, 0, NULL, NULL));
        sees_its_chunk(&scene, 0, 39);
        sees_its_chunk(&scene, 1, 699);
        for (uint32_t i = 0; i < 130; i += 13)
            sees_its_chunk(&scene, 2 + i, 170 + (int32_t)i);
        const int32_t shorter[] = {33, 641, 295};
        const struct attnd_advance advance = {
            .size = sizeof(advance), .entries = 3, .kv_len = shorter};
        struct attnd_completion done;
        CHECK_OK(attnd_plan_advance(scene.session, scene.plan, &advance, NULL));
        CHECK_EQUAL(attnd_wait(scene.session, &done, 1, TRIAL_WAIT_NS), 1);
        CHECK_EQUAL(done.fault.code, 0);
        sees_its_chunk(&scene, 0, 32);
        sees_its_chunk(&scene, 1, 640);
        sees_its_chunk(&scene, 131, 294);
    }
    attnd_close(scene.session);
}

static void a_chunk_goes_with_one_level_and_no_window(void **state)
{
    const int32_t qo[] = {1}, kv[] = {40};
    struct attnd_fault fault;
    struct scene scene;

    scene_open(&scene, *state, 0);
    scene.variant.chunk = 16;
    CHECK_EQUAL(set_behind(&scene, 30, 1, qo, kv, 0, NULL, &fault), -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(fault.field, ATTND_F_CHUNK);
    CHECK_EQUAL(fault.index, ATTND_F_LEVELS);
    if (e2e_on_gpu()) {
        CHECK_EQUAL(set(&scene, 1, qo, kv, 0, NULL, &fault), -ATTND_E_UNSUPPORTED);
        CHECK_EQUAL(fault.field, ATTND_F_CHUNK);
        CHECK_EQUAL(fault.index, ATTND_F_BACKEND);
    }
    attnd_close(scene.session);
}

/* shows: ALiBi with slopes of the caller | yes | refused by name | four heads, also slopes of 0 and
 * below | test_e2e_variant */
static void a_gpu_refuses_slopes_of_the_caller_by_name(void **state)
{
    const int32_t qo[] = {1}, kv[] = {40};
    struct attnd_fault fault;
    struct scene scene;

    if (!e2e_on_gpu())
        skip();
    scene_open(&scene, *state, 0);
    (void)slopes_of(&scene);
    CHECK_EQUAL(set(&scene, 1, qo, kv, 0, NULL, &fault), -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(fault.field, ATTND_F_ALIBI_SLOPES);
    CHECK_EQUAL(fault.index, ATTND_F_BACKEND);
    attnd_close(scene.session);
}

static void a_mask_has_a_bit_for_each_query_and_key_and_is_not_advanced(void **state)
{
    const int32_t qo[] = {3, 2}, kv[] = {21, 16}; /* 63 and 32 bits */
    int32_t indptr[] = {0, 8, 11};
    struct attnd_completion done;
    struct attnd_fault fault;
    struct scene scene;

    scene_open(&scene, *state, 0);
    scene.variant.mask.memory = scene.memory;
    CHECK_EQUAL(set(&scene, 2, qo, kv, 0, NULL, &fault), -ATTND_E_INVALID);
    CHECK_EQUAL(fault.field, ATTND_F_MASK_INDPTR);
    CHECK_EQUAL(set(&scene, 2, qo, kv, 0, indptr, &fault), -ATTND_E_RANGE);
    CHECK_EQUAL(fault.field, ATTND_F_MASK_INDPTR);
    CHECK_EQUAL(fault.index, 2);
    CHECK_EQUAL(fault.value, 11);
    CHECK_EQUAL(fault.limit, 12);
    indptr[2] = 12;
    CHECK_OK(set(&scene, 2, qo, kv, 0, indptr, NULL));
    const struct attnd_advance advance = {.size = sizeof(advance), .entries = 2, .kv_len = kv};
    CHECK_OK(attnd_plan_advance(scene.session, scene.plan, &advance, NULL));
    CHECK_EQUAL(attnd_wait(scene.session, &done, 1, TRIAL_WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(done.fault.field, ATTND_F_MASK);
    attnd_close(scene.session);
}

/* V is the first 512 of each row of K, in one plane, as multi-head latent attention has it. */
static void keys_and_values_may_lie_in_one_plane(void **state)
{
    enum { LATENT = 576, VALUE = 512, TOKENS = 40, LATENT_PAGES = 8 };
    struct attnd_session *session = e2e_open(*state);
    const uint64_t bytes = (uint64_t)LATENT_PAGES * PAGE_SIZE * LATENT * 2;
    uint32_t memory, rows, pool, plan, seed = 11;
    void *address, *row;

    CHECK_OK(attnd_memory_create(session, bytes, &memory, &address));
    CHECK_OK(attnd_memory_create(session, 4096, &rows, &row));
    uint16_t *latents = address, *q = row, *o = q + LATENT;
    for (uint64_t i = 0; i < bytes / 2; i++)
        latents[i] = small(&seed);
    memset(q, 0, LATENT * sizeof(*q)); /* all keys weigh the same: o is the mean of the values */
    const struct attnd_plane plane = {memory, 0, PAGE_SIZE * LATENT, LATENT, LATENT};
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = LATENT_PAGES,
                                         .page_size = PAGE_SIZE,
                                         .heads_kv = 1,
                                         .dim_qk = LATENT,
                                         .dim_vo = VALUE,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .k = &plane,
                                         .v = &plane};
    CHECK_OK(attnd_pool_create(session, &desc, &pool));
    CHECK_OK(attnd_plan_create(session,
                               &ATTND_ARGS(plan_args, .pool = pool, .requests = 1, .rows = 1,
                                           .pages = LATENT_PAGES, .levels = 1, .heads_q = 1),
                               &plan));
    const int32_t one[] = {0, 1}, pages[] = {0, 3}, ids[] = {4, 0, 7}, last[] = {TOKENS - 32};
    const struct attnd_level level = {1, one, pages, ids, last};
    const struct attnd_batch batch = {.size = sizeof(batch), .level = &level};
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};
    CHECK_OK(attnd_plan_set(session, plan, &batch, &quiet));
    CHECK_OK(attnd_run_sync(
        session, plan, &ATTND_ARGS(run_args, .q = {rows, 0}, .o = {rows, (uint64_t)(o - q) * 2})));
    for (uint32_t d = 0; d < VALUE; d++) {
        double sum = 0;
        for (uint32_t t = 0; t < TOKENS; t++)
            sum += (double)bits16_table(ATTND_FP16)
                [latents[((uint32_t)ids[t / PAGE_SIZE] * PAGE_SIZE + t % PAGE_SIZE) * LATENT + d]];
        const double got = (double)bits16_table(ATTND_FP16)[o[d]], want = sum / TOKENS;
        CHECK(got > want - 1e-3 && got < want + 1e-3);
    }
    /* What append rotates of K lay under what it stores of V. */
    struct attnd_variant variant = ATTND_VARIANT_INIT;
    struct attnd_batch rotated = batch;
    struct attnd_completion done;
    variant.position_encoding = ATTND_POSITION_ROPE;
    variant.flags = ATTND_VARIANT_ROPE_APPEND;
    rotated.variant = &variant;
    CHECK_OK(attnd_plan_set(session, plan, &rotated, NULL));
    CHECK_EQUAL(attnd_wait(session, &done, 1, TRIAL_WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(done.fault.field, ATTND_F_POSITION_ENCODING);
    CHECK_EQUAL(done.fault.index, ATTND_F_DIM_VO);
    attnd_close(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(with_a_fixed_split_a_result_is_the_same_to_the_bit_beside_any_others),
        E2E_TEST(so_it_is_behind_a_prefix_that_others_share),
        E2E_TEST(a_plan_made_without_fixed_splits_says_so),
        E2E_TEST(a_plan_keeps_the_memory_of_its_tables_until_it_is_set_again),
        E2E_TEST(a_row_without_keys_has_its_sink_as_lse),
        E2E_TEST(slopes_of_the_caller_are_those_of_its_heads),
        E2E_TEST(slopes_of_the_paper_may_be_given_too),
        E2E_TEST(a_row_sees_the_keys_of_its_own_chunk),
        E2E_TEST(a_chunk_goes_with_one_level_and_no_window),
        E2E_TEST(a_gpu_refuses_slopes_of_the_caller_by_name),
        E2E_TEST(a_mask_has_a_bit_for_each_query_and_key_and_is_not_advanced),
        E2E_TEST(keys_and_values_may_lie_in_one_plane),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
