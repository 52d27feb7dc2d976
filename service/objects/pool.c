/*
 * pool.c - pools, and the sessions' holds on them.
 *
 * A pool outlives its creator: it is freed when the last attachment and the last ticket of its
 * pages are gone. The worker's part of it lies in the queue heap and is written once, before any
 * plan can name it. Plans hold attachments, and runs in flight hold plans, so when the last
 * reference goes nothing reads the pool any more.
 */
#include "service/objects/pool.h"

#include "ipc/array.h"
#include "schemas/attnd.pb-c.h"
#include "service/admission/admit.h"
#include "service/objects/arrival.h"
#include "service/objects/lease.h"
#include "service/supervise/queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int out_of_memory(struct attnd_fault *fault, enum attnd_field field, uint64_t limit)
{
    return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, field, 0, (int64_t)limit, (int64_t)limit);
}

static int is_leased(const struct attnd_pool *pool)
{
    return pool->page_owner != ATTND__PAGE_OWNER__OWNER_ENGINE;
}

static uint64_t intervals_bytes(const struct attnd_pool *pool)
{
    return 2 * (uint64_t)pool->shape.layers * sizeof(*pool->intervals) +
           pool->memories_count * sizeof(*pool->intervals_end);
}

/* Of the daemon's memory. Pages that were never leased are counted, not listed, so a large pool
 * costs memory only as its pages are used; what it may come to is counted from the beginning. */
static uint64_t private_bytes(const struct attnd_pool *pool)
{
    uint64_t page_bytes = is_leased(pool) ? sizeof(*pool->leases) + sizeof(*pool->free_pages) : 0;

    return sizeof(*pool) + pool->memories_count * sizeof(struct attnd_memory *) +
           intervals_bytes(pool) + pool->shape.pages * page_bytes;
}

static int alloc_arrays(struct attnd_pool *pool, struct attnd_fault *fault)
{
    pool->memories = calloc(pool->memories_count, sizeof(struct attnd_memory *));
    pool->intervals = calloc(2 * (size_t)pool->shape.layers, sizeof(*pool->intervals));
    pool->intervals_end = calloc(pool->memories_count, sizeof(*pool->intervals_end));
    if (is_leased(pool)) {
        pool->leases = attnd_array_new(pool->shape.pages * sizeof(*pool->leases));
        pool->free_pages = attnd_array_new(pool->shape.pages * sizeof(*pool->free_pages));
    }
    if (pool->memories && pool->intervals && pool->intervals_end &&
        (!is_leased(pool) || (pool->leases && pool->free_pages)))
        return 0;
    return out_of_memory(fault, ATTND_F_PAGES, pool->shape.pages);
}

static void free_arrays(struct attnd_pool *pool)
{
    if (pool->keeper)
        pool->keeper->end(pool);
    free(pool->memories);
    free(pool->intervals);
    free(pool->intervals_end);
    attnd_array_free(pool->leases, pool->shape.pages * sizeof(*pool->leases));
    attnd_array_free(pool->quiet, pool->quiet ? pool->shape.pages * sizeof(*pool->quiet) : 0);
    attnd_array_free(pool->free_pages, pool->shape.pages * sizeof(*pool->free_pages));
    free(pool);
}

static int write_heap(struct attnd_queue *queue, struct attnd_pool *pool,
                      const struct attnd_heap_plane *planes, struct attnd_fault *fault)
{
    pool->heap_offset_bytes = attnd_heap_alloc(queue, pool->heap_bytes);
    if (pool->heap_offset_bytes == 0)
        return out_of_memory(fault, ATTND_F_LAYERS, pool->shape.layers);
    pool->heap = attnd_heap_at(queue, pool->heap_offset_bytes);
    *pool->heap = pool->shape;
    memcpy(pool->heap + 1, planes, pool->heap_bytes - sizeof(*pool->heap));
    return 0;
}

/* Everything that it counts for; all of it or nothing. */
static int charge(struct attnd_client *maker, struct attnd_pool *pool, struct attnd_fault *fault)
{
    struct attnd_service *service = maker->service;

    pool->payer = attnd_quota_payer(maker);
    pool->charged_bytes = private_bytes(pool);
    int rc = attnd_quota_take(maker, ATTND_QUOTA_POOLS, 1, fault);
    if (rc < 0)
        return rc;
    rc = attnd_quota_charge(maker, pool->charged_bytes, fault);
    if (rc == 0) {
        rc = attnd_quota_take(maker, ATTND_QUOTA_HEAP, pool->heap_bytes, fault);
        if (rc == 0)
            return 0;
        attnd_quota_refund(service, pool->payer, pool->charged_bytes);
    }
    attnd_quota_give(service, pool->payer, ATTND_QUOTA_POOLS, 1);
    return rc;
}

static void refund(struct attnd_service *service, const struct attnd_pool *pool)
{
    attnd_quota_give(service, pool->payer, ATTND_QUOTA_HEAP, pool->heap_bytes);
    attnd_quota_refund(service, pool->payer, pool->charged_bytes);
    attnd_quota_give(service, pool->payer, ATTND_QUOTA_POOLS, 1);
}

/* Where a plane lies. Its extent was checked against its memory when the pool was made. */
static struct attnd_interval plane_interval(const struct attnd_pool *pool,
                                            const struct attnd_heap_plane *plane, uint32_t dim)
{
    const struct attnd_heap_pool *shape = &pool->shape;
    const uint64_t counts[] = {shape->pages, shape->page_size, shape->heads_kv, dim};
    const int64_t strides[] = {plane->stride_page, plane->stride_token, plane->stride_head, 1};
    uint64_t bytes = 0;

    (void)attnd_extent_bytes(counts, strides, 4, attnd_dtype_bytes(shape->dtype), &bytes);
    return (struct attnd_interval){.begin = plane->offset_bytes,
                                   .end = plane->offset_bytes + bytes};
}

static int by_memory(const void *a, const void *b)
{
    const struct attnd_interval *x = a, *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Those of one memory side by side: each has its memory's index as rank, until it is in a tree. */
static void sort_planes(struct attnd_pool *pool)
{
    const struct attnd_heap_plane *planes = attnd_pool_planes(pool);
    const uint32_t layers = pool->shape.layers;

    for (uint32_t i = 0; i < 2 * layers; i++) {
        pool->intervals[i] =
            plane_interval(pool, &planes[i], i < layers ? pool->shape.dim_qk : pool->shape.dim_vo);
        pool->intervals[i].rank = planes[i].memory;
    }
    qsort(pool->intervals, 2 * (size_t)layers, sizeof(*pool->intervals), by_memory);
}

/* Memories are in the order of their index. */
void attnd_pool_occupy(struct attnd_pool *pool)
{
    const uint32_t count = 2 * pool->shape.layers;
    uint32_t end = 0, at = 0;

    sort_planes(pool);
    for (uint32_t i = 0; i < pool->memories_count; i++) {
        struct attnd_memory *memory = pool->memories[i];
        const uint32_t begin = end;
        for (; at < count && pool->intervals[at].rank == memory->index; at++)
            pool->intervals[end++] = pool->intervals[at];
        end = begin + attnd_intervals_merge(pool->intervals + begin, end - begin);
        for (uint32_t n = begin; n < end; n++)
            attnd_intervals_add(&memory->planes, &pool->intervals[n]);
        pool->intervals_end[i] = end;
    }
}

static void vacate(struct attnd_pool *pool)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < pool->memories_count; i++)
        for (; at < pool->intervals_end[i]; at++)
            attnd_intervals_remove(&pool->memories[i]->planes, &pool->intervals[at]);
}

static int by_index(const void *a, const void *b)
{
    const struct attnd_memory *const *x = a, *const *y = b;

    return ((*x)->index > (*y)->index) - ((*x)->index < (*y)->index);
}

static void enlist(struct attnd_service *service, struct attnd_pool *pool,
                   struct attnd_memory *const *memories)
{
    for (uint32_t i = 0; i < pool->memories_count; i++) {
        attnd_memory_ref(memories[i]);
        memories[i]->pools++;
        pool->memories[i] = memories[i];
        pool->memory_bytes += memories[i]->size_bytes;
    }
    qsort(pool->memories, pool->memories_count, sizeof(struct attnd_memory *), by_index);
    attnd_pool_occupy(pool);
    pool->id = ++service->next_pool_id;
    pool->next = service->pools;
    service->pools = pool;
    service->pools_count++;
}

int attnd_pool_new(struct attnd_client *maker, const struct attnd_heap_pool *shape,
                   uint32_t page_owner, const struct attnd_heap_plane *planes,
                   struct attnd_memory *const *memories, uint32_t memories_count,
                   struct attnd_pool **out, struct attnd_fault *fault)
{
    struct attnd_service *service = maker->service;
    struct attnd_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return out_of_memory(fault, ATTND_F_NONE, 0);
    pool->refs = 1;
    pool->shape = *shape;
    pool->page_owner = page_owner;
    pool->memories_count = memories_count;
    pool->heap_bytes = sizeof(*pool->heap) + 2 * (uint64_t)shape->layers * sizeof(*planes);
    int rc = charge(maker, pool, fault);
    if (rc < 0) {
        free(pool);
        return rc;
    }
    rc = alloc_arrays(pool, fault);
    if (rc == 0)
        rc = write_heap(service->queue, pool, planes, fault);
    if (rc < 0) {
        refund(service, pool);
        free_arrays(pool);
        return rc;
    }
    enlist(service, pool, memories);
    *out = pool;
    return 0;
}

void attnd_pool_ref(struct attnd_pool *pool)
{
    assert(pool->refs > 0 && pool->refs < UINT32_MAX);
    pool->refs++;
}

void attnd_pool_unref(struct attnd_service *service, struct attnd_pool *pool)
{
    assert(pool->refs > 0);
    if (--pool->refs > 0)
        return;
    struct attnd_pool **link = &service->pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    service->pools_count--;
    vacate(pool);
    attnd_heap_free(service->queue, pool->heap_offset_bytes, pool->heap_bytes);
    for (uint32_t i = 0; i < pool->memories_count; i++) {
        pool->memories[i]->pools--;
        attnd_memory_unref(service, pool->memories[i]);
    }
    refund(service, pool);
    free_arrays(pool);
}

const struct attnd_heap_plane *attnd_pool_planes(const struct attnd_pool *pool)
{
    return (const struct attnd_heap_plane *)(pool->heap + 1);
}

struct attnd_memory *attnd_pool_lone(const struct attnd_pool *pool)
{
    return pool->memories_count == 1 && pool->memories[0]->made ? pool->memories[0] : NULL;
}

static int holds_memory(const struct attnd_client *client, const struct attnd_memory *memory)
{
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        if (client->memories[i] == memory)
            return 1;
    return 0;
}

/* The pool's memory under a handle of this session, where it has none. */
static int bind_lone(struct attnd_client *client, struct attnd_attachment *attachment,
                     struct attnd_fault *fault)
{
    struct attnd_memory *memory = attnd_pool_lone(attachment->pool);

    if (!memory || holds_memory(client, memory))
        return 0;
    int rc = attnd_memory_bind(client, memory, &attachment->memory, fault);
    if (rc == 0)
        attnd_memory_ref(memory);
    return rc;
}

static void attachment_free(struct attnd_client *client, struct attnd_attachment *attachment)
{
    attnd_quota_refund(client->service, attnd_quota_payer(client), attachment->charged_bytes);
    attnd_array_free(attachment->held, attachment->charged_bytes - sizeof(*attachment));
    free(attachment);
}

static int attachment_new(struct attnd_client *client, struct attnd_pool *pool,
                          struct attnd_attachment **out, struct attnd_fault *fault)
{
    uint64_t held_bytes = pool->leases ? pool->shape.pages * sizeof(*(*out)->held) : 0;
    uint64_t charged_bytes = sizeof(**out) + held_bytes;
    int rc = attnd_quota_charge(client, charged_bytes, fault);

    if (rc < 0)
        return rc;
    struct attnd_attachment *attachment = calloc(1, sizeof(*attachment));
    if (!attachment) {
        attnd_quota_refund(client->service, attnd_quota_payer(client), charged_bytes);
        return out_of_memory(fault, ATTND_F_NONE, 0);
    }
    attachment->pool = pool;
    attachment->charged_bytes = charged_bytes;
    attachment->held = held_bytes ? attnd_array_new(held_bytes) : NULL;
    if (held_bytes && !attachment->held) {
        attachment_free(client, attachment);
        return out_of_memory(fault, ATTND_F_PAGES, pool->shape.pages);
    }
    *out = attachment;
    return 0;
}

int attnd_client_attach(struct attnd_client *client, struct attnd_pool *pool, int writable,
                        uint32_t *handle, struct attnd_fault *fault)
{
    *handle = attnd_client_vacant((void *const *)client->attachments);
    if (*handle == 0)
        return out_of_memory(fault, ATTND_F_POOL, ATTND_HANDLES_MAX);
    /* Each may have a lease of a page. The other half of the count is for those that may write. */
    if (!writable && pool->readers >= ATTND_PAGE_LEASES_MAX / 2)
        return out_of_memory(fault, ATTND_F_POOL, ATTND_PAGE_LEASES_MAX / 2);
    struct attnd_attachment *attachment = NULL;
    int rc = attachment_new(client, pool, &attachment, fault);
    if (rc < 0)
        return rc;
    assert(attachment);
    attachment->writable = writable;
    rc = bind_lone(client, attachment, fault);
    if (rc < 0) {
        attachment_free(client, attachment);
        return rc;
    }
    attnd_pool_ref(pool);
    pool->readers += !writable;
    client->attachments[*handle - 1] = attachment;
    return 0;
}

uint32_t attnd_client_attached(const struct attnd_client *client, const struct attnd_pool *pool)
{
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        if (client->attachments[i] && client->attachments[i]->pool == pool)
            return i + 1;
    return 0;
}

/* The handle that came with an attachment goes with it, unless another pool of the session lies in
 * the same memory: then it is that one's from now on. */
static void release_lone(struct attnd_client *client, uint32_t handle)
{
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++) {
        struct attnd_attachment *other = client->attachments[i];
        if (other && attnd_pool_lone(other->pool) == client->memories[handle - 1]) {
            other->memory = handle;
            return;
        }
    }
    attnd_memory_unbind(client, handle);
}

void attnd_client_detach(struct attnd_client *client, uint32_t handle)
{
    struct attnd_attachment *attachment = client->attachments[handle - 1];

    assert(attachment->plans == 0 && attachment->prefixes == 0);
    client->attachments[handle - 1] = NULL;
    while (attachment->held_count && attnd_lease_drop_some(attachment, UINT32_MAX))
        ;
    attnd_arrival_forget_all(client, attachment);
    if (attachment->memory)
        release_lone(client, attachment->memory);
    attachment->pool->readers -= !attachment->writable;
    attnd_pool_unref(client->service, attachment->pool);
    attachment_free(client, attachment);
}
