/*
 * element.cuh - the types of q, K, V and o, to float and back; fp8 to what products take.
 */
#ifndef ATTND_PERSISTENT_CUDA_MACHINE_ELEMENT_CUH
#define ATTND_PERSISTENT_CUDA_MACHINE_ELEMENT_CUH

#include "persistent/cuda/machine/chip.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>
#include <type_traits>

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

/* fp8, of K and V only (schemas/abi_options.h). */
struct E4m3 {
    uint8_t bits;
};
struct E5m2 {
    uint8_t bits;
};

/* Two of e4m3, each in the upper half of 16 bits, as two fp16, exactly, where no instruction does
 * it: exponents are 8 less than those of fp16. Of the numbers only 0x7f and 0xff are not finite: 1
 * carries from all of their bits to the sign's place. */
__device__ __forceinline__ uint32_t widened_by_bits(uint32_t upper)
{
    const uint32_t bits = upper >> 1 & 0x3f803f80, beyond = (bits + 0x40804080) & 0x80008000;
    const uint32_t number = bits | (upper & 0x80008000);
    const __half2 out =
        __hmul2(*reinterpret_cast<const __half2 *>(&number), __floats2half2_rn(256.0f, 256.0f));
    return *reinterpret_cast<const uint32_t *>(&out) | (beyond >> 15) * 0x7e00;
}

/* Two of them as two fp16, exactly, the first in the low half. */
__device__ __forceinline__ uint32_t widened_e4m3(uint32_t two)
{
    uint32_t out;
    if constexpr (portable)
        out = widened_by_bits(__byte_perm(two, 0, 0x1404));
    else
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(uint16_t(two)));
    return out;
}

template <> __device__ __forceinline__ float to_float(E4m3 x)
{
    return __half2float(__ushort_as_half(uint16_t(widened_e4m3(x.bits))));
}
template <> __device__ __forceinline__ float to_float(E5m2 x)
{
    return __half2float(__ushort_as_half(uint16_t(x.bits << 8)));
}

/* To the nearest, ties to even; beyond the largest to that; NaN is 0x7f. */
template <> __device__ __forceinline__ E4m3 from_float(float x)
{
    uint16_t out;
    if constexpr (portable)
        out = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    else
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %1;" : "=h"(out) : "f"(x));
    return {uint8_t(x != x ? 0x7f : out)};
}
template <> __device__ __forceinline__ E5m2 from_float(float x)
{
    uint16_t out;
    if constexpr (portable)
        out = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %1;" : "=h"(out) : "f"(x));
    return {uint8_t(x != x ? 0x7f : out)};
}

/* Of memory that others write. */
template <typename T> __device__ __forceinline__ T load_element(const T *from)
{
    return __ldcg(from);
}
template <> __device__ __forceinline__ E4m3 load_element(const E4m3 *from)
{
    return {__ldcg(&from->bits)};
}
template <> __device__ __forceinline__ E5m2 load_element(const E5m2 *from)
{
    return {__ldcg(&from->bits)};
}

/* Four fp8 of a register, bytes 0 to 3, as two registers of two elements of T each: of bytes 0 and
 * 1, and of 2 and 3; or, with @across, of bytes 0 and 2, and of 1 and 3. */
template <typename KV> struct Narrow;
template <> struct Narrow<E4m3> {
    template <bool across>
    __device__ static void widen(uint32_t &first, uint32_t &second, uint32_t four)
    {
        if constexpr (portable) {
            first = widened_by_bits(__byte_perm(four, 0, across ? 0x2404 : 0x1404));
            second = widened_by_bits(__byte_perm(four, 0, across ? 0x3414 : 0x3424));
        } else {
            const uint32_t in = across ? __byte_perm(four, 0, 0x3120) : four;
            /* Taken apart so, the upper half needs no shift: it is named in the conversion. */
            asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
                "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
                : "=r"(first), "=r"(second)
                : "r"(in));
        }
    }
};
template <> struct Narrow<E5m2> {
    template <bool across>
    __device__ static void widen(uint32_t &first, uint32_t &second, uint32_t four)
    {
        first = __byte_perm(four, 0, across ? 0x2404 : 0x1404);
        second = __byte_perm(four, 0, across ? 0x3414 : 0x3424);
    }
};

/* Two fp16 that are exact in T, as T. */
template <typename T> __device__ __forceinline__ uint32_t from_halves(uint32_t halves);
template <> __device__ __forceinline__ uint32_t from_halves<__half>(uint32_t halves)
{
    return halves;
}
template <> __device__ __forceinline__ uint32_t from_halves<__nv_bfloat16>(uint32_t halves)
{
    const float2 both = __half22float2(*reinterpret_cast<const __half2 *>(&halves));
    const __nv_bfloat162 out = __floats2bfloat162_rn(both.x, both.y);
    return *reinterpret_cast<const uint32_t *>(&out);
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

/* Of an element of K or V, in a kernel of this policy. */
template <typename Policy> constexpr int kv_bytes = Policy::narrow ? 1 : 2;

/* The types of a kernel. Elements of K and V have @bytes; of 8 bits they are of either of two
 * types, which a run says. */
template <typename T, typename Policy> struct Types {
    using Q = T;
    using O = T;
    static constexpr bool narrow = Policy::narrow;
    /* Weights and values meet in this: fp8 is exact in fp16, and takes one instruction less. */
    using Products = std::conditional_t<narrow, __half, T>;
};

} // namespace attnd

#endif
