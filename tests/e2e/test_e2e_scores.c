/*
 * test_e2e_scores.c - scores so large that what floats can tell apart is more than what softmax
 * lives from: a weight must not leave fp16, in whichever order its keys come, and a row's largest
 * score has all of the weight, however large it is.
 */
#include "tests/support/harness/check.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define DIM 64u
#define PAGE_SIZE 16u
#define PAGES 10u
#define KEYS (PAGES * PAGE_SIZE) /* more than all warps of a GPU's worker take at once */
#define K_AT 0u
#define V_AT (KEYS * DIM * 2)
#define Q_AT (2 * V_AT)
#define O_AT (Q_AT + KEYS * DIM * 2)
#define BYTES (O_AT + KEYS * DIM * 2)

/* One request of one KV head in a pool of the service. */
struct scene {
    struct attnd_session *session;
    uint32_t pool, plan, memory, dtype;
    float sm_scale; /* of the next set; 0: the default */
    uint8_t *rows;
    int32_t pages[PAGES];
};

static void scene_open(struct scene *scene, const struct harness *harness, uint32_t dtype,
                       uint32_t kv_dtype)
{
    void *address;

    *scene = (struct scene){.session = e2e_open(harness), .dtype = dtype};
    CHECK_OK(attnd_pool_create_leased(scene->session, 1, PAGES, PAGE_SIZE, 1, DIM, kv_dtype,
                                      &scene->pool));
    CHECK_OK(attnd_pages_alloc(scene->session, scene->pool, PAGES, scene->pages));
    CHECK_OK(attnd_memory_create(scene->session, BYTES, &scene->memory, &address));
    scene->rows = address;
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = scene->pool,
                                         .requests = 1,
                                         .rows = KEYS,
                                         .pages = PAGES,
                                         .levels = 1,
                                         .heads_q = 1};
    CHECK_OK(attnd_plan_create(scene->session, &args, &scene->plan));
}

static void finish(struct scene *scene)
{
    struct attnd_completion done;

    CHECK_EQUAL(attnd_wait(scene->session, &done, 1, TRIAL_WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
}

/* The last @rows tokens of the request. */
static void set(struct scene *scene, int32_t rows)
{
    const int32_t indptr[] = {0, rows}, kv_indptr[] = {0, PAGES}, last = PAGE_SIZE;
    const struct attnd_level level = {1, indptr, kv_indptr, scene->pages, &last};
    const struct attnd_batch batch = {.size = sizeof(batch),
                                      .dtype = scene->dtype,
                                      .flags = ATTND_CAUSAL,
                                      .sm_scale = scene->sm_scale,
                                      .level = &level};

    CHECK_OK(attnd_plan_set(scene->session, scene->plan, &batch, NULL));
    finish(scene);
}

static void put(struct scene *scene, uint32_t at, uint32_t element, double value)
{
    const uint16_t bits = bits16_round(scene->dtype, value);

    memcpy(scene->rows + at + 2 * (size_t)element, &bits, sizeof(bits));
}

/* A score of 2^25.6 and one that is 14.4 more, exponents of 2, which floats there round to a
 * multiple of 8; all others are 0. Values: 2 with @first, 1 with @second, 0 else. */
static double attend(struct scene *scene, uint32_t first, uint32_t second)
{
    const struct attnd_append_args kv = {
        .size = sizeof(kv), .k = {scene->memory, K_AT}, .v = {scene->memory, V_AT}};
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {scene->memory, Q_AT}, .o = {scene->memory, O_AT}};
    uint16_t bits;

    memset(scene->rows, 0, BYTES);
    put(scene, K_AT, first * DIM, 24576);
    put(scene, K_AT, second * DIM, 24576);
    put(scene, K_AT, second * DIM + 1, 80);
    put(scene, Q_AT, 0, 16384);
    put(scene, Q_AT, 1, 1);
    for (uint32_t d = 0; d < DIM; d++) {
        put(scene, V_AT, first * DIM + d, 2);
        put(scene, V_AT, second * DIM + d, 1);
        put(scene, O_AT, d, NAN);
    }
    set(scene, KEYS);
    CHECK_OK(attnd_append(scene->session, scene->plan, &kv, NULL));
    finish(scene);
    set(scene, 1);
    CHECK_OK(attnd_run(scene->session, scene->plan, &run, NULL));
    finish(scene);
    memcpy(&bits, scene->rows + O_AT + 2 * (size_t)(DIM - 1), sizeof(bits));
    return bits16_value(scene->dtype, bits);
}

static void a_weight_stays_below_what_fp16_has_room_for(void **state)
{
    static const uint32_t types[][2] = {{ATTND_FP16, ATTND_FP16}, {ATTND_BF16, ATTND_BF16}};
    static const uint32_t keys[][2] = {{0, 128}, {128, 0}, {3, 5}, {5, 3}, {17, 145}};

    for (uint32_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (uint32_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
            struct scene scene;
            scene_open(&scene, *state, types[t][0], types[t][1]);
            const double o = attend(&scene, keys[k][0], keys[k][1]);
            if (!(fabs(o - 1) < 0x1p-7))
                check_say(__FILE__, __LINE__, "keys %u and %u: %g", keys[k][0], keys[k][1], o);
            CHECK(fabs(o - 1) < 0x1p-7);
            attnd_close(scene.session);
        }
}

/* Factors of scores, up to some 2^110 as exponents of 2: the products that floats make of them are
 * further from each other than any weight has room for. */
static const float huge_scales[] = {3e6f, 1e8f, 1e10f, 1.7e15f, 1e20f, 1e24f, 1e30f};

/* Key j stands for itself: its values are j, and its scores are a number that no other has. */
static uint32_t number_of(uint32_t key)
{
    return key * 37 % KEYS + 1;
}

static void put_huge(struct scene *scene)
{
    memset(scene->rows, 0, BYTES);
    for (uint32_t j = 0; j < KEYS; j++) {
        put(scene, K_AT, j * DIM + 5, number_of(j) * 0.75);
        put(scene, Q_AT, j * DIM + 5, 1 + j % 7 * 0.375);
        for (uint32_t d = 0; d < DIM; d++) {
            put(scene, V_AT, j * DIM + d, j);
            put(scene, O_AT, j * DIM + d, NAN);
        }
    }
}

/* The last @rows of all tokens, each of which sees the keys up to its own. */
static void attend_huge(struct scene *scene, uint32_t rows)
{
    const struct attnd_append_args kv = {
        .size = sizeof(kv), .k = {scene->memory, K_AT}, .v = {scene->memory, V_AT}};
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {scene->memory, Q_AT}, .o = {scene->memory, O_AT}};

    put_huge(scene);
    set(scene, KEYS);
    CHECK_OK(attnd_append(scene->session, scene->plan, &kv, NULL));
    finish(scene);
    set(scene, (int32_t)rows);
    CHECK_OK(attnd_run(scene->session, scene->plan, &run, NULL));
    finish(scene);
    for (uint32_t i = 0, best = 0; i < KEYS; i++) {
        uint16_t bits;
        best = number_of(i) > number_of(best) ? i : best;
        if (i < KEYS - rows)
            continue;
        memcpy(&bits, scene->rows + O_AT + 2 * (size_t)((i + rows - KEYS) * DIM + DIM - 1),
               sizeof(bits));
        CHECK_EQUAL(bits16_value(scene->dtype, bits), best);
    }
}

static void a_row_of_huge_scores_is_the_value_of_its_largest(void **state)
{
    static const uint32_t types[] = {ATTND_FP16, ATTND_BF16};

    for (uint32_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        struct scene scene;
        scene_open(&scene, *state, types[t], types[t]);
        for (size_t s = 0; s < sizeof(huge_scales) / sizeof(huge_scales[0]); s++) {
            scene.sm_scale = huge_scales[s];
            attend_huge(&scene, 1);
            attend_huge(&scene, 11);
            attend_huge(&scene, KEYS);
        }
        attnd_close(scene.session);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_weight_stays_below_what_fp16_has_room_for),
        E2E_TEST(a_row_of_huge_scores_is_the_value_of_its_largest),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
