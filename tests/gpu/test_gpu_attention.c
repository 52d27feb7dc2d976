/*
 * test_gpu_attention.c - engines with a CUDA context each, pools and rows in device memory, every
 * element against fp64. Outputs are poisoned with NaN before, and where NaN stands is compared
 * first.
 */
#include "tests/gpu/support/gpu.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/meeting.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define CLIENT_MS 60000
#define ROUNDS 5

/* ---- one engine: @claim in a process of its own ---- */

struct claim {
    const struct harness *harness;
    void (*check)(struct engine *engine);
};

static int client(void *context)
{
    const struct claim *claim = context;
    struct engine engine;

    gpu_open();
    gpu_engine_open(&engine, claim->harness->socket, "gpu");
    claim->check(&engine);
    engine_close(&engine);
    return 0;
}

static void in_a_client(const struct harness *harness, void (*check)(struct engine *engine))
{
    struct claim claim = {harness, check};
    CHECK_EQUAL(harness_join(harness_fork(client, &claim), CLIENT_MS), 0);
}

static void append_and_run(struct engine *engine)
{
    struct random_batch batch = e2e_batch();

    batch.shape.layers = 4;
    batch.append = 1;
    trial_expect(engine, &batch); /* planes of the engine's own in device memory */
    batch.shape.service_pool = 1;
    trial_expect(engine, &batch); /* a pool the service made there */
}

static void append_and_run_on_every_layer_is_right(void **state)
{
    in_a_client(*state, append_and_run);
}

static void decode_by_advance(struct engine *engine)
{
    struct random_batch batch = e2e_decoding_batch();

    batch.shape.service_pool = 1;
    trial_expect(engine, &batch);
}

static void decoding_goes_on_by_advance(void **state)
{
    in_a_client(*state, decode_by_advance);
}

static void types_and_dims(struct engine *engine)
{
    for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++)
        for (uint32_t dim = 64; dim <= 256; dim *= 2) {
            struct random_batch batch = e2e_batch();
            batch.shape.dtype = dtype;
            batch.shape.dim = dim;
            batch.append = 1;
            trial_expect(engine, &batch);
        }
}

static void every_type_and_head_dim_is_right(void **state)
{
    in_a_client(*state, types_and_dims);
}

/* A chunk beside decodes, each of them a class of tiles with workers of its own, the chunk in whole
 * blocks and in such and parts of others; and chunks whose blocks have several parts, an odd number
 * of rows among them. */
static void two_classes(struct engine *engine)
{
    struct random_batch batch = e2e_batch();

    batch.shape.layers = 1;
    batch.level[0] = (struct random_level){.requests = 6,
                                           .entry = {{.qo_len = 1, .kv_len = {1200}},
                                                     {.qo_len = 70, .kv_len = {1900}},
                                                     {.qo_len = 1, .kv_len = {900}},
                                                     {.qo_len = 8, .kv_len = {700}},
                                                     {.qo_len = 1, .kv_len = {400}},
                                                     {.qo_len = 1, .kv_len = {40}}}};
    for (batch.shape.dim = 64; batch.shape.dim <= 256; batch.shape.dim *= 2)
        trial_expect(engine, &batch);
    batch.level[0].entry[1] = (struct random_entry){.qo_len = 448, .kv_len = {6000}};
    batch.shape.dim = 64;
    trial_expect(engine, &batch);
    batch.shape.dim = 128;
    batch.level[0].requests = 1;
    for (int32_t rows = 9; rows <= 64; rows *= 2) {
        batch.level[0].entry[0] =
            (struct random_entry){.qo_len = rows, .kv_len = {3000 + 7 * rows}};
        trial_expect(engine, &batch);
    }
}

static void classes_beside_each_other_and_parts_are_right(void **state)
{
    static const char *const options[] = {"--fusion", "sm-split", NULL};
    static struct harness harness;

    (void)state;
    harness_start(&harness, options);
    in_a_client(&harness, two_classes);
    harness_stop(&harness);
}

/* Blocks of keys more than a warp finds places for at once (4,096 keys an item), in items one
 * behind the other: in pages of whole blocks, of one token, and such that blocks lie in two. */
static void long_items(struct engine *engine)
{
    static const uint32_t page_sizes[] = {16, 64, 20, 1};
    static const uint32_t types[] = {0, ATTND_FP8_E4M3, ATTND_FP8_E5M2};
    struct random_batch batch = e2e_batch();

    batch.shape.layers = 1;
    batch.shape.heads_kv = 1;
    batch.level[0] = (struct random_level){.requests = 6,
                                           .entry = {{.qo_len = 1, .kv_len = {8201}},
                                                     {.qo_len = 1, .kv_len = {600}},
                                                     {.qo_len = 4, .kv_len = {4113}},
                                                     {.qo_len = 8, .kv_len = {700}},
                                                     {.qo_len = 1, .kv_len = {140}},
                                                     {.qo_len = 1, .kv_len = {1}}}};
    for (uint32_t p = 0; p < sizeof(page_sizes) / sizeof(page_sizes[0]); p++)
        for (uint32_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
            for (uint32_t dim = 64; dim <= 256; dim *= 2) {
                batch.shape.page_size = page_sizes[p];
                batch.shape.kv_dtype = types[t];
                batch.shape.dim = dim;
                trial_expect(engine, &batch);
            }
}

static void items_longer_than_what_a_warp_finds_at_once_are_right(void **state)
{
    static const char *const options[] = {"--residency", "shared", "--sms", "3", NULL};
    static struct harness harness;

    (void)state;
    harness_start(&harness, options);
    in_a_client(&harness, long_items);
    harness_stop(&harness);
}

/* Prompts over fp8, which loader warps convert block by block: ends within a block, a page and a
 * row's neighbours, items of one block and of many, beside q of both types. */
static void narrow_prompts(struct engine *engine)
{
    static const uint32_t page_sizes[] = {16, 1, 20, 64};
    struct random_batch batch = e2e_batch();

    batch.shape.layers = 1;
    batch.level[0] = (struct random_level){.requests = 5,
                                           .entry = {{.qo_len = 130, .kv_len = {130}},
                                                     {.qo_len = 33, .kv_len = {1500}},
                                                     {.qo_len = 70, .kv_len = {513}},
                                                     {.qo_len = 40, .kv_len = {40}},
                                                     {.qo_len = 65, .kv_len = {257}}}};
    for (uint32_t p = 0; p < sizeof(page_sizes) / sizeof(page_sizes[0]); p++)
        for (uint32_t type = 0; type < 4; type++)
            for (uint32_t dim = 64; dim <= 256; dim *= 2) {
                batch.shape.page_size = page_sizes[p];
                batch.shape.kv_dtype = type % 2 ? ATTND_FP8_E4M3 : ATTND_FP8_E5M2;
                batch.shape.dtype = type / 2 ? ATTND_FP16 : ATTND_BF16;
                batch.shape.dim = dim;
                trial_expect(engine, &batch);
            }
}

static void prompts_over_fp8_are_right(void **state)
{
    static const char *const options[] = {"--residency", "shared", "--sms", "5", NULL};
    static struct harness harness;

    (void)state;
    harness_start(&harness, options);
    in_a_client(&harness, narrow_prompts);
    harness_stop(&harness);
}

/* Requests of one row, of few and of many; ends within a block of keys and at its edge. */
static struct random_batch longer_keys_batch(void)
{
    struct random_batch batch = e2e_batch();

    batch.shape.dim = 192;
    batch.shape.dim_vo = 128;
    batch.shape.layers = 1;
    batch.level[0] = (struct random_level){.requests = 7,
                                           .entry = {{.qo_len = 1, .kv_len = {700}},
                                                     {.qo_len = 5, .kv_len = {5}},
                                                     {.qo_len = 40, .kv_len = {333}},
                                                     {.qo_len = 200, .kv_len = {200}},
                                                     {.qo_len = 130, .kv_len = {512}},
                                                     {.qo_len = 8, .kv_len = {130}},
                                                     {.qo_len = 1, .kv_len = {1}}}};
    return batch;
}

/* Any pages, both types, 1 to 32 heads; appended rows; strides that keep no alignment, and a NaN,
 * with which items go the plain way. */
static void longer_keys(struct engine *engine)
{
    static const uint32_t page_sizes[] = {16, 64, 128, 1, 20};
    static const uint32_t heads[][2] = {{1, 1}, {8, 1}, {1, 32}};
    struct random_batch batch = longer_keys_batch();

    for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++) {
        batch = longer_keys_batch();
        batch.shape.dtype = dtype;
        for (uint32_t p = 0; p < sizeof(page_sizes) / sizeof(page_sizes[0]); p++) {
            batch.shape.page_size = page_sizes[p];
            trial_expect(engine, &batch);
        }
        batch.shape.page_size = 16;
        batch.causal = 0;
        trial_expect(engine, &batch);
        batch.causal = 1;
        for (uint32_t h = 0; h < sizeof(heads) / sizeof(heads[0]); h++) {
            batch.shape.heads_kv = heads[h][0];
            batch.shape.group = heads[h][1];
            trial_expect(engine, &batch);
        }
        batch.append = 1;
        batch.shape.heads_kv = 2;
        batch.shape.group = 1;
        trial_expect(engine, &batch);
        batch.seen_nan = 1;
        trial_expect(engine, &batch);
        batch.seen_nan = 0;
        batch.shape.pad = 1;
        trial_expect(engine, &batch);
    }
}

static void keys_of_192_dims_with_values_of_128_are_right(void **state)
{
    in_a_client(*state, longer_keys);
}

/* Few workers, so that items follow one another, of a few rows and of many in turn. */
static void longer_keys_of_few_workers_are_right(void **state)
{
    static const char *const options[] = {"--residency", "shared", "--sms", "5", NULL};
    static struct harness harness;

    (void)state;
    harness_start(&harness, options);
    in_a_client(&harness, longer_keys);
    harness_stop(&harness);
}

/* Long requests, alone: as many parts as there are workers for, of few rows and of many. */
static void longer_keys_in_parts(struct engine *engine)
{
    static const uint32_t page_sizes[] = {16, 64, 1};
    static const struct random_entry entries[] = {{.qo_len = 200, .kv_len = {3000}},
                                                  {.qo_len = 131, .kv_len = {2049}},
                                                  {.qo_len = 40, .kv_len = {5003}},
                                                  {.qo_len = 5, .kv_len = {6000}},
                                                  {.qo_len = 1, .kv_len = {9001}}};
    struct random_batch batch = longer_keys_batch();

    batch.shape.heads_kv = batch.shape.group = batch.level[0].requests = 1;
    for (batch.shape.dtype = ATTND_FP16; batch.shape.dtype <= ATTND_BF16; batch.shape.dtype++)
        for (uint32_t p = 0; p < sizeof(page_sizes) / sizeof(page_sizes[0]); p++)
            for (uint32_t e = 0; e < sizeof(entries) / sizeof(entries[0]); e++) {
                batch.shape.page_size = page_sizes[p];
                batch.level[0].entry[0] = entries[e];
                trial_expect(engine, &batch);
            }
}

static void parts_of_longer_keys_are_merged(void **state)
{
    in_a_client(*state, longer_keys_in_parts);
}

/* What the plain kernel does not execute: options, of the varied one; and fp8, of that of 256. */
static void longer_keys_with_options(struct engine *engine)
{
    static const struct random_variant variants[] = {
        {.window = 129},
        {.window = 70, .soft_cap = 20.0f},
        {.sinks = 1, .position_encoding = ATTND_POSITION_ALIBI},
        {.mask = MASK_ANY},
        {.position_encoding = ATTND_POSITION_ROPE},
        {.q_scale = 0.5f, .v_scale = 2.0f},
        {.fixed_split = 256},
    };
    static const uint32_t types[] = {ATTND_FP8_E4M3, ATTND_FP8_E5M2};
    struct random_batch batch = longer_keys_batch();

    for (batch.shape.dtype = ATTND_FP16; batch.shape.dtype <= ATTND_BF16; batch.shape.dtype++)
        for (uint32_t paged = 0; paged < 2; paged++) {
            batch.shape.page_size = paged ? 16 : 1;
            batch.shape.kv_dtype = 0;
            for (uint32_t v = 0; v < sizeof(variants) / sizeof(variants[0]); v++) {
                batch.variant = variants[v];
                trial_expect(engine, &batch);
            }
            batch.variant = (struct random_variant){.window = 0};
            for (uint32_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
                batch.shape.kv_dtype = types[t];
                trial_expect(engine, &batch);
            }
        }
}

static void options_and_fp8_over_longer_keys_are_right(void **state)
{
    in_a_client(*state, longer_keys_with_options);
}

#define LATENT_WORKERS "18" /* of 16 to 23 each block of these batches has two parts */

/* Latents of 128 heads: a block is two passes of rows. With as many parts it is cut by rows. */
static void latents(struct engine *engine)
{
    struct random_batch batch = e2e_batch();

    batch.shape = (struct random_shape){.dim = 576,
                                        .dim_vo = 512,
                                        .one_plane = 1,
                                        .heads_kv = 1,
                                        .group = 128,
                                        .page_size = 16,
                                        .layers = 1};
    batch.level[0].requests = RANDOM_REQUESTS_MAX;
    for (uint32_t e = 0; e < RANDOM_REQUESTS_MAX; e++)
        batch.level[0].entry[e] =
            (struct random_entry){.qo_len = 1, .kv_len = {600 + 7 * (int32_t)e}};
    for (batch.shape.dtype = ATTND_FP16; batch.shape.dtype <= ATTND_BF16; batch.shape.dtype++)
        trial_expect(engine, &batch);
}

static void latents_cut_by_rows_are_right(void **state)
{
    static const char *const options[] = {"--residency", "shared", "--sms", LATENT_WORKERS, NULL};
    static struct harness harness;

    (void)state;
    harness_start(&harness, options);
    in_a_client(&harness, latents);
    Attnd__Status *status = harness_status(&harness);
    CHECK_EQUAL(status->tiles, 2 * 2 * RANDOM_REQUESTS_MAX);
    attnd__status__free_unpacked(status, NULL);
    harness_stop(&harness);
}

/* ---- two engines, one pool ---- */

static int writer(void *context)
{
    struct meeting *meeting = context;
    struct engine engine;

    gpu_open();
    gpu_engine_open(&engine, meeting->harness->socket, "writer");
    meeting_write(meeting, &engine, ROUNDS);
    engine_close(&engine);
    return 0;
}

static int reader(void *context)
{
    struct meeting *meeting = context;
    struct engine engine;

    gpu_open();
    gpu_engine_open(&engine, meeting->harness->socket, "reader");
    meeting_read(meeting, &engine, ROUNDS);
    engine_close(&engine);
    return 0;
}

static void what_one_engine_writes_the_other_attends_to(void **state)
{
    struct meeting *meeting = meeting_new(*state, 0);
    pid_t a = harness_fork(writer, meeting), b = harness_fork(reader, meeting);
    CHECK_EQUAL(harness_join(a, CLIENT_MS), 0);
    CHECK_EQUAL(harness_join(b, CLIENT_MS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(append_and_run_on_every_layer_is_right),
        E2E_TEST(decoding_goes_on_by_advance),
        E2E_TEST(every_type_and_head_dim_is_right),
        E2E_OWN_TEST(classes_beside_each_other_and_parts_are_right),
        E2E_OWN_TEST(prompts_over_fp8_are_right),
        E2E_OWN_TEST(items_longer_than_what_a_warp_finds_at_once_are_right),
        E2E_TEST(keys_of_192_dims_with_values_of_128_are_right),
        E2E_OWN_TEST(longer_keys_of_few_workers_are_right),
        E2E_TEST(parts_of_longer_keys_are_merged),
        E2E_TEST(options_and_fp8_over_longer_keys_are_right),
        E2E_OWN_TEST(latents_cut_by_rows_are_right),
        E2E_TEST(what_one_engine_writes_the_other_attends_to),
    };

    harness_init();
    if (!gpu_there()) {
        puts("no GPU");
        return GPU_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
