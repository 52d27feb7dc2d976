/*
 * prefill_warps.cuh - many query rows, by the products of a warp: prefill where there is no wgmma.
 *
 * 128 packed rows, 16 for each consumer warp, against blocks of keys from the last to the first.
 * The loader warps of prefill_load.cuh bring Q, K and V by cp.async, pages of any size, ahead of
 * the consumers. A warp shares nothing with the others but what lies in shared memory: none waits
 * for another, each leaves out the blocks that none of its rows sees, and each finds out for itself
 * which need a mask. (The shape is FlashAttention-2's, arXiv 2307.08691: a warp has rows of its own
 * and all keys.) Weights are relative to a maximum of earlier blocks where they can be, as in
 * prefill_rows.cuh, which also has the ends of rows.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_WARPS_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_WARPS_CUH

#include "persistent/cuda/loops/prefill_join.cuh"

namespace attnd
{

/* What a warp's 16 rows see, as keys. A block needs no mask between free_begin and free_end, and
 * is left out in front of begin and from end on. */
struct WarpView {
    int32_t begin, end, free_begin, free_end;
};

/* Of the warp whose rows begin with packed row @first. */
template <typename Policy>
__device__ __forceinline__ WarpView warp_view(const Item &item, uint32_t first)
{
    if (first >= item.packed_rows)
        return {item.kv_begin, item.kv_begin, item.kv_begin, item.kv_begin};
    const uint32_t last = min(first + 15, item.packed_rows - 1);
    const uint32_t low = item.tile.row_begin + packed_row(item, first).token;
    const uint32_t high = item.tile.row_begin + packed_row(item, last).token;
    const bool masks = last != first + 15 || Policy::masked(item);
    return {Policy::first_key(item, low), visible_end(item, high), Policy::first_key(item, high),
            masks ? item.kv_begin : visible_end(item, low)};
}

/* A warp's way through prefill items. */
template <typename T, int D, typename Policy> struct PrefillWarp {
    using Shape = PrefillShape<D>;
    PrefillBarriers<D> *bars;
    uint32_t shared;
    uint32_t count, q_count; /* blocks and Q tiles used so far, across items */
    RowState<D> state;
    float s[Shape::keys / 2];
    /* The warp's rows of Q, kept: what comes from shared memory is what a block waits for. Of 256
     * dims there are too few registers. */
    static constexpr bool keeps_q = D <= 128;
    uint32_t q[keeps_q ? D / 16 : 1][4];

    __device__ __forceinline__ uint32_t q_at() const
    {
        return shared + q_count % Shape::q_stages * Shape::q_bytes;
    }

    /* Of the warp's rows of Q, 16 dims. */
    __device__ __forceinline__ void take_q(uint32_t (&a)[4], int step) const
    {
        const uint32_t lane = threadIdx.x % 32, turn = (lane / 16 ^ lane % 8) << 4;
        ldmatrix4(a, q_at() + consumer_thread() / 32 * (16 * 128) + lane % 16 * 128 +
                         step / 4 * (prefill_rows * 128) + (turn ^ step % 4 * 32));
    }

    /* Products of the warp's rows of Q with a block of K that lies at @k. */
    __device__ __forceinline__ void scores(uint32_t k)
    {
        const uint32_t lane = threadIdx.x % 32, turn = lane % 8;
        const uint32_t mine = k + lane / 16 * Shape::k_group_bytes + turn * 128;
        const uint32_t k_turn = (lane / 8 % 2 ^ turn) << 4;
#pragma unroll
        for (int i = 0; i < Shape::keys / 2; i++)
            s[i] = 0.0f;
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            uint32_t(&a)[4] = q[keeps_q ? step : 0], b[4];
            if (!keeps_q)
                take_q(a, step);
#pragma unroll
            for (int j = 0; j < Shape::keys / 8; j += 2) {
                ldmatrix4(b, mine + j * Shape::k_group_bytes + step / 4 * 1024 +
                                 (k_turn ^ step % 4 * 32));
                Mma<T>::run(*reinterpret_cast<float(*)[4]>(&s[j * 4]), a, b[0], b[1]);
                Mma<T>::run(*reinterpret_cast<float(*)[4]>(&s[j * 4 + 4]), a, b[2], b[3]);
            }
        }
    }

    /* o += the weights in s times the block of V that lies at @v. */
    __device__ __forceinline__ void values(uint32_t v)
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t mine = v + lane % 16 * 128, turn = (lane / 16 ^ lane % 8) << 4;
#pragma unroll
        for (int step = 0; step < Shape::keys / 16; step++) {
            const float *w = &s[step * 8];
            const uint32_t p[4] = {Pack<T>::pair(w[0], w[1]), Pack<T>::pair(w[2], w[3]),
                                   Pack<T>::pair(w[4], w[5]), Pack<T>::pair(w[6], w[7])};
#pragma unroll
            for (int d = 0; d < Shape::values; d += 16) {
                float *o = &state.o[d / Shape::out_columns][d % Shape::out_columns / 2];
                uint32_t b[4];
                ldmatrix4_trans(b, mine + step * Shape::v_chunk_bytes + d / 64 * 2048 +
                                       (turn ^ (d % 64 * 2)));
                Mma<T>::run(*reinterpret_cast<float(*)[4]>(o), p, b[0], b[1]);
                Mma<T>::run(*reinterpret_cast<float(*)[4]>(o + 4), p, b[2], b[3]);
            }
        }
    }

    /* Products become weights, with the maximum of each row moved where it must be. */
    __device__ __forceinline__ void weigh(const Item &item, float scale, int32_t first)
    {
        float fade[2];
        Policy::prefill(item, s, first);
        Policy::mask(item, s, first);
        softmax_exact<D>(state, s, scale, first, fade);
        scale_o<D>(state, fade);
    }

    /* The block that begins with key @first and whose K is there. */
    __device__ __forceinline__ void block(const Item &item, const WarpView &view, float scale,
                                          int32_t first)
    {
        const uint32_t stage = count % Shape::stages, parity = count / Shape::stages % 2;
        const uint32_t k = shared + Shape::k_offset + stage * Shape::k_bytes;
        const bool sees = first < view.end && first + Shape::keys > view.begin;
        if (sees) {
            const bool whole = first >= view.free_begin && first + Shape::keys <= view.free_end;
            bool quick = whole && Policy::way(item, first) == 0;
            scores(k);
            if (quick) {
                using Loop = typename Policy::template Loop<0>;
                quick = softmax_quick<D, Policy, 0>(
                    state, s, scale, Loop(item), Policy::template ready<0>(item, first, state.m));
                if (!quick)
                    scores(k);
            }
            if (!quick)
                weigh(item, scale, first);
        }
        barrier_arrive_warp(&bars->k_empty[stage]);
        barrier_wait(&bars->v_full[stage], parity);
        if (sees)
            values(shared + Shape::v_offset + stage * Shape::v_bytes);
        barrier_arrive_warp(&bars->v_empty[stage]);
    }

    /* One item. All consumers. */
    __device__ __forceinline__ void compute(const Item &item)
    {
        const uint32_t warp_row = consumer_thread() / 32 * 16, lane = threadIdx.x % 32;
        const uint32_t first_row = warp_row + lane / 4;
        const float scale = Policy::unit(item.run->plan);
        const WarpView view = warp_view<Policy>(item, warp_row);
        int32_t first = item.kv_begin + (prefill_blocks<D>(item) - 1) * Shape::keys;

        rows_begin<D, Policy>(item, state, first_row);
        barrier_wait(&bars->q_full[q_count % Shape::q_stages], q_count / Shape::q_stages % 2);
#pragma unroll
        for (int step = 0; step < D / 16 && keeps_q; step++)
            take_q(q[step], step);
#pragma unroll 1
        for (; first >= peek_cta(&item.floor); first -= Shape::keys, count++) {
            barrier_wait(&bars->k_full[count % Shape::stages], count / Shape::stages % 2);
            block(item, view, scale, first);
        }
        rows_sum(state);
        rows_end<T, D, Policy>(item, state, q_at(), first_row, consumer_thread() / 128, [] {});
        barrier_arrive_warp(&bars->q_empty[q_count % Shape::q_stages]);
        q_count++;
    }
};

} // namespace attnd

#endif
