/*
 * test_e2e_fp8.c - pools of fp8 by the bytes that are in them: what append makes of numbers that
 * are no numbers of fp8, and what a batch must say. Random batches judge what is computed of it.
 */
#include "tests/support/harness/check.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/oracle/bits8.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define DIM 64u
#define HEADS 2u
#define PAGE_SIZE 4u
#define ROWS 3u
#define ELEMENTS (ROWS * HEADS * DIM)
#define K_AT 0u
#define V_AT 4096u
#define Q_AT 8192u
#define O_AT 12288u
#define SCALES_AT 16384u
#define BYTES 20480u

/* One request of three rows, which are all of its tokens, in a pool of the service. */
struct scene {
    struct attnd_session *session;
    uint32_t pool, plan, memory;
    uint8_t *rows;
    const uint8_t *k, *v; /* the pool's planes: token after token */
    struct attnd_variant variant;
};

static void scene_open(struct scene *scene, const struct harness *harness, uint32_t dtype)
{
    struct attnd_pool_info info = {.size = sizeof(info)};
    int32_t page;
    void *address;

    *scene = (struct scene){.session = e2e_open(harness), .variant = ATTND_VARIANT_INIT};
    CHECK_OK(
        attnd_pool_create_leased(scene->session, 1, 1, PAGE_SIZE, HEADS, DIM, dtype, &scene->pool));
    CHECK_OK(attnd_pool_info(scene->session, scene->pool, &info));
    CHECK_EQUAL(info.desc.v[0].offset_bytes, PAGE_SIZE * HEADS * DIM);
    scene->k = info.address;
    scene->v = scene->k + info.desc.v[0].offset_bytes;
    CHECK_OK(attnd_pages_alloc(scene->session, scene->pool, 1, &page));
    CHECK_OK(attnd_memory_create(scene->session, BYTES, &scene->memory, &address));
    scene->rows = address;
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = scene->pool,
                                         .requests = 1,
                                         .rows = ROWS,
                                         .pages = 1,
                                         .levels = 1,
                                         .heads_q = HEADS};
    CHECK_OK(attnd_plan_create(scene->session, &args, &scene->plan));
}

/* Return: the code that plan_set completes with. */
static int set(struct scene *scene, uint32_t dtype, struct attnd_fault *fault)
{
    const int32_t indptr[] = {0, ROWS}, kv_indptr[] = {0, 1}, page = 0, last = ROWS;
    const struct attnd_level level = {1, indptr, kv_indptr, &page, &last};
    const struct attnd_batch batch = {
        .size = sizeof(batch), .dtype = dtype, .level = &level, .variant = &scene->variant};
    struct attnd_completion done;

    CHECK_OK(attnd_plan_set(scene->session, scene->plan, &batch, NULL));
    CHECK_EQUAL(attnd_wait(scene->session, &done, 1, TRIAL_WAIT_NS), 1);
    *fault = done.fault;
    return done.fault.code;
}

static void append(struct scene *scene)
{
    const struct attnd_append_args args = {
        .size = sizeof(args), .k = {scene->memory, K_AT}, .v = {scene->memory, V_AT}};
    struct attnd_completion done;

    CHECK_OK(attnd_append(scene->session, scene->plan, &args, NULL));
    CHECK_EQUAL(attnd_wait(scene->session, &done, 1, TRIAL_WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
}

/* Ties, what is between them and the largest, and beyond; signs of both kinds. */
static const double numbers[] = {0.0,     -0.0,     1.0,      1.0625,     1.1875,    -1.0624,
                                 448.0,   -464.0,   480.0,    60000.0,    INFINITY,  -INFINITY,
                                 NAN,     0x1p-9,   0x1p-10,  0x3p-10,    -0x1p-11,  0x1.fp-7,
                                 57344.0, -61440.0, 0x1p-16,  0x1p-17,    0x3p-17,   1.125,
                                 1.375,   -1.625,   0x1.cp-3, -0x1.48p-4, 0x1.24p-5, 300.0};
#define NUMBERS (sizeof(numbers) / sizeof(numbers[0]))

static void fill(struct scene *scene, uint32_t dtype)
{
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        const uint16_t k = bits16_round(dtype, numbers[i % NUMBERS]);
        const uint16_t v = bits16_round(dtype, numbers[(i + 7) % NUMBERS]);
        memcpy(scene->rows + K_AT + 2 * (size_t)i, &k, sizeof(k));
        memcpy(scene->rows + V_AT + 2 * (size_t)i, &v, sizeof(v));
    }
}

/* Every element of the pool is the nearest to what was given over the scale of its head. */
static void check_stored(const struct scene *scene, uint32_t dtype, uint32_t pool_dtype,
                         const float scales[2][HEADS])
{
    const uint8_t *planes[] = {scene->k, scene->v};

    for (uint32_t plane = 0; plane < 2; plane++)
        for (uint32_t i = 0; i < ELEMENTS; i++) {
            const float scale = scales[plane][i / DIM % HEADS];
            const double x = bits_of_kv(dtype, scene->rows + (plane ? V_AT : K_AT), i);
            const uint8_t want = bits8_round(pool_dtype, (double)((float)x * (1.0f / scale)));
            if (planes[plane][i] != want) {
                check_say(__FILE__, __LINE__, "%c %u: %g over %g is 0x%02x, want 0x%02x",
                          plane ? 'v' : 'k', i, x, (double)scale, planes[plane][i], want);
                check_failed(__FILE__, __LINE__);
            }
        }
}

static void append_rounds_saturates_and_keeps_nan(void **state)
{
    static const float ones[2][HEADS] = {{1, 1}, {1, 1}};
    struct attnd_fault fault;

    for (uint32_t pool = ATTND_FP8_E4M3; pool <= ATTND_FP8_E5M2; pool++)
        for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++) {
            struct scene scene;
            scene_open(&scene, *state, pool);
            fill(&scene, dtype);
            CHECK_EQUAL(set(&scene, dtype, &fault), 0);
            append(&scene);
            check_stored(&scene, dtype, pool, ones);
            attnd_close(scene.session);
        }
}

static void append_divides_by_the_scales_of_tensor_and_head(void **state)
{
    static const float table[2][HEADS] = {{0.25f, 3.0f}, {0.001f, 1.0f}};
    static const float both[2][HEADS] = {{0.25f * 1.5f, 3.0f * 1.5f}, {0.001f * 7.0f, 7.0f}};
    struct attnd_fault fault;
    struct scene scene;

    scene_open(&scene, *state, ATTND_FP8_E4M3);
    fill(&scene, ATTND_FP16);
    memcpy(scene.rows + SCALES_AT, table, sizeof(table));
    scene.variant.kv_scales.memory = scene.memory;
    scene.variant.kv_scales.offset_bytes = SCALES_AT;
    CHECK_EQUAL(set(&scene, ATTND_FP16, &fault), 0);
    append(&scene);
    check_stored(&scene, ATTND_FP16, ATTND_FP8_E4M3, table);
    scene.variant.k_scale = 1.5f;
    scene.variant.v_scale = 7.0f;
    CHECK_EQUAL(set(&scene, ATTND_FP16, &fault), 0);
    append(&scene);
    check_stored(&scene, ATTND_FP16, ATTND_FP8_E4M3, both);
    attnd_close(scene.session);
}

static void a_batch_beside_fp8_says_its_type_and_a_table_lies_in_its_memory(void **state)
{
    const uint32_t bad[] = {0, ATTND_FP8_E5M2};
    struct attnd_fault fault;
    struct scene scene;

    scene_open(&scene, *state, ATTND_FP8_E5M2);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_EQUAL(set(&scene, bad[i], &fault), -ATTND_E_INVALID);
        CHECK_EQUAL(fault.field, ATTND_F_DTYPE);
        CHECK_EQUAL(fault.value, ATTND_FP8_E5M2); /* 0 is the pool's */
        CHECK_EQUAL(fault.limit, ATTND_BF16);
    }
    scene.variant.kv_scales.memory = scene.memory;
    scene.variant.kv_scales.offset_bytes = BYTES - 2 * HEADS * sizeof(float) + 4;
    CHECK_EQUAL(set(&scene, ATTND_BF16, &fault), -ATTND_E_RANGE);
    CHECK_EQUAL(fault.field, ATTND_F_KV_SCALES);
    CHECK_EQUAL(fault.limit, BYTES);
    scene.variant.kv_scales.memory = scene.memory + 99;
    CHECK_EQUAL(set(&scene, ATTND_BF16, &fault), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(fault.field, ATTND_F_KV_SCALES);
    attnd_close(scene.session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(append_rounds_saturates_and_keeps_nan),
        E2E_TEST(append_divides_by_the_scales_of_tensor_and_head),
        E2E_TEST(a_batch_beside_fp8_says_its_type_and_a_table_lies_in_its_memory),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
