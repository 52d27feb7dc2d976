/*
 * varied_mask.cuh - what rows see for Varied beyond where they end: a window, and bits of a mask.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_VARIED_MASK_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_VARIED_MASK_CUH

#include "persistent/cuda/policy/varied_rows.cuh"

namespace attnd
{

struct VariedMask {
    __device__ static bool shows(const VariedRows::Row &row, int32_t key)
    {
        return !row.mask.bytes || row.mask.sees(key);
    }

    __device__ static bool shows_any(const Item &item, uint32_t row)
    {
        return !VariedRows::masked(item) ||
               mask_row(item, row).any(VariedRows::first_key(item, row), visible_end(item, row));
    }

    template <int count>
    __device__ static void mask(const Item &item, float (&s)[count], int32_t first)
    {
        if (VariedRows::masked(item))
            prefill_mask(item, s, first);
        if (!item.tile.of_entry.window)
            return;
        const int32_t column = first + int32_t(threadIdx.x % 4 * 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t begin = VariedRows::row_begin(item, threadIdx.x % 32 / 4 + half * 8);
#pragma unroll
            for (int j = 0; j < count / 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (column + j * 8 + e < begin)
                        s[j * 4 + half * 2 + e] = -INFINITY;
        }
    }

    /* A lane of a quad has the bits of 32 keys of a block, and hands them to the other three. */
    template <int count>
    __device__ static void prefill_mask(const Item &item, float (&s)[count], int32_t first)
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const MaskRow mask = varied_row()[lane / 4 + half * 8].mask;
            const uint32_t mine = mask.word(first + int32_t(lane % 4 * 32), item.kv_end);
#pragma unroll
            for (int word = 0; word < (count + 15) / 16; word++) {
                const uint32_t bits =
                    __shfl_sync(0xffffffffu, mine, lane / 4 * 4 + word) >> lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < min(4, count / 4 - word * 4); j++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (!(bits >> (j * 8 + e) & 1))
                            s[(word * 4 + j) * 4 + half * 2 + e] = -INFINITY;
            }
        }
    }

    template <int B, int N>
    __device__ static void decode_mask(const Item &item, float (&s)[B][N][4],
                                       const int32_t (&key)[B])
    {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const MaskRow mask = varied_row()[n * 8 + threadIdx.x % 4 * 2 + j].mask;
#pragma unroll
                for (int b = 0; b < B; b++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        if (key[b] + half * 8 < item.kv_end && !mask.sees(key[b] + half * 8))
                            s[b][n][half * 2 + j] = -INFINITY;
            }
    }
};

} // namespace attnd

#endif
