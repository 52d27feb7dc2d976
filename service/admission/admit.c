/*
 * admit.c - from a slot in a ring to arrays that may be believed.
 *
 * The order is the safety: header bytes out of the arena, once; the header unpacked and its counts
 * held against the plan; room for exactly these counts; each array out of the arena, once; and only
 * then the contents checked, in the copies. The arena is never looked at again, so what the client
 * writes there from now on is the client's affair.
 *
 *   admit_copy.c     ranges of the arena, and the memory for copies
 *   admit_alloc.c    bounded memory for protobuf-c, unknown fields
 *   admit_header.c   the scalars       admit_strides.c  the strides
 *   admit_variant.c  the variant
 *   admit_check.c    the arrays        admit_extent.c   how far a strided block reaches
 *   admit_ids.c      page ids, and their leases
 */
#include "service/admission/admit_internal.h"

#include <string.h>

/* Copies start on cache lines: the vector loops over them like that, and so does the planner. */
static uint64_t padded(uint64_t words)
{
    const uint64_t line = ATTND_CACHE_LINE / sizeof(int32_t);
    return (words + line - 1) / line * line;
}

static uint64_t level_words(const struct attnd_level_view *level)
{
    return 2 * padded((uint64_t)level->entries + 1) + padded(level->entries) + padded(level->pages);
}

/* Copies one array to *@words and moves *@words behind it. */
static int copy_array(const struct attnd_admit_arena *arena, uint64_t offset_bytes, uint64_t count,
                      uint32_t level, int32_t **words, const int32_t **array,
                      struct attnd_fault *fault)
{
    int32_t *copy = *words;

    *words += padded(count);
    *array = copy;
    return attnd_arena_copy(arena, offset_bytes, count * sizeof(int32_t), sizeof(int32_t), level,
                            copy, fault);
}

/* Its page ids are looked at on the way. */
static int copy_level(const struct attnd_admit_arena *arena, const Attnd__Level *from,
                      uint32_t index, int32_t **words, struct attnd_level_view *to,
                      struct attnd_admit_ids *ids, struct attnd_fault *fault)
{
    uint64_t indptrs = (uint64_t)to->entries + 1;
    int code;

    if ((code = copy_array(arena, from->qo_indptr, indptrs, index, words, &to->qo_indptr, fault)) ||
        (code = copy_array(arena, from->kv_indptr, indptrs, index, words, &to->kv_indptr, fault)) ||
        (code = copy_array(arena, from->kv_last_page_len, to->entries, index, words,
                           &to->kv_last_page_len, fault)))
        return code;
    int32_t *pages = *words;
    *words += padded(to->pages);
    to->kv_indices = pages;
    return attnd_arena_copy_ids(arena, from->kv_indices, to->pages, index, pages, ids, fault);
}

int attnd_admit_batch(const void *arena, uint64_t arena_bytes, uint64_t header_offset_bytes,
                      uint32_t header_bytes, const struct attnd_batch_limits *limits,
                      struct attnd_staging *staging, struct attnd_batch_view *batch,
                      struct attnd_fault *fault)
{
    const struct attnd_admit_arena source = {arena, arena_bytes};
    struct attnd_admit_header header;
    uint64_t words_needed = 0;

    memset(batch, 0, sizeof(*batch));
    int code =
        attnd_admit_header_unpack(&source, header_offset_bytes, header_bytes, &header, fault);
    if (!code)
        code = attnd_admit_header_check(header.message, limits, batch, fault);
    if (code)
        return code;

    for (uint32_t l = 0; l < batch->levels; l++)
        words_needed += level_words(&batch->level[l]);
    if (batch->options & ATTND_OPTION_MASK)
        words_needed += padded((uint64_t)batch->level[batch->levels - 1].entries + 1);
    code = attnd_staging_reserve(staging, words_needed, fault);
    if (code)
        return code;

    int32_t *words = staging->words;
    struct attnd_admit_ids ids[ATTND_LEVELS_MAX];
    batch->leased = limits->leased != NULL;
    for (uint32_t l = 0; l < batch->levels && !code; l++) {
        ids[l] = (struct attnd_admit_ids){.max = attnd_admit_id_max(limits->pool_pages),
                                          .held = limits->leased};
        code = copy_level(&source, header.message->level[l], l, &words, &batch->level[l], &ids[l],
                          fault);
        batch->leased &= !ids[l].unleased;
    }
    for (uint32_t l = 0; l < batch->levels && !code; l++)
        code = attnd_admit_level(&batch->level[l], batch->rows, limits, ids[l].outside, fault);
    if (code || !(batch->options & ATTND_OPTION_MASK))
        return code;
    const struct attnd_level_view *last = &batch->level[batch->levels - 1];
    code = copy_array(&source, header.message->mask_indptr, (uint64_t)last->entries + 1,
                      batch->levels - 1, &words, &batch->mask_indptr, fault);
    return code ? code : attnd_admit_mask(batch->mask_indptr, last, limits->page_size, fault);
}

int attnd_admit_advance(const void *arena, uint64_t arena_bytes,
                        const struct attnd_sqe_advance *sqe,
                        const struct attnd_batch_limits *limits, struct attnd_staging *staging,
                        struct attnd_advance_view *advance, struct attnd_fault *fault)
{
    const struct attnd_admit_arena source = {arena, arena_bytes};
    uint64_t entries = sqe->entries, pages = sqe->pages;

    memset(advance, 0, sizeof(*advance));
    if (entries > limits->requests)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_REQUESTS, 0, (int64_t)entries,
                               limits->requests);
    if (pages > limits->pages)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_PAGES, 0, (int64_t)pages,
                               limits->pages);
    uint64_t words = entries + (pages ? entries + 1 + pages : 0);
    int code = attnd_staging_reserve(staging, words, fault);
    if (code)
        return code;
    code = attnd_arena_copy(&source, sqe->arrays_offset_bytes, words * sizeof(int32_t),
                            sizeof(int32_t), 0, staging->words, fault);
    if (code)
        return code;

    advance->entries = (uint32_t)entries;
    advance->pages = (uint32_t)pages;
    advance->kv_len = staging->words;
    if (pages == 0)
        return 0;
    advance->page_indptr = staging->words + entries;
    advance->page_indices = advance->page_indptr + entries + 1;
    return attnd_admit_indptr(advance->page_indptr, advance->entries, advance->pages,
                              ATTND_F_KV_INDPTR, fault);
}
