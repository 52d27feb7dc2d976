/*
 * saved.c - what cascade levels save: keys that are read once for a group of requests and not once
 * for each of them.
 *
 * A tile reads keys for a block of rows. Without the outer level, each request of the last level
 * would read those keys for blocks of its own. With it, the rows of the group fill blocks together.
 * The difference in blocks is what is not read. Where a variant asks where rows stand, requests
 * read outer keys each for themselves (place.c).
 */
#include "persistent/plan/plan.h"

static uint64_t blocks_of(int32_t rows, uint32_t block_tokens)
{
    return ((uint64_t)rows + block_tokens - 1) / block_tokens;
}

static uint64_t of_level(const struct attnd_level_view *level, const struct attnd_level_view *last,
                         uint32_t page_size, uint32_t block_tokens)
{
    uint64_t keys = 0;

    for (uint32_t entry = 0, request = 0; entry < level->entries; entry++) {
        const int32_t begin = level->qo_indptr[entry], end = level->qo_indptr[entry + 1];
        const uint64_t together = blocks_of(end - begin, block_tokens);
        uint64_t alone = 0;
        for (; request < last->entries && last->qo_indptr[request] < end; request++)
            alone +=
                blocks_of(last->qo_indptr[request + 1] - last->qo_indptr[request], block_tokens);
        if (alone > together)
            keys += (alone - together) * (uint64_t)attnd_level_keys(level, entry, page_size);
    }
    return keys;
}

uint64_t attnd_plan_shared_keys(const struct attnd_batch_view *batch, uint32_t page_size,
                                uint32_t block_tokens)
{
    uint64_t keys = 0;

    if (batch->options & ATTND_OPTIONS_PLACE)
        return 0;
    for (uint32_t l = 0; l + 1 < batch->levels; l++)
        keys +=
            of_level(&batch->level[l], &batch->level[batch->levels - 1], page_size, block_tokens);
    return keys;
}
