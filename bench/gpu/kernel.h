/*
 * kernel.h - a kernel of an engine or of a neighbour, in a process that measures: CTAs that hold
 * shared memory and multiply for a while.
 */
#ifndef ATTND_BENCH_GPU_KERNEL_H
#define ATTND_BENCH_GPU_KERNEL_H

#include "bench/gpu/engine.h"

struct gpu_kernel {
    CUfunction function;
    CUdeviceptr words; /* what threads write, lest their products be left out */
    uint32_t shared_bytes;
};

/** gpu_kernel_open() - in a child that has a context. @shared_bytes: of each CTA. */
bool gpu_kernel_open(struct bench_suite *suite, struct gpu_kernel *kernel, uint32_t shared_bytes);

/** gpu_kernel_queue() - into @stream, and do not wait. @loops: some 10 ns each, at least 1. */
bool gpu_kernel_queue(struct bench_suite *suite, const struct gpu_kernel *kernel, uint32_t ctas,
                      uint32_t loops, CUstream stream);

#endif
