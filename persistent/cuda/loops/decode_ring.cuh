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

#include "persistent/cuda/loops/decode_walk.cuh"

namespace attnd
{

/* A warp's ring, kept from item to item: between items in shared memory, in registers meanwhile. */
struct DecodeRing {
    BlockWalk walk;  /* of the item whose blocks are being loaded */
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

__device__ __forceinline__ DecodeRing ring_taken(const DecodeRing &kept)
{
    const BlockWalk walk = {uniform(kept.walk.number), int32_t(uniform(uint32_t(kept.walk.left))),
                            uniform(kept.walk.at), uniform(kept.walk.each)};
    return {walk, uniform(kept.ahead), int(uniform(uint32_t(kept.ahead_slots))),
            int(uniform(uint32_t(kept.slot))), uniform(kept.wide)};
}

/* Whether a ring takes the next item's blocks, too: not where the end of an item has its place. */
constexpr bool rings_run_ahead = !portable;

/* The walk is where the next block is to be loaded from: of this item, or of the next one if that
 * is known. Return: there is a block, and its place is found. */
template <int D, typename Policy>
__device__ __forceinline__ bool ring_ready(DecodeRing *ring, WorkSlots *work, uint32_t number,
                                           uint32_t warp, uint32_t lane)
{
    if (rings_run_ahead && !ring->ahead && walk_ended(ring->walk)) {
        uint32_t after = number + 1;
        if constexpr (Policy::narrow) /* as lane_anew(): nothing of this before it is wanted */
            asm volatile("" : "+r"(after));
        const WorkSlot *next = work_peek(work, after);
        if (next && uniform(next->path) == path_decode) {
            walk_begin(&ring->walk, after, warp);
            ring->ahead = 1;
            ring->ahead_slots = 0;
        }
    }
    if (walk_ended(ring->walk))
        return false;
    if (ring->walk.at == walk_places)
        walk_find<D, Policy>(&ring->walk, walk_table(warp), lane);
    return true;
}

/* The slot's keys have been read: those of the next block are asked for. Return: there is one. */
template <int D, typename Policy>
__device__ __forceinline__ bool ring_keys(DecodeRing *ring, WorkSlots *work, uint32_t number,
                                          uint32_t shared, uint32_t warp, uint32_t lane)
{
    const bool there = ring_ready<D, Policy>(ring, work, number, warp, lane);
    if (there)
        walk_copy<D, Policy, false>(ring->walk, walk_table(warp),
                                    shared + ring->slot * decode_block_bytes<D, Policy>, lane);
    cp_async_commit();
    return there;
}

template <int D, typename Policy> __device__ __forceinline__ int ring_after(int slot)
{
    return slot + 1 == decode_stages<D, Policy> ? 0 : slot + 1;
}

/* And the slot's values: it is the next block's, if @there is one. */
template <int D, typename Policy>
__device__ __forceinline__ void ring_values(DecodeRing *ring, bool there, uint32_t shared,
                                            uint32_t warp, uint32_t lane)
{
    if (there) {
        walk_copy<D, Policy, true>(ring->walk, walk_table(warp),
                                   shared + ring->slot * decode_block_bytes<D, Policy>, lane);
        walk_next(&ring->walk);
    }
    cp_async_commit();
    ring->ahead_slots += ring->ahead;
    ring->slot = ring_after<D, Policy>(ring->slot);
}

/* Both, of a slot that was just freed, or of one that is passed over. */
template <int D, typename Policy>
__device__ __forceinline__ void ring_refill(DecodeRing *ring, WorkSlots *work, uint32_t number,
                                            uint32_t shared, uint32_t warp, uint32_t lane)
{
    const bool there = ring_keys<D, Policy>(ring, work, number, shared, warp, lane);
    ring_values<D, Policy>(ring, there, shared, warp, lane);
}

/* The keys of two slots have been read: those of the next two blocks are asked for, if they are of
 * one walk, and found. Return: they are. */
template <int D, typename Policy>
__device__ __forceinline__ bool ring_keys_two(const DecodeRing *ring, uint32_t shared,
                                              uint32_t warp, uint32_t lane)
{
    constexpr int bytes = decode_block_bytes<D, Policy>;
    BlockWalk walk = ring->walk;
    if (walk.left <= decode_stride || walk.at + 2 * walk.each > walk_places)
        return false;
    walk_copy<D, Policy, false>(walk, walk_table(warp), shared + ring->slot * bytes, lane);
    walk_next(&walk);
    walk_copy<D, Policy, false>(walk, walk_table(warp),
                                shared + ring_after<D, Policy>(ring->slot) * bytes, lane);
    cp_async_commit();
    return true;
}

/* And their values, if their keys are @there; else all of both slots. */
template <int D, typename Policy>
__device__ __forceinline__ void ring_values_two(DecodeRing *ring, bool there, WorkSlots *work,
                                                uint32_t number, uint32_t shared, uint32_t warp,
                                                uint32_t lane)
{
    constexpr int bytes = decode_block_bytes<D, Policy>;
    if (!there) {
#pragma unroll 1
        for (int b = 0; b < 2; b++)
            ring_refill<D, Policy>(ring, work, number, shared, warp, lane);
        return;
    }
#pragma unroll
    for (int b = 0; b < 2; b++) {
        walk_copy<D, Policy, true>(ring->walk, walk_table(warp), shared + ring->slot * bytes, lane);
        walk_next(&ring->walk);
        ring->slot = ring_after<D, Policy>(ring->slot);
    }
    cp_async_commit();
    ring->ahead_slots += 2 * ring->ahead;
}

/* Blocks that loader warps have asked for, of a launch's first item: when those of each slot have
 * landed; and when they know what to ask for. */
struct EarlyKeys {
    uint64_t asked, landed[4];
};

__device__ __forceinline__ EarlyKeys *early_keys()
{
    __shared__ EarlyKeys keys;
    return &keys;
}

/* The ring begins work @number. @early: all its slots are on their way. Return: slots in front of
 * its first block, which are passed over, and refilled like one that was computed. */
template <int D, typename Policy>
__device__ __forceinline__ int ring_begin(DecodeRing *ring, uint32_t number, uint32_t warp,
                                          bool early)
{
    const int gap = decode_stages<D, Policy> - (ring->ahead ? ring->ahead_slots : 0);
    if (!ring->ahead)
        walk_begin(&ring->walk, number, warp);
    ring->ahead = 0;
    if (!early)
        return gap;
    ring->walk.left -= decode_stages<D, Policy> * decode_stride;
    return 0;
}

/* A decode item of eight rows, a block of keys for each warp, in one part of one. What is read
 * there are @zeros, of the service's own memory, and so is the tile that is found; what is stored
 * goes to
 * @spoilt, and so does what is merged. One warp. */
template <int D, int values>
__device__ __forceinline__ void warmup_fill(WorkSlots *work, const uint32_t *zeros, char *spoilt)
{
    constexpr uint32_t states_at = D * 4, rows_at = D * 4 + 64;
    static_assert(rows_at + D * 2 <= warmup_bytes, "a partial row, its state, a row");
    WorkSlot *slot = &work->slot[warmup % work_slots];
    Item *item = &slot->item;
    ActiveRun *run =
        reinterpret_cast<ActiveRun *>(work->run_copy[0]); /* that of work 2, or later */
    const uint32_t lane = threadIdx.x % 32;
    if (lane < D * 2 / 128)
        prefetch_line(reinterpret_cast<const char *>(zeros) + lane * 128);
    for (uint32_t i = lane; i < sizeof(*item) / 4; i += 32)
        reinterpret_cast<uint32_t *>(item)[i] = 0;
    for (uint32_t i = lane; i < run_copy_bytes / 4; i += 32)
        reinterpret_cast<uint32_t *>(run)[i] = 0;
    __syncwarp();
    if (lane < 8) {
        item->q[lane] = reinterpret_cast<const char *>(zeros);
        item->out[lane] = {spoilt, reinterpret_cast<float *>(spoilt + states_at), true};
    }
    if (lane != 0)
        return;
    item->run = run;
    item->k = item->v = reinterpret_cast<const char *>(zeros);
    item->kv_end = item->kv_len = first_keys;
    item->packed_rows = 8;
    item->tile.first_merge.row_count = 8 * 64 / values; /* a unit for each warp */
    item->tile.first_merge.part_count = 1;
    slot->path = path_decode;
    run->plan.dim_qk = D;
    run->plan.dim_vo = values;
    run->pages = run->plan.heads_kv = run->plan.group = 1;
    run->group_reciprocal = run->heads_reciprocal = reciprocal_of(1); /* else rows lie elsewhere */
    run->page_size = first_keys;
    run->tiles = reinterpret_cast<const attnd_tile *>(zeros);
    run->kv_len = reinterpret_cast<const int32_t *>(zeros);
    run->outputs = reinterpret_cast<float *>(spoilt);
    run->states = reinterpret_cast<float *>(spoilt + states_at);
    run->o = spoilt + rows_at;
    run->kind = ATTND_RUN_ATTEND;
    run->aligned = 1;
}

/* A warmup of nothing, in front of what the decode loop of eight rows does not take: while that has
 * instructions to wait for, others would come in front of them. One thread. */
__device__ __forceinline__ void warmup_skip(WorkSlots *work)
{
    work->slot[warmup % work_slots].path = path_skip;
}

__device__ __forceinline__ bool warmup_helps(const EngineLaunch &launch)
{
    return !launch.plan || launch.first_rows <= 8;
}

/* A warp's ring in front of a warmup: with room for one block, of one key; or for none. @asked: as
 * many as a ring has are asked for by others, which makes that code less urgent. */
template <int D, typename Policy>
__device__ __forceinline__ DecodeRing warmup_ring(uint32_t warp, bool asked)
{
    DecodeRing ring = {};
    if (first_item<D> != 0) {
        const int asks = warp == warmup_asks && !asked;
        ring.walk = {warmup, asks, walk_places, 1};
        ring.ahead = 1;
        ring.ahead_slots = decode_stages<D, Policy> - asks;
    }
    return ring;
}

/* No more blocks of the item in hand are loaded. Return: where it ends now, behind those that were.
 */
__device__ __forceinline__ int32_t ring_cut(DecodeRing *ring, int32_t blocks)
{
    const int32_t end = min(walk_block(ring->walk), blocks);
    ring->walk.left = 0;
    return end;
}

} // namespace attnd

#endif
