/*
 * idle_tax.h - what a service costs others that does nothing.
 */
#ifndef ATTND_BENCH_GPU_IDLE_TAX_H
#define ATTND_BENCH_GPU_IDLE_TAX_H

#include "bench/support/suite.h"

/**
 * gpu_measure_idle_tax() - idle_service_tax: the worse of two ratios, beside the idle service over
 * alone; one is idle_service_tax_kernel, a kernel of one CTA of 200 KB on each SM, and the other a
 * product of 4096^3 by cuBLAS
 * @service: the options of the service that runs now; it is stopped, begins again in turns with
 *           times alone, and has ended afterwards
 *
 * Without a peer that multiplies there is only idle_service_tax_kernel.
 */
void gpu_measure_idle_tax(struct bench_suite *suite, const char *const *service);

#endif
