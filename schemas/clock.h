/*
 * clock.h - the clock that every process of a machine reads alike, and a thread's own.
 */
#ifndef ATTND_SCHEMAS_CLOCK_H
#define ATTND_SCHEMAS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t attnd_read_clock_ns(clockid_t clock)
{
    struct timespec now;

    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/** attnd_clock_ns() - CLOCK_MONOTONIC. */
static inline uint64_t attnd_clock_ns(void)
{
    return attnd_read_clock_ns(CLOCK_MONOTONIC);
}

/** attnd_thread_clock_ns() - time that this thread has had on a processor. */
static inline uint64_t attnd_thread_clock_ns(void)
{
    return attnd_read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

#endif
