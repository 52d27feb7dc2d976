/*
 * admit_merge.c - where a merge reads and writes: six places, copied once.
 */
#include "service/admission/admit_internal.h"

int attnd_admit_merge(const void *arena, uint64_t arena_bytes, const struct attnd_sqe_merge *sqe,
                      struct attnd_merge_view *view, struct attnd_fault *fault)
{
    const struct attnd_admit_arena source = {arena, arena_bytes};
    int code = attnd_arena_copy(&source, sqe->places_offset_bytes, sizeof(view->at),
                                sizeof(uint64_t), 0, view->at, fault);

    for (uint32_t i = 0; code == 0 && i < ATTND_MERGE_PLACES; i++)
        if (view->at[i].zero)
            code =
                attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_RESERVED, i, view->at[i].zero, 0);
    return code;
}
