/*
 * tile.cuh - what every inner loop shares: which keys a row sees, where a row's result goes, the
 * merge, append. One CTA executes one item; its consumer threads
 * call these functions.
 */
#ifndef ATTND_PERSISTENT_CUDA_TILE_CUH
#define ATTND_PERSISTENT_CUDA_TILE_CUH

#include "persistent/cuda/barrier.cuh"

#include <type_traits>

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
    const ActiveRun *run;  /* a copy beside the consumers */
    const ActiveRun *maps; /* the run itself: its tensor maps */
    Live *live;            /* what is counted */
    attnd_tile tile;
    uint32_t kv_head;
    uint32_t packed_rows;
    int32_t kv_len; /* of the entry: the generation's, clamped to the planned pages */
    int32_t kv_begin, kv_end;
    uint32_t page_first; /* of the entry's list: where the range begins */
    /* Fetched by the taker with the rest, so that nobody waits for memory to find what to load. */
    int32_t pages[32];  /* from page_first on */
    uint32_t parts[32]; /* of the tile's first merge */
    /* By whoever works on it: 0, or ATTND_E_* of what was wrong in it. */
    mutable uint32_t failed;
};

/* Of long runs not all KV heads are in work at once, so that their keys find room in the L2: how
 * many are, if that leaves enough items to balance; the last ones are the short ones. Less from
 * DRAM is less power, and the clock of a large prefill is bound by that. */
__device__ __forceinline__ uint32_t heads_at_once(const ActiveRun *run, uint32_t workers)
{
    uint32_t heads = run->plan.heads_kv;
    while (heads % 2 == 0 && run->plan.tiles * (heads / 2) >= 2 * workers)
        heads /= 2;
    return heads;
}

/* Resolves item @index of the run into @item, whose run and live are set: the tiles in their order
 * for the first @heads KV heads, then for the next. The whole warp, and two trips to memory: the
 * tile, then what it names. */
__device__ __forceinline__ void item_load(Item *item, uint32_t index, uint32_t heads, uint32_t lane)
{
    constexpr uint32_t tile_words = sizeof(attnd_tile) / 4;
    static_assert(tile_words <= 32, "a word a lane");
    const ActiveRun *run = item->run;
    const uint32_t pass_items = run->plan.tiles * heads, pass = index / pass_items;
    const uint32_t inside = index - pass * pass_items, tile = inside / heads;

    if (lane < tile_words)
        reinterpret_cast<uint32_t *>(&item->tile)[lane] =
            __ldcg(reinterpret_cast<const uint32_t *>(run->tiles + tile) + lane);
    __syncwarp();
    const attnd_tile &t = item->tile;
    const attnd_entry &entry = t.of_entry;
    const uint32_t page_first = t.kv_begin / run->page_size;
    const int64_t planned = int64_t(entry.page_count) * run->page_size;
    int32_t page = 0;
    uint32_t part = 0;
    if (page_first + lane < entry.page_count)
        page = __ldcg(run->kv_pages + entry.page_begin + page_first + lane);
    if (lane < t.first_merge.part_count)
        part = __ldcg(run->merge_parts + t.first_merge.part_begin + lane);
    const int64_t len = __ldcg(run->kv_len + t.entry);
    item->pages[lane] = page;
    item->parts[lane] = part;
    if (lane == 0) {
        const int32_t kv_len = int32_t(len < planned ? len : planned);
        item->kv_head = pass * heads + inside - tile * heads;
        item->packed_rows = t.row_count * run->plan.group;
        item->kv_len = kv_len;
        item->kv_begin = int32_t(t.kv_begin);
        item->kv_end = t.kv_end < uint32_t(kv_len) ? int32_t(t.kv_end) : kv_len;
        item->page_first = page_first;
    }
    __syncwarp();
}

/* Keys below this are visible to query row @row (of the entry, from its first). */
__device__ __forceinline__ int32_t visible_end(const Item &item, uint32_t row)
{
    if (!item.tile.of_entry.causal)
        return item.kv_end;
    int32_t end = item.kv_len - int32_t(item.tile.of_entry.row_count) +
                  int32_t(row - item.tile.of_entry.row_begin) + 1;
    return end < item.kv_end ? end : item.kv_end;
}

/* Page id @page, bounded: for one outside the pool page 0 is read and the item fails. */
__device__ __forceinline__ uint32_t page_checked(const Item &item, uint32_t page)
{
    if (page < item.run->pages)
        return page;
    item.failed = ATTND_E_RANGE;
    return 0;
}

/* Address of a token's row in a plane. */
template <typename T>
__device__ __forceinline__ const T *kv_row(const Item &item, const attnd_entry &entry,
                                           const char *base, const attnd_heap_plane &plane,
                                           uint32_t head, int32_t token)
{
    const ActiveRun *run = item.run;
    uint32_t page_index = uint32_t(token) / run->page_size;
    uint32_t page = page_checked(item, uint32_t(run->kv_pages[entry.page_begin + page_index]));
    return reinterpret_cast<const T *>(base) + int64_t(page) * plane.stride_page +
           int64_t(uint32_t(token) % run->page_size) * plane.stride_token +
           int64_t(head) * plane.stride_head;
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
    float lse = l == 0.0f ? -INFINITY : m + log2f(l);
    return plan.flags & ATTND_BATCH_LSE_LN ? lse * 0.693147180559945f : lse;
}

/* Two dims of a finished row, unnormalised; and its lse, with the first two. */
template <typename T>
__device__ __forceinline__ void row_store(const ActiveRun *run, uint32_t row, uint32_t head,
                                          uint32_t d, float low, float high, float m, float l)
{
    const attnd_plan_head &plan = run->plan;
    const float inverse = l == 0.0f ? 0.0f : __fdividef(1.0f, l);
    T *out =
        reinterpret_cast<T *>(run->o) + row * plan.o_stride_row + head * plan.o_stride_head + d;
    out[0] = from_float<T>(low * inverse);
    out[1] = from_float<T>(high * inverse);
    if (run->lse && d == 0)
        run->lse[row * plan.lse_stride_row + head * plan.lse_stride_head] = lse_of(plan, m, l);
}

/* Parts of a merge loaded at once: their latencies overlap. */
constexpr uint32_t merge_batch = 16;

/* All consumers: the rows of a merge for one KV head, two dims a thread. @parts: the merge's. A
 * call: it is large, and kept out of the way of the loops. */
template <typename T, int D>
__device__ __noinline__ void merge_rows(const ActiveRun *run, attnd_merge merge,
                                        const uint32_t *parts, uint32_t kv_head)
{
    __builtin_assume(__isShared(run));
    const uint32_t group = run->plan.group, heads_q = run->plan.heads_q, count = merge.part_count;
    const uint32_t rows = merge.row_count * group;
    const float2 *states = reinterpret_cast<const float2 *>(run->states);
    const float *outputs = run->outputs;
#pragma unroll 1
    for (uint32_t e = consumer_thread(); e < rows * (D / 2); e += consumer_threads) {
        const uint32_t r = e / (D / 2), d = e % (D / 2) * 2;
        const uint32_t token = r / group, head = kv_head * group + r - token * group;
        float top = -INFINITY, l = 0.0f, low = 0.0f, high = 0.0f;
        bool sees = false;
#pragma unroll 1
        for (uint32_t first = 0; first < count; first += merge_batch) {
            float2 state[merge_batch], value[merge_batch];
#pragma unroll
            for (uint32_t i = 0; i < merge_batch; i++) {
                state[i] = make_float2(-INFINITY, 0.0f);
                value[i] = make_float2(0.0f, 0.0f);
                if (first + i < count) {
                    const uint64_t at = uint64_t(parts[first + i] + token) * heads_q + head;
                    state[i] = __ldcg(states + at);
                    value[i] = __ldcg(reinterpret_cast<const float2 *>(outputs + at * D + d));
                }
            }
            float higher = top;
#pragma unroll
            for (uint32_t i = 0; i < merge_batch; i++)
                higher = fmaxf(higher, state[i].x);
            const float base = higher == -INFINITY ? 0.0f : higher, fade = exp2_fast(top - base);
            top = higher;
            l *= fade;
            low *= fade;
            high *= fade;
#pragma unroll
            for (uint32_t i = 0; i < merge_batch; i++) {
                const float weight = exp2_fast(state[i].x - base);
                sees |= state[i].y != 0.0f;
                l = fmaf(weight, state[i].y, l);
                low = fmaf(weight, value[i].x, low);
                high = fmaf(weight, value[i].y, high);
            }
        }
        row_store<T>(run, merge.row_begin + token, head, d, low, high, top,
                     sum_stored(l, sees, false));
    }
}

/* All consumers: arrives at the tile's merges and does those it arrives at last. */
template <typename T, int D>
__device__ __forceinline__ void merge_arrive(const Item &item, uint32_t *shared_last)
{
    const ActiveRun *run = item.run;
#pragma unroll 1
    for (uint32_t m = 0; m < item.tile.merge_count; m++) {
        const uint32_t index = item.tile.merge_begin + m;
        const attnd_merge merge = m == 0 ? item.tile.first_merge : run->merges[index];
        const uint32_t *parts = run->merge_parts + merge.part_begin;
        uint32_t *arrivals = &run->arrivals[index * run->plan.heads_kv + item.kv_head];
        consumers_sync(); /* partials of all threads before the arrival of one */
        if (consumer_thread() == 0) {
            bool last = arrive_gpu(arrivals) + 1 == merge.part_count;
            *shared_last = last;
            if (last) /* a prepared run finds it as it was */
                *arrivals = 0;
        }
        consumers_sync();
        if (!*shared_last)
            continue;
        if (m == 0 && merge.part_count <= 32)
            parts = item.parts;
        merge_rows<T, D>(run, merge, parts, item.kv_head);
    }
}

/* Stores 64 rows of new K and V in their pages. */
template <typename T> __device__ __forceinline__ void append_item(const Item &item, uint32_t index)
{
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
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
            min(int64_t(run->kv_len[low]), planned) - entry.row_count + (row - entry.row_begin);
        if (position < 0 || row < entry.row_begin || row >= entry.row_begin + entry.row_count)
            continue;
        T *k = const_cast<T *>(
            kv_row<T>(item, entry, run->k_base, run->k_plane, head, int32_t(position)));
        T *v = const_cast<T *>(
            kv_row<T>(item, entry, run->v_base, run->v_plane, head, int32_t(position)));
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
