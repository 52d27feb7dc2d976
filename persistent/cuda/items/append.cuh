/*
 * append.cuh - items of new rows, which are stored in their pages. All consumers of a CTA call
 * this.
 */
#ifndef ATTND_PERSISTENT_CUDA_ITEMS_APPEND_CUH
#define ATTND_PERSISTENT_CUDA_ITEMS_APPEND_CUH

#include "persistent/cuda/items/item.cuh"
#include "persistent/cuda/machine/element.cuh"
#include "persistent/cuda/state/roles.cuh"

namespace attnd
{

/* Stores 64 rows of new K and V in their pages. Where K and V are one plane, a thread stores both
 * of a place, V last. All consumers. */
template <typename T, typename KV, typename Policy>
__device__ __forceinline__ void append_rows(const Item &item, uint32_t index)
{
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    Policy::prepare(item);
    uint32_t row_begin = index * 64, row_end = min(row_begin + 64, plan.rows);
    uint32_t vectors = plan.dim_qk / 8, per_row = plan.heads_kv * vectors;
#pragma unroll 1
    for (uint32_t e = consumer_thread(); e < (row_end - row_begin) * per_row;
         e += consumer_threads) {
        uint32_t row = row_begin + e / per_row, head = e % per_row / vectors, d = e % vectors * 8;
        uint32_t low = 0, high = plan.entries; /* the last entry that begins at or before row */
#pragma unroll 1
        while (high - low > 1) {
            uint32_t middle = (low + high) / 2;
            const attnd_entry &entry = run->entries[middle];
            if (entry.level + 1 < plan.levels || entry.row_begin <= row)
                low = middle;
            else
                high = middle;
        }
        const attnd_entry entry = run->entries[low];
        int64_t planned = int64_t(entry.page_count) * run->page_size;
        int64_t position =
            min(int64_t(run->kv_len[uint64_t(item.generation) * plan.entries_max + low]), planned) -
            entry.row_count + (row - entry.row_begin);
        if (position < 0 || row < entry.row_begin || row >= entry.row_begin + entry.row_count)
            continue;
        const int32_t turned = int32_t(position) + Policy::keys_before(item, low);
        KV *k = const_cast<KV *>(
            kv_row<KV>(item, entry, run->k_base, run->k_plane, head, int32_t(position)));
        KV *v = const_cast<KV *>(
            kv_row<KV>(item, entry, run->v_base, run->v_plane, head, int32_t(position)));
        const T *k_in = reinterpret_cast<const T *>(run->k_rows) + int64_t(row) * plan.k_pitch.row +
                        int64_t(head) * plan.k_pitch.head;
        const T *v_in = reinterpret_cast<const T *>(run->v_rows) + int64_t(row) * plan.v_pitch.row +
                        int64_t(head) * plan.v_pitch.head + d;
        if constexpr (Policy::narrow) {
            const float k_by = kv_reciprocal(item.maps->tables, plan, head, false);
            const float v_by = kv_reciprocal(item.maps->tables, plan, head, true);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                k[d + i] = from_float<KV>(Policy::rotated(item, k_in, d + i, turned) * k_by);
                if (Policy::in_vo(plan, d))
                    v[d + i] = from_float<KV>(to_float<T>(v_in[i]) * v_by);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) { /* strides need not keep 16-byte alignment */
                k[d + i] = Policy::stored(item, k_in, d + i, turned);
                if (Policy::in_vo(plan, d))
                    v[d + i] = v_in[i];
            }
        }
    }
}

template <typename T, typename Policy>
__device__ __forceinline__ void append_item(const Item &item, uint32_t index)
{
    if constexpr (!Policy::narrow)
        append_rows<T, T, Policy>(item, index);
    else if (item.run->plan.kv_dtype == ATTND_FP8_E4M3)
        append_rows<T, E4m3, Policy>(item, index);
    else
        append_rows<T, E5m2, Policy>(item, index);
}

} // namespace attnd

#endif
