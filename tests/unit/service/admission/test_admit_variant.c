/* test_admit_variant.c - the variant of a batch: what is taken, what it comes to, what is refused.
 */
#include "service/admission/admit.h"
#include "tests/support/rigs/admit_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct attnd_variant *const variant = &admit_rig.c.batch.variant;

/* One level, so that a row has one place; a variant that changes nothing. */
static void begin(void)
{
    admit_case_one(&admit_rig, 16, 33);
    *variant = (struct attnd_variant)ATTND_VARIANT_INIT;
}

static void admit(void)
{
    admit_case_write(&admit_rig);
    assert_int_equal(admit_case_admit(&admit_rig), 0);
}

static void refuse(int code, enum attnd_field field, uint64_t index, int64_t value, int64_t limit)
{
    admit_case_write(&admit_rig);
    admit_rig_expect_fault(code, field, index, value, limit);
    *variant = (struct attnd_variant)ATTND_VARIANT_INIT;
}

static int64_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static void without_a_variant_there_is_no_option(void **state)
{
    (void)state;
    admit();
    assert_int_equal(admit_rig.batch.options, 0);
    assert_int_equal(admit_rig.batch.variant.window_left, -1);
    assert_int_equal(admit_rig.batch.variant.sinks.memory, ATTND_NONE);
    begin();
    admit();
    assert_int_equal(admit_rig.batch.options, 0);
    assert_true(admit_rig.batch.variant.k_scale == 1.0f);
}

static void each_option_is_seen(void **state)
{
    struct attnd_variant *v = variant;

    (void)state;
    begin();
    v->window_left = 0;
    v->logits_soft_cap = 50.0f;
    v->position_encoding = ATTND_POSITION_ALIBI;
    v->v_scale = 0.5f;
    v->fixed_split = 1000;
    v->sinks = (struct attnd_variant_table){3, 8, 64};
    v->mask = (struct attnd_variant_table){4, 0, 4};
    v->kv_scales = (struct attnd_variant_table){5, 2, 8};
    v->alibi_slopes = (struct attnd_variant_table){6, 0, 12};
    admit_rig.c.batch.mask_indptr = (const int32_t[]){0, 5}; /* 1 row, 33 keys */
    admit();
    assert_int_equal(admit_rig.batch.mask_indptr[1], 5);
    assert_int_equal(admit_rig.batch.options,
                     ATTND_OPTION_WINDOW | ATTND_OPTION_SOFT_CAP | ATTND_OPTION_ALIBI |
                         ATTND_OPTION_SCALES | ATTND_OPTION_FIXED_SPLIT | ATTND_OPTION_SINKS |
                         ATTND_OPTION_MASK | ATTND_OPTION_HEAD_SCALES | ATTND_OPTION_ALIBI_SLOPES);
    assert_int_equal(admit_rig.batch.variant.kv_scales.offset_bytes, 8);
    assert_int_equal(admit_rig.batch.variant.sinks.memory, 3);
    assert_int_equal(admit_rig.batch.variant.sinks.layer_stride, 8);
    assert_true(admit_rig.batch.variant.q_scale == 1.0f);
}

static void a_rotation_has_the_numbers_of_its_paper_unless_others_are_given(void **state)
{
    const struct attnd_variant *got = &admit_rig.batch.variant;

    (void)state;
    begin();
    variant->position_encoding = ATTND_POSITION_ROPE;
    admit();
    assert_int_equal(admit_rig.batch.options, ATTND_OPTION_ROPE);
    assert_true(got->rope_theta == 10000.0f && got->rope_scale == 1.0f);
    assert_int_equal(got->rope_dim, 128);
    assert_int_equal(got->rope_old_context, 0);
    variant->flags = ATTND_VARIANT_ROPE_APPEND;
    variant->rope_old_context = 8192;
    admit();
    assert_int_equal(admit_rig.batch.options, ATTND_OPTION_ROPE_APPEND);
    assert_true(got->rope_low_freq_factor == 1.0f && got->rope_high_freq_factor == 4.0f);
}

static void numbers_of_what_is_off_are_not_looked_at(void **state)
{
    (void)state;
    begin();
    variant->rope_theta = NAN;
    variant->rope_dim = 9999;
    variant->sinks.offset_bytes = 1;
    variant->alibi_slopes.memory = 1;
    admit();
    assert_int_equal(admit_rig.batch.options, 0);
    assert_int_equal(admit_rig.batch.variant.rope_dim, 0);
}

static void a_cap_is_one_that_floats_can_be_scaled_by(void **state)
{
    (void)state;
    begin();
    variant->logits_soft_cap = 1e30f;
    admit();
    assert_int_equal(admit_rig.batch.options, ATTND_OPTION_SOFT_CAP);
    begin();
    variant->logits_soft_cap = 2e30f;
    refuse(ATTND_E_RANGE, ATTND_F_LOGITS_SOFT_CAP, 0, bits_of(2e30f), bits_of(1e30f));
}

static void a_float_is_finite_and_not_negative(void **state)
{
    const float bad[] = {-1.0f, NAN, INFINITY, -INFINITY};
    struct attnd_variant *v = variant;

    (void)state;
    begin();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const int64_t bits = bits_of(bad[i]);
        v->logits_soft_cap = bad[i];
        refuse(ATTND_E_RANGE, ATTND_F_LOGITS_SOFT_CAP, 0, bits, 0);
        v->position_encoding = ATTND_POSITION_ROPE;
        v->rope_theta = bad[i];
        refuse(ATTND_E_RANGE, ATTND_F_ROPE_THETA, 0, bits, 0);
        v->position_encoding = ATTND_POSITION_ROPE;
        v->rope_scale = bad[i];
        refuse(ATTND_E_RANGE, ATTND_F_ROPE_SCALE, 0, bits, 0);
        v->position_encoding = ATTND_POSITION_ROPE;
        v->rope_old_context = 1;
        v->rope_low_freq_factor = bad[i];
        refuse(ATTND_E_RANGE, ATTND_F_ROPE_LOW_FREQ_FACTOR, 0, bits, 0);
        v->q_scale = bad[i];
        refuse(ATTND_E_RANGE, ATTND_F_Q_SCALE, 0, bits, 0);
        v->k_scale = bad[i];
        refuse(ATTND_E_RANGE, ATTND_F_K_SCALE, 0, bits, 0);
        v->v_scale = bad[i];
        refuse(ATTND_E_RANGE, ATTND_F_V_SCALE, 0, bits, 0);
    }
}

static void what_no_range_has_is_refused_with_its_limit(void **state)
{
    struct attnd_variant *v = variant;

    (void)state;
    begin();
    v->size = 64;
    refuse(ATTND_E_INVALID, ATTND_F_VARIANT, 0, 64, ATTND_VARIANT_BYTES);
    v->flags = 2;
    refuse(ATTND_E_INVALID, ATTND_F_FLAGS, 0, 2, ATTND_VARIANT_FLAGS);
    v->flags = ATTND_VARIANT_ROPE_APPEND; /* and nothing to rotate with */
    refuse(ATTND_E_INVALID, ATTND_F_FLAGS, 0, ATTND_VARIANT_ROPE_APPEND, 0);
    v->position_encoding = 3;
    refuse(ATTND_E_RANGE, ATTND_F_POSITION_ENCODING, 0, 3, ATTND_POSITION_ROPE);
    v->position_encoding = ATTND_POSITION_ROPE;
    v->rope_dim = 130;
    refuse(ATTND_E_RANGE, ATTND_F_ROPE_DIM, 0, 130, 128);
    v->position_encoding = ATTND_POSITION_ROPE;
    v->rope_dim = 33;
    refuse(ATTND_E_INVALID, ATTND_F_ROPE_DIM, 0, 33, 32);
    v->position_encoding = ATTND_POSITION_ROPE;
    v->rope_old_context = 8192;
    v->rope_low_freq_factor = 2.0f; /* the same for both is no blend */
    v->rope_high_freq_factor = 1.5f;
    refuse(ATTND_E_RANGE, ATTND_F_ROPE_HIGH_FREQ_FACTOR, 0, bits_of(1.5f), bits_of(2.0f));
    v->position_encoding = ATTND_POSITION_ROPE;
    v->rope_old_context = UINT32_MAX;
    refuse(ATTND_E_RANGE, ATTND_F_ROPE_OLD_CONTEXT, 0, UINT32_MAX, INT32_MAX);
    v->fixed_split = UINT32_MAX;
    refuse(ATTND_E_RANGE, ATTND_F_FIXED_SPLIT, 0, UINT32_MAX, INT32_MAX);
    v->sinks = (struct attnd_variant_table){1, 0, 2};
    refuse(ATTND_E_INVALID, ATTND_F_SINKS, 0, 2, 4);
    v->mask = (struct attnd_variant_table){1, 0, 6};
    refuse(ATTND_E_INVALID, ATTND_F_MASK, 0, 6, 4);
    v->chunk = 0x80000000u;
    refuse(ATTND_E_RANGE, ATTND_F_CHUNK, 0, 0x80000000u, INT32_MAX);
    v->chunk = 8;
    v->window_left = 3;
    refuse(ATTND_E_UNSUPPORTED, ATTND_F_CHUNK, ATTND_F_WINDOW_LEFT, 8, 0);
    v->position_encoding = ATTND_POSITION_ALIBI;
    v->alibi_slopes = (struct attnd_variant_table){1, 0, 7};
    refuse(ATTND_E_INVALID, ATTND_F_ALIBI_SLOPES, 0, 7, 4);
    v->kv_scales = (struct attnd_variant_table){1, 0, 3};
    refuse(ATTND_E_INVALID, ATTND_F_KV_SCALES, 0, 3, 4);
}

/* The rig's own case has two levels. */
static void every_option_goes_with_levels(void **state)
{
    struct attnd_variant *v = variant;

    (void)state;
    *v = (struct attnd_variant)ATTND_VARIANT_INIT;
    v->logits_soft_cap = 30.0f;
    v->sinks.memory = 1;
    v->window_left = 7;
    v->position_encoding = ATTND_POSITION_ALIBI;
    admit();
    assert_int_equal(admit_rig.batch.options, ATTND_OPTION_SOFT_CAP | ATTND_OPTION_SINKS |
                                                  ATTND_OPTION_WINDOW | ATTND_OPTION_ALIBI);
    v->position_encoding = ATTND_POSITION_ROPE;
    admit();
    v->flags = ATTND_VARIANT_ROPE_APPEND;
    admit();
}

static void a_mask_is_as_long_as_queries_times_keys(void **state)
{
    struct attnd_variant *v = variant;

    (void)state;
    begin();
    v->mask.memory = 9;
    refuse(ATTND_E_INVALID, ATTND_F_MASK_INDPTR, 0, 0, 0);
    v->mask.memory = 9;
    admit_rig.c.batch.mask_indptr = (const int32_t[]){0, 4};
    refuse(ATTND_E_RANGE, ATTND_F_MASK_INDPTR, 1, 4, 5);
    v->mask.memory = 9;
    admit_rig.c.batch.mask_indptr = (const int32_t[]){1, 9};
    refuse(ATTND_E_INVALID, ATTND_F_MASK_INDPTR, 0, 1, 0);
    v->mask.memory = 9;
    admit_rig.c.batch.mask_indptr = (const int32_t[]){0, -1};
    refuse(ATTND_E_INVALID, ATTND_F_MASK_INDPTR, 1, -1, 0);
}

static void a_refused_option_is_told_with_the_other(void **state)
{
    const struct attnd_fault levels = {-ATTND_E_UNSUPPORTED, ATTND_F_POSITION_ENCODING,
                                       ATTND_F_LEVELS, ATTND_POSITION_ROPE, 1};
    const struct attnd_fault cap = {-ATTND_E_RANGE, ATTND_F_LOGITS_SOFT_CAP, 0, bits_of(-1.5f),
                                    bits_of(0.0f)};
    char text[160];

    (void)state;
    assert_string_equal(attnd_fault_string(&levels, text, sizeof(text)),
                        "ATTND_E_UNSUPPORTED: position_encoding is 2, not supported with levels "
                        "(the backend or this build does not have this)");
    assert_string_equal(attnd_fault_string(&cap, text, sizeof(text)),
                        "ATTND_E_RANGE: logits_soft_cap is -1.5, limit 0 (a value is outside its "
                        "limits)");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, admit_rig_begin, admit_rig_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(without_a_variant_there_is_no_option),
        TEST(each_option_is_seen),
        TEST(a_rotation_has_the_numbers_of_its_paper_unless_others_are_given),
        TEST(numbers_of_what_is_off_are_not_looked_at),
        TEST(a_float_is_finite_and_not_negative),
        TEST(a_cap_is_one_that_floats_can_be_scaled_by),
        TEST(what_no_range_has_is_refused_with_its_limit),
        TEST(every_option_goes_with_levels),
        TEST(a_mask_is_as_long_as_queries_times_keys),
        TEST(a_refused_option_is_told_with_the_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
