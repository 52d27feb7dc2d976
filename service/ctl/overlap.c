/* overlap.c - a sweep over begins and ends, a layer at a time. */
#include "service/ctl/overlap.h"

#include "schemas/errors.h"

#include <stdlib.h>

/* Where a session comes to a layer, or leaves it. */
struct edge {
    uint64_t ns;
    uint16_t layer;
    int16_t sessions; /* 1 or -1 */
};

static int by_layer_and_session(const void *a, const void *b)
{
    const struct attnd_trace_record *x = a, *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->session != y->session)
        return x->session < y->session ? -1 : 1;
    return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

/* Whoever leaves at the moment at which another one comes does not meet it. */
static int by_layer_and_time(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->ns != y->ns)
        return x->ns < y->ns ? -1 : 1;
    return x->sessions - y->sessions;
}

/* Items of one session that overlap are one stay. @records: in order. Return: edges. */
static size_t find_edges(const struct attnd_trace_record *records, size_t count, struct edge *edges)
{
    size_t found = 0;

    for (size_t i = 0, next; i < count; i = next) {
        const struct attnd_trace_record *first = &records[i];
        uint64_t end_ns = attnd_trace_end_ns(first);
        for (next = i + 1;
             next < count && records[next].layer == first->layer &&
             records[next].session == first->session && records[next].begin_ns <= end_ns;
             next++) {
            const uint64_t next_ns = attnd_trace_end_ns(&records[next]);
            end_ns = next_ns > end_ns ? next_ns : end_ns;
        }
        edges[found++] = (struct edge){first->begin_ns, first->layer, 1};
        edges[found++] = (struct edge){end_ns, first->layer, -1};
    }
    return found;
}

int attnctl_overlap(struct attnd_trace_record *records, size_t count,
                    struct attnctl_overlap *overlap)
{
    struct edge *edges = malloc((2 * count + 1) * sizeof(*edges));
    int sessions = 0;

    *overlap = (struct attnctl_overlap){0};
    if (!edges)
        return -ATTND_E_NO_MEMORY;
    if (count)
        qsort(records, count, sizeof(*records), by_layer_and_session);
    const size_t found = find_edges(records, count, edges);
    if (found)
        qsort(edges, found, sizeof(*edges), by_layer_and_time);
    for (size_t i = 0; i + 1 < found; i++) {
        sessions += edges[i].sessions;
        const uint64_t ns = sessions ? edges[i + 1].ns - edges[i].ns : 0; /* 0 at a layer's end */
        overlap->busy_ns += ns;
        overlap->overlap_ns += sessions > 1 ? ns : 0;
    }
    free(edges);
    return 0;
}
