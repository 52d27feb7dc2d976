/*
 * prefill_load.cuh - what the prefill loop computes on, loaded to shared memory by the loader
 * warps of the producer warpgroup.
 *
 * Where a page holds a multiple of 16 tokens, K and V come as boxes of a tensor map (TMA), all dims
 * of box_rows tokens each (16 of V), at most one a lane. Elsewhere all loader warps gather rows by
 * cp.async: any page size, any strides of 16 bytes. Q always comes by cp.async: its packed rows are
 * (token, head) pairs. Loaders run ahead of the consumers, into the next item too.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_LOAD_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_LOAD_CUH

#include "persistent/cuda/items/work_slot.cuh"
#include "persistent/cuda/machine/copy.cuh"
#include "persistent/cuda/machine/element.cuh"
#include "persistent/cuda/machine/mma.cuh"

namespace attnd
{

constexpr int prefill_rows = 128;

template <int D> struct PrefillShape {
    static constexpr int keys = D == 256 ? 64 : 128;
    static constexpr int panels = D / 64;
    static constexpr int out_columns = D == 64 ? 64 : 128; /* of one instruction */
    static constexpr int out_parts = D / out_columns;
    static constexpr int stages = D == 64 ? 4 : 2;    /* of K and of V */
    static constexpr int q_stages = D == 256 ? 1 : 2; /* what fits */
    static constexpr uint32_t q_bytes = prefill_rows * D * 2;
    static constexpr uint32_t kv_bytes = keys * D * 2;
    static constexpr uint32_t v_chunk_bytes =
        16 * D * 2; /* 16 tokens: what one product step reads */
    static constexpr uint32_t k_group_bytes = 8 * D * 2; /* 8 tokens: a swizzle's rows */
    static constexpr uint32_t k_offset = q_stages * q_bytes,
                              v_offset = k_offset + stages * kv_bytes;
    static constexpr uint32_t shared_bytes = v_offset + stages * kv_bytes;
    static_assert(k_loaders * box_rows_max(D) <= keys, "each of K's loaders has a box of a block");
};

/* Where 16-byte chunk @c of row @r lies in a block. K: [keys / 8][panel][8][64], V: [keys /
 * 16][panel][16][64], so that a box brings all dims of its tokens. */
template <int D, bool values>
__device__ __forceinline__ uint32_t place_in_block(uint32_t r, uint32_t c)
{
    using Shape = PrefillShape<D>;
    uint32_t swizzled = (c % 8 ^ r % 8) << 4;
    if constexpr (values)
        return r / 16 * Shape::v_chunk_bytes + c / 8 * 2048 + r % 16 * 128 + swizzled;
    return r / 8 * Shape::k_group_bytes + c / 8 * 1024 + r % 8 * 128 + swizzled;
}

constexpr uint32_t q_warps = 2; /* the last of the loader warps */

/* Full: an arrival for every row (with TMA, one thread for all); of Q, for every loader thread.
 * Empty: every consumer warp. */
template <int D> struct PrefillBarriers {
    uint64_t k_full[PrefillShape<D>::stages], k_empty[PrefillShape<D>::stages];
    uint64_t v_full[PrefillShape<D>::stages], v_empty[PrefillShape<D>::stages];
    uint64_t q_full[PrefillShape<D>::q_stages], q_empty[PrefillShape<D>::q_stages];
};

template <int D> __device__ __forceinline__ void prefill_barriers_init(PrefillBarriers<D> *bars)
{
    for (int s = 0; s < PrefillShape<D>::stages; s++) {
        barrier_init(&bars->k_full[s], PrefillShape<D>::keys);
        barrier_init(&bars->v_full[s], PrefillShape<D>::keys);
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

/* Q of the tile; rows that are not there become zeros. One of q_warps warps: a lane finds a row,
 * then all copy all rows. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void load_q(const Item &item, uint32_t shared, uint32_t warp)
{
    constexpr int chunks = D / 8;
    const ActiveRun *run = item.run;
    const uint32_t group = run->plan.group, lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t first = warp * 32; first < prefill_rows; first += q_warps * 32) {
        const uint32_t token = (first + lane) / group, head = first + lane - token * group;
        const int32_t left = int32_t(item.packed_rows - first);
        uint64_t row = uint64_t(run->q);
        if (int32_t(lane) < left)
            row += 2 * (int64_t(item.tile.row_begin + token) * run->plan.q_pitch.row +
                        int64_t(item.kv_head * group + head) * run->plan.q_pitch.head);
#pragma unroll 4
        for (int i = 0; i < chunks; i++) {
            const uint32_t r = (i * 32 + lane) / chunks, c = (i * 32 + lane) % chunks;
            const uint64_t from = __shfl_sync(0xffffffffu, row, r);
            const bool in = Policy::in_qk(run->plan, c * 8); /* an address must be mapped */
            cp_async16(shared + c / 8 * (prefill_rows * 128) + (first + r) * 128 +
                           ((c % 8 ^ r % 8) << 4),
                       reinterpret_cast<const char *>(from) + (in ? c * 16 : 0),
                       int32_t(r) < left && in ? 16 : 0);
        }
    }
}

/* A loader warp's way through an item that is gathered by cp.async, 32 rows of one plane at a time:
 * those of K, then those of V, block by block from the last to the first; the warps take turns. A
 * lane finds one row, then all copy all rows, two at a time. */
template <typename T, int D, typename Policy> struct Gather {
    using Shape = PrefillShape<D>;
    static constexpr int groups = Shape::keys / 32; /* a plane of a block */
    int32_t block;
    int32_t group; /* of K; of V from `groups` on */

    __device__ __forceinline__ void advance(int32_t by)
    {
        group += by;
        for (; group >= 2 * groups; group -= 2 * groups)
            block--;
    }

    __device__ __forceinline__ int32_t token(const Item &item) const
    {
        return item.kv_begin + block * Shape::keys + group % groups * 32 +
               int32_t(threadIdx.x % 32);
    }

    /* The page of this lane's row; 0 where there is none. */
    __device__ __forceinline__ uint32_t page(const Item &item) const
    {
        const int32_t at = token(item);
        if (block < 0 || at >= item.kv_end)
            return 0;
        const ActiveRun *run = item.run;
        return page_checked(
            item,
            uint32_t(run->kv_pages[item.tile.of_entry.page_begin + uint32_t(at) / run->page_size]));
    }

    /* Rows of fp8 through registers: 16 elements a lane, a few lines in flight. @row: this lane's;
     * @left: rows that are there from the first on. */
    template <typename KV>
    __device__ __forceinline__ void widen(const Item &item, uint64_t row, int32_t left,
                                          uint32_t to) const
    {
        constexpr int chunks = D / 16, at_once = 2;
        const attnd_plan_head &plan = item.run->plan;
        const bool values = group >= groups;
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
        for (int first = 0; first < chunks; first += at_once) {
            uint4 in[at_once];
#pragma unroll
            for (int i = 0; i < at_once; i++) {
                const uint32_t r = ((first + i) * 32 + lane) / chunks;
                const uint32_t c = ((first + i) * 32 + lane) % chunks;
                const uint64_t from = __shfl_sync(0xffffffffu, row, r);
                in[i] = {};
                if (int32_t(r) < left &&
                    (values ? Policy::in_vo(plan, c * 16) : Policy::in_qk(plan, c * 16)))
                    in[i] = __ldcg(reinterpret_cast<const uint4 *>(from) + c);
            }
#pragma unroll
            for (int i = 0; i < at_once; i++) {
                const uint32_t r = ((first + i) * 32 + lane) / chunks;
                const uint32_t c = ((first + i) * 32 + lane) % chunks * 2;
                const uint32_t place = group % groups * 32 + r;
                put<KV>(to + (values ? place_in_block<D, true>(place, c)
                                     : place_in_block<D, false>(place, c)),
                        in[i].x, in[i].y);
                put<KV>(to + (values ? place_in_block<D, true>(place, c + 1)
                                     : place_in_block<D, false>(place, c + 1)),
                        in[i].z, in[i].w);
            }
        }
    }

    /* Eight of them to shared memory at @to. */
    template <typename KV>
    __device__ static __forceinline__ void put(uint32_t to, uint32_t low, uint32_t high)
    {
        uint4 out;
        Narrow<KV>::template widen<false>(out.x, out.y, low);
        Narrow<KV>::template widen<false>(out.z, out.w, high);
        store_shared16(to, make_uint4(from_halves<T>(out.x), from_halves<T>(out.y),
                                      from_halves<T>(out.z), from_halves<T>(out.w)));
    }

    /* The loader's arrival for what copy() moves. */
    __device__ static __forceinline__ void arrive(uint64_t *full)
    {
        if constexpr (Policy::narrow)
            barrier_arrive(full, 1); /* consumers fence, as behind cp.async */
        else
            barrier_arrive_copies(full);
    }

    __device__ __forceinline__ void copy(const Item &item, uint32_t page, uint32_t to) const
    {
        const ActiveRun *run = item.run;
        const bool values = group >= groups;
        const attnd_heap_plane &plane = values ? run->v_plane : run->k_plane;
        const uint32_t lane = threadIdx.x % 32;
        const int32_t at = token(item), left = item.kv_end - at + int32_t(lane);
        const uint64_t row =
            uint64_t(values ? run->v_base : run->k_base) +
            kv_bytes<Policy> * (int64_t(page) * plane.stride_page +
                                int64_t(uint32_t(at) % run->page_size) * plane.stride_token +
                                int64_t(item.kv_head) * plane.stride_head);
        if constexpr (!Policy::narrow) {
            constexpr int chunks = D / 8;
#pragma unroll 4
            for (int i = 0; i < chunks; i++) {
                const uint32_t r = (i * 32 + lane) / chunks, c = (i * 32 + lane) % chunks;
                const uint64_t from = __shfl_sync(0xffffffffu, row, r);
                const uint32_t place = group % groups * 32 + r;
                const bool in =
                    values ? Policy::in_vo(run->plan, c * 8) : Policy::in_qk(run->plan, c * 8);
                cp_async16(to + (values ? place_in_block<D, true>(place, c)
                                        : place_in_block<D, false>(place, c)),
                           reinterpret_cast<const char *>(from) + (in ? c * 16 : 0),
                           int32_t(r) < left && in ? 16 : 0);
            }
        } else if (run->plan.kv_dtype == ATTND_FP8_E4M3) {
            widen<E4m3>(item, row, left, to);
        } else {
            widen<E5m2>(item, row, left, to);
        }
    }
};

/* All blocks of an item by cp.async; @count: blocks moved so far, kept across items. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void gather_item(const Item &item, uint32_t k, uint32_t v,
                                            PrefillBarriers<D> *bars, uint32_t *count,
                                            uint32_t warp)
{
    using Shape = PrefillShape<D>;
    const int32_t blocks = prefill_blocks<D>(item);
    Gather<T, D, Policy> at = {blocks - 1, int32_t(warp)};
    uint32_t page = at.page(item);
    for (int32_t seen = blocks; at.block >= 0;) {
        if (at.block != seen) {
            seen = at.block;
            if (warp == 0) {
                prefill_ending(item, seen);
                floor_decide<D>(item, seen);
            }
            if (seen < floor_blocks<D>(item))
                break;
        }
        const uint32_t number = *count + uint32_t(blocks - 1 - at.block);
        const uint32_t stage = number % Shape::stages, parity = number / Shape::stages % 2;
        const bool values = at.group >= Gather<T, D, Policy>::groups;
        Gather<T, D, Policy> next = at;
        next.advance(loader_warps);
        const uint32_t page_next = next.page(item); /* long before it is needed */
        barrier_wait(values ? &bars->v_empty[stage] : &bars->k_empty[stage], parity ^ 1);
        at.copy(item, page, (values ? v : k) + stage * Shape::kv_bytes);
        at.arrive(values ? &bars->v_full[stage] : &bars->k_full[stage]);
        at = next;
        page = page_next;
    }
    *count += uint32_t(blocks - floor_blocks<D>(item));
}

/* The page a box of a block lies in; past the range one that is not there, run->pages: zeros. Pages
 * of V are checked, those of K are the same: V's warp has one lane that arrives for all of a block,
 * so the run has failed before a consumer sees the block. */
template <bool values>
__device__ __forceinline__ uint32_t box_page(const Item &item, const int32_t *pages, int32_t token)
{
    const ActiveRun *run = item.run;
    const uint32_t limit = run->pages;
    if (token < item.kv_begin || token >= item.kv_end)
        return limit;
    const uint32_t page = uint32_t(pages[uint32_t(token) / run->page_size]);
    return values ? page_checked(item, page) : page < limit ? page : 0;
}

/* Where a box of K is in the last dimension of its map. */
__device__ __forceinline__ int32_t k_unit(const Item &item, uint32_t page)
{
    const ActiveRun *run = item.run;
    return int32_t(page < run->pages ? page * run->unit_page + item.kv_head * run->unit_head
                                     : unit_absent);
}

/* A loader warp's place. */
template <typename T, int D, typename Policy> struct Loader {
    using Shape = PrefillShape<D>;
    uint32_t shared; /* of the tile buffer */
    PrefillBarriers<D> *bars;
    WorkSlots *work;
    uint32_t warp;           /* 0..loader_warps; the last q_warps of them load Q */
    uint32_t count, q_count; /* blocks and Q tiles so far */
    uint32_t fenced; /* shared address of the run in hand, if its memory is there for TMA; else 0 */
    bool q_ahead;    /* Q of the item after the one in hand is under way */

    /* Q of @item, as soon as its place is free. */
    __device__ __forceinline__ void begin_q(const Item &item)
    {
        const uint32_t stage = q_count % Shape::q_stages;
        barrier_wait(&bars->q_empty[stage], q_count / Shape::q_stages % 2 ^ 1);
        load_q<T, D, Policy>(item, shared + stage * Shape::q_bytes,
                             warp - (loader_warps - q_warps));
        barrier_arrive_copies(&bars->q_full[stage]);
        q_count++;
    }

    /* Between blocks of work @number: Q of the next one, if both it and the place for it are there.
     * It then lies there when the next item begins. */
    __device__ __forceinline__ void look_ahead(uint32_t number)
    {
        const uint32_t stage = q_count % Shape::q_stages;
        if (Shape::q_stages == 1 || q_ahead || warp < loader_warps - q_warps ||
            !__all_sync(0xffffffffu,
                        barrier_peek(&bars->q_empty[stage], q_count / Shape::q_stages % 2 ^ 1)))
            return;
        const WorkSlot *next = work_peek(work, number + 1);
        if (!next || next->path != path_prefill)
            return;
        begin_q(next->item);
        q_ahead = true;
    }

    /* One plane of an item by TMA, a box a lane. What a warp issues it issues one lane after the
     * other, so K is shared by two warps (@part 0 and 1 of @parts) and V has a warp of its own. */
    template <bool values>
    __device__ __forceinline__ void boxes(const Item &item, uint32_t number, const TensorMap *map,
                                          uint32_t base, uint64_t *full, uint64_t *empty,
                                          uint32_t part, uint32_t parts)
    {
        const ActiveRun *run = item.run;
        const uint32_t lane = threadIdx.x % 32, page_size = run->page_size;
        const uint32_t rows = values ? 16 : run->box_rows, box = part + lane * parts;
        const bool mine = box < Shape::keys / rows;
        const uint32_t to = base + box * rows * (D * 2);
        const int32_t *pages = run->kv_pages + item.tile.of_entry.page_begin;
        int32_t blocks = prefill_blocks<D>(item);
        int32_t token = item.kv_begin + (blocks - 1) * Shape::keys + int32_t(box * rows);
        uint32_t page = mine && blocks ? box_page<values>(item, pages, token) : 0;

        int32_t stop = min(blocks / 2, claim_blocks / 3); /* the next item is there by then */
        for (int32_t block = blocks - 1; block >= 0; stop = 0) {
            for (; block >= stop; block--, count++) {
                if (!values && part == 0) {
                    prefill_ending(item, block);
                    floor_decide<D>(item, block);
                }
                if (block < floor_blocks<D>(item)) {
                    block = -1;
                    break;
                }
                const uint32_t stage = count % Shape::stages, parity = count / Shape::stages % 2;
                const int32_t inside = int32_t(uint32_t(token) % page_size);
                const uint32_t here = page;
                token -= Shape::keys;
                if (mine && block) /* the next one's, long before it is needed */
                    page = box_page<values>(item, pages, token);
                barrier_wait(&empty[stage], parity ^ 1);
                if (lane == 0 && part == 0) {
                    barrier_expect(&full[stage], Shape::kv_bytes);
                    barrier_arrive(&full[stage], Shape::keys - 1);
                }
                __syncwarp();
                if (mine && values)
                    tma_box(to + stage * Shape::kv_bytes, map, &full[stage], inside, 0,
                            int32_t(item.kv_head), int32_t(here));
                else if (mine)
                    tma_box(to + stage * Shape::kv_bytes, map, &full[stage], 0, 0, inside / 8,
                            k_unit(item, here));
            }
            look_ahead(number);
        }
    }

    /* Kernels of others stored K and V, and the dispatcher the map; the fetch warp acquired that,
     * but TMA is another proxy, and another one its maps. Once a run: it takes over a thousand
     * clocks, in front of an item's first keys. */
    __device__ __forceinline__ void fence_run(const ActiveRun *run, const TensorMap *map)
    {
        if (fenced)
            return;
        fence_map_acquire(map);
        fenced = shared_address(run);
    }

    /* Of every item, before anything else of it: consecutive runs have copies at different places.
     */
    __device__ __forceinline__ void meet(const ActiveRun *run)
    {
        if (fenced != shared_address(run))
            fenced = 0;
    }

    /* Work @number, of many rows. */
    __device__ __forceinline__ void load(const Item &item, uint32_t number)
    {
        const uint32_t k = shared + Shape::k_offset, v = shared + Shape::v_offset;
        if (warp >= loader_warps - q_warps && !q_ahead)
            begin_q(item);
        q_ahead = false;
        if (!item.run->box_rows) {
            gather_item<T, D, Policy>(item, k, v, bars, &count, warp);
            return;
        }
        /* Maps are read where they lie in global memory, not from the copy of the run. */
        const bool values = warp == 1;
        const TensorMap *map = values ? &item.maps->v_map : &item.maps->k_map;
        fence_run(item.run, map);
        if (values)
            boxes<true>(item, number, map, v, bars->v_full, bars->v_empty, 0, 1);
        else
            boxes<false>(item, number, map, k, bars->k_full, bars->k_empty, warp / 2, k_loaders);
    }
};

} // namespace attnd

#endif
