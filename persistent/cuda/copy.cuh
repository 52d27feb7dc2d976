/*
 * copy.cuh - cp.async: 16 bytes from global to shared memory, past L1, zero-filled where asked.
 */
#ifndef ATTND_PERSISTENT_CUDA_COPY_CUH
#define ATTND_PERSISTENT_CUDA_COPY_CUH

#include "persistent/cuda/device.cuh"

namespace attnd
{

/* @bytes: 16, or 0 for zeros (@from must still be a mapped address). */
__device__ __forceinline__ void cp_async16(uint32_t to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

} // namespace attnd

#endif
