/*
 * admit_batch.c - from a slot in a ring to arrays that may be believed.
 *
 * The order is the safety: header bytes out of the arena, once; the header unpacked and its counts
 * held against the plan; room for exactly these counts; each array out of the arena, once; and only
 * then the contents checked, in the copies. The arena is never looked at again, so what the client
 * writes there from now on is the client's affair.
 *
 * A batch can be large, and its admission in parts: attnd_admit_batch_begin() makes a list of what
 * there is to do, and admit_go.c does some of it at a time.
 *
 *   admit_go.c       a part of the list
 *   admit_copy.c     ranges of the arena, and the memory for copies
 *   admit_header.c   the scalars       admit_strides.c  the strides
 *   admit_variant.c  the variant
 *   admit_check.c    the arrays        admit_extent.c   how far a strided block reaches
 *   admit_ids.c      page ids, and their leases
 */
#include "service/admission/admit_internal.h"

#include <assert.h>
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

/* ---- what there is to do, in the order in which faults are found ---- */

static struct attnd_admit_step *add(struct attnd_admission *admission,
                                    enum attnd_admit_step_kind kind, uint32_t level)
{
    struct attnd_admit_step *step = &admission->list[admission->steps++];

    assert(admission->steps <= ATTND_ADMIT_STEPS_MAX);
    *step = (struct attnd_admit_step){.kind = (uint8_t)kind, .level = (uint8_t)level};
    return step;
}

/* Copies one array to *@words and moves *@words behind it. Return: the copy. */
static int32_t *add_copy(struct attnd_admission *admission, enum attnd_admit_step_kind kind,
                         uint32_t level, uint64_t from, uint64_t count, int32_t **words)
{
    struct attnd_admit_step *step = add(admission, kind, level);

    step->from = from;
    step->count = count;
    step->copy = *words;
    *words += padded(count);
    return step->copy;
}

static void add_indptr(struct attnd_admission *admission, uint32_t level, const int32_t *indptr,
                       uint32_t entries, uint32_t total, enum attnd_field field)
{
    struct attnd_admit_step *step = add(admission, ATTND_ADMIT_INDPTR, level);

    step->copy = (int32_t *)(uintptr_t)indptr; /* it is ours */
    step->count = (uint64_t)entries + 1;
    step->total = total;
    step->field = (uint16_t)field;
}

static void add_level_copies(struct attnd_admission *admission, const Attnd__Level *from,
                             uint32_t index, int32_t **words)
{
    struct attnd_level_view *to = &admission->batch->level[index];
    const uint64_t indptrs = (uint64_t)to->entries + 1;

    to->qo_indptr = add_copy(admission, ATTND_ADMIT_COPY, index, from->qo_indptr, indptrs, words);
    to->kv_indptr = add_copy(admission, ATTND_ADMIT_COPY, index, from->kv_indptr, indptrs, words);
    to->kv_last_page_len =
        add_copy(admission, ATTND_ADMIT_COPY, index, from->kv_last_page_len, to->entries, words);
    to->kv_indices =
        add_copy(admission, ATTND_ADMIT_COPY_IDS, index, from->kv_indices, to->pages, words);
}

static void add_level_checks(struct attnd_admission *admission, uint32_t index)
{
    const struct attnd_level_view *level = &admission->batch->level[index];

    add_indptr(admission, index, level->qo_indptr, level->entries, admission->batch->rows,
               ATTND_F_QO_INDPTR);
    add_indptr(admission, index, level->kv_indptr, level->entries, level->pages, ATTND_F_KV_INDPTR);
    add(admission, ATTND_ADMIT_LENGTHS, index)->count = level->entries;
    add(admission, ATTND_ADMIT_IDS, index)->count = level->pages;
}

static void add_mask(struct attnd_admission *admission, uint64_t from, int32_t **words)
{
    struct attnd_batch_view *batch = admission->batch;
    const uint32_t last = batch->levels - 1, entries = batch->level[last].entries;

    batch->mask_indptr =
        add_copy(admission, ATTND_ADMIT_COPY, last, from, (uint64_t)entries + 1, words);
    add_indptr(admission, last, batch->mask_indptr, entries, ATTND_ADMIT_ANY_TOTAL,
               ATTND_F_MASK_INDPTR);
    add(admission, ATTND_ADMIT_MASK, last)->count = entries;
}

static uint64_t batch_words(const struct attnd_batch_view *batch)
{
    uint64_t words = 0;

    for (uint32_t l = 0; l < batch->levels; l++)
        words += level_words(&batch->level[l]);
    if (batch->options & ATTND_OPTION_MASK)
        words += padded((uint64_t)batch->level[batch->levels - 1].entries + 1);
    return words;
}

/* ---- whole ---- */

static void begin(struct attnd_admission *admission, const struct attnd_admit_arena *arena,
                  const struct attnd_batch_limits *limits)
{
    admission->arena = arena->bytes;
    admission->arena_bytes = arena->size_bytes;
    admission->limits = *limits;
    admission->batch = NULL;
    admission->outside = admission->steps = admission->step = 0;
    admission->at = 0;
}

int attnd_admit_batch_begin(struct attnd_admission *admission, const void *arena,
                            uint64_t arena_bytes, uint64_t header_offset_bytes,
                            uint32_t header_bytes, const struct attnd_batch_limits *limits,
                            struct attnd_staging *staging, struct attnd_batch_view *batch,
                            struct attnd_fault *fault)
{
    const struct attnd_admit_arena source = {arena, arena_bytes};
    struct attnd_admit_header header;

    begin(admission, &source, limits);
    admission->batch = batch;
    memset(batch, 0, sizeof(*batch));
    int code =
        attnd_admit_header_unpack(&source, header_offset_bytes, header_bytes, &header, fault);
    if (!code)
        code = attnd_admit_header_check(header.message, limits, batch, fault);
    if (!code)
        code = attnd_staging_reserve(staging, batch_words(batch), fault);
    if (code)
        return code;

    int32_t *words = staging->words;
    batch->leased = limits->leased != NULL;
    for (uint32_t l = 0; l < batch->levels; l++)
        add_level_copies(admission, header.message->level[l], l, &words);
    for (uint32_t l = 0; l < batch->levels; l++)
        add_level_checks(admission, l);
    if (batch->options & ATTND_OPTION_MASK)
        add_mask(admission, header.message->mask_indptr, &words);
    return 0;
}

static int finish(struct attnd_admission *admission, struct attnd_fault *fault)
{
    int code;

    while ((code = attnd_admit_go(admission, fault)) > 0)
        ;
    return code;
}

int attnd_admit_batch(const void *arena, uint64_t arena_bytes, uint64_t header_offset_bytes,
                      uint32_t header_bytes, const struct attnd_batch_limits *limits,
                      struct attnd_staging *staging, struct attnd_batch_view *batch,
                      struct attnd_fault *fault)
{
    struct attnd_admission admission;
    int code = attnd_admit_batch_begin(&admission, arena, arena_bytes, header_offset_bytes,
                                       header_bytes, limits, staging, batch, fault);

    return code ? code : finish(&admission, fault);
}

int attnd_admit_advance_begin(struct attnd_admission *admission, const void *arena,
                              uint64_t arena_bytes, const struct attnd_sqe_advance *sqe,
                              const struct attnd_batch_limits *limits,
                              struct attnd_staging *staging, struct attnd_advance_view *advance,
                              struct attnd_fault *fault)
{
    const struct attnd_admit_arena source = {arena, arena_bytes};
    uint64_t entries = sqe->entries, pages = sqe->pages;

    begin(admission, &source, limits);
    memset(advance, 0, sizeof(*advance));
    uint64_t count = entries + (pages ? entries + 1 + pages : 0);
    int code = attnd_admit_fits(entries, pages, limits, fault);
    if (code == 0)
        code = attnd_staging_reserve(staging, count, fault);
    if (code)
        return code;
    int32_t *words = staging->words;
    (void)add_copy(admission, ATTND_ADMIT_COPY, 0, sqe->arrays_offset_bytes, count, &words);

    advance->entries = (uint32_t)entries;
    advance->pages = (uint32_t)pages;
    advance->kv_len = staging->words;
    if (pages == 0)
        return 0;
    advance->page_indptr = staging->words + entries;
    advance->page_indices = advance->page_indptr + entries + 1;
    add_indptr(admission, 0, advance->page_indptr, advance->entries, advance->pages,
               ATTND_F_KV_INDPTR);
    return 0;
}

int attnd_admit_advance(const void *arena, uint64_t arena_bytes,
                        const struct attnd_sqe_advance *sqe,
                        const struct attnd_batch_limits *limits, struct attnd_staging *staging,
                        struct attnd_advance_view *advance, struct attnd_fault *fault)
{
    struct attnd_admission admission;
    int code = attnd_admit_advance_begin(&admission, arena, arena_bytes, sqe, limits, staging,
                                         advance, fault);

    return code ? code : finish(&admission, fault);
}
