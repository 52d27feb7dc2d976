/*
 * visible.h - which keys a query row sees: the one rule, for the planner and for every worker.
 *
 * A row's keys are one range. A custom mask takes keys out of it and never adds one, so the range
 * bounds what is read whatever else the variant says. Query i of an entry stands at position
 * kv_len - row_count + i, which is before the first key where there are more rows than keys. With
 * levels this is counted from the last one's entry, and what its rows have behind the keys of an
 * earlier level comes to it.
 */
#ifndef ATTND_PERSISTENT_VISIBLE_H
#define ATTND_PERSISTENT_VISIBLE_H

#include "schemas/abi.h"

#ifdef __CUDACC__
#define ATTND_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ATTND_HOST_DEVICE inline
#endif

/* Keys [begin, end): 0 <= begin, end <= kv_len. None if end <= begin; end may be negative then. */
struct attnd_visible {
    int32_t begin, end;
};

#ifndef __CUDACC__ /* the GPU's worker has no chunks, and its loops nothing to ask */
/* Of @keys those in the chunk of a row at @place; none where it stands before the first key. */
static inline struct attnd_visible attnd_visible_chunk(struct attnd_visible keys, int32_t place,
                                                       int32_t chunk)
{
    const int32_t begin = place < 0 ? 0 : place - place % chunk;
    const int64_t end = place < 0 ? 0 : (int64_t)begin + chunk;

    keys.begin = begin < keys.end ? begin : keys.end > 0 ? keys.end : 0;
    keys.end = end < keys.end ? (int32_t)end : keys.end;
    return keys;
}
#endif

/**
 * attnd_visible_range() - the keys that a query row sees
 * @entry:  the row's; behind: keys that the row has on later levels
 * @kv_len: keys of the entry in the run's generation, >= 0
 * @row:    of the batch; of this entry
 *
 * Both ends grow with @row. Nothing overflows: row_count, the rows and kv_len are below 2^31 each.
 */
static ATTND_HOST_DEVICE struct attnd_visible attnd_visible_range(const struct attnd_entry *entry,
                                                                  int32_t kv_len, uint32_t row)
{
    /* One behind the row's own position; negative for rows before the first key. */
    const int32_t own_end =
        kv_len - (int32_t)entry->row_count + (int32_t)(row - entry->row_begin) + 1;
    const int32_t window = (int32_t)entry->window;
    struct attnd_visible keys = {0, kv_len};

    if (entry->causal)
        keys.end = own_end;
#ifndef __CUDACC__
    if (entry->window & ATTND_ENTRY_CHUNK)
        return attnd_visible_chunk(keys, own_end - 1, (int32_t)(entry->window & INT32_MAX));
#endif
    /* A row that stands behind the window of an earlier level sees none of its keys. */
    const int32_t own_place = own_end + (int32_t)entry->behind;
    if (window && own_place > window)
        keys.begin = own_place - window < kv_len ? own_place - window : kv_len;
    return keys;
}

/* 1: rows of the entry may see different keys. */
static ATTND_HOST_DEVICE int attnd_visible_differs(const struct attnd_entry *entry)
{
    return entry->causal || entry->window;
}

#endif
