/*
 * amounts.h - of two amounts: the smaller one, and what is left of one.
 */
#ifndef ATTND_BENCH_SUPPORT_AMOUNTS_H
#define ATTND_BENCH_SUPPORT_AMOUNTS_H

#include <stdint.h>

static inline uint64_t bench_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/** bench_left() - of @all without @part. Return: 0 if that is more. */
static inline uint64_t bench_left(uint64_t all, uint64_t part)
{
    return all - bench_least(all, part);
}

#endif
