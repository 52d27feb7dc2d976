/*
 * tile_decode.cuh - few query rows against a long KV range: bound by memory.
 *
 * Every warp walks 16-token blocks of the range on its own (block w, w + warps, ...), with a ring
 * of blocks in shared memory that it fills by cp.async and a softmax state of its own: no barrier
 * until the warps' states are merged at the end. KV is the M operand and the queries are N
 * (m16n8k16), so four query rows waste half an instruction and not fifteen sixteenths of one:
 *   S^T[16 tokens][8 rows] = K[16][D] * Q^T[D][8]      K by ldmatrix, Q^T in registers
 *   O^T[D][8] += V^T[D][16] * P^T[16][8]               V by ldmatrix.trans, P^T by movmatrix
 * A row's statistics are column statistics of S^T: xor 4, 8, 16.
 */
#ifndef ATTND_PERSISTENT_CUDA_TILE_DECODE_CUH
#define ATTND_PERSISTENT_CUDA_TILE_DECODE_CUH

#include "persistent/cuda/barrier.cuh"
#include "persistent/cuda/copy.cuh"
#include "persistent/cuda/tile.cuh"

namespace attnd
{

constexpr int decode_block = 16; /* tokens */

constexpr int decode_warps = consumer_threads / 32;

/* Ring depth: 24 KB a warp (16 for 256 dims). Behind the loop the rings hold O^T of every warp. */
template <int D> constexpr int decode_stages = D == 64 ? 6 : D == 128 ? 3 : 1;
constexpr uint32_t decode_shared_bytes = decode_warps * 24576;

template <typename T> struct Mma;
template <> struct Mma<__half> {
    __device__ static void run(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
template <> struct Mma<__nv_bfloat16> {
    __device__ static void run(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

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

/* Where this lane's token of a block lies: lanes 0-15 in the K plane, 16-31 in the V plane. */
__device__ __forceinline__ int64_t block_row(const Item &item, int32_t block, uint32_t lane)
{
    const ActiveRun *run = item.run;
    const attnd_heap_plane &plane = lane < 16 ? run->k_plane : run->v_plane;
    int32_t token = item.kv_begin + block * decode_block + int32_t(lane % 16);
    if (token >= item.kv_end)
        return 0;
    uint32_t page =
        uint32_t(run->kv_pages[item.entry.page_begin + uint32_t(token) / run->page_size]);
    page = page < run->pages ? page : 0;
    return int64_t(page) * plane.stride_page +
           int64_t(uint32_t(token) % run->page_size) * plane.stride_token +
           int64_t(item.kv_head) * plane.stride_head;
}

/* Starts the copies of one block: K rows, then V rows, 16-byte chunks swizzled by the row. */
template <typename T, int D>
__device__ __forceinline__ void block_load(const Item &item, int32_t block, int64_t row,
                                           uint32_t shared, uint32_t lane)
{
    constexpr int chunks = D / 8, rounds = decode_block * chunks / 32;
    int32_t first = item.kv_begin + block * decode_block;
#pragma unroll
    for (int plane = 0; plane < 2; plane++) {
        const T *base = reinterpret_cast<const T *>(plane ? item.run->v_base : item.run->k_base);
#pragma unroll
        for (int i = 0; i < rounds; i++) {
            uint32_t at = i * 32 + lane, r = at / chunks, c = at % chunks;
            int64_t offset = __shfl_sync(0xffffffffu, row, plane * 16 + r);
            uint32_t to =
                shared + plane * (decode_block * D * 2) + r * (D * 2) + ((c ^ (r & 7)) << 4);
            cp_async16(to, base + offset + c * 8, first + int32_t(r) < item.kv_end ? 16 : 0);
        }
    }
}

/* N: groups of 8 query rows, beginning with packed row row0. The whole CTA. */
template <typename T, int D, int N>
__device__ __forceinline__ void attend_decode(const Item &item, uint32_t row0, char *shared)
{
    constexpr int stages = decode_stages<D>, block_bytes = decode_block * D * 2 * 2;
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    const uint32_t lane = threadIdx.x % 32, warp = consumer_thread() / 32, warps = decode_warps;
    const uint32_t g = lane / 4, c = lane % 4;
    const float scale = plan.sm_scale * 1.44269504088896f;
    uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)) + warp * stages * block_bytes;

    /* Q^T as the B operand: element k = 2c.., n = g of each 16-deep step. */
    uint32_t q[N][D / 16][2];
    int32_t ends[N][2]; /* of this lane's columns 2c, 2c + 1 */
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint32_t r = row0 + n * 8 + g;
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
                uint32_t low = there ? *reinterpret_cast<const uint16_t *>(at) : 0u;
                uint32_t high = there ? *reinterpret_cast<const uint16_t *>(at + 1) : 0u;
                q[n][k][half] = low | high << 16;
            }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t column = row0 + n * 8 + c * 2 + j;
            ends[n][j] = column < item.packed_rows
                             ? visible_end(item, item.tile.row_begin + column / plan.group)
                             : item.kv_begin;
        }
    }

    float o[N][D / 16][4] = {}, m[N][2], l[N][2] = {};
#pragma unroll
    for (int n = 0; n < N; n++)
        m[n][0] = m[n][1] = -INFINITY;

    int32_t blocks = item.kv_end > item.kv_begin
                         ? (item.kv_end - item.kv_begin + decode_block - 1) / decode_block
                         : 0;
    int32_t next = int32_t(warp); /* block to load */
    int64_t row = next < blocks ? block_row(item, next, lane) : 0;
#pragma unroll
    for (int s = 0; s < stages; s++) {
        if (next < blocks)
            block_load<T, D>(item, next, row, ring + s * block_bytes, lane);
        cp_async_commit();
        next += int32_t(warps);
        row = next < blocks ? block_row(item, next, lane) : 0;
    }

    int stage = 0;
    for (int32_t block = int32_t(warp); block < blocks; block += int32_t(warps)) {
        cp_async_wait<stages - 1>();
        __syncwarp();
        uint32_t ks = ring + stage * block_bytes, vs = ks + decode_block * D * 2;
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
        if (next < blocks)
            block_load<T, D>(item, next, row, ring + stage * block_bytes, lane);
        cp_async_commit();
        next += int32_t(warps);
        row = next < blocks ? block_row(item, next, lane) : 0;
        stage = stage + 1 == stages ? 0 : stage + 1;
    }
    cp_async_wait<0>();

    /* The warps' states become one. O^T of each warp goes where its ring was. */
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            for (int step = 4; step < 32; step *= 2)
                l[n][j] += __shfl_xor_sync(0xffffffffu, l[n][j], step);
    consumers_sync();
    constexpr int columns = 8 * N;
    float *outs = reinterpret_cast<float *>(shared);  /* [warps][columns][D + 1] */
    float *states = outs + warps * columns * (D + 1); /* [warps][columns][2] */
    static_assert(decode_warps * columns * (D + 3) * 4 <= decode_shared_bytes, "shared memory");
#pragma unroll
    for (int n = 0; n < N; n++) {
        float *out = outs + (warp * columns + n * 8) * (D + 1);
#pragma unroll
        for (int d = 0; d < D / 16; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[(c * 2 + e % 2) * (D + 1) + d * 16 + g + e / 2 * 8] = o[n][d][e];
        if (g == 0)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float *state = states + (warp * columns + n * 8 + c * 2 + j) * 2;
                state[0] = m[n][j];
                state[1] = l[n][j];
            }
    }
    consumers_sync();
    uint32_t rows = min(uint32_t(columns), item.packed_rows - row0);
    for (uint32_t e = consumer_thread(); e < rows * D; e += consumer_threads) {
        uint32_t column = e / D, d = e % D, r = row0 + column;
        uint32_t token = r / plan.group, head = item.kv_head * plan.group + r % plan.group;
        float top = -INFINITY;
        for (uint32_t w = 0; w < warps; w++)
            top = fmaxf(top, states[(w * columns + column) * 2]);
        float base = top == -INFINITY ? 0.0f : top, total = 0.0f, value = 0.0f;
        for (uint32_t w = 0; w < warps; w++) {
            float weight = exp2_fast(states[(w * columns + column) * 2] - base);
            total += weight * states[(w * columns + column) * 2 + 1];
            value += weight * outs[(w * columns + column) * (D + 1) + d];
        }
        if (item.tile.partial == ATTND_NONE) {
            int64_t to = int64_t(item.tile.row_begin + token);
            T *out = reinterpret_cast<T *>(run->o) + to * plan.o_stride_row +
                     int64_t(head) * plan.o_stride_head;
            out[d] = from_float<T>(total == 0.0f ? 0.0f : value / total);
            if (run->lse && d == 0)
                run->lse[to * plan.lse_stride_row + int64_t(head) * plan.lse_stride_head] =
                    lse_of(plan, base, total);
        } else {
            uint64_t at = uint64_t(item.tile.partial + token) * plan.heads_q + head;
            run->outputs[at * D + d] = value;
            if (d == 0) {
                run->states[at * 2] = top;
                run->states[at * 2 + 1] = total;
            }
        }
    }
    consumers_sync(); /* shared memory is free for the next item */
}

} // namespace attnd

#endif
