/*
 * seed.h - one seed a program: ATTND_SEED if it is set, the clock otherwise; always printed, so
 * that a failure can be repeated.
 */
#ifndef ATTND_TESTS_SUPPORT_RANDOM_SEED_H
#define ATTND_TESTS_SUPPORT_RANDOM_SEED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline uint64_t test_seed(void)
{
    const char *text = getenv("ATTND_SEED");
    uint64_t seed;
    if (text) {
        seed = strtoull(text, NULL, 0);
    } else {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        seed = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }
    printf("ATTND_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

/* What the environment says of @name, or @otherwise. */
static inline uint64_t test_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

#endif
