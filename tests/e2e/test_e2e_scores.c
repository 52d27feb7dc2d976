/*
 * test_e2e_scores.c - scores so large that what floats can tell apart is more than what softmax
 * lives from: a weight must not leave fp16, in whichever order its keys come.
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
#define O_AT (Q_AT + DIM * 2)
#define BYTES (O_AT + DIM * 2)

/* One request of one KV head in a pool of the service. */
struct scene {
    struct attnd_session *session;
    uint32_t pool, plan, memory, dtype;
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
    const struct attnd_batch batch = {
        .size = sizeof(batch), .dtype = scene->dtype, .level = &level};

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_weight_stays_below_what_fp16_has_room_for),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
