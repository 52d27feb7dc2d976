/*
 * pool_calls.c - PoolCreate, PoolShare, PoolAttach, PoolRelease.
 *
 * Engines name memory by their own handles, the worker by its table. Between the two stands the
 * memory object: a description is translated when a pool is made, and back, into the handles of the
 * session that asks, when it attaches one (pool_reply.c).
 *
 * Host memory that is made for a pool may be more than a worker can pin. As where memory is
 * registered, the reply waits until that is known; until then the session cannot name the pool.
 */
#include "schemas/pool_fields.h"
#include "service/objects/lease.h"
#include "service/objects/pool_check.h"
#include "service/objects/ticket.h"
#include "service/rpc/calls.h"
#include "service/supervise/supervise.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- a description of planes, while a pool is being made ---- */

struct layout {
    struct attnd_heap_plane *planes; /* k[layers], v[layers] */
    struct attnd_memory **memories;  /* distinct */
    uint32_t memories_count;
    uint8_t listed[ATTND_MEMORIES_MAX]; /* by index: is it among them? */
};

static void layout_add_memory(struct layout *layout, struct attnd_memory *memory)
{
    if (layout->listed[memory->index])
        return;
    layout->listed[memory->index] = 1;
    layout->memories[layout->memories_count++] = memory;
}

/* One of the engine's planes, checked. */
static int layout_plane(struct attnd_call *call, const struct attnd_heap_pool *shape,
                        struct layout *layout, uint32_t is_v, uint32_t layer)
{
    const Attnd__PoolCreate *desc = call->request->pool_create;
    const Attnd__Plane *plane = is_v ? desc->v[layer] : desc->k[layer];
    struct attnd_memory *memory = attnd_client_memory(call->client, plane->memory);

    if (!memory)
        return attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_MEMORY, layer, plane->memory,
                               0);
    int rc = attnd_pool_check_plane(shape, plane, memory->size_bytes, is_v ? ATTND_F_V : ATTND_F_K,
                                    layer, call->fault);
    if (rc < 0)
        return rc;
    layout_add_memory(layout, memory);
    struct attnd_heap_plane *to = &layout->planes[is_v * shape->layers + layer];
    *to = (struct attnd_heap_plane){.memory = memory->index};
    ATTND_PLANE_PLACE_COPY(to, plane);
    return 0;
}

static int layout_given(struct attnd_call *call, const struct attnd_heap_pool *shape,
                        struct layout *layout)
{
    const Attnd__PoolCreate *desc = call->request->pool_create;
    int rc = 0;

    if (desc->memory_kind != ATTND__MEMORY_KIND__MEMORY_HOST) /* each plane's memory has its own */
        return attnd_fault_set(call->fault, -ATTND_E_INVALID, ATTND_F_MEMORY_KIND, 0,
                               (int64_t)desc->memory_kind, ATTND_KIND_HOST);
    for (uint32_t is_v = 0; is_v < 2; is_v++)
        for (uint32_t layer = 0; rc == 0 && layer < shape->layers; layer++)
            rc = layout_plane(call, shape, layout, is_v, layer);
    return rc;
}

/* Contiguous, [layer][K, V][page][token][head][dim]. The memory's reference is the caller's. */
static int layout_made(struct attnd_call *call, const struct attnd_heap_pool *shape,
                       struct layout *layout, struct attnd_memory **made)
{
    uint64_t plane_bytes;
    int64_t token = (int64_t)shape->heads_kv * shape->dim_qk;
    uint32_t kind = (uint32_t)call->request->pool_create->memory_kind;
    int rc = attnd_pool_plane_bytes(shape, &plane_bytes, call->fault);

    if (rc == 0 && kind == ATTND_KIND_HOST)
        rc = attnd_memory_check_now(call, kind);
    if (rc == 0)
        rc = attnd_memory_make(call->client, kind, 2 * shape->layers * plane_bytes, made,
                               call->fault);
    if (rc != 0)
        return rc;
    layout_add_memory(layout, *made);
    for (uint32_t is_v = 0; is_v < 2; is_v++)
        for (uint32_t layer = 0; layer < shape->layers; layer++)
            layout->planes[is_v * shape->layers + layer] = (struct attnd_heap_plane){
                .memory = (*made)->index,
                .offset_bytes = (2 * (uint64_t)layer + is_v) * plane_bytes,
                .stride_page = token * shape->page_size,
                .stride_token = token,
                .stride_head = shape->dim_qk};
    return 0;
}

/* ---- attaching ---- */

/* What was attached just now; undoes that if it fails. */
static int describe(struct attnd_call *call, uint32_t handle)
{
    const int rc = attnd_pool_describe(call, handle);

    if (rc < 0)
        attnd_client_detach(call->client, handle);
    return rc;
}

static int attach(struct attnd_call *call, struct attnd_pool *pool, int writable)
{
    uint32_t handle;
    int rc = attnd_client_attach(call->client, pool, writable, &handle, call->fault);

    return rc < 0 ? rc : describe(call, handle);
}

/* The same when the worker has tried the memory. */
static int attach_later(struct attnd_call *call, struct attnd_pool *pool)
{
    struct attnd_client *client = call->client;
    uint32_t handle;
    int rc = attnd_client_attach(client, pool, 1, &handle, call->fault);

    if (rc < 0)
        return rc;
    client->import = client->attachments[handle - 1]->memory;
    client->import_pool = handle;
    client->import_id = call->request->id;
    assert(client->import);
    return ATTND_CALL_LATER;
}

void attnd_pool_tried(struct attnd_client *client, const struct attnd_fault *fault)
{
    struct attnd_fault own = *fault;
    Attnd__Reply reply = ATTND__REPLY__INIT;
    struct attnd_call call = {
        .service = client->service, .client = client, .reply = &reply, .fault = &own};
    const uint32_t handle = client->import_pool;

    reply.id = client->import_id;
    client->import = client->import_pool = 0;
    attnd_control_reset(client->service);
    if (own.code < 0 || attnd_pool_describe(&call, handle) < 0) {
        attnd_client_detach(client, handle);
        call.reply_fds_count = 0;
    }
    attnd_control_answer(client, &reply, call.reply_fds_count ? call.reply_fds[0] : -1, &own);
}

/* ---- the calls ---- */

/* A large one is described behind others. The handle is the session's already, and nobody knows it.
 */
static int attach_maker(struct attnd_call *call, struct attnd_pool *pool)
{
    uint32_t handle;
    int rc = attnd_client_attach(call->client, pool, 1, &handle, call->fault);

    if (rc < 0)
        return rc;
    if (!attnd_work_spent(&call->service->works))
        return describe(call, handle);
    call->client->again_done = handle;
    return ATTND_CALL_AGAIN;
}

static int create(struct attnd_call *call, const struct attnd_heap_pool *shape,
                  struct layout *layout)
{
    const Attnd__PoolCreate *desc = call->request->pool_create;
    struct attnd_memory *made = NULL;
    struct attnd_pool *pool;
    int rc =
        desc->n_k ? layout_given(call, shape, layout) : layout_made(call, shape, layout, &made);

    if (rc < 0)
        return rc;
    rc = attnd_pool_new(call->client, shape, desc->page_owner, layout->planes, layout->memories,
                        layout->memories_count, &pool, call->fault);
    const int waits = made && attnd_memory_waits(call->service, made);
    /* From now on the pool holds it, or nobody. */
    if (made)
        attnd_memory_unref(call->service, made);
    if (rc < 0)
        return rc;
    rc = waits ? attach_later(call, pool) : attach_maker(call, pool);
    attnd_pool_unref(call->service, pool);
    return rc;
}

int attnd_call_pool_create(struct attnd_call *call)
{
    struct attnd_heap_pool shape;
    struct layout layout = {0};

    if (call->client->again_done)
        return describe(call, call->client->again_done);
    int rc = attnd_pool_check_shape(call->request->pool_create, &shape, call->fault);

    if (rc == 0)
        rc = attnd_pool_check_variant(attnd_supervisor_worker(call->service), &shape, call->fault);
    if (rc < 0)
        return rc;
    layout.planes = calloc(2 * (size_t)shape.layers, sizeof(*layout.planes));
    layout.memories = calloc(2 * (size_t)shape.layers, sizeof(struct attnd_memory *));
    rc = layout.planes && layout.memories ? create(call, &shape, &layout)
                                          : attnd_call_no_memory(call);
    free(layout.planes);
    free(layout.memories);
    return rc;
}

static struct attnd_attachment *find(struct attnd_call *call, uint32_t handle)
{
    struct attnd_attachment *attachment = attnd_client_attachment(call->client, handle);
    if (!attachment)
        attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_POOL, 0, handle, 0);
    return attachment;
}

/* One token a pool and right: sharing again hands out the same, so tokens need no list. */
int attnd_call_pool_share(struct attnd_call *call)
{
    static const uint8_t none[ATTND_SECRET_BYTES];
    const Attnd__PoolShare *request = call->request->pool_share;
    struct attnd_attachment *attachment = find(call, request->pool);

    if (!attachment)
        return -ATTND_E_UNKNOWN;
    if (request->writable && !attachment->writable)
        return attnd_fault_set(call->fault, -ATTND_E_PERMISSION, ATTND_F_POOL, 0, request->pool, 0);
    uint8_t *token = attachment->pool->token[request->writable ? 1 : 0];
    if (attnd_secret_equal(token, none) && attnd_secret_make(token, call->fault) < 0)
        return -ATTND_E_SYSTEM;
    return attnd_call_token(call, token);
}

int attnd_call_pool_attach(struct attnd_call *call)
{
    static const uint8_t none[ATTND_SECRET_BYTES];
    const ProtobufCBinaryData *token = &call->request->pool_attach->token;

    if (token->len == ATTND_SECRET_BYTES && !attnd_secret_equal(token->data, none))
        for (struct attnd_pool *pool = call->service->pools; pool; pool = pool->next)
            for (int writable = 0; writable < 2; writable++)
                if (attnd_secret_equal(token->data, pool->token[writable]))
                    return attach(call, pool, writable);
    return attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_TOKEN, 0, 0, 0);
}

int attnd_call_pool_release(struct attnd_call *call)
{
    uint32_t handle = call->request->pool_release->pool;
    const struct attnd_attachment *attachment = find(call, handle);

    if (!attachment)
        return -ATTND_E_UNKNOWN;
    if (attachment->plans || attachment->prefixes || attachment->claims)
        return attnd_fault_set(call->fault, -ATTND_E_BUSY, ATTND_F_POOL, 0, handle, 0);
    while (attnd_lease_drop_some(call->client->attachments[handle - 1], ATTND_LEASE_DROP_STEP))
        if (attnd_work_spent(&call->service->works))
            return ATTND_CALL_AGAIN;
    attnd_client_detach(call->client, handle);
    return 0;
}
