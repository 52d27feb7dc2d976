/*
 * neighbour.h - a kernel of somebody else: what the service has to live beside.
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_NEIGHBOUR_H
#define ATTND_TESTS_GPU_SUPPORT_NEIGHBOUR_H

#include "tests/gpu/support/gpu.h"

#define NEIGHBOUR_SHARED_BYTES (227u << 10) /* the most a CTA can have */

struct neighbour {
    CUfunction function, crowd;
    CUdeviceptr words;
    CUstream stream;
    CUevent begin, end;
    int registers; /* of a CTA */
};

/** neighbour_open() - in a process that called gpu_open(). */
void neighbour_open(struct neighbour *neighbour);

/**
 * neighbour_launch() - does not wait
 * @loops: about half a microsecond each
 * CTAs of 1024 threads that take all registers of an SM, and @shared_bytes.
 */
void neighbour_launch(const struct neighbour *neighbour, uint32_t ctas, uint32_t shared_bytes,
                      uint32_t loops);

/** neighbour_time_us() - launch, wait, the time between events around it: the median of @times. */
double neighbour_time_us(const struct neighbour *neighbour, uint32_t ctas, uint32_t shared_bytes,
                         uint32_t loops, uint32_t times);

/** neighbour_await_alone() - until no CTA that has shared memory is left on any SM: a CTA of all of
 * it waits on each SM for the others to be there. The test fails after 10 s. */
void neighbour_await_alone(const struct neighbour *neighbour);

#endif
