/*
 * publish.c - blocks come into the tree; claims say that they will.
 *
 * A claim is an entry of the index without a place in the tree. It ends in one of two ways: the
 * block is published, by its owner or by somebody who computed it too, or its owner gives it up, of
 * its own will or by its death. Either way all that waits for it is woken, and told which it was.
 */
#include "service/prefix/tree_internal.h"

#include <stdlib.h>

/* ---- waiting ---- */

static void waiter_add(struct attnd_tree_waiter **link, struct attnd_tree_waiter *waiter)
{
    waiter->next = *link;
    waiter->link = link;
    if (waiter->next)
        waiter->next->link = &waiter->next;
    *link = waiter;
}

void attnd_tree_unwait(struct attnd_tree_waiter *waiter)
{
    if (!waiter->link)
        return;
    *waiter->link = waiter->next;
    if (waiter->next)
        waiter->next->link = waiter->link;
    waiter->link = NULL;
}

int attnd_tree_wait(struct attnd_tree *tree, uint32_t space, const struct attnd_block_key *key,
                    struct attnd_tree_waiter *waiter)
{
    uint32_t block = attnd_tree_index_find(tree, space, key);

    if (block == ATTND_NONE || !(tree->block[block].flags & ATTND_TREE_CLAIMED))
        return 0;
    waiter->abandoned = 0;
    waiter_add(&tree->block[block].waiters, waiter);
    tree->space[space].info.stats.waits++;
    return 1;
}

struct attnd_tree_waiter *attnd_tree_woken(struct attnd_tree *tree)
{
    struct attnd_tree_waiter *waiter = tree->woken;
    if (waiter)
        attnd_tree_unwait(waiter);
    return waiter;
}

/* ---- claims ---- */

static void claim_begin(struct attnd_tree *tree, struct attnd_tree_owner *owner, uint32_t block)
{
    struct attnd_tree_block *at = &tree->block[block];

    at->flags = ATTND_TREE_CLAIMED;
    at->owner = owner;
    at->waiters = NULL;
    at->before = ATTND_NONE;
    at->after = ATTND_NONE;
    if (owner->claims++) {
        at->after = owner->claims_first;
        tree->block[owner->claims_first].before = block;
    }
    owner->claims_first = block;
    tree->claims++;
    attnd_tree_space_of(tree, at)->info.claims++;
}

/* The entry has no state afterwards. */
static void claim_end(struct attnd_tree *tree, uint32_t block, uint32_t abandoned)
{
    struct attnd_tree_block *at = &tree->block[block];
    struct attnd_tree_space *space = attnd_tree_space_of(tree, at);

    while (at->waiters) {
        struct attnd_tree_waiter *waiter = at->waiters;
        attnd_tree_unwait(waiter);
        waiter->abandoned = abandoned;
        waiter_add(&tree->woken, waiter);
    }
    if (at->after != ATTND_NONE)
        tree->block[at->after].before = at->before;
    if (at->before != ATTND_NONE)
        tree->block[at->before].after = at->after;
    else
        at->owner->claims_first = at->after;
    at->owner->claims--;
    at->flags = 0;
    at->due = 0;
    at->children = 0;
    at->depth = 0;
    tree->claims--;
    space->info.claims--;
    space->info.stats.abandoned += abandoned;
}

/* Claims cannot take more than a quarter of what there is, nor one owner more than half of that. */
static int claim_fits(const struct attnd_tree *tree, const struct attnd_tree_owner *owner)
{
    uint32_t max = tree->args.blocks_max / 4 + 2;
    return tree->claims < max && owner->claims < max / 2;
}

struct attnd_tree_result attnd_tree_claim(struct attnd_tree *tree, struct attnd_tree_owner *owner,
                                          const struct attnd_tree_chain *chain)
{
    struct attnd_tree_result result = {.stop = ATTND_PREFIX_STOP_END};

    for (; result.blocks < chain->count; result.blocks++) {
        const struct attnd_block_key *key = &chain->keys[result.blocks];
        uint32_t block = attnd_tree_index_find(tree, chain->space, key);
        if (block != ATTND_NONE) {
            result.stop = tree->block[block].flags & ATTND_TREE_PUBLISHED
                              ? ATTND_PREFIX_STOP_PUBLISHED
                              : ATTND_PREFIX_STOP_CLAIMED;
            return result;
        }
        if (claim_fits(tree, owner))
            block = attnd_tree_block_new(tree, chain->space, key);
        if (block == ATTND_NONE) {
            result.stop = ATTND_PREFIX_STOP_FULL;
            return result;
        }
        claim_begin(tree, owner, block);
    }
    return result;
}

uint32_t attnd_tree_abandon(struct attnd_tree *tree, struct attnd_tree_owner *owner,
                            const struct attnd_tree_chain *chain)
{
    uint32_t ended = 0;

    for (uint32_t i = 0; i < chain->count; i++) {
        uint32_t block = attnd_tree_index_find(tree, chain->space, &chain->keys[i]);
        if (block == ATTND_NONE || !(tree->block[block].flags & ATTND_TREE_CLAIMED) ||
            tree->block[block].owner != owner)
            continue;
        claim_end(tree, block, 1);
        attnd_tree_block_free(tree, block);
        ended++;
    }
    return ended;
}

int attnd_tree_owner_end(struct attnd_tree *tree, struct attnd_tree_owner *owner,
                         uint32_t claims_max)
{
    while (owner->claims && claims_max-- > 0) {
        uint32_t block = owner->claims_first;
        claim_end(tree, block, 1);
        attnd_tree_block_free(tree, block);
    }
    return owner->claims > 0;
}

/* ---- publishing ---- */

/* The block's pages become its own, if none of them is anybody's. Return: 0; -ATTND_E_INVALID. */
static int bind_pages(struct attnd_tree *tree, uint32_t block, const int32_t *pages, uint32_t count)
{
    uint32_t bound = 0;

    while (bound < count && tree->block_of[pages[bound]] == 0)
        tree->block_of[pages[bound++]] = block + 1;
    if (bound == count)
        return 0;
    while (bound > 0)
        tree->block_of[pages[--bound]] = 0;
    return -ATTND_E_INVALID;
}

static void enter(struct attnd_tree *tree, uint32_t block, uint32_t parent, uint32_t publisher,
                  const int32_t *pages)
{
    struct attnd_tree_block *at = &tree->block[block];
    struct attnd_tree_space *space = attnd_tree_space_of(tree, at);
    uint32_t count = space->info.args.block_pages;

    at->flags = ATTND_TREE_PUBLISHED;
    at->parent = parent;
    at->publisher = publisher;
    at->page = pages[0];
    for (uint32_t i = 0; i + 1 < count; i++)
        tree->page_next[pages[i]] = pages[i + 1];
    tree->args.leases.take(tree->args.leases.context, pages, count);
    at->busy = 0;
    for (uint32_t i = 0; i < count; i++)
        at->busy = (uint16_t)(at->busy + (tree->args.leases.count[pages[i]] > 1));
    if (parent != ATTND_NONE) {
        at->depth = tree->block[parent].depth + 1;
        tree->block[parent].children++;
        attnd_tree_reorder(tree, parent);
    }
    space->info.blocks++;
    space->info.stats.published++;
    tree->pages += count;
    attnd_tree_reorder(tree, block);
}

/* Within the namespace's budget, for which its own blocks go, and with a place in its order. */
static int make_room(struct attnd_tree *tree, struct attnd_tree_space *space)
{
    uint64_t block_pages = space->info.args.block_pages;

    while ((space->info.blocks + UINT64_C(1)) * block_pages > space->info.args.pages_max)
        if (!attnd_tree_evict_one(tree, space, 1))
            return 0;
    return attnd_tree_order_reserve(&space->order, space->info.blocks + 1) == 0;
}

static int leases_fit(const struct attnd_tree *tree, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (tree->args.leases.count[pages[i]] >= tree->args.leases.max)
            return 0;
    return 1;
}

/* One block under @parent, which does not go meanwhile. Return: 1 it is there, in *@out; 0 there is
 * no room; -ATTND_E_INVALID. */
static int publish_one(struct attnd_tree *tree, const struct attnd_tree_owner *owner,
                       const struct attnd_block_key *key, uint32_t space_index, uint32_t parent,
                       const int32_t *pages, uint32_t *out, uint32_t *taken)
{
    struct attnd_tree_space *space = &tree->space[space_index];
    uint32_t count = space->info.args.block_pages;
    uint32_t block = attnd_tree_index_find(tree, space_index, key);

    *out = block;
    if (block != ATTND_NONE && tree->block[block].flags & ATTND_TREE_PUBLISHED) {
        if (tree->block[block].parent != parent)
            return -ATTND_E_INVALID;
        space->info.stats.duplicate++;
        return 1;
    }
    for (uint32_t i = 0; i < count; i++)
        if (tree->block_of[pages[i]])
            return -ATTND_E_INVALID;
    if (!leases_fit(tree, pages, count) || !make_room(tree, space))
        return 0;
    int claimed = block != ATTND_NONE;
    if (!claimed)
        block = attnd_tree_block_new(tree, space_index, key);
    if (block == ATTND_NONE)
        return 0;
    if (bind_pages(tree, block, pages, count) < 0) {
        if (!claimed)
            attnd_tree_block_free(tree, block);
        return -ATTND_E_INVALID;
    }
    if (claimed)
        claim_end(tree, block, 0);
    enter(tree, block, parent, owner->session, pages);
    *out = block;
    *taken += 1;
    return 1;
}

int attnd_tree_publish(struct attnd_tree *tree, struct attnd_tree_owner *owner,
                       const struct attnd_tree_chain *chain, const int32_t *pages,
                       struct attnd_tree_result *result)
{
    uint32_t block_pages = tree->space[chain->space].info.args.block_pages;
    uint32_t parent = ATTND_NONE, block = ATTND_NONE;

    *result = (struct attnd_tree_result){.stop = ATTND_PREFIX_STOP_END};
    if (chain->parent) {
        parent = attnd_tree_index_find(tree, chain->space, chain->parent);
        if (parent == ATTND_NONE || !(tree->block[parent].flags & ATTND_TREE_PUBLISHED))
            return -ATTND_E_UNKNOWN;
    }
    for (; result->blocks < chain->count; result->blocks++) {
        /* A child that is coming keeps the parent from being evicted for it. */
        if (parent != ATTND_NONE) {
            tree->block[parent].children++;
            attnd_tree_reorder(tree, parent);
        }
        int rc = publish_one(tree, owner, &chain->keys[result->blocks], chain->space, parent,
                             pages + (size_t)result->blocks * block_pages, &block, &result->taken);
        if (parent != ATTND_NONE) {
            tree->block[parent].children--;
            attnd_tree_reorder(tree, parent);
        }
        if (rc < 0)
            return rc;
        if (rc == 0) {
            result->stop = ATTND_PREFIX_STOP_FULL;
            return 0;
        }
        parent = block;
    }
    return 0;
}
