/* cascade.c - sorted by their page lists, requests that share a beginning stand together, and the
 * pages shared by a run of neighbours are the smallest of what each pair of neighbours shares. So
 * the best cut into groups is the best cut of a line: dynamic programming over where the last group
 * begins. A few dozen requests: quadratic is nothing. */
#include "bench/replay/cascade.h"

#include <assert.h>
#include <stdlib.h>

static int by_pages(const void *a, const void *b)
{
    const struct replay_cascade_list *x = a, *y = b;
    uint32_t count = x->count < y->count ? x->count : y->count;

    for (uint32_t i = 0; i < count; i++)
        if (x->pages[i] != y->pages[i])
            return x->pages[i] < y->pages[i] ? -1 : 1;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    return x->tag < y->tag ? -1 : x->tag > y->tag;
}

static uint32_t common_pages(const struct replay_cascade_list *x,
                             const struct replay_cascade_list *y)
{
    uint32_t count = x->count < y->count ? x->count : y->count, i = 0;

    while (i < count && x->pages[i] == y->pages[i])
        i++;
    return i;
}

uint32_t replay_cascade_group(struct replay_cascade_list *lists, uint32_t count,
                              struct replay_cascade_group *groups)
{
    uint64_t saved[REPLAY_CASCADE_LISTS_MAX + 1] = {0}; /* of the first i lists, at best */
    struct replay_cascade_group last[REPLAY_CASCADE_LISTS_MAX + 1]; /* the group that ends at i */
    uint32_t common[REPLAY_CASCADE_LISTS_MAX];                      /* list i with i - 1 */
    uint32_t number = 0;

    assert(count <= REPLAY_CASCADE_LISTS_MAX);
    qsort(lists, count, sizeof(lists[0]), by_pages);
    for (uint32_t i = 1; i < count; i++)
        common[i] = common_pages(&lists[i - 1], &lists[i]);
    for (uint32_t end = 1; end <= count; end++) {
        uint32_t shared = UINT32_MAX;

        last[end] = (struct replay_cascade_group){.begin = end - 1, .end = end};
        saved[end] = saved[end - 1];
        for (uint32_t begin = end - 1; begin-- > 0;) {
            uint64_t gain;

            shared = common[begin + 1] < shared ? common[begin + 1] : shared;
            if (!shared)
                break;
            gain = saved[begin] + (uint64_t)(end - begin - 1) * shared;
            if (gain > saved[end]) {
                saved[end] = gain;
                last[end] = (struct replay_cascade_group){begin, end, shared};
            }
        }
    }
    for (uint32_t end = count; end > 0; end = last[end].begin)
        groups[number++] = last[end];
    for (uint32_t i = 0; i < number / 2; i++) {
        struct replay_cascade_group swap = groups[i];
        groups[i] = groups[number - 1 - i];
        groups[number - 1 - i] = swap;
    }
    return number;
}
