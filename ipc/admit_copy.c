/*
 * admit_copy.c - the only code that reads a client's arena, and where the copies go.
 *
 * Every range is read once, by one memcpy, into memory nobody else can write. The barrier after it
 * is the point of this file: without it a compiler may load "the copy" from the arena again (it is
 * entitled to: nothing in C says that another process writes there), and the value checked would
 * not be the value used.
 */
#include "ipc/admit_internal.h"

#include <stdlib.h>
#include <string.h>

#define STAGING_WORDS_MIN 4096u
/* Words that are checked behind their copy: they are in the first cache still. */
#define CHUNK_WORDS 2048u
#define LINE_WORDS (ATTND_CACHE_LINE / sizeof(int32_t))

static int check_range(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
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

/* The range was checked. */
static void copy_range(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                       uint64_t count_bytes, void *copy)
{
    if (count_bytes)
        memcpy(copy, arena->bytes + offset_bytes, count_bytes);
    __asm__ volatile("" : : "r"(copy) : "memory");
}

int attnd_arena_copy(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                     uint64_t count_bytes, uint32_t align_bytes, uint64_t index, void *copy,
                     struct attnd_fault *fault)
{
    int code = check_range(arena, offset_bytes, count_bytes, align_bytes, index, fault);
    if (!code)
        copy_range(arena, offset_bytes, count_bytes, copy);
    return code;
}

int attnd_arena_copy_ids(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                         uint64_t count, uint64_t index, int32_t *copy, struct attnd_admit_ids *ids,
                         struct attnd_fault *fault)
{
    int code = check_range(arena, offset_bytes, count * sizeof(*copy), sizeof(*copy), index, fault);
    if (code)
        return code;
    for (uint64_t at = 0; at < count; at += CHUNK_WORDS) {
        const uint64_t words = count - at < CHUNK_WORDS ? count - at : CHUNK_WORDS;
        copy_range(arena, offset_bytes + at * sizeof(*copy), words * sizeof(*copy), copy + at);
        ids->outside |= attnd_admit_outside(copy + at, words, ids->max);
        if (!ids->held || ids->outside || !attnd_admit_leased(ids->held, copy + at, words))
            ids->unleased = 1;
    }
    return 0;
}

int attnd_staging_reserve(struct attnd_staging *staging, uint64_t words, struct attnd_fault *fault)
{
    if (words <= staging->words_max)
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
    free(staging->words);
    staging->words = grown;
    staging->words_max = room;
    return 0;
}

void attnd_staging_free(struct attnd_staging *staging)
{
    free(staging->words);
    staging->words = NULL;
    staging->words_max = 0;
}
