/*
 * mma.cuh - the matrix instructions of one warp, and how their operands come from shared memory.
 */
#ifndef ATTND_PERSISTENT_CUDA_MACHINE_MMA_CUH
#define ATTND_PERSISTENT_CUDA_MACHINE_MMA_CUH

#include "persistent/cuda/machine/chip.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace attnd
{

/* D[16][8] += A[16][16] * B[16][8]. */
template <typename T> struct Mma;
template <> struct Mma<__half> {
    __device__ static void run(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
template <> struct Mma<__nv_bfloat16> {
    __device__ static void run(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix4_trans(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* Four 8x8 matrices of a warp's accumulators, packed, as rows in shared memory. @address: of row
 * lane % 8 of matrix lane / 8. */
__device__ __forceinline__ void stmatrix4(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                          uint32_t d)
{
    if constexpr (portable) {
        const uint32_t lane = threadIdx.x % 32, part[4] = {a, b, c, d};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t row = __shfl_sync(0xffffffffu, address, i * 8 + lane / 4);
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(row + lane % 4 * 4), "r"(part[i])
                         : "memory");
        }
    } else {
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
            "r"(a), "r"(b), "r"(c), "r"(d)
            : "memory");
    }
}

/* A matrix of 8x8, two elements a lane, transposed. */
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t value)
{
    uint32_t out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(value));
    return out;
}

__device__ __forceinline__ void store_shared16(uint32_t address, uint4 value)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}

__device__ __forceinline__ uint4 load_shared16(uint32_t address)
{
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}

__device__ __forceinline__ void store_shared8(uint32_t address, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void store_shared16(uint32_t address, uint64_t first, uint64_t second)
{
    asm volatile("st.shared.v2.u64 [%0], {%1,%2};" ::"r"(address), "l"(first), "l"(second)
                 : "memory");
}

__device__ __forceinline__ void store_shared4(uint32_t address, uint32_t value)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared_address(uint32_t address, uint64_t value)
{
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
}

/* Two of them; says nothing of memory, as below. */
__device__ __forceinline__ void load_shared_addresses(uint64_t &first, uint64_t &second,
                                                      uint32_t address)
{
    asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "r"(address));
}

__device__ __forceinline__ uint32_t load_shared4(uint32_t address)
{
    uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

/* Says nothing of memory: of what other lanes stored in front of a __syncwarp(). */
__device__ __forceinline__ uint64_t load_shared8(uint32_t address)
{
    uint64_t value;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(value) : "r"(address));
    return value;
}

} // namespace attnd

#endif
