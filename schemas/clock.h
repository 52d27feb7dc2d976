/*
 * clock.h - the clock that every process of a machine reads alike.
 */
#ifndef ATTND_SCHEMAS_CLOCK_H
#define ATTND_SCHEMAS_CLOCK_H

#include <stdint.h>
#include <time.h>

/** attnd_clock_ns() - CLOCK_MONOTONIC. */
static inline uint64_t attnd_clock_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
