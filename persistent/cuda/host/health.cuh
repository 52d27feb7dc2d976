/*
 * health.cuh - whether all is well on the device.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_HEALTH_CUH
#define ATTND_PERSISTENT_CUDA_HOST_HEALTH_CUH

#include "persistent/cuda/host/state.cuh"

/* check() of the vtable, and what it needs. */
cudaError_t health_init(attnd_backend *backend);
int health_check(attnd_backend *backend, char *report, size_t report_bytes);

#endif
