/*
 * copy.h - a copy of whole pages (struct attnd_copy) as rows of bytes, which is what both backends
 * execute. It checks what a bug of the daemon would turn into a crash of everybody's worker.
 */
#ifndef ATTND_PERSISTENT_COPY_H
#define ATTND_PERSISTENT_COPY_H

#include "schemas/abi.h"

/* @count rows of @row_bytes. In host memory they lie one behind the other, in the pool one every
 * @pitch_bytes. Both ends lie within 64 bits; whether within their memories, the backend sees. */
struct attnd_copy_rows {
    uint32_t pool_memory, host_memory;
    uint64_t pool_offset_bytes, host_offset_bytes;
    uint64_t row_bytes, pitch_bytes; /* pitch at least row_bytes where count > 1 */
    uint32_t count;
    uint32_t to_host;
};

/* Return: 0, or the code that the walk ends with. */
typedef int attnd_copy_fn(void *context, const struct attnd_copy_rows *rows);

/**
 * attnd_copy_walk() - give @copy every row of the pages, as few times as strides allow
 * @segment: the queue segment, [@segment_bytes]
 * @offset_bytes: of the struct attnd_copy in it
 * Return: 0; what @copy returned first; -ATTND_E_RANGE: it is no copy within the segment.
 */
int attnd_copy_walk(const void *segment, uint64_t segment_bytes, uint64_t offset_bytes,
                    attnd_copy_fn *copy, void *context);

/** attnd_copy_dense() - is a page of such a plane one piece without gaps? */
int attnd_copy_dense(const struct attnd_heap_pool *pool, const struct attnd_heap_plane *plane);

/** attnd_copy_extent() - bytes of a page in one plane of a pool. */
static inline uint64_t attnd_copy_extent(const struct attnd_heap_pool *pool)
{
    return (uint64_t)pool->page_size * pool->heads_kv * pool->dim_qk *
           attnd_dtype_bytes(pool->dtype);
}

/** attnd_copy_page_bytes() - and in all of them. */
static inline uint64_t attnd_copy_page_bytes(const struct attnd_heap_pool *pool)
{
    return 2 * (uint64_t)pool->layers * attnd_copy_extent(pool);
}

#endif
