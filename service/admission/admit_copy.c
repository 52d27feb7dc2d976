/*
 * admit_copy.c - ranges of a client's arena, and where the copies go.
 */
#include "ipc/closer.h"
#include "service/admission/admit_internal.h"

#include <stdlib.h>
#include <string.h>

#define STAGING_WORDS_MIN 4096u
#define LINE_WORDS (ATTND_CACHE_LINE / sizeof(int32_t))

int attnd_arena_range(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                      uint64_t count_bytes, uint32_t align_bytes, uint64_t index,
                      struct attnd_fault *fault)
{
    if (count_bytes > arena->size_bytes || offset_bytes > arena->size_bytes - count_bytes) {
        int64_t limit =
            count_bytes > arena->size_bytes ? 0 : (int64_t)(arena->size_bytes - count_bytes);
        int64_t value = offset_bytes > INT64_MAX ? INT64_MAX : (int64_t)offset_bytes;
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_ARENA, index, value, limit);
    }
    if (offset_bytes % align_bytes)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_ARENA, index, (int64_t)offset_bytes,
                               (int64_t)(offset_bytes - offset_bytes % align_bytes));
    return 0;
}

int attnd_arena_copy(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                     uint64_t count_bytes, uint32_t align_bytes, uint64_t index, void *copy,
                     struct attnd_fault *fault)
{
    int code = attnd_arena_range(arena, offset_bytes, count_bytes, align_bytes, index, fault);
    if (!code)
        attnd_arena_take(arena->bytes + offset_bytes, count_bytes, copy);
    return code;
}

int attnd_staging_reserve(struct attnd_staging *staging, uint64_t words, struct attnd_fault *fault)
{
    if (words <= staging->words_max && staging->words) /* also for none there is a place */
        return 0;
    if (words > INT64_MAX / sizeof(int32_t) / 2)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_PAGES, 0, INT64_MAX, 0);
    /* A quarter more than asked, in whole lines: a batch that grows token by token moves seldom. */
    uint64_t room = words < STAGING_WORDS_MIN ? STAGING_WORDS_MIN : words + words / 4;
    room = (room + LINE_WORDS - 1) / LINE_WORDS * LINE_WORDS;
    if (staging->words_limit && room > staging->words_limit)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_DAEMON_MEMORY, 0,
                               (int64_t)(room * sizeof(int32_t)),
                               (int64_t)(staging->words_limit * sizeof(int32_t)));
    int32_t *grown = aligned_alloc(ATTND_CACHE_LINE, room * sizeof(int32_t));
    if (!grown)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_PAGES, 0, (int64_t)words, 0);
    attnd_closer_free(staging->words, staging->words_max * sizeof(int32_t));
    staging->words = grown;
    staging->words_max = room;
    return 0;
}

void attnd_staging_free(struct attnd_staging *staging)
{
    attnd_closer_free(staging->words, staging->words_max * sizeof(int32_t));
    staging->words = NULL;
    staging->words_max = 0;
}
