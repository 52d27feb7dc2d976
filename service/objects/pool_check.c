/*
 * pool_check.c - a pool's description against the rules, before anything is made for it.
 *
 * After this, [page, token, head, d] of every plane is inside its memory, so admission only has to
 * bound page ids. All sizes are 64-bit and every product is checked: the limits alone let a pool
 * have more bytes than a uint64_t counts.
 *
 * Pages do not share elements. Otherwise a little memory would be as many keys as its owner likes,
 * and what a pool costs to read and to keep account of would not be what it costs to have. Heads
 * and tokens of one page may share: a K that all heads read is stored once.
 */
#include "service/objects/pool_check.h"

#include "schemas/pool_fields.h"
#include "service/admission/admit.h"
#include "service/base/range.h"

#define PAGES_MAX (1u << 24)
#define PAGE_SIZE_MAX (1u << 20)
/* Keeps `index * stride` of any index inside int64_t. */
#define STRIDE_MAX ((int64_t)1 << 38)

static int check_dims(const Attnd__PoolCreate *desc, struct attnd_fault *fault)
{
    uint32_t dim = desc->dim_qk;

    if (!attnd_dims_option(dim, desc->dim_vo) && !attnd_head_dim_bit(dim))
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_HEAD_DIM, 0, dim,
                               ATTND_HEAD_DIM_EQUAL_MAX);
    if (!attnd_dims_option(dim, desc->dim_vo) && desc->dim_vo != dim)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_DIM_VO, 0, desc->dim_vo, dim);
    if (desc->dtype == 0 || desc->dtype >= ATTND_DTYPES_END)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_DTYPE, 0, desc->dtype,
                               desc->dtype ? ATTND_DTYPES_END - 1 : ATTND_FP16);
    return 0;
}

int attnd_pool_check_shape(const Attnd__PoolCreate *desc, struct attnd_heap_pool *shape,
                           struct attnd_fault *fault)
{
    int rc = attnd_in_range(desc->layers, ATTND_LAYERS_MAX, ATTND_F_LAYERS, fault);
    if (rc == 0)
        rc = attnd_in_range(desc->pages, PAGES_MAX, ATTND_F_PAGES, fault);
    if (rc == 0)
        rc = attnd_in_range(desc->page_size, PAGE_SIZE_MAX, ATTND_F_PAGE_SIZE, fault);
    if (rc == 0)
        rc = attnd_in_range(desc->heads_kv, ATTND_HEADS_MAX, ATTND_F_HEADS_KV, fault);
    if (rc == 0)
        rc = check_dims(desc, fault);
    if (rc < 0)
        return rc;
    if (desc->page_owner != ATTND__PAGE_OWNER__OWNER_SERVICE &&
        desc->page_owner != ATTND__PAGE_OWNER__OWNER_ENGINE)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_PAGE_OWNER, 0, desc->page_owner,
                               ATTND__PAGE_OWNER__OWNER_ENGINE);
    if (desc->n_k != desc->n_v || (desc->n_k != 0 && desc->n_k != desc->layers))
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_LAYERS, 0,
                               (int64_t)(desc->n_k == desc->layers ? desc->n_v : desc->n_k),
                               desc->layers);
    *shape = (struct attnd_heap_pool){0};
    ATTND_POOL_SHAPE_COPY(shape, desc);
    return 0;
}

/* The nearest that there is, for the fault: the largest not above, else the smallest. */
static uint32_t nearest_dim(uint16_t dims, uint32_t wanted)
{
    uint32_t found = 0;

    for (uint32_t dim = 16; dim <= ATTND_HEAD_DIM_EQUAL_MAX; dim += 16)
        if (dims & attnd_head_dim_bit(dim) && (found == 0 || dim <= wanted))
            found = dim;
    return found;
}

int attnd_pool_check_variant(const struct attnd_worker_info *worker,
                             const struct attnd_heap_pool *shape, struct attnd_fault *fault)
{
    const uint16_t dims = worker->head_dims[attnd_dtype_dims(shape->dtype)];
    const uint32_t option = attnd_dims_option(shape->dim_qk, shape->dim_vo);
    const uint32_t needed =
        option | (option && attnd_dtype_is_fp8(shape->dtype) ? ATTND_OPTION_DIMS_FP8 : 0);

    if (option ? (worker->options & needed) == needed : dims & attnd_head_dim_bit(shape->dim_qk))
        return 0;
    if (dims)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_HEAD_DIM, 0, shape->dim_qk,
                               nearest_dim(dims, shape->dim_qk));
    return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_DTYPE, 0, shape->dtype,
                           shape->dtype == ATTND_BF16 ? ATTND_FP16 : ATTND_BF16);
}

struct axis {
    int64_t count, stride;
    int is_page;
};

/* Axes with the smallest stride first; of equal ones the page is the outer one. */
static void sort_axes(struct axis axes[3])
{
    for (int i = 1; i < 3; i++)
        for (int j = i; j > 0; j--) {
            const struct axis inner = axes[j - 1], outer = axes[j];
            if (inner.stride < outer.stride || (inner.stride == outer.stride && !inner.is_page))
                break;
            axes[j - 1] = outer;
            axes[j] = inner;
        }
}

/* From the page's axis outwards each stride spans what lies inside it: then no two pages meet,
 * wherever in the plane the page's axis is. The extent of the plane is known to fit int64_t. */
static int check_pages_apart(const struct attnd_heap_pool *shape, const Attnd__Plane *plane,
                             uint32_t dim, uint32_t layer, struct attnd_fault *fault)
{
    struct axis axes[] = {{shape->heads_kv, plane->stride_head, 0},
                          {shape->page_size, plane->stride_token, 0},
                          {shape->pages, plane->stride_page, 1}};
    const int64_t page = dim + (int64_t)(shape->heads_kv - 1) * plane->stride_head +
                         (int64_t)(shape->page_size - 1) * plane->stride_token;
    int64_t inside = dim; /* elements of what lies inside the axis */
    int outside_page = 0;

    if (shape->pages == 1)
        return 0;
    sort_axes(axes);
    for (int i = 0; i < 3; i++) {
        if (axes[i].count == 1)
            continue;
        outside_page |= axes[i].is_page;
        if (outside_page && axes[i].stride < inside)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_STRIDE, layer, axes[i].stride,
                                   axes[i].is_page ? page : inside);
        inside += (axes[i].count - 1) * axes[i].stride;
    }
    return 0;
}

int attnd_pool_check_plane(const struct attnd_heap_pool *shape, const Attnd__Plane *plane,
                           uint64_t memory_bytes, enum attnd_field field, uint32_t layer,
                           struct attnd_fault *fault)
{
    const uint32_t dim = field == ATTND_F_V ? shape->dim_vo : shape->dim_qk;
    const uint32_t element_bytes = attnd_dtype_bytes(shape->dtype);
    const uint64_t counts[] = {shape->pages, shape->page_size, shape->heads_kv, dim};
    const int64_t strides[] = {plane->stride_page, plane->stride_token, plane->stride_head, 1};
    uint64_t extent_bytes, end_bytes;

    for (int i = 0; i < 3; i++)
        if (strides[i] < 0 || strides[i] > STRIDE_MAX)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_STRIDE, layer, strides[i],
                                   strides[i] < 0 ? 0 : STRIDE_MAX);
    if (plane->offset_bytes % element_bytes)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_OFFSET, layer,
                               (int64_t)plane->offset_bytes, element_bytes);
    int rc = attnd_extent_bytes(counts, strides, 4, element_bytes, &extent_bytes);
    if (rc < 0 || __builtin_add_overflow(plane->offset_bytes, extent_bytes, &end_bytes))
        end_bytes = UINT64_MAX;
    if (end_bytes > memory_bytes)
        return attnd_fault_set(fault, -ATTND_E_RANGE, field, layer,
                               end_bytes > INT64_MAX ? INT64_MAX : (int64_t)end_bytes,
                               (int64_t)memory_bytes);
    return check_pages_apart(shape, plane, dim, layer, fault);
}

int attnd_pool_plane_bytes(const struct attnd_heap_pool *shape, uint64_t *bytes,
                           struct attnd_fault *fault)
{
    /* At most 2^24 * 2^20 and 2^10 * 2^8 * 2. */
    uint64_t tokens = (uint64_t)shape->pages * shape->page_size;
    uint64_t token_bytes =
        (uint64_t)shape->heads_kv * shape->dim_qk * attnd_dtype_bytes(shape->dtype);
    uint64_t all_bytes;

    if (__builtin_mul_overflow(tokens, token_bytes, bytes) ||
        __builtin_mul_overflow(*bytes, 2u * shape->layers, &all_bytes) || all_bytes > INT64_MAX)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SIZE, 0, INT64_MAX, INT64_MAX);
    return 0;
}
