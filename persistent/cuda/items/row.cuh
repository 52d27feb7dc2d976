/*
 * row.cuh - how the result of a row is stored, by the loop or the merge that ends the row.
 */
#ifndef ATTND_PERSISTENT_CUDA_ITEMS_ROW_CUH
#define ATTND_PERSISTENT_CUDA_ITEMS_ROW_CUH

#include "persistent/cuda/items/item.cuh"
#include "persistent/cuda/machine/element.cuh"

namespace attnd
{

/* Packed row @r of an item: which of its query rows, and of which query head. */
struct PackedRow {
    uint32_t token, head;
};

__device__ __forceinline__ PackedRow packed_row(const Item &item, uint32_t r)
{
    const ActiveRun *run = item.run;
    const Divided at = divided(r, run->plan.group, run->group_reciprocal);
    return {at.quotient, item.kv_head * run->plan.group + at.rest};
}

/* The sum of a row's weights, as it is stored: 0 only where the row sees no key. If all keys it
 * sees are at -inf the weights are 0 / 0; a part of such a row says so by a sum without a maximum,
 * which counts for nothing beside other parts. */
__device__ __forceinline__ float sum_stored(float l, bool sees, bool partial)
{
    return l == 0.0f && sees ? (partial ? 1.0f : NAN) : l;
}

__device__ __forceinline__ float lse_of(const attnd_plan_head &plan, float m, float l)
{
    float lse = l == 0.0f ? -INFINITY : m + __log2f(l);
    return plan.flags & ATTND_BATCH_LSE_LN ? lse * 0.693147180559945f : lse;
}

/* Where a finished row goes. */
__device__ __forceinline__ RowOut row_out(const ActiveRun *run, uint32_t row, uint32_t head,
                                          bool sees)
{
    const attnd_plan_head &plan = run->plan;
    char *values = run->o + 2 * (row * plan.o_pitch.row + head * plan.o_pitch.head);
    float *sum = run->lse;
    if (sum)
        sum += row * plan.lse_pitch.row + head * plan.lse_pitch.head;
    return {values, sum, sees};
}

/* Two dims of a finished row, unnormalised; and its lse, with the first two. */
template <typename T>
__device__ __forceinline__ void row_store(const attnd_plan_head &plan, const RowOut &out,
                                          uint32_t d, float2 value, float m, float l)
{
    const float inverse = l == 0.0f ? 0.0f : __fdividef(1.0f, l);
    T *at = reinterpret_cast<T *>(out.values) + d;
    at[0] = from_float<T>(value.x * inverse);
    at[1] = from_float<T>(value.y * inverse);
    if (d == 0 && out.sum)
        *out.sum = lse_of(plan, m, l);
}

} // namespace attnd

#endif
