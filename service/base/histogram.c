/*
 * histogram.c - the bucket of a time is the position of its first bit and the two bits behind it.
 */
#include "service/base/histogram.h"

#define QUARTER_BITS 2u
#define QUARTERS (1u << QUARTER_BITS)

uint32_t attnd_histogram_bucket(uint64_t ns)
{
    const uint64_t units = ns >> ATTND_HISTOGRAM_UNIT_BITS;

    if (units < QUARTERS)
        return (uint32_t)units;
    const uint32_t first = 63u - (uint32_t)__builtin_clzll(units);
    const uint32_t quarter = (uint32_t)(units >> (first - QUARTER_BITS)) & (QUARTERS - 1);
    const uint32_t bucket = (first - 1) * QUARTERS + quarter;
    return bucket < ATTND_HISTOGRAM_BUCKETS ? bucket : ATTND_HISTOGRAM_BUCKETS - 1;
}

/* The shortest time that @bucket counts. */
static uint64_t begin_ns(uint32_t bucket)
{
    if (bucket < QUARTERS)
        return (uint64_t)bucket << ATTND_HISTOGRAM_UNIT_BITS;
    const uint32_t first = bucket / QUARTERS + 1;
    const uint64_t units = (uint64_t)(QUARTERS + bucket % QUARTERS) << (first - QUARTER_BITS);
    return units << ATTND_HISTOGRAM_UNIT_BITS;
}

uint64_t attnd_histogram_end_ns(uint32_t bucket)
{
    return bucket + 1 < ATTND_HISTOGRAM_BUCKETS ? begin_ns(bucket + 1) : UINT64_MAX;
}

void attnd_histogram_add(struct attnd_histogram *histogram, uint64_t ns)
{
    uint64_t *count = &histogram->counts[attnd_histogram_bucket(ns)];

    *count += *count < ATTND_HISTOGRAM_COUNT_MAX;
    histogram->sum_ns += ns;
}

uint64_t attnd_histogram_quantile_ns(const uint64_t *counts, size_t buckets, double part)
{
    uint64_t all = 0, seen = 0;

    if (buckets > ATTND_HISTOGRAM_BUCKETS)
        buckets = ATTND_HISTOGRAM_BUCKETS;
    for (size_t i = 0; i < buckets; i++)
        all += counts[i];
    if (!all)
        return 0;
    for (uint32_t i = 0; i < buckets; i++) {
        seen += counts[i];
        if (counts[i] && (double)seen >= part * (double)all)
            return i + 1 < ATTND_HISTOGRAM_BUCKETS ? attnd_histogram_end_ns(i) : begin_ns(i);
    }
    return begin_ns(ATTND_HISTOGRAM_BUCKETS - 1);
}
