/*
 * scalar.cuh - what one thread computes beside its work: the time, a division by a number that many
 * divide by, 2^x; and a value that is the same in all lanes.
 */
#ifndef ATTND_PERSISTENT_CUDA_MACHINE_SCALAR_CUH
#define ATTND_PERSISTENT_CUDA_MACHINE_SCALAR_CUH

#include <stdint.h>

namespace attnd
{

/* Exponents are of base 2. */
constexpr float log2_e = 1.44269504088896f;

/* 2^x in one instruction: relative error 2^-22, subnormals are zero. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A divisor that many use is inverted once a run: the compiler's division takes fifteen
 * instructions, one after the other, and two of them are slow. */
__device__ __forceinline__ uint32_t reciprocal_of(uint32_t divisor)
{
    return 0xffffffffu / divisor;
}

struct Divided {
    uint32_t quotient, rest;
};

/* @n over @divisor, for any @n. reciprocal * divisor is at least 2^32 - divisor, so the product is
 * less than the quotient by n / 2^32 at most: what is cut off it is at most 1 too small. */
__device__ __forceinline__ Divided divided(uint32_t n, uint32_t divisor, uint32_t reciprocal)
{
    uint32_t quotient = __umulhi(n, reciprocal), rest = n - quotient * divisor;
    if (rest >= divisor) {
        quotient++;
        rest -= divisor;
    }
    return {quotient, rest};
}

/* The same in all lanes, and known to be: the result of a reduction lies in a uniform register, and
 * so does what is computed from it. Descriptors are wanted there; and where a branch depends on
 * such a value, the code behind it need not ask at every shuffle which lanes are there. */
__device__ __forceinline__ uint32_t uniform(uint32_t value)
{
    return __reduce_or_sync(0xffffffffu, value);
}

/* This thread's lane, asked for here: what a loop computes from it and seldom wants is then
 * computed where it is wanted, and takes no register all along. */
__device__ __forceinline__ uint32_t lane_anew()
{
    uint32_t lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* Likewise this thread. */
__device__ __forceinline__ uint32_t thread_anew()
{
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

__device__ __forceinline__ uint64_t clock_ns()
{
    uint64_t value;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
    return value;
}

} // namespace attnd

#endif
