/*
 * check.c - whether blocks can be published, all of them, before one of them is.
 *
 * Long chains are published in parts, and nothing is taken back: others may have found a part by
 * then. So what would be refused is looked for in the whole chain first, in parts too. Others use
 * the tree between two of them, so what was looked at is remembered outside of it: tables of the
 * keys and pages that the chain has.
 */
#include "schemas/batch.h"
#include "service/prefix/tree_internal.h"

#include <assert.h>

_Static_assert(ATTND_PREFIX_PAGES_MAX < UINT16_MAX, "tables have numbers of 16 bits");

#define COMING (ATTND_NONE - 1) /* the block before is not there yet, so it has no children */

/* Return: 1; 0: the key was there before. */
static int see_key(const struct attnd_tree *tree, const struct attnd_tree_chain *chain,
                   uint16_t *seen, uint32_t index)
{
    const struct attnd_block_key *key = &chain->keys[index];
    const uint32_t mask = attnd_prefix_seen_places(chain->count) - 1;
    uint32_t place = attnd_tree_index_hash(tree, chain->space, key) & mask;

    for (; seen[place]; place = (place + 1) & mask) {
        const struct attnd_block_key *other = &chain->keys[seen[place] - 1];
        if (other->word[0] == key->word[0] && other->word[1] == key->word[1])
            return 0;
    }
    seen[place] = (uint16_t)(index + 1);
    return 1;
}

/* Likewise. Pages are a client's choice as keys are. */
static int see_page(const struct attnd_tree *tree, const int32_t *pages, uint32_t count,
                    uint16_t *seen, uint32_t index)
{
    const struct attnd_block_key key = {{(uint32_t)pages[index], 0}};
    const uint32_t mask = attnd_prefix_seen_places(count) - 1;
    uint32_t place = attnd_tree_index_hash(tree, 0, &key) & mask;

    for (; seen[place]; place = (place + 1) & mask)
        if (pages[seen[place] - 1] == pages[index])
            return 0;
    seen[place] = (uint16_t)(index + 1);
    return 1;
}

/* The pages of a block that is not there yet. Return: 1; 0: somebody has one of them. */
static int see_pages(const struct attnd_tree *tree, const struct attnd_tree_chain *chain,
                     const int32_t *pages, uint16_t *seen, uint32_t block)
{
    const uint32_t block_pages = tree->space[chain->space].info.args.block_pages;

    for (uint32_t i = block * block_pages; i < (block + 1) * block_pages; i++)
        if (tree->block_of[pages[i]] || !see_page(tree, pages, chain->count * block_pages, seen, i))
            return 0;
    return 1;
}

/* A lookup and a page's entry wait for memory: those of a group are under way at once. */
static void look(const struct attnd_tree *tree, const struct attnd_tree_chain *chain,
                 uint32_t begin, uint32_t end, const int32_t *pages, uint32_t *blocks)
{
    const uint32_t block_pages = tree->space[chain->space].info.args.block_pages;
    const uint32_t count = end - begin < ATTND_TREE_GROUP ? end - begin : ATTND_TREE_GROUP;

    for (uint32_t i = begin * block_pages; i < (begin + count) * block_pages; i++)
        __builtin_prefetch(&tree->block_of[pages[i]]);
    attnd_tree_index_find_all(tree, chain->space, chain->keys + begin, count, blocks);
}

static int is_published(const struct attnd_tree *tree, uint32_t block)
{
    return block != ATTND_NONE && tree->block[block].flags & ATTND_TREE_PUBLISHED;
}

/* The block before the one at @index, as it is now. Return: 0; -ATTND_E_UNKNOWN. */
static int parent_of(const struct attnd_tree *tree, const struct attnd_tree_chain *chain,
                     uint32_t index, uint32_t *parent)
{
    const struct attnd_block_key *key = index ? &chain->keys[index - 1] : chain->parent;

    *parent = key ? attnd_tree_index_find(tree, chain->space, key) : ATTND_NONE;
    if (!key || is_published(tree, *parent))
        return 0;
    *parent = COMING;
    return index ? 0 : -ATTND_E_UNKNOWN;
}

int attnd_tree_publish_check(const struct attnd_tree *tree, const struct attnd_tree_chain *chain,
                             const int32_t *pages, uint32_t count, struct attnd_tree_check *check)
{
    uint16_t *seen_pages = check->seen + attnd_prefix_seen_places(chain->count);
    const uint32_t begin = check->blocks, end = begin + count;
    uint32_t blocks[ATTND_TREE_GROUP], parent;
    const int rc = parent_of(tree, chain, begin, &parent);

    assert(end <= chain->count && chain->count <= ATTND_PREFIX_BLOCKS_MAX);
    for (uint32_t i = begin; rc == 0 && i < end; i++) {
        if ((i - begin) % ATTND_TREE_GROUP == 0)
            look(tree, chain, i, end, pages, blocks);
        const uint32_t block = blocks[(i - begin) % ATTND_TREE_GROUP];
        const int there = is_published(tree, block);

        if (there ? tree->block[block].parent != parent
                  : !see_key(tree, chain, check->seen, i) ||
                        !see_pages(tree, chain, pages, seen_pages, i))
            return -ATTND_E_INVALID;
        parent = there ? block : COMING;
        check->blocks = i + 1;
    }
    return rc;
}
