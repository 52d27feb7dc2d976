/* test_histogram.c - buckets without gaps, and quantiles that are never too short. */
#include "service/base/histogram.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void every_time_is_below_the_end_of_its_bucket_and_not_of_the_one_before(void **state)
{
    (void)state;
    for (uint64_t ns = 1; ns < UINT64_MAX / 5; ns += ns / 3 + 1) {
        const uint32_t bucket = attnd_histogram_bucket(ns);
        assert_true(bucket < ATTND_HISTOGRAM_BUCKETS);
        assert_true(ns < attnd_histogram_end_ns(bucket));
        if (bucket > 0)
            assert_true(ns >= attnd_histogram_end_ns(bucket - 1));
    }
}

static void a_bucket_is_at_most_a_quarter_wide(void **state)
{
    (void)state;
    for (uint32_t i = 4; i + 1 < ATTND_HISTOGRAM_BUCKETS; i++) {
        const uint64_t begin_ns = attnd_histogram_end_ns(i - 1), end_ns = attnd_histogram_end_ns(i);
        assert_true(end_ns > begin_ns && end_ns - begin_ns <= begin_ns / 4);
    }
    assert_true(attnd_histogram_end_ns(ATTND_HISTOGRAM_BUCKETS - 1) == UINT64_MAX);
}

static void quantiles_are_found_and_at_most_a_quarter_too_long(void **state)
{
    struct attnd_histogram histogram = {0};
    (void)state;
    for (uint64_t us = 1; us <= 1000; us++)
        attnd_histogram_add(&histogram, us * 10000);
    const uint64_t p50 = attnd_histogram_quantile_ns(histogram.counts, 104, 0.5);
    const uint64_t p99 = attnd_histogram_quantile_ns(histogram.counts, 104, 0.99);
    assert_in_range(p50, 5000000, 6250000);
    assert_in_range(p99, 9900000, 12375000);
    assert_true(histogram.sum_ns == UINT64_C(10000) * 500500);
}

static void nothing_counted_has_no_quantile(void **state)
{
    struct attnd_histogram histogram = {0};
    (void)state;
    assert_int_equal(attnd_histogram_quantile_ns(histogram.counts, 104, 0.5), 0);
    assert_int_equal(attnd_histogram_quantile_ns(NULL, 0, 0.99), 0);
}

static void a_time_beyond_all_buckets_is_in_the_last_and_a_full_bucket_stays_full(void **state)
{
    struct attnd_histogram histogram = {0};
    (void)state;
    histogram.counts[ATTND_HISTOGRAM_BUCKETS - 1] = ATTND_HISTOGRAM_COUNT_MAX - 1;
    attnd_histogram_add(&histogram, UINT64_MAX);
    attnd_histogram_add(&histogram, UINT64_MAX / 2);
    assert_true(histogram.counts[ATTND_HISTOGRAM_BUCKETS - 1] == ATTND_HISTOGRAM_COUNT_MAX);
    assert_true(attnd_histogram_quantile_ns(histogram.counts, 104, 0.5) > 60000000000u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_time_is_below_the_end_of_its_bucket_and_not_of_the_one_before),
        cmocka_unit_test(a_bucket_is_at_most_a_quarter_wide),
        cmocka_unit_test(quantiles_are_found_and_at_most_a_quarter_too_long),
        cmocka_unit_test(nothing_counted_has_no_quantile),
        cmocka_unit_test(a_time_beyond_all_buckets_is_in_the_last_and_a_full_bucket_stays_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
