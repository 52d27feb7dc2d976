/*
 * tree_space.c - trees made and freed, and their namespaces.
 *
 * Arrays are as long as they can ever be and touched as they are needed, so nothing moves and
 * nothing is copied while the daemon runs. Touched blocks are counted against a budget of all
 * trees, because they are not given back before the tree goes.
 */
#include "service/prefix/tree_internal.h"

#include "ipc/array.h"

#include <assert.h>
#include <stdlib.h>

int attnd_tree_new(const struct attnd_tree_args *args, struct attnd_tree **out)
{
    assert(args->blocks_max > 0 && args->pages > 0);
    struct attnd_tree *tree = calloc(1, sizeof(*tree));
    int rc = -ATTND_E_NO_MEMORY;

    if (!tree)
        return rc;
    tree->args = *args;
    tree->block = attnd_array_new((uint64_t)args->blocks_max * sizeof(*tree->block));
    tree->block_of = attnd_array_new(args->pages * sizeof(*tree->block_of));
    if (tree->block && tree->block_of)
        rc = attnd_tree_index_init(tree);
    if (rc < 0) {
        attnd_tree_free(tree);
        return rc;
    }
    *out = tree;
    return 0;
}

/* On the closer's thread. */
static void close_tree(struct attnd_closing *closing)
{
    struct attnd_tree *tree = (struct attnd_tree *)(void *)closing;

    for (uint32_t i = 0; i < ATTND_PREFIX_SPACES_MAX; i++)
        free(tree->space[i].order.entry);
    attnd_array_free(tree->block, (uint64_t)tree->args.blocks_max * sizeof(*tree->block));
    attnd_array_free(tree->bucket, tree->buckets_max * sizeof(*tree->bucket));
    attnd_array_free(tree->block_of, tree->args.pages * sizeof(*tree->block_of));
    attnd_array_free(tree->page_next, tree->args.pages * sizeof(*tree->page_next));
    free(tree);
}

void attnd_tree_free(struct attnd_tree *tree)
{
    if (!tree)
        return;
    *tree->args.used -= tree->fresh;
    tree->closing = (struct attnd_closing){.close = close_tree, .bytes = attnd_tree_bytes(tree)};
    attnd_closer_take(&tree->closing);
}

void attnd_tree_set_below(struct attnd_tree *tree, const struct attnd_tree_below *below)
{
    tree->below = *below;
}

/* ---- namespaces ---- */

/* The place of a namespace that nobody has a handle on any more, if all its blocks can go. */
static struct attnd_tree_space *clear_orphan(struct attnd_tree *tree)
{
    for (uint32_t i = 0; i < ATTND_PREFIX_SPACES_MAX; i++) {
        struct attnd_tree_space *space = &tree->space[i];
        if (space->info.handles)
            continue;
        while (attnd_tree_evict_one(tree, space, 0) > 0)
            ;
        if (space->info.hosted && space->info.blocks == 0) {
            tree->below.clear(tree->below.context, i);
            space->info.hosted = 0;
        }
        attnd_tree_space_collect(space);
        if (!space->used)
            return space;
    }
    return NULL;
}

static struct attnd_tree_space *unused(struct attnd_tree *tree)
{
    for (uint32_t i = 0; i < ATTND_PREFIX_SPACES_MAX; i++)
        if (!tree->space[i].used)
            return &tree->space[i];
    return NULL;
}

static struct attnd_tree_space *vacant(struct attnd_tree *tree)
{
    struct attnd_tree_space *space = unused(tree);
    return space ? space : clear_orphan(tree);
}

int attnd_tree_space_make_room(struct attnd_tree *tree, uint32_t blocks_max)
{
    for (uint32_t i = 0; i < ATTND_PREFIX_SPACES_MAX && !unused(tree); i++) {
        struct attnd_tree_space *space = &tree->space[i];
        if (space->info.handles || space->order.count == 0)
            continue;
        while (blocks_max > 0 && attnd_tree_evict_one(tree, space, 0) > 0)
            blocks_max--;
        if (space->order.count)
            return 1;
        attnd_tree_space_collect(space);
    }
    return 0;
}

int attnd_tree_space_open(struct attnd_tree *tree, const struct attnd_tree_space_args *args,
                          uint32_t *space)
{
    if (args->block_pages < 1 || args->block_pages > ATTND_PREFIX_BLOCK_PAGES_MAX ||
        args->pages_max < args->block_pages)
        return -ATTND_E_RANGE;
    if (args->block_pages > 1 && !tree->page_next) {
        tree->page_next = attnd_array_new(tree->args.pages * sizeof(*tree->page_next));
        if (!tree->page_next)
            return -ATTND_E_NO_MEMORY;
    }
    struct attnd_tree_space *place = vacant(tree);
    if (!place)
        return -ATTND_E_NO_SPACE;
    place->used = 1;
    place->info.args = *args;
    place->info.handles = 1;
    *space = (uint32_t)(place - tree->space);
    return 0;
}

void attnd_tree_space_hold(struct attnd_tree *tree, uint32_t space)
{
    tree->space[space].info.handles++;
}

void attnd_tree_space_release(struct attnd_tree *tree, uint32_t space)
{
    struct attnd_tree_space *place = &tree->space[space];

    assert(place->info.handles > 0);
    if (--place->info.handles > 0)
        return;
    while (place->info.pinned)
        attnd_tree_pinned_remove(tree, place->pinned_first);
    attnd_tree_space_collect(place);
}

void attnd_tree_space_hosted(struct attnd_tree *tree, uint32_t space, uint32_t blocks)
{
    tree->space[space].info.hosted = blocks;
    attnd_tree_space_collect(&tree->space[space]);
}

const struct attnd_tree_space_info *attnd_tree_space_info(const struct attnd_tree *tree,
                                                          uint32_t space)
{
    return space < ATTND_PREFIX_SPACES_MAX && tree->space[space].used ? &tree->space[space].info
                                                                      : NULL;
}

uint32_t attnd_tree_space_top(const struct attnd_tree *tree, uint32_t space,
                              struct attnd_tree_top top[ATTND_TREE_TOP])
{
    const struct attnd_tree_space *from = &tree->space[space];

    for (uint32_t i = 0; i < from->top_count; i++) {
        const struct attnd_tree_block *at = &tree->block[from->top[i]];
        struct attnd_tree_top entry = {.key = at->key, .blocks = at->depth + 1, .hits = at->hits};
        uint32_t place = i;
        for (; place > 0 && top[place - 1].hits < entry.hits; place--)
            top[place] = top[place - 1];
        top[place] = entry;
    }
    return from->top_count;
}

/* ---- what can be asked ---- */

uint32_t attnd_tree_pages(const struct attnd_tree *tree)
{
    return tree->pages;
}

uint64_t attnd_tree_bytes(const struct attnd_tree *tree)
{
    uint64_t bytes = sizeof(*tree) + (uint64_t)tree->fresh * sizeof(*tree->block) +
                     (uint64_t)tree->buckets * sizeof(*tree->bucket) +
                     (uint64_t)tree->args.pages * sizeof(*tree->block_of);
    if (tree->page_next)
        bytes += (uint64_t)tree->args.pages * sizeof(*tree->page_next);
    for (uint32_t i = 0; i < ATTND_PREFIX_SPACES_MAX; i++)
        bytes += (uint64_t)tree->space[i].order.max * sizeof(struct attnd_tree_order_entry);
    return bytes;
}
