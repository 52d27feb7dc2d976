/* test_reference.c - the judge is judged: by hand-made cases and by identities of softmax. */
#include "tests/support/oracle/bits16.h"
#include "tests/support/oracle/bits8.h"
#include "tests/support/oracle/reference.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include "schemas/abi.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define DIM 64

static uint64_t seed;

/* ---- 16 bits ---- */

static void every_16_bit_value_survives_a_round_trip(void **state)
{
    (void)state;
    for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++)
        for (uint32_t bits = 0; bits < 65536; bits++) {
            double value = bits16_value(dtype, (uint16_t)bits);
            if (isnan(value))
                assert_true(isnan(bits16_value(dtype, bits16_round(dtype, value))));
            else
                assert_int_equal(bits16_round(dtype, value), bits);
        }
}

static void known_values_have_known_bits(void **state)
{
    (void)state;
    assert_int_equal(bits16_round(ATTND_FP16, 1.0), 0x3c00);
    assert_int_equal(bits16_round(ATTND_FP16, -2.0), 0xc000);
    assert_int_equal(bits16_round(ATTND_FP16, 65504.0), 0x7bff);
    assert_int_equal(bits16_round(ATTND_FP16, 65520.0), 0x7c00); /* half way up: infinity */
    assert_int_equal(bits16_round(ATTND_FP16, 65519.0), 0x7bff);
    assert_int_equal(bits16_round(ATTND_FP16, 0x1p-24), 0x0001); /* the smallest subnormal */
    assert_int_equal(bits16_round(ATTND_FP16, 0x1p-25), 0x0000); /* half of it: to even */
    assert_int_equal(bits16_round(ATTND_FP16, 0x1.8p-24), 0x0002);
    assert_int_equal(bits16_round(ATTND_FP16, 1 + 0x1p-11), 0x3c00); /* ties to even */
    assert_int_equal(bits16_round(ATTND_FP16, 1 + 0x3p-11), 0x3c02);
    assert_int_equal(bits16_round(ATTND_BF16, 1.0), 0x3f80);
    assert_int_equal(bits16_round(ATTND_BF16, 3.0e38), 0x7f62);
    assert_int_equal(bits16_round(ATTND_BF16, 1e39), 0x7f80);
    assert_int_equal(bits16_round(ATTND_BF16, -0.0), 0x8000);
}

static void rounding_takes_the_nearer_neighbour(void **state)
{
    struct prng prng = prng_fork(seed, 1);

    (void)state;
    for (int i = 0; i < 200000; i++) {
        uint32_t dtype = 1 + prng_below(&prng, 2);
        double x = ldexp(2 * prng_unit(&prng) - 1, prng_between(&prng, -26, 15));
        uint16_t bits = bits16_round(dtype, x);
        double error = fabs(bits16_value(dtype, bits) - x);
        for (int step = -1; step <= 1; step += 2) {
            double neighbour = bits16_value(dtype, (uint16_t)(bits + step));
            if (isfinite(neighbour) && (bits & 0x7fff) != 0)
                assert_true(error <= fabs(neighbour - x));
        }
    }
}

/* ---- 8 bits ---- */

static void known_fp8_values_have_known_bits(void **state)
{
    (void)state;
    assert_int_equal(bits8_round(ATTND_FP8_E4M3, 1.0), 0x38);
    assert_int_equal(bits8_round(ATTND_FP8_E4M3, -448.0), 0xfe);
    assert_int_equal(bits8_round(ATTND_FP8_E4M3, 1e9), 0x7e); /* to the largest */
    assert_int_equal(bits8_round(ATTND_FP8_E4M3, INFINITY), 0x7e);
    assert_int_equal(bits8_round(ATTND_FP8_E4M3, -(double)NAN), 0x7f);
    assert_int_equal(bits8_round(ATTND_FP8_E4M3, 0x1p-9), 0x01);
    assert_int_equal(bits8_round(ATTND_FP8_E4M3, 0x1p-10), 0x00); /* ties to even */
    assert_int_equal(bits8_round(ATTND_FP8_E4M3, 0x3p-10), 0x02);
    assert_int_equal(bits8_round(ATTND_FP8_E4M3, 1.0625), 0x38);
    assert_int_equal(bits8_round(ATTND_FP8_E4M3, 1.1875), 0x3a);
    assert_int_equal(bits8_round(ATTND_FP8_E5M2, 1.0), 0x3c);
    assert_int_equal(bits8_round(ATTND_FP8_E5M2, -57344.0), 0xfb);
    assert_int_equal(bits8_round(ATTND_FP8_E5M2, -INFINITY), 0xfb);
    assert_int_equal(bits8_round(ATTND_FP8_E5M2, 0x1p-16), 0x01);
    assert_int_equal(bits8_round(ATTND_FP8_E5M2, -0.0), 0x80);
    assert_true(isinf(bits8_value(ATTND_FP8_E5M2, 0xfc)));
    assert_true(bits8_value(ATTND_FP8_E4M3, 0x7c) == 384);
    assert_true(bits8_near_tie(ATTND_FP8_E4M3, 1.0626, 1e-3));
    assert_false(bits8_near_tie(ATTND_FP8_E4M3, 1.0646, 1e-3));
}

static void every_fp8_value_survives_a_round_trip(void **state)
{
    (void)state;
    for (uint32_t dtype = ATTND_FP8_E4M3; dtype <= ATTND_FP8_E5M2; dtype++)
        for (uint32_t bits = 0; bits < 256; bits++) {
            double value = bits8_value(dtype, (uint8_t)bits);
            if (isfinite(value))
                assert_int_equal(bits8_round(dtype, value), bits);
        }
}

/* ---- attention ---- */

struct scene {
    uint16_t q[8 * 2 * DIM], k[64 * DIM], v[64 * DIM];
    int32_t qo_indptr[3], kv_indptr[3], indices[64], kv_len[2];
    struct reference_batch batch;
    double o[8 * 2 * DIM], lse[8 * 2];
};

/* One KV head, two query heads, page_size 4; request r owns pages 8r..8r+8. */
static void scene_init(struct scene *scene, int32_t rows0, int32_t kv0, int32_t rows1, int32_t kv1)
{
    struct prng prng = prng_fork(seed, 2);

    memset(scene, 0, sizeof(*scene));
    for (size_t i = 0; i < sizeof(scene->q) / 2; i++)
        scene->q[i] = bits16_round(ATTND_FP16, 2 * prng_unit(&prng) - 1);
    for (size_t i = 0; i < sizeof(scene->k) / 2; i++) {
        scene->k[i] = bits16_round(ATTND_FP16, 2 * prng_unit(&prng) - 1);
        scene->v[i] = bits16_round(ATTND_FP16, 2 * prng_unit(&prng) - 1);
    }
    for (int32_t i = 0; i < 16; i++)
        scene->indices[i] = i;
    memcpy(scene->qo_indptr, (int32_t[]){0, rows0, rows0 + rows1}, sizeof(scene->qo_indptr));
    memcpy(scene->kv_indptr, (int32_t[]){0, 8, 16}, sizeof(scene->kv_indptr));
    memcpy(scene->kv_len, (int32_t[]){kv0, kv1}, sizeof(scene->kv_len));
    scene->batch = (struct reference_batch){
        .dtype = ATTND_FP16,
        .rows = (uint32_t)(rows0 + rows1),
        .heads_q = 2,
        .heads_kv = 1,
        .dim = DIM,
        .page_size = 4,
        .levels = 1,
        .level = {{2, scene->qo_indptr, scene->kv_indptr, scene->indices, scene->kv_len}},
        .q = {scene->q, 2 * DIM, DIM},
        .k = {scene->k, 4 * DIM, DIM, DIM},
        .v = {scene->v, 4 * DIM, DIM, DIM}};
}

static double fp16(const uint16_t *bits)
{
    return bits16_value(ATTND_FP16, *bits);
}

static void one_visible_key_gives_its_value(void **state)
{
    struct scene scene;

    (void)state;
    scene_init(&scene, 1, 1, 2, 1);
    reference_attend(&scene.batch, scene.o, scene.lse);
    for (int d = 0; d < DIM; d++) {
        assert_true(scene.o[d] == fp16(&scene.v[d]));
        assert_true(scene.o[2 * DIM + d] == fp16(&scene.v[32 * DIM + d]));
    }
    double score = 0;
    for (int d = 0; d < DIM; d++)
        score += fp16(&scene.q[d]) * fp16(&scene.k[d]);
    assert_true(fabs(scene.lse[0] - score / 8 / log(2)) < 1e-12);
}

static void equal_keys_give_the_mean_of_values(void **state)
{
    struct scene scene;

    (void)state;
    scene_init(&scene, 1, 5, 0, 0);
    for (int j = 1; j < 5; j++)
        memcpy(&scene.k[j * DIM], &scene.k[0], DIM * sizeof(uint16_t));
    reference_attend(&scene.batch, scene.o, scene.lse);
    for (int d = 0; d < DIM; d++) {
        double mean = 0;
        for (int j = 0; j < 5; j++)
            mean += fp16(&scene.v[j * DIM + d]) / 5;
        assert_true(fabs(scene.o[d] - mean) < 1e-12);
    }
}

static double furthest(const double *a, const double *b, uint32_t count)
{
    double most = 0;

    for (uint32_t i = 0; i < count; i++)
        most = fmax(most, fabs(a[i] - b[i]));
    return most;
}

/* Scores in the hundreds, off by half of what they may be: o and lse are off by less than is
 * allowed, and that is little, except in the rows in which two keys have nearly the same score. */
static void errors_of_scores_are_allowed_where_keys_compete(void **state)
{
    double o_error[8 * 2 * DIM], lse_error[8 * 2], none[DIM] = {0};
    struct scene scene, off;

    (void)state;
    scene_init(&scene, 4, 30, 4, 9);
    for (size_t i = 0; i < sizeof(scene.q) / 2; i++)
        scene.q[i] = bits16_round(ATTND_FP16, 1000 * fp16(&scene.q[i]));
    for (int d = 0; d < DIM; d++) /* the second request's keys differ in one element, if at all */
        for (int j = 1; j < 9; j++)
            scene.k[(32 + j) * DIM + d] =
                (uint16_t)(scene.k[32 * DIM + d] + (d == 0 && j % 2 != 0));
    scene.batch.o_error = o_error;
    scene.batch.lse_error = lse_error;
    scene.batch.sm_scale = 0.25;
    off = scene;
    off.batch.sm_scale *= 1 + 0x1p-21;
    off.batch.o_error = off.batch.lse_error = NULL;
    off.batch.q.bits = off.q;
    reference_attend(&scene.batch, scene.o, scene.lse);
    reference_attend(&off.batch, off.o, off.lse);
    for (int i = 0; i < 8 * 2 * DIM; i++) {
        assert_true(fabs(scene.o[i] - off.o[i]) <= o_error[i]);
        assert_true(o_error[i] < 0.01);
    }
    for (int i = 0; i < 8 * 2; i++)
        assert_true(fabs(scene.lse[i] - off.lse[i]) <= lse_error[i] && lse_error[i] < 0.03);
    for (int i = 8; i < 16; i++)
        assert_true(furthest(o_error + i * DIM, none, DIM) > 1e-5);
}

static void with_one_key_far_ahead_no_error_is_allowed(void **state)
{
    double o_error[8 * 2 * DIM], lse_error[8 * 2];
    struct scene scene;

    (void)state;
    scene_init(&scene, 1, 9, 0, 0);
    for (int d = 0; d < 2 * DIM; d++)
        scene.q[d] = bits16_round(ATTND_FP16, fp16(&scene.k[d % DIM]) > 0 ? 1000 : -1000);
    scene.batch.o_error = o_error;
    scene.batch.lse_error = lse_error;
    reference_attend(&scene.batch, scene.o, scene.lse);
    for (int i = 0; i < 2 * DIM; i++)
        assert_true(o_error[i] < 1e-30);
}

/* Keys that are equal, of scores that are off by 40 and more: any one of them may have all the
 * weight, and nothing that is allowed is negative or not a number. */
static void where_scores_may_be_anything_any_value_is_allowed(void **state)
{
    double o_error[8 * 2 * DIM], lse_error[8 * 2];
    struct scene scene;

    (void)state;
    scene_init(&scene, 1, 9, 0, 0);
    for (int j = 1; j < 9; j++)
        memcpy(scene.k + j * DIM, scene.k, DIM * sizeof(*scene.k));
    scene.batch.o_error = o_error;
    scene.batch.lse_error = lse_error;
    for (float scale = 0x1p22f; scale < 0x1p60f; scale *= 4) { /* of lengths of some 20 */
        scene.batch.sm_scale = scale;
        reference_attend(&scene.batch, scene.o, scene.lse);
        for (int i = 0; i < 2 * DIM; i++)
            for (int j = 0; j < 9; j++)
                assert_true(o_error[i] >=
                            fabs(fp16(&scene.v[j * DIM + i % DIM]) - scene.o[i]) - 1e-9);
        assert_true(lse_error[0] >= 40 && lse_error[1] >= 40);
    }
}

static void a_row_that_sees_nothing_is_zero_and_minus_infinity(void **state)
{
    struct scene scene;

    (void)state;
    scene_init(&scene, 4, 2, 1, 0); /* causal: the first two of four queries stand before key 0 */
    scene.batch.causal = 1;
    reference_attend(&scene.batch, scene.o, scene.lse);
    for (int row = 0; row < 5; row++) {
        int blind = row < 2 || row == 4;
        assert_int_equal(isinf(scene.lse[row * 2]) && scene.lse[row * 2] < 0, blind);
        for (int d = 0; blind && d < DIM; d++)
            assert_true(scene.o[row * 2 * DIM + d] == 0);
    }
}

static void what_is_not_seen_is_not_read(void **state)
{
    struct scene scene, spoiled;

    (void)state;
    scene_init(&scene, 3, 7, 1, 9);
    scene.batch.causal = 1;
    reference_attend(&scene.batch, scene.o, scene.lse);
    scene_init(&spoiled, 3, 7, 1, 9);
    spoiled.batch.causal = 1;
    memset(&spoiled.k[7 * DIM], 0xff, 25 * DIM * sizeof(uint16_t));
    memset(&spoiled.v[7 * DIM], 0xff, 25 * DIM * sizeof(uint16_t));
    memset(&spoiled.v[6 * DIM], 0xff, DIM * sizeof(uint16_t)); /* only the third query sees it */
    reference_attend(&spoiled.batch, spoiled.o, spoiled.lse);
    assert_memory_equal(scene.o, spoiled.o, 2 * 2 * DIM * sizeof(double));
    assert_true(isnan(spoiled.o[2 * 2 * DIM]));
    assert_memory_equal(&scene.o[3 * 2 * DIM], &spoiled.o[3 * 2 * DIM], 2 * DIM * sizeof(double));
}

static void cascade_levels_are_one_softmax_over_both_lists(void **state)
{
    struct scene flat, cascade;
    const int32_t prefix_qo[2] = {0, 3}, prefix_kv[2] = {0, 2}, prefix_len[1] = {8};
    const int32_t suffix_qo[2] = {0, 3}, suffix_kv[2] = {0, 6}, suffix_len[1] = {13};

    (void)state;
    scene_init(&flat, 3, 21, 0, 0);
    flat.batch.causal = 1;
    reference_attend(&flat.batch, flat.o, flat.lse);
    scene_init(&cascade, 3, 21, 0, 0);
    cascade.batch.causal = 1;
    cascade.batch.levels = 2;
    cascade.batch.level[0] =
        (struct reference_level){1, prefix_qo, prefix_kv, cascade.indices, prefix_len};
    cascade.batch.level[1] =
        (struct reference_level){1, suffix_qo, suffix_kv, cascade.indices + 2, suffix_len};
    reference_attend(&cascade.batch, cascade.o, cascade.lse);
    assert_memory_equal(flat.o, cascade.o, sizeof(flat.o));
    assert_memory_equal(flat.lse, cascade.lse, sizeof(flat.lse));
}

/* ---- comparing ---- */

static void the_comparator_finds_one_wrong_element(void **state)
{
    struct scene scene;
    struct reference_mismatch mismatch;
    uint16_t o[8 * 2 * DIM];
    float lse[8 * 2];
    const struct reference_rows got = {o, 2 * DIM, DIM};

    (void)state;
    scene_init(&scene, 3, 7, 1, 0);
    reference_attend(&scene.batch, scene.o, scene.lse);
    for (int i = 0; i < 4 * 2 * DIM; i++)
        o[i] = bits16_round(ATTND_FP16, scene.o[i]);
    for (int i = 0; i < 4 * 2; i++)
        lse[i] = (float)scene.lse[i];
    assert_true(reference_compare(&scene.batch, scene.o, scene.lse, &got, lse, 2, 1, &mismatch));

    o[(2 * 2 + 1) * DIM + 5] = bits16_round(ATTND_FP16, scene.o[(2 * 2 + 1) * DIM + 5] + 0.003);
    assert_false(reference_compare(&scene.batch, scene.o, scene.lse, &got, lse, 2, 1, &mismatch));
    assert_int_equal(mismatch.count, 1);
    assert_string_equal(mismatch.tensor, "o");
    assert_int_equal(mismatch.row, 2);
    assert_int_equal(mismatch.head, 1);
    assert_int_equal(mismatch.dim, 5);

    lse[6] = 0; /* should be -inf; found first, because classes come before numbers */
    assert_false(reference_compare(&scene.batch, scene.o, scene.lse, &got, lse, 2, 1, &mismatch));
    assert_int_equal(mismatch.count, 2);
    assert_string_equal(mismatch.tensor, "lse");
    assert_int_equal(mismatch.row, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_value_survives_a_round_trip),
        cmocka_unit_test(known_values_have_known_bits),
        cmocka_unit_test(rounding_takes_the_nearer_neighbour),
        cmocka_unit_test(known_fp8_values_have_known_bits),
        cmocka_unit_test(every_fp8_value_survives_a_round_trip),
        cmocka_unit_test(one_visible_key_gives_its_value),
        cmocka_unit_test(equal_keys_give_the_mean_of_values),
        cmocka_unit_test(errors_of_scores_are_allowed_where_keys_compete),
        cmocka_unit_test(with_one_key_far_ahead_no_error_is_allowed),
        cmocka_unit_test(where_scores_may_be_anything_any_value_is_allowed),
        cmocka_unit_test(a_row_that_sees_nothing_is_zero_and_minus_infinity),
        cmocka_unit_test(what_is_not_seen_is_not_read),
        cmocka_unit_test(cascade_levels_are_one_softmax_over_both_lists),
        cmocka_unit_test(the_comparator_finds_one_wrong_element),
    };

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
