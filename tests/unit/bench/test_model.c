/* test_model.c - the model without weights: exact, pure, and such that wrong keys show. */
#include "bench/replay/model.h"
#include "bench/replay/reference.h"
#include "client/attnd.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define DIM 64
#define TOKENS 2000

static const char trace_text[] =
    "{\"timestamp\":0,\"input_length\":1500,\"output_length\":500,\"hash_ids\":[1,2,3]}\n"
    "{\"timestamp\":0,\"input_length\":1500,\"output_length\":500,\"hash_ids\":[1,2,4]}\n";

static struct replay_trace load(void)
{
    static const struct replay_trace_options options = {0};
    struct replay_trace trace;
    struct replay_trace_error error;

    assert_int_equal(
        replay_trace_parse(trace_text, sizeof(trace_text) - 1, &options, &trace, &error), 0);
    return trace;
}

static void values_are_exact_in_both_types(void **state)
{
    static const uint32_t dtypes[] = {ATTND_DTYPE_FP16, ATTND_DTYPE_BF16};
    struct replay_model model;
    uint16_t bits[DIM];
    float values[DIM];

    (void)state;
    for (int t = 0; t < 2; t++) {
        replay_model_init(&model, 8, 2, DIM, dtypes[t], 1);
        for (uint32_t i = 0; i < 300; i++) {
            struct replay_site site = {
                .token = replay_mix(i), .position = i, .layer = i % 5, .head = i % 8};
            enum replay_kind kind = (enum replay_kind)(i % 3);

            replay_model_bits(&model, kind, &site, bits);
            replay_model_values(&model, kind, &site, values);
            for (int d = 0; d < DIM; d++)
                assert_true(replay_number(dtypes[t], bits[d]) == (double)values[d]);
        }
    }
}

static void sixteen_bits_read_as_numbers(void **state)
{
    (void)state;
    assert_true(replay_number(ATTND_DTYPE_FP16, 0x3c00) == 1);
    assert_true(replay_number(ATTND_DTYPE_FP16, 0xc100) == -2.5);
    assert_true(replay_number(ATTND_DTYPE_FP16, 0x0001) == 0x1p-24);
    assert_true(replay_number(ATTND_DTYPE_FP16, 0x7bff) == 65504);
    assert_true(isinf(replay_number(ATTND_DTYPE_FP16, 0xfc00)));
    assert_true(isnan(replay_number(ATTND_DTYPE_FP16, 0x7e00)));
    assert_true(replay_number(ATTND_DTYPE_BF16, 0x3f80) == 1);
    assert_true(replay_number(ATTND_DTYPE_BF16, 0xc020) == -2.5);
    assert_true(isnan(replay_number(ATTND_DTYPE_BF16, 0x7fc0)));
}

static void every_coordinate_of_a_vector_matters(void **state)
{
    struct replay_model model, other;
    struct replay_site site = {.token = 11, .position = 22, .layer = 3, .head = 1}, changed[4];
    float base[DIM], values[DIM];

    (void)state;
    replay_model_init(&model, 8, 2, DIM, ATTND_DTYPE_FP16, 1);
    replay_model_init(&other, 8, 2, DIM, ATTND_DTYPE_FP16, 2);
    for (int i = 0; i < 4; i++)
        changed[i] = site;
    changed[0].token++;
    changed[1].position++;
    changed[2].layer++;
    changed[3].head++;
    replay_model_values(&model, REPLAY_V, &site, base);
    for (int i = 0; i < 4; i++) {
        replay_model_values(&model, REPLAY_V, &changed[i], values);
        assert_memory_not_equal(base, values, sizeof(base));
    }
    replay_model_values(&model, REPLAY_K, &site, values);
    assert_memory_not_equal(base, values, sizeof(base));
    replay_model_values(&other, REPLAY_V, &site, values);
    assert_memory_not_equal(base, values, sizeof(base));
    replay_model_values(&model, REPLAY_V, &site, values);
    assert_memory_equal(base, values, sizeof(base));
}

static void prompts_that_begin_alike_have_equal_tokens_there_and_only_there(void **state)
{
    struct replay_trace trace = load();

    (void)state;
    for (uint32_t p = 0; p < TOKENS; p++) {
        uint64_t a = replay_token(&trace, &trace.request[0], p);
        uint64_t b = replay_token(&trace, &trace.request[1], p);

        if (p < 1024)
            assert_int_equal(a, b);
        else
            assert_int_not_equal(a, b);
    }
    replay_trace_free(&trace);
}

/* A key that is missing must move the result by more than the tolerance, or nothing is verified. */
static void the_last_keys_matter_to_the_result(void **state)
{
    struct replay_trace trace = load();
    struct replay_model model;
    struct replay_reference reference;
    double with[DIM], without[DIM], worst = 0, lse;
    int moved = 0;

    (void)state;
    replay_model_init(&model, 8, 2, DIM, ATTND_DTYPE_BF16, 1);
    assert_int_equal(replay_reference_init(&reference, &model, &trace, TOKENS), 0);
    for (uint32_t head = 0; head < 8; head++) {
        /* request 1 has other keys than request 0 from 1024 on: a page table gone wrong */
        lse = replay_reference_row(&reference, &trace.request[0], 1100, 0, head, with);
        replay_reference_row(&reference, &trace.request[1], 1100, 0, head, without);
        assert_true(isfinite(lse));
        worst = 0;
        for (int d = 0; d < DIM; d++)
            worst = fmax(worst, replay_reference_compare(without[d], with[d], 1e-2));
        moved += worst > 1;
    }
    assert_true(moved >= 7);
    replay_reference_free(&reference);
    replay_trace_free(&trace);
}

static void the_reference_is_the_definition(void **state)
{
    struct replay_trace trace = load();
    struct replay_model model;
    struct replay_reference reference;
    double o[DIM], expected[DIM] = {0}, sum = 0, lse;
    float q[DIM], k[DIM], v[DIM];
    struct replay_site site = {.layer = 2};

    (void)state;
    replay_model_init(&model, 4, 2, DIM, ATTND_DTYPE_FP16, 9);
    assert_int_equal(replay_reference_init(&reference, &model, &trace, TOKENS), 0);
    lse = replay_reference_row(&reference, &trace.request[1], 5, 2, 3, o);
    site.token = replay_token(&trace, &trace.request[1], 5);
    site.position = 5;
    site.head = 3;
    replay_model_values(&model, REPLAY_Q, &site, q);
    site.head = 1; /* query heads 2 and 3 use KV head 1 */
    for (uint32_t j = 0; j <= 5; j++) {
        double s = 0;

        site.token = replay_token(&trace, &trace.request[1], j);
        site.position = j;
        replay_model_values(&model, REPLAY_K, &site, k);
        replay_model_values(&model, REPLAY_V, &site, v);
        for (int d = 0; d < DIM; d++)
            s += (double)q[d] * (double)k[d] / 8;
        sum += exp(s);
        for (int d = 0; d < DIM; d++)
            expected[d] += exp(s) * (double)v[d];
    }
    assert_true(fabs(lse - log2(sum)) < 1e-9);
    for (int d = 0; d < DIM; d++)
        assert_true(fabs(o[d] - expected[d] / sum) < 1e-9);
    replay_reference_free(&reference);
    replay_trace_free(&trace);
}

static void not_a_number_agrees_with_nothing_else(void **state)
{
    (void)state;
    assert_true(replay_reference_compare((double)NAN, 0, 1) > 1);
    assert_true(replay_reference_compare(0, (double)NAN, 1) > 1);
    assert_true(replay_reference_compare((double)NAN, (double)NAN, 1) <= 1);
    assert_true(replay_reference_compare((double)INFINITY, 1e300, 1) > 1);
    assert_true(replay_reference_compare((double)-INFINITY, (double)INFINITY, 1) > 1);
    assert_true(replay_reference_compare((double)-INFINITY, (double)-INFINITY, 1) <= 1);
    assert_true(replay_reference_compare(1.0015, 1, 1e-3) < 1);
    assert_true(replay_reference_compare(1.0025, 1, 1e-3) > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_exact_in_both_types),
        cmocka_unit_test(sixteen_bits_read_as_numbers),
        cmocka_unit_test(every_coordinate_of_a_vector_matters),
        cmocka_unit_test(prompts_that_begin_alike_have_equal_tokens_there_and_only_there),
        cmocka_unit_test(the_last_keys_matter_to_the_result),
        cmocka_unit_test(the_reference_is_the_definition),
        cmocka_unit_test(not_a_number_agrees_with_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
