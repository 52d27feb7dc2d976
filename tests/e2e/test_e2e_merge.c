/*
 * test_e2e_merge.c - attnd_merge_state() against its definition in fp64.
 *
 * The judge is a plain loop of its own. Where a result saw nothing, its o is garbage that must not
 * show. ATTND_SEED repeats a run, ATTND_ROUNDS is the number of random cases (300).
 */
#include "client/attnd_merge.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX 40u
#define HEADS_MAX 12u
#define PLACES 6u /* o_a, lse_a, o_b, lse_b, o, lse */
#define DIM_MAX 512u
#define PLACE_BYTES (1u << 19)
#define POISON 0x7fa5u /* NaN in both types of 16 bits */

static uint64_t seed, rounds;

/* A plan of one head dimension and type, and memory for all that a merge names. */
struct scene {
    struct attnd_session *session;
    uint32_t pool, plan, memory, dtype;
    uint32_t dim;   /* of o */
    uint8_t *bytes; /* [PLACES][PLACE_BYTES] */
};

/* One merge: places are numbers of scene->bytes. */
struct merge {
    uint32_t rows, heads, ln, wants_lse;
    uint32_t o, lse; /* where to: 0 or 2 of o, 1 or 3 of lse in place; else 4, 5 */
    struct attnd_strides o_strides, lse_strides;
};

/* @dim_qk: of the pool's keys. */
static void scene_open(struct scene *scene, const struct harness *harness, uint32_t dtype,
                       uint32_t dim_qk, uint32_t dim)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = 1,
                                         .page_size = 16,
                                         .heads_kv = 1,
                                         .dim_qk = dim_qk,
                                         .dim_vo = dim,
                                         .dtype = dtype,
                                         .page_owner = ATTND_PAGES_OF_SERVICE};
    void *address;

    *scene = (struct scene){.session = e2e_open(harness), .dtype = dtype, .dim = dim};
    CHECK_OK(attnd_pool_create(scene->session, &desc, &scene->pool));
    CHECK_OK(attnd_memory_create(scene->session, PLACES * PLACE_BYTES, &scene->memory, &address));
    scene->bytes = address;
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = scene->pool,
                                         .requests = 1,
                                         .rows = ROWS_MAX,
                                         .pages = 1,
                                         .levels = 1,
                                         .heads_q = HEADS_MAX};
    CHECK_OK(attnd_plan_create(scene->session, &args, &scene->plan));
}

/* A batch without keys, as long and as wide as the merge. */
static void set(const struct scene *scene, const struct merge *merge)
{
    const int32_t qo_indptr[] = {0, (int32_t)merge->rows}, kv_indptr[] = {0, 0}, last = 0, page = 0;
    const struct attnd_level level = {1, qo_indptr, kv_indptr, &page, &last};
    const struct attnd_batch batch = {.size = sizeof(batch),
                                      .heads_q = merge->heads,
                                      .flags = merge->ln ? ATTND_LSE_LN : 0,
                                      .level = &level,
                                      .o = merge->o_strides,
                                      .lse = merge->lse_strides};
    struct attnd_completion done;

    CHECK_OK(attnd_plan_set(scene->session, scene->plan, &batch, NULL));
    CHECK_EQUAL(attnd_wait(scene->session, &done, 1, TRIAL_WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
}

static struct attnd_tensor place(const struct scene *scene, uint32_t at)
{
    return (struct attnd_tensor){scene->memory, (uint64_t)at * PLACE_BYTES};
}

/* Return: what the merge completes with. */
static struct attnd_fault run(const struct scene *scene, const struct attnd_merge_args *args)
{
    const struct attnd_op op = {.user_data = 77, .lane = 3};
    struct attnd_completion done;

    CHECK_OK(attnd_merge_state(scene->session, scene->plan, args, &op));
    CHECK_EQUAL(attnd_wait(scene->session, &done, 1, TRIAL_WAIT_NS), 1);
    CHECK_EQUAL(done.operation, ATTND_MERGE);
    CHECK_EQUAL(done.lane, 3);
    CHECK_EQUAL(done.user_data, 77);
    return done.fault;
}

static struct attnd_merge_args args_of(const struct scene *scene, const struct merge *merge)
{
    return (struct attnd_merge_args){.size = sizeof(struct attnd_merge_args),
                                     .o_a = place(scene, 0),
                                     .lse_a = place(scene, 1),
                                     .o_b = place(scene, 2),
                                     .lse_b = place(scene, 3),
                                     .o = place(scene, merge->o),
                                     .lse = merge->wants_lse ? place(scene, merge->lse)
                                                             : (struct attnd_tensor){0}};
}

/* ---- elements ---- */

static uint16_t *o_at(const struct scene *scene, const struct merge *merge, uint32_t at,
                      uint32_t row, uint32_t head)
{
    return (uint16_t *)(void *)(scene->bytes + (size_t)at * PLACE_BYTES) +
           row * merge->o_strides.row + head * merge->o_strides.head;
}

static float *lse_at(const struct scene *scene, const struct merge *merge, uint32_t at,
                     uint32_t row, uint32_t head)
{
    return (float *)(void *)(scene->bytes + (size_t)at * PLACE_BYTES) +
           row * merge->lse_strides.row + head * merge->lse_strides.head;
}

static void poison(const struct scene *scene, uint32_t at)
{
    uint16_t *words = (uint16_t *)(void *)(scene->bytes + (size_t)at * PLACE_BYTES);

    for (uint32_t i = 0; i < PLACE_BYTES / 2; i++)
        words[i] = POISON;
}

/* ---- the definition ---- */

/* @a, @b: the o of one row, [dim]; @sa, @sb: their lse. */
static void reference(const struct scene *scene, const struct merge *merge, const uint16_t *a,
                      float sa, const uint16_t *b, float sb, double *o, double *lse)
{
    const double base = merge->ln ? 1 : log(2);
    const double x = (double)sa * base, y = (double)sb * base;
    const int nothing_a = x == -INFINITY, nothing_b = y == -INFINITY;
    const double top = x > y || isnan(x) ? x : y;
    const double w_a = exp(x - top), w_b = exp(y - top);

    for (uint32_t d = 0; d < scene->dim; d++) {
        const double from_a = bits16_value(scene->dtype, a[d]);
        const double from_b = bits16_value(scene->dtype, b[d]);
        o[d] = nothing_a && nothing_b ? 0
               : nothing_a            ? from_b
               : nothing_b            ? from_a
                                      : (w_a * from_a + w_b * from_b) / (w_a + w_b);
    }
    *lse = nothing_a ? y / base : nothing_b ? x / base : (top + log(w_a + w_b)) / base;
}

static int agrees(double got, double want, double tolerance)
{
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= tolerance + tolerance * fabs(want);
}

/* ---- random cases ---- */

static float draw_lse(struct prng *prng)
{
    switch (prng_below(prng, 12)) {
    case 0:
    case 1:
        return -INFINITY;
    case 2:
        return prng_percent(prng, 20) ? NAN : 0.0f;
    case 3:
        return (float)(300 * prng_unit(prng) - 150);
    case 4:
        return prng_percent(prng, 50) ? 1e37f : -1e37f;
    default:
        return (float)(8 * prng_unit(prng) - 4);
    }
}

static struct merge draw(struct prng *prng, const struct scene *scene)
{
    struct merge merge = {.rows = 1 + prng_below(prng, ROWS_MAX),
                          .heads = 1 + prng_below(prng, HEADS_MAX),
                          .ln = prng_below(prng, 2),
                          .wants_lse = prng_percent(prng, 80)};
    const uint32_t pad = prng_below(prng, 3) * 8;

    merge.o = prng_percent(prng, 25) ? prng_below(prng, 2) * 2 : 4;
    merge.lse = prng_percent(prng, 25) ? 1 + prng_below(prng, 2) * 2 : 5;
    merge.o_strides.head = scene->dim + pad;
    merge.o_strides.row = merge.heads * merge.o_strides.head + pad;
    merge.lse_strides = (struct attnd_strides){.row = merge.heads + pad, .head = 1};
    if (prng_percent(prng, 30)) { /* [heads, rows, dim] */
        merge.o_strides.row = scene->dim + pad;
        merge.o_strides.head = merge.rows * merge.o_strides.row;
        merge.lse_strides = (struct attnd_strides){.row = 1, .head = merge.rows + pad};
    }
    return merge;
}

static void fill(struct prng *prng, const struct scene *scene, const struct merge *merge)
{
    for (uint32_t at = 0; at < PLACES; at++)
        poison(scene, at);
    for (uint32_t row = 0; row < merge->rows; row++)
        for (uint32_t head = 0; head < merge->heads; head++)
            for (uint32_t side = 0; side < 4; side += 2) {
                const float lse = draw_lse(prng);
                uint16_t *o = o_at(scene, merge, side, row, head);
                *lse_at(scene, merge, side + 1, row, head) = lse;
                for (uint32_t d = 0; d < scene->dim && lse != -INFINITY; d++)
                    o[d] = bits16_round(scene->dtype, 2 * prng_unit(prng) - 1);
            }
}

/* What must be there, before a merge in place takes it away. */
struct wanted {
    double o[ROWS_MAX][HEADS_MAX][DIM_MAX], lse[ROWS_MAX][HEADS_MAX];
};

static void judge(const struct scene *scene, const struct merge *merge, struct wanted *want)
{
    for (uint32_t row = 0; row < merge->rows; row++)
        for (uint32_t head = 0; head < merge->heads; head++)
            reference(scene, merge, o_at(scene, merge, 0, row, head),
                      *lse_at(scene, merge, 1, row, head), o_at(scene, merge, 2, row, head),
                      *lse_at(scene, merge, 3, row, head), want->o[row][head],
                      &want->lse[row][head]);
}

/* What was judged is poison again afterwards, so that only what lies beside it is left. */
static void compare(const struct scene *scene, const struct merge *merge, const struct wanted *want,
                    uint64_t round)
{
    const double tolerance = scene->dtype == ATTND_BF16 ? 1e-2 : 1e-3;

    for (uint32_t row = 0; row < merge->rows; row++)
        for (uint32_t head = 0; head < merge->heads; head++) {
            uint16_t *o = o_at(scene, merge, merge->o, row, head);
            float *lse = lse_at(scene, merge, merge->lse, row, head);
            for (uint32_t d = 0; d < scene->dim; d++) {
                const double got = bits16_value(scene->dtype, o[d]);
                if (!agrees(got, want->o[row][head][d], tolerance)) {
                    check_say(__FILE__, __LINE__, "round %llu, o[%u, %u, %u]: got %g, want %g",
                              (unsigned long long)round, row, head, d, got, want->o[row][head][d]);
                    check_failed(__FILE__, __LINE__);
                }
                o[d] = POISON;
            }
            if (!merge->wants_lse)
                continue;
            if (!agrees((double)*lse, want->lse[row][head], 1e-3)) {
                check_say(__FILE__, __LINE__, "round %llu, lse[%u, %u]: got %g, want %g",
                          (unsigned long long)round, row, head, (double)*lse, want->lse[row][head]);
                check_failed(__FILE__, __LINE__);
            }
            *lse = 0;
            memcpy(lse, (uint16_t[]){POISON, POISON}, sizeof(*lse));
        }
}

static void check_beside(const struct scene *scene, uint32_t at)
{
    const uint16_t *words = (const uint16_t *)(void *)(scene->bytes + (size_t)at * PLACE_BYTES);

    for (uint32_t i = 0; i < PLACE_BYTES / 2; i++)
        CHECK_EQUAL(words[i], POISON);
}

/* shows: two results of the same queries become one by their log-sum-exp (`attnd_merge_state()`) |
 * yes | yes | 64, 128 and 256 dimensions, 192/128, 576/512 | test_e2e_merge */
static void random_merges_are_right(void **state)
{
    enum { DIMS = 5, SCENES = 2 * DIMS };
    static const uint32_t dims[DIMS][2] = {
        {64, 64}, {128, 128}, {256, 256}, {192, 128}, {576, 512}};
    static struct wanted want;
    struct scene scenes[SCENES];

    for (uint32_t i = 0; i < SCENES; i++)
        scene_open(&scenes[i], *state, i < DIMS ? ATTND_FP16 : ATTND_BF16, dims[i % DIMS][0],
                   dims[i % DIMS][1]);
    for (uint64_t round = 0; round < rounds; round++) {
        struct prng prng = prng_fork(seed, round);
        const struct scene *scene = &scenes[prng_below(&prng, SCENES)];
        const struct merge merge = draw(&prng, scene);
        fill(&prng, scene, &merge);
        set(scene, &merge);
        judge(scene, &merge, &want);
        const struct attnd_merge_args args = args_of(scene, &merge);
        CHECK_EQUAL(run(scene, &args).code, 0);
        compare(scene, &merge, &want, round);
        if (merge.o == 4)
            check_beside(scene, 4);
        if (merge.lse == 5)
            check_beside(scene, 5);
    }
    for (uint32_t i = 0; i < SCENES; i++)
        attnd_close(scenes[i].session);
}

/* ---- what is refused ---- */

static const struct merge usual = {.rows = 8,
                                   .heads = 4,
                                   .wants_lse = 1,
                                   .o = 4,
                                   .lse = 5,
                                   .o_strides = {4 * 64, 64},
                                   .lse_strides = {4, 1}};

static void check_fault(const struct scene *scene, const struct attnd_merge_args *args, int code,
                        uint32_t field)
{
    const struct attnd_fault fault = run(scene, args);

    CHECK_EQUAL(fault.code, -code);
    CHECK_EQUAL(fault.field, field);
}

static void places_that_do_not_fit_are_refused_by_name(void **state)
{
    struct attnd_merge_args args;
    struct scene scene;

    scene_open(&scene, *state, ATTND_FP16, 64, 64);
    const struct attnd_merge_args good = args_of(&scene, &usual);
    check_fault(&scene, &good, ATTND_E_INVALID, ATTND_F_PLAN); /* nothing is set on it */
    set(&scene, &usual);
    args = good;
    args.lse_b.memory = 0;
    check_fault(&scene, &args, ATTND_E_UNKNOWN, ATTND_F_LSE_B);
    args = good;
    args.o_a.offset_bytes = 8;
    check_fault(&scene, &args, ATTND_E_INVALID, ATTND_F_O_A);
    args = good;
    args.lse_a.offset_bytes = PLACES * PLACE_BYTES - 4;
    check_fault(&scene, &args, ATTND_E_RANGE, ATTND_F_LSE_A);
    args = good;
    args.o.offset_bytes = good.o_b.offset_bytes + 16; /* in place is the same place */
    check_fault(&scene, &args, ATTND_E_OVERLAP, ATTND_F_O);
    args = good;
    args.lse = good.o_a;
    check_fault(&scene, &args, ATTND_E_OVERLAP, ATTND_F_LSE);
    args = good;
    args.lse = good.o;
    check_fault(&scene, &args, ATTND_E_OVERLAP, ATTND_F_O);
    args = good;
    args.reserved0 = 1;
    CHECK_EQUAL(attnd_merge_state(scene.session, scene.plan, &args, NULL), -ATTND_E_INVALID);
    CHECK_EQUAL(attnd_merge_state(scene.session, scene.plan, NULL, NULL), -ATTND_E_INVALID);
    CHECK_EQUAL(run(&scene, &good).code, 0);
    attnd_close(scene.session);
}

static void no_output_lies_in_a_pool(void **state)
{
    struct attnd_pool_info info = {.size = sizeof(info)};
    struct scene scene;

    scene_open(&scene, *state, ATTND_FP16, 64, 64);
    CHECK_OK(attnd_pool_info(scene.session, scene.pool, &info));
    const struct merge one = {
        .rows = 1, .heads = 1, .o_strides = {64, 64}, .lse_strides = {1, 1}, .o = 4, .lse = 5};
    set(&scene, &one);
    struct attnd_merge_args args = args_of(&scene, &one);
    args.o = (struct attnd_tensor){info.memory, 0};
    check_fault(&scene, &args, ATTND_E_OVERLAP, ATTND_F_O);
    attnd_close(scene.session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(random_merges_are_right),
        E2E_TEST(places_that_do_not_fit_are_refused_by_name),
        E2E_TEST(no_output_lies_in_a_pool),
    };

    harness_init();
    seed = test_seed();
    rounds = test_number("ATTND_ROUNDS", 300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
