/*
 * admit_check.c - the arrays of a batch, checked in private memory. Page ids were looked at while
 * they were copied (admit_ids.c); what is left of them is to name the first that is not in the
 * pool.
 */
#include "service/admission/admit_internal.h"

/* @outside: one is known to be. */
static int check_indices(const struct attnd_level_view *level, uint32_t pool_pages,
                         uint32_t outside, struct attnd_fault *fault)
{
    if (level->pages == 0)
        return 0;
    if (pool_pages == 0)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_PAGES, 0, level->pages, 0);
    if (!outside)
        return 0;
    const uint32_t max = attnd_admit_id_max(pool_pages);
    uint32_t i = 0;
    while ((uint32_t)level->kv_indices[i] <= max)
        i++;
    return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_INDICES, i, level->kv_indices[i],
                           level->kv_indices[i] < 0 ? 0 : max);
}

int attnd_admit_indptr(const int32_t *indptr, uint32_t entries, uint32_t total,
                       enum attnd_field field, struct attnd_fault *fault)
{
    if (indptr[0] != 0)
        return attnd_fault_set(fault, -ATTND_E_INVALID, field, 0, indptr[0], 0);
    for (uint32_t i = 1; i <= entries; i++)
        if (indptr[i] < indptr[i - 1])
            return attnd_fault_set(fault, -ATTND_E_INVALID, field, i, indptr[i], indptr[i - 1]);
    if ((uint32_t)indptr[entries] != total)
        return attnd_fault_set(fault, -ATTND_E_INVALID, field, entries, indptr[entries], total);
    return 0;
}

static int check_lengths(const struct attnd_level_view *level, uint32_t page_size,
                         struct attnd_fault *fault)
{
    for (uint32_t r = 0; r < level->entries; r++) {
        int64_t pages = (int64_t)level->kv_indptr[r + 1] - level->kv_indptr[r];
        int64_t last = level->kv_last_page_len[r];
        if (pages == 0)
            continue;
        if (last < 1 || last > page_size)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_LAST_PAGE_LEN, r, last,
                                   last < 1 ? 1 : page_size);
        const int64_t kv_len = attnd_level_keys(level, r, page_size);
        if (kv_len > INT32_MAX)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_LEN, r, kv_len, INT32_MAX);
    }
    return 0;
}

int attnd_admit_mask(const int32_t *mask_indptr, const struct attnd_level_view *level,
                     uint32_t page_size, struct attnd_fault *fault)
{
    int code =
        attnd_admit_indptr(mask_indptr, level->entries, (uint32_t)mask_indptr[level->entries],
                           ATTND_F_MASK_INDPTR, fault);

    for (uint32_t r = 0; !code && r < level->entries; r++) {
        const int64_t keys = attnd_level_keys(level, r, page_size);
        const int64_t queries = (int64_t)level->qo_indptr[r + 1] - level->qo_indptr[r];
        const int64_t end = mask_indptr[r] + (queries * keys + 7) / 8; /* both are below 2^31 */
        if (mask_indptr[r + 1] < end)
            code = attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_MASK_INDPTR, r + 1,
                                   mask_indptr[r + 1], end);
    }
    return code;
}

int attnd_admit_level(const struct attnd_level_view *level, uint32_t rows,
                      const struct attnd_batch_limits *limits, uint32_t outside,
                      struct attnd_fault *fault)
{
    int code = attnd_admit_indptr(level->qo_indptr, level->entries, rows, ATTND_F_QO_INDPTR, fault);
    if (!code)
        code = attnd_admit_indptr(level->kv_indptr, level->entries, level->pages, ATTND_F_KV_INDPTR,
                                  fault);
    if (!code)
        code = check_lengths(level, limits->page_size, fault);
    return code ? code : check_indices(level, limits->pool_pages, outside, fault);
}
