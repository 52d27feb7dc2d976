/*
 * trace.h - what a timeline costs those who are drawn in it.
 */
#ifndef ATTND_BENCH_GPU_TRACE_H
#define ATTND_BENCH_GPU_TRACE_H

#include "bench/support/suite.h"

/**
 * gpu_measure_trace() - gpu.trace_cost: the service that runs now with a reader of its records over
 * without one; of two shapes the larger
 * @time_us: times shape 0 or 1; 0 after a failure
 */
void gpu_measure_trace(struct bench_suite *suite,
                       double (*time_us)(struct bench_suite *suite, int shape));

#endif
