/*
 * prng.h - random numbers that a seed repeats on every machine.
 *
 * A Weyl sequence scrambled by two multiply-xorshift rounds (the splitmix construction): 64 bits of
 * state, any seed is a good seed, and streams of different seeds do not look alike. That is all a
 * test needs; nothing here is secret.
 */
#ifndef ATTND_TESTS_SUPPORT_RANDOM_PRNG_H
#define ATTND_TESTS_SUPPORT_RANDOM_PRNG_H

#include <stdint.h>

struct prng {
    uint64_t state;
};

static inline uint64_t prng_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t prng_next(struct prng *prng)
{
    prng->state += 0x9e3779b97f4a7c15u;
    return prng_mix(prng->state);
}

/** prng_fork() - the generator of number @index under @seed: independent of its neighbours. */
static inline struct prng prng_fork(uint64_t seed, uint64_t index)
{
    struct prng prng = {prng_mix(seed ^ prng_mix(index + 0x632be59bd9b4e019u))};
    return prng;
}

/** prng_below() - uniform in 0..count-1; count >= 1. The high half of a product, so no division. */
static inline uint32_t prng_below(struct prng *prng, uint32_t count)
{
    return (uint32_t)(((prng_next(prng) >> 32) * count) >> 32);
}

/** prng_between() - uniform in low..high, both included. */
static inline int32_t prng_between(struct prng *prng, int32_t low, int32_t high)
{
    return low + (int32_t)prng_below(prng, (uint32_t)(high - low) + 1);
}

/** prng_percent() - 1 with a chance of @percent in a hundred. */
static inline uint32_t prng_percent(struct prng *prng, uint32_t percent)
{
    return prng_below(prng, 100) < percent;
}

/** prng_unit() - uniform in [0, 1). */
static inline double prng_unit(struct prng *prng)
{
    return (double)(prng_next(prng) >> 11) * 0x1p-53;
}

#endif
