/*
 * faults.h - what a neighbour costs, and what its death costs.
 */
#ifndef ATTND_BENCH_GPU_FAULTS_H
#define ATTND_BENCH_GPU_FAULTS_H

#include "bench/support/suite.h"

/** gpu_measure_neighbour() - gpu.neighbour_gemm_ratio, beside the idle service that runs now, in
 * `shared`. Nothing is measured without a peer that multiplies. */
void gpu_measure_neighbour(struct bench_suite *suite);

/** gpu_measure_restart() - gpu.worker_restart_ms, with the service that runs now; nothing is
 * measured without MPS, where the death of an engine is the engine's own. */
void gpu_measure_restart(struct bench_suite *suite);

#endif
