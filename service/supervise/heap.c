/*
 * heap.c - a sorted array of free spans.
 *
 * A pool or a plan takes one range for its life, a run one for its flight: tens to hundreds of
 * ranges, so an array that is searched from the front is smaller and faster than any tree, and the
 * lowest fit keeps large plans placeable. n live ranges leave at most n + 1 spans between them;
 * taking a range makes sure that the array could hold them, so handing one back cannot fail.
 */
#include "service/supervise/heap.h"

#include "schemas/abi.h"
#include "schemas/errors.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SPANS_MIN 64u

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + ATTND_CACHE_LINE - 1) & ~(uint64_t)(ATTND_CACHE_LINE - 1);
}

/* Room for the spans that could be free with one more live range. */
static int reserve_spans(struct attnd_heap *heap)
{
    if (heap->live + 2 <= heap->free_max)
        return 0;
    uint32_t spans_max = heap->free_max ? heap->free_max * 2 : SPANS_MIN;
    struct attnd_span *spans = realloc(heap->free, spans_max * sizeof(*spans));
    if (!spans)
        return -ATTND_E_NO_MEMORY;
    heap->free = spans;
    heap->free_max = spans_max;
    return 0;
}

int attnd_heap_reset(struct attnd_heap *heap, uint64_t begin, uint64_t end)
{
    assert(begin <= end && begin % ATTND_CACHE_LINE == 0);
    heap->live = 0;
    int rc = reserve_spans(heap);
    if (rc < 0)
        return rc;
    heap->free_count = begin < end;
    heap->free[0] = (struct attnd_span){begin, end};
    heap->bytes = end - begin;
    heap->used_bytes = 0;
    return 0;
}

void attnd_heap_destroy(struct attnd_heap *heap)
{
    free(heap->free);
    *heap = (struct attnd_heap){0};
}

static void remove_span(struct attnd_heap *heap, uint32_t at)
{
    heap->free_count--;
    memmove(&heap->free[at], &heap->free[at + 1], (heap->free_count - at) * sizeof(heap->free[0]));
}

int attnd_heap_take(struct attnd_heap *heap, uint64_t bytes, uint64_t *offset_bytes)
{
    if (bytes == 0)
        return -ATTND_E_RANGE;
    if (bytes > heap->bytes)
        return -ATTND_E_NO_SPACE;
    int rc = reserve_spans(heap);
    if (rc < 0)
        return rc;

    bytes = round_up(bytes);
    for (uint32_t i = 0; i < heap->free_count; i++) {
        struct attnd_span *span = &heap->free[i];
        if (span->end - span->begin < bytes)
            continue;
        *offset_bytes = span->begin;
        span->begin += bytes;
        if (span->begin == span->end)
            remove_span(heap, i);
        heap->live++;
        heap->used_bytes += bytes;
        return 0;
    }
    return -ATTND_E_NO_SPACE;
}

/* First span that begins at or after @offset. */
static uint32_t find_span(const struct attnd_heap *heap, uint64_t offset)
{
    uint32_t begin = 0, end = heap->free_count;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (heap->free[middle].begin < offset)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

void attnd_heap_take_again(struct attnd_heap *heap, uint64_t offset_bytes, uint64_t bytes)
{
    const uint64_t end = offset_bytes + round_up(bytes);
    uint32_t at = find_span(heap, offset_bytes);
    if (at == heap->free_count || heap->free[at].begin > offset_bytes)
        at--; /* it lies in the one before */
    struct attnd_span *span = &heap->free[at];
    const struct attnd_span behind = {end, span->end};
    assert(span->begin <= offset_bytes && end <= span->end);

    heap->live++;
    heap->used_bytes += round_up(bytes);
    span->end = offset_bytes;
    if (behind.begin == behind.end) {
        if (span->begin == span->end)
            remove_span(heap, at);
    } else if (span->begin == span->end) {
        *span = behind;
    } else {
        assert(heap->free_count < heap->free_max);
        memmove(span + 2, span + 1, (heap->free_count - at - 1) * sizeof(*span));
        span[1] = behind;
        heap->free_count++;
    }
}

void attnd_heap_give(struct attnd_heap *heap, uint64_t offset_bytes, uint64_t bytes)
{
    bytes = round_up(bytes);
    uint64_t end = offset_bytes + bytes;
    uint32_t at = find_span(heap, offset_bytes);
    struct attnd_span *before = at > 0 ? &heap->free[at - 1] : NULL;
    struct attnd_span *after = at < heap->free_count ? &heap->free[at] : NULL;
    assert(heap->live > 0 && heap->used_bytes >= bytes);
    assert(!before || before->end <= offset_bytes);
    assert(!after || end <= after->begin);

    heap->live--;
    heap->used_bytes -= bytes;
    int joins_before = before && before->end == offset_bytes;
    int joins_after = after && after->begin == end;
    if (joins_before && joins_after) {
        before->end = after->end;
        remove_span(heap, at);
    } else if (joins_before) {
        before->end = end;
    } else if (joins_after) {
        after->begin = offset_bytes;
    } else {
        assert(heap->free_count < heap->free_max);
        memmove(&heap->free[at + 1], &heap->free[at],
                (heap->free_count - at) * sizeof(heap->free[0]));
        heap->free[at] = (struct attnd_span){offset_bytes, end};
        heap->free_count++;
    }
}
