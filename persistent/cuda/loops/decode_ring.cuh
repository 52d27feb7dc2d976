/*
 * decode_ring.cuh - the blocks of keys that a warp of the decode loop computes on next, brought to
 * shared memory by cp.async.
 *
 * Every warp has a ring of blocks of its own. A ring does not stop at the end of an item: if the
 * next item is there and is decode too, its blocks follow, so that memory stays busy while an item
 * is finished and the next one begins.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_DECODE_RING_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_DECODE_RING_CUH

#include "persistent/cuda/items/work_slot.cuh"
#include "persistent/cuda/machine/copy.cuh"
#include "persistent/cuda/machine/element.cuh"

namespace attnd
{

constexpr int decode_block = 16; /* tokens */

constexpr int decode_warps = consumer_threads / 32;
static_assert(first_keys == decode_warps * decode_block, "a block for every warp");

/* Of a row of a block; of K, then V; and the ring's depth: 16 KB a warp. */
template <int D, typename Policy> constexpr int decode_row_bytes = D *kv_bytes<Policy>;
template <int D, typename Policy>
constexpr int decode_block_bytes = decode_block *decode_row_bytes<D, Policy> * 2;
template <int D, typename Policy>
constexpr int decode_stages = 16384 / decode_block_bytes<D, Policy>;
/* Blocks that a warp computes at once: where they are short, as long as as many are on their way.
 */
template <int D, typename Policy>
constexpr int decode_together = Policy::narrow &&decode_stages<D, Policy> >= 4 ? 2 : 1;
constexpr uint32_t decode_ring_bytes = decode_warps * 16384;

/* A row's chunks of 16 bytes are swizzled by its number, so that ldmatrix finds those of 8 rows in
 * different banks. */
template <int row_bytes> __device__ __forceinline__ constexpr uint32_t swizzled(uint32_t row)
{
    return row_bytes >= 128 ? row & 7 : row / 2 & 3;
}

/* One warp's walk over the blocks of an item: what is to be loaded next. Where that lies is found
 * from what the fetch warp left in the item. */
struct BlockWalk {
    const Item *item;
    int32_t next;     /* block */
    uint32_t page[2]; /* of block `next` and the one after: fetched ahead */
};

/* A block of such an item lies in one page, and its rows one stride after the other. */
__device__ __forceinline__ bool blocks_whole(const Item &item)
{
    const ActiveRun *run = item.run;
    __builtin_assume(__isShared(run));
    return (run->page_size | uint32_t(item.kv_begin)) % decode_block == 0;
}

/* The page of @block, or of this lane's token in it; any where there is none. */
__device__ __forceinline__ uint32_t walk_page(const Item &item, int32_t block, uint32_t lane)
{
    const ActiveRun *run = item.run;
    __builtin_assume(__isShared(run));
    int32_t token = item.kv_begin + block * decode_block;
    if (!blocks_whole(item))
        token += int32_t(lane % decode_block);
    if (token >= item.kv_end)
        return 0;
    const uint32_t index = divided(uint32_t(token), run->page_size, run->page_reciprocal).quotient;
    const uint32_t ahead = index - item.page_first;
    return uint32_t(ahead < 32 ? item.pages[ahead]
                               : run->kv_pages[item.tile.of_entry.page_begin + index]);
}

__device__ __forceinline__ void walk_begin(BlockWalk *walk, const Item &item, int32_t next,
                                           uint32_t lane)
{
    walk->item = &item;
    walk->next = next;
    walk->page[0] = walk_page(item, next, lane);
    walk->page[1] = walk_page(item, next + decode_warps, lane);
}

__device__ __forceinline__ bool walk_ended(const BlockWalk &walk)
{
    return walk.item->kv_begin + walk.next * decode_block >= walk.item->kv_end;
}

/* A block as 16-byte chunks: a lane's place is in every round of copies @decode_step rows further
 * on. */
template <int row_bytes> constexpr int decode_step = 512 / row_bytes;

/* Starts the copies of one plane of a block. @from: this lane's chunk in its first row; @stride:
 * bytes, of a token; @left: rows that are there, from this lane's first. */
template <int row_bytes>
__device__ __forceinline__ void plane_load(uint32_t to, const char *from, int64_t stride,
                                           int32_t left)
{
    constexpr int step = decode_step<row_bytes>;
#pragma unroll
    for (int r = 0; r < decode_block; r += step) {
        cp_async16_once((to ^ (swizzled<row_bytes>(r) << 4)) + r * row_bytes, from,
                        r < left ? 16 : 0);
        from += step * stride;
    }
}

/* The same where every row has to be looked for: by lane % 16 which row it is, at @row; @chunk:
 * where this lane's chunk is in a row, bytes. */
template <int row_bytes>
__device__ __forceinline__ void plane_gather(uint32_t to, const char *row, uint32_t lane,
                                             uint32_t chunk, int32_t left)
{
    constexpr int step = decode_step<row_bytes>, chunks = 32 / step;
#pragma unroll 4
    for (int r = 0; r < decode_block; r += step) {
        const uint64_t from = __shfl_sync(0xffffffffu, uint64_t(row), r + lane / chunks);
        cp_async16_once((to ^ (swizzled<row_bytes>(r) << 4)) + r * row_bytes,
                        reinterpret_cast<const char *>(from) + chunk, r < left ? 16 : 0);
    }
}

/* Where the rows of a block lie: of this lane's chunk. */
struct BlockPlace {
    const char *k, *v;
    int64_t k_stride, v_stride; /* bytes, of a token */
    int32_t left;               /* rows that are there, from this lane's first */
    bool whole;
};

/* Of block @block of the walk's item, whose page is @page. */
template <int D, typename Policy>
__device__ __forceinline__ BlockPlace walk_place(const BlockWalk &walk, int32_t block,
                                                 uint32_t page_id, uint32_t lane)
{
    constexpr int bytes = kv_bytes<Policy>;
    const Item &item = *walk.item;
    __builtin_assume(__isShared(&item) && __isShared(item.run));
    const ActiveRun *run = item.run;
    const uint32_t row = lane / (decode_row_bytes<D, Policy> / 16);
    BlockPlace place;
    place.whole = blocks_whole(item);
    int32_t token = item.kv_begin + block * decode_block;
    const int32_t there = item.kv_end - token;
    place.left = there - int32_t(row);
    if (!place.whole) /* of a row that is not there, the last one's address will do */
        token += min(int32_t(lane % decode_block), there - 1);
    const uint32_t page = page_checked(item, page_id);
    const uint32_t inside = divided(uint32_t(token), run->page_size, run->page_reciprocal).rest;
    place.k_stride = run->k_plane.stride_token * bytes;
    place.v_stride = run->v_plane.stride_token * bytes;
    place.k = item.k + page * (run->k_plane.stride_page * bytes) + inside * place.k_stride;
    place.v = item.v + page * (run->v_plane.stride_page * bytes) + inside * place.v_stride;
    return place;
}

/* Starts the copies of one block: K rows, then V rows. Behind a row's end come zeros. */
template <int D, typename Policy>
__device__ __forceinline__ void walk_copy(const BlockWalk &walk, const BlockPlace &place,
                                          uint32_t shared, uint32_t lane)
{
    constexpr int bytes = kv_bytes<Policy>, row_bytes = decode_row_bytes<D, Policy>;
    constexpr uint32_t chunks = row_bytes / 16, chunk_elements = 16 / bytes;
    const ActiveRun *run = walk.item->run;
    __builtin_assume(__isShared(walk.item) && __isShared(run));
    const uint32_t row = lane / chunks, chunk = lane % chunks;
    const uint32_t to = shared + row * row_bytes + ((chunk ^ swizzled<row_bytes>(row)) << 4);
    /* What is not there comes from the row's beginning: an address must be mapped. */
    const bool in_k = Policy::in_qk(run->plan, chunk * chunk_elements),
               in_v = Policy::in_vo(run->plan, chunk * chunk_elements);
    const uint32_t at_k = in_k ? chunk * 16 : 0, at_v = in_v ? chunk * 16 : 0;
    const int32_t left_k = in_k ? place.left : 0, left_v = in_v ? place.left : 0;
    if (place.whole) {
        plane_load<row_bytes>(to, place.k + row * place.k_stride + at_k, place.k_stride, left_k);
        plane_load<row_bytes>(to + decode_block * row_bytes, place.v + row * place.v_stride + at_v,
                              place.v_stride, left_v);
    } else {
        const uint32_t here = Policy::narrow ? lane_anew() : lane;
        plane_gather<row_bytes>(to, place.k, here, at_k, left_k);
        plane_gather<row_bytes>(to + decode_block * row_bytes, place.v, here, at_v, left_v);
    }
}

/* The walk's next block, to @shared. */
template <int D, typename Policy>
__device__ __forceinline__ void walk_load(BlockWalk *walk, uint32_t shared, uint32_t lane)
{
    const BlockPlace place = walk_place<D, Policy>(*walk, walk->next, walk->page[0], lane);
    walk->next += decode_warps;
    walk->page[0] = walk->page[1];
    walk->page[1] = walk_page(*walk->item, walk->next + decode_warps, lane);
    walk_copy<D, Policy>(*walk, place, shared, lane);
}

/* A warp's ring, kept from item to item: between items in shared memory, in registers meanwhile. */
struct DecodeRing {
    BlockWalk walk;  /* of the item whose blocks are being loaded; kept: its next block */
    uint32_t ahead;  /* 1: that is the item after the one being computed */
    int ahead_slots; /* slots filled (or left empty) since it is */
    int slot;        /* the next to be computed, and so the next to be filled */
    uint32_t wide; /* 1: the last item's O^T took all there is, not every second time half of it */
};

/* This warp's. */
__device__ __forceinline__ DecodeRing *decode_ring()
{
    __shared__ DecodeRing rings[decode_warps];
    return &rings[consumer_thread() / 32];
}

/* Refills the slot just freed: a block of this item, or of the next one if that is known. */
template <int D, typename Policy>
__device__ __forceinline__ void ring_refill(DecodeRing *ring, WorkSlots *work, uint32_t number,
                                            uint32_t shared, uint32_t warp, uint32_t lane)
{
    if (!ring->ahead && walk_ended(ring->walk)) {
        uint32_t after = number + 1;
        if constexpr (Policy::narrow) /* as lane_anew(): nothing of this before it is wanted */
            asm volatile("" : "+r"(after));
        const WorkSlot *next = work_peek(work, after);
        if (next && next->path == path_decode) {
            walk_begin(&ring->walk, next->item, int32_t(warp), lane);
            ring->ahead = 1;
            ring->ahead_slots = 0;
        }
    }
    if (!walk_ended(ring->walk))
        walk_load<D, Policy>(&ring->walk, shared + ring->slot * decode_block_bytes<D, Policy>,
                             lane);
    cp_async_commit();
    ring->ahead_slots += ring->ahead;
    ring->slot = ring->slot + 1 == decode_stages<D, Policy> ? 0 : ring->slot + 1;
}

/* Refills the two slots just freed. Both at once, if the walk has as many blocks: pages of the next
 * two are asked for together, and nobody waits for them here. */
template <int D, typename Policy>
__device__ __forceinline__ void ring_refill_two(DecodeRing *ring, WorkSlots *work, uint32_t number,
                                                uint32_t shared, uint32_t warp, uint32_t lane)
{
    constexpr int stages = decode_stages<D, Policy>, block_bytes = decode_block_bytes<D, Policy>;
    BlockWalk *walk = &ring->walk;
    const int32_t second = walk->next + decode_warps;
    if (walk->item->kv_begin + second * decode_block >= walk->item->kv_end) {
#pragma unroll 1
        for (int i = 0; i < 2; i++)
            ring_refill<D, Policy>(ring, work, number, shared, warp, lane);
        return;
    }
    const BlockPlace first_at = walk_place<D, Policy>(*walk, walk->next, walk->page[0], lane);
    const BlockPlace second_at = walk_place<D, Policy>(*walk, second, walk->page[1], lane);
    walk->next += 2 * decode_warps;
    walk->page[0] = walk_page(*walk->item, walk->next, lane);
    walk->page[1] = walk_page(*walk->item, walk->next + decode_warps, lane);
    walk_copy<D, Policy>(*walk, first_at, shared + ring->slot * block_bytes, lane);
    cp_async_commit();
    ring->slot = ring->slot + 1 == stages ? 0 : ring->slot + 1;
    walk_copy<D, Policy>(*walk, second_at, shared + ring->slot * block_bytes, lane);
    cp_async_commit();
    ring->slot = ring->slot + 1 == stages ? 0 : ring->slot + 1;
    ring->ahead_slots += 2 * ring->ahead;
}

/* The ring begins work @number: slots in front of its first block are passed over. */
template <int D, typename Policy>
__device__ __forceinline__ void ring_begin(DecodeRing *ring, WorkSlots *work, uint32_t number,
                                           const Item &item, uint32_t shared, uint32_t warp,
                                           uint32_t lane)
{
    int gap = decode_stages<D, Policy> - (ring->ahead ? ring->ahead_slots : 0);
    walk_begin(&ring->walk, item, ring->ahead ? ring->walk.next : int32_t(warp), lane);
    ring->ahead = 0;
#pragma unroll 1
    for (int i = 0; i < gap; i++)
        ring_refill<D, Policy>(ring, work, number, shared, warp, lane);
}

/* The rehearsal asks for Q, of which there are no rows, and each warp for one block, of one key: as
 * if the ring had room for no more. What is read there are @zeros, of the service's own memory; and
 * the same are the tile that is found. Before barriers are there. One warp. */
__device__ __forceinline__ void rehearsal_fill(WorkSlots *work, const uint32_t *zeros)
{
    WorkSlot *slot = &work->slot[rehearsal % work_slots];
    Item *item = &slot->item;
    ActiveRun *run =
        reinterpret_cast<ActiveRun *>(work->run_copy[0]); /* that of work 2, or later */
    for (uint32_t i = threadIdx.x % 32; i < sizeof(*item) / 4; i += 32)
        reinterpret_cast<uint32_t *>(item)[i] = 0;
    for (uint32_t i = threadIdx.x % 32; i < run_copy_bytes / 4; i += 32)
        reinterpret_cast<uint32_t *>(run)[i] = 0;
    __syncwarp();
    if (threadIdx.x % 32 != 0)
        return;
    item->run = run;
    item->k = item->v = reinterpret_cast<const char *>(zeros);
    item->kv_end = item->kv_len = 1;
    slot->path = path_decode;
    run->pages = run->plan.heads_kv = 1;
    run->page_size = decode_block;
    run->tiles = reinterpret_cast<const attnd_tile *>(zeros);
    run->kv_len = reinterpret_cast<const int32_t *>(zeros);
    run->kind = ATTND_RUN_ATTEND;
    run->aligned = 1;
}

/* A warp's ring in front of a rehearsal. */
template <int D, typename Policy> __device__ __forceinline__ DecodeRing rehearsal_ring()
{
    DecodeRing ring = {};
    if (first_item<D> != 0) {
        ring.ahead = 1;
        ring.ahead_slots = decode_stages<D, Policy> - 1;
    }
    return ring;
}

/* No more blocks of the item in hand are loaded. Return: where it ends now, behind those that were.
 */
__device__ __forceinline__ int32_t ring_cut(DecodeRing *ring, int32_t blocks)
{
    const int32_t end = min(ring->walk.next, blocks);
    ring->walk.next = blocks;
    return end;
}

} // namespace attnd

#endif
