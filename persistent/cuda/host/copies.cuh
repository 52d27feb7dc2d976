/*
 * copies.cuh - whole pages to host memory and back.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_COPIES_CUH
#define ATTND_PERSISTENT_CUDA_HOST_COPIES_CUH

#include "persistent/cuda/host/state.cuh"

/* copy() of the vtable, and what it needs. */
cudaError_t copies_init(attnd_backend *backend);
void copies_end(attnd_backend *backend);
int pages_copy(attnd_backend *backend, uint64_t offset_bytes);
int pages_bring(attnd_backend *backend, uint64_t offset_bytes);

#endif
