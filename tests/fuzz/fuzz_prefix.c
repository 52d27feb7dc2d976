/*
 * fuzz_prefix.c - any bytes as the arena of a prefix operation or a merge, and any slot that names
 * them.
 *
 * What is admitted lies in private memory, has as many keys and pages as it says, and names pages
 * of the pool only.
 */
#include "schemas/abi.h"
#include "service/admission/admit.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/rigs/plan_case.h"

#include <string.h>

static struct attnd_staging staging;

static void check_pages(const struct attnd_prefix_view *view, uint32_t pages, uint32_t pool_pages)
{
    for (uint32_t i = 0; i < pages; i++)
        fuzz_require(view->pages[i] >= 0 && (uint32_t)view->pages[i] < pool_pages,
                     "a page that is published is in the pool");
}

static void check_seen(const struct attnd_prefix_view *view, uint32_t pages)
{
    const uint32_t places =
        attnd_prefix_seen_places(view->blocks) + attnd_prefix_seen_places(pages);

    for (uint32_t i = 0; i < places && view->keys; i++)
        fuzz_require(view->seen[i] == 0, "its tables are empty");
}

static void check_keys(const struct attnd_prefix_view *view)
{
    if (view->blocks == 0)
        return;
    const char *begin = (const char *)staging.words, *end = begin + staging.words_max * 4;
    fuzz_require((const char *)view->keys >= begin &&
                     (const char *)(view->keys + view->blocks) <= end,
                 "keys are in private memory");
    fuzz_require(!view->parent || view->parent + 1 == view->keys, "the parent is before the keys");
}

static void prefix(struct case_source *source, const uint8_t *arena, uint64_t arena_bytes)
{
    const uint8_t opcode =
        (uint8_t)(ATTND_OP_PREFIX_MATCH +
                  case_below(source, ATTND_OP_PREFIX_UNPIN + 1u - ATTND_OP_PREFIX_MATCH));
    const uint32_t block_pages = 1 + case_below(source, ATTND_PREFIX_BLOCK_PAGES_MAX);
    const uint32_t pool_pages = 1 + case_below(source, 1u << 16);
    struct attnd_sqe_prefix sqe = {.arrays_offset_bytes = case_below(source, 1u << 12),
                                   .blocks = case_below(source, ATTND_PREFIX_BLOCKS_MAX + 2u),
                                   .flags = case_below(source, 8)};
    struct attnd_prefix_view view = {0};
    struct attnd_fault fault = {0};

    sqe.pages = case_below(source, 4) ? sqe.blocks * block_pages : case_below(source, 1u << 15);
    if (case_below(source, 2)) /* often enough few, so that they fit */
        sqe.blocks %= 16;
    const int code = attnd_admit_prefix(arena, arena_bytes, opcode, &sqe, block_pages, pool_pages,
                                        &staging, &view, &fault);
    fuzz_require(code == fault.code, "a refusal says why");
    if (code)
        return;
    fuzz_require(view.blocks == sqe.blocks && view.blocks <= ATTND_PREFIX_BLOCKS_MAX,
                 "as many blocks as the slot says");
    check_keys(&view);
    if (opcode != ATTND_OP_PREFIX_PUBLISH)
        return;
    check_pages(&view, sqe.pages, pool_pages);
    check_seen(&view, sqe.pages);
}

static void merge(struct case_source *source, const uint8_t *arena, uint64_t arena_bytes)
{
    struct attnd_sqe_merge sqe;
    struct attnd_merge_view view;
    struct attnd_fault fault = {0};

    memset(&sqe, 0, sizeof(sqe));
    sqe.places_offset_bytes = case_below(source, 1u << 12);
    const int code = attnd_admit_merge(arena, arena_bytes, &sqe, &view, &fault);
    fuzz_require(code == fault.code, "a refusal says why");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct case_source source = {.bytes = data, .bytes_left = bytes};

    if (!data || !bytes)
        return 0;
    /* In memory of exactly the size that it has. */
    const uint64_t arena_bytes = bytes > 64 ? bytes - 64 : 0;
    uint8_t *arena = malloc(arena_bytes + 1);
    fuzz_require(arena != NULL, "memory");
    memcpy(arena, data + (bytes - arena_bytes), arena_bytes);
    source.bytes_left = bytes - arena_bytes;
    if (case_below(&source, 4))
        prefix(&source, arena, arena_bytes);
    else
        merge(&source, arena, arena_bytes);
    free(arena);
    return 0;
}
