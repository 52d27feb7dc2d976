/*
 * wgmma.cuh - the warpgroup matrix instructions the prefill loop uses, their shared-memory
 * descriptors and fences. scores(): D[64][N] (+)= A (shared, K-major) * B (shared, K-major);
 * values(): D[64][N] += A (registers) * B (shared, MN-major: V as [token][dim]). Layouts: 128-byte
 * swizzle, panels of 64 elements.
 */
#ifndef ATTND_PERSISTENT_CUDA_MACHINE_WGMMA_CUH
#define ATTND_PERSISTENT_CUDA_MACHINE_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace attnd
{

/* Shared-memory matrix descriptors, 128-byte swizzle: the low word holds the address, in 16 bytes,
 * and the leading dimension, the high one the stride and the swizzle. The pattern must start on
 * 1024 bytes. Steps inside an operand are added to the low word (bytes / 16), so that a kernel
 * computes one word an operand, and that in a uniform register. */
template <uint32_t leading_bytes, uint32_t stride_bytes> struct Descriptor {
    uint32_t low;

    __device__ __forceinline__ explicit Descriptor(uint32_t address)
        : low((address & 0x3ffff) >> 4 | leading_bytes >> 4 << 16)
    {
    }

    __device__ __forceinline__ uint64_t at(uint32_t bytes) const
    {
        return uint64_t(stride_bytes >> 4 | 1u << 30) << 32 | (low + bytes / 16);
    }
};

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Behind a wait for them: nothing that reads these accumulators is moved in front of it. The wait
 * itself does not say which they are, and where nvcc moves a read, ptxas serialises all products.
 */
template <int count> __device__ __forceinline__ void wgmma_settled(float (&d)[count])
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

template <typename T, int N> struct Wgmma;

/* The accumulator D as operands of an instruction: their numbers in its text, and the registers. */
#define TEN(tens)                                                                                  \
    "%" #tens "0, %" #tens "1, %" #tens "2, %" #tens "3, %" #tens "4, "                            \
    "%" #tens "5, %" #tens "6, %" #tens "7, %" #tens "8, %" #tens "9, "
#define NUMBERS_16 TEN() "%10, %11, %12, %13, %14, %15"
#define NUMBERS_32 TEN() TEN(1) TEN(2) "%30, %31"
#define NUMBERS_64 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define REGISTERS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) REGISTERS_4(i), REGISTERS_4(i + 4), REGISTERS_4(i + 8), REGISTERS_4(i + 12)
#define REGISTERS_16 SIXTEEN(0)
#define REGISTERS_32 SIXTEEN(0), SIXTEEN(16)
#define REGISTERS_64 REGISTERS_32, SIXTEEN(32), SIXTEEN(48)

/* One element type and width of D. @count: registers of D a thread; @n0 to @n5: the numbers of the
 * operands behind them. */
#define WGMMA(element, type, width, count, n0, n1, n2, n3, n4, n5)                                 \
    template <> struct Wgmma<element, width> {                                                     \
        __device__ static void scores(float (&d)[count], uint64_t a, uint64_t b, int keep)         \
        {                                                                                          \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2 ", 0;\n"                         \
                         "wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." type "." type       \
                         " {" NUMBERS_##count "}, %" #n0 ", %" #n1 ", p, 1, 1, 0, 0;\n}\n"         \
                         : REGISTERS_##count                                                       \
                         : "l"(a), "l"(b), "r"(keep));                                             \
        }                                                                                          \
                                                                                                   \
        __device__ static void values(float (&d)[count], const uint32_t *a, uint64_t b, int keep)  \
        {                                                                                          \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n5 ", 0;\n"                         \
                         "wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." type "." type       \
                         " {" NUMBERS_##count "}, "                                                \
                                              "{%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4    \
                                              ", p, 1, 1, 1;\n}\n"                                 \
                         : REGISTERS_##count                                                       \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));         \
        }                                                                                          \
    };
WGMMA(__half, "f16", 32, 16, 16, 17, 18, 19, 20, 21)
WGMMA(__half, "f16", 64, 32, 32, 33, 34, 35, 36, 37)
WGMMA(__half, "f16", 128, 64, 64, 65, 66, 67, 68, 69)
WGMMA(__nv_bfloat16, "bf16", 32, 16, 16, 17, 18, 19, 20, 21)
WGMMA(__nv_bfloat16, "bf16", 64, 32, 32, 33, 34, 35, 36, 37)
WGMMA(__nv_bfloat16, "bf16", 128, 64, 64, 65, 66, 67, 68, 69)
#undef WGMMA
#undef REGISTERS_64
#undef REGISTERS_32
#undef REGISTERS_16
#undef SIXTEEN
#undef REGISTERS_4
#undef NUMBERS_64
#undef NUMBERS_32
#undef NUMBERS_16
#undef TEN

} // namespace attnd

#endif
