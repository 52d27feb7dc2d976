/*
 * tile.cuh - what every inner loop shares: which keys a row sees, where a row's result goes, the
 * merge, append. One CTA executes one item; its consumer threads
 * call these functions.
 */
#ifndef ATTND_PERSISTENT_CUDA_TILE_CUH
#define ATTND_PERSISTENT_CUDA_TILE_CUH

#include "persistent/cuda/barrier.cuh"

namespace attnd
{

template <typename T> __device__ __forceinline__ float to_float(T x);
template <> __device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}
template <> __device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ __half from_float(float x)
{
    return __float2half_rn(x);
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float x)
{
    return __float2bfloat16_rn(x);
}

/* 2^x in one instruction: relative error 2^-22, subnormals are zero. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two floats as one register of two elements, the first in the low half. */
template <typename T> struct Pack;
template <> struct Pack<__half> {
    __device__ static uint32_t pair(float low, float high)
    {
        __half2 both = __floats2half2_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&both);
    }
};
template <> struct Pack<__nv_bfloat16> {
    __device__ static uint32_t pair(float low, float high)
    {
        __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&both);
    }
};

/* An item, resolved. Packed row r is query row row_begin + r / group, head kv_head * group + r %
 * group. */
struct Item {
    const ActiveRun *run;
    attnd_tile tile;
    attnd_entry entry;
    uint32_t kv_head;
    uint32_t packed_rows;
    int32_t kv_len; /* of the entry: the generation's, clamped to the planned pages */
    int32_t kv_begin, kv_end;
};

__device__ __forceinline__ void item_load(Item *item, const ActiveRun *run, uint32_t index)
{
    const attnd_plan_head &plan = run->plan;
    item->run = run;
    item->tile = run->tiles[index / plan.heads_kv];
    item->entry = run->entries[item->tile.entry];
    item->kv_head = index % plan.heads_kv;
    item->packed_rows = item->tile.row_count * plan.group;
    int64_t planned = int64_t(item->entry.page_count) * run->page_size;
    int64_t len = run->kv_len[item->tile.entry];
    item->kv_len = int32_t(len < planned ? len : planned);
    item->kv_begin = int32_t(item->tile.kv_begin);
    item->kv_end =
        item->tile.kv_end < uint32_t(item->kv_len) ? int32_t(item->tile.kv_end) : item->kv_len;
}

/* Keys below this are visible to query row @row (of the entry, from its first). */
__device__ __forceinline__ int32_t visible_end(const Item &item, uint32_t row)
{
    if (!item.entry.causal)
        return item.kv_end;
    int32_t end =
        item.kv_len - int32_t(item.entry.row_count) + int32_t(row - item.entry.row_begin) + 1;
    return end < item.kv_end ? end : item.kv_end;
}

/* Address of a token's row in a plane, bounded: a page id outside the pool reads page 0. */
template <typename T>
__device__ __forceinline__ const T *kv_row(const ActiveRun *run, const attnd_entry &entry,
                                           const char *base, const attnd_heap_plane &plane,
                                           uint32_t head, int32_t token)
{
    uint32_t page_index = uint32_t(token) / run->page_size;
    uint32_t page = uint32_t(run->kv_pages[entry.page_begin + page_index]);
    page = page < run->pages ? page : 0;
    return reinterpret_cast<const T *>(base) + int64_t(page) * plane.stride_page +
           int64_t(uint32_t(token) % run->page_size) * plane.stride_token +
           int64_t(head) * plane.stride_head;
}

__device__ __forceinline__ float lse_of(const attnd_plan_head &plan, float m, float l)
{
    float lse = l == 0.0f ? -INFINITY : m + log2f(l);
    return plan.flags & ATTND_BATCH_LSE_LN ? lse * 0.693147180559945f : lse;
}

/* Parts of a merge loaded at once: their latencies overlap. */
constexpr uint32_t merge_batch = 8;

/* All consumers: the rows of a merge for one KV head, four dims a thread. */
template <typename T>
__device__ __forceinline__ void merge_rows(const ActiveRun *run, const attnd_merge &merge,
                                           uint32_t kv_head)
{
    const attnd_plan_head &plan = run->plan;
    const uint32_t dim = plan.dim_vo, quads = dim / 4, rows = merge.row_count * plan.group;
    const uint32_t *parts = run->merge_parts + merge.part_begin;
    for (uint32_t e = consumer_thread(); e < rows * quads; e += consumer_threads) {
        uint32_t r = e / quads, d = e % quads * 4;
        uint32_t token = r / plan.group, head = kv_head * plan.group + r % plan.group;
        float top = -INFINITY, l = 0.0f, o[4] = {};
        for (uint32_t first = 0; first < merge.part_count; first += merge_batch) {
            float2 state[merge_batch];
            float4 value[merge_batch];
#pragma unroll
            for (uint32_t i = 0; i < merge_batch; i++) {
                state[i] = make_float2(-INFINITY, 0.0f);
                value[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (first + i < merge.part_count) {
                    uint64_t at = uint64_t(__ldcg(parts + first + i) + token) * plan.heads_q + head;
                    state[i] = __ldcg(reinterpret_cast<const float2 *>(run->states) + at);
                    value[i] =
                        __ldcg(reinterpret_cast<const float4 *>(run->outputs + at * dim + d));
                }
            }
            float higher = top;
#pragma unroll
            for (uint32_t i = 0; i < merge_batch; i++)
                higher = fmaxf(higher, state[i].x);
            float base = higher == -INFINITY ? 0.0f : higher, fade = exp2_fast(top - base);
            top = higher;
            l *= fade;
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[j] *= fade;
#pragma unroll
            for (uint32_t i = 0; i < merge_batch; i++) {
                float weight = exp2_fast(state[i].x - base);
                l = fmaf(weight, state[i].y, l);
                o[0] = fmaf(weight, value[i].x, o[0]);
                o[1] = fmaf(weight, value[i].y, o[1]);
                o[2] = fmaf(weight, value[i].z, o[2]);
                o[3] = fmaf(weight, value[i].w, o[3]);
            }
        }
        int64_t row = int64_t(merge.row_begin) + token;
        T *out = reinterpret_cast<T *>(run->o) + row * plan.o_stride_row +
                 int64_t(head) * plan.o_stride_head + d;
        float inverse = l == 0.0f ? 0.0f : 1.0f / l;
#pragma unroll
        for (int j = 0; j < 4; j++)
            out[j] = from_float<T>(o[j] * inverse);
        if (run->lse && d == 0)
            run->lse[row * plan.lse_stride_row + int64_t(head) * plan.lse_stride_head] =
                lse_of(plan, top == -INFINITY ? 0.0f : top, l);
    }
}

/* All consumers: arrives at the tile's merges and does those it arrives at last. */
template <typename T>
__device__ __forceinline__ void merge_arrive(const Item &item, uint32_t *shared_last)
{
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
    for (uint32_t m = 0; m < item.tile.merge_count; m++) {
        uint32_t index = item.tile.merge_begin + m;
        const attnd_merge merge = run->merges[index];
        uint32_t *arrivals = &run->arrivals[index * plan.heads_kv + item.kv_head];
        consumers_sync(); /* partials of all threads before the arrival of one */
        if (consumer_thread() == 0)
            *shared_last = arrive_gpu(arrivals) + 1 == merge.part_count;
        consumers_sync();
        if (!*shared_last)
            continue;
        merge_rows<T>(run, merge, item.kv_head);
    }
}

/* Stores 64 rows of new K and V in their pages. */
template <typename T>
__device__ __forceinline__ void append_item(const ActiveRun *run, uint32_t index)
{
    const attnd_plan_head &plan = run->plan;
    uint32_t row_begin = index * 64, row_end = min(row_begin + 64, plan.rows);
    uint32_t vectors = plan.dim_qk / 8, per_row = plan.heads_kv * vectors;
    for (uint32_t e = consumer_thread(); e < (row_end - row_begin) * per_row;
         e += consumer_threads) {
        uint32_t row = row_begin + e / per_row, head = e % per_row / vectors, d = e % vectors * 8;
        uint32_t low = 0, high = plan.entries; /* the last entry that begins at or before row */
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
            min(int64_t(run->kv_len[low]), planned) - entry.row_count + (row - entry.row_begin);
        if (position < 0 || row < entry.row_begin || row >= entry.row_begin + entry.row_count)
            continue;
        T *k = const_cast<T *>(
            kv_row<T>(run, entry, run->k_base, run->k_plane, head, int32_t(position)));
        T *v = const_cast<T *>(
            kv_row<T>(run, entry, run->v_base, run->v_plane, head, int32_t(position)));
        const T *k_in = reinterpret_cast<const T *>(run->k_rows) +
                        int64_t(row) * plan.k_stride_row + int64_t(head) * plan.k_stride_head + d;
        const T *v_in = reinterpret_cast<const T *>(run->v_rows) +
                        int64_t(row) * plan.v_stride_row + int64_t(head) * plan.v_stride_head + d;
#pragma unroll
        for (int i = 0; i < 8; i++) { /* strides need not keep 16-byte alignment */
            k[d + i] = k_in[i];
            v[d + i] = v_in[i];
        }
    }
}

} // namespace attnd

#endif
