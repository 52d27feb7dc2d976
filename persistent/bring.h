/*
 * bring.h - whole pages of one pool into another (struct attnd_bring) as rows of bytes, which is
 * what both backends execute. It checks what a bug of the daemon, or a lie of the other service,
 * would turn into a crash of everybody's worker.
 */
#ifndef ATTND_PERSISTENT_BRING_H
#define ATTND_PERSISTENT_BRING_H

#include "schemas/abi.h"

/* @count rows of @row_bytes, on each side one every so many bytes. Both sides lie within 64 bits;
 * whether within their memories, the backend sees. */
struct attnd_bring_rows {
    uint32_t from_memory, to_memory;
    uint64_t from_offset_bytes, to_offset_bytes;
    uint64_t row_bytes;
    uint64_t from_pitch_bytes, to_pitch_bytes; /* at least row_bytes where count > 1 */
    uint32_t count;
};

/* Return: 0, or the code that the walk ends with. */
typedef int attnd_bring_fn(void *context, const struct attnd_bring_rows *rows);

/**
 * attnd_bring_walk() - give @copy every row of the pages, as few times as strides allow
 * @segment: the queue segment, [@segment_bytes]
 * @offset_bytes: of the struct attnd_bring in it
 * Return: 0; what @copy returned first; -ATTND_E_RANGE: it is none within the segment, or the pools
 * have different shapes.
 */
int attnd_bring_walk(const void *segment, uint64_t segment_bytes, uint64_t offset_bytes,
                     attnd_bring_fn *copy, void *context);

/** attnd_bring_extent() - what @rows reach over on one side, whose pitch is @pitch_bytes. Return: 0
 * and *bytes; -ATTND_E_RANGE beyond 64 bits. */
int attnd_bring_extent(const struct attnd_bring_rows *rows, uint64_t pitch_bytes, uint64_t *bytes);

/** attnd_bring_alike() - have pages of both pools the same content: may one be brought into the
 * other? */
static inline int attnd_bring_alike(const struct attnd_heap_pool *a,
                                    const struct attnd_heap_pool *b)
{
    return a->layers == b->layers && a->page_size == b->page_size && a->heads_kv == b->heads_kv &&
           a->dim_qk == b->dim_qk && a->dim_vo == b->dim_vo && a->dtype == b->dtype;
}

/** attnd_bring_bytes() - of a page in @layers layers. */
static inline uint64_t attnd_bring_bytes(const struct attnd_heap_pool *pool, uint32_t layers)
{
    return (uint64_t)layers * pool->page_size * pool->heads_kv *
           ((uint64_t)pool->dim_qk + pool->dim_vo) * attnd_dtype_bytes(pool->dtype);
}

#endif
