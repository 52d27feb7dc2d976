/*
 * admit_prefix.c - keys and pages of a prefix operation: copied once, then checked.
 *
 * A key can have any value, so only its place is checked. Page ids are held against the pool; whose
 * they are is the daemon's to know.
 */
#include "service/admission/admit_internal.h"

#include <assert.h>
#include <string.h>

#define KEY_WORDS (sizeof(struct attnd_block_key) / sizeof(int32_t))

static int check_counts(uint8_t opcode, const struct attnd_sqe_prefix *sqe, uint32_t block_pages,
                        struct attnd_fault *fault)
{
    int has_pages = opcode == ATTND_OP_PREFIX_MATCH || opcode == ATTND_OP_PREFIX_PUBLISH;
    uint32_t flags = opcode == ATTND_OP_PREFIX_MATCH ? ATTND_PREFIX_FLAGS : ATTND_PREFIX_PARENT;
    uint32_t pages = has_pages ? sqe->blocks * block_pages : 0;
    uint32_t blocks_max = ATTND_PREFIX_BLOCKS_MAX;

    if (has_pages && blocks_max > ATTND_PREFIX_PAGES_MAX / block_pages)
        blocks_max = ATTND_PREFIX_PAGES_MAX / block_pages;
    if (sqe->flags & ~flags)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_FLAGS, 0, sqe->flags, flags);
    if (sqe->blocks > blocks_max)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_BLOCKS, 0, sqe->blocks, blocks_max);
    if (sqe->pages != pages)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_PAGES, 0, sqe->pages, pages);
    return 0;
}

static int check_pages(const int32_t *pages, uint32_t count, uint32_t pool_pages,
                       struct attnd_fault *fault)
{
    for (uint32_t i = 0; i < count; i++)
        if (pages[i] < 0 || (uint32_t)pages[i] >= pool_pages)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_PAGES, i, pages[i],
                                   pages[i] < 0 ? 0 : (int64_t)pool_pages - 1);
    return 0;
}

/* Words of the tables behind the arrays. */
static uint64_t seen_words(uint8_t opcode, const struct attnd_sqe_prefix *sqe)
{
    if (opcode != ATTND_OP_PREFIX_PUBLISH)
        return 0;
    const uint32_t places =
        attnd_prefix_seen_places(sqe->blocks) + attnd_prefix_seen_places(sqe->pages);
    return places * sizeof(uint16_t) / sizeof(int32_t);
}

int attnd_admit_prefix(const void *arena, uint64_t arena_bytes, uint8_t opcode,
                       const struct attnd_sqe_prefix *sqe, uint32_t block_pages,
                       uint32_t pool_pages, struct attnd_staging *staging,
                       struct attnd_prefix_view *view, struct attnd_fault *fault)
{
    const struct attnd_admit_arena source = {arena, arena_bytes};
    int code = check_counts(opcode, sqe, block_pages, fault);

    if (code)
        return code;
    uint64_t keys = sqe->blocks + (sqe->flags & ATTND_PREFIX_PARENT ? UINT64_C(1) : 0);
    uint64_t words = keys * KEY_WORDS;
    uint64_t copied = words + (opcode == ATTND_OP_PREFIX_PUBLISH ? sqe->pages : 0);
    *view = (struct attnd_prefix_view){.blocks = sqe->blocks};
    if (words == 0) /* no key, and so no page: there is nothing to point to */
        return 0;
    const uint64_t seen = seen_words(opcode, sqe);
    if (attnd_staging_reserve(staging, words + sqe->pages + seen, fault))
        return -ATTND_E_NO_MEMORY;
    code = attnd_arena_copy(&source, sqe->arrays_offset_bytes, copied * sizeof(int32_t),
                            sizeof(uint64_t), 0, staging->words, fault);
    if (code)
        return code;
    assert(staging->words);

    const struct attnd_block_key *key = (const void *)staging->words;
    view->parent = sqe->flags & ATTND_PREFIX_PARENT ? key : NULL;
    view->keys = key + (view->parent != NULL);
    view->pages = staging->words + words;
    if (seen)
        view->seen = memset(view->pages + sqe->pages, 0, seen * sizeof(int32_t));
    return copied > words ? check_pages(view->pages, sqe->pages, pool_pages, fault) : 0;
}
