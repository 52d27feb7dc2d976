/*
 * pool_reply.c - a pool described to a session, in its own handles.
 */
#include "schemas/pool_fields.h"
#include "service/objects/pool.h"
#include "service/rpc/calls.h"

static uint32_t handle_of(const struct attnd_client *client, uint32_t index)
{
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        if (client->memories[i] && client->memories[i]->index == index)
            return i + 1;
    return 0;
}

/* Planes as the session names their memories; 0 for those it has no handle of. */
static int describe_planes(struct attnd_call *call, const struct attnd_pool *pool,
                           Attnd__PoolCreate *desc)
{
    const struct attnd_heap_plane *from = attnd_pool_planes(pool);
    uint32_t count = 2 * pool->shape.layers;
    Attnd__Plane *planes = attnd_call_alloc(call, count * sizeof(*planes));
    Attnd__Plane **list = attnd_call_alloc(call, count * sizeof(Attnd__Plane *));
    uint32_t index = ATTND_NONE, handle = 0;

    if (!planes || !list)
        return attnd_call_no_memory(call);
    for (uint32_t i = 0; i < count; i++) {
        /* Neighbours mostly lie in the same memory. */
        if (from[i].memory != index) {
            index = from[i].memory;
            handle = handle_of(call->client, index);
        }
        attnd__plane__init(&planes[i]);
        planes[i].memory = handle;
        ATTND_PLANE_PLACE_COPY(&planes[i], &from[i]);
        list[i] = &planes[i];
    }
    desc->n_k = desc->n_v = pool->shape.layers;
    desc->k = list;
    desc->v = list + pool->shape.layers;
    return 0;
}

int attnd_pool_describe(struct attnd_call *call, uint32_t handle)
{
    const struct attnd_attachment *attachment = attnd_client_attachment(call->client, handle);
    const struct attnd_pool *pool = attachment->pool;
    const struct attnd_memory *lone = attnd_pool_lone(pool);
    Attnd__PoolReply *reply = attnd_call_result(call, ATTND__REPLY__RESULT_POOL);
    Attnd__PoolCreate *desc = attnd_call_alloc(call, sizeof(*desc));

    if (!reply || !desc)
        return attnd_call_no_memory(call);
    attnd__pool_create__init(desc);
    ATTND_POOL_SHAPE_COPY(desc, &pool->shape);
    desc->page_owner = (Attnd__PageOwner)pool->page_owner;
    int rc = describe_planes(call, pool, desc);
    if (rc < 0)
        return rc;

    reply->pool = handle;
    reply->desc = desc;
    reply->writable = attachment->writable;
    if (lone) {
        reply->memory = handle_of(call->client, lone->index);
        reply->memory_bytes = lone->size_bytes;
        desc->has_memory_kind = 1;
        desc->memory_kind = (Attnd__MemoryKind)lone->kind;
        call->reply_fds[call->reply_fds_count++] = lone->fd;
    }
    return 0;
}
