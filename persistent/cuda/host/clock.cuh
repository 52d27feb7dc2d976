/*
 * clock.cuh - the clocks of host and GPU, compared.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_CLOCK_CUH
#define ATTND_PERSISTENT_CUDA_HOST_CLOCK_CUH

#include "persistent/cuda/host/state.cuh"

/* CLOCK_MONOTONIC - globaltimer, in nanoseconds. @pinned: for a kernel's answer. Return:
 * cudaErrorNotReady if there was none until @end_ns. */
cudaError_t clock_offset(uint64_t *pinned, cudaStream_t stream, uint64_t end_ns,
                         int64_t *offset_ns);
/* The difference that counts from here on. */
void clock_take(attnd_backend *backend, int64_t offset_ns);
/* Compares the clocks now and then, for a millisecond at most. The helper's thread. */
void clock_keep(attnd_backend *backend);
/* The heartbeat's word: now, in the GPU's time. */
uint32_t clock_beat_ms(int64_t offset_ns);

#endif
