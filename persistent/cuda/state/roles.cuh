/*
 * roles.cuh - the threads of a CTA: of the dispatcher, whose warps have a duty each
 * (dispatcher.cuh); and of a worker, with a producer warpgroup and two consumer warpgroups. Here is
 * also what the consumers do together.
 */
#ifndef ATTND_PERSISTENT_CUDA_STATE_ROLES_CUH
#define ATTND_PERSISTENT_CUDA_STATE_ROLES_CUH

#include <stdint.h>

namespace attnd
{

constexpr int dispatch_threads = 128;
constexpr int producer_threads = 128, consumer_threads = 256;
constexpr int resident_threads = producer_threads + consumer_threads;
constexpr uint32_t consumer_warps = consumer_threads / 32;

/* The shared memory that inner loops take turns in. */
__device__ __forceinline__ char *cta_buffer()
{
    extern __shared__ __align__(1024) char buffer[];
    return buffer;
}

/* 0..255 among the consumers. */
__device__ __forceinline__ uint32_t consumer_thread()
{
    return threadIdx.x - producer_threads;
}

/* The CTA's shared memory is ready: what a warp has prepared is there for those that wait here. A
 * warp that @goes_on needs nothing of the others'. */
__device__ __forceinline__ void cta_ready(bool goes_on)
{
    __syncwarp();
    if (goes_on)
        asm volatile("bar.arrive 0, %0;" ::"n"(resident_threads) : "memory");
    else
        asm volatile("bar.sync 0, %0;" ::"n"(resident_threads) : "memory");
}

__device__ __forceinline__ void consumers_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(consumer_threads) : "memory");
}

/* The producers' two barriers, one for every second work: what the fetch warp has left for the
 * loader warps is there. It goes on by fused_ready(), or waits for them, too. */
__device__ __forceinline__ void fused_ready(uint32_t number)
{
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(6 + number % 2), "n"(producer_threads) : "memory");
}

__device__ __forceinline__ void fused_sync(uint32_t number)
{
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(6 + number % 2), "n"(producer_threads) : "memory");
}

/* The lanes of a consumer warp wait for each other, as by __syncwarp(). But of a barrier ptxas
 * takes it that they go on together: where a function begins with it, branches on what is uniform()
 * need no code for lanes that went another way. (__syncwarp() does not say so.) */
__device__ __forceinline__ void consumer_warp_sync()
{
    asm volatile("bar.sync %0, 32;" ::"r"(8 + consumer_thread() / 32) : "memory");
}

/* True in all consumers if @flag is in any. */
__device__ __forceinline__ bool consumers_any(bool flag)
{
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\n"
                 "barrier.cta.red.or.pred.aligned q, 1, %2, p;\nselp.u32 %0, 1, 0, q;\n}\n"
                 : "=r"(any)
                 : "r"(uint32_t(flag)), "n"(consumer_threads)
                 : "memory");
    return any;
}

} // namespace attnd

#endif
