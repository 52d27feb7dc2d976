/*
 * order.c - what can be evicted, by when it is due: a binary heap of each namespace.
 *
 * A block leaves the heap wherever it stands as soon as somebody uses it, so each block knows its
 * place. Equal times cannot be: the last bits of one count.
 */
#include "service/prefix/tree_internal.h"

#include <stdlib.h>

#define ENTRIES_MIN 64u

int attnd_tree_order_reserve(struct attnd_tree_order *order, uint32_t count)
{
    if (count <= order->max)
        return 0;
    uint64_t max = order->max < ENTRIES_MIN ? ENTRIES_MIN : 2 * (uint64_t)order->max;
    if (max < count)
        max = count;
    void *grown = realloc(order->entry, max * sizeof(*order->entry));
    if (!grown)
        return -ATTND_E_NO_MEMORY;
    order->entry = grown;
    order->max = (uint32_t)max;
    return 0;
}

static void put(struct attnd_tree *tree, const struct attnd_tree_order *order, uint32_t place,
                struct attnd_tree_order_entry entry)
{
    order->entry[place] = entry;
    tree->block[entry.block].before = place;
}

static uint32_t rise(struct attnd_tree *tree, const struct attnd_tree_order *order, uint32_t place,
                     struct attnd_tree_order_entry entry)
{
    while (place > 0 && order->entry[(place - 1) / 2].due > entry.due) {
        put(tree, order, place, order->entry[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    return place;
}

static uint32_t sink(struct attnd_tree *tree, const struct attnd_tree_order *order, uint32_t place,
                     struct attnd_tree_order_entry entry)
{
    for (;;) {
        uint64_t child = 2 * (uint64_t)place + 1;
        if (child >= order->count)
            return place;
        if (child + 1 < order->count && order->entry[child + 1].due < order->entry[child].due)
            child++;
        if (order->entry[child].due >= entry.due)
            return place;
        put(tree, order, place, order->entry[child]);
        place = (uint32_t)child;
    }
}

void attnd_tree_order_add(struct attnd_tree *tree, struct attnd_tree_order *order, uint32_t block)
{
    struct attnd_tree_order_entry entry = {.due = tree->block[block].due, .block = block};
    put(tree, order, rise(tree, order, order->count++, entry), entry);
}

void attnd_tree_order_remove(struct attnd_tree *tree, struct attnd_tree_order *order,
                             uint32_t block)
{
    uint32_t place = tree->block[block].before;
    struct attnd_tree_order_entry last = order->entry[--order->count];
    if (last.block == block)
        return;
    uint32_t risen = rise(tree, order, place, last);
    put(tree, order, risen == place ? sink(tree, order, place, last) : risen, last);
}
