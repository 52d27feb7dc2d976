/*
 * barrier.cuh - mbarriers: how the warps of a CTA wait for each other. Every wait has a deadline.
 */
#ifndef ATTND_PERSISTENT_CUDA_MACHINE_BARRIER_CUH
#define ATTND_PERSISTENT_CUDA_MACHINE_BARRIER_CUH

#include "persistent/cuda/machine/atomics.cuh"

namespace attnd
{

/* Of a thread that waited in vain, one a variant. */
struct StuckRecord {
    uint32_t seen; /* 1: the rest is filled */
    uint32_t block, thread;
    uint32_t barrier, parity; /* shared address */
};

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

__device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(count)
                 : "memory");
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

/* The same, and where no instruction suspends a thread until then, a short sleep if not. */
__device__ __forceinline__ bool barrier_doze(uint64_t *barrier, uint32_t parity, uint32_t sleep_ns)
{
    const bool done = barrier_peek(barrier, parity);
    if (!done)
        __nanosleep(sleep_ns);
    return done;
}
constexpr uint32_t doze_ns = 20, doze_long_ns = 200;

/* True if the phase of @parity is complete; suspends for a moment if it is not. */
__device__ __forceinline__ bool barrier_test(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    if constexpr (portable)
        done = barrier_doze(barrier, parity, doze_ns);
    else
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
    if constexpr (portable)
        done = barrier_doze(barrier, parity, min(suspend_ns, doze_long_ns));
    else
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, %3;\n"
                     "selp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity), "r"(suspend_ns)
                     : "memory");
    return done;
}

/* One arrival of this thread. */
__device__ __forceinline__ void barrier_arrive_one(uint64_t *barrier)
{
    if constexpr (portable)
        asm volatile(
            "{\n.reg .b64 state;\n"
            "mbarrier.arrive.shared::cta.b64 state, [%0];\n}\n" ::"r"(shared_address(barrier))
            : "memory");
    else
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                     : "memory");
}

/* @count arrivals at once, by one thread. */
__device__ __forceinline__ void barrier_arrive(uint64_t *barrier, uint32_t count)
{
    if constexpr (portable) {
        for (uint32_t i = 0; i < count; i++)
            barrier_arrive_one(barrier);
    } else {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                     "r"(count)
                     : "memory");
    }
}

/* One arrival that also announces @bytes of bulk copies, of which only Hopper has any. */
__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    if constexpr (!portable)
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
        barrier_arrive_one(barrier);
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
