/*
 * element.cuh - the types of q, K, V and o, to float and back.
 */
#ifndef ATTND_PERSISTENT_CUDA_ELEMENT_CUH
#define ATTND_PERSISTENT_CUDA_ELEMENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace attnd
{

template <typename T> __device__ __forceinline__ float to_float(T x);
template <> __device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}
template <> __device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ __half from_float(float x)
{
    return __float2half_rn(x);
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float x)
{
    return __float2bfloat16_rn(x);
}

/* Two floats as one register of two elements, the first in the low half. */
template <typename T> struct Pack;
template <> struct Pack<__half> {
    __device__ static uint32_t pair(float low, float high)
    {
        __half2 both = __floats2half2_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&both);
    }
};
template <> struct Pack<__nv_bfloat16> {
    __device__ static uint32_t pair(float low, float high)
    {
        __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&both);
    }
};

} // namespace attnd

#endif
