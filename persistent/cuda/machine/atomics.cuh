/*
 * atomics.cuh - the only device header that names a memory order: acquires, releases, fences, and
 * what is read or added to without either.
 *
 * The edges have the names of schemas/atomics.h, and a comment at each use names its edge:
 *
 *   R1 publish   release of an index or a flag, after the data it covers
 *   A1 observe   acquire of it, before that data is read
 *
 * Scopes are in the names. `cta`: words of shared memory, between warps of one CTA. `gpu`: words of
 * device memory, between kernels of this GPU, of whatever process. `sys`: whatever crosses the bus.
 * `peek` and `store_relaxed` order nothing: the word is a hint, or something else orders it.
 */
#ifndef ATTND_PERSISTENT_CUDA_MACHINE_ATOMICS_CUH
#define ATTND_PERSISTENT_CUDA_MACHINE_ATOMICS_CUH

#include "persistent/cuda/machine/chip.cuh"

#include <stdint.h>

namespace attnd
{

__device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/* ---- across the bus ---- */

/* A1 */
__device__ __forceinline__ uint32_t observe_sys(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

/* A1 for two words that lie together. */
__device__ __forceinline__ uint2 observe_pair_sys(const uint32_t *pair)
{
    uint2 value;
    asm volatile("ld.acquire.sys.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(pair)
                 : "memory");
    return value;
}

/* R1 */
__device__ __forceinline__ void publish_sys(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* For a word that nothing hangs on, or behind a fence. */
__device__ __forceinline__ void store_relaxed_sys(uint32_t *word, uint32_t value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void store_relaxed_sys(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/* Memory that the daemon or an engine rewrites: never through the read-only path. */
__device__ __forceinline__ uint32_t peek_sys(const void *from)
{
    uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ uint64_t peek8_sys(const void *from)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ uint2 peek_pair_sys(const uint32_t *pair)
{
    uint2 value;
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(pair)
                 : "memory");
    return value;
}

__device__ __forceinline__ uint4 peek16_sys(const uint4 *from)
{
    uint4 value;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

/* Of several that come, the first one's value stays. */
__device__ __forceinline__ void set_if_zero_sys(uint32_t *word, uint32_t value)
{
    atomicCAS_system(word, 0u, value);
}

/* A sum whose order something behind it takes care of. */
__device__ __forceinline__ void add_relaxed_sys(uint32_t *word, uint32_t value)
{
    atomicAdd_system(word, value);
}

/* ---- on this GPU ---- */

/* A1 */
__device__ __forceinline__ uint32_t observe_gpu(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ uint64_t observe_gpu8(const unsigned long long *word)
{
    uint64_t value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/* A1 for 16 bytes in one access. */
__device__ __forceinline__ void observe_gpu16(const void *from, uint64_t *low, uint64_t *high)
{
    asm volatile("{\n.reg .b128 v;\n"
                 "ld.acquire.gpu.global.b128 v, [%2];\n"
                 "mov.b128 {%0, %1}, v;\n}\n"
                 : "=l"(*low), "=l"(*high)
                 : "l"(from)
                 : "memory");
}

/* R1 */
__device__ __forceinline__ void publish_gpu(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* R1 for a word that several add to. */
__device__ __forceinline__ void add_gpu(uint32_t *word, uint32_t value)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* R1 for a counter and what goes with it, for warps that only look at it. */
__device__ __forceinline__ void add_gpu(unsigned long long *word, unsigned long long more)
{
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(word), "l"(more) : "memory");
}

/* Arrival counters: the last arriver sees what all others wrote. */
__device__ __forceinline__ uint32_t arrive_gpu(uint32_t *word, uint32_t as = 1)
{
    uint32_t value;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(value)
                 : "l"(word), "r"(as)
                 : "memory");
    return value;
}

/* For a word whose next reader comes behind the end of the kernel. */
__device__ __forceinline__ void store_relaxed_gpu(uint32_t *word, uint32_t value)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* The store of R1 for 16 bytes in one access; the fence is the caller's. */
__device__ __forceinline__ void store_relaxed_gpu16(void *to, uint64_t low, uint64_t high)
{
    asm volatile("{\n.reg .b128 v;\n"
                 "mov.b128 v, {%1, %2};\n"
                 "st.relaxed.gpu.global.b128 [%0], v;\n}\n" ::"l"(to),
                 "l"(low), "l"(high)
                 : "memory");
}

/* Between a store of one word and a load of another that somebody else stores. */
__device__ __forceinline__ void fence_order()
{
    asm volatile("fence.sc.gpu;" ::: "memory");
}

/* The same, where one of the words lies in host memory. */
__device__ __forceinline__ void fence_order_sys()
{
    asm volatile("fence.sc.sys;" ::: "memory");
}

/* A look that no data hangs on. */
__device__ __forceinline__ uint32_t peek_gpu(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ uint64_t peek8_gpu(const unsigned long long *word)
{
    uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/* Four words that lie side by side, 16-byte aligned. */
__device__ __forceinline__ uint4 peek16_gpu(const uint32_t *words)
{
    uint4 value;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(words)
                 : "memory");
    return value;
}

/* A count that no data hangs on, and nobody waits for. (atomicAdd() of what may be anywhere waits
 * to learn where it was.) */
__device__ __forceinline__ void tally_gpu(unsigned long long *word, unsigned long long value)
{
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void tally_gpu(uint32_t *word, uint32_t value)
{
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

/* Tickets: no data hangs on them. */
__device__ __forceinline__ uint32_t take_gpu(uint32_t *word)
{
    uint32_t value;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(value)
                 : "l"(word)
                 : "memory");
    return value;
}

/* The later of two times; what orders it comes behind. */
__device__ __forceinline__ void latest_gpu(unsigned long long *word, unsigned long long ns)
{
    asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(word), "l"(ns) : "memory");
}

/* ---- in one CTA ---- */

/* A1 */
__device__ __forceinline__ uint32_t observe_cta(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];"
                 : "=r"(value)
                 : "r"(shared_address(word))
                 : "memory");
    return value;
}

/* A look that no data hangs on, or that something else orders. */
__device__ __forceinline__ uint32_t peek_cta(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];"
                 : "=r"(value)
                 : "r"(shared_address(word))
                 : "memory");
    return value;
}

__device__ __forceinline__ int32_t peek_cta(const int32_t *word)
{
    return int32_t(peek_cta(reinterpret_cast<const uint32_t *>(word)));
}

/* For a look by others, or behind which something releases it. */
__device__ __forceinline__ void store_relaxed_cta(int32_t *word, int32_t value)
{
    asm volatile("st.relaxed.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(word)), "r"(value)
                 : "memory");
}

/* R1 */
__device__ __forceinline__ void publish_cta(uint32_t *word, uint32_t value)
{
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(word)), "r"(value)
                 : "memory");
}

/* A counter: the last to add sees what all others of the CTA wrote before. */
__device__ __forceinline__ uint32_t arrive_cta(uint32_t *word)
{
    uint32_t value;
    asm volatile("atom.acq_rel.cta.shared.add.u32 %0, [%1], 1;"
                 : "=r"(value)
                 : "r"(shared_address(word))
                 : "memory");
    return value;
}

/* Takes a lock, which publish_cta() of 0 gives back. Return: 0 if it was free. */
__device__ __forceinline__ uint32_t lock_cta(uint32_t *word)
{
    uint32_t was;
    asm volatile("atom.acquire.cta.shared::cta.exch.b32 %0, [%1], 1;"
                 : "=r"(was)
                 : "r"(shared_address(word))
                 : "memory");
    return was;
}

/* ---- wherever the word lies: relaxed, GPU scope ---- */

/* Return: the sum before. */
template <typename T> __device__ __forceinline__ T add_relaxed(T *word, T value)
{
    return atomicAdd(word, value);
}

/* To @value, if it is less. */
__device__ __forceinline__ void raise_relaxed(int32_t *word, int32_t value)
{
    atomicMax(word, value);
}

__device__ __forceinline__ void swap_relaxed(uint32_t *word, uint32_t value)
{
    atomicExch(word, value);
}

__device__ __forceinline__ void set_bits(uint32_t *word, uint32_t bits)
{
    atomicOr(word, bits);
}

__device__ __forceinline__ void clear_bits(uint32_t *word, uint32_t bits)
{
    atomicAnd(word, ~bits);
}

/* Of several that come, the first one's value stays. Return: true if this is the first. */
__device__ __forceinline__ bool set_if_zero(uint32_t *word, uint32_t value)
{
    return !atomicCAS(word, 0u, value);
}

/* ---- fences ---- */

/* Acquires what was loaded before it and releases to what is stored after it; at system scope for
 * the daemon. */
__device__ __forceinline__ void fence_sys()
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

__device__ __forceinline__ void fence_gpu()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

__device__ __forceinline__ void fence_cta()
{
    __threadfence_block();
}

/* All kernels in front of this one in its stream are over, and what they stored is seen: where none
 * begins early that is so. */
__device__ __forceinline__ void grid_wait()
{
    if constexpr (!portable)
        asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* Kernels behind this one in its stream may begin beside it, if they were launched to. */
__device__ __forceinline__ void grid_release()
{
    if constexpr (!portable)
        asm volatile("griddepcontrol.launch_dependents;");
}

/* Bytes that generic loads and copies wrote to shared memory become visible to wgmma and TMA. */
__device__ __forceinline__ void fence_proxy_async()
{
    if constexpr (!portable)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Mbarriers that were made become visible to copies. */
__device__ __forceinline__ void fence_barrier_init()
{
    if constexpr (!portable)
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* A tensor map that was written: its release, and the acquire of a thread that copies by it. That
 * thread acquires for TMA also what the map describes, device memory that was stored by generic
 * stores. */
__device__ __forceinline__ void fence_map_release()
{
    if constexpr (!portable)
        asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}

__device__ __forceinline__ void fence_map_acquire(const void *map)
{
    if constexpr (!portable)
        asm volatile("fence.proxy.async.global;\n"
                     "fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map)
                     : "memory");
}

/* ---- blocks of a cluster ---- */

/* What was stored before is seen by all threads of the cluster that have waited. All threads, each
 * warp together: of one that is not, as PTX has it without .aligned, a wait of the second phase did
 * not end. */
__device__ __forceinline__ void cluster_arrive()
{
    __syncwarp();
    if constexpr (!portable)
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    __syncwarp();
    if constexpr (!portable)
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Of the word that lies in shared memory of block @rank as @word does in this one's. */
__device__ __forceinline__ void cluster_set_bits(uint32_t *word, uint32_t rank, uint32_t bits)
{
    if constexpr (!portable)
        asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                     "red.relaxed.cluster.shared::cluster.or.b32 [there], %2;\n}\n" ::"r"(
                         shared_address(word)),
                     "r"(rank), "r"(bits)
                     : "memory");
}

} // namespace attnd

#endif
