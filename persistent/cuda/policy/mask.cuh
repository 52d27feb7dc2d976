/*
 * mask.cuh - custom masks: a bit for each query row and key, in an engine's memory.
 *
 * The bits of a request's rows follow one another without a gap, so those of a row begin anywhere
 * in a byte. Nothing is read beyond the byte of the last key that is asked for: the mask may end
 * where its memory ends.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_MASK_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_MASK_CUH

#include "persistent/cuda/items/item.cuh"

namespace attnd
{

/* Of a query row: the bit of key j is bit @shift + j of @bytes. */
struct MaskRow {
    const uint8_t *bytes;
    uint32_t shift; /* 0..7 */

    /* 1: the row may see key @key. */
    __device__ __forceinline__ bool sees(int32_t key) const
    {
        const uint32_t at = shift + uint32_t(key);
        return __ldcg(bytes + at / 8) >> at % 8 & 1;
    }

    /* Bits of 32 keys from @key on, the first lowest. Those of keys from @end on are any. */
    __device__ __forceinline__ uint32_t word(int32_t key, int32_t end) const
    {
        const uint32_t at = shift + uint32_t(key), last = (shift + uint32_t(end) - 1) / 8;
        uint64_t bits = 0;
#pragma unroll
        for (uint32_t i = 0; i < 5; i++)
            if (at / 8 + i <= last)
                bits |= uint64_t(__ldcg(bytes + at / 8 + i)) << (8 * i);
        return uint32_t(bits >> at % 8);
    }

    /* Whether the row may see any key of [begin, end). */
    __device__ __forceinline__ bool any(int32_t begin, int32_t end) const
    {
#pragma unroll 1
        for (int32_t key = begin; key < end; key += 32) {
            const uint32_t bits = word(key, end);
            if (end - key >= 32 ? bits : bits & ((1u << (end - key)) - 1))
                return true;
        }
        return false;
    }
};

/* Of query row @row of the item's entry, in a run that has a mask. */
__device__ __forceinline__ MaskRow mask_row(const Item &item, uint32_t row)
{
    const RunTables &tables = item.maps->tables;
    const uint64_t bit =
        uint64_t(row - item.tile.of_entry.row_begin) * uint32_t(max(item.kv_len, 0));
    return {tables.mask + __ldcg(tables.mask_begin + item.tile.entry) + bit / 8, uint32_t(bit % 8)};
}

} // namespace attnd

#endif
