/*
 * admit_go.c - a part of an admission.
 *
 * The loop has other clients. So the list of an admission (admit_batch.c) is worked off some
 * thousand elements at a time, and its caller decides when it goes on. Nothing that was copied is
 * read from the arena again, however much later that is.
 */
#include "service/admission/admit_internal.h"

/* Elements of a part: a copy of as many touches fresh memory, which costs the most. */
#define PART 65536u

static int copy(struct attnd_admission *admission, const struct attnd_admit_step *step,
                uint64_t end, struct attnd_fault *fault)
{
    const struct attnd_admit_arena arena = {admission->arena, admission->arena_bytes};
    const uint64_t at = admission->at;
    int code = at ? 0
                  : attnd_arena_range(&arena, step->from, step->count * sizeof(int32_t),
                                      sizeof(int32_t), step->level, fault);

    if (code == 0)
        attnd_arena_take(arena.bytes + step->from + at * sizeof(int32_t),
                         (end - at) * sizeof(int32_t), step->copy + at);
    return code;
}

static int copy_ids(struct attnd_admission *admission, const struct attnd_admit_step *step,
                    uint64_t end, struct attnd_fault *fault)
{
    const struct attnd_admit_arena arena = {admission->arena, admission->arena_bytes};
    const struct attnd_batch_limits *limits = &admission->limits;
    const uint64_t at = admission->at;
    struct attnd_admit_ids ids = {.max = attnd_admit_id_max(limits->pool_pages),
                                  .held = limits->leased};
    int code = at ? 0
                  : attnd_arena_range(&arena, step->from, step->count * sizeof(int32_t),
                                      sizeof(int32_t), step->level, fault);

    if (code)
        return code;
    code = attnd_arena_copy_ids(&arena, step->from + at * sizeof(int32_t), end - at, step->level,
                                step->copy + at, &ids, fault);
    admission->outside |= (uint32_t)(ids.outside != 0) << step->level;
    admission->batch->leased &= !ids.unleased;
    return code;
}

static int check_ids(const struct attnd_admission *admission, const struct attnd_admit_step *step,
                     uint64_t end, struct attnd_fault *fault)
{
    const struct attnd_level_view *level = &admission->batch->level[step->level];
    const uint32_t pool_pages = admission->limits.pool_pages;

    if (level->pages && pool_pages == 0)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_PAGES, 0, level->pages, 0);
    return admission->outside >> step->level & 1
               ? attnd_admit_indices(level, pool_pages, admission->at, end, fault)
               : 0;
}

static int do_part(struct attnd_admission *admission, const struct attnd_admit_step *step,
                   uint64_t end, struct attnd_fault *fault)
{
    const struct attnd_batch_view *batch = admission->batch;
    const uint32_t page_size = admission->limits.page_size;

    switch ((enum attnd_admit_step_kind)step->kind) {
    case ATTND_ADMIT_COPY:
        return copy(admission, step, end, fault);
    case ATTND_ADMIT_COPY_IDS:
        return copy_ids(admission, step, end, fault);
    case ATTND_ADMIT_INDPTR:
        return attnd_admit_indptr(step, admission->at, end, fault);
    case ATTND_ADMIT_LENGTHS:
        return attnd_admit_lengths(&batch->level[step->level], page_size, admission->at, end,
                                   fault);
    case ATTND_ADMIT_IDS:
        return check_ids(admission, step, end, fault);
    default:
        return attnd_admit_mask(batch->mask_indptr, &batch->level[step->level], page_size,
                                admission->at, end, fault);
    }
}

int attnd_admit_go(struct attnd_admission *admission, struct attnd_fault *fault)
{
    uint64_t left = PART;

    while (admission->step < admission->steps) {
        const struct attnd_admit_step *step = &admission->list[admission->step];
        const uint64_t rest = step->count - admission->at;
        const uint64_t part = rest < left ? rest : left;
        const int code = do_part(admission, step, admission->at + part, fault);
        if (code)
            return code;
        left -= part;
        admission->at += part;
        if (admission->at < step->count)
            return 1;
        admission->step++;
        admission->at = 0;
    }
    return 0;
}
