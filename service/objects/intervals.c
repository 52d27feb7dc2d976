/*
 * intervals.c - a treap of intervals by their beginning, each of which knows how far those below it
 * reach.
 *
 * A client decides what intervals there are, so the tree is balanced by random ranks and not by
 * luck. Each run is held against it: the time of that must not grow with what its owner has.
 */
#include "service/objects/intervals.h"

#include <stdlib.h>

static int by_begin(const void *a, const void *b)
{
    const struct attnd_interval *x = a, *y = b;

    return (x->begin > y->begin) - (x->begin < y->begin);
}

uint32_t attnd_intervals_merge(struct attnd_interval *intervals, uint32_t count)
{
    uint32_t left = 0;

    qsort(intervals, count, sizeof(*intervals), by_begin);
    for (uint32_t i = 0; i < count; i++) {
        struct attnd_interval *last = left ? &intervals[left - 1] : NULL;
        if (!last || intervals[i].begin >= last->end)
            intervals[left++] = intervals[i];
        else if (intervals[i].end > last->end)
            last->end = intervals[i].end;
    }
    return left;
}

/* Not for secrets: nobody learns where a node stands. */
static uint64_t next_rank(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void look_below(struct attnd_interval *at)
{
    at->last = at->end;
    if (at->left && at->left->last > at->last)
        at->last = at->left->last;
    if (at->right && at->right->last > at->last)
        at->last = at->right->last;
}

/* Equal beginnings: by address. */
static int before(const struct attnd_interval *a, const struct attnd_interval *b)
{
    return a->begin < b->begin || (a->begin == b->begin && (uintptr_t)a < (uintptr_t)b);
}

/* All of @at that are before @key, and the rest. */
static void split(struct attnd_interval *at, const struct attnd_interval *key,
                  struct attnd_interval **low, struct attnd_interval **high)
{
    if (!at) {
        *low = *high = NULL;
        return;
    }
    if (before(at, key)) {
        split(at->right, key, &at->right, high);
        *low = at;
    } else {
        split(at->left, key, low, &at->left);
        *high = at;
    }
    look_below(at);
}

/* All of @low are before all of @high. */
static struct attnd_interval *join(struct attnd_interval *low, struct attnd_interval *high)
{
    if (!low || !high)
        return low ? low : high;
    if (low->rank > high->rank) {
        low->right = join(low->right, high);
        look_below(low);
        return low;
    }
    high->left = join(low, high->left);
    look_below(high);
    return high;
}

void attnd_intervals_add(struct attnd_interval **root, struct attnd_interval *interval)
{
    struct attnd_interval *low, *high;

    interval->left = interval->right = NULL;
    interval->rank = next_rank();
    look_below(interval);
    split(*root, interval, &low, &high);
    *root = join(join(low, interval), high);
}

void attnd_intervals_remove(struct attnd_interval **root, struct attnd_interval *interval)
{
    struct attnd_interval *at = *root;

    if (at == interval) {
        *root = join(at->left, at->right);
        return;
    }
    attnd_intervals_remove(before(interval, at) ? &at->left : &at->right, interval);
    look_below(at);
}

const struct attnd_interval *attnd_intervals_find(const struct attnd_interval *root, uint64_t begin,
                                                  uint64_t end)
{
    while (root && begin < end) {
        if (root->begin < end && begin < root->end)
            return root;
        /* Where the left reaches behind @begin and none of it overlaps, all of the right begins
         * too late. */
        root = root->left && root->left->last > begin ? root->left : root->right;
    }
    return NULL;
}
