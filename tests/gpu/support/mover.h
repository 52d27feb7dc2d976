/*
 * mover.h - kernels of an engine that does something else in every replay of the same graph.
 *
 * A graph replays constants. What changes is a step, a word in device memory that a kernel of the
 * graph increments; the others find their places by it.
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_MOVER_H
#define ATTND_TESTS_GPU_SUPPORT_MOVER_H

#include "tests/gpu/support/gpu.h"

struct mover {
    CUfunction move, next;
    CUdeviceptr step; /* uint32_t */
};

/* Where the words of a step lie: base + offsets[step], or base + step * step_bytes. */
struct moving {
    CUdeviceptr base;
    uint64_t step_bytes;
    CUdeviceptr offsets; /* uint64_t[steps], bytes; 0: none */
};

/** mover_open() - in a process that called gpu_open(); the step is 0. */
void mover_open(struct mover *mover);
/** mover_move() - copy @words words of the step, in the order of @stream. */
void mover_move(const struct mover *mover, CUstream stream, struct moving to, struct moving from,
                uint32_t words);
/** mover_next() - the next step. */
void mover_next(const struct mover *mover, CUstream stream);

#endif
