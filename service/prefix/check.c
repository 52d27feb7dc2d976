/*
 * check.c - whether blocks can be published, all of them, before one of them is.
 *
 * Long chains are published in parts, and nothing is taken back: others may have found a part by
 * then. So what would be refused is looked for in the whole chain first. Pages and keys that the
 * chain has twice are found as those that the tree has are: pages are marked as taken while it is
 * looked at, and keys have a table here.
 */
#include "service/prefix/tree_internal.h"

#include <assert.h>

#define COMING (ATTND_NONE - 1) /* the block before is not there yet, so it has no children */
#define TAKEN ATTND_NONE        /* in block_of: by a block that was looked at before */
#define SEEN_MAX (2 * ATTND_PREFIX_BLOCKS_MAX)

struct seen {
    uint16_t at[SEEN_MAX]; /* 1 + index of a key; 0: none */
    uint32_t mask;
};

/* Return: 1; 0: the key was there before. */
static int see(struct seen *seen, const struct attnd_tree *tree,
               const struct attnd_tree_chain *chain, uint32_t index)
{
    const struct attnd_block_key *key = &chain->keys[index];
    uint32_t place = attnd_tree_index_hash(tree, chain->space, key) & seen->mask;

    for (; seen->at[place]; place = (place + 1) & seen->mask) {
        const struct attnd_block_key *other = &chain->keys[seen->at[place] - 1];
        if (other->word[0] == key->word[0] && other->word[1] == key->word[1])
            return 0;
    }
    seen->at[place] = (uint16_t)(index + 1);
    return 1;
}

/* Return: the first of @pages that somebody has; @count: none, and they are marked. */
static uint32_t mark(struct attnd_tree *tree, const int32_t *pages, uint32_t count)
{
    uint32_t i = 0;

    while (i < count && tree->block_of[pages[i]] == 0)
        tree->block_of[pages[i++]] = TAKEN;
    return i;
}

static void unmark(struct attnd_tree *tree, const int32_t *pages, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (tree->block_of[pages[i]] == TAKEN)
            tree->block_of[pages[i]] = 0;
}

/* A lookup and a page's entry wait for memory: those of a group are under way at once. */
static void look(const struct attnd_tree *tree, const struct attnd_tree_chain *chain,
                 uint32_t begin, const int32_t *pages, uint32_t block_pages, uint32_t *blocks)
{
    const uint32_t left = chain->count - begin;
    const uint32_t count = left < ATTND_TREE_GROUP ? left : ATTND_TREE_GROUP;

    for (size_t i = 0; i < (size_t)count * block_pages; i++)
        __builtin_prefetch(&tree->block_of[pages[(size_t)begin * block_pages + i]], 1);
    attnd_tree_index_find_all(tree, chain->space, chain->keys + begin, count, blocks);
}

int attnd_tree_publish_check(struct attnd_tree *tree, const struct attnd_tree_chain *chain,
                             const int32_t *pages, uint32_t *index)
{
    const uint32_t block_pages = tree->space[chain->space].info.args.block_pages;
    uint32_t blocks[ATTND_TREE_GROUP], parent = ATTND_NONE, i = 0;
    struct seen seen = {.mask = 1};

    assert(chain->count <= ATTND_PREFIX_BLOCKS_MAX);
    *index = 0;
    if (chain->parent) {
        parent = attnd_tree_index_find(tree, chain->space, chain->parent);
        if (parent == ATTND_NONE || !(tree->block[parent].flags & ATTND_TREE_PUBLISHED))
            return -ATTND_E_UNKNOWN;
    }
    while (seen.mask + 1 < 2 * chain->count)
        seen.mask = 2 * seen.mask + 1;
    for (; i < chain->count; i++) {
        if (i % ATTND_TREE_GROUP == 0)
            look(tree, chain, i, pages, block_pages, blocks);
        const uint32_t block = blocks[i % ATTND_TREE_GROUP];
        const int there = block != ATTND_NONE && tree->block[block].flags & ATTND_TREE_PUBLISHED;

        if (there && tree->block[block].parent != parent)
            break;
        if (!there && (!see(&seen, tree, chain, i) ||
                       mark(tree, pages + (size_t)i * block_pages, block_pages) < block_pages))
            break;
        parent = there ? block : COMING;
    }
    const int whole = i == chain->count;
    unmark(tree, pages, (size_t)(i + !whole) * block_pages);
    *index = i;
    return whole ? 0 : -ATTND_E_INVALID;
}
