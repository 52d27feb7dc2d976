/*
 * merge_state.cuh - items of a merge of two results. All consumers of a CTA call this.
 */
#ifndef ATTND_PERSISTENT_CUDA_ITEMS_MERGE_STATE_CUH
#define ATTND_PERSISTENT_CUDA_ITEMS_MERGE_STATE_CUH

#include "persistent/cuda/items/item.cuh"
#include "persistent/cuda/machine/element.cuh"
#include "persistent/cuda/state/roles.cuh"

namespace attnd
{

/* Rows that an item of a merge of two results does: ATTND_MERGE_ROWS of persistent/plan/plan.h. */
constexpr uint32_t merge_state_rows = 64;

/* Two results of one row and head become one (client/attnd_merge.h), by one warp. The lanes read
 * what the first of them then writes over. */
template <typename T>
__device__ __forceinline__ void merge_state_row(const ActiveRun *run, uint32_t row, uint32_t head)
{
    const attnd_plan_head &plan = run->plan;
    const uint32_t lane = threadIdx.x % 32;
    const int64_t at = int64_t(row) * plan.o_pitch.row + int64_t(head) * plan.o_pitch.head;
    const int64_t lse_at = int64_t(row) * plan.lse_pitch.row + int64_t(head) * plan.lse_pitch.head;
    const bool natural = plan.flags & ATTND_BATCH_LSE_LN;
    const float said_a = __ldcg(reinterpret_cast<const float *>(run->v_rows) + lse_at);
    const float said_b = __ldcg(run->states + lse_at);
    const float a = natural ? said_a * log2_e : said_a, b = natural ? said_b * log2_e : said_b;
    const bool no_a = a == -INFINITY, no_b = b == -INFINITY;
    const float top = fmaxf(a, b);
    const float weight_a = no_a ? 0.0f : no_b ? 1.0f : exp2f(a - top);
    const float weight_b = no_b ? 0.0f : no_a ? 1.0f : exp2f(b - top);
    const float weights = weight_a + weight_b, inverse = 1.0f / weights;
    const T *const o_a = reinterpret_cast<const T *>(run->q) + at;
    const T *const o_b = reinterpret_cast<const T *>(run->k_rows) + at;
    T *const o = reinterpret_cast<T *>(run->o) + at;
    __syncwarp();
#pragma unroll 1
    for (uint32_t d = lane; d < plan.dim_vo; d += 32) {
        const T x = load_element(o_a + d), y = load_element(o_b + d);
        const float sum = to_float<T>(x) * weight_a + to_float<T>(y) * weight_b;
        o[d] = no_a && no_b ? from_float<T>(0.0f)
               : no_a       ? y
               : no_b       ? x
                            : from_float<T>(sum * inverse);
    }
    if (!run->lse || lane != 0)
        return;
    const float both = (top + log2f(weights)) * (natural ? 0.693147180559945f : 1.0f);
    run->lse[lse_at] = no_a ? said_b : no_b ? said_a : both;
}

/* The rows of merge item @index. All consumers. */
template <typename T>
__device__ __noinline__ void merge_state_item(const Item &item, uint32_t index)
{
    const ActiveRun *run = item.run;
    const uint64_t count = uint64_t(run->plan.rows) * run->plan.heads_q;
    const uint64_t begin = uint64_t(index) * merge_state_rows;
    const uint64_t end = min(begin + merge_state_rows, count);
#pragma unroll 1
    for (uint64_t i = begin + consumer_thread() / 32; i < end; i += consumer_warps)
        merge_state_row<T>(run, uint32_t(i / run->plan.heads_q), uint32_t(i % run->plan.heads_q));
}

} // namespace attnd

#endif
