/*
 * tile_decode.cuh - few query rows against a long KV range: bound by memory.
 *
 * Every warp walks 16-token blocks of the range on its own (block w, w + warps, ...), with a ring
 * of blocks in shared memory that it fills by cp.async and a softmax state of its own: no barrier
 * until the warps' states are merged at the end. A ring does not stop at the end of an item: if the
 * next turn is there and is decode too, its blocks follow, so that memory stays busy while an item
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
#include "persistent/cuda/turn.cuh"

namespace attnd
{

constexpr int decode_block = 16; /* tokens */

constexpr int decode_warps = consumer_threads / 32;

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

/* One warp's walk over the blocks of an item: where the next ones to load lie. Lanes 0-15 resolve
 * tokens of K, 16-31 of V. */
struct BlockWalk {
    const ActiveRun *run;
    const Item *item;
    const char *base;                  /* plane and head */
    const int32_t *page_list;          /* of the entry */
    int64_t stride_page, stride_token; /* bytes */
    uint32_t page_size;
    int32_t begin, end; /* tokens */
    int32_t next;       /* block to load */
    uint32_t page[2];   /* of this lane's token in block `next` and the one after: fetched ahead */
};

/* The page of this lane's token in @block; any where there is none. */
__device__ __forceinline__ uint32_t walk_page(const BlockWalk *walk, int32_t block, uint32_t lane)
{
    int32_t token = walk->begin + block * decode_block + int32_t(lane % 16);
    return token < walk->end ? uint32_t(walk->page_list[uint32_t(token) / walk->page_size]) : 0;
}

/* The same for the first blocks of an item, whose pages the taker has fetched. */
__device__ __forceinline__ uint32_t walk_page_first(const BlockWalk *walk, const Item &item,
                                                    int32_t block, uint32_t lane)
{
    int32_t token = walk->begin + block * decode_block + int32_t(lane % 16);
    uint32_t index = uint32_t(token) / walk->page_size - item.page_first;
    if (token >= walk->end)
        return 0;
    return uint32_t(index < 32 ? item.pages[index] : walk->page_list[item.page_first + index]);
}

__device__ __forceinline__ void walk_begin(BlockWalk *walk, const Item &item, uint32_t warp,
                                           uint32_t lane)
{
    const ActiveRun *run = item.run;
    const attnd_heap_plane &plane = lane < 16 ? run->k_plane : run->v_plane;
    walk->run = run;
    walk->item = &item;
    walk->base =
        (lane < 16 ? run->k_base : run->v_base) + int64_t(item.kv_head) * plane.stride_head * 2;
    walk->page_list = run->kv_pages + item.tile.of_entry.page_begin;
    walk->stride_page = plane.stride_page * 2;
    walk->stride_token = plane.stride_token * 2;
    walk->page_size = run->page_size;
    walk->begin = item.kv_begin;
    walk->end = item.kv_end;
    walk->next = int32_t(warp);
    walk->page[0] = walk_page_first(walk, item, walk->next, lane);
    walk->page[1] = walk_page_first(walk, item, walk->next + decode_warps, lane);
}

__device__ __forceinline__ bool walk_ended(const BlockWalk &walk)
{
    return walk.begin + walk.next * decode_block >= walk.end;
}

/* Starts the copies of one block: K rows, then V rows, 16-byte chunks swizzled by the row. */
template <int D>
__device__ __forceinline__ void walk_load(BlockWalk *walk, uint32_t shared, uint32_t lane)
{
    constexpr int chunks = D / 8, rounds = decode_block * chunks / 32;
    int32_t first = walk->begin + walk->next * decode_block, left = walk->end - first;
    uint32_t inside = uint32_t(first + int32_t(lane % 16)) % walk->page_size;
    uint32_t page = page_checked(*walk->item, walk->page[0]);
    const char *row = walk->base;
    if (int32_t(lane % 16) < left)
        row += int64_t(page) * walk->stride_page + int64_t(inside) * walk->stride_token;
    walk->next += decode_warps;
    walk->page[0] = walk->page[1];
    walk->page[1] = walk_page(walk, walk->next + decode_warps, lane);
#pragma unroll
    for (int plane = 0; plane < 2; plane++)
#pragma unroll
        for (int i = 0; i < rounds; i++) {
            uint32_t at = i * 32 + lane, r = at / chunks, c = at % chunks;
            uint64_t from = __shfl_sync(0xffffffffu, uint64_t(row), plane * 16 + r);
            uint32_t to =
                shared + plane * (decode_block * D * 2) + r * (D * 2) + ((c ^ (r & 7)) << 4);
            cp_async16_once(to, reinterpret_cast<const char *>(from) + c * 16,
                            int32_t(r) < left ? 16 : 0);
        }
}

/* A warp's ring, kept from item to item. */
struct DecodeRing {
    BlockWalk walk;  /* of the item whose blocks are being loaded */
    uint32_t ahead;  /* 1: that is the item after the one being computed */
    int ahead_slots; /* slots filled (or left empty) since it is */
    int slot;        /* the next to be computed, and so the next to be filled */
    uint32_t wide; /* 1: the last item's O^T took all there is, not every second time half of it */
};

/* Refills the slot just freed: a block of this item, or of the next one if that is known. */
template <int D>
__device__ __forceinline__ void ring_refill(DecodeRing *ring, Turns *turns, uint32_t number,
                                            uint32_t shared, uint32_t warp, uint32_t lane)
{
    if (!ring->ahead && walk_ended(ring->walk)) {
        const Turn *next = turn_peek(turns, number + 1);
        if (next && next->path == path_decode) {
            walk_begin(&ring->walk, next->item, warp, lane);
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

/* The ring turns to turn @number: slots in front of its first block are passed over. */
template <int D>
__device__ __forceinline__ void ring_begin(DecodeRing *ring, Turns *turns, uint32_t number,
                                           const Item &item, uint32_t shared, uint32_t warp,
                                           uint32_t lane)
{
    int gap = decode_stages<D> - (ring->ahead ? ring->ahead_slots : 0);
    if (!ring->ahead)
        walk_begin(&ring->walk, item, warp, lane);
    ring->ahead = 0;
#pragma unroll 1
    for (int i = 0; i < gap; i++)
        ring_refill<D>(ring, turns, number, shared, warp, lane);
}

/* True in all consumers if @flag is in any. */
__device__ __forceinline__ bool consumers_any(bool flag)
{
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\n"
                 "barrier.cta.red.or.pred q, 1, %2, p;\nselp.u32 %0, 1, 0, q;\n}\n"
                 : "=r"(any)
                 : "r"(uint32_t(flag)), "n"(consumer_threads)
                 : "memory");
    return any;
}

/* The warps' states become one: o and lse, or a partial. outs: [warps][columns] rows of O^T,
 * states: [warps][columns] of m and l. All consumers. A call, because two loops end in it. */
template <typename T, int D>
__device__ __noinline__ void decode_store(const Item &item, const float *outs, const float2 *states,
                                          uint32_t columns)
{
    __builtin_assume(__isShared(&item) && __isShared(item.run));
    __builtin_assume(__isShared(outs) && __isShared(states));
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    const bool partial = item.tile.partial != ATTND_NONE;
    const uint32_t group = plan.group;
#pragma unroll 1
    for (uint32_t e = consumer_thread(); e < item.packed_rows * (D / 2); e += consumer_threads) {
        const uint32_t column = e / (D / 2), d = e % (D / 2) * 2;
        const uint32_t token = column / group;
        const uint32_t head = item.kv_head * group + column - token * group;
        float2 state[decode_warps], value[decode_warps];
        float top = -INFINITY, l = 0.0f, low = 0.0f, high = 0.0f;
#pragma unroll
        for (uint32_t w = 0; w < decode_warps; w++) {
            state[w] = states[w * columns + column];
            value[w] = *reinterpret_cast<const float2 *>(
                outs + (w * columns + column) * decode_out_row<D> + d);
            top = fmaxf(top, state[w].x);
        }
        const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
        for (uint32_t w = 0; w < decode_warps; w++) {
            float weight = exp2_fast(state[w].x - base);
            l = fmaf(weight, state[w].y, l);
            low = fmaf(weight, value[w].x, low);
            high = fmaf(weight, value[w].y, high);
        }
        const uint32_t row = item.tile.row_begin + token;
        l = sum_stored(l, visible_end(item, row) > item.kv_begin, partial);
        if (partial) {
            const uint64_t at = uint64_t(item.tile.partial + token) * plan.heads_q + head;
            *reinterpret_cast<float2 *>(run->outputs + at * D + d) = make_float2(low, high);
            if (d == 0)
                *reinterpret_cast<float2 *>(run->states + at * 2) = make_float2(top, l);
        } else {
            row_store<T>(run, row, head, d, low, high, top, l);
        }
    }
}

/* N: groups of 8 query rows. All consumers. Return: false if a result is not finite that may come
 * from a key its row does not see: a product with a zero probability cannot hide a NaN. Nothing is
 * stored then; the caller takes the naive way. */
template <typename T, int D, int N>
__device__ __forceinline__ bool attend_decode(const Item &item, uint32_t number, Turns *turns,
                                              DecodeRing *ring, char *shared)
{
    constexpr int stages = decode_stages<D>, block_bytes = decode_block * D * 2 * 2;
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    const uint32_t lane = threadIdx.x % 32, warp = consumer_thread() / 32;
    const uint32_t g = lane / 4, c = lane % 4;
    const float scale = plan.sm_scale * 1.44269504088896f;
    const uint32_t slots = shared_address(shared) + warp * stages * block_bytes;

    /* Q^T as the B operand: element k = 2c.., n = g of each 16-deep step. */
    uint32_t q[N][D / 16][2];
    int32_t ends[N][2]; /* of this lane's columns 2c, 2c + 1 */
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint32_t r = n * 8 + g;
        bool there = r < item.packed_rows;
        uint32_t token = r / plan.group, head = item.kv_head * plan.group + r % plan.group;
        const T *from = reinterpret_cast<const T *>(run->q) +
                        int64_t(item.tile.row_begin + token) * plan.q_stride_row +
                        int64_t(head) * plan.q_stride_head;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const T *at = from + k * 16 + half * 8 + c * 2;
                q[n][k][half] = there ? *reinterpret_cast<const uint32_t *>(at) : 0u;
            }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t column = n * 8 + c * 2 + j;
            ends[n][j] = column < item.packed_rows
                             ? visible_end(item, item.tile.row_begin + column / plan.group)
                             : item.kv_begin;
        }
    }

    /* Behind Q, which is asked for in less time than keys are, and needed first. */
    ring_begin<D>(ring, turns, number, item, slots, warp, lane);

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
        ring_refill<D>(ring, turns, number, slots, warp, lane);
    }

#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            for (int step = 4; step < 32; step *= 2)
                l[n][j] += __shfl_xor_sync(0xffffffffu, l[n][j], step);
    if (item.tile.of_entry.causal && item.tile.row_count > 1) {
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
    decode_store<T, D>(item, outs, states, columns);
    return true;
}

} // namespace attnd

#endif
