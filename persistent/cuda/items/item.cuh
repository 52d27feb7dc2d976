/*
 * item.cuh - an item, resolved: which rows and keys it is, where they lie, and which of its keys a
 * row sees. The fetch warp finds all of it, and every loop reads it.
 */
#ifndef ATTND_PERSISTENT_CUDA_ITEMS_ITEM_CUH
#define ATTND_PERSISTENT_CUDA_ITEMS_ITEM_CUH

#include "persistent/cuda/machine/scalar.cuh"
#include "persistent/cuda/state/resident.cuh"
#include "persistent/visible.h"
#include "schemas/engine.h"

namespace attnd
{

/* The dims that the decode loop is compiled for in kernels of D. Rows of 192, and of V of 128, are
 * filled up with zeros on their way to shared memory: it is memory that binds. */
template <int D> constexpr int decode_dim = D == 192 ? 256 : D;
/* Whether there is a decode loop: without Hopper's shared memory a ring has no room for a block of
 * 256 dims. And the packed rows that it takes at most: 16 of 256 dims do not fit in its registers,
 * and without Hopper's shared memory 16 of no dims. */
template <int D> constexpr bool decodes = D <= (portable ? 128 : 256);
template <int D> constexpr uint32_t decode_rows = decode_dim<D> == 256 || portable ? 8 : 16;
constexpr uint32_t decode_rows_max = 16;
/* Whether a kernel can rotate q and store new keys in front of an item of decode. */
template <int D> constexpr bool fuses = decodes<D> && !portable;
static_assert(decode_rows<128> * 128 * 2 <= ATTND_FUSED_ITEM_BYTES &&
                  decode_rows<256> * 256 * 2 <= ATTND_FUSED_ITEM_BYTES,
              "room for rotated rows");

/* Where a packed row of a decode item goes to. */
struct RowOut {
    char *values; /* of o, or of the partial outputs */
    float *sum;   /* its lse, NULL if not wanted; or its partial state */
    bool sees;    /* any key */
};

/* How a product of q and a key becomes a score, where a policy says so (policy.cuh). */
struct Scoring {
    float scale, cap;
    uint32_t options; /* ATTND_OPTION_* of the run */
};

/* An item, resolved. Packed row r is query row row_begin + r / group, head kv_head * group + r %
 * group. */
struct Item : PlannedItem {
    const ActiveRun *run;           /* a copy beside the consumers */
    const ActiveRun *maps;          /* the run itself: its tensor maps */
    Live *live;                     /* what is counted */
    const char *k, *v;              /* planes, at the head */
    Scoring scoring;                /* a policy that has any sets it, and the next */
    float v_scale;                  /* of the head, beside the plan's */
    const char *q[decode_rows_max]; /* packed rows of a decode item; NULL: there is none */
    RowOut out[decode_rows_max]; /* found by the consumers while its first keys are on their way */
    /* 0, or the ATTND_E_* that it fails with. Its loops look at this now and then. Set by the warp
     * that finds something wrong, and by the fetch warp when the run is cancelled. */
    mutable uint32_t failed;
    mutable int32_t ending; /* 1: few of its keys are left */
};

/* Of long runs not all KV heads are in work at once, so that their keys find room in the L2, where
 * all tiles of a head read them: they come in passes of just as many as give each worker an item.
 * The last pass has all heads that are left, enough of them for its short tiles to even out what
 * workers have. Less from DRAM is less power, too, and the clock of a large prefill is bound by
 * that. */
struct HeadPasses {
    uint32_t heads, count; /* of a pass, and how many passes in front of the last one */
};

__device__ __forceinline__ HeadPasses head_passes(const ActiveRun *run, uint32_t workers)
{
    constexpr uint32_t waves_min = 6, last_waves = 2;
    const uint32_t heads = run->plan.heads_kv, tiles = run->plan.tiles;
    if (!run->passes || run->plan.flags & ATTND_PLAN_ONE_PASS ||
        tiles * heads < waves_min * workers)
        return {heads, 0};
    const uint32_t least = (workers + tiles - 1) / tiles;
    const uint32_t last = (last_waves * workers + tiles - 1) / tiles;
    return {least, (heads - last) / least};
}

/* Keys below this are visible to query row @row (of the entry, from its first). */
__device__ __forceinline__ int32_t visible_end(const Item &item, uint32_t row)
{
    if (!item.tile.of_entry.causal)
        return item.kv_end;
    const int32_t end = attnd_visible_range(&item.tile.of_entry, item.kv_len, row).end;
    return end < item.kv_end ? end : item.kv_end;
}

/* Which tile an item is, and for which KV head. */
struct ItemPlace {
    uint32_t tile, head;
};

/* The tiles in their order for the KV heads that are in work at once, then for the next. Where two
 * classes are in work at once, compute-bound tiles for one head after the other: fewer of them read
 * what the others read just now. Whole blocks come first, for all heads, and then parts. */
__device__ __forceinline__ ItemPlace item_place(const ActiveRun *run, uint32_t index,
                                                uint32_t workers)
{
    __builtin_assume(__isShared(run));
    const uint32_t heads_kv = run->plan.heads_kv, computes = run->plan.compute_tiles;
    if (index < computes * heads_kv) {
        const uint32_t whole = min(uint32_t(run->plan.whole_tiles), computes);
        const bool parts = index >= whole * heads_kv;
        const uint32_t first = parts ? whole : 0, tiles = parts ? computes - whole : whole;
        const uint32_t inside = index - first * heads_kv;
        return {first + inside % tiles, inside / tiles};
    }
    const HeadPasses passes = head_passes(run, workers);
    const uint32_t pass_items = run->plan.tiles * passes.heads;
    const uint32_t in_front = passes.count * pass_items;
    if (!passes.count) {
        const Divided at = divided(index, heads_kv, run->heads_reciprocal);
        return {at.quotient, at.rest};
    }
    const uint32_t pass = min(index / pass_items, passes.count);
    const uint32_t inside = index - pass * pass_items, first = pass * passes.heads;
    const uint32_t heads = index < in_front ? passes.heads : heads_kv - first;
    const uint32_t tile = inside / heads;
    return {tile, first + inside - tile * heads};
}

/* Resolving an item takes two trips to memory: the tile, then what it names. This is the first: a
 * word a lane. */
__device__ __forceinline__ uint32_t tile_word(const ActiveRun *run, uint32_t tile, uint32_t lane)
{
    constexpr uint32_t tile_words = sizeof(attnd_tile) / 4;
    static_assert(tile_words <= 32, "a word a lane");
    __builtin_assume(__isShared(run));
    if (lane >= tile_words)
        return 0;
    return __ldcg(reinterpret_cast<const uint32_t *>(run->tiles + tile) + lane);
}

/* What follows from a tile without another trip. One thread. @t: the item's, or a copy of it. */
__device__ __forceinline__ void item_plan(PlannedItem *item, const attnd_tile &t,
                                          const ActiveRun *run, uint32_t head)
{
    __builtin_assume(__isShared(run));
    item->packed_rows = item->rows_end = t.row_count * run->plan.group;
    item->rows_begin = 0;
    item->kv_begin = item->floor = int32_t(t.kv_begin);
    item->page_first = divided(t.kv_begin, run->page_size, run->page_reciprocal).quotient;
    item->arrivals = run->arrivals + t.merge_begin * run->plan.heads_kv + head;
}

/* And of its entry's length @len. */
__device__ __forceinline__ void item_ends(PlannedItem *item, const attnd_tile &t,
                                          const ActiveRun *run, int32_t len)
{
    __builtin_assume(__isShared(run));
    const uint64_t planned = uint64_t(t.of_entry.page_count) * run->page_size;
    const int32_t kv_len = min(len, int32_t(min(planned, uint64_t(0x7fffffff))));
    item->kv_len = kv_len;
    item->kv_end = t.kv_end < uint32_t(kv_len) ? int32_t(t.kv_end) : kv_len;
}

/* Packed row @r of a tile's item for KV head @head: bytes from the beginning of q. */
__device__ __forceinline__ int64_t query_at(const attnd_tile &t, const ActiveRun *run,
                                            uint32_t head, uint32_t r)
{
    __builtin_assume(__isShared(run));
    const uint32_t group = run->plan.group;
    const Divided at = divided(r, group, run->group_reciprocal);
    const uint32_t row = t.row_begin + at.quotient, q_head = head * group + at.rest;
    return (row * run->plan.q_pitch.row + q_head * run->plan.q_pitch.head) * 2;
}

/* And this is the second, of the whole warp, with the tile in @word. Nobody can begin before it is
 * over: @meanwhile is done, with what item_plan() needs, before its loads are waited for. */
template <typename Meanwhile>
__device__ __forceinline__ void item_load(PlannedItem *item, const ActiveRun *run, uint32_t word,
                                          uint32_t generation, uint32_t lane,
                                          const Meanwhile &meanwhile)
{
    __builtin_assume(__isShared(item) && __isShared(run));
    if (lane < sizeof(attnd_tile) / 4)
        reinterpret_cast<uint32_t *>(&item->tile)[lane] = word;
    __syncwarp();
    const attnd_tile &t = item->tile;
    const uint32_t at = divided(t.kv_begin, run->page_size, run->page_reciprocal).quotient + lane;
    int32_t page = 0;
    uint32_t part = 0;
    const int32_t len =
        __ldcg(run->kv_len + uint64_t(generation) * run->plan.entries_max + t.entry);
    if (at < t.of_entry.page_count)
        page = __ldcg(run->kv_pages + t.of_entry.page_begin + at);
    if (lane < t.first_merge.part_count)
        part = __ldcg(run->merge_parts + t.first_merge.part_begin + lane);
    meanwhile();
    item->pages[lane] = page;
    item->parts[lane] = part;
    if (lane == 0)
        item_ends(item, t, run, len);
    __syncwarp();
}

/* The loop for latents goes over an item's keys once for every latent_rows packed rows. A block of
 * as many passes that was cut into as many parts is cut by rows instead: each part computes one
 * pass, over all keys of the block. That is the same work, nothing has to be merged, and what one
 * reads the other finds in the L2. With fixed splits parts stay parts: what they are may not depend
 * on whether a row has others beside them. The whole warp. */
__device__ __forceinline__ void item_cut_by_rows(Item *item, const ActiveRun *run, uint32_t lane)
{
    __builtin_assume(__isShared(item) && __isShared(run));
    attnd_tile &t = item->tile;
    const uint32_t parts = t.first_merge.part_count;
    const bool mine = lane < parts && item->parts[lane] == t.partial;
    const uint32_t part = __ffs(int(__ballot_sync(0xffffffffu, mine))) - 1;
    if (!t.parts_alone || run->plan.levels > 1 || run->plan.options & ATTND_OPTION_FIXED_SPLIT ||
        parts != (item->packed_rows + latent_rows - 1) / latent_rows || part >= parts)
        return;
    __syncwarp();
    if (lane == 0) {
        t.partial = ATTND_NONE;
        t.merge_count = 0;
        item->rows_begin = part * latent_rows;
        item->rows_end = min(item->rows_begin + latent_rows, item->packed_rows);
        item->kv_begin = item->floor = 0; /* nobody asks for pages[] of such an item */
        item->kv_end = item->kv_len;
    }
    __syncwarp();
}

/* Where the rows of an item stand, in a plan with several levels. The whole warp. */
__device__ __forceinline__ void item_placed(Item *item, const ActiveRun *run, uint32_t lane)
{
    __builtin_assume(__isShared(item) && __isShared(run));
    const attnd_plan_head &plan = run->plan;
    if (!(plan.flags & ATTND_PLAN_PLACED))
        return;
    attnd_tile &t = item->tile;
    const int32_t *lengths = run->kv_len + uint64_t(item->generation) * plan.entries_max;
    if (lane == 0) {
        if (t.of_entry.behind)
            t.of_entry.behind = uint32_t(__ldcg(lengths + t.of_entry.behind));
        if (plan.options & ATTND_OPTION_ROPE_APPEND)
            t.before = uint32_t(__ldcg(lengths + plan.entries + t.entry));
        if (t.of_entry.level + 1 < plan.levels) /* a mask is of the last level's keys */
            item->scoring.options &= ~ATTND_OPTION_MASK;
    }
    __syncwarp();
}

/* The item of a window begins where its first row does, or a little in front of it: blocks of keys
 * stay within a page. Another trip for the pages. The whole warp. */
template <int D>
__device__ __forceinline__ void item_skip(Item *item, const ActiveRun *run, uint32_t lane)
{
    constexpr int32_t decode_step = 16, prefill_step = 64; /* tokens of a block, of a box */
    __builtin_assume(__isShared(item) && __isShared(run));
    item_placed(item, run, lane);
    const attnd_tile &t = item->tile;
    if (!t.of_entry.window)
        return;
    const int32_t step = item->packed_rows <= decode_rows<D> ? decode_step : prefill_step;
    const int32_t visible = attnd_visible_range(&t.of_entry, item->kv_len, t.row_begin).begin;
    const int32_t begin = visible / step * step;
    if (begin <= item->kv_begin)
        return;
    const uint32_t first = divided(uint32_t(begin), run->page_size, run->page_reciprocal).quotient;
    __syncwarp();
    if (first + lane < t.of_entry.page_count)
        item->pages[lane] = __ldcg(run->kv_pages + t.of_entry.page_begin + first + lane);
    if (lane == 0) {
        item->kv_begin = item->floor = begin;
        item->page_first = first;
    }
    __syncwarp();
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

} // namespace attnd

#endif
