/*
 * varied_rows.cuh - what a row of an item is to Varied: where it stands, its slope, what it sees at
 * all. The loops ask for a warp's rows together, which lie in shared memory then, or for one.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_VARIED_ROWS_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_VARIED_ROWS_CUH

#include "persistent/cuda/policy/mask.cuh"
#include "persistent/cuda/policy/policy.cuh"
#include "persistent/position.h"

namespace attnd
{

/* Of a packed row. */
struct VariedRow {
    int32_t begin;    /* the first key of the item that it sees */
    int32_t position; /* of its query */
    float slope;      /* of its head, for exponents of 2 */
    MaskRow mask;     /* with a mask */
};
constexpr uint32_t varied_rows = 16; /* of a warp */

/* This warp's. */
__device__ __forceinline__ VariedRow *varied_row()
{
    __shared__ VariedRow rows[consumer_threads / 32][varied_rows];
    return rows[consumer_thread() / 32];
}

struct VariedRows {
    __device__ static bool has(const Item &item, uint32_t option)
    {
        return item.run->plan.options & option;
    }

    __device__ static bool masked(const Item &item)
    {
        return item.scoring.options & ATTND_OPTION_MASK;
    }

    __device__ static float slope(const ActiveRun *run, uint32_t head)
    {
        if (!(run->plan.options & ATTND_OPTION_ALIBI))
            return 0.0f;
        return attnd_alibi_slope(head, run->plan.heads_q) * log2_e;
    }

    __device__ static int32_t position(const Item &item, uint32_t row)
    {
        const attnd_entry &entry = item.tile.of_entry;
        return item.kv_len - int32_t(entry.row_count) +
               int32_t(row - entry.row_begin + entry.behind);
    }

    __device__ static int32_t first_key(const Item &item, uint32_t row)
    {
        return max(attnd_visible_range(&item.tile.of_entry, item.kv_len, row).begin, item.kv_begin);
    }

    __device__ static int32_t row_begin(const Item &, uint32_t index)
    {
        return varied_row()[index].begin;
    }

    /* Keys on earlier levels than entry @entry's, by which what is stored rotated is further from
     * the first. */
    __device__ static int32_t keys_before(const Item &item, uint32_t entry)
    {
        const attnd_plan_head &plan = item.run->plan;
        if (!(plan.flags & ATTND_PLAN_PLACED) || !(plan.options & ATTND_OPTION_ROPE_APPEND))
            return 0;
        return __ldcg(item.run->kv_len + uint64_t(item.generation) * plan.entries_max +
                      plan.entries + entry);
    }

    struct Row {
        Scoring scoring;
        float slope;
        int32_t position;
        MaskRow mask; /* no bytes: none */
    };
    __device__ static Row row(const Item &item, uint32_t row, uint32_t head)
    {
        return {item.scoring, slope(item.run, head), position(item, row),
                masked(item) ? mask_row(item, row) : MaskRow{nullptr, 0}};
    }
};

} // namespace attnd

#endif
