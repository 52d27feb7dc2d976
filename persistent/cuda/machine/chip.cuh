/*
 * chip.cuh - which GPUs device code is compiled for, said in one place: those of sm_90a, with all
 * that Hopper alone has, or all from sm_80 on. Files of this room have two implementations of what
 * only Hopper can do, and rooms above have shapes of their own where shared memory and registers
 * are fewer; they ask this constant.
 *
 * Host code is compiled with Hopper's kernels and sees their shapes. The others' say of themselves
 * what the host must know (ModuleFacts).
 */
#ifndef ATTND_PERSISTENT_CUDA_MACHINE_CHIP_CUH
#define ATTND_PERSISTENT_CUDA_MACHINE_CHIP_CUH

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ATTND_PORTABLE 1
#define ATTND_CLUSTER(blocks)
#else
#define ATTND_PORTABLE 0
/* Of a kernel: so many blocks are there at once, and have each other's shared memory. */
#define ATTND_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#endif

#include <stdint.h>

namespace attnd
{

/* 1: nothing but what every GPU from sm_80 on has: mma.sync, cp.async, mbarriers without counts of
 * bytes; no TMA, no wgmma, no registers that move, no launch that begins early. */
constexpr bool portable = ATTND_PORTABLE;

/* Shared memory of a CTA, what it declares included: as much as sm_86, sm_89 and sm_120 have. */
constexpr uint32_t portable_shared_bytes = 99 * 1024;

/* A warpgroup's registers a thread from here on: more than it was launched with, or fewer. */
template <int count> __device__ __forceinline__ void registers_more()
{
    if constexpr (!portable)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count> __device__ __forceinline__ void registers_fewer()
{
    if constexpr (!portable)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

} // namespace attnd

#endif
