/*
 * bring.c - pages of two pools to rows.
 *
 * Where a page is one piece without gaps on both sides, in the same order, its layers are the rows
 * of one copy as long as they are equally far apart on each side. Otherwise a row is what is
 * contiguous on both: all heads of a token, or one head of it.
 */
#include "persistent/bring.h"

#include "schemas/errors.h"

#include <string.h>

/* Both pools, and what their pages have in common. */
struct pair {
    const struct attnd_heap_pool *to, *from;
    const struct attnd_heap_plane *to_planes, *from_planes;
    uint32_t element_bytes;
    uint32_t dim; /* of the planes that are looked at: K's or V's */
};

static const void *segment_at(const void *segment, uint64_t segment_bytes, uint64_t offset_bytes,
                              uint64_t count, uint64_t element_bytes)
{
    if (offset_bytes > segment_bytes || count > (segment_bytes - offset_bytes) / element_bytes)
        return NULL;
    return (const char *)segment + offset_bytes;
}

int attnd_bring_extent(const struct attnd_bring_rows *rows, uint64_t pitch_bytes, uint64_t *bytes)
{
    if (rows->count == 0 || __builtin_mul_overflow(pitch_bytes, (uint64_t)rows->count - 1, bytes) ||
        __builtin_add_overflow(*bytes, rows->row_bytes, bytes))
        return -ATTND_E_RANGE;
    return 0;
}

/* Element @page, @token, @head of a plane. Return: 0; 1 beyond 64 bits, or a negative stride. */
static int place(const struct attnd_heap_plane *plane, uint32_t element_bytes, uint32_t page,
                 uint32_t token, uint64_t *offset_bytes)
{
    uint64_t pages, tokens, elements;

    return plane->stride_page < 0 || plane->stride_token < 0 || plane->stride_head < 0 ||
           __builtin_mul_overflow((uint64_t)plane->stride_page, (uint64_t)page, &pages) ||
           __builtin_mul_overflow((uint64_t)plane->stride_token, (uint64_t)token, &tokens) ||
           __builtin_add_overflow(pages, tokens, &elements) ||
           __builtin_mul_overflow(elements, (uint64_t)element_bytes, &elements) ||
           __builtin_add_overflow(plane->offset_bytes, elements, offset_bytes);
}

/* A page is one piece, of tokens of all heads or of heads of all tokens. */
static int by_token(const struct pair *pair, const struct attnd_heap_plane *plane)
{
    const int64_t dim = pair->dim, heads = pair->to->heads_kv, tokens = pair->to->page_size;
    return (tokens == 1 || plane->stride_token == heads * dim) &&
           (heads == 1 || plane->stride_head == dim);
}

static int by_head(const struct pair *pair, const struct attnd_heap_plane *plane)
{
    const int64_t dim = pair->dim, heads = pair->to->heads_kv, tokens = pair->to->page_size;
    return (heads == 1 || plane->stride_head == tokens * dim) &&
           (tokens == 1 || plane->stride_token == dim);
}

static int same_order(const struct pair *pair, uint32_t plane)
{
    const struct attnd_heap_plane *to = &pair->to_planes[plane], *from = &pair->from_planes[plane];

    return (by_token(pair, to) && by_token(pair, from)) ||
           (by_head(pair, to) && by_head(pair, from));
}

/* Is @next as far behind @last as @pitch_bytes says, which is set by the second of a row of planes?
 */
static int follows(const struct attnd_heap_plane *last, const struct attnd_heap_plane *next,
                   uint32_t count, uint64_t row_bytes, uint64_t *pitch_bytes)
{
    const uint64_t pitch = next->offset_bytes - last->offset_bytes;

    if (next->memory != last->memory || next->stride_page != last->stride_page ||
        next->offset_bytes < last->offset_bytes || pitch < row_bytes ||
        (count > 1 && pitch != *pitch_bytes))
        return 0;
    *pitch_bytes = pitch;
    return 1;
}

/* Planes from @first on, before @end, whose page is a row each of one copy. */
static uint32_t even_planes(const struct pair *pair, uint32_t first, uint32_t end,
                            struct attnd_bring_rows *rows)
{
    uint32_t count = 1;

    rows->to_pitch_bytes = rows->from_pitch_bytes = rows->row_bytes;
    for (; first + count < end && same_order(pair, first + count); count++) {
        const uint32_t last = first + count - 1;
        uint64_t to_pitch = rows->to_pitch_bytes, from_pitch = rows->from_pitch_bytes;
        if (!follows(&pair->to_planes[last], &pair->to_planes[last + 1], count, rows->row_bytes,
                     &to_pitch) ||
            !follows(&pair->from_planes[last], &pair->from_planes[last + 1], count, rows->row_bytes,
                     &from_pitch))
            break;
        rows->to_pitch_bytes = to_pitch;
        rows->from_pitch_bytes = from_pitch;
    }
    return count;
}

/* A page of one plane whose tokens or heads lie differently, or with gaps: token by token. */
static int copy_tokens(const struct pair *pair, uint32_t plane, const struct attnd_bring_page *page,
                       attnd_bring_fn *copy, void *context)
{
    const struct attnd_heap_plane *to = &pair->to_planes[plane], *from = &pair->from_planes[plane];
    struct attnd_bring_rows rows = {.to_memory = to->memory,
                                    .from_memory = from->memory,
                                    .row_bytes = (uint64_t)pair->dim * pair->element_bytes,
                                    .count = pair->to->heads_kv};
    int rc = 0;

    if (to->stride_head < 0 || from->stride_head < 0 ||
        __builtin_mul_overflow((uint64_t)to->stride_head, (uint64_t)pair->element_bytes,
                               &rows.to_pitch_bytes) ||
        __builtin_mul_overflow((uint64_t)from->stride_head, (uint64_t)pair->element_bytes,
                               &rows.from_pitch_bytes))
        return -ATTND_E_RANGE;
    if (rows.count > 1 &&
        (rows.to_pitch_bytes < rows.row_bytes || rows.from_pitch_bytes < rows.row_bytes))
        return -ATTND_E_RANGE;
    for (uint32_t token = 0; token < pair->to->page_size && rc == 0; token++) {
        if (place(to, pair->element_bytes, page->page, token, &rows.to_offset_bytes) ||
            place(from, pair->element_bytes, page->from, token, &rows.from_offset_bytes))
            return -ATTND_E_RANGE;
        rc = copy(context, &rows);
    }
    return rc;
}

/* One page in planes [begin, end): some layers of K, or of V. */
static int copy_planes(const struct pair *pair, uint32_t begin, uint32_t end,
                       const struct attnd_bring_page *page, attnd_bring_fn *copy, void *context)
{
    const uint64_t row_bytes =
        (uint64_t)pair->to->page_size * pair->to->heads_kv * pair->dim * pair->element_bytes;
    int rc = 0;

    for (uint32_t plane = begin, count; plane < end && rc == 0; plane += count) {
        const struct attnd_heap_plane *to = &pair->to_planes[plane];
        const struct attnd_heap_plane *from = &pair->from_planes[plane];
        struct attnd_bring_rows rows = {
            .to_memory = to->memory, .from_memory = from->memory, .row_bytes = row_bytes};
        count = 1;
        if (!same_order(pair, plane)) {
            rc = copy_tokens(pair, plane, page, copy, context);
            continue;
        }
        if (place(to, pair->element_bytes, page->page, 0, &rows.to_offset_bytes) ||
            place(from, pair->element_bytes, page->from, 0, &rows.from_offset_bytes))
            return -ATTND_E_RANGE;
        count = rows.count = even_planes(pair, plane, end, &rows);
        rc = copy(context, &rows);
    }
    return rc;
}

/* MLA: the values are the first elements of the keys, in both pools. */
static int v_is_in_k(const struct pair *pair)
{
    const uint32_t layers = pair->to->layers;
    const size_t bytes = layers * sizeof(*pair->to_planes);

    return pair->to->dim_vo <= pair->to->dim_qk &&
           memcmp(pair->to_planes, pair->to_planes + layers, bytes) == 0 &&
           memcmp(pair->from_planes, pair->from_planes + layers, bytes) == 0;
}

/* A pool of the segment with its planes. Return: NULL: not within it. */
static const struct attnd_heap_pool *pool_at(const void *segment, uint64_t segment_bytes,
                                             uint64_t offset_bytes,
                                             const struct attnd_heap_plane **planes)
{
    const struct attnd_heap_pool *pool =
        segment_at(segment, segment_bytes, offset_bytes, 1, sizeof(*pool));
    if (!pool)
        return NULL;
    *planes = segment_at(segment, segment_bytes, offset_bytes + sizeof(*pool),
                         2 * (uint64_t)pool->layers, sizeof(**planes));
    return *planes ? pool : NULL;
}

int attnd_bring_walk(const void *segment, uint64_t segment_bytes, uint64_t offset_bytes,
                     attnd_bring_fn *copy, void *context)
{
    const struct attnd_bring *what =
        segment_at(segment, segment_bytes, offset_bytes, 1, sizeof(*what));
    if (!what)
        return -ATTND_E_RANGE;
    const struct attnd_bring_page *pages = segment_at(
        segment, segment_bytes, offset_bytes + sizeof(*what), what->count, sizeof(*pages));
    struct pair pair = {0};
    pair.to = pool_at(segment, segment_bytes, what->pool_offset_bytes, &pair.to_planes);
    pair.from = pool_at(segment, segment_bytes, what->from_offset_bytes, &pair.from_planes);
    if (!pages || !pair.to || !pair.from || !attnd_bring_alike(pair.to, pair.from) ||
        what->layer_end > pair.to->layers || what->layer_begin > what->layer_end)
        return -ATTND_E_RANGE;
    pair.element_bytes = attnd_dtype_bytes(pair.to->dtype);
    const int halves = v_is_in_k(&pair) ? 1 : 2;
    int rc = 0;

    for (uint64_t i = 0; i < (uint64_t)halves * what->count && rc == 0; i++) {
        const struct attnd_bring_page *page = &pages[i / (uint64_t)halves];
        const int is_v = halves == 2 && i % 2;
        const uint32_t first = is_v ? pair.to->layers : 0;
        pair.dim = is_v ? pair.to->dim_vo : pair.to->dim_qk;
        if (page->page >= pair.to->pages || page->from >= pair.from->pages)
            return -ATTND_E_RANGE;
        rc = copy_planes(&pair, first + what->layer_begin, first + what->layer_end, page, copy,
                         context);
    }
    return rc;
}
