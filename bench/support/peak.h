/*
 * peak.h - what the processor can do at best, measured where and when a figure is measured: the
 * denominators of figures that are ratios.
 */
#ifndef ATTND_BENCH_SUPPORT_PEAK_H
#define ATTND_BENCH_SUPPORT_PEAK_H

#include <stdint.h>

/**
 * bench_peak_read() - bytes a second that @threads threads read from memory together
 * @memory: 64-byte aligned, already touched, far larger than the caches; each thread sums a
 *          contiguous share of it
 * @rounds: the best counts
 *
 * Blocking: for the whole measurement. Return: bytes a second; 0 if no thread could be made.
 */
double bench_peak_read(uint32_t threads, const void *memory, uint64_t size_bytes, uint32_t rounds);

/**
 * bench_peak_fma() - fp32 operations a second (a fused multiply-add is two) of @threads threads
 * @isa: "avx512", "avx2"; anything else: multiply and add of the baseline instruction set
 *
 * The instruction set must be there. Otherwise as bench_peak_read().
 */
double bench_peak_fma(uint32_t threads, const char *isa, uint32_t rounds);

/** bench_peak_fma_operations() - what one thread does in one round of bench_peak_fma(). */
double bench_peak_fma_operations(const char *isa);

#endif
