/*
 * visible.h - which keys a query row sees: the one rule, for the planner and for every worker.
 *
 * A row's keys are one range. A custom mask takes keys out of it and never adds one, so the range
 * bounds what is read whatever else the variant says. Query i of an entry stands at position
 * kv_len - row_count + i, which is before the first key where there are more rows than keys.
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

/**
 * attnd_visible_range() - the keys that a query row sees
 * @entry:  the row's
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
    if (window && own_end > window)
        keys.begin = own_end - window;
    return keys;
}

/* 1: rows of the entry may see different keys. */
static ATTND_HOST_DEVICE int attnd_visible_differs(const struct attnd_entry *entry)
{
    return entry->causal || entry->window;
}

#endif
