/*
 * latent.cuh - multi-head latent attention: rows of K have 576 elements, and their first 512
 * are the row of V. Every block of keys is brought once and is an operand of both products.
 *
 * An item is computed 64 packed rows at a time, because o of 64 rows takes half of all registers:
 * each of the two consumer warpgroups keeps 256 of its 512 columns. Both compute all scores of a
 * block and the same weights, each for itself. That is half as much again as must be, and in return
 * they never wait for each other's weights, which would want room that Q and two blocks of keys do
 * not leave. They take turns (prefill.cuh): one has the tensor cores for its scores while the
 * other computes exponentials.
 *
 * Shared memory: Q [panel][64 rows][64], then two stages of keys [8 groups of 8][panel][8][64], all
 * 128-byte swizzled. As K a stage is K-major, as V it is MN-major, and both find their strides in
 * it. Where a page holds a multiple of 16 tokens, one loader warp brings keys by TMA, boxes of 16
 * tokens, and runs ahead of the other two, which bring Q by cp.async. Else all three bring a third
 * of the panels each by cp.async: pages of any size.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_LATENT_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_LATENT_CUH

#include "persistent/cuda/loops/prefill.cuh"

namespace attnd
{

constexpr uint32_t latent_rows = 64; /* of a pass over the keys */

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

__device__ __forceinline__ uint32_t latent_passes(const Item &item)
{
    return (item.packed_rows + latent_rows - 1) / latent_rows;
}

/* ---- loaders ---- */

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
        for (uint32_t pass = 0; pass < latent_passes(item); pass++) {
            uint32_t pages[2] = {page(item, blocks - 1, 0), page(item, blocks - 1, 1)};
            wait_q_empty();
            load_q(item, pass * latent_rows, warp);
            q_count++;
#pragma unroll 1
            for (int32_t block = blocks - 1; block >= 0; block--, count++) {
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
     * there are stages, but for a pass's last one: whose phase of q_empty it waits for must not be
     * over twice. */
    __device__ __forceinline__ void load_boxes(const Item &item)
    {
        const ActiveRun *run = item.run;
        const uint32_t lane = threadIdx.x % 32;
        const int32_t blocks = prefill_blocks<latent_dim>(item);
        uint32_t page = box_page_of(item, blocks - 1);
        bool behind = false; /* Q of the pass before is done with */
#pragma unroll 1
        for (int32_t block = blocks - 1; block >= 0; block--, count++) {
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
        for (uint32_t pass = 0; pass < latent_passes(item); pass++, q_count++) {
            if (warp == 0) {
                load_boxes(item);
                continue;
            }
            wait_q_empty();
            load_q(item, pass * latent_rows, warp);
            if (warp == 1)
                load_q(item, pass * latent_rows, 0);
        }
    }
};

/* ---- consumers ---- */

using LatentQDescriptor = Descriptor<0, 1024>;
using LatentKDescriptor = Descriptor<0, LatentShape::k_group_bytes>;
using LatentVDescriptor = Descriptor<1024, LatentShape::k_group_bytes>;

/* A warpgroup's way through such items. */
template <typename T, typename Policy> struct Latent {
    static constexpr int dim = latent_dim;
    static constexpr uint32_t columns = latent_values / 2; /* of o, that are this group's */
    LatentBarriers *bars;
    uint32_t shared;
    uint32_t count, q_count; /* blocks and Q tiles used so far */
    uint32_t group;
    RowState<dim> state;
    float s[LatentShape::keys / 2];
    uint32_t p[LatentShape::keys / 4];

    __device__ __forceinline__ Latent(LatentBarriers *bars_, uint32_t shared_, uint32_t count_,
                                      uint32_t q_count_)
        : bars(bars_), shared(uniform(shared_)), count(uniform(count_)), q_count(uniform(q_count_))
    {
        group = uniform(consumer_thread() / 128);
    }

    /* Bytes that came by cp.async came by another proxy than wgmma's. */
    __device__ __forceinline__ void wait(uint64_t *full, uint32_t parity, bool copied) const
    {
        barrier_wait(full, parity);
        if (copied)
            fence_proxy_async();
    }

    /* A box brings rows behind the range, which may be anything, and 0 * NaN is NaN: zeros, in a
     * pass's first block. All consumers. */
    __device__ __forceinline__ void zero_rows(uint32_t stage, int32_t rows_valid) const
    {
        constexpr int chunks = latent_dim / 8;
        if (rows_valid >= LatentShape::keys)
            return;
        for (int at = rows_valid * chunks + int(consumer_thread()); at < LatentShape::keys * chunks;
             at += consumer_threads)
            store_shared16(stage + place_in_block<latent_dim, false>(at / chunks, at % chunks),
                           make_uint4(0, 0, 0, 0));
        fence_proxy_async();
        consumers_sync();
    }

    /* The rows that this thread owns, from packed row @first_row on. */
    __device__ __forceinline__ void begin_rows(const Item &item, uint32_t first_row)
    {
        Policy::rows(item, first_row - threadIdx.x % 32 / 4);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t r = first_row + half * 8;
            state.m[half] = -INFINITY;
            state.l[half] = 0.0f;
            state.end[half] =
                r < item.packed_rows
                    ? visible_end(item, item.tile.row_begin + r / item.run->plan.group)
                    : item.kv_begin;
        }
#pragma unroll
        for (int part = 0; part < LatentShape::out_parts; part++)
#pragma unroll
            for (int i = 0; i < LatentShape::out_columns / 2; i++)
                state.o[part][i] = 0.0f;
    }

    /* Scores of the block in @stage, in turn: the other group computes exponentials meanwhile. */
    __device__ __forceinline__ void scores(uint32_t stage)
    {
        const LatentQDescriptor q(uniform(shared));
        const LatentKDescriptor k(uniform(stage));
        products_begin(group);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < dim / 16; step++) {
            const uint32_t panel = step / 4, inside = step % 4 * 32;
            Wgmma<T, LatentShape::keys>::scores(s,
                                                q.at(panel * LatentShape::q_panel_bytes + inside),
                                                k.at(panel * 1024 + inside), step > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        products_end(group);
    }

    /* o += weights * values of the block in @stage, for this group's columns. */
    __device__ __forceinline__ void values(uint32_t stage)
    {
        const LatentVDescriptor v(uniform(stage + group * (columns / 64 * 1024)));
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < LatentShape::out_parts; part++)
#pragma unroll
            for (int step = 0; step < LatentShape::keys / 16; step++)
                Wgmma<T, LatentShape::out_columns>::values(
                    state.o[part], &p[step * 4],
                    v.at(part * (LatentShape::out_columns / 64 * 1024) +
                         step * 2 * LatentShape::k_group_bytes),
                    1);
        wgmma_commit();
        wgmma_wait<0>();
    }

    /* All blocks of a pass. */
    __device__ __forceinline__ void blocks_of(const Item &item, int32_t blocks, float scale)
    {
        const bool boxed = item.run->box_rows != 0;
        int32_t first = item.kv_begin + (blocks - 1) * LatentShape::keys;
#pragma unroll 1
        for (; first >= peek_cta(&item.floor); first -= LatentShape::keys, count++) {
            const uint32_t at = count % LatentShape::stages;
            const uint32_t stage = shared + LatentShape::k_offset + at * LatentShape::kv_bytes;
            float fade[2];
            wait(&bars->k_full[at], count / LatentShape::stages % 2, !boxed);
            if (boxed && first + LatentShape::keys > item.kv_end)
                zero_rows(stage, item.kv_end - first);
            scores(stage);
            Policy::prefill(item, s, first);
            Policy::mask(item, s, first);
            softmax_exact<dim>(state, s, scale, first, fade);
            if (__any_sync(0xffffffffu, fade[0] != 1.0f || fade[1] != 1.0f))
                scale_o<dim>(state, fade);
            pack_p<T, dim>(p, s);
            values(stage);
            barrier_arrive_warp(&bars->k_empty[at]);
        }
    }

    /* False in all consumers if a result is not finite in any: see Prefill::finite(). */
    __device__ __forceinline__ bool finite() const
    {
        float probe = state.l[0] + state.l[1];
#pragma unroll
        for (int part = 0; part < LatentShape::out_parts; part++)
#pragma unroll
            for (int i = 0; i < LatentShape::out_columns / 2; i++)
                probe = fmaf(state.o[part][i], 0.0f, probe);
        return !consumers_any(!isfinite(probe));
    }

    /* One item, by both consumer warpgroups. */
    __device__ __forceinline__ void compute(const Item &item)
    {
        const uint32_t warp = consumer_thread() / 32;
        const float scale = Policy::unit(item.run->plan);
        const int32_t blocks = prefill_blocks<dim>(item);
#pragma unroll 1
        for (uint32_t pass = 0; pass < latent_passes(item); pass++) {
            const uint32_t rows = pass * latent_rows;
            const uint32_t first_row = rows + warp % 4 * 16 + threadIdx.x % 32 / 4;
            begin_rows(item, first_row);
            wait(&bars->q_full, q_count % 2, true);
            blocks_of(item, blocks, scale);
            barrier_arrive_warp(&bars->q_empty);
            q_count++;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                state.l[half] += __shfl_xor_sync(0xffffffffu, state.l[half], 1);
                state.l[half] += __shfl_xor_sync(0xffffffffu, state.l[half], 2);
            }
            if (finite())
                store_rows<T, dim, Policy>(item, state, 0, first_row, group * columns);
            else
                attend_naive<T, dim, Policy>(item, rows + warp,
                                             min(rows + latent_rows, item.packed_rows),
                                             consumer_threads / 32);
        }
    }
};

} // namespace attnd

#endif
