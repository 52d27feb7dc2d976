/*
 * latent.cuh - multi-head latent attention: rows of K have 576 elements, and their first 512
 * are the row of V. Every block of keys is brought once and is an operand of both products.
 *
 * An item is computed 64 packed rows at a time (latent_rows), because o of 64 rows takes half of
 * all registers: each of the two consumer warpgroups keeps 256 of its 512 columns. Of a block of
 * keys each computes the scores of one half and makes weights of them; then it hands these over,
 * and both multiply all weights with their columns of the values. Two warps, one of each group,
 * have the same rows, and thread by thread what one has is what the other wants, so nothing but 32
 * bytes a thread and a barrier of the two is between them. The room for it is the last panel of the
 * keys in hand, which no value has. (FlashMLA's two warpgroups share their weights likewise, each
 * of a block of its own: github.com/deepseek-ai/FlashMLA, docs/20250422-new-kernel-deep-dive.md.)
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_LATENT_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_LATENT_CUH

#include "persistent/cuda/loops/latent_load.cuh"
#include "persistent/cuda/loops/prefill.cuh"

namespace attnd
{

using LatentQDescriptor = Descriptor<0, 1024>;
using LatentKDescriptor = Descriptor<0, LatentShape::k_group_bytes>;
using LatentVDescriptor = Descriptor<1024, LatentShape::k_group_bytes>;

__device__ __forceinline__ void group_sync(uint32_t group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(4 + group) : "memory");
}

/* True in both warps of the same rows, one of each warpgroup, if @flag is in any of their threads.
 */
__device__ __forceinline__ bool pair_any(bool flag)
{
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\n"
                 "barrier.cta.red.or.pred.aligned q, %2, 64, p;\nselp.u32 %0, 1, 0, q;\n}\n"
                 : "=r"(any)
                 : "r"(uint32_t(flag)), "r"(6 + consumer_thread() / 32 % 4)
                 : "memory");
    return any;
}

/* A warpgroup's way through such items. */
template <typename T, typename Policy> struct Latent {
    static constexpr int dim = latent_dim;
    static constexpr int half = LatentShape::keys / 2; /* of a block's keys */
    static constexpr uint32_t half_bytes = half / 8 * LatentShape::k_group_bytes;
    static constexpr uint32_t columns = latent_values / 2; /* of o, that are this group's */
    LatentBarriers *bars;
    uint32_t shared;
    uint32_t count, q_count; /* blocks and Q tiles used so far */
    uint32_t group;
    RowState<dim> state;
    float s[half / 2];    /* of this group's half of the keys */
    uint32_t p[half / 2]; /* weights: its own, and the other's */

    __device__ __forceinline__ Latent(LatentBarriers *bars_, uint32_t shared_, uint32_t count_,
                                      uint32_t q_count_)
        : bars(bars_), shared(uniform(shared_)), count(uniform(count_)), q_count(uniform(q_count_))
    {
        group = uniform(consumer_thread() / 128);
    }

    __device__ __forceinline__ uint32_t stage_at(uint32_t number) const
    {
        return shared + LatentShape::k_offset +
               number % LatentShape::stages * LatentShape::kv_bytes;
    }

    /* Where in @stage this warp's weights lie, or (@other) those of the other group's warp of the
     * same rows: in the panel behind the values, of keys whose scores that group has computed. */
    __device__ __forceinline__ uint32_t handed(uint32_t stage, bool other) const
    {
        return stage + (group ^ uint32_t(other)) * half_bytes +
               consumer_thread() / 32 % 4 * LatentShape::k_group_bytes + latent_values / 64 * 1024 +
               threadIdx.x % 32 * 16;
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
        for (int i = 0; i < 2; i++) {
            state.m[i] = -INFINITY;
            state.l[i] = 0.0f;
            state.end[i] = packed_row_end(item, first_row + i * 8);
        }
#pragma unroll
        for (int part = 0; part < LatentShape::out_parts; part++)
#pragma unroll
            for (int i = 0; i < LatentShape::out_columns / 2; i++)
                state.o[part][i] = 0.0f;
    }

    /* Scores of this group's keys of the block in @stage: steps [begin, end) of their sums. */
    template <int begin, int end> __device__ __forceinline__ void issue_scores(uint32_t stage)
    {
        const LatentQDescriptor q(uniform(shared));
        const LatentKDescriptor k(uniform(stage + group * half_bytes));
        wgmma_fence();
#pragma unroll
        for (int step = begin; step < end; step++) {
            const uint32_t panel = step / 4, inside = step % 4 * 32;
            Wgmma<T, half>::scores(s, q.at(panel * LatentShape::q_panel_bytes + inside),
                                   k.at(panel * 1024 + inside), step > 0);
        }
        wgmma_commit();
    }
    static constexpr int steps = dim / 16, steps_ahead = 8;

    /* o += weights * values of the block in @stage, for this group's columns. */
    __device__ __forceinline__ void issue_values(uint32_t stage)
    {
        const uint32_t from = stage + group * (columns / 64 * 1024);
        const LatentVDescriptor mine(uniform(from + group * half_bytes));
        const LatentVDescriptor others(uniform(from + (group ^ 1) * half_bytes));
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < LatentShape::keys / 16; step++)
#pragma unroll
            for (int part = 0; part < LatentShape::out_parts; part++) {
                const LatentVDescriptor &v = step < half / 16 ? mine : others;
                Wgmma<T, LatentShape::out_columns>::values(
                    state.o[part], &p[step * 4],
                    v.at(part * (LatentShape::out_columns / 64 * 1024) +
                         step % (half / 16) * 2 * LatentShape::k_group_bytes),
                    1);
            }
        wgmma_commit();
    }

    __device__ __forceinline__ void hand_over(uint32_t stage) const
    {
        const uint32_t to = handed(stage, false);
        store_shared16(to, make_uint4(p[0], p[1], p[2], p[3]));
        store_shared16(to + 512, make_uint4(p[4], p[5], p[6], p[7]));
    }

    __device__ __forceinline__ void take_over(uint32_t stage)
    {
        static_assert(half / 2 == 16, "8 of each");
        const uint32_t from = handed(stage, true);
        const uint4 low = load_shared16(from), high = load_shared16(from + 512);
        p[8] = low.x, p[9] = low.y, p[10] = low.z, p[11] = low.w;
        p[12] = high.x, p[13] = high.y, p[14] = high.z, p[15] = high.w;
    }

    /* Scores of a block that every row sees, and not the first, to weights relative to the maximum
     * so far: see softmax_quick(). Return: false if both groups have to do it exactly; the scores
     * are what they were. */
    __device__ __forceinline__ bool weights_quick(const Item &item, float scale, int32_t first,
                                                  uint32_t stage)
    {
        const typename Policy::Ready ready = Policy::template ready<0>(item, first, state.m);
        float sum[4] = {};
        Policy::template quick<0>(ready, scale, [&](auto exponent) {
#pragma unroll
            for (int i = 0; i < half / 4; i++) {
                const float m = state.m[i % 2];
                const float a = exp2_fast(exponent(s[i * 2], i * 2, m));
                const float b = exp2_fast(exponent(s[i * 2 + 1], i * 2 + 1, m));
                sum[i % 4] += a + b;
                p[i] = Pack<T>::pair(a, b);
            }
        });
        sum[0] += sum[2];
        sum[1] += sum[3];
        hand_over(stage);
        if (pair_any(!(sum[0] <= quick_max) || !(sum[1] <= quick_max)))
            return false;
        state.l[0] += sum[0];
        state.l[1] += sum[1];
        return true;
    }

    /* The same with a mask, and maxima moved to where they must be: both groups' are the same. See
     * softmax_exact(). */
    __device__ __forceinline__ void weights_exact(const Item &item, float scale, int32_t first,
                                                  uint32_t stage)
    {
        Policy::prefill(item, s, first);
        Policy::mask(item, s, first);
        const int32_t column = first + int32_t(threadIdx.x % 4 * 2);
        float top[2] = {-INFINITY, -INFINITY}, fade[2];
#pragma unroll
        for (int i = 0; i < half / 2; i++) {
            if (column + i / 4 * 8 + i % 2 >= state.end[i % 4 / 2])
                s[i] = -INFINITY;
            top[i % 4 / 2] = fmaxf(top[i % 4 / 2], s[i]);
        }
        top[0] = row_max(top[0]);
        top[1] = row_max(top[1]);
        store_shared8(handed(stage, false), __float_as_uint(top[0]), __float_as_uint(top[1]));
        (void)pair_any(false);
        const uint4 others = load_shared16(handed(stage, true));
        (void)pair_any(false); /* read, before there are weights in its place */
        top[0] = fmaxf(top[0], __uint_as_float(others.x));
        top[1] = fmaxf(top[1], __uint_as_float(others.y));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = fmaxf(state.m[i], top[i] * scale);
            const float base = top[i] == -INFINITY ? 0.0f : top[i];
            fade[i] = exp2_fast(state.m[i] - base);
            state.m[i] = top[i];
            state.l[i] *= fade[i];
#pragma unroll
            for (int j = 0; j < half / 8; j++) {
                const float a = exp2_fast(fmaf(s[j * 4 + i * 2], scale, -base));
                const float b = exp2_fast(fmaf(s[j * 4 + i * 2 + 1], scale, -base));
                state.l[i] += a + b;
                p[j * 2 + i] = Pack<T>::pair(a, b);
            }
        }
        hand_over(stage);
        if (__any_sync(0xffffffffu, fade[0] != 1.0f || fade[1] != 1.0f))
            scale_o<dim>(state, fade);
        (void)pair_any(false);
    }

    /* All blocks of a pass. */
    __device__ __forceinline__ void blocks_of(const Item &item, int32_t blocks, float scale)
    {
        constexpr uint32_t stages = LatentShape::stages;
        const bool boxed = item.run->box_rows != 0;
        /* Blocks that end below this one, and begin at the other or above, have nothing but a scale
         * and no mask; and each row has seen a key when they come. */
        const bool plain = Policy::way(item, item.kv_begin) == 0 && !Policy::masked(item);
        const int32_t free_end = plain ? visible_end(item, item.tile.row_begin) : item.kv_begin;
        const int32_t free_begin =
            Policy::first_key(item, item.tile.row_begin + item.tile.row_count - 1);
        int32_t first = item.kv_begin + (blocks - 1) * LatentShape::keys;
        if (blocks <= 0)
            return;
        wait(&bars->k_full[count % stages], count / stages % 2, !boxed);
        if (boxed && first + LatentShape::keys > item.kv_end)
            zero_rows(stage_at(count), item.kv_end - first);
        issue_scores<0, steps>(stage_at(count));
        wgmma_wait<0>();
        for (bool more = true; more; first -= LatentShape::keys) {
            const uint32_t now = count++, stage = stage_at(now);
            const int32_t mine = first + int32_t(group) * half;
            const bool free = first + LatentShape::keys < free_end && first >= free_begin;
            group_sync(group); /* none of its warps reads the panel any more */
            if (!free || !weights_quick(item, scale, mine, stage))
                weights_exact(item, scale, mine, stage);
            take_over(stage);
            issue_values(stage);
            more = first - LatentShape::keys >= peek_cta(&item.floor);
            /* A few of the next scores follow at once. All of them would keep this warp from
             * leaving the stage until most are computed, and the loader is waiting for it. */
            if (more) {
                wait(&bars->k_full[count % stages], count / stages % 2, !boxed);
                issue_scores<0, steps_ahead>(stage_at(count));
                wgmma_wait<1>();
            } else {
                wgmma_wait<0>();
            }
            fence_proxy_async(); /* TMA may write next where weights were */
            barrier_arrive_warp(&bars->k_empty[now % stages]);
            if (more)
                issue_scores<steps_ahead, steps>(stage_at(count));
            wgmma_wait<0>();
        }
    }

    /* Sums of both groups' halves, through Q, which nobody reads any more. All consumers. */
    __device__ __forceinline__ void join_sums(uint32_t row)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            state.l[i] += __shfl_xor_sync(0xffffffffu, state.l[i], 1);
            state.l[i] += __shfl_xor_sync(0xffffffffu, state.l[i], 2);
        }
        const uint32_t at = shared + row % latent_rows * 16;
        consumers_sync();
        if (threadIdx.x % 4 == 0)
            store_shared8(at + group * 8, __float_as_uint(state.l[0]), __float_as_uint(state.l[1]));
        (void)pair_any(false);
        const uint4 both = load_shared16(at);
        state.l[0] = __uint_as_float(both.x) + __uint_as_float(both.z);
        state.l[1] = __uint_as_float(both.y) + __uint_as_float(both.w);
        barrier_arrive_warp(&bars->q_empty);
    }

    /* False in all consumers if a result is not right in any: see Prefill::finite(). */
    __device__ __forceinline__ bool finite(const bool (&sees)[2]) const
    {
        float probe = state.l[0] + state.l[1];
#pragma unroll
        for (int part = 0; part < LatentShape::out_parts; part++)
#pragma unroll
            for (int i = 0; i < LatentShape::out_columns / 2; i++)
                probe = fmaf(state.o[part][i], 0.0f, probe);
        const bool less =
            (sees[0] && state.l[0] < least_sum) || (sees[1] && state.l[1] < least_sum);
        return !consumers_any(less || !isfinite(probe));
    }

    /* One item, by both consumer warpgroups. */
    __device__ __forceinline__ void compute(const Item &item)
    {
        const uint32_t warp = consumer_thread() / 32;
        const float scale = Policy::unit(item.run->plan);
        const int32_t blocks = prefill_blocks<dim>(item);
#pragma unroll 1
        for (uint32_t rows = item.rows_begin; rows < item.rows_end; rows += latent_rows) {
            const uint32_t first_row = rows + warp % 4 * 16 + threadIdx.x % 32 / 4;
            begin_rows(item, first_row);
            wait(&bars->q_full, q_count % 2, true);
            blocks_of(item, blocks, scale);
            q_count++;
            join_sums(first_row);
            bool sees[2];
            rows_see<dim, Policy>(item, state, first_row, sees);
            if (finite(sees))
                store_rows<T, dim, Policy>(item, state, sees, 0, first_row, group * columns);
            else
                attend_naive<T, dim, Policy>(item, rows + warp,
                                             min(rows + latent_rows, item.packed_rows),
                                             consumer_threads / 32);
        }
    }
};

} // namespace attnd

#endif
