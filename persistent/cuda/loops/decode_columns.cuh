/*
 * decode_columns.cuh - what a warp of the decode loop has in registers: its query rows, and what
 * becomes of them with blocks of keys and values.
 *
 * KV is the M operand and the queries are N (m16n8k16), so four query rows waste half an
 * instruction and not fifteen sixteenths of one:
 *   S^T[16 tokens][8 rows] = K[16][D] * Q^T[D][8]      K by ldmatrix, Q^T in registers
 *   O^T[D][8] += V^T[D][16] * P^T[16][8]               V by ldmatrix.trans, P^T by movmatrix
 * A row's statistics are column statistics of S^T: xor 4, 8, 16.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_DECODE_COLUMNS_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_DECODE_COLUMNS_CUH

#include "persistent/cuda/loops/decode_store.cuh"
#include "persistent/cuda/machine/mma.cuh"

namespace attnd
{

/* Q of an item on its way from global memory, as chunks of 16 bytes. */
template <int D, typename Policy, int N> struct DecodeQuery {
    static constexpr int chunks = D / 8, parts = 8 * N * chunks / 32;
    uint32_t at; /* shared memory for it, where this warp's O^T will lie; 2 KB or more for 8 rows */
    uint4 part[Policy::narrow ? parts : 1];

    /* By copies in front of those of the keys; or to registers, where elements change places. */
    __device__ __forceinline__ void ask(const Item &item, uint32_t lane)
    {
#pragma unroll
        for (int i = 0; i < parts; i++) {
            const uint32_t row = (i * 32 + lane) / chunks, chunk = (i * 32 + lane) % chunks;
            const bool in = row < item.packed_rows && Policy::in_qk(item.run->plan, chunk * 8);
            if constexpr (!Policy::narrow) {
                cp_async16(at + row * (D * 2) + ((chunk ^ (row & 7)) << 4),
                           item.q[in ? row : 0] + (in ? chunk * 16 : 0), in ? 16 : 0);
            } else {
                part[i] = {};
                if (in)
                    part[i] = reinterpret_cast<const uint4 *>(item.q[row])[chunk];
            }
        }
    }

    /* Where scores_narrow() has the keys' elements. */
    __device__ __forceinline__ void store(uint32_t lane) const
    {
#pragma unroll
        for (int i = 0; i < parts; i++) {
            const uint32_t row = (i * 32 + lane) / chunks, chunk = (i * 32 + lane) % chunks;
            const uint32_t row_at = at + row * (D * 2), even = chunk & ~1u, inside = chunk % 2 * 8;
            store_shared8(row_at + ((even ^ (row & 7)) << 4) + inside, part[i].x, part[i].z);
            store_shared8(row_at + (((even + 1) ^ (row & 7)) << 4) + inside, part[i].y, part[i].w);
        }
        __syncwarp();
    }

    /* Q^T as the B operand: element k = 2c.., n = g of each 16-deep step. */
    __device__ __forceinline__ void take(uint32_t (&q)[N][D / 16][2], uint32_t lane) const
    {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int k = 0; k < D / 16; k += 2) {
                uint32_t b[4], r = lane % 8, chunk = k * 2 + lane / 8;
                ldmatrix4(b, at + (n * 8 + r) * (D * 2) + ((chunk ^ r) << 4));
                q[n][k][0] = b[0];
                q[n][k][1] = b[1];
                q[n][k + 1][0] = b[2];
                q[n][k + 1][1] = b[3];
            }
        __syncwarp();
    }
};

/* A weight is 2 to this at most: fp16 has room up to 2^16, and sums of weights and values are
 * floats. (Of bf16 so much less room is left for values beyond 2^100.) */
constexpr float decode_lag = 14.0f;

/* A warp's part of an item: its query rows are columns of S^T and O^T. Lane 4g + c has tokens g and
 * g + 8 of a block, and of each group of 8 columns 2c and 2c + 1. @B: blocks at once. */
template <typename T, int D, typename Policy, int N> struct DecodeColumns {
    using Weights = typename Types<T, Policy>::Products;
    uint32_t q[N][D / 16][2];
    float o[N][D / 16][4] = {}, m[N][2], l[N][2] = {};
    int32_t ends[N][2]; /* keys below are visible to columns 2c, 2c + 1 */
    float scale;
    typename Policy::Kept kept;

    __device__ __forceinline__ void begin(const Item &item, uint32_t c)
    {
        scale = Policy::unit(item.run->plan);
        kept = Policy::keep(item);
        Policy::rows(item, 0);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t column = n * 8 + c * 2 + j;
                const uint32_t token =
                    divided(column, item.run->plan.group, item.run->group_reciprocal).quotient;
                ends[n][j] = column < item.packed_rows
                                 ? visible_end(item, item.tile.row_begin + token)
                                 : item.kv_begin;
                m[n][j] = -INFINITY;
            }
    }

    /* The same for a warmup, whose scores nobody wants. */
    __device__ __forceinline__ void begin_none()
    {
        scale = 0.0f;
        kept = {};
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                ends[n][j] = 0;
                m[n][j] = -INFINITY;
            }
    }

    /* Blocks of keys or of values of fp8 on their way to registers, four elements in each. All are
     * asked for before any is wanted. @at: where they lie; @mine: fours_place() of the lane. */
    template <int B> struct Fours {
        uint32_t of[B][D / 32][4];
    };
    __device__ __forceinline__ static uint32_t fours_place(uint32_t lane)
    {
        return lane % 16 * D + ((lane / 16 ^ swizzled<D>(lane % 16)) << 4);
    }
    template <bool transposed, int B>
    __device__ __forceinline__ static void ask(Fours<B> &four, const uint32_t (&at)[B],
                                               uint32_t mine)
    {
#pragma unroll
        for (int k = 0; k < D / 32; k++)
#pragma unroll
            for (int b = 0; b < B; b++) {
                const uint32_t from = (at[b] + mine) ^ (k * 32); /* blocks begin at a row's size */
                if (transposed)
                    ldmatrix4_trans(four.of[b][k], from);
                else
                    ldmatrix4(four.of[b][k], from);
            }
    }

    /* S^T of blocks of keys, which lie at @keys. */
    template <typename KV, int B>
    __device__ __forceinline__ void scores(float (&s)[B][N][4], const uint32_t (&keys)[B],
                                           uint32_t lane) const
    {
        if constexpr (Policy::narrow) {
            scores_narrow<KV>(s, keys, lane);
        } else {
#pragma unroll
            for (int b = 0; b < B; b++)
                scores_wide(s[b], keys[b], lane);
        }
    }

    /* Two sums a score, so that instructions wait less for one another. */
    __device__ __forceinline__ void scores_wide(float (&s)[N][4], uint32_t keys,
                                                uint32_t lane) const
    {
        constexpr int parts = N == 1 ? 2 : 1; /* registers */
        const uint32_t r = lane % 16;
        const uint32_t mine = keys + r * (D * 2) + ((lane / 16 ^ (r & 7)) << 4);
        float part[parts][N][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t a[4];
            ldmatrix4(a, mine ^ (k * 32)); /* blocks begin at a row's size */
#pragma unroll
            for (int n = 0; n < N; n++)
                Mma<T>::run(part[k % parts][n], a, q[n][k][0], q[n][k][1]);
        }
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = parts == 1 ? part[0][n][e] : part[0][n][e] + part[parts - 1][n][e];
    }

    /* The same of fp8. A matrix of 8 rows of 16 bytes is 16 elements of 8 keys, of which a lane has
     * elements 4c to 4c + 3: what an instruction takes as its elements 2c, 2c + 1 and 2c + 8,
     * 2c + 9. Products do not ask for the order, as long as Q has the same. */
    template <typename KV, int B>
    __device__ __forceinline__ void scores_narrow(float (&s)[B][N][4], const uint32_t (&keys)[B],
                                                  uint32_t lane) const
    {
        constexpr int parts = N == 1 ? 2 : 1; /* registers */
        Fours<B> four;
        float part[parts][B][N][4] = {};
        ask<false>(four, keys, fours_place(lane));
#pragma unroll
        for (int k = 0; k < D / 32; k++)
#pragma unroll
            for (int b = 0; b < B; b++) {
                uint32_t a[4];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    Narrow<KV>::template widen<false>(a[0], a[2], four.of[b][k][half * 2]);
                    Narrow<KV>::template widen<false>(a[1], a[3], four.of[b][k][half * 2 + 1]);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        a[i] = from_halves<T>(a[i]);
#pragma unroll
                    for (int n = 0; n < N; n++)
                        Mma<T>::run(part[half % parts][b][n], a, q[n][k * 2 + half][0],
                                    q[n][k * 2 + half][1]);
                }
            }
#pragma unroll
        for (int b = 0; b < B; b++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[b][n][e] =
                        parts == 1 ? part[0][b][n][e] : part[0][b][n][e] + part[parts - 1][b][n][e];
    }

    /* S^T becomes P^T, the B operand of the values. Weights are relative to a score that the column
     * has had, the largest so far or one at most decode_lag below it: lanes ask each other for the
     * maximum only where a score is further above. It is the difference that is looked at: a sum
     * with a large score would be rounded. @token: the lane's first of each block. */
    template <int B>
    __device__ __forceinline__ void softmax(uint32_t (&p)[B][N][2], float (&s)[B][N][4],
                                            const int32_t (&token)[B])
    {
        float top[N][2];
        bool rises = false;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
#pragma unroll
                for (int b = 0; b < B; b++) {
                    float &s0 = s[b][n][j], &s1 = s[b][n][j + 2];
                    s0 = token[b] < ends[n][j] ? s0 * scale : -INFINITY;
                    s1 = token[b] + 8 < ends[n][j] ? s1 * scale : -INFINITY;
                    top[n][j] = b ? fmaxf(top[n][j], fmaxf(s0, s1)) : fmaxf(s0, s1);
                }
                rises |= top[n][j] - m[n][j] > decode_lag;
            }
        if (__any_sync(0xffffffffu, rises))
            rise(top);
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float base = m[n][j] == -INFINITY ? 0.0f : m[n][j];
#pragma unroll
                for (int b = 0; b < B; b++) {
                    s[b][n][j] = exp2_fast(s[b][n][j] - base);
                    s[b][n][j + 2] = exp2_fast(s[b][n][j + 2] - base);
                    l[n][j] += s[b][n][j] + s[b][n][j + 2]; /* this lane's tokens */
                }
            }
#pragma unroll
            for (int b = 0; b < B; b++) {
                p[b][n][0] = movmatrix_trans(Pack<Weights>::pair(s[b][n][0], s[b][n][1]));
                p[b][n][1] = movmatrix_trans(Pack<Weights>::pair(s[b][n][2], s[b][n][3]));
            }
        }
    }

    /* The columns with such a score, and no other: a row's maximum does not depend on the rows
     * beside it. @top: the largest of this lane's scores. */
    __device__ __forceinline__ void rise(const float (&top)[N][2])
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            float fade[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float most = top[n][j];
#pragma unroll
                for (int step = 4; step < 32; step *= 2)
                    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
                most = most - m[n][j] > decode_lag ? most : m[n][j];
                fade[j] = exp2_fast(m[n][j] - (most == -INFINITY ? 0.0f : most));
                m[n][j] = most;
                l[n][j] *= fade[j];
            }
#pragma unroll
            for (int d = 0; d < D / 16; d++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    o[n][d][e] *= fade[e % 2];
        }
    }

    /* O^T += V^T P^T for blocks of values, which lie at @values. */
    template <typename KV, int B>
    __device__ __forceinline__ void products(const uint32_t (&p)[B][N][2],
                                             const uint32_t (&values)[B], uint32_t lane)
    {
        if constexpr (Policy::narrow) {
            Fours<B> fours;
            ask<true>(fours, values, fours_place(lane));
            products_narrow<KV>(p, fours);
        } else {
#pragma unroll
            for (int b = 0; b < B; b++)
                products_wide(p[b], values[b], lane);
        }
    }

    __device__ __forceinline__ void products_wide(const uint32_t (&p)[N][2], uint32_t values,
                                                  uint32_t lane)
    {
        const uint32_t r = lane % 8 + lane / 16 * 8;
        const uint32_t mine = values + r * (D * 2) + ((lane / 8 % 2 ^ (r & 7)) << 4);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            /* V^T: rows are dims, columns tokens; the four 8x8 are (dims, tokens) halves */
            uint32_t a[4];
            ldmatrix4_trans(a, mine ^ (d * 32));
#pragma unroll
            for (int n = 0; n < N; n++)
                Mma<T>::run(o[n][d], a, p[n][0], p[n][1]);
        }
    }

    /* The same of fp8. Transposed in pairs, a matrix leaves a lane dims 2g and 2g + 1 of tokens 2c
     * and 2c + 1: rows g and g + 8 of O^T are those two dims. */
    template <typename KV, int B>
    __device__ __forceinline__ void products_narrow(const uint32_t (&p)[B][N][2],
                                                    const Fours<B> &values)
    {
#pragma unroll
        for (int b = 0; b < B; b++)
#pragma unroll
            for (int d = 0; d < D / 32; d++) {
                uint32_t a[4];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    Narrow<KV>::template widen<true>(a[0], a[1], values.of[b][d][half * 2]);
                    Narrow<KV>::template widen<true>(a[2], a[3], values.of[b][d][half * 2 + 1]);
#pragma unroll
                    for (int n = 0; n < N; n++)
                        Mma<Weights>::run(o[n][d * 2 + half], a, p[b][n][0], p[b][n][1]);
                }
            }
    }

    /* l of all tokens of the warp. */
    __device__ __forceinline__ void sum()
    {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                for (int step = 4; step < 32; step *= 2)
                    l[n][j] += __shfl_xor_sync(0xffffffffu, l[n][j], step);
    }

    __device__ __forceinline__ bool finite() const
    {
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
        return isfinite(probe);
    }

    /* To where decode_store() merges the warps. */
    __device__ __forceinline__ void leave(const DecodeStates &to, const Item &item, uint32_t warp,
                                          uint32_t lane) const
    {
        constexpr int columns = 8 * N, out_row = decode_out_row<D>;
        constexpr int row_step = Policy::narrow ? 2 : 1, half_step = Policy::narrow ? 1 : 8;
        const uint32_t g = lane / 4, c = lane % 4;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint32_t first = n * 8 + c * 2; /* this lane's columns: that and the next */
            float *out = to.outs + (warp * columns + first) * out_row + g * row_step;
            if (first >= item.packed_rows)
                continue;
#pragma unroll
            for (int d = 0; d < D / 16; d++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    out[e % 2 * out_row + d * 16 + e / 2 * half_step] = o[n][d][e];
            if (g < 2)
                to.states[warp * columns + first + g] =
                    g ? make_float2(m[n][1], l[n][1]) : make_float2(m[n][0], l[n][0]);
        }
    }
};

} // namespace attnd

#endif
