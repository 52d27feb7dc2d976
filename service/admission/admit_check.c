/*
 * admit_check.c - the arrays of a batch, checked in private memory. Page ids were looked at while
 * they were copied (admit_ids.c); what is left of them is to name the first that is not in the
 * pool.
 */
#include "service/admission/admit_internal.h"

int attnd_admit_indices(const struct attnd_level_view *level, uint32_t pool_pages, uint64_t begin,
                        uint64_t end, struct attnd_fault *fault)
{
    const uint32_t max = attnd_admit_id_max(pool_pages);

    for (uint64_t i = begin; i < end; i++)
        if ((uint32_t)level->kv_indices[i] > max)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_INDICES, i,
                                   level->kv_indices[i], level->kv_indices[i] < 0 ? 0 : max);
    return 0;
}

int attnd_admit_indptr(const struct attnd_admit_step *step, uint64_t begin, uint64_t end,
                       struct attnd_fault *fault)
{
    const int32_t *indptr = step->copy;
    const enum attnd_field field = (enum attnd_field)step->field;
    const uint64_t last = step->count - 1;

    if (begin == 0 && indptr[0] != 0)
        return attnd_fault_set(fault, -ATTND_E_INVALID, field, 0, indptr[0], 0);
    for (uint64_t i = begin ? begin : 1; i < end; i++)
        if (indptr[i] < indptr[i - 1])
            return attnd_fault_set(fault, -ATTND_E_INVALID, field, i, indptr[i], indptr[i - 1]);
    if (end > last && step->total != ATTND_ADMIT_ANY_TOTAL && (uint32_t)indptr[last] != step->total)
        return attnd_fault_set(fault, -ATTND_E_INVALID, field, last, indptr[last], step->total);
    return 0;
}

int attnd_admit_lengths(const struct attnd_level_view *level, uint32_t page_size, uint64_t begin,
                        uint64_t end, struct attnd_fault *fault)
{
    for (uint64_t r = begin; r < end; r++) {
        int64_t pages = (int64_t)level->kv_indptr[r + 1] - level->kv_indptr[r];
        int64_t last = level->kv_last_page_len[r];
        if (pages == 0)
            continue;
        if (last < 1 || last > page_size)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_LAST_PAGE_LEN, r, last,
                                   last < 1 ? 1 : page_size);
        const int64_t kv_len = attnd_level_keys(level, (uint32_t)r, page_size);
        if (kv_len > INT32_MAX)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_LEN, r, kv_len, INT32_MAX);
    }
    return 0;
}

int attnd_admit_mask(const int32_t *mask_indptr, const struct attnd_level_view *level,
                     uint32_t page_size, uint64_t begin, uint64_t end, struct attnd_fault *fault)
{
    for (uint64_t r = begin; r < end; r++) {
        const int64_t keys = attnd_level_keys(level, (uint32_t)r, page_size);
        const int64_t queries = (int64_t)level->qo_indptr[r + 1] - level->qo_indptr[r];
        const int64_t bytes_end = mask_indptr[r] + (queries * keys + 7) / 8; /* below 2^31 both */
        if (mask_indptr[r + 1] < bytes_end)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_MASK_INDPTR, r + 1,
                                   mask_indptr[r + 1], bytes_end);
    }
    return 0;
}
