/*
 * arena.c - a ring of blocks of any length, freed by the submission ring's head.
 *
 * The daemon copies all that a slot names before it moves its head past the slot. So no block is
 * ever freed by hand: each is remembered beside the index of its slot, in order, and everything up
 * to the head the daemon has published is free again. A block is contiguous; one that does not fit
 * before the end of the arena begins at its start, and the gap is freed with it. When nothing is in
 * use the next block begins at the start, so a block as long as the arena fits eventually.
 */
#include "client/internal.h"

#include <assert.h>
#include <stdlib.h>

static uint64_t round_to_line(uint64_t bytes)
{
    return (bytes + ATTND_CACHE_LINE - 1) & ~(uint64_t)(ATTND_CACHE_LINE - 1);
}

int attnd_arena_init(struct attnd_arena *arena, void *base, uint64_t bytes, uint32_t entries)
{
    *arena = (struct attnd_arena){.base = base,
                                  .bytes = bytes & ~(uint64_t)(ATTND_CACHE_LINE - 1),
                                  .marks = calloc(entries, sizeof(*arena->marks)),
                                  .entries = entries};
    return arena->marks ? 0 : -ATTND_E_NO_MEMORY;
}

void attnd_arena_free(struct attnd_arena *arena)
{
    free(arena->marks);
    arena->marks = NULL;
}

/* A mark may be older than half the range of indices, so "before the head" is asked as "not among
 * the slots in flight". */
static void reclaim(struct attnd_arena *arena, uint32_t sq_index, uint32_t in_flight)
{
    while (arena->mark_begin != arena->mark_end) {
        const struct attnd_arena_mark *mark = &arena->marks[arena->mark_begin % arena->entries];
        if (sq_index - 1 - mark->index < in_flight)
            return;
        arena->begin = mark->end;
        arena->mark_begin++;
    }
    arena->begin = 0;
    arena->end = 0;
}

int attnd_arena_reserve(struct attnd_arena *arena, uint64_t bytes, uint32_t sq_index,
                        uint32_t in_flight, uint64_t *offset_bytes)
{
    if (bytes > arena->bytes)
        return -ATTND_E_NO_SPACE;
    reclaim(arena, sq_index, in_flight);

    uint64_t offset = arena->end % arena->bytes;
    uint64_t gap = offset + bytes > arena->bytes ? arena->bytes - offset : 0;
    if (arena->end + gap + bytes - arena->begin > arena->bytes)
        return -ATTND_E_FULL;
    arena->reserved = arena->end + gap;
    *offset_bytes = arena->reserved % arena->bytes;
    return 0;
}

void attnd_arena_commit(struct attnd_arena *arena, uint64_t bytes, uint32_t sq_index)
{
    /* Never more marks than slots: the caller found a free slot before it reserved. */
    assert(arena->mark_end - arena->mark_begin < arena->entries);
    arena->end = arena->reserved + round_to_line(bytes);
    arena->marks[arena->mark_end++ % arena->entries] =
        (struct attnd_arena_mark){.end = arena->end, .index = sq_index};
}
