/*
 * copy.cuh - copies from global to shared memory that nobody waits for: cp.async, 16 bytes a
 * thread, past L1, zero-filled where asked; and TMA, a box of a tensor a thread. Or to the L2 only.
 */
#ifndef ATTND_PERSISTENT_CUDA_MACHINE_COPY_CUH
#define ATTND_PERSISTENT_CUDA_MACHINE_COPY_CUH

#include "persistent/cuda/machine/atomics.cuh"

namespace attnd
{

struct alignas(128) TensorMap {
    char opaque[128];
};

/* @bytes: 16, or 0 for zeros (@from must still be a mapped address). */
__device__ __forceinline__ void cp_async16(uint32_t to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* 4 bytes, which come through the L1: of memory that was written before what the caller has
 * acquired. */
__device__ __forceinline__ void cp_async4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/* The same for bytes that nobody reads again soon: they do not push out of the L2 what is. Says
 * nothing of memory, so that what the next addresses are made of stays in registers: a reader
 * of what it brought waits for it, and that wait says so. */
__device__ __forceinline__ void cp_async16_once(uint32_t to, const void *from, uint32_t bytes)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                 "l"(from), "r"(bytes), "l"(policy));
}

/* The line of 128 bytes that @at lies in, to the L2: for a warp that copies it soon. @at must be
 * mapped. */
__device__ __forceinline__ void prefetch_line(const char *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* One box of a map of 5 dimensions, the first of which is a panel of 64 dims; @c1 to @c4: where it
 * begins in the others. Bytes are counted on @barrier. Hopper's: elsewhere there are no maps. */
__device__ __forceinline__ void tma_box(uint32_t to, const TensorMap *map, uint64_t *barrier,
                                        int32_t c1, int32_t c2, int32_t c3, int32_t c4)
{
    uint32_t barrier_at = shared_address(barrier);
    if constexpr (!portable)
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
            "l"(map), "r"(barrier_at), "r"(0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
            : "memory");
}

/* What a map describes, in its place: from where on; elements of dimensions 1 to 4; bytes from one
 * element to the next of dimensions 2, 4 and 5 (0, 2 and 3 as the driver's library counts). */
__device__ __forceinline__ void map_replace(TensorMap *map, const char *base,
                                            const uint32_t (&sizes)[4],
                                            const uint64_t (&strides)[3])
{
    if constexpr (!portable) {
        asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map),
                     "l"(base)
                     : "memory");
        asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;\n"
                     "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 2, %2;\n"
                     "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 3, %3;\n"
                     "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 4, %4;\n" ::"l"(map),
                     "r"(sizes[0]), "r"(sizes[1]), "r"(sizes[2]), "r"(sizes[3])
                     : "memory");
        asm volatile(
            "tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 0, %1;\n"
            "tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 2, %2;\n"
            "tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 3, %3;\n" ::"l"(map),
            "l"(strides[0]), "l"(strides[1]), "l"(strides[2])
            : "memory");
    }
}

} // namespace attnd

#endif
