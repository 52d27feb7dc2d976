/*
 * copy.c - pages to rows.
 *
 * In host memory the planes of a page follow each other. In a pool that the service made, planes
 * are equally far apart, and so are the layers of most others: then all layers of a page are the
 * rows of one copy. A plane that lies elsewhere begins another.
 */
#include "persistent/copy.h"

#include "schemas/errors.h"

static const void *segment_at(const void *segment, uint64_t segment_bytes, uint64_t offset_bytes,
                              uint64_t count, uint64_t element_bytes)
{
    if (offset_bytes > segment_bytes || count > (segment_bytes - offset_bytes) / element_bytes)
        return NULL;
    return (const char *)segment + offset_bytes;
}

int attnd_copy_dense(const struct attnd_heap_pool *pool, const struct attnd_heap_plane *plane)
{
    const int64_t dim = pool->dim_qk, heads = pool->heads_kv, tokens = pool->page_size;
    int by_token = (tokens == 1 || plane->stride_token == heads * dim) &&
                   (heads == 1 || plane->stride_head == dim);
    int by_head = (heads == 1 || plane->stride_head == tokens * dim) &&
                  (tokens == 1 || plane->stride_token == dim);
    return by_token || by_head;
}

/* Where page @page begins in a plane. Return: 0; 1 beyond 64 bits. */
static int place(const struct attnd_heap_plane *plane, uint32_t element_bytes, uint32_t page,
                 uint64_t *offset_bytes)
{
    uint64_t bytes;
    return plane->stride_page < 0 ||
           __builtin_mul_overflow((uint64_t)plane->stride_page * element_bytes, (uint64_t)page,
                                  &bytes) ||
           __builtin_add_overflow(plane->offset_bytes, bytes, offset_bytes);
}

/* Layers from @first on, before @end, that are equally far apart for every page. */
static uint32_t even_layers(const struct attnd_heap_plane *planes, uint32_t first, uint32_t end,
                            uint64_t row_bytes, uint64_t *pitch_bytes)
{
    uint32_t count = 1;

    *pitch_bytes = row_bytes;
    while (first + count < end) {
        const struct attnd_heap_plane *before = &planes[first + count - 1];
        const struct attnd_heap_plane *next = &planes[first + count];
        uint64_t pitch = next->offset_bytes - before->offset_bytes;
        if (next->memory != before->memory || next->stride_page != before->stride_page ||
            next->offset_bytes < before->offset_bytes || pitch < row_bytes ||
            (count > 1 && pitch != *pitch_bytes))
            break;
        *pitch_bytes = pitch;
        count++;
    }
    return count;
}

/* One page in layers [begin, end) of K or of V. */
static int copy_planes(const struct attnd_heap_plane *planes, uint32_t element_bytes,
                       uint32_t begin, uint32_t end, const struct attnd_copy_page *page,
                       struct attnd_copy_rows *rows, attnd_copy_fn *copy, void *context)
{
    int rc = 0;

    for (uint32_t layer = begin; layer < end && rc == 0; layer += rows->count) {
        rows->pool_memory = planes[layer].memory;
        if (place(&planes[layer], element_bytes, page->page, &rows->pool_offset_bytes))
            return -ATTND_E_RANGE;
        rows->count = even_layers(planes, layer, end, rows->row_bytes, &rows->pitch_bytes);
        rc = copy(context, rows);
        rows->host_offset_bytes += rows->count * rows->row_bytes;
    }
    return rc;
}

int attnd_copy_walk(const void *segment, uint64_t segment_bytes, uint64_t offset_bytes,
                    attnd_copy_fn *copy, void *context)
{
    const struct attnd_copy *what =
        segment_at(segment, segment_bytes, offset_bytes, 1, sizeof(*what));
    if (!what)
        return -ATTND_E_RANGE;
    const struct attnd_copy_page *pages = segment_at(
        segment, segment_bytes, offset_bytes + sizeof(*what), what->count, sizeof(*pages));
    const struct attnd_heap_pool *pool =
        segment_at(segment, segment_bytes, what->pool_offset_bytes, 1, sizeof(*pool));
    if (!pages || !pool || what->layer_end > pool->layers || what->layer_begin > what->layer_end)
        return -ATTND_E_RANGE;
    const struct attnd_heap_plane *planes =
        segment_at(segment, segment_bytes, what->pool_offset_bytes + sizeof(*pool),
                   2 * (uint64_t)pool->layers, sizeof(*planes));
    if (!planes)
        return -ATTND_E_RANGE;
    const uint64_t row_bytes = attnd_copy_extent(pool);
    int rc = 0;

    for (uint64_t i = 0; i < 2 * (uint64_t)what->count && rc == 0; i++) {
        const struct attnd_copy_page *page = &pages[i / 2];
        const uint64_t plane = i % 2 * pool->layers;
        struct attnd_copy_rows rows = {.host_memory = page->memory,
                                       .host_offset_bytes = page->offset_bytes +
                                                            (plane + what->layer_begin) * row_bytes,
                                       .row_bytes = row_bytes,
                                       .to_host = what->to_host};
        if (page->page >= pool->pages || rows.host_offset_bytes < page->offset_bytes)
            return -ATTND_E_RANGE;
        rc = copy_planes(planes + plane, attnd_dtype_bytes(pool->dtype), what->layer_begin,
                         what->layer_end, page, &rows, copy, context);
    }
    return rc;
}
