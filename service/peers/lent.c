/*
 * lent.c - memory of a pool of another service, for as long as transfers read from it.
 *
 * The descriptors that a grant brings become memory objects of this service that no session has a
 * handle of: its worker maps them, and each worker after it, and the daemon does not. The pool's
 * description is put into the heap beside those of this service's own pools. Transfers of one pool
 * that are under way at once share both.
 */
#include "ipc/shm.h"
#include "persistent/bring.h"
#include "schemas/pool_fields.h"
#include "service/peers/peers_internal.h"
#include "service/supervise/device.h"
#include "service/supervise/supervise.h"

#include <stdlib.h>
#include <string.h>

static struct attnd_heap_pool shape_of(const Attnd__PeerGrant *grant)
{
    struct attnd_heap_pool shape = {0};

    ATTND_POOL_SHAPE_COPY(&shape, grant);
    return shape;
}

static void fill_planes(const struct attnd_lent *lent, Attnd__PeerPlane *const *from,
                        struct attnd_heap_plane *to)
{
    for (uint32_t i = 0; i < lent->shape.layers; i++) {
        to[i] = (struct attnd_heap_plane){.memory = lent->memories[from[i]->memory]->index};
        ATTND_PLANE_PLACE_COPY(&to[i], from[i]);
    }
}

/* Its description, into the heap. */
static int describe(struct attnd_service *service, struct attnd_client *client,
                    const Attnd__PeerGrant *grant, struct attnd_lent *lent,
                    struct attnd_fault *fault)
{
    const uint64_t bytes =
        sizeof(lent->shape) + 2 * (uint64_t)grant->layers * sizeof(struct attnd_heap_plane);
    int rc = attnd_quota_take(client, ATTND_QUOTA_HEAP, bytes, fault);

    if (rc < 0)
        return rc;
    lent->heap_offset_bytes = attnd_heap_alloc(service->queue, bytes);
    if (!lent->heap_offset_bytes) {
        attnd_quota_give(service, lent->payer, ATTND_QUOTA_HEAP, bytes);
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_HEAP, 0, (int64_t)bytes, 0);
    }
    lent->heap_bytes = bytes;
    struct attnd_heap_pool *pool = attnd_heap_at(service->queue, lent->heap_offset_bytes);
    struct attnd_heap_plane *planes = (struct attnd_heap_plane *)(void *)(pool + 1);
    *pool = lent->shape;
    fill_planes(lent, grant->k, planes);
    fill_planes(lent, grant->v, planes + grant->layers);
    return 0;
}

static int check_memory(const struct attnd_service *service, uint32_t index,
                        const struct attnd_memory_source *source, struct attnd_fault *fault)
{
    const struct attnd_worker_info *worker = attnd_supervisor_worker(service);

    if (!source->kind || !(worker->memory_kinds >> source->kind & 1))
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND, index,
                               source->kind, ATTND_KIND_LENT_HOST);
    if (source->kind == ATTND_KIND_LENT_DEVICE)
        return attnd_device_check_fd(source->fd, fault);
    return attnd_shm_check_import(source->fd, source->size_bytes, fault);
}

/* As this service's worker is told of it. Return: 0: it takes no such memory from others. */
static uint32_t kind_of(const Attnd__PeerMemory *memory)
{
    return memory->memory_kind == ATTND_KIND_HOST     ? ATTND_KIND_LENT_HOST
           : memory->memory_kind == ATTND_KIND_DEVICE ? ATTND_KIND_LENT_DEVICE
                                                      : 0;
}

static int take_memory(struct attnd_service *service, struct attnd_client *client,
                       const Attnd__PeerMemory *memory, int *fd, struct attnd_lent *lent,
                       struct attnd_fault *fault)
{
    const struct attnd_memory_source source = {
        .kind = kind_of(memory), .fd = *fd, .size_bytes = memory->size_bytes};
    int rc = check_memory(service, lent->memories_count, &source, fault);

    if (rc == 0)
        rc = attnd_memory_new(service, &source, client, 0, &lent->memories[lent->memories_count],
                              fault);
    if (rc < 0)
        return rc;
    *fd = -1;
    lent->memories_count++;
    return 0;
}

static void lent_free(struct attnd_service *service, struct attnd_lent *lent)
{
    if (lent->heap_bytes) {
        attnd_heap_free(service->queue, lent->heap_offset_bytes, lent->heap_bytes);
        attnd_quota_give(service, lent->payer, ATTND_QUOTA_HEAP, lent->heap_bytes);
    }
    while (lent->memories_count > 0)
        attnd_memory_unref(service, lent->memories[--lent->memories_count]);
    free(lent);
}

static int lent_new(struct attnd_service *service, struct attnd_client *client,
                    const Attnd__PeerGrant *grant, int *fds, struct attnd_lent **out,
                    struct attnd_fault *fault)
{
    struct attnd_lent *lent = calloc(1, sizeof(*lent));
    int rc = 0;

    if (!lent)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    lent->shape = shape_of(grant);
    lent->payer = attnd_quota_payer(client);
    for (size_t i = 0; i < grant->n_memory && rc == 0; i++)
        rc = take_memory(service, client, grant->memory[i], &fds[i], lent, fault);
    if (rc == 0)
        rc = describe(service, client, grant, lent, fault);
    if (rc < 0) {
        lent_free(service, lent);
        return rc;
    }
    *out = lent;
    return 0;
}

/* ---- one for transfers of the same pool ---- */

static int planes_are(const struct attnd_lent *lent, const struct attnd_heap_plane *planes,
                      Attnd__PeerPlane *const *from)
{
    for (uint32_t i = 0; i < lent->shape.layers; i++)
        if (from[i]->memory >= lent->memories_count ||
            planes[i].memory != lent->memories[from[i]->memory]->index ||
            planes[i].offset_bytes != from[i]->offset_bytes ||
            planes[i].stride_page != from[i]->stride_page ||
            planes[i].stride_token != from[i]->stride_token ||
            planes[i].stride_head != from[i]->stride_head)
            return 0;
    return 1;
}

static int same_files(const struct attnd_lent *lent, const Attnd__PeerGrant *grant, const int *fds)
{
    if (lent->memories_count != grant->n_memory)
        return 0;
    for (uint32_t i = 0; i < lent->memories_count; i++)
        if (lent->memories[i]->kind != kind_of(grant->memory[i]) ||
            lent->memories[i]->size_bytes != grant->memory[i]->size_bytes ||
            !attnd_shm_same_file(lent->memories[i]->fd, fds[i]))
            return 0;
    return 1;
}

/* What is said of it is not believed: the files are compared, and every plane. */
static struct attnd_lent *find(const struct attnd_peer *peer, const Attnd__PeerGrant *grant,
                               const int *fds)
{
    const struct attnd_heap_pool shape = shape_of(grant);

    for (struct attnd_lent *lent = peer->lents; lent; lent = lent->next) {
        const struct attnd_heap_pool *pool =
            attnd_heap_at(peer->service->queue, lent->heap_offset_bytes);
        const struct attnd_heap_plane *planes =
            (const struct attnd_heap_plane *)(const void *)(pool + 1);
        if (memcmp(&lent->shape, &shape, sizeof(shape)) == 0 && same_files(lent, grant, fds) &&
            planes_are(lent, planes, grant->k) &&
            planes_are(lent, planes + lent->shape.layers, grant->v))
            return lent;
    }
    return NULL;
}

int attnd_lent_check(const struct attnd_pool *pool, const Attnd__PeerGrant *grant,
                     struct attnd_fault *fault)
{
    const struct attnd_heap_pool shape = shape_of(grant);

    return attnd_bring_alike(&shape, &pool->shape)
               ? 0
               : attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_POOL, 0, pool->id, 0);
}

int attnd_lent_take(struct attnd_peer *peer, struct attnd_client *client,
                    const struct attnd_pool *pool, const Attnd__PeerGrant *grant, int *fds,
                    struct attnd_lent **out, struct attnd_fault *fault)
{
    int rc = attnd_lent_check(pool, grant, fault);

    if (rc < 0)
        return rc;
    struct attnd_lent *lent = find(peer, grant, fds);
    rc = lent ? 0 : lent_new(peer->service, client, grant, fds, &lent, fault);
    if (rc < 0)
        return rc;
    if (lent->refs++ == 0) {
        lent->next = peer->lents;
        peer->lents = lent;
    }
    *out = lent;
    return 0;
}

void attnd_lent_let_go(struct attnd_peer *peer, struct attnd_lent *lent)
{
    struct attnd_lent **link = &peer->lents;

    if (--lent->refs > 0)
        return;
    while (*link != lent)
        link = &(*link)->next;
    *link = lent->next;
    lent_free(peer->service, lent);
}
