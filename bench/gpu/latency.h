/*
 * latency.h - what attention costs as a layer among others, when there is next to nothing to do.
 */
#ifndef ATTND_BENCH_GPU_LATENCY_H
#define ATTND_BENCH_GPU_LATENCY_H

#include "bench/gpu/engine.h"

/** gpu_measure_layers() - layer_in_stream_us and layer_in_graph_us, with @suffix in front of the
 * unit: one layer of a decode of 128 tokens between two small kernels of this process, minus the
 * tile's own time.
 * @reach: microseconds that count as reached */
void gpu_measure_layers(struct bench_suite *suite, const char *suffix, double reach);

/** gpu_measure_engine_layers() - layer_in_graph_32_us and layer_in_graph_132_us, likewise: the
 * kernels are of so many CTAs, of 100 KB of shared memory and some microseconds each. Not for
 * kernels that stay on all SMs, which leave them no room. Nothing is measured without MPS, where
 * processes take turns. */
void gpu_measure_engine_layers(struct bench_suite *suite, const char *suffix);

#endif
