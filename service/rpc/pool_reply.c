/*
 * pool_reply.c - a pool described to a session, in its own handles.
 */
#include "service/objects/pool.h"
#include "service/rpc/calls.h"

static int no_memory(struct attnd_call *call)
{
    return attnd_fault_set(call->fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
}

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
        return no_memory(call);
    for (uint32_t i = 0; i < count; i++) {
        attnd__plane__init(&planes[i]);
        planes[i].memory = handles[from[i].memory];
        planes[i].offset_bytes = from[i].offset_bytes;
        planes[i].stride_page = from[i].stride_page;
        planes[i].stride_token = from[i].stride_token;
        planes[i].stride_head = from[i].stride_head;
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
    Attnd__PoolReply *reply = attnd_call_alloc(call, sizeof(*reply));
    Attnd__PoolCreate *desc = attnd_call_alloc(call, sizeof(*desc));
    uint32_t handles[ATTND_MEMORIES_MAX] = {0};

    if (!reply || !desc)
        return no_memory(call);
    list_handles(call->client, handles);
    attnd__pool_create__init(desc);
    desc->layers = pool->shape.layers;
    desc->pages = pool->shape.pages;
    desc->page_size = pool->shape.page_size;
    desc->heads_kv = pool->shape.heads_kv;
    desc->dim_qk = pool->shape.dim_qk;
    desc->dim_vo = pool->shape.dim_vo;
    desc->dtype = pool->shape.dtype;
    desc->page_owner = (Attnd__PageOwner)pool->page_owner;
    int rc = describe_planes(call, pool, handles, desc);
    if (rc < 0)
        return rc;

    attnd__pool_reply__init(reply);
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
    call->reply->pool = reply;
    call->reply->result_case = ATTND__REPLY__RESULT_POOL;
    return 0;
}
