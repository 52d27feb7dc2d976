/*
 * histogram.h - how long things took: counts in log-linear buckets.
 *
 * Bucket 0 to 3 are one unit of 1,024 ns wide. From there on each power of two is cut into four, so
 * that a bucket is at most a quarter of its lower end wide. The last one has no upper end (67 s and
 * more). To count is a shift and two additions; nothing is allocated. A reader gets the counts
 * and does the statistics: daemon and attnctl share this file.
 *
 * Threads: the owner's.
 */
#ifndef ATTND_SERVICE_BASE_HISTOGRAM_H
#define ATTND_SERVICE_BASE_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

#define ATTND_HISTOGRAM_UNIT_BITS 10u
#define ATTND_HISTOGRAM_BUCKETS 104u
/* A bucket counts no further: such a number takes seven bytes of a message, and never more. */
#define ATTND_HISTOGRAM_COUNT_MAX ((UINT64_C(1) << 49) - 1)

struct attnd_histogram {
    uint64_t counts[ATTND_HISTOGRAM_BUCKETS];
    uint64_t sum_ns;
};

/** attnd_histogram_bucket() - where @ns is counted. */
uint32_t attnd_histogram_bucket(uint64_t ns);

/** attnd_histogram_end_ns() - the first time that is too long for @bucket; UINT64_MAX for the last.
 */
uint64_t attnd_histogram_end_ns(uint32_t bucket);

/** attnd_histogram_add() - count one of @ns. */
void attnd_histogram_add(struct attnd_histogram *histogram, uint64_t ns);

/**
 * attnd_histogram_quantile_ns() - the end of the bucket that holds the quantile
 * @counts: [@buckets], as of a histogram; further ones are zero
 * @part:   0.5 is the median
 * Return: at most a quarter too long; of the last bucket its beginning; 0 if nothing was counted.
 */
uint64_t attnd_histogram_quantile_ns(const uint64_t *counts, size_t buckets, double part);

#endif
