/* tables.c - see attnd_tables.h. */
#include "client/attnd_tables.h"

#include "client/internal.h"

#include <string.h>

int attnd_tables_of_dense(const int32_t *page_table, uint32_t stride, const int32_t *rows,
                          const int32_t *cache_seqlens, uint32_t requests, uint32_t page_size,
                          int32_t *kv_indptr, int32_t *kv_indices, uint32_t indices_max,
                          int32_t *kv_last_page_len)
{
    uint32_t used = 0;

    if (page_size == 0 || page_size > INT32_MAX)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_PAGE_SIZE, 0, page_size, INT32_MAX);
    kv_indptr[0] = 0;
    for (uint32_t r = 0; r < requests; r++) {
        const int64_t keys = cache_seqlens[r], most = (int64_t)stride * page_size;
        if (keys < 0 || keys > most)
            return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_KV_LEN, r, keys, keys < 0 ? 0 : most);
        if (rows && rows[r] < 0)
            return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_REQUESTS, r, rows[r], 0);
        const uint32_t pages = (uint32_t)((keys + page_size - 1) / page_size);
        const size_t row = rows ? (size_t)rows[r] : r;
        if (pages > indices_max - used || used + pages > INT32_MAX)
            return attnd_fault_raise(-ATTND_E_NO_SPACE, ATTND_F_KV_INDICES, r,
                                     (int64_t)used + pages, indices_max);
        if (pages)
            memcpy(kv_indices + used, page_table + row * stride, pages * sizeof(*kv_indices));
        used += pages;
        kv_indptr[r + 1] = (int32_t)used;
        kv_last_page_len[r] = pages ? (int32_t)(keys - (int64_t)(pages - 1) * page_size) : 0;
    }
    return (int)used;
}

int attnd_tables_of_ragged(const int32_t *kv_indptr, uint32_t requests, int32_t *kv_indices,
                           uint32_t indices_max, int32_t *kv_last_page_len)
{
    if (kv_indptr[0] != 0)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_KV_INDPTR, 0, kv_indptr[0], 0);
    for (uint32_t r = 0; r < requests; r++) {
        if (kv_indptr[r + 1] < kv_indptr[r])
            return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_KV_INDPTR, r + 1, kv_indptr[r + 1],
                                     kv_indptr[r]);
        if ((uint32_t)kv_indptr[r + 1] > indices_max)
            return attnd_fault_raise(-ATTND_E_NO_SPACE, ATTND_F_KV_INDICES, r, kv_indptr[r + 1],
                                     indices_max);
        kv_last_page_len[r] = 1;
    }
    for (int32_t key = 0; key < kv_indptr[requests]; key++)
        kv_indices[key] = key;
    return kv_indptr[requests];
}
