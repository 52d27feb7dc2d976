/*
 * barrier.cuh - the CTA's roles and how they wait for each other: mbarriers between the producer
 * and the consumer warpgroups, a named barrier among the consumers. Every wait has a deadline.
 */
#ifndef ATTND_PERSISTENT_CUDA_BARRIER_CUH
#define ATTND_PERSISTENT_CUDA_BARRIER_CUH

#include "persistent/cuda/device.cuh"

namespace attnd
{

constexpr int producer_threads = 128, consumer_threads = 256;
constexpr int resident_threads = producer_threads + consumer_threads;

/* About two seconds of clocks. A thread that waits longer is stuck: it says so here and goes on
 * with what is there, its CTA counts no item as done any more, so that no run is answered, and the
 * worker's host half sees it and ends the worker. Not by __trap(): with one in the consumers' path,
 * ptxas 13.0 ignores setmaxnreg and spills. */
constexpr long long wait_clocks_max = 4000000000ll;
static __device__ StuckRecord stuck;

/* 1: a wait of this CTA was in vain. */
__device__ __forceinline__ uint32_t *cta_stuck()
{
    __shared__ uint32_t word;
    return &word;
}

/* How many warps of this CTA are on the naive way, where an item may take minutes: a warp that
 * waits for them is not stuck. The host sees that they get on by `portions` of the run. */
__device__ __forceinline__ uint32_t *cta_naive()
{
    __shared__ uint32_t word;
    return &word;
}

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

/* The same in all lanes, and known to be: the result of a reduction lies in a uniform register, and
 * so does what is computed from it. Descriptors are wanted there; and where a branch depends on
 * such a value, the code behind it need not ask at every shuffle which lanes are there. */
__device__ __forceinline__ uint32_t uniform(uint32_t value)
{
    return __reduce_or_sync(0xffffffffu, value);
}

__device__ __forceinline__ void consumers_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(consumer_threads) : "memory");
}

__device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(count)
                 : "memory");
}

/* True if the phase of @parity is complete; suspends for a moment if it is not. */
__device__ __forceinline__ bool barrier_test(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return done;
}

/* Waits for the phase of @parity to complete. */
__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    if (barrier_test(barrier, parity))
        return;
    long long begin = clock64();
    while (!barrier_test(barrier, parity)) {
        if (clock64() - begin <= wait_clocks_max)
            continue;
        begin = clock64();
        if (*reinterpret_cast<volatile uint32_t *>(cta_naive()))
            continue;
        *cta_stuck() = 1;
        stuck = {1, blockIdx.x, threadIdx.x, shared_address(barrier), parity};
        return;
    }
}

/* The same, suspended for about @suspend_ns at most. */
__device__ __forceinline__ bool barrier_try(uint64_t *barrier, uint32_t parity, uint32_t suspend_ns)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, %3;\n"
                 "selp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity), "r"(suspend_ns)
                 : "memory");
    return done;
}

/* Now or not: does not suspend. */
__device__ __forceinline__ bool barrier_peek(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return done;
}

/* @count arrivals at once, by one thread. */
__device__ __forceinline__ void barrier_arrive(uint64_t *barrier, uint32_t count)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(count)
                 : "memory");
}

/* One arrival that also announces @bytes of bulk copies. */
__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

/* One arrival a warp, after all its lanes are done. */
__device__ __forceinline__ void barrier_arrive_warp(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                     : "memory");
}

/* This thread's arrival, when every cp.async it has issued so far has landed. */
__device__ __forceinline__ void barrier_arrive_copies(uint64_t *barrier)
{
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
        : "memory");
}

} // namespace attnd

#endif
