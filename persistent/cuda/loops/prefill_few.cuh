/*
 * prefill_few.cuh - up to 64 packed rows, too many for the decode loop: bound by memory.
 *
 * One warpgroup's products take 64 rows. So both have all of them, and each has half of every block
 * of keys that the loaders of prefill bring, and a softmax of its own; at the end one adds what the
 * other has. Nothing overlaps within a warpgroup, because there is time: a block of keys takes
 * longer to come than to compute on. (With turns at whole blocks none would be on its way while
 * both compute.)
 *
 * Parts of such an item are merged as those of decode are, by the last of them: with few rows the
 * steps of a tree are what takes time, and its code, which a launched kernel executes once.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_FEW_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_FEW_CUH

#include "persistent/cuda/loops/prefill.cuh"

namespace attnd
{

/* What one warpgroup leaves for the other beside its rows. */
__device__ __forceinline__ float4 *few_sums()
{
    __shared__ float4 sums[128];
    return sums;
}

template <typename T, int D, typename Policy> struct Few {
    using Shape = PrefillShape<D>;
    static constexpr int keys = Shape::keys / 2; /* of a block */
    PrefillBarriers<D> *bars;
    uint32_t shared, count, q_count, group;
    RowState<D> state;

    __device__ __forceinline__ uint32_t q_at() const
    {
        return shared + q_count % Shape::q_stages * Shape::q_bytes;
    }

    __device__ __forceinline__ void scores(float (&s)[keys / 2], uint32_t k)
    {
        const QDescriptor q(uniform(q_at()));
        const KDescriptor<D> at(uniform(k));
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            const uint32_t panel = step / 4, inside = step % 4 * 32;
            Wgmma<T, keys>::scores(s, q.at(panel * (prefill_rows * 128) + inside),
                                   at.at(panel * 1024 + inside), step > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_settled(s);
    }

    __device__ __forceinline__ void values(const uint32_t (&p)[keys / 4], uint32_t v)
    {
        const VDescriptor at(uniform(v));
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
            for (int step = 0; step < keys / 16; step++)
                Wgmma<T, Shape::out_columns>::values(
                    state.o[part], &p[step * 4],
                    at.at(part * (Shape::out_columns / 64) * 2048 + step * Shape::v_chunk_bytes),
                    1);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_settled(state.o[0]);
    }

    __device__ __forceinline__ void weights(const Item &item, float (&s)[keys / 2],
                                            uint32_t (&p)[keys / 4], float scale, int32_t first)
    {
        float fade[2];
        Policy::prefill(item, s, first);
        Policy::mask(item, s, first);
        softmax_exact<D>(state, s, scale, first, fade);
        if (__any_sync(0xffffffffu, fade[0] != 1.0f || fade[1] != 1.0f))
            scale_o<D>(state, fade);
#pragma unroll
        for (int i = 0; i < keys / 4; i++)
            p[i] = Pack<T>::pair(s[i * 2], s[i * 2 + 1]);
    }

    /* The group's half of each block, from the last to the first. */
    __device__ __forceinline__ void blocks_of(const Item &item, int32_t blocks, float scale)
    {
        const int begin = int(group) * keys;
#pragma unroll 1
        for (int32_t i = 0; i < blocks; i++) {
            const int32_t first = item.kv_begin + (blocks - 1 - i) * Shape::keys;
            if (first < peek_cta(&item.floor))
                break;
            const uint32_t number = count + uint32_t(i), stage = number % Shape::stages;
            const uint32_t parity = number / Shape::stages % 2;
            const uint32_t k = shared + Shape::k_offset + stage * Shape::k_bytes;
            const uint32_t v = shared + Shape::v_offset + stage * Shape::v_bytes;
            float s[keys / 2];
            uint32_t p[keys / 4];
            barrier_wait(&bars->k_full[stage], parity);
            scores(s, k + group * (keys / 8) * Shape::k_group_bytes);
            barrier_arrive_warp(&bars->k_empty[stage]);
            weights(item, s, p, scale, first + begin);
            barrier_wait(&bars->v_full[stage], parity);
            zero_tail<D>(v, item.kv_end - first, begin, begin + keys, 128,
                         [this] { (void)group_any(false, group); });
            values(p, v + group * (keys / 16) * Shape::v_chunk_bytes);
            barrier_arrive_warp(&bars->v_empty[stage]);
        }
        count += uint32_t(blocks - floor_blocks<D>(item));
    }

    /* Accumulators of a thread, four at a time, in the tile of Q; and what it has beside them. */
    static constexpr int columns = Shape::out_columns / 2;
    static_assert(Shape::out_parts == 1, "room in the tile of Q, and registers");

    __device__ __forceinline__ void hand_over(uint32_t at, float4 *sums) const
    {
        const float(&o)[columns] = state.o[0];
#pragma unroll
        for (int i = 0; i < columns; i += 4)
            store_shared16(at + i / 4 * 2048,
                           make_uint4(__float_as_uint(o[i]), __float_as_uint(o[i + 1]),
                                      __float_as_uint(o[i + 2]), __float_as_uint(o[i + 3])));
        *sums = make_float4(state.m[0], state.m[1], state.l[0], state.l[1]);
    }

    __device__ __forceinline__ void take_over(uint32_t at, const float4 *sums)
    {
        const float4 other = *sums;
        float mine[2], its[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float m = half ? other.y : other.x, l = half ? other.w : other.z;
            const float top = fmaxf(state.m[half], m), base = top == -INFINITY ? 0.0f : top;
            mine[half] = exp2_fast(state.m[half] - base);
            its[half] = exp2_fast(m - base);
            state.m[half] = top;
            state.l[half] = fmaf(mine[half], state.l[half], its[half] * l);
        }
#pragma unroll
        for (int i = 0; i < columns; i += 4) {
            const uint4 four = load_shared16(at + i / 4 * 2048);
            const float value[4] = {__uint_as_float(four.x), __uint_as_float(four.y),
                                    __uint_as_float(four.z), __uint_as_float(four.w)};
#pragma unroll
            for (int e = 0; e < 4; e++)
                state.o[0][i + e] = fmaf(mine[e / 2], state.o[0][i + e], its[e / 2] * value[e]);
        }
    }

    /* The second group's rows to the first. All consumers; Q is wanted no more. */
    __device__ __forceinline__ void join()
    {
        const uint32_t thread = consumer_thread() % 128, at = q_at() + thread * 16;
        float4 *const sums = few_sums() + thread;
        consumers_sync();
        if (group)
            hand_over(at, sums);
        consumers_sync();
        if (!group)
            take_over(at, sums);
        consumers_sync(); /* rows of o pass through there next */
    }
};

/* An item of few rows. All consumers. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void few_item(const Item &item, PrefillBarriers<D> *bars,
                                         uint32_t *blocks, uint32_t *q_tiles)
{
    using Shape = PrefillShape<D>;
    consumer_warp_sync();
    Few<T, D, Policy> few = {bars, uniform(shared_address(cta_buffer())), uniform(*blocks),
                             uniform(*q_tiles), uniform(consumer_thread() / 128)};
    RowState<D> &state = few.state;
    const uint32_t warp = consumer_thread() / 32 % 4;
    const uint32_t mine = warp * 16 + threadIdx.x % 32 / 4;
    rows_begin<D, Policy>(item, state, mine);
    barrier_wait(&bars->q_full[few.q_count % Shape::q_stages], few.q_count / Shape::q_stages % 2);
    fence_proxy_async(); /* Q came by cp.async */
    few.blocks_of(item, prefill_blocks<D>(item), Policy::unit(item.run->plan));
    rows_sum(state);
    few.join();
    const uint32_t first_row = few.group * few_rows + mine; /* of the second group: no rows */
    if (few.group)
        rows_begin<D, Policy>(item, state, first_row);
    rows_end<T, D, Policy, false>(item, state, few.q_at(), first_row, few.group, [] {});
    barrier_arrive_warp(&bars->q_empty[few.q_count % Shape::q_stages]);
    *blocks = few.count;
    *q_tiles = few.q_count + 1;
}

} // namespace attnd

#endif
