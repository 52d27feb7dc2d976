/*
 * crowd.h - what an answer costs while kernels of others have all SMs.
 */
#ifndef ATTND_BENCH_GPU_CROWD_H
#define ATTND_BENCH_GPU_CROWD_H

#include "bench/support/suite.h"

/** gpu_measure_crowd() - answer_in_crowd_us, with @suffix in front of the unit: a decode of 128
 * tokens by the service that runs now, in a stream, beside a process whose kernels fill the GPU.
 * Nothing is measured without MPS, where processes take turns. */
void gpu_measure_crowd(struct bench_suite *suite, const char *suffix);

#endif
