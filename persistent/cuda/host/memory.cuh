/*
 * memory.cuh - memory that comes and goes while kernels are resident.
 */
#ifndef ATTND_PERSISTENT_CUDA_HOST_MEMORY_CUH
#define ATTND_PERSISTENT_CUDA_HOST_MEMORY_CUH

#include "persistent/cuda/host/state.cuh"

/* map() and unmap() of the vtable. */
int memory_map(attnd_backend *backend, uint32_t index, const attnd_memory_source *source,
               attnd_fault *fault);
int memory_unmap(attnd_backend *backend, const uint32_t *indices, uint32_t count);

/* Finds the driver's own calls. */
cudaError_t driver_load(Driver *driver, int device);
/* @uuid: [ATTND_GPU_UUID_BYTES]. */
cudaError_t driver_uuid(int device, uint8_t *uuid);

/* Bytes that are pinned at a time, and so by themselves: 1 ms under the driver's lock. */
constexpr uint64_t pin_bytes = 32ull << 20;

#endif
