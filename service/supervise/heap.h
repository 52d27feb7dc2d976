/*
 * heap.h - first-fit allocator of offsets: it hands out ranges of memory that it never touches.
 *
 * The bookkeeping is private to the daemon: what it manages is mapped by the worker too (the heap
 * of the queue segment) or by the worker only (its scratch).
 */
#ifndef ATTND_SERVICE_SUPERVISE_HEAP_H
#define ATTND_SERVICE_SUPERVISE_HEAP_H

#include <stdint.h>

struct attnd_span {
    uint64_t begin, end;
};

/* Zero-initialise; attnd_heap_reset() gives it something to manage. */
struct attnd_heap {
    struct attnd_span *free; /* by begin; no two touch */
    uint32_t free_count, free_max;
    uint32_t live; /* ranges handed out */
    uint64_t bytes, used_bytes;
};

/**
 * attnd_heap_reset() - forget every range; manage begin..end from now on
 * Return: 0 or -ATTND_E_NO_MEMORY (only the first time).
 */
int attnd_heap_reset(struct attnd_heap *heap, uint64_t begin, uint64_t end);

/** attnd_heap_destroy() - free the bookkeeping. */
void attnd_heap_destroy(struct attnd_heap *heap);

/**
 * attnd_heap_take() - a range of @bytes, rounded up to ATTND_CACHE_LINE; the lowest that fits
 * Return: 0 and *offset_bytes; -ATTND_E_NO_SPACE; -ATTND_E_NO_MEMORY; -ATTND_E_RANGE for 0 bytes.
 */
int attnd_heap_take(struct attnd_heap *heap, uint64_t bytes, uint64_t *offset_bytes);

/** attnd_heap_take_again() - a range that was taken, and given back, and is free. */
void attnd_heap_take_again(struct attnd_heap *heap, uint64_t offset_bytes, uint64_t bytes);

/** attnd_heap_give() - hand back a range as it was taken. Never fails. */
void attnd_heap_give(struct attnd_heap *heap, uint64_t offset_bytes, uint64_t bytes);

#endif
