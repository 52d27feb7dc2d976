/*
 * match.c - how far a chain of keys is published; and pins, which follow the same path.
 *
 * A key says everything that is before it, if engines chain them as they should. That its block has
 * the parent that the chain says is looked at all the same: a key that an engine made wrong, or on
 * purpose, is a miss and never another prompt's page.
 */
#include "service/prefix/tree_internal.h"

static int published(const struct attnd_tree *tree, uint32_t block)
{
    return block != ATTND_NONE && tree->block[block].flags & ATTND_TREE_PUBLISHED;
}

/* Return: 1 with the parent's block, ATTND_NONE at the beginning of a prompt; 0: it is missing. */
static int find_parent(const struct attnd_tree *tree, const struct attnd_tree_chain *chain,
                       uint32_t *parent)
{
    *parent = ATTND_NONE;
    if (!chain->parent)
        return 1;
    *parent = attnd_tree_index_find(tree, chain->space, chain->parent);
    return published(tree, *parent);
}

/* A match ended at @block: is it one of the first now? */
static void note_hit(struct attnd_tree *tree, uint32_t block)
{
    struct attnd_tree_block *at = &tree->block[block];
    struct attnd_tree_space *space = attnd_tree_space_of(tree, at);
    uint32_t least = 0;

    at->hits += at->hits < UINT32_MAX;
    if (at->flags & ATTND_TREE_LISTED)
        return;
    if (space->top_count < ATTND_TREE_TOP) {
        at->flags |= ATTND_TREE_LISTED;
        space->top[space->top_count++] = block;
        return;
    }
    for (uint32_t i = 1; i < ATTND_TREE_TOP; i++)
        if (tree->block[space->top[i]].hits < tree->block[space->top[least]].hits)
            least = i;
    if (at->hits <= tree->block[space->top[least]].hits)
        return;
    tree->block[space->top[least]].flags &= (uint8_t)~ATTND_TREE_LISTED;
    at->flags |= ATTND_TREE_LISTED;
    space->top[least] = block;
}

/* Its pages, if each can have one more lease; then it is in use. */
static int use(struct attnd_tree *tree, uint32_t block, uint32_t block_pages, int32_t *pages)
{
    const struct attnd_tree_leases *leases = &tree->args.leases;
    struct attnd_tree_block *at = &tree->block[block];
    uint32_t idle = 0;

    attnd_tree_pages_of(tree, at, block_pages, pages);
    for (uint32_t i = 0; i < block_pages; i++) {
        if (leases->count[pages[i]] >= leases->max)
            return 0;
        idle += leases->count[pages[i]] == 1;
    }
    if (idle) {
        at->busy = (uint16_t)(at->busy + idle);
        attnd_tree_reorder(tree, block);
    }
    return 1;
}

/* Why a match went no further than before @block. */
static void stop_before(const struct attnd_tree *tree, uint32_t block,
                        struct attnd_tree_result *result)
{
    result->stop = ATTND_PREFIX_STOP_MISSING;
    if (block == ATTND_NONE || !(tree->block[block].flags & ATTND_TREE_CLAIMED))
        return;
    result->stop = ATTND_PREFIX_STOP_CLAIMED;
    result->claimant = tree->block[block].owner->session;
}

struct attnd_tree_result attnd_tree_match(struct attnd_tree *tree,
                                          const struct attnd_tree_owner *owner,
                                          const struct attnd_tree_chain *chain, int32_t *pages)
{
    struct attnd_tree_space_info *info = &tree->space[chain->space].info;
    struct attnd_tree_result result = {.stop = ATTND_PREFIX_STOP_END};
    uint32_t found[ATTND_TREE_GROUP], block_pages = info->args.block_pages, parent;

    info->stats.asked += chain->again ? 0 : chain->count + chain->more;
    if (!find_parent(tree, chain, &parent)) {
        result.stop = ATTND_PREFIX_STOP_MISSING;
        return result;
    }
    while (result.blocks < chain->count && result.stop == ATTND_PREFIX_STOP_END) {
        uint32_t left = chain->count - result.blocks;
        uint32_t group = left < ATTND_TREE_GROUP ? left : ATTND_TREE_GROUP;

        attnd_tree_index_find_all(tree, chain->space, chain->keys + result.blocks, group, found);
        for (uint32_t i = 0; i < group; i++) {
            if (!published(tree, found[i]) || tree->block[found[i]].parent != parent) {
                stop_before(tree, found[i], &result);
                break;
            }
            if (!use(tree, found[i], block_pages, pages + (size_t)result.blocks * block_pages)) {
                result.stop = ATTND_PREFIX_STOP_FULL;
                break;
            }
            result.foreign += tree->block[found[i]].publisher != owner->session;
            result.blocks++;
            parent = found[i];
        }
    }
    info->stats.found += result.blocks;
    info->stats.found_foreign += result.foreign;
    if (result.blocks && !(chain->more && result.stop == ATTND_PREFIX_STOP_END))
        note_hit(tree, parent);
    return result;
}

/* ---- pins ---- */

static int pin_fits(const struct attnd_tree *tree, const struct attnd_tree_space *space)
{
    uint64_t block_pages = space->info.args.block_pages;
    return ((uint64_t)space->info.pinned + 1) * block_pages <= space->info.args.pages_max / 2 &&
           tree->pinned_pages + block_pages <= tree->args.pages / 2;
}

static void pinned_add(struct attnd_tree *tree, uint32_t block)
{
    struct attnd_tree_block *at = &tree->block[block];
    struct attnd_tree_space *space = attnd_tree_space_of(tree, at);

    at->flags |= ATTND_TREE_PINNED;
    attnd_tree_reorder(tree, block); /* out of the order, which uses `before` too */
    at->before = ATTND_NONE;
    at->after = ATTND_NONE;
    if (space->info.pinned++) {
        at->after = space->pinned_first;
        tree->block[space->pinned_first].before = block;
    }
    space->pinned_first = block;
    tree->pinned_pages += space->info.args.block_pages;
}

void attnd_tree_pinned_remove(struct attnd_tree *tree, uint32_t block)
{
    struct attnd_tree_block *at = &tree->block[block];
    struct attnd_tree_space *space = attnd_tree_space_of(tree, at);

    if (at->after != ATTND_NONE)
        tree->block[at->after].before = at->before;
    if (at->before != ATTND_NONE)
        tree->block[at->before].after = at->after;
    else
        space->pinned_first = at->after;
    space->info.pinned--;
    tree->pinned_pages -= space->info.args.block_pages;
    at->flags &= (uint8_t)~ATTND_TREE_PINNED;
    attnd_tree_reorder(tree, block);
}

/* The leading blocks that are published, each given to @pin or unpin. */
static struct attnd_tree_result walk(struct attnd_tree *tree, const struct attnd_tree_chain *chain,
                                     int pin)
{
    struct attnd_tree_space *space = &tree->space[chain->space];
    struct attnd_tree_result result = {.stop = ATTND_PREFIX_STOP_MISSING};
    uint32_t parent;

    if (!find_parent(tree, chain, &parent))
        return result;
    for (; result.blocks < chain->count; result.blocks++) {
        const struct attnd_block_key *key = &chain->keys[result.blocks];
        uint32_t block = attnd_tree_index_find(tree, chain->space, key);
        if (!published(tree, block) || tree->block[block].parent != parent)
            return result;
        int pinned = tree->block[block].flags & ATTND_TREE_PINNED;
        if (pin && !pinned && !pin_fits(tree, space)) {
            result.stop = ATTND_PREFIX_STOP_FULL;
            return result;
        }
        if (pin && !pinned)
            pinned_add(tree, block);
        else if (!pin && pinned)
            attnd_tree_pinned_remove(tree, block);
        parent = block;
    }
    result.stop = ATTND_PREFIX_STOP_END;
    return result;
}

struct attnd_tree_result attnd_tree_pin(struct attnd_tree *tree,
                                        const struct attnd_tree_chain *chain)
{
    return walk(tree, chain, 1);
}

struct attnd_tree_result attnd_tree_unpin(struct attnd_tree *tree,
                                          const struct attnd_tree_chain *chain)
{
    return walk(tree, chain, 0);
}
