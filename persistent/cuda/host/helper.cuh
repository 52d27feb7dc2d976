/*
 * helper.cuh - the thread that launches, and what others ask of it.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_HELPER_CUH
#define ATTND_PERSISTENT_CUDA_HOST_HELPER_CUH

#include "persistent/cuda/host/state.cuh"

/* What is enqueued in @stream from here on begins when the gate is opened. The helper's thread;
 * before there is one, the caller of create(). */
cudaError_t gate_close(attnd_backend *backend, cudaStream_t stream);
void gate_open(attnd_backend *backend);

/* Elastic: calls a gang. Any thread. */
void gang_wake(attnd_backend *backend);

/* Elastic: gangs that come from now on leave at once (@dismiss 1), or when they are done (0).
 * Any thread. */
void gangs_dismiss(attnd_backend *backend, uint32_t dismiss);

/* Waits for what was copied in the side stream. Any thread. */
cudaError_t side_wait(attnd_backend *backend);

/* The thread that start() creates. */
void *helper_main(void *backend);

/* Waits until no kernel is there or armed; they must have been told to leave. */
cudaError_t kernels_wait(attnd_backend *backend);

#endif
