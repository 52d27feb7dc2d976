/*
 * engine.h - an engine process that measures one shape.
 *
 * CUDA does not survive fork(), and under MPS a context does not survive a fault of another
 * process; so the program itself never initialises it. Every shape is measured in a child, which
 * ends with its context and its session.
 */
#ifndef ATTND_BENCH_GPU_ENGINE_H
#define ATTND_BENCH_GPU_ENGINE_H

#include "bench/support/suite.h"
#include "bench/support/uniform.h"

#include <cuda.h>

/* What a child found, in memory it shares with its parent. Medians in microseconds. */
struct gpu_times {
    double stream_us; /* event pairs around attnd_cuda_run_on_stream() in an empty stream */
    double stream_p99_us, ring_p99_us;
    double ring_us;  /* client's clock, from the call of attnd_run() until it is seen complete */
    double tile_us;  /* of that between the first item and the last, by the device's clock */
    double value[8]; /* of a program that measures something else */
};

/** gpu_child() - run @measure in a process of its own, which may use CUDA.
 * Return: true if it returned true; @suite fails otherwise. */
bool gpu_child(struct bench_suite *suite,
               bool (*measure)(struct bench_suite *suite, void *context, struct gpu_times *times),
               void *context, struct gpu_times *times);

/** gpu_open() - a context for this process, in a child. */
bool gpu_open(struct bench_suite *suite);
/** gpu_cuda() - check a call of the driver. */
bool gpu_cuda(struct bench_suite *suite, const char *call, CUresult result);

/** gpu_stamp_device() - the card's name into what the suite records, and to standard output:
 * "NVIDIA H100 80GB HBM3" is h100 in records. */
void gpu_stamp_device(struct bench_suite *suite);

/** gpu_fill() - numbers of @dtype into @bytes of device memory, by copies: kernels would find no
 * SM.
 */
bool gpu_fill(struct bench_suite *suite, CUdeviceptr at, uint64_t bytes, uint32_t dtype);

/* A decode of 128 keys, 32/8 heads: less than the way there and back takes. */
extern const struct bench_uniform gpu_small;

/** gpu_measure() - @count runs of one shape, one at a time, layers in turn, after a warm-up. */
bool gpu_measure(struct bench_suite *suite, const struct bench_uniform *uniform, uint64_t count,
                 struct gpu_times *times);

/** gpu_measure_sparse() - the same with pauses of some 250 us in front of each run, so that kernels
 * that come and go have gone; and in a stream of high priority, so that its own kernels do not wait
 * for those of others. */
bool gpu_measure_sparse(struct bench_suite *suite, const struct bench_uniform *uniform,
                        uint64_t count, struct gpu_times *times);

#endif
