/*
 * block.c - a block's states, and what follows when one of them changes.
 *
 *   claimed    somebody computes it: in the index and in the owner's list
 *   published  in the tree: its parent counts it, the tree holds a lease of its pages
 *   idle       published, and nobody else holds a lease, and it is not pinned
 *   ordered    idle, and no published block follows it: it can be evicted
 *
 * In which order idle leaves go is GreedyDual (Cao and Irani): a block is due at the level plus
 * what it costs to compute again, and the level rises to where the last one was that went. With
 * equal costs that is the least recently used first. A block costs more the deeper it stands,
 * because its queries see all keys before it. It is due by when it was last used, not by when it
 * became a leaf: the blocks of a chain that nobody asks for any more go one behind the other.
 */
#include "service/prefix/tree_internal.h"

#include <assert.h>
#include <stdlib.h>

/* At COST_TOKENS before it a block costs twice as much as at the beginning of a prompt: about there
 * attention takes the time that the rest of a layer takes. */
#define COST_TOKENS 32768u
#define COST_BASE 16u
#define COST_MAX (8u * COST_BASE)
#define TICK_BITS 24u

static uint64_t cost(const struct attnd_tree *tree, uint32_t space, uint32_t depth)
{
    uint64_t tokens =
        (uint64_t)depth * tree->space[space].info.args.block_pages * tree->args.page_size;
    uint64_t units = COST_BASE + tokens / (COST_TOKENS / COST_BASE);
    return units < COST_MAX ? units : COST_MAX;
}

uint64_t attnd_tree_compute_us(const struct attnd_tree *tree, uint32_t space, uint32_t depth)
{
    return tree->space[space].info.args.compute_us * cost(tree, space, depth) / COST_BASE;
}

static void set_idle(struct attnd_tree *tree, struct attnd_tree_block *at, int idle)
{
    uint32_t block_pages = attnd_tree_space_of(tree, at)->info.args.block_pages;

    if (idle == !!(at->flags & ATTND_TREE_IDLE))
        return;
    at->flags ^= ATTND_TREE_IDLE;
    if (!idle) {
        tree->idle_pages -= block_pages;
        return;
    }
    tree->idle_pages += block_pages;
    at->due = (tree->level + cost(tree, at->space, at->depth)) << TICK_BITS;
    at->due |= tree->tick++ & ((1u << TICK_BITS) - 1);
}

void attnd_tree_reorder(struct attnd_tree *tree, uint32_t block)
{
    struct attnd_tree_block *at = &tree->block[block];
    struct attnd_tree_order *order = &attnd_tree_space_of(tree, at)->order;
    int idle =
        at->flags & ATTND_TREE_PUBLISHED && !(at->flags & ATTND_TREE_PINNED) && at->busy == 0;

    if (at->flags & ATTND_TREE_ORDERED && (!idle || at->children)) {
        attnd_tree_order_remove(tree, order, block);
        at->flags &= (uint8_t)~ATTND_TREE_ORDERED;
    }
    set_idle(tree, at, idle);
    if (idle && !at->children && !(at->flags & ATTND_TREE_ORDERED)) {
        attnd_tree_order_add(tree, order, block);
        at->flags |= ATTND_TREE_ORDERED;
    }
}

/* ---- entries ---- */

static uint32_t take_entry(struct attnd_tree *tree)
{
    uint32_t block = tree->free_first - 1;

    if (tree->free_first) {
        tree->free_first = tree->block[block].bucket_next;
        return block;
    }
    if (tree->fresh == tree->args.blocks_max || *tree->args.used >= tree->args.used_max)
        return ATTND_NONE;
    *tree->args.used += 1;
    return tree->fresh++;
}

uint32_t attnd_tree_block_new(struct attnd_tree *tree, uint32_t space,
                              const struct attnd_block_key *key)
{
    uint32_t block = take_entry(tree);

    if (block == ATTND_NONE && attnd_tree_evict_one(tree, &tree->space[space], 1))
        block = take_entry(tree);
    if (block == ATTND_NONE)
        return ATTND_NONE;
    tree->block[block] =
        (struct attnd_tree_block){.key = *key, .parent = ATTND_NONE, .space = (uint8_t)space};
    attnd_tree_index_add(tree, block);
    return block;
}

void attnd_tree_block_free(struct attnd_tree *tree, uint32_t block)
{
    attnd_tree_index_remove(tree, block);
    tree->block[block].flags = 0;
    tree->block[block].bucket_next = tree->free_first;
    tree->free_first = block + 1;
}

/* ---- eviction ---- */

static void top_remove(struct attnd_tree_space *space, uint32_t block)
{
    for (uint32_t i = 0; i < space->top_count; i++)
        if (space->top[i] == block) {
            space->top[i] = space->top[--space->top_count];
            return;
        }
}

void attnd_tree_pages_of(const struct attnd_tree *tree, const struct attnd_tree_block *block,
                         uint32_t block_pages, int32_t *pages)
{
    int32_t page = block->page;
    pages[0] = page;
    for (uint32_t i = 1; i < block_pages; i++)
        pages[i] = page = tree->page_next[page];
}

/* The tree's leases of its pages go to the second tier, or are given up. */
static void let_go(struct attnd_tree *tree, const struct attnd_tree_gone *gone, int sink)
{
    if (sink && tree->below.take && tree->below.take(tree->below.context, gone))
        tree->space[gone->space].info.hosted++;
    else
        tree->args.leases.drop(tree->args.leases.context, gone->pages, gone->count);
}

uint32_t attnd_tree_evict_one(struct attnd_tree *tree, struct attnd_tree_space *space, int sink)
{
    int32_t pages[ATTND_PREFIX_BLOCK_PAGES_MAX];
    uint32_t count = space->info.args.block_pages;

    if (space->order.count == 0)
        return 0;
    uint32_t block = space->order.entry[0].block;
    struct attnd_tree_block *at = &tree->block[block];
    const struct attnd_block_key key = at->key;
    const struct attnd_tree_gone gone = {
        .space = at->space,
        .key = &key,
        .parent = at->parent == ATTND_NONE ? NULL : &tree->block[at->parent].key,
        .depth = at->depth,
        .publisher = at->publisher,
        .pages = pages,
        .count = count};
    assert(at->flags & ATTND_TREE_ORDERED && at->children == 0 && at->busy == 0);
    if (at->due >> TICK_BITS > tree->level)
        tree->level = at->due >> TICK_BITS;
    attnd_tree_order_remove(tree, &space->order, block);
    set_idle(tree, at, 0);
    if (at->flags & ATTND_TREE_LISTED)
        top_remove(space, block);
    if (at->parent != ATTND_NONE) {
        tree->block[at->parent].children--;
        attnd_tree_reorder(tree, at->parent);
    }
    attnd_tree_pages_of(tree, at, count, pages);
    for (uint32_t i = 0; i < count; i++)
        tree->block_of[pages[i]] = 0;
    attnd_tree_block_free(tree, block);
    space->info.blocks--;
    space->info.stats.evicted++;
    tree->pages -= count;
    let_go(tree, &gone, sink);
    return count;
}

void attnd_tree_space_collect(struct attnd_tree_space *space)
{
    /* Without a handle a claim is the second tier's, which brings the block back. */
    if (!space->used || space->info.handles || space->info.blocks || space->info.hosted ||
        space->info.claims)
        return;
    assert(space->info.pinned == 0);
    free(space->order.entry);
    *space = (struct attnd_tree_space){0};
}

/* The namespace whose next block is due first. @above_low: of those that have more than others must
 * leave them. */
static struct attnd_tree_space *first_due(struct attnd_tree *tree, int above_low)
{
    struct attnd_tree_space *first = NULL;

    for (uint32_t i = 0; i < ATTND_PREFIX_SPACES_MAX; i++) {
        struct attnd_tree_space *space = &tree->space[i];
        const struct attnd_tree_space_args *args = &space->info.args;
        if (space->order.count == 0)
            continue;
        if (above_low && (uint64_t)space->info.blocks * args->block_pages <= args->pages_low)
            continue;
        if (!first || space->order.entry[0].due < first->order.entry[0].due)
            first = space;
    }
    return first;
}

static uint32_t evict(struct attnd_tree *tree, uint32_t pages, int above_low, int sink)
{
    uint32_t gone = 0;

    while (gone < pages) {
        struct attnd_tree_space *space = first_due(tree, above_low);
        if (!space)
            break;
        gone += attnd_tree_evict_one(tree, space, sink);
        attnd_tree_space_collect(space);
    }
    return gone;
}

uint32_t attnd_tree_evict(struct attnd_tree *tree, uint32_t pages)
{
    uint32_t gone = evict(tree, pages, 1, 0);
    return gone < pages ? gone + evict(tree, pages - gone, 0, 0) : gone;
}

uint32_t attnd_tree_sink(struct attnd_tree *tree, uint32_t pages)
{
    return evict(tree, pages, 1, 1);
}

uint32_t attnd_tree_evictable(const struct attnd_tree *tree)
{
    return tree->idle_pages;
}

void attnd_tree_page_idle(struct attnd_tree *tree, int32_t page)
{
    uint32_t block = tree->block_of[page];
    if (!block)
        return;
    assert(tree->block[block - 1].busy > 0);
    tree->block[block - 1].busy--;
    attnd_tree_reorder(tree, block - 1);
}
