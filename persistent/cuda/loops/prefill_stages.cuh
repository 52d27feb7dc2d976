/*
 * prefill_stages.cuh - shared memory of the prefill loop: what lies where, which barriers say that
 * it is there or free again, and which blocks of keys an item has.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_STAGES_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_STAGES_CUH

#include "persistent/cuda/items/work_slot.cuh"
#include "persistent/cuda/machine/copy.cuh"
#include "persistent/cuda/machine/element.cuh"
#include "persistent/cuda/machine/mma.cuh"

namespace attnd
{

constexpr int prefill_rows = 128;

/* What fits in 227 KiB, which Hopper has; or in 99, which is what a CTA has on sm_86, sm_89 and
 * sm_120. */
template <int D> struct PrefillShape {
    static constexpr int keys = portable ? (D == 64    ? 64
                                            : D == 128 ? 32
                                                       : 16)
                                         : (D == 256 ? 64 : 128);
    static constexpr int panels = D / 64;
    static constexpr int values = values_dim<D>;           /* dims of V and o */
    static constexpr int out_columns = D == 64 ? 64 : 128; /* of one instruction */
    static constexpr int out_parts = values / out_columns;
    /* Of K and of V; and of Q. */
    static constexpr int stages = portable ? (D == 256 ? 1 : 3) : (D == 64 ? 4 : 2);
    static constexpr int q_stages = D > (portable ? 64 : 128) ? 1 : 2;
    /* A place for one tile of Q that consumers leave with their last scores: o goes out another
     * way. Keys of the next item are asked for in front of its Q. */
    static constexpr bool leaves_q = D == 192 && !portable;
    static constexpr uint32_t q_bytes = prefill_rows * D * 2;
    static constexpr uint32_t k_bytes = keys * D * 2, v_bytes = keys * values * 2; /* of a block */
    static constexpr uint32_t v_chunk_bytes =
        16 * values * 2; /* 16 tokens: what one product step reads */
    static constexpr uint32_t k_group_bytes = 8 * D * 2; /* 8 tokens: a swizzle's rows */
    static constexpr uint32_t k_offset = q_stages * q_bytes, v_offset = k_offset + stages * k_bytes;
    static constexpr uint32_t shared_bytes = v_offset + stages * v_bytes;
    static_assert(portable || k_loaders * box_rows_max(D) <= keys,
                  "each of K's loaders has a box of a block");
};

/* Whether K and V of fp8 come as they lie, ahead of their stage, and are converted from there
 * (prefill_widen.cuh). Portable kernels convert while they gather. */
template <typename Policy> constexpr bool widens = Policy::narrow && !portable;
/* Behind it, where they do: a plane of a block as it came, of 8 bits. */
template <int D> constexpr uint32_t raw_offset = PrefillShape<D>::shared_bytes;
template <int D> constexpr uint32_t raw_bytes = PrefillShape<D>::keys *D;
template <int D, typename Policy>
constexpr uint32_t prefill_shared_bytes = raw_offset<D> + (widens<Policy> ? raw_bytes<D> : 0);

/* Where 16-byte chunk @c of row @r lies in a block. K: [keys / 8][panel][8][64], V: [keys /
 * 16][panel][16][64], so that a box brings all dims of its tokens. */
template <int D, bool values>
__device__ __forceinline__ constexpr uint32_t place_in_block(uint32_t r, uint32_t c)
{
    using Shape = PrefillShape<D>;
    uint32_t swizzled = (c % 8 ^ r % 8) << 4;
    if constexpr (values)
        return r / 16 * Shape::v_chunk_bytes + c / 8 * 2048 + r % 16 * 128 + swizzled;
    return r / 8 * Shape::k_group_bytes + c / 8 * 1024 + r % 8 * 128 + swizzled;
}

constexpr uint32_t q_warps = 2; /* the last of the loader warps */

/* Full: an arrival of each loader thread (with TMA, of one for all); of Q, of those that load it.
 * Empty: every consumer warp. */
constexpr uint32_t load_arrivals = loader_warps * 32;
template <int D> struct PrefillBarriers {
    uint64_t k_full[PrefillShape<D>::stages], k_empty[PrefillShape<D>::stages];
    uint64_t v_full[PrefillShape<D>::stages], v_empty[PrefillShape<D>::stages];
    uint64_t q_full[PrefillShape<D>::q_stages], q_empty[PrefillShape<D>::q_stages];
};

template <int D> __device__ __forceinline__ void prefill_barriers_init(PrefillBarriers<D> *bars)
{
    for (int s = 0; s < PrefillShape<D>::stages; s++) {
        barrier_init(&bars->k_full[s], load_arrivals);
        barrier_init(&bars->v_full[s], load_arrivals);
        barrier_init(&bars->k_empty[s], consumer_threads / 32);
        barrier_init(&bars->v_empty[s], consumer_threads / 32);
    }
    for (int s = 0; s < PrefillShape<D>::q_stages; s++) {
        barrier_init(&bars->q_full[s], q_warps * 32);
        barrier_init(&bars->q_empty[s], consumer_threads / 32);
    }
}

/* Keys no row of the tile sees are not loaded. */
template <int D> __device__ __forceinline__ int32_t prefill_blocks(const Item &item)
{
    int32_t end = visible_end(item, item.tile.row_begin + item.tile.row_count - 1);
    constexpr int keys = PrefillShape<D>::keys;
    return end > item.kv_begin ? (end - item.kv_begin + keys - 1) / keys : 0;
}

/* K and V come as boxes of tensor maps. */
__device__ __forceinline__ bool by_boxes(const ActiveRun *run)
{
    return !portable && run->box_rows;
}

/* Whether the loop for few rows (prefill_few.cuh) has the item: of boxes, and 256 dims leave no
 * registers for it. */
constexpr uint32_t few_rows = 64;
template <int D> __device__ __forceinline__ bool takes_few(const Item &item)
{
    return D <= 128 && cta_work()->settings.paths >> 3 & 1 && item.packed_rows <= few_rows &&
           by_boxes(item.run);
}

/* An item that has failed ends early, and all loaders and consumers at the same block. One loader
 * warp decides: before it arrives for a block it may say that all ends so many blocks behind that
 * one (Item.floor). No warp is further on then, and every warp sees it in time: to come that far a
 * consumer must have that one block, and a loader a stage that consumers left behind it. */
template <int D> constexpr int32_t floor_distance = PrefillShape<D>::stages + 1;
/* Every so many blocks that warp says that the item gets on. A power of two. */
constexpr int32_t portion_blocks = 64;

/* The deciding warp's, in front of @block. */
template <int D> __device__ __forceinline__ void floor_decide(const Item &item, int32_t block)
{
    constexpr int keys = PrefillShape<D>::keys;
    if (block % portion_blocks == portion_blocks - 1 && threadIdx.x % 32 == 0)
        tally_gpu(&item.live->portions, 1u);
    if (!uniform(peek_cta(&item.failed)))
        return;
    const int32_t left = block - floor_distance<D>;
    if (threadIdx.x % 32 == 0 && left > 0 && item.floor == item.kv_begin)
        store_relaxed_cta(&item.floor, item.kv_begin + left * keys);
    fence_cta();
    __syncwarp();
}

/* With so few blocks left to load the next item is claimed (Item.ending). Those and what is in the
 * stages take longer than to claim and resolve one, some 5 us, and to load its Q. */
constexpr int32_t claim_blocks = 6;

/* The deciding warp's, in front of @block of an item's last pass. */
__device__ __forceinline__ void prefill_ending(const Item &item, int32_t block)
{
    if (block <= claim_blocks && threadIdx.x % 32 == 0)
        store_relaxed_cta(&item.ending, 1);
}

/* How many blocks at the front of the item are not computed. */
template <int D> __device__ __forceinline__ int32_t floor_blocks(const Item &item)
{
    return (peek_cta(&item.floor) - item.kv_begin) / PrefillShape<D>::keys;
}

} // namespace attnd

#endif
