/*
 * histogram.h - latencies in fixed memory: counts by magnitude, 32 steps an octave (3 % wide).
 *
 * Plain data, so it lies in memory shared with a parent and two of them add up.
 */
#ifndef ATTND_BENCH_SUPPORT_HISTOGRAM_H
#define ATTND_BENCH_SUPPORT_HISTOGRAM_H

#include <stdint.h>

#define BENCH_HISTOGRAM_BUCKETS (60u * 32u)

struct bench_histogram {
    uint64_t count, sum, max;
    uint32_t bucket[BENCH_HISTOGRAM_BUCKETS];
};

void bench_histogram_add(struct bench_histogram *histogram, uint64_t value);
void bench_histogram_merge(struct bench_histogram *to, const struct bench_histogram *from);

/** bench_histogram_quantile() - @q in 0..1. Return: the middle of the bucket, 0 if empty. */
uint64_t bench_histogram_quantile(const struct bench_histogram *histogram, double q);

#endif
