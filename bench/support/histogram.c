/* histogram.c - a bucket is the position of the highest bit and the five bits below it; values
 * below 32 have a bucket each. */
#include "bench/support/histogram.h"

#include <stddef.h>

static uint32_t bucket_of(uint64_t value)
{
    uint32_t shift;

    if (value < 32)
        return (uint32_t)value;
    shift = 63u - (uint32_t)__builtin_clzll(value) - 5u;
    return (shift + 1) * 32 + (uint32_t)(value >> shift & 31);
}

static uint64_t bucket_middle(uint32_t bucket)
{
    uint32_t shift;

    if (bucket < 32)
        return bucket;
    shift = bucket / 32 - 1;
    return ((uint64_t)(32 + bucket % 32) << shift) + ((uint64_t)1 << shift) / 2;
}

void bench_histogram_add(struct bench_histogram *histogram, uint64_t value)
{
    histogram->count++;
    histogram->sum += value;
    if (value > histogram->max)
        histogram->max = value;
    histogram->bucket[bucket_of(value)]++;
}

void bench_histogram_merge(struct bench_histogram *to, const struct bench_histogram *from)
{
    to->count += from->count;
    to->sum += from->sum;
    if (from->max > to->max)
        to->max = from->max;
    for (size_t i = 0; i < BENCH_HISTOGRAM_BUCKETS; i++)
        to->bucket[i] += from->bucket[i];
}

uint64_t bench_histogram_quantile(const struct bench_histogram *histogram, double q)
{
    uint64_t rank = (uint64_t)(q * (double)(histogram->count ? histogram->count - 1 : 0));
    uint64_t below = 0;

    if (!histogram->count)
        return 0;
    if (rank == histogram->count - 1)
        return histogram->max;
    for (uint32_t i = 0; i < BENCH_HISTOGRAM_BUCKETS; i++) {
        below += histogram->bucket[i];
        if (below > rank) {
            uint64_t middle = bucket_middle(i);
            return middle < histogram->max ? middle : histogram->max;
        }
    }
    return histogram->max;
}
