/*
 * places.c - see places.h. What a grant says of planes is held against the memory once, for every
 * element of every page, so that nothing has to be looked at where bytes are moved.
 */
#include "service/mover/places.h"

#include "service/mover/maps.h"

#include <stdlib.h>
#include <string.h>

static uint32_t dim_of(const struct attnd_places *places, uint32_t half)
{
    return half ? places->shape.dim_vo : places->shape.dim_qk;
}

static const struct attnd_heap_plane *plane_of(const struct attnd_places *places, uint32_t layer,
                                               uint32_t half)
{
    return &places->planes[half * places->shape.layers + layer];
}

/* ---- a grant ---- */

/* (@count - 1) * @stride more. Return: 1 beyond 64 bits, or backwards. */
static int reach(uint64_t *elements, uint32_t count, int64_t stride)
{
    uint64_t more;

    return stride < 0 || __builtin_mul_overflow((uint64_t)stride, (uint64_t)count - 1, &more) ||
           __builtin_add_overflow(*elements, more, elements);
}

static int check_plane(const struct attnd_places *places, const struct attnd_heap_plane *plane,
                       uint32_t half)
{
    const struct attnd_heap_pool *shape = &places->shape;
    uint64_t elements = dim_of(places, half), bytes;

    if (reach(&elements, shape->pages, plane->stride_page) ||
        reach(&elements, shape->page_size, plane->stride_token) ||
        reach(&elements, shape->heads_kv, plane->stride_head) ||
        __builtin_mul_overflow(elements, (uint64_t)places->element_bytes, &bytes) ||
        __builtin_add_overflow(bytes, plane->offset_bytes, &bytes) ||
        bytes > places->maps[plane->memory]->size_bytes)
        return -ATTND_E_RANGE;
    return 0;
}

/* Strides may be 0, so that a block is longer than the memory that it lies in. */
static int check_block(const struct attnd_places *places, uint32_t half)
{
    uint64_t bytes = places->element_bytes;

    if (__builtin_mul_overflow(bytes, (uint64_t)places->shape.page_size, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)places->shape.heads_kv, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)dim_of(places, half), &bytes) || bytes == 0 ||
        bytes > ATTND_BLOCK_BYTES_MAX)
        return -ATTND_E_RANGE;
    return 0;
}

static int take_planes(struct attnd_places *places, Attnd__PeerPlane *const *from, uint32_t half)
{
    int rc = 0;

    for (uint32_t i = 0; i < places->shape.layers && rc == 0; i++) {
        struct attnd_heap_plane *plane = &places->planes[half * places->shape.layers + i];
        *plane = (struct attnd_heap_plane){.memory = from[i]->memory,
                                           .offset_bytes = from[i]->offset_bytes,
                                           .stride_page = from[i]->stride_page,
                                           .stride_token = from[i]->stride_token,
                                           .stride_head = from[i]->stride_head};
        rc = check_plane(places, plane, half);
    }
    return rc;
}

static int take_grant(struct attnd_places *places, const Attnd__PeerGrant *grant, const int *fds,
                      int writes)
{
    int rc = 0;

    places->planes = calloc(2 * (size_t)grant->layers, sizeof(*places->planes));
    places->page = calloc(grant->n_page + 1, sizeof(*places->page));
    if (!places->planes || !places->page)
        return -ATTND_E_NO_MEMORY;
    if (check_block(places, 0) < 0 || check_block(places, 1) < 0)
        return -ATTND_E_RANGE;
    places->count = (uint32_t)grant->n_page;
    if (grant->n_page)
        memcpy(places->page, grant->page, grant->n_page * sizeof(*places->page));
    for (size_t i = 0; i < grant->n_memory && rc == 0; i++) {
        if (grant->memory[i]->memory_kind != ATTND_KIND_HOST)
            return -ATTND_E_UNSUPPORTED;
        rc = attnd_map_take(fds[i], grant->memory[i]->size_bytes, writes, &places->maps[i]);
        places->maps_count += rc == 0;
    }
    if (rc == 0)
        rc = take_planes(places, grant->k, 0);
    return rc < 0 ? rc : take_planes(places, grant->v, 1);
}

int attnd_places_new(const Attnd__PeerGrant *grant, const int *fds, int writes,
                     struct attnd_places **out)
{
    struct attnd_places *places = calloc(1, sizeof(*places));

    if (!places)
        return -ATTND_E_NO_MEMORY;
    places->shape = (struct attnd_heap_pool){.layers = grant->layers,
                                             .pages = grant->pages,
                                             .page_size = grant->page_size,
                                             .heads_kv = grant->heads_kv,
                                             .dim_qk = grant->dim_qk,
                                             .dim_vo = grant->dim_vo,
                                             .dtype = grant->dtype};
    places->element_bytes = attnd_dtype_bytes(grant->dtype);
    const int rc = take_grant(places, grant, fds, writes);
    if (rc < 0) {
        attnd_places_free(places);
        return rc;
    }
    *out = places;
    return 0;
}

void attnd_places_free(struct attnd_places *places)
{
    if (!places)
        return;
    for (uint32_t i = 0; i < places->maps_count; i++)
        attnd_map_drop(places->maps[i]);
    free(places->planes);
    free(places->page);
    free(places);
}

int attnd_places_v_in_k(const struct attnd_places *places)
{
    const uint32_t layers = places->shape.layers;

    return places->shape.dim_vo <= places->shape.dim_qk &&
           memcmp(places->planes, places->planes + layers, layers * sizeof(*places->planes)) == 0;
}

/* ---- blocks ---- */

uint64_t attnd_block_bytes(const struct attnd_places *places, uint32_t half)
{
    return (uint64_t)places->shape.page_size * places->shape.heads_kv * dim_of(places, half) *
           places->element_bytes;
}

enum attnd_block_order attnd_block_order(const struct attnd_places *places, uint32_t layer,
                                         uint32_t half)
{
    const struct attnd_heap_plane *plane = plane_of(places, layer, half);
    const int64_t dim = dim_of(places, half), heads = places->shape.heads_kv,
                  tokens = places->shape.page_size;

    if ((tokens == 1 || plane->stride_token == heads * dim) &&
        (heads == 1 || plane->stride_head == dim))
        return ATTND_BLOCK_BY_TOKEN;
    if ((heads == 1 || plane->stride_head == tokens * dim) &&
        (tokens == 1 || plane->stride_token == dim))
        return ATTND_BLOCK_BY_HEAD;
    return ATTND_BLOCK_STRIDED;
}

uint8_t *attnd_block_at(const struct attnd_places *places, uint32_t layer, uint32_t half,
                        uint32_t index)
{
    const struct attnd_heap_plane *plane = plane_of(places, layer, half);

    return places->maps[plane->memory]->address + plane->offset_bytes +
           (uint64_t)places->page[index] * (uint64_t)plane->stride_page * places->element_bytes;
}

/* Rows of a block: @wire is dense, in @order. */
static void walk(const struct attnd_places *places, uint32_t layer, uint32_t half, uint32_t index,
                 enum attnd_block_order order, uint8_t *wire, int gathers)
{
    const struct attnd_heap_plane *plane = plane_of(places, layer, half);
    const uint32_t by_head = order == ATTND_BLOCK_BY_HEAD;
    const uint32_t outer = by_head ? places->shape.heads_kv : places->shape.page_size,
                   inner = by_head ? places->shape.page_size : places->shape.heads_kv;
    const uint64_t row_bytes = (uint64_t)dim_of(places, half) * places->element_bytes,
                   token_bytes = (uint64_t)plane->stride_token * places->element_bytes,
                   head_bytes = (uint64_t)plane->stride_head * places->element_bytes;
    uint8_t *base = attnd_block_at(places, layer, half, index);

    for (uint32_t i = 0; i < outer; i++)
        for (uint32_t k = 0; k < inner; k++, wire += row_bytes) {
            uint8_t *row = base + (by_head ? k : i) * token_bytes + (by_head ? i : k) * head_bytes;
            memcpy(gathers ? wire : row, gathers ? row : wire, row_bytes);
        }
}

void attnd_block_gather(const struct attnd_places *places, uint32_t layer, uint32_t half,
                        uint32_t index, enum attnd_block_order order, uint8_t *to)
{
    walk(places, layer, half, index, order, to, 1);
}

void attnd_block_scatter(const struct attnd_places *places, uint32_t layer, uint32_t half,
                         uint32_t index, enum attnd_block_order order, const uint8_t *from)
{
    if (attnd_block_order(places, layer, half) == order)
        memcpy(attnd_block_at(places, layer, half, index), from, attnd_block_bytes(places, half));
    else
        walk(places, layer, half, index, order, (uint8_t *)(uintptr_t)from, 0);
}

/* ---- fragments ---- */

static uint32_t blocks_each(const struct attnd_places *places, uint32_t half)
{
    const uint64_t fit = ATTND_FRAGMENT_BYTES / attnd_block_bytes(places, half);

    return fit < 1 ? 1 : fit > ATTND_FRAGMENT_BLOCKS ? ATTND_FRAGMENT_BLOCKS : (uint32_t)fit;
}

static uint64_t fragments_of(const struct attnd_places *places, uint32_t half)
{
    const uint32_t each = blocks_each(places, half);

    return (places->count + (uint64_t)each - 1) / each;
}

uint64_t attnd_fragments(const struct attnd_places *places, uint32_t layers, uint32_t halves)
{
    return layers * (fragments_of(places, 0) + (halves == 2 ? fragments_of(places, 1) : 0));
}

struct attnd_fragment attnd_fragment_at(const struct attnd_places *places, uint32_t layer_begin,
                                        uint32_t halves, uint64_t number)
{
    const uint64_t of_k = fragments_of(places, 0), of_layer = attnd_fragments(places, 1, halves);
    const uint64_t within = number % of_layer;
    struct attnd_fragment fragment = {.layer = layer_begin + (uint32_t)(number / of_layer),
                                      .half = within >= of_k};
    const uint32_t each = blocks_each(places, fragment.half);

    fragment.first = (uint32_t)(within - (fragment.half ? of_k : 0)) * each;
    const uint32_t left = places->count - fragment.first;
    fragment.count = left < each ? left : each;
    return fragment;
}
