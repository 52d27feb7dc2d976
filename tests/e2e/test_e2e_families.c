/*
 * test_e2e_families.c - random batches in the shapes of models, with what these ask of attention.
 *
 *   ATTND_SEED     repeats a run         ATTND_FIRST    number of the first batch (0)
 *   ATTND_ROUNDS   batches in all (8 of each shape, twice)
 *
 * Lengths, pages, levels and rows are drawn. tests/features makes a table of what is said of
 * families.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/random/seed.h"
#include "tests/support/random/soak.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* Heads of K and V are fewer than the models', which are alike; groups are theirs. A window is
 * shorter than theirs, as requests are, and in every other batch. */
static const struct family {
    const char *name;
    struct random_shape shape;
    struct random_variant variant;
} families[] = {
    /* family: Llama 2 and 3 | 128; keys rotated by the engine, or in the kernel | yes | yes;
       rotated in the kernel it is slow */
    {"Llama 2", {.dim = 128, .heads_kv = 4, .group = 1}, {0}},
    {"Llama 3", {.dim = 128, .heads_kv = 2, .group = 4, .layers = 2}, {0}},
    {"Llama 3.1, rotated in the kernel",
     {.dim = 128, .heads_kv = 2, .group = 8},
     {.position_encoding = ATTND_POSITION_ROPE,
      .rope_theta = 500000,
      .rope_scale = 8,
      .rope_old_context = 8192}},
    /* family: Qwen 2, 2.5, 3 | 64 and 128; norms of q and k are the engine's | yes | yes */
    {"Qwen 2, 0.5B", {.dim = 64, .heads_kv = 2, .group = 7}, {0}},
    {"Qwen 2.5, 7B", {.dim = 128, .heads_kv = 4, .group = 7}, {0}},
    {"Qwen 3", {.dim = 128, .heads_kv = 2, .group = 8}, {0}},
    /* family: Mistral | 128, a window in 7B v0.1 | yes | yes */
    {"Mistral", {.dim = 128, .heads_kv = 2, .group = 4}, {.window = 100}},
    /* family: Gemma 2 | 256 and 128, soft cap 50, a window in every other layer: a plan of each
       kind | yes | yes */
    {"Gemma 2, 9B", {.dim = 256, .heads_kv = 2, .group = 2}, {.window = 64, .soft_cap = 50}},
    {"Gemma 2, 27B", {.dim = 128, .heads_kv = 4, .group = 2}, {.window = 129, .soft_cap = 50}},
    /* family: Gemma 3 | 256 and 128, windows; a mask where images see all of themselves | yes | yes
     */
    {"Gemma 3, 4B", {.dim = 256, .heads_kv = 2, .group = 2}, {.window = 33, .mask = MASK_IMAGES}},
    {"Gemma 3, 27B", {.dim = 128, .heads_kv = 4, .group = 2}, {.window = 33, .mask = MASK_IMAGES}},
    /* family: gpt-oss | 64, sinks for each layer, a window in every other layer | yes | yes */
    {"gpt-oss", {.dim = 64, .heads_kv = 2, .group = 8, .layers = 2}, {.window = 128, .sinks = 2}},
    /* family: DeepSeek V3 | 576/512 in one plane to decode, 192/128 to prefill | yes | yes */
    {"DeepSeek V3, latents",
     {.dim = 576, .dim_vo = 512, .heads_kv = 1, .group = 128, .one_plane = 1},
     {0}},
    {"DeepSeek V3, prefill", {.dim = 192, .dim_vo = 128, .heads_kv = 4, .group = 1}, {0}},
    /* family: Phi | 80 (2), 96 (3-mini), 128 (4) | yes | yes */
    {"Phi 2", {.dim = 80, .heads_kv = 4, .group = 1}, {0}},
    {"Phi 3 mini", {.dim = 96, .heads_kv = 4, .group = 1}, {0}},
    {"Phi 4", {.dim = 128, .heads_kv = 2, .group = 4}, {0}},
};
#define FAMILIES (sizeof(families) / sizeof(families[0]))
#define WORK_MAX (1 << 26)
#define TRIES_MAX 10000

static uint64_t seed, first, rounds;

static void take_family(const struct family *family, uint64_t index, struct random_batch *batch)
{
    batch->shape = family->shape;
    batch->shape.dtype = index / RANDOM_SHAPE_BATCHES / FAMILIES % 2 ? ATTND_FP16 : ATTND_BF16;
    batch->shape.page_size = 16;
    batch->shape.layers = family->shape.layers ? family->shape.layers : 1;
    batch->variant = family->variant;
    if (index % 2)
        batch->variant.window = 0;
    if (batch->steps > 1)
        batch->variant.mask = 0;
    batch->causal = batch->variant.mask != MASK_IMAGES; /* that mask says all there is to see */
}

/* Lengths are drawn until they suit the family. */
static void draw_family(uint64_t from, uint64_t index, struct random_batch *batch)
{
    const struct family *family = &families[index / RANDOM_SHAPE_BATCHES % FAMILIES];
    uint64_t tries = 0;

    do {
        CHECK(tries < TRIES_MAX);
        random_batch_draw(from + tries++ * 1000003, index, batch);
        take_family(family, index, batch);
    } while (!random_batch_valid(batch) || random_batch_work(batch) > WORK_MAX);
}

static int client(void *context)
{
    const struct soak_engine *self = context;
    struct soak soak = {.draw = draw_family, .seed = seed, .stride = 1};
    struct engine engine;

    engine_open(&engine, self->harness->socket, "families");
    int wrong = soak_shapes(&soak, &engine, self->number, first, rounds);
    engine_close(&engine);
    CHECK_EQUAL(soak.refused, 0);
    return wrong;
}

static void what_families_of_models_ask_for_is_right(void **state)
{
    CHECK_EQUAL(soak_in_engines(*state, client), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {E2E_TEST(what_families_of_models_ask_for_is_right)};

    harness_init();
    seed = test_seed();
    first = test_number("ATTND_FIRST", 0);
    rounds = test_number("ATTND_ROUNDS", 2 * FAMILIES * RANDOM_SHAPE_BATCHES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
