/*
 * pool_reply.c - a pool described to a session, in its own handles.
 */
#include "schemas/pool_fields.h"
#include "service/objects/pool.h"
#include "service/rpc/calls.h"

/* Of each memory, by its index, the lowest handle that the session has; 0: none. */
static void list_handles(const struct attnd_client *client, uint32_t handles[ATTND_MEMORIES_MAX])
{
    for (uint32_t i = ATTND_HANDLES_MAX; i > 0; i--)
        if (client->memories[i - 1])
            handles[client->memories[i - 1]->index] = i;
}

/* Planes as the session names their memories; 0 for those it has no handle of. */
static int describe_planes(struct attnd_call *call, const struct attnd_pool *pool,
                           const uint32_t handles[ATTND_MEMORIES_MAX], Attnd__PoolCreate *desc)
{
    const struct attnd_heap_plane *from = attnd_pool_planes(pool);
    uint32_t count = 2 * pool->shape.layers;
    Attnd__Plane *planes = attnd_call_alloc(call, count * sizeof(*planes));
    Attnd__Plane **list = attnd_call_alloc(call, count * sizeof(Attnd__Plane *));

    if (!planes || !list)
        return attnd_call_no_memory(call);
    for (uint32_t i = 0; i < count; i++) {
        attnd__plane__init(&planes[i]);
        planes[i].memory = handles[from[i].memory];
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
    uint32_t handles[ATTND_MEMORIES_MAX] = {0};

    if (!reply || !desc)
        return attnd_call_no_memory(call);
    list_handles(call->client, handles);
    attnd__pool_create__init(desc);
    ATTND_POOL_SHAPE_COPY(desc, &pool->shape);
    desc->page_owner = (Attnd__PageOwner)pool->page_owner;
    int rc = describe_planes(call, pool, handles, desc);
    if (rc < 0)
        return rc;

    reply->pool = handle;
    reply->desc = desc;
    reply->writable = attachment->writable;
    if (lone) {
        reply->memory = handles[lone->index];
        reply->memory_bytes = lone->size_bytes;
        desc->has_memory_kind = 1;
        desc->memory_kind = (Attnd__MemoryKind)lone->kind;
        call->reply_fds[call->reply_fds_count++] = lone->fd;
    }
    return 0;
}
