/*
 * decode_walk.cuh - a warp's walk over its blocks of an item's keys: where they lie, and the copies
 * that bring them to shared memory.
 *
 * To find a block takes a page, strides and products of 64 bits, one behind the other: longer than
 * to compute on it. So the lanes find as many places as they are, a place each, and leave them in
 * shared memory. A place is that of a block whose rows lie one stride after the other, or of one
 * row.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_DECODE_WALK_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_DECODE_WALK_CUH

#include "persistent/cuda/items/work_slot.cuh"
#include "persistent/cuda/machine/copy.cuh"
#include "persistent/cuda/machine/element.cuh"
#include "persistent/cuda/machine/mma.cuh"

namespace attnd
{

constexpr int decode_block = 16; /* tokens */

constexpr int decode_warps = consumer_threads / 32;
static_assert(first_keys == decode_warps * decode_block, "a block for every warp");
constexpr int32_t decode_stride = decode_warps * decode_block; /* from a block to the next */

/* Of a row of a block; of K, then V; and the ring's depth: 16 KB a warp, or half of that. */
constexpr int decode_ring_each = portable ? 8192 : 16384;
template <int D, typename Policy> constexpr int decode_row_bytes = D *kv_bytes<Policy>;
template <int D, typename Policy>
constexpr int decode_block_bytes = decode_block *decode_row_bytes<D, Policy> * 2;
template <int D, typename Policy>
constexpr int decode_stages = decode_ring_each / decode_block_bytes<D, Policy>;
/* Blocks that a warp computes at once: where they are short, as long as as many are on their way.
 */
template <int D, typename Policy>
constexpr int decode_together = Policy::narrow &&decode_stages<D, Policy> >= 4 ? 2 : 1;
/* Keys and values are waited for, and asked for, apart: as two groups of copies for each block, or
 * for each two. As many groups at least are behind that of the keys that are computed next. */
template <int D, typename Policy>
constexpr int decode_groups = decode_together<D, Policy> == 2 ? decode_stages<D, Policy> - 1
                                                              : 2 * decode_stages<D, Policy> - 1;
constexpr uint32_t decode_ring_bytes = decode_warps * decode_ring_each;

/* A row's chunks of 16 bytes are swizzled by its number, so that ldmatrix finds those of 8 rows in
 * different banks. */
template <int row_bytes> __device__ __forceinline__ constexpr uint32_t swizzled(uint32_t row)
{
    return row_bytes >= 128 ? row & 7 : row / 2 & 3;
}

/* The places that a warp has found, behind all rings: an address of K and one of V each. */
constexpr uint32_t walk_places = 32;
constexpr uint32_t walk_place_bytes = 16, walk_table_bytes = walk_places * walk_place_bytes;
constexpr uint32_t decode_tables_bytes = decode_warps * walk_table_bytes;

__device__ __forceinline__ uint32_t walk_table(uint32_t warp)
{
    return shared_address(cta_buffer()) + decode_ring_bytes + warp * walk_table_bytes;
}

/* One warp's walk over the blocks of an item: what is to be loaded next. The same in all lanes, and
 * known to be (uniform()): so are the branches of the loop then. */
struct BlockWalk {
    uint32_t number; /* of the work that the item is */
    int32_t left;    /* keys of the item from the next block on: none, if not above 0 */
    uint32_t at;     /* its place in the table; walk_places: not found yet */
    uint32_t each;   /* places of a block: one, or one for each row */
};

__device__ __forceinline__ const Item &walk_item(const BlockWalk &walk)
{
    return cta_work()->slot[walk.number % work_slots].item;
}

__device__ __forceinline__ void walk_begin(BlockWalk *walk, uint32_t number, uint32_t warp)
{
    walk->number = number;
    const Item &item = walk_item(*walk);
    const ActiveRun *run = item.run;
    __builtin_assume(__isShared(run));
    /* A block of such an item lies in one page. */
    const bool whole = (run->page_size | uint32_t(item.kv_begin)) % decode_block == 0;
    walk->left =
        int32_t(uniform(uint32_t(item.kv_end - item.kv_begin))) - int32_t(warp) * decode_block;
    walk->at = walk_places;
    walk->each = uniform(whole ? 1 : decode_block);
}

__device__ __forceinline__ bool walk_ended(const BlockWalk &walk)
{
    return walk.left <= 0;
}

/* The number of its next block. */
__device__ __forceinline__ int32_t walk_block(const BlockWalk &walk)
{
    const Item &item = walk_item(walk);
    return (item.kv_end - item.kv_begin - walk.left) / decode_block;
}

__device__ __forceinline__ void walk_next(BlockWalk *walk)
{
    walk->left -= decode_stride;
    walk->at += walk->each;
}

/* Finds the places of the next blocks, of which there is one. The whole warp. */
template <int D, typename Policy>
__device__ __forceinline__ void walk_find(BlockWalk *walk, uint32_t table, uint32_t lane)
{
    constexpr int bytes = kv_bytes<Policy>;
    const Item &item = walk_item(*walk);
    const ActiveRun *run = item.run;
    __builtin_assume(__isShared(run));
    const bool whole = walk->each == 1;
    const int32_t block = int32_t(whole ? lane : lane / decode_block);
    const int32_t row = whole ? 0 : int32_t(lane % decode_block);
    const int32_t left = walk->left - block * decode_stride;
    __syncwarp();   /* all lanes have read the places before */
    if (left > 0) { /* of a row that is not there, the last one's address will do */
        const uint32_t token = uint32_t(item.kv_end - left + min(row, left - 1));
        const Divided at = divided(token, run->page_size, run->page_reciprocal);
        const uint32_t ahead = at.quotient - item.page_first;
        const uint32_t page = page_checked(
            item, uint32_t(ahead < 32 ? item.pages[ahead]
                                      : __ldcg(run->kv_pages + item.tile.of_entry.page_begin +
                                               at.quotient)));
        const attnd_heap_plane &k = run->k_plane, &v = run->v_plane;
        store_shared16(table + lane * walk_place_bytes,
                       uint64_t(item.k) + (page * k.stride_page + at.rest * k.stride_token) * bytes,
                       uint64_t(item.v) +
                           (page * v.stride_page + at.rest * v.stride_token) * bytes);
    }
    __syncwarp();
    walk->at = 0;
}

/* Starts the copies of the walk's next block to @shared: of its keys, or of its values. Behind a
 * row's end come zeros. */
template <int D, typename Policy, bool values>
__device__ __forceinline__ void walk_copy(const BlockWalk &walk, uint32_t table, uint32_t shared,
                                          uint32_t lane)
{
    /* As 16-byte chunks: a lane's place is in every round of copies @step rows further on. */
    constexpr int row_bytes = decode_row_bytes<D, Policy>, step = 512 / row_bytes;
    constexpr uint32_t chunks = row_bytes / 16, elements = 16 / kv_bytes<Policy>;
    const ActiveRun *run = walk_item(walk).run;
    __builtin_assume(__isShared(run));
    const uint32_t row = lane / chunks, chunk = lane % chunks;
    /* Each address is this one with some bits changed and a constant behind it, and never another
     * sum: see COMPILER.md. */
    constexpr uint32_t other = row_bytes >= 256 ? 8 : 1; /* no round's rows are swizzled by it */
    const uint32_t to = shared + values * decode_block * row_bytes + row * row_bytes +
                        ((chunk ^ swizzled<row_bytes>(row) ^ other) << 4);
    /* What is not there comes from the row's beginning: an address must be mapped. */
    const bool in = values ? Policy::in_vo(run->plan, chunk * elements)
                           : Policy::in_qk(run->plan, chunk * elements);
    const int32_t left = in ? walk.left - int32_t(row) : 0;
    const uint32_t inside = in ? chunk * 16 : 0;
    const uint32_t place = table + walk.at * walk_place_bytes + values * 8;
    if (walk.each == 1) {
        const int64_t stride =
            (values ? run->v_plane : run->k_plane).stride_token * kv_bytes<Policy>;
        uint64_t from = load_shared8(place) + row * stride + inside;
#pragma unroll
        for (int r = 0; r < decode_block; r += step) {
            cp_async16_once((to ^ ((swizzled<row_bytes>(r) ^ other) << 4)) + r * row_bytes,
                            reinterpret_cast<const char *>(from), r < left ? 16 : 0);
            from += step * stride;
        }
        return;
    }
#pragma unroll
    for (int r = 0; r < decode_block; r += step) {
        const uint64_t from = load_shared8(place + (r + row) * walk_place_bytes) + inside;
        cp_async16_once((to ^ ((swizzled<row_bytes>(r) ^ other) << 4)) + r * row_bytes,
                        reinterpret_cast<const char *>(from), r < left ? 16 : 0);
    }
}

} // namespace attnd

#endif
