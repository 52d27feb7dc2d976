/*
 * plan_device.h - what a plan of lengths costs that the GPU alone knows.
 */
#ifndef ATTND_BENCH_GPU_PLAN_DEVICE_H
#define ATTND_BENCH_GPU_PLAN_DEVICE_H

#include "bench/gpu/engine.h"

/** gpu_measure_device_plans() - plan_on_device_us, of 64 decodes, and plan_on_device_256_us: a call
 * of attnd_cuda_plan_on_stream() among others in a graph, of 32/8 heads and uneven lengths. */
void gpu_measure_device_plans(struct bench_suite *suite);

#endif
