/*
 * resident.cuh - the megakernel: CTA 0 dispatches, every other CTA pulls items until told to leave.
 */
#ifndef ATTND_PERSISTENT_CUDA_RESIDENT_CUH
#define ATTND_PERSISTENT_CUDA_RESIDENT_CUH

#include "persistent/cuda/barrier.cuh"

namespace attnd
{

__global__ void resident_kernel(Resident *resident);

/* Dynamic shared memory the kernel wants. */
uint32_t resident_shared_bytes();

} // namespace attnd

#endif
