/*
 * contract.h - what the options of the attention contract cost.
 */
#ifndef ATTND_BENCH_GPU_CONTRACT_H
#define ATTND_BENCH_GPU_CONTRACT_H

#include "bench/support/suite.h"

/**
 * gpu_measure_contract() - gpu.fixed_split_over_free, gpu.window_over_short,
 * gpu.softcap_over_plain, gpu.alibi_over_plain, gpu.fp8_over_fp16_decode,
 * gpu.mla_decode_gbps_over_peak
 * @service: arguments of the services that are started for them: kernels that stay share the SMs
 * with those of every type that ran there before
 * @decode_us: 64 decodes of 8192 in fp16; 0: unknown
 */
void gpu_measure_contract(struct bench_suite *suite, const char *const *service, double decode_us);

#endif
