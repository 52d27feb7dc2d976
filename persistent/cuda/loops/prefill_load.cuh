/*
 * prefill_load.cuh - what the prefill loop computes on, loaded to shared memory by the loader
 * warps of the producer warpgroup.
 *
 * Where a page holds a multiple of 16 tokens, K and V come as boxes of a tensor map (TMA), all dims
 * of box_rows tokens each (16 of V), at most one a lane. Elsewhere all loader warps gather rows
 * (prefill_gather.cuh): any page size, any strides of 16 bytes. What has 8 bits they always gather,
 * and convert (prefill_widen.cuh). Q always comes by cp.async: its packed rows are (token, head)
 * pairs. Loaders run ahead of the consumers, into the next item too.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_LOAD_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_LOAD_CUH

#include "persistent/cuda/loops/prefill_widen.cuh"

namespace attnd
{

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

    /* Between blocks of work @number, which is @item: Q of the next one, if both it and the place
     * for it are there. It then lies there when the next item begins. With one place its own,
     * behind the first blocks, which need nothing of Q's place. */
    __device__ __forceinline__ void look_ahead(const Item &item, uint32_t number)
    {
        if constexpr (Shape::leaves_q) {
            if (!q_ahead && warp >= loader_warps - q_warps)
                begin_q(item);
            q_ahead = true;
            return;
        }
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
        constexpr uint32_t dim = values ? Shape::values : D;
        constexpr uint32_t bytes = values ? Shape::v_bytes : Shape::k_bytes; /* of a block */
        const uint32_t rows = values ? 16 : run->box_rows, box = part + lane * parts;
        const bool mine = box < Shape::keys / rows;
        const uint32_t to = base + box * rows * (dim * 2);
        const int32_t *pages = run->kv_pages + item.tile.of_entry.page_begin;
        int32_t blocks = prefill_blocks<D>(item);
        int32_t token = item.kv_begin + (blocks - 1) * Shape::keys + int32_t(box * rows);
        uint32_t page = mine && blocks ? box_page<values>(item, pages, token) : 0;

        /* The next item is there by then; or as many blocks are asked for as there are stages. */
        int32_t stop =
            Shape::leaves_q ? max(blocks - Shape::stages, 0) : min(blocks / 2, claim_blocks / 3);
        for (int32_t block = blocks - 1; Shape::leaves_q || block >= 0; stop = 0) {
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
                    barrier_expect(&full[stage], bytes);
                    barrier_arrive(&full[stage], load_arrivals - 1);
                }
                __syncwarp();
                if (mine && values)
                    tma_box(to + stage * bytes, map, &full[stage], inside, 0, int32_t(item.kv_head),
                            int32_t(here));
                else if (mine)
                    tma_box(to + stage * bytes, map, &full[stage], 0, 0, inside / 8,
                            k_unit(item, here));
            }
            look_ahead(item, number);
            if (Shape::leaves_q && block < 0)
                break;
        }
    }

    /* This warp's share of a plane of a block. @table: which one has its places; @left: its rows
     * that are there; @to: its stage. */
    template <bool values>
    __device__ __forceinline__ void gather_plane(const Item &item, const Gather<T, D, Policy> &rows,
                                                 uint32_t table, int32_t left, uint32_t to,
                                                 uint64_t *empty, uint64_t *full, uint32_t parity)
    {
        if constexpr (Policy::narrow) { /* in portable kernels */
            barrier_wait(empty, parity ^ 1);
            rows.template convert<values>(item, table, left, to);
            barrier_arrive(full, 1);
        } else {
            const auto lines = rows.template lines<values>(item, table, left, to);
            barrier_wait(empty, parity ^ 1);
            if constexpr (Gather<T, D, Policy>::template in_turns<values>)
                rows.template copy_in_turns<values>(lines);
            else
                rows.template copy<values>(lines);
            barrier_arrive_copies(full);
        }
    }

    /* Both planes of an item by cp.async: this warp's share of each block. Consumers want the keys
     * of a block together with the values of the one before, and leave such two together. */
    __device__ __forceinline__ void gather(const Item &item)
    {
        const int32_t blocks = prefill_blocks<D>(item);
        Gather<T, D, Policy> rows = {warp};
        if (blocks)
            rows.ask(item, item.kv_begin + (blocks - 1) * Shape::keys);
        for (int32_t block = blocks - 1;; block--, count++) {
            const int32_t first = item.kv_begin + block * Shape::keys;
            if (block >= 0 && warp == 0) {
                prefill_ending(item, block);
                floor_decide<D>(item, block);
            }
            const bool more = block >= floor_blocks<D>(item);
            if (more) {
                const uint32_t stage = count % Shape::stages, parity = count / Shape::stages % 2;
                rows.find(item, first, block % 2);
                if (block)
                    rows.ask(item, first - Shape::keys);
                gather_plane<false>(item, rows, block % 2, item.kv_end - first,
                                    shared + Shape::k_offset + stage * Shape::k_bytes,
                                    &bars->k_empty[stage], &bars->k_full[stage], parity);
            }
            if (block + 1 < blocks) {
                const uint32_t number = count - 1, stage = number % Shape::stages;
                gather_plane<true>(item, rows, (block + 1) % 2, item.kv_end - first - Shape::keys,
                                   shared + Shape::v_offset + stage * Shape::v_bytes,
                                   &bars->v_empty[stage], &bars->v_full[stage],
                                   number / Shape::stages % 2);
            }
            if (!more)
                break;
        }
    }

    using Wide = Widen<T, D, Policy>;

    /* A plane of a block whose bytes are on their way; and asks for the @next one's. */
    template <typename KV, bool values>
    __device__ __forceinline__ void widen_plane(const typename Wide::Lines &next)
    {
        const uint32_t number = Wide::blocks() - values;
        const uint32_t stage = number % Shape::stages, parity = number / Shape::stages % 2;
        barrier_wait(values ? &bars->v_empty[stage] : &bars->k_empty[stage], parity ^ 1);
        Wide::template convert<KV, values>(stage, next);
        __syncwarp();
        if (threadIdx.x % 32 == 0) /* consumers fence, as behind cp.async */
            barrier_arrive(values ? &bars->v_full[stage] : &bars->k_full[stage], 32);
    }

    /* Both planes of an item of 8 bits, in the same order: what is asked for behind the keys of a
     * block are the values of the one before. */
    template <typename KV> __device__ __forceinline__ void widen(const Item &item)
    {
        int32_t block = prefill_blocks<D>(item) - 1;
        if (block >= 0) {
            Wide::ask_pages(item, block);
            Wide::ask_pages(item, max(block - 1, 0));
            cp_async_commit();
        }
        if (thread_anew() / 32 - 1 >= loader_warps - q_warps) {
            begin_q(item);
            cp_async_commit();
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        if (block < 0)
            return;
        Wide::find(item, block);
        Wide::copy(Wide::template lines<false>(item, block));
        if (block)
            Wide::find(item, block - 1);
        if (block > 1)
            Wide::ask_pages(item, block - 2);
        for (bool begun = false;; begun = true, block--, Wide::count_block()) {
            if (block >= 0 && thread_anew() / 32 == 1) {
                prefill_ending(item, block);
                floor_decide<D>(item, block);
            }
            /* Looked at anew where it is wanted: no block is reached that is below the floor. */
            const auto more = [&] { return block >= floor_blocks<D>(item); };
            if (more())
                widen_plane<KV, false>(begun   ? Wide::template lines<true>(item, block + 1)
                                       : block ? Wide::template lines<false>(item, block - 1)
                                               : Wide::template lines<true>(item, block));
            if (begun) {
                typename Wide::Lines next = {};
                if (block > 0 && more()) {
                    Wide::find(item, block - 1);
                    if (block > 1)
                        Wide::ask_pages(item, block - 2);
                    next = Wide::template lines<false>(item, block - 1);
                } else if (block == 0 && more()) {
                    next = Wide::template lines<true>(item, block);
                } else if (block >= 0) { /* keys were asked for that are not wanted any more */
                    cp_async_wait<0>();
                    Wide::copy(Wide::template lines<true>(item, block + 1));
                }
                widen_plane<KV, true>(next);
            }
            if (!more())
                break;
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

    /* The same before there is an item, of the run that the kernel was launched for. @copy: where
     * its items will have it. */
    __device__ __forceinline__ void fence_launched(const ActiveRun *launched, const void *copy)
    {
        grid_wait();
        fence_map_acquire(warp == 1 ? &launched->v_map : &launched->k_map);
        fenced = shared_address(copy);
    }

    /* Of every item, before anything else of it: consecutive runs have copies at different places.
     */
    __device__ __forceinline__ void meet(const ActiveRun *run)
    {
        if (!widens<Policy> && fenced != shared_address(run))
            fenced = 0;
    }

    /* Work @number, of many rows. */
    __device__ __forceinline__ void load(const Item &item, uint32_t number)
    {
        const bool begins = Shape::leaves_q ? !by_boxes(item.run) : !q_ahead;
        if (!widens<Policy> && warp >= loader_warps - q_warps && begins)
            begin_q(item);
        if (!widens<Policy>)
            q_ahead = false;
        if constexpr (widens<Policy>) {
            if (item.run->plan.kv_dtype == ATTND_FP8_E4M3)
                widen<E4m3>(item);
            else
                widen<E5m2>(item);
        } else if (!by_boxes(item.run)) {
            gather(item);
        } else {
            load_boxes(item, number);
        }
    }

    __device__ __forceinline__ void load_boxes(const Item &item, uint32_t number)
    {
        const uint32_t k = shared + Shape::k_offset, v = shared + Shape::v_offset;
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
