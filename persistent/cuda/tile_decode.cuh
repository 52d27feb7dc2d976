/*
 * tile_decode.cuh - few query rows against a long KV range: bound by memory.
 *
 * Every warp walks 16-token blocks of the range on its own (block w, w + warps, ...), with a ring
 * of blocks in shared memory that it fills by cp.async and a softmax state of its own: no barrier
 * until the warps' states are merged at the end. A ring does not stop at the end of an item: if the
 * next item is there and is decode too, its blocks follow, so that memory stays busy while an item
 * is finished and the next one begins. KV is the M operand and the queries are N
 * (m16n8k16), so four query rows waste half an instruction and not fifteen sixteenths of one:
 *   S^T[16 tokens][8 rows] = K[16][D] * Q^T[D][8]      K by ldmatrix, Q^T in registers
 *   O^T[D][8] += V^T[D][16] * P^T[16][8]               V by ldmatrix.trans, P^T by movmatrix
 * A row's statistics are column statistics of S^T: xor 4, 8, 16.
 */
#ifndef ATTND_PERSISTENT_CUDA_TILE_DECODE_CUH
#define ATTND_PERSISTENT_CUDA_TILE_DECODE_CUH

#include "persistent/cuda/barrier.cuh"
#include "persistent/cuda/copy.cuh"
#include "persistent/cuda/mma.cuh"
#include "persistent/cuda/tile_naive.cuh"
#include "persistent/cuda/work_slot.cuh"

namespace attnd
{

constexpr int decode_block = 16; /* tokens */

constexpr int decode_warps = consumer_threads / 32;
static_assert(first_keys == decode_warps * decode_block, "a block for every warp");

/* Ring depth: 16 KB a warp. Behind the rings: O^T and state of every warp, for the merge. Rows of
 * O^T are padded so that the columns of a quad fall into different banks. */
template <int D> constexpr int decode_stages = D == 64 ? 4 : D == 128 ? 2 : 1;
template <int D> constexpr int decode_out_row = D + 4; /* floats */
constexpr uint32_t decode_ring_bytes = decode_warps * 16384;
template <int D>
constexpr uint32_t decode_shared_bytes = decode_ring_bytes +
                                         decode_warps *decode_rows<D> *(decode_out_row<D> + 2) * 4;

__device__ __forceinline__ void ldmatrix4_trans(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t value)
{
    uint32_t out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(value));
    return out;
}

/* One warp's walk over the blocks of an item: what is to be loaded next. Where that lies is found
 * from what the fetch warp left in the item. */
struct BlockWalk {
    const Item *item;
    int32_t next;     /* block */
    uint32_t page[2]; /* of block `next` and the one after: fetched ahead */
};

/* A block of such an item lies in one page, and its rows one stride after the other. */
__device__ __forceinline__ bool blocks_whole(const Item &item)
{
    const ActiveRun *run = item.run;
    __builtin_assume(__isShared(run));
    return (run->page_size | uint32_t(item.kv_begin)) % decode_block == 0;
}

/* The page of @block, or of this lane's token in it; any where there is none. */
__device__ __forceinline__ uint32_t walk_page(const Item &item, int32_t block, uint32_t lane)
{
    const ActiveRun *run = item.run;
    __builtin_assume(__isShared(run));
    int32_t token = item.kv_begin + block * decode_block;
    if (!blocks_whole(item))
        token += int32_t(lane % decode_block);
    if (token >= item.kv_end)
        return 0;
    const uint32_t index = divided(uint32_t(token), run->page_size, run->page_reciprocal).quotient;
    const uint32_t ahead = index - item.page_first;
    return uint32_t(ahead < 32 ? item.pages[ahead]
                               : run->kv_pages[item.tile.of_entry.page_begin + index]);
}

__device__ __forceinline__ void walk_begin(BlockWalk *walk, const Item &item, int32_t next,
                                           uint32_t lane)
{
    walk->item = &item;
    walk->next = next;
    walk->page[0] = walk_page(item, next, lane);
    walk->page[1] = walk_page(item, next + decode_warps, lane);
}

__device__ __forceinline__ bool walk_ended(const BlockWalk &walk)
{
    return walk.item->kv_begin + walk.next * decode_block >= walk.item->kv_end;
}

/* A block as 16-byte chunks, a row of them swizzled by its number: a lane's place is in every
 * round of copies @decode_step rows further on. */
template <int D> constexpr int decode_step = 256 / D;

/* Starts the copies of one plane of a block. @from: this lane's chunk in its first row; @stride:
 * bytes, of a token; @left: rows that are there, from this lane's first. */
template <int D>
__device__ __forceinline__ void plane_load(uint32_t to, const char *from, int64_t stride,
                                           int32_t left)
{
    constexpr int step = decode_step<D>;
#pragma unroll
    for (int r = 0; r < decode_block; r += step) {
        cp_async16_once((to ^ (r % 8 << 4)) + r * (D * 2), from, r < left ? 16 : 0);
        from += step * stride;
    }
}

/* The same where every row has to be looked for: by lane % 16 which row it is, at @row. */
template <int D>
__device__ __forceinline__ void plane_gather(uint32_t to, const char *row, uint32_t lane,
                                             int32_t left)
{
    constexpr int step = decode_step<D>, chunks = 32 / step;
#pragma unroll 4
    for (int r = 0; r < decode_block; r += step) {
        const uint64_t from = __shfl_sync(0xffffffffu, uint64_t(row), r + lane / chunks);
        cp_async16_once((to ^ (r % 8 << 4)) + r * (D * 2),
                        reinterpret_cast<const char *>(from) + lane % chunks * 16,
                        r < left ? 16 : 0);
    }
}

/* Starts the copies of one block: K rows, then V rows. */
template <int D>
__device__ __forceinline__ void walk_load(BlockWalk *walk, uint32_t shared, uint32_t lane)
{
    constexpr uint32_t chunks = D / 8;
    const Item &item = *walk->item;
    __builtin_assume(__isShared(&item) && __isShared(item.run));
    const ActiveRun *run = item.run;
    const uint32_t row = lane / chunks, chunk = lane % chunks;
    const uint32_t to = shared + row * (D * 2) + ((chunk ^ row) << 4);
    const bool whole = blocks_whole(item);
    int32_t token = item.kv_begin + walk->next * decode_block;
    const int32_t there = item.kv_end - token, left = there - int32_t(row);
    if (!whole) /* of a row that is not there, the last one's address will do */
        token += min(int32_t(lane % decode_block), there - 1);
    const uint32_t page = page_checked(item, walk->page[0]);
    const uint32_t inside = divided(uint32_t(token), run->page_size, run->page_reciprocal).rest;
    const int64_t k_stride = run->k_plane.stride_token * 2,
                  v_stride = run->v_plane.stride_token * 2;
    const char *k = item.k + page * (run->k_plane.stride_page * 2) + inside * k_stride;
    const char *v = item.v + page * (run->v_plane.stride_page * 2) + inside * v_stride;
    walk->next += decode_warps;
    walk->page[0] = walk->page[1];
    walk->page[1] = walk_page(item, walk->next + decode_warps, lane);
    if (whole) {
        plane_load<D>(to, k + row * k_stride + chunk * 16, k_stride, left);
        plane_load<D>(to + decode_block * D * 2, v + row * v_stride + chunk * 16, v_stride, left);
    } else {
        plane_gather<D>(to, k, lane, left);
        plane_gather<D>(to + decode_block * D * 2, v, lane, left);
    }
}

/* A warp's ring, kept from item to item: between items in shared memory, in registers meanwhile. */
struct DecodeRing {
    BlockWalk walk;  /* of the item whose blocks are being loaded; kept: its next block */
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

/* Refills the slot just freed: a block of this item, or of the next one if that is known. */
template <int D>
__device__ __forceinline__ void ring_refill(DecodeRing *ring, WorkSlots *work, uint32_t number,
                                            uint32_t shared, uint32_t warp, uint32_t lane)
{
    if (!ring->ahead && walk_ended(ring->walk)) {
        const WorkSlot *next = work_peek(work, number + 1);
        if (next && next->path == path_decode) {
            walk_begin(&ring->walk, next->item, int32_t(warp), lane);
            ring->ahead = 1;
            ring->ahead_slots = 0;
        }
    }
    if (!walk_ended(ring->walk))
        walk_load<D>(&ring->walk, shared + ring->slot * (decode_block * D * 4), lane);
    cp_async_commit();
    ring->ahead_slots += ring->ahead;
    ring->slot = ring->slot + 1 == decode_stages<D> ? 0 : ring->slot + 1;
}

/* The ring begins work @number: slots in front of its first block are passed over. */
template <int D>
__device__ __forceinline__ void ring_begin(DecodeRing *ring, WorkSlots *work, uint32_t number,
                                           const Item &item, uint32_t shared, uint32_t warp,
                                           uint32_t lane)
{
    int gap = decode_stages<D> - (ring->ahead ? ring->ahead_slots : 0);
    walk_begin(&ring->walk, item, ring->ahead ? ring->walk.next : int32_t(warp), lane);
    ring->ahead = 0;
#pragma unroll 1
    for (int i = 0; i < gap; i++)
        ring_refill<D>(ring, work, number, shared, warp, lane);
}

/* Thread r of the consumers: where packed row r goes. Read behind their next barrier. */
template <int D> __device__ __forceinline__ void rows_find(Item *item)
{
    const uint32_t r = consumer_thread();
    if (r >= item->packed_rows)
        return;
    const ActiveRun *run = item->run;
    __builtin_assume(__isShared(item) && __isShared(run));
    const Divided at = divided(r, run->plan.group, run->group_reciprocal);
    const uint32_t row = item->tile.row_begin + at.quotient;
    const uint32_t head = item->kv_head * run->plan.group + at.rest, partial = item->tile.partial;
    const bool sees = visible_end(*item, row) > item->kv_begin;
    if (partial != ATTND_NONE) {
        const uint64_t place = uint64_t(partial + at.quotient) * run->plan.heads_q + head;
        item->out[r] = {reinterpret_cast<char *>(run->outputs + place * D), run->states + place * 2,
                        sees};
    } else {
        item->out[r] = row_out(run, row, head, sees);
    }
}

/* The warps' states become one: o and lse, or a partial. A warp for 64 dims of a row, a lane for
 * two of them; each makes all weights for itself, which takes less than to hand them round. outs:
 * [warps][columns] rows of O^T, states: [warps][columns] of m and l. All consumers. A call, so that
 * the loop in front of it keeps its registers. */
template <typename T, int D, uint32_t columns>
__device__ __noinline__ void decode_store(const Item &item, const float *outs, const float2 *states)
{
    __builtin_assume(__isShared(&item) && __isShared(item.run));
    __builtin_assume(__isShared(outs) && __isShared(states));
    const uint32_t lane = threadIdx.x % 32;
    const bool partial = uniform(item.tile.partial != ATTND_NONE);
    const uint32_t units = uniform(item.packed_rows * (D / 64));
#pragma unroll 1
    for (uint32_t unit = uniform(consumer_thread() / 32); unit < units; unit += decode_warps) {
        const uint32_t column = unit / (D / 64), d = unit % (D / 64) * 64 + lane * 2;
        float2 state[decode_warps], value[decode_warps], sum = {};
#pragma unroll
        for (uint32_t w = 0; w < decode_warps; w++) {
            state[w] = states[w * columns + column];
            value[w] = *reinterpret_cast<const float2 *>(
                outs + (w * columns + column) * decode_out_row<D> + d);
        }
        const RowOut out = item.out[column];
        float top = state[0].x, l = 0.0f;
#pragma unroll
        for (uint32_t w = 1; w < decode_warps; w++)
            top = fmaxf(top, state[w].x);
        const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
        for (uint32_t w = 0; w < decode_warps; w++) {
            const float weight = exp2_fast(state[w].x - base);
            l = fmaf(weight, state[w].y, l);
            sum.x = fmaf(weight, value[w].x, sum.x);
            sum.y = fmaf(weight, value[w].y, sum.y);
        }
        l = sum_stored(l, out.sees, partial);
        if (!partial) {
            row_store<T>(item.run->plan, out, d, sum, top, l);
            continue;
        }
        reinterpret_cast<float2 *>(out.values)[d / 2] = sum;
        if (d == 0)
            *reinterpret_cast<float2 *>(out.sum) = make_float2(top, l);
    }
}

/* N: groups of 8 query rows. All consumers. Return: false if a result is not finite that may come
 * from a key its row does not see: a product with a zero probability cannot hide a NaN. Nothing is
 * stored then; the caller takes the naive way. */
template <typename T, int D, int N>
__device__ __forceinline__ bool attend_decode(WorkSlots *work, uint32_t number)
{
    constexpr int stages = decode_stages<D>, block_bytes = decode_block * D * 2 * 2;
    WorkSlot *const slot = &work->slot[number % work_slots];
    const Item &item = slot->item;
    __builtin_assume(__isShared(item.run));
    char *const shared = cta_buffer();
    DecodeRing *const kept = decode_ring();
    const uint32_t lane = threadIdx.x % 32, warp = consumer_thread() / 32;
    const uint32_t g = lane / 4, c = lane % 4;
    const float scale = item.run->plan.sm_scale * 1.44269504088896f;
    const uint32_t slots = shared_address(shared) + warp * stages * block_bytes;
    DecodeRing here = *kept, *const ring = &here;

    constexpr int columns = 8 * N, out_row = decode_out_row<D>;
    constexpr bool wide = columns == decode_rows<D>;
    static_assert(columns <= decode_rows<D>, "registers and shared memory");
    if (wide || ring->wide)
        consumers_sync(); /* nobody reads the last item's */
    ring->wide = wide;
    float *outs = reinterpret_cast<float *>(shared + decode_ring_bytes);
    float2 *states = reinterpret_cast<float2 *>(outs + decode_warps * decode_rows<D> * out_row);
    if (!wide) {
        outs += number % 2 * (decode_warps * columns * out_row);
        states += number % 2 * (decode_warps * columns);
    }

    /* Q as chunks of 16 bytes, in front of the keys: it is asked for in less time than they are,
     * and needed first. */
    constexpr int chunks = D / 8, parts = columns * chunks / 32;
    uint4 part[parts];
#pragma unroll
    for (int i = 0; i < parts; i++) {
        const uint32_t row = (i * 32 + lane) / chunks, chunk = (i * 32 + lane) % chunks;
        part[i] = {};
        if (row < item.packed_rows)
            part[i] = reinterpret_cast<const uint4 *>(item.q[row])[chunk];
    }
    ring_begin<D>(ring, work, number, item, slots, warp, lane);

    /* All that is not in front of them is done while they are on their way. */
    int32_t ends[N][2]; /* what this lane's columns 2c, 2c + 1 see */
    rows_find<D>(&slot->item);
    if (consumer_thread() == 0)
        slot->begin_ns = clock_ns();
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t column = n * 8 + c * 2 + j;
            const uint32_t token =
                divided(column, item.run->plan.group, item.run->group_reciprocal).quotient;
            ends[n][j] = column < item.packed_rows ? visible_end(item, item.tile.row_begin + token)
                                                   : item.kv_begin;
        }

    /* Q^T as the B operand: element k = 2c.., n = g of each 16-deep step. By way of shared memory,
     * where this warp's O^T will lie; 2 KB of it or more are there for 8 rows. */
    uint32_t q[N][D / 16][2];
    const uint32_t q_at = shared_address(outs + warp * columns * out_row);
#pragma unroll
    for (int i = 0; i < parts; i++) {
        const uint32_t row = (i * 32 + lane) / chunks, chunk = (i * 32 + lane) % chunks;
        store_shared16(q_at + row * (D * 2) + ((chunk ^ (row & 7)) << 4), part[i]);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int k = 0; k < D / 16; k += 2) {
            uint32_t b[4], r = lane % 8, chunk = k * 2 + lane / 8;
            ldmatrix4(b, q_at + (n * 8 + r) * (D * 2) + ((chunk ^ r) << 4));
            q[n][k][0] = b[0];
            q[n][k][1] = b[1];
            q[n][k + 1][0] = b[2];
            q[n][k + 1][1] = b[3];
        }
    __syncwarp();

    float o[N][D / 16][4] = {}, m[N][2], l[N][2] = {};
#pragma unroll
    for (int n = 0; n < N; n++)
        m[n][0] = m[n][1] = -INFINITY;

    int32_t blocks = item.kv_end > item.kv_begin
                         ? (item.kv_end - item.kv_begin + decode_block - 1) / decode_block
                         : 0;
    for (int32_t block = int32_t(warp); block < blocks; block += decode_warps) {
        cp_async_wait<stages - 1>();
        __syncwarp();
        uint32_t ks = slots + ring->slot * block_bytes, vs = ks + decode_block * D * 2;
        float s[N][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t a[4], r = lane % 16, chunk = k * 2 + lane / 16;
            ldmatrix4(a, ks + r * (D * 2) + ((chunk ^ (r & 7)) << 4));
#pragma unroll
            for (int n = 0; n < N; n++)
                Mma<T>::run(s[n], a, q[n][k][0], q[n][k][1]);
        }
        int32_t token = item.kv_begin + block * decode_block + int32_t(g);
        uint32_t p[N][2];
#pragma unroll
        for (int n = 0; n < N; n++) {
            float fade[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float s0 = token < ends[n][j] ? s[n][j] * scale : -INFINITY;
                float s1 = token + 8 < ends[n][j] ? s[n][j + 2] * scale : -INFINITY;
                float top = fmaxf(s0, s1);
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 4));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 8));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 16));
                top = fmaxf(top, m[n][j]);
                float base = top == -INFINITY ? 0.0f : top;
                fade[j] = exp2_fast(m[n][j] - base);
                m[n][j] = top;
                s[n][j] = exp2_fast(s0 - base);
                s[n][j + 2] = exp2_fast(s1 - base);
                l[n][j] = l[n][j] * fade[j] + s[n][j] + s[n][j + 2]; /* this lane's tokens */
            }
            p[n][0] = movmatrix_trans(Pack<T>::pair(s[n][0], s[n][1]));
            p[n][1] = movmatrix_trans(Pack<T>::pair(s[n][2], s[n][3]));
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                o[n][d][0] *= fade[0];
                o[n][d][1] *= fade[1];
                o[n][d][2] *= fade[0];
                o[n][d][3] *= fade[1];
            }
        }
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            /* V^T: rows are dims, columns tokens; the four 8x8 are (dims, tokens) halves */
            uint32_t a[4], r = lane % 8 + lane / 16 * 8, chunk = d * 2 + lane / 8 % 2;
            ldmatrix4_trans(a, vs + r * (D * 2) + ((chunk ^ (r & 7)) << 4));
#pragma unroll
            for (int n = 0; n < N; n++)
                Mma<T>::run(o[n][d], a, p[n][0], p[n][1]);
        }
        __syncwarp(); /* every lane has read the stage */
        ring_refill<D>(ring, work, number, slots, warp, lane);
    }
    if (lane == 0)
        *kept = here;

#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            for (int step = 4; step < 32; step *= 2)
                l[n][j] += __shfl_xor_sync(0xffffffffu, l[n][j], step);
    if (attnd_visible_differs(&item.tile.of_entry) && item.tile.row_count > 1) {
        float probe = 0.0f;
#pragma unroll
        for (int n = 0; n < N; n++) {
            probe += l[n][0] + l[n][1];
#pragma unroll
            for (int d = 0; d < D / 16; d++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    probe = fmaf(o[n][d][e], 0.0f, probe);
        }
        if (consumers_any(!isfinite(probe)))
            return false;
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        const uint32_t first = n * 8 + c * 2; /* this lane's columns: that and the next */
        float *out = outs + (warp * columns + first) * out_row + g;
        if (first >= item.packed_rows)
            continue;
#pragma unroll
        for (int d = 0; d < D / 16; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[e % 2 * out_row + d * 16 + e / 2 * 8] = o[n][d][e];
        if (g < 2)
            states[warp * columns + first + g] =
                g ? make_float2(m[n][1], l[n][1]) : make_float2(m[n][0], l[n][0]);
    }
    consumers_sync();
    decode_store<T, D, columns>(item, outs, states);
    return true;
}

/* All of a decode item. All consumers. A call, so that neither its loop nor that of prefill is
 * given registers with regard to the other: beside this one inlined, prefill is 3 % slower. */
template <typename T, int D, int N> __device__ __noinline__ void decode_work(uint32_t number)
{
    WorkSlots *const work = cta_work();
    const Item &item = work->slot[number % work_slots].item;
    if (!attend_decode<T, D, N>(work, number))
        attend_naive<T, D>(item, consumer_thread() / 32, item.packed_rows, decode_warps);
    merge_arrive<T, D>(item);
    work_end<D>(work, number);
}

} // namespace attnd

#endif
