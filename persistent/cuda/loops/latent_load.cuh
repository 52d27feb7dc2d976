/*
 * latent_load.cuh - how latents come to shared memory (latent.cuh computes with them).
 *
 * Shared memory: Q [panel][64 rows][64], then two stages of keys [8 groups of 8][panel][8][64], all
 * 128-byte swizzled. As K a stage is K-major, as V it is MN-major, and both find their strides in
 * it. Where a page holds a multiple of 16 tokens, one loader warp brings keys by TMA, boxes of 16
 * tokens, and runs ahead of the other two, which bring Q by cp.async. Else all three bring a third
 * of the panels each by cp.async: pages of any size.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_LATENT_LOAD_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_LATENT_LOAD_CUH

#include "persistent/cuda/loops/prefill.cuh"

namespace attnd
{

template <> struct PrefillShape<latent_dim> {
    static constexpr int keys = 64;
    static constexpr int panels = latent_dim / 64;
    static constexpr int out_columns = 128; /* of one instruction */
    static constexpr int out_parts = 2;     /* of a warpgroup */
    static constexpr int stages = 2;
    static constexpr uint32_t q_panel_bytes = latent_rows * 128;
    static constexpr uint32_t k_group_bytes = 8 * latent_dim * 2; /* 8 tokens */
    static constexpr uint32_t kv_bytes = keys * latent_dim * 2;
    static constexpr uint32_t k_offset = panels * q_panel_bytes;
    static constexpr uint32_t shared_bytes = k_offset + stages * kv_bytes;
    static_assert(panels % loader_warps == 0, "as many for each");
};
using LatentShape = PrefillShape<latent_dim>;

/* Full: every loader thread. Empty: every consumer warp. */
template <> struct PrefillBarriers<latent_dim> {
    uint64_t k_full[LatentShape::stages], k_empty[LatentShape::stages], q_full, q_empty;
};
using LatentBarriers = PrefillBarriers<latent_dim>;

template <> __device__ __forceinline__ void prefill_barriers_init<latent_dim>(LatentBarriers *bars)
{
    for (int s = 0; s < LatentShape::stages; s++) {
        barrier_init(&bars->k_full[s], loader_warps * 32);
        barrier_init(&bars->k_empty[s], consumer_threads / 32);
    }
    barrier_init(&bars->q_full, loader_warps * 32);
    barrier_init(&bars->q_empty, consumer_threads / 32);
}

/* A loader warp's place. */
struct LatentLoader {
    uint32_t shared; /* of the tile buffer */
    LatentBarriers *bars;
    uint32_t warp;           /* 0..loader_warps */
    uint32_t count, q_count; /* blocks and Q tiles so far */

    /* Starts the copies of 32 rows, of which this lane has found one at @row and @left are there:
     * the @third-th third of the panels. @to: of the rows' first panel; from panel to panel, from 8
     * rows to the next. */
    __device__ __forceinline__ void copy_rows(uint32_t third, uint64_t row, int32_t left,
                                              uint32_t to, uint32_t panel_bytes,
                                              uint32_t group_bytes) const
    {
        constexpr uint32_t panels = LatentShape::panels / loader_warps;
        const uint32_t lane = threadIdx.x % 32, chunk = lane % 8;
#pragma unroll 2
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t r = i * 4 + lane / 8;
            const uint64_t from = __shfl_sync(0xffffffffu, row, r);
            const uint32_t at = to + r / 8 * group_bytes + r % 8 * 128 + ((chunk ^ r % 8) << 4);
#pragma unroll
            for (uint32_t p = 0; p < panels; p++) {
                const uint32_t panel = third * panels + p;
                cp_async16(at + panel * panel_bytes,
                           reinterpret_cast<const char *>(from) + panel * 128 + chunk * 16,
                           int32_t(r) < left ? 16 : 0);
            }
        }
    }

    __device__ __forceinline__ void wait_q_empty() const
    {
        barrier_wait(&bars->q_empty, q_count % 2 ^ 1);
    }

    /* A third of Q of a pass; rows that are not there become zeros. */
    __device__ __forceinline__ void load_q(const Item &item, uint32_t first, uint32_t third) const
    {
        const ActiveRun *run = item.run;
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t r = first + half * 32 + lane;
            uint64_t row = uint64_t(run->q);
            if (r < item.packed_rows) {
                const Divided at = divided(r, run->plan.group, run->group_reciprocal);
                row += 2 *
                       (int64_t(item.tile.row_begin + at.quotient) * run->plan.q_pitch.row +
                        int64_t(item.kv_head * run->plan.group + at.rest) * run->plan.q_pitch.head);
            }
            copy_rows(third, row, int32_t(item.packed_rows) - int32_t(first + half * 32),
                      shared + half * (32 * 128), LatentShape::q_panel_bytes, 8 * 128);
        }
        barrier_arrive_copies(&bars->q_full);
    }

    /* The page of this lane's row in half @half of a block; 0 where there is none. */
    __device__ __forceinline__ uint32_t page(const Item &item, int32_t block, int32_t half) const
    {
        const ActiveRun *run = item.run;
        const int32_t token = token_of(item, block, half);
        if (block < 0 || token >= item.kv_end)
            return 0;
        const uint32_t index = uint32_t(token) / run->page_size;
        return page_checked(item, uint32_t(run->kv_pages[item.tile.of_entry.page_begin + index]));
    }

    __device__ __forceinline__ int32_t token_of(const Item &item, int32_t block, int32_t half) const
    {
        return item.kv_begin + block * LatentShape::keys + half * 32 + int32_t(threadIdx.x % 32);
    }

    __device__ __forceinline__ void load_block(const Item &item, int32_t block,
                                               const uint32_t (&pages)[2]) const
    {
        const ActiveRun *run = item.run;
        const attnd_heap_plane &plane = run->k_plane;
        const uint32_t stage = count % LatentShape::stages;
        const uint32_t to = shared + LatentShape::k_offset + stage * LatentShape::kv_bytes;
#pragma unroll
        for (int32_t half = 0; half < 2; half++) {
            const int32_t token = token_of(item, block, half);
            const uint64_t row = uint64_t(item.k) + 2 * (int64_t(pages[half]) * plane.stride_page +
                                                         int64_t(uint32_t(token) % run->page_size) *
                                                             plane.stride_token);
            copy_rows(warp, row, item.kv_end - (token - int32_t(threadIdx.x % 32)),
                      to + uint32_t(half) * (4 * LatentShape::k_group_bytes), 1024,
                      LatentShape::k_group_bytes);
        }
    }

    /* An item by cp.async: Q and all blocks of each pass, from the last to the first. One warp
     * decides whether it ends early (floor_decide()), but not before all are in the pass in hand.
     */
    __device__ __forceinline__ void gather(const Item &item)
    {
        const int32_t blocks = prefill_blocks<latent_dim>(item);
#pragma unroll 1
        for (uint32_t rows = item.rows_begin; rows < item.rows_end; rows += latent_rows) {
            uint32_t pages[2] = {page(item, blocks - 1, 0), page(item, blocks - 1, 1)};
            wait_q_empty();
            load_q(item, rows, warp);
            q_count++;
#pragma unroll 1
            for (int32_t block = blocks - 1; block >= 0; block--, count++) {
                if (warp == 0 && rows + latent_rows >= item.rows_end)
                    prefill_ending(item, block);
                if (warp == 0 && block < blocks - LatentShape::stages - 1)
                    floor_decide<latent_dim>(item, block);
                if (block < floor_blocks<latent_dim>(item))
                    break;
                const uint32_t next[2] = {page(item, block - 1, 0), page(item, block - 1, 1)};
                const uint32_t stage = count % LatentShape::stages;
                barrier_wait(&bars->k_empty[stage], count / LatentShape::stages % 2 ^ 1);
                load_block(item, block, pages);
                barrier_arrive_copies(&bars->k_full[stage]);
                pages[0] = next[0];
                pages[1] = next[1];
            }
        }
    }

    /* The page of this lane's box of a block; behind the range one that is not there. */
    __device__ __forceinline__ uint32_t box_page_of(const Item &item, int32_t block) const
    {
        const int32_t token =
            item.kv_begin + block * LatentShape::keys + int32_t(threadIdx.x % 32 * latent_box_rows);
        const ActiveRun *run = item.run;
        if (block < 0 || threadIdx.x % 32 >= boxes || token >= item.kv_end)
            return run->pages;
        const uint32_t index = uint32_t(token) / run->page_size;
        return page_checked(item, uint32_t(run->kv_pages[item.tile.of_entry.page_begin + index]));
    }

    /* The keys of a pass, by one warp, a box a lane. It may be ahead of Q by as many blocks as
     * there are stages, except for a pass's last one: whose phase of q_empty it waits for must not
     * be over twice. @last: the item's last pass. */
    __device__ __forceinline__ void load_boxes(const Item &item, bool last)
    {
        const ActiveRun *run = item.run;
        const uint32_t lane = threadIdx.x % 32;
        const int32_t blocks = prefill_blocks<latent_dim>(item);
        uint32_t page = box_page_of(item, blocks - 1);
        bool behind = false; /* Q of the pass before is done with */
#pragma unroll 1
        for (int32_t block = blocks - 1; block >= 0; block--, count++) {
            if (last)
                prefill_ending(item, block);
            if (block < blocks - LatentShape::stages - 1)
                floor_decide<latent_dim>(item, block);
            if (block < floor_blocks<latent_dim>(item))
                break;
            if (!behind &&
                (block < blocks - LatentShape::stages || block <= floor_blocks<latent_dim>(item))) {
                wait_q_empty();
                behind = true;
            }
            const uint32_t here = page, stage = count % LatentShape::stages;
            const int32_t token =
                item.kv_begin + block * LatentShape::keys + int32_t(lane * latent_box_rows);
            const uint32_t to = shared + LatentShape::k_offset + stage * LatentShape::kv_bytes +
                                lane * (latent_box_rows * latent_dim * 2);
            page = box_page_of(item, block - 1); /* long before it is needed */
            barrier_wait(&bars->k_empty[stage], count / LatentShape::stages % 2 ^ 1);
            if (lane == 0) {
                barrier_expect(&bars->k_full[stage], LatentShape::kv_bytes);
                barrier_arrive(&bars->k_full[stage], loader_warps * 32 - 1);
            }
            __syncwarp();
            if (lane < boxes)
                tma_box(to, &item.maps->k_map, &bars->k_full[stage], 0, 0,
                        int32_t(uint32_t(token) % run->page_size / 8), k_unit(item, here));
        }
    }
    static constexpr uint32_t boxes = LatentShape::keys / latent_box_rows;

    __device__ __forceinline__ void load(const Item &item)
    {
        if (!item.run->box_rows || !prefill_blocks<latent_dim>(item)) {
            gather(item);
            return;
        }
        if (warp == 0)
            fence_map_acquire(&item.maps->k_map);
#pragma unroll 1
        for (uint32_t rows = item.rows_begin; rows < item.rows_end;
             rows += latent_rows, q_count++) {
            if (warp == 0) {
                load_boxes(item, rows + latent_rows >= item.rows_end);
                continue;
            }
            wait_q_empty();
            load_q(item, rows, warp);
            if (warp == 1)
                load_q(item, rows, 0);
        }
    }
};

} // namespace attnd

#endif
