/*
 * prefill.cuh - many query rows: bound by the tensor cores. The consumers' half.
 *
 * 128 packed rows, 64 for each of two consumer warpgroups, against blocks of keys from the last to
 * the first, so the masked ones come first and the rest runs without a mask and without maxima
 * (prefill_rows.cuh). Within a warpgroup the products of a block overlap with the softmax of the
 * next: QK(j+1) is issued, then PV(j), and the exponentials of j+1 begin while PV(j) runs. Between
 * the warpgroups two named barriers take turns: one issues its products while the other computes
 * exponentials (both: FlashAttention-3, arXiv 2407.08608). Where one item ends and the next is
 * there, the products of the last block of the one go out with the first of the other, so that
 * tensor cores work while results are stored. Shared memory: Q [stage][panel][128 rows][64], K
 * [stage][panel][keys][64], V [stage][16 tokens] [panel][64], 128-byte swizzled. prefill_load.cuh
 * fills it, ahead of the consumers and across items. Up to 128 dims a warp's rows of o pass through
 * its rows of Q.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_CUH

#include "persistent/cuda/loops/prefill_join.cuh"
#include "persistent/cuda/machine/wgmma.cuh"

namespace attnd
{

/* The warpgroups issue their products in turns. Group 1 primes group 0's barrier once. */
__device__ __forceinline__ void products_begin(uint32_t group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(2 + group), "n"(consumer_threads) : "memory");
}

__device__ __forceinline__ void products_end(uint32_t group)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(3 - group), "n"(consumer_threads) : "memory");
}

using QDescriptor = Descriptor<0, 1024>;
template <int D> using KDescriptor = Descriptor<0, PrefillShape<D>::k_group_bytes>;
using VDescriptor = Descriptor<2048, 1024>;

/* q, k, v: of an operand's first element. */
template <typename T, int D>
__device__ __forceinline__ void issue_scores(float (&s)[PrefillShape<D>::keys / 2], QDescriptor q,
                                             KDescriptor<D> k)
{
    using Shape = PrefillShape<D>;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        const uint32_t panel = step / 4, inside = step % 4 * 32;
        Wgmma<T, Shape::keys>::scores(s, q.at(panel * (prefill_rows * 128) + inside),
                                      k.at(panel * 1024 + inside), step > 0);
    }
}

template <typename T, int D>
__device__ __forceinline__ void
issue_values(RowState<D> &state, const uint32_t (&p)[PrefillShape<D>::keys / 4], VDescriptor v)
{
    using Shape = PrefillShape<D>;
#pragma unroll
    for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
        for (int step = 0; step < Shape::keys / 16; step++)
            Wgmma<T, Shape::out_columns>::values(
                state.o[part], &p[step * 4],
                v.at(part * (Shape::out_columns / 64) * 2048 + step * Shape::v_chunk_bytes), 1);
}

/* Rows of V past the range may hold anything, and 0 * NaN is NaN: zeros, in the last block, of rows
 * [@begin, @end). By all @threads that read them, which then wait for each other by @sync. */
template <int D, typename Sync>
__device__ __forceinline__ void zero_tail(uint32_t v, int32_t rows_valid, int begin, int end,
                                          int threads, Sync sync)
{
    constexpr int chunks = values_dim<D> / 8;
    if (rows_valid < end) {
        const int from = max(rows_valid, begin);
        for (int at = from * chunks + int(consumer_thread()) % threads; at < end * chunks;
             at += threads)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                             v + place_in_block<D, true>(at / chunks, at % chunks)),
                         "r"(0)
                         : "memory");
        fence_proxy_async();
        sync();
    }
}

/* A warpgroup's way through prefill items. */
template <typename T, int D, typename Policy> struct Prefill {
    using Shape = PrefillShape<D>;
    using Products = typename Types<T, Policy>::Products; /* of weights and values */
    template <int way> using LoopOf = typename Policy::template Loop<way>;
    static constexpr bool overlaps = Shape::q_stages > 1; /* from item to item */
    PrefillBarriers<D> *bars;
    uint32_t shared;
    uint32_t count;   /* blocks of K used so far, across items; V is one behind in the loop */
    uint32_t q_count; /* Q tiles likewise */
    uint32_t group;
    bool gathered; /* K and V of this item come by cp.async: a fence before wgmma reads them */
    bool k_ready, v_ready; /* K of the next block, V of this one need no wait and no fence */
    bool ahead;            /* s holds the scores of the item's first block */
    RowState<D> state;
    float s[Shape::keys / 2];
    uint32_t p[Shape::keys / 4];

    __device__ __forceinline__ Prefill(PrefillBarriers<D> *bars_, uint32_t shared_, uint32_t count_,
                                       uint32_t q_count_)
        : bars(bars_), shared(uniform(shared_)), count(uniform(count_)), q_count(uniform(q_count_)),
          k_ready(false), v_ready(false), ahead(false)
    {
        group = uniform(consumer_thread() / 128);
    }

    __device__ __forceinline__ uint32_t q_stage() const
    {
        return q_count % Shape::q_stages;
    }

    __device__ __forceinline__ void wait_q() const
    {
        barrier_wait(&bars->q_full[q_stage()], q_count / Shape::q_stages % 2);
        fence_proxy_async(); /* Q came by cp.async */
    }

    __device__ __forceinline__ void wait_kv(uint64_t *full, uint32_t number) const
    {
        barrier_wait(&full[number % Shape::stages], number / Shape::stages % 2);
        if (gathered)
            fence_proxy_async();
    }

    /* Operands. To be asked for before a barrier: the reduction takes its time. */
    __device__ __forceinline__ QDescriptor q_at() const
    {
        return QDescriptor(uniform(shared + q_stage() * Shape::q_bytes + group * (64 * 128)));
    }

    __device__ __forceinline__ KDescriptor<D> k_at(uint32_t number) const
    {
        return KDescriptor<D>(uniform(k_block(number)));
    }

    __device__ __forceinline__ VDescriptor v_at(uint32_t number) const
    {
        return VDescriptor(
            uniform(shared + Shape::v_offset + number % Shape::stages * Shape::v_bytes));
    }

    /* Products of Q with a block of K into s, and of p with a block of V. */
    __device__ __forceinline__ void issue_k(QDescriptor q, KDescriptor<D> k)
    {
        issue_scores<T, D>(s, q, k);
        wgmma_commit();
    }

    __device__ __forceinline__ void issue_v(VDescriptor v)
    {
        issue_values<Products, D>(state, p, v);
        wgmma_commit();
    }

    __device__ __forceinline__ void leave_k(uint32_t number) const
    {
        barrier_arrive_warp(&bars->k_empty[number % Shape::stages]);
    }

    __device__ __forceinline__ void leave_v(uint32_t number) const
    {
        barrier_arrive_warp(&bars->v_empty[number % Shape::stages]);
    }

    /* Shared memory of the warp's rows of Q, and of a block of K. */
    __device__ __forceinline__ uint32_t warp_q() const
    {
        return shared + q_stage() * Shape::q_bytes + consumer_thread() / 32 * (16 * 128);
    }

    __device__ __forceinline__ uint32_t k_block(uint32_t number) const
    {
        return shared + Shape::k_offset + number % Shape::stages * Shape::k_bytes;
    }

    /* QK of the next block, PV of this one, softmax of the next, which begins with key @first.
     * @way: how weights are made at once, -1: they are not. @stop: written where a way changes, see
     * quick_blocks(). Return: false in a warp whose weights were wrong, where there are several
     * ways: again() is next. */
    template <int way>
    __device__ __forceinline__ bool step(const Item &item, const LoopOf<way> &loop, float scale,
                                         int32_t first, int32_t &stop)
    {
        constexpr bool exact = way < 0, changes = !exact && Policy::changes(way);
        const uint32_t now = count++;
        const QDescriptor q = q_at();
        const KDescriptor<D> k = k_at(count);
        const VDescriptor v = v_at(now);
        pack_p<Products, D>(p, s); /* meanwhile the reductions of the descriptors */
        if (!k_ready)
            wait_kv(bars->k_full, count);
        products_begin(group);
        wgmma_fence();
        issue_k(q, k);
        if constexpr (changes)
            stop = max(peek_cta(&item.floor), peek_cta(loop.end) + Shape::keys);
        if (!v_ready)
            wait_kv(bars->v_full, now);
        wgmma_fence();
        issue_v(v);
        products_end(group);
        typename Policy::Ready ready;
        if (!exact)
            ready = Policy::template ready<way>(item, first, state.m);
        wgmma_wait<1>();
        if (!changes)
            look_ahead();
        if (exact)
            Policy::prefill(item, s, first);
        /* ptxas moves the wait for PV in front of what does not feed it, but not across the branch
         * behind the exponentials; where this is one of several loops, across that, too, if it is
         * not in both of its arms. */
        bool quick = false;
        if constexpr (!exact)
            quick = softmax_quick<D, Policy, way>(state, s, scale, loop, ready);
        if (Policy::ways > 1 && quick) {
            if (changes) /* in front of the exponentials their answers would be waited for */
                look_ahead();
            wgmma_wait<0>();
        } else {
            if (changes)
                k_ready = v_ready = false;
            wgmma_wait<0>();
        }
        leave_v(now);
        if constexpr (exact) {
            Policy::mask(item, s, first);
            exactly(scale, first);
        } else if constexpr (Policy::ways > 1) {
            if (quick)
                leave_k(count);
            return quick;
        } else if (!quick) {
            again(item, scale, first);
        }
        leave_k(count); /* until here the scores may be wanted again */
        return true;
    }

    __device__ __forceinline__ void exactly(float scale, int32_t first)
    {
        float fade[2];
        softmax_exact<D>(state, s, scale, first, fade);
        scale_o<D>(state, fade);
    }

    /* The block in hand, which begins with key @first, once more, by this warp alone. */
    __device__ __forceinline__ void again(const Item &item, float scale, int32_t first)
    {
        scores_again<T, D, Policy>(s, warp_q(), k_block(count));
        Policy::beyond(item, s, first, first - 2 * Shape::keys);
        Policy::prefill(item, s, first);
        exactly(scale, first);
    }

    /* Asked early, the answer is there when the next step wants it. */
    __device__ __forceinline__ void look_ahead()
    {
        const uint32_t next = count + 1;
        k_ready = barrier_peek(&bars->k_full[next % Shape::stages], next / Shape::stages % 2) &&
                  !gathered;
        v_ready = barrier_peek(&bars->v_full[count % Shape::stages], count / Shape::stages % 2) &&
                  !gathered;
    }

    /* Scores of the first block, if the item before did not bring them. */
    __device__ __forceinline__ void begin()
    {
        const QDescriptor q = q_at();
        const KDescriptor<D> k = k_at(count);
        wait_kv(bars->k_full, count);
        products_begin(group);
        wgmma_fence();
        issue_k(q, k);
        products_end(group);
        wgmma_wait<0>();
        leave_k(count);
    }

    /* The next item's slot if it is there, in all warps of the group alike, and its products may go
     * with the last of @item. */
    __device__ __forceinline__ WorkSlot *next_work(const Item &item, WorkSlots *work,
                                                   uint32_t number)
    {
        if (item.tile.partial != ATTND_NONE)
            return nullptr;
        WorkSlot *next = work_peek(work, number + 1);
        bool fits = next && next->path == path_prefill && prefill_blocks<D>(next->item) > 0 &&
                    !takes_few<D>(next->item);
        return group_any(!fits, group) ? nullptr : next;
    }

    /* PV of the last block; with it QK of the first one of @next, if there is one. */
    __device__ __forceinline__ void end(const WorkSlot *next)
    {
        const uint32_t now = count++;
        const VDescriptor v = v_at(now);
        pack_p<Products, D>(p, s);
        wait_kv(bars->v_full, now);
        if (overlaps && next) {
            q_count++;
            gathered = widens<Policy> || next->item.run->box_rows == 0;
            const QDescriptor q = q_at();
            const KDescriptor<D> k = k_at(count);
            wait_q();
            wait_kv(bars->k_full, count);
            products_begin(group);
            wgmma_fence();
            issue_v(v);
            issue_k(q, k);
            products_end(group);
            wgmma_wait<0>();
        } else {
            wgmma_fence();
            issue_v(v);
            wgmma_wait<0>();
        }
        leave_v(now);
    }

    /* All blocks of @item but for the last products. */
    __device__ __forceinline__ void blocks_of(const Item &item, int32_t blocks, float scale)
    {
        /* Blocks below this one need no mask in any row of the tile. */
        const int32_t free_end =
            Policy::masked(item) ? item.kv_begin : visible_end(item, item.tile.row_begin);
        int32_t first = item.kv_begin + (blocks - 1) * Shape::keys; /* of the block in hand */
        float fade[2];
        Policy::prefill(item, s, first);
        Policy::mask(item, s, first);
        softmax_exact<D>(state, s, scale, first, fade);
        look_ahead();
        wait_kv(bars->v_full, count);
        zero_tail<D>(shared + Shape::v_offset + count % Shape::stages * Shape::v_bytes,
                     item.kv_end - first, 0, Shape::keys, consumer_threads, consumers_sync);
        /* Also the first one without a mask, where a row may see no key before it. */
        while (first > peek_cta(&item.floor) && first >= free_end) {
            first -= Shape::keys;
            step<-1>(item, LoopOf<-1>(item), scale, first, first);
        }
        /* Nor does one that begins here or above. */
        const int32_t free_begin =
            Policy::first_key(item, item.tile.row_begin + item.tile.row_count - 1);
        /* Blocks are done again here, once behind the loops of all ways: those stay small. */
        while (!quick_blocks<0>(item, scale, first, free_begin)) {
            again(item, scale, first);
            leave_k(count);
        }
        while (Policy::windows && first > peek_cta(&item.floor)) {
            first -= Shape::keys;
            step<-1>(item, LoopOf<-1>(item), scale, first, first);
        }
    }

    /* Blocks without a mask, down to that with key @free_begin, in way @way and later ones. @first:
     * of the block in hand. Return: false where step() does. */
    template <int way>
    __device__ __forceinline__ bool quick_blocks(const Item &item, float scale, int32_t &first,
                                                 int32_t free_begin)
    {
        if (Policy::way(item, first - Shape::keys) == way) {
            const LoopOf<way> loop(item);
            /* No block from here down in this loop. A way that changes looks while products run, a
             * block ahead: who raised its end then did it two blocks ahead, before this barrier. */
            int32_t stop = peek_cta(&item.floor);
            while (first > stop && (!Policy::windows || first - Shape::keys >= free_begin)) {
                first -= Shape::keys;
                if (!step<way>(item, loop, scale, first, stop))
                    return false;
                if (!Policy::changes(way))
                    stop = peek_cta(&item.floor);
            }
        }
        if constexpr (way + 1 < Policy::ways)
            return quick_blocks<way + 1>(item, scale, first, free_begin);
        return true;
    }

    /* One item, by both consumer warpgroups. Return: the next item's slot, if it has been begun. */
    __device__ __forceinline__ WorkSlot *compute(const Item &item, WorkSlots *work, uint32_t number)
    {
        const uint32_t first_row = consumer_thread() / 32 * 16 + threadIdx.x % 32 / 4;
        const float scale = Policy::unit(item.run->plan);
        const int32_t blocks = prefill_blocks<D>(item);
        WorkSlot *next = nullptr;

        rows_begin<D, Policy>(item, state, first_row);
        if (!overlaps || !ahead) {
            gathered = widens<Policy> || item.run->box_rows == 0;
            wait_q();
            if (blocks > 0)
                begin();
        }
        const uint32_t q_here = q_stage();
        if (blocks > 0)
            blocks_of(item, blocks, scale);
        if (Shape::leaves_q)
            barrier_arrive_warp(&bars->q_empty[q_here]);
        if (blocks > 0) {
            if (overlaps)
                next = next_work(item, work, number);
            end(next);
        }
        rows_sum(state);
        const uint32_t q = shared + q_here * Shape::q_bytes;
        rows_end<T, D, Policy>(item, state, q, first_row, group, [&] {
            if (overlaps && next) { /* once more, out of turn */
                wgmma_fence();
                issue_k(q_at(), k_at(count));
                wgmma_wait<0>();
            }
        });
        if (overlaps && next)
            leave_k(count);
        else
            q_count++;
        if (!Shape::leaves_q)
            barrier_arrive_warp(&bars->q_empty[q_here]);
        ahead = next != nullptr;
        return next;
    }
};

} // namespace attnd

#endif
