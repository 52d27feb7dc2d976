/*
 * decode.cuh - few query rows against a long KV range: bound by memory.
 *
 * Every warp walks 16-token blocks of the range on its own (block w, w + warps, ...), with a ring
 * of blocks that it fills itself (decode_ring.cuh) and a softmax state of its own: no barrier until
 * the warps' states are merged at the end. What it computes with a block is in decode_columns.cuh.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_DECODE_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_DECODE_CUH

#include "persistent/cuda/loops/decode_columns.cuh"
#include "persistent/cuda/loops/naive.cuh"

namespace attnd
{

/* Every so many blocks of its own a warp looks whether the item is still wanted. */
constexpr uint32_t decode_look = 16;

/* With @block computed: says when @few blocks are left, and now and then that a long item gets on.
 * Return: its end, which comes at once where the item has failed. */
template <int32_t few>
__device__ __forceinline__ int32_t decode_end(DecodeRing *ring, const Item &item, int32_t block,
                                              int32_t blocks)
{
    if (consumer_thread() == 0 && block + few >= blocks)
        store_relaxed_cta(&item.ending, 1);
    if (uint32_t(block) / decode_warps % decode_look != decode_look - 1)
        return blocks;
    if (consumer_thread() == 0)
        tally_gpu(&item.live->portions, 1u);
    if (!uniform(peek_cta(&item.failed)) || ring->ahead)
        return blocks;
    return ring_cut(ring, blocks);
}

/* A warp's place in an item, and the state with which its blocks are computed. Scores: Policy, or
 * what it has in its place for items that want less. */
template <typename T, typename KV, int D, typename Policy, int N, typename Scores>
struct DecodeWalk {
    DecodeColumns<T, D, Policy, N> &columns;
    const DecodeQuery<D, Policy, N> &query;
    DecodeRing *ring;
    WorkSlots *work;
    uint32_t number;
    const Item &item;
    uint32_t slots; /* shared memory of the warp's ring */
    int32_t mine;   /* the lane's first token of block 0: at hand where loads are far away */
    uint32_t warp;
    int landing;       /* slots, from the next one on, that loader warps have asked for */
    bool scores, adds; /* of a block: false in a warmup, where other warps execute that */

    /* Values go to registers in front of softmax, and the next ones are asked for behind it: that
     * takes registers that only the simplest loop has. */
    static constexpr bool early = Policy::narrow && N == 1 && !std::is_same_v<Scores, Policy>;

    /* Blocks of an item that are few: twice what its rings have. */
    static constexpr int32_t near_end = 2 * decode_stages<D, Policy> * decode_warps;

    /* @B blocks, from @block on. @end: the item's, in blocks. */
    template <int B> __device__ __forceinline__ void step(int32_t block, int32_t *end)
    {
        constexpr int stages = decode_stages<D, Policy>, groups = decode_groups<D, Policy>;
        const uint32_t lane = threadIdx.x % 32;
        cp_async_wait<groups>();
        __syncwarp();
        float s[B][N][4];
        uint32_t p[B][N][2], at[B];
        int32_t token[B];
#pragma unroll
        for (int b = 0; b < B; b++) {
            const int slot = ring->slot + b;
            at[b] = slots + (slot < stages ? slot : slot - stages) * decode_block_bytes<D, Policy>;
            token[b] = (early ? mine : item.kv_begin + int32_t(lane / 4)) +
                       (block + b * decode_warps) * decode_block;
        }
        columns.template scores<KV>(s, at, lane);
        __syncwarp();
        const bool there = keys<B>();
#pragma unroll
        for (int b = 0; b < B; b++)
            at[b] += decode_block * decode_row_bytes<D, Policy>; /* values */
        if constexpr (early) {
            typename DecodeColumns<T, D, Policy, N>::template Fours<B> four;
            wait_values<B>(there);
            columns.template ask<true>(four, at, columns.fours_place(lane));
            Scores::decode(columns.kept, item, s, token);
            columns.softmax(p, s, token);
            __syncwarp();
            values<B>(there);
            columns.template products_narrow<KV>(p, four);
        } else {
            Scores::decode(columns.kept, item, s, token);
            columns.softmax(p, s, token);
            wait_values<B>(there);
            columns.template products<KV>(p, at, lane);
            __syncwarp();
            values<B>(there);
        }
        *end = decode_end<near_end>(ring, item, block + (B - 1) * decode_warps, *end);
    }

    /* All lanes have read the keys of the blocks: the next ones are asked for. Return: they are. */
    template <int B> __device__ __forceinline__ bool keys()
    {
        const uint32_t lane = threadIdx.x % 32;
        static_assert(B <= 2, "at once");
        if constexpr (B == 1)
            return ring_keys<D, Policy>(ring, work, number, slots, warp, lane);
        else
            return ring_keys_two<D, Policy>(ring, slots, warp, lane);
    }

    /* Waits for the values of the blocks, behind keys(). */
    template <int B> __device__ __forceinline__ void wait_values(bool there)
    {
        constexpr int groups = decode_groups<D, Policy>;
        if (B == 1 || there)
            cp_async_wait<groups>();
        else
            cp_async_wait<groups - 1>();
        __syncwarp();
    }

    /* All lanes have read the values, too: the slots are free. */
    template <int B> __device__ __forceinline__ void values(bool there)
    {
        const uint32_t lane = threadIdx.x % 32;
        if constexpr (B == 1)
            ring_values<D, Policy>(ring, there, slots, warp, lane);
        else
            ring_values_two<D, Policy>(ring, there, work, number, slots, warp, lane);
    }

    /* Blocks of the item in hand. */
    __device__ __forceinline__ int32_t count() const
    {
        const int32_t keys = int32_t(uniform(uint32_t(item.kv_end - item.kv_begin)));
        return keys > 0 ? (keys + decode_block - 1) / decode_block : 0;
    }

    /* All blocks of this warp, behind @gap slots that are only refilled: by the same instructions,
     * because each line of them that is not in a cache yet is waited for. @begin: called when the
     * slots are full; returns false where nothing is to be computed. */
    template <typename Begin> __device__ __forceinline__ void blocks(int gap, const Begin &begin)
    {
        constexpr int stages = decode_stages<D, Policy>;
        const uint32_t lane = threadIdx.x % 32;
        int32_t end = count();
        uint32_t p[1][N][2] = {};
        if (gap == 0)
            cp_async_commit();
#pragma unroll 1
        for (int32_t block = int32_t(warp) - gap * decode_warps;; block += decode_warps) {
            const bool computes = block >= 0;
            if (block == int32_t(warp) && !begin())
                break;
            if (computes && block >= end) {
                if (block == int32_t(warp)) { /* none at all: O^T will lie where Q still comes to */
                    cp_async_wait<0>();
                    __syncwarp();
                }
                break;
            }
            uint32_t at[1] = {slots + ring->slot * decode_block_bytes<D, Policy>};
            const int32_t token[1] = {item.kv_begin + int32_t(lane / 4) + block * decode_block};
            if (computes && scores) {
                float s[1][N][4];
                if (asks_early<D, Policy> && landing) {
                    while (!barrier_test(&early_keys()->landed[stages - landing], 0))
                        ;
                    landing--;
                }
                if (block == int32_t(warp) && gap != stages)
                    cp_async_wait<0>(); /* Q came behind blocks that were asked for before */
                else
                    cp_async_wait<decode_groups<D, Policy>>();
                __syncwarp();
                query.take(columns.q, lane); /* anew: fewer registers than to keep it */
                columns.template scores<KV>(s, at, lane);
                Scores::decode(columns.kept, item, s, token);
                columns.softmax(p, s, token);
                __syncwarp();
            }
            const bool there = keys<1>();
            if (computes && adds) {
                at[0] += decode_block * decode_row_bytes<D, Policy>; /* values */
                wait_values<1>(there);
                columns.template products<KV>(p, at, lane);
                __syncwarp();
            }
            values<1>(there);
            if (computes)
                end = decode_end<near_end>(ring, item, block, end);
        }
    }

    /* The same where blocks are computed two at once. */
    template <typename Begin>
    __device__ __forceinline__ void blocks_narrow(int gap, const Begin &begin)
    {
        constexpr int together = N == 1 ? decode_together<D, Policy> : 1; /* registers */
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
        for (int i = 0; i < gap; i++)
            ring_refill<D, Policy>(ring, work, number, slots, warp, lane);
        if (!begin())
            return;
        query.store(lane);
        query.take(columns.q, lane);
        int32_t end = count(), block = int32_t(warp);
        for (constexpr int32_t last = (together - 1) * decode_warps; block + last < end;
             block += together * decode_warps)
            step<together>(block, &end);
        if (together > 1 && block < end)
            step<1>(block, &end);
    }
};

/* All blocks of a warp, by the loop that is enough for the options of the item. */
template <typename T, typename KV, int D, typename Policy, int N, typename Begin>
__device__ __forceinline__ void
walk_blocks(DecodeColumns<T, D, Policy, N> &columns, const DecodeQuery<D, Policy, N> &query,
            DecodeRing *ring, WorkSlots *work, uint32_t number, const Item &item, uint32_t slots,
            uint32_t warp, int gap, bool early, const Begin &begin)
{
    const int32_t mine = item.kv_begin + int32_t(threadIdx.x % 32 / 4);
    const auto walk = [&](auto scores) {
        DecodeWalk<T, KV, D, Policy, N, decltype(scores)> walk = {
            columns,
            query,
            ring,
            work,
            number,
            item,
            slots,
            mine,
            warp,
            early ? decode_stages<D, Policy> : 0,
            N > 1 || number != warmup || warp == warmup_scores,
            N > 1 || number != warmup || warp == warmup_adds};
        if constexpr (Policy::narrow)
            walk.blocks_narrow(gap, begin);
        else
            walk.blocks(gap, begin);
    };
    if constexpr (Policy::windows && N == 1) {
        using Scaled = typename Policy::Scaled;
        if (Scaled::suffices(columns.kept)) {
            walk(Scaled{});
            return;
        }
    }
    walk(Policy{});
}

/* Keys that a row does not see lie among those that are computed. */
template <typename Policy> __device__ __forceinline__ bool decode_hides(const Item &item)
{
    const attnd_entry &entry = item.tile.of_entry;
    return (entry.causal && item.tile.row_count > 1) || (Policy::windows && entry.window) ||
           Policy::masked(item);
}

/* What became of an item. A result that is not finite may come from a key its row does not see: a
 * product with a zero probability cannot hide a NaN. Nothing is stored then; the caller takes the
 * naive way. */
enum DecodeEnd { decode_stored, decode_spoilt, decode_warmed_up };

/* N: groups of 8 query rows. All consumers. */
template <typename T, int D, typename Policy, int N>
__device__ __forceinline__ DecodeEnd attend_decode(WorkSlots *work, uint32_t number)
{
    constexpr uint32_t count = 8 * N;
    WorkSlot *const slot = &work->slot[number % work_slots];
    const Item &item = slot->item;
    __builtin_assume(__isShared(item.run));
    const uint32_t lane = threadIdx.x % 32, warp = uniform(consumer_thread() / 32);
    const bool warms_up = N == 1 && number == warmup;
    const bool early =
        asks_early<D, Policy> && N == 1 && number == first_item<D> && uniform(work->early);
    /* What a warmup asks for comes to where its results lie: rings may be filled meanwhile. */
    const uint32_t slots = shared_address(cta_buffer()) +
                           (warms_up && asks_early<D, Policy>
                                ? decode_outs_at
                                : warp * decode_stages<D, Policy> * decode_block_bytes<D, Policy>);
    DecodeRing *const kept = decode_ring();
    DecodeRing here = ring_taken(*kept), *const ring = &here;
    const DecodeStates to = decode_states<D, count>(ring, number);

    /* Q in front of the keys: it is asked for in less time than they are, and needed first. All
     * that is not in front of them is done while they are on their way. */
    DecodeQuery<D, Policy, N> query;
    query.at = decode_outs_in_rings
                   ? shared_address(cta_buffer()) + decode_queries_at + warp * (count * D * 2)
                   : shared_address(to.outs + warp * count * decode_out_row<D>);
    int gap = warp == warmup_asks;
    DecodeColumns<T, D, Policy, N> columns;
    if (Policy::narrow || !warms_up || warp == warmup_begins) { /* of fp8: registers */
        if (!(asks_early<D, Policy> && warms_up ? work->launch.plan != nullptr : early))
            query.ask(item, lane);
        gap = ring_begin<D, Policy>(ring, number, warp, early);
        columns.begin(item, lane % 4);
        if (warms_up && warp == warmup_begins)
            return decode_warmed_up;
        if (warms_up)
            ring->ahead = 1; /* and no other item's blocks */
    } else {
        columns.begin_none();
    }
    const auto begin = [&] {
        if (!warms_up || warp == warmup_finds)
            row_find<D, Policy>(&slot->item, warms_up ? lane : consumer_thread());
        if (consumer_thread() == 0) {
            slot->begin_ns = clock_ns();
            slot->last = others_there(item);
        }
        return !warms_up || warp == warmup_scores || warp == warmup_adds;
    };
    if (warms_up && warp == warmup_leaves)
        ;
    else if constexpr (!Policy::narrow)
        walk_blocks<T, T, D, Policy>(columns, query, ring, work, number, item, slots, warp, gap,
                                     early, begin);
    else if (uniform(item.run->plan.kv_dtype) == ATTND_FP8_E4M3)
        walk_blocks<T, E4m3, D, Policy>(columns, query, ring, work, number, item, slots, warp, gap,
                                        early, begin);
    else
        walk_blocks<T, E5m2, D, Policy>(columns, query, ring, work, number, item, slots, warp, gap,
                                        early, begin);
    if (warms_up && warp != warmup_leaves)
        return decode_warmed_up;
    if (lane == 0)
        *kept = here;

    columns.sum();
    if (warms_up) {
        columns.leave(to, item, warp, lane);
        return decode_warmed_up;
    }
    if (decode_hides<Policy>(item) && consumers_any(!columns.finite()))
        return decode_spoilt;
    if (decode_outs_in_rings)
        consumers_sync(); /* nobody computes on a block any more */
    columns.leave(to, item, warp, lane);
    consumers_sync();
    decode_store<T, D, Policy, count>(item, to.outs, to.states);
    return decode_stored;
}

/* What follows the loop of an item: its store, or its merge, by a warp each. */
template <typename T, int D, typename Policy, int N>
__device__ __forceinline__ void warm_up_ends(const Item &item, uint32_t warp)
{
    if (warp == warmup_merges) {
        merge_rows<T, D, Policy>(item.run, item.tile.first_merge, item.parts, item.kv_head);
        return;
    }
    const DecodeStates to = decode_places<D, 8 * N>(warmup);
    decode_store<T, D, Policy, 8 * N>(item, to.outs, to.states);
}

/* A warp is done with the warmup: its ring is empty, and so is what it has asked for. */
__device__ __forceinline__ void warmed_up(WorkSlots *work)
{
    cp_async_wait<0>();
    if (threadIdx.x % 32 == 0)
        *decode_ring() = {};
    work_leave(work, warmup);
}

/* All of a decode item. All consumers. A call, so that neither its loop nor that of prefill is
 * given registers with regard to the other: beside this one inlined, prefill is 3 % slower. */
template <typename T, int D, typename Policy, int N>
__device__ __noinline__ void decode_work(uint32_t number)
{
    WorkSlots *const work = cta_work();
    const Item &item = work->slot[number % work_slots].item;
    consumer_warp_sync();
    const uint32_t warp = uniform(consumer_thread() / 32);
    if (N == 1 && uniform(number) == warmup && warp >= warmup_stores) {
        warm_up_ends<T, D, Policy, N>(item, warp);
        warmed_up(work);
        return;
    }
    const DecodeEnd end = attend_decode<T, D, Policy, N>(work, uniform(number));
    if (end == decode_warmed_up) {
        warmed_up(work);
        return;
    }
    if (end == decode_spoilt)
        attend_naive<T, D, Policy>(item, consumer_thread() / 32, item.packed_rows, decode_warps);
    merge_arrive<T, D, Policy>(item, work->slot[number % work_slots].last);
    work_end<D>(work, number);
}

} // namespace attnd

#endif
