/*
 * pool.c - pools, made here or attached, and what the session knows of them.
 *
 * A pool's description comes back from the daemon with every plane, in the names this session has
 * for the memories; that answer, not the caller's request, is what attnd_pool_info() tells. Memory
 * the service made for a pool arrives as a descriptor and is mapped once (or kept, if it is device
 * memory): a session that meets the same memory again (its own token, say) shares the mapping and
 * counts its uses.
 */
#include "client/internal.h"

#include "schemas/pool_fields.h"

#include <stdlib.h>

static void read_planes(struct attnd_plane *planes, Attnd__Plane *const *wire, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        planes[i].memory = wire[i]->memory;
        ATTND_PLANE_PLACE_COPY(&planes[i], wire[i]);
    }
}

/* Return: 0, or -ATTND_E_NO_MEMORY. */
static int read_pool(struct attnd_object *pool, const Attnd__PoolReply *reply)
{
    const Attnd__PoolCreate *desc = reply->desc;
    struct attnd_plane *planes = calloc(2 * (size_t)desc->layers, sizeof(*planes));
    if (planes == NULL)
        return -ATTND_E_NO_MEMORY;
    read_planes(planes, desc->k, desc->n_k);
    read_planes(planes + desc->layers, desc->v, desc->n_v);
    pool->kind = ATTND_OBJECT_POOL;
    pool->handle = reply->pool;
    pool->u.pool.planes = planes;
    pool->u.pool.info =
        (struct attnd_pool_info){.memory = reply->memory,
                                 .memory_bytes = reply->memory_bytes,
                                 .writable = reply->writable != 0,
                                 .desc = {.size = sizeof(struct attnd_pool_desc),
                                          .page_owner = (uint32_t)desc->page_owner,
                                          .k = planes,
                                          .v = planes + desc->layers,
                                          .memory_kind = (uint32_t)desc->memory_kind}};
    ATTND_POOL_SHAPE_COPY(&pool->u.pool.info.desc, desc);
    return 0;
}

static int reply_is_sane(const struct attnd_rpc *call)
{
    const Attnd__PoolReply *reply = call->reply->pool;
    const Attnd__PoolCreate *desc = reply->desc;
    return reply->pool != 0 && call->fd_count == (reply->memory != 0) &&
           desc->layers <= ATTND_LAYERS_MAX && desc->n_k == desc->layers &&
           desc->n_v == desc->layers;
}

/* A pool's memory as this session has it: mapped, or device memory's descriptor. */
static int take_memory(struct attnd_rpc *call, struct attnd_shm *shm, struct attnd_fault *fault)
{
    const Attnd__PoolReply *reply = call->reply->pool;
    if (reply->desc->memory_kind == ATTND__MEMORY_KIND__MEMORY_DEVICE) {
        *shm = (struct attnd_shm){.fd = attnd_call_take_fd(call, 0)};
        return 0;
    }
    int rc = attnd_shm_map(call->fds[0], reply->memory_bytes, 1, shm, fault);
    shm->fd = -1; /* the call closes it */
    return rc;
}

/* The pool's memory: one that this session knows already, or @memory, which then is the session's.
 * Return: 0 or a fault of mapping. Handles come and go under call_lock, which is held; objects_lock
 * is for readers of the address. */
static int adopt_memory(struct attnd_session *session, struct attnd_rpc *call,
                        struct attnd_object **memory, void **address)
{
    const Attnd__PoolReply *reply = call->reply->pool;
    struct attnd_shm shm = {.fd = -1};
    struct attnd_fault fault = {0};
    pthread_mutex_lock(&session->objects_lock);
    struct attnd_object *known = attnd_object_find(session, ATTND_OBJECT_MEMORY, reply->memory);
    int held = known && (known->u.memory.shm.address || known->u.memory.shm.fd >= 0);
    pthread_mutex_unlock(&session->objects_lock);
    if (!held && take_memory(call, &shm, &fault) < 0)
        return attnd_fault_keep(&fault);

    struct attnd_object *object = known ? known : *memory;
    pthread_mutex_lock(&session->objects_lock);
    if (!held)
        object->u.memory.shm = shm;
    object->u.memory.kind = (uint32_t)reply->desc->memory_kind;
    object->u.memory.size_bytes = reply->memory_bytes;
    object->u.memory.uses++;
    *address = object->u.memory.shm.address;
    pthread_mutex_unlock(&session->objects_lock);
    if (!known) {
        object->kind = ATTND_OBJECT_MEMORY;
        object->handle = reply->memory;
        attnd_object_add(session, object);
        *memory = NULL;
    }
    return 0;
}

static int adopt_pool(struct attnd_session *session, struct attnd_rpc *call,
                      struct attnd_object *pool, struct attnd_object **memory)
{
    if (read_pool(pool, call->reply->pool) < 0)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_POOL, 0, 0, 0);
    if (call->reply->pool->memory == 0)
        return 0;
    return adopt_memory(session, call, memory, &pool->u.pool.info.address);
}

static void pool_free(struct attnd_object *pool)
{
    if (pool)
        free(pool->u.pool.planes);
    free(pool);
}

/* @pool and @memory are NULL afterwards where the session has taken them. */
static int call_and_adopt(struct attnd_session *session, struct attnd_rpc *call,
                          struct attnd_object **pool, struct attnd_object **memory,
                          uint32_t *handle)
{
    int rc = attnd_call(session, call, ATTND__REPLY__RESULT_POOL);
    if (rc != 0)
        return rc;
    if (!reply_is_sane(call))
        return attnd_call_broken(session, call);
    *handle = call->reply->pool->pool;
    rc = adopt_pool(session, call, *pool, memory);
    if (rc == 0) {
        attnd_object_add(session, *pool);
        *pool = NULL;
    }
    attnd_call_end(session, call);
    return rc;
}

/* Sends a request that a PoolReply answers, and keeps what it says. The room for it is allocated
 * first: a pool that exists at the daemon and nowhere here could not be released. */
static int pool_call(struct attnd_session *session, struct attnd_rpc *call, uint32_t *handle)
{
    uint32_t created = 0;
    struct attnd_object *pool = calloc(1, sizeof(*pool));
    struct attnd_object *memory = calloc(1, sizeof(*memory));
    int rc = pool && memory ? call_and_adopt(session, call, &pool, &memory, &created)
                            : attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_POOL, 0, 0, 0);
    free(memory);
    pool_free(pool);
    if (rc == 0)
        *handle = created;
    if (rc == 0 || created == 0)
        return rc;

    struct attnd_fault fault;
    attnd_last_fault(&fault);
    (void)attnd_pool_release(session, created); /* the first fault is the one to tell */
    return attnd_fault_keep(&fault);
}

/* Planes in the form protobuf-c sends: an array of pointers beside the messages. */
struct wire_planes {
    Attnd__Plane messages[2 * ATTND_LAYERS_MAX];
    Attnd__Plane *pointers[2 * ATTND_LAYERS_MAX];
};

static void write_planes(struct wire_planes *wire, size_t at, const struct attnd_plane *planes,
                         size_t count)
{
    for (size_t i = 0; i < count; i++) {
        Attnd__Plane *plane = &wire->messages[at + i];
        attnd__plane__init(plane);
        plane->memory = planes[i].memory;
        ATTND_PLANE_PLACE_COPY(plane, &planes[i]);
        wire->pointers[at + i] = plane;
    }
}

static int create_with_planes(struct attnd_session *session, struct attnd_rpc *call,
                              const struct attnd_pool_desc *desc, uint32_t *handle)
{
    size_t layers = desc->layers;
    struct wire_planes *wire = malloc(sizeof(*wire));
    if (wire == NULL)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_LAYERS, 0, desc->layers, 0);
    write_planes(wire, 0, desc->k, layers);
    write_planes(wire, layers, desc->v, layers);
    Attnd__PoolCreate *message = call->request.pool_create;
    message->n_k = message->n_v = layers;
    message->k = wire->pointers;
    message->v = wire->pointers + layers;
    int rc = pool_call(session, call, handle);
    free(wire);
    return rc;
}

int attnd_pool_create(struct attnd_session *session, const struct attnd_pool_desc *desc,
                      uint32_t *pool)
{
    struct attnd_pool_desc own;
    int rc = attnd_args_take(&own, sizeof(own), desc);
    if (rc < 0)
        return rc;
    if (pool == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_POOL, 0, 0, 0);
    if ((own.k == NULL) != (own.v == NULL))
        return attnd_fault_raise(-ATTND_E_INVALID, own.k ? ATTND_F_V : ATTND_F_K, 0, 0, 0);
    if (own.layers == 0 || own.layers > ATTND_LAYERS_MAX)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_LAYERS, 0, own.layers,
                                 own.layers ? ATTND_LAYERS_MAX : 1);
    if (own.page_owner != ATTND_PAGES_OF_SERVICE && own.page_owner != ATTND_PAGES_OF_ENGINE)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_PAGE_OWNER, 0, own.page_owner,
                                 ATTND_PAGES_OF_ENGINE);

    Attnd__PoolCreate message = ATTND__POOL_CREATE__INIT;
    ATTND_POOL_SHAPE_COPY(&message, &own);
    message.page_owner = (Attnd__PageOwner)own.page_owner;
    message.has_memory_kind = own.memory_kind > ATTND_MEMORY_HOST;
    message.memory_kind = (Attnd__MemoryKind)own.memory_kind;
    struct attnd_rpc call = ATTND_CALL(POOL_CREATE, .pool_create = &message);
    call.timeout_ns = ATTND_CALL_LONG_TIMEOUT_NS; /* its memory may be pinned first */
    return own.k ? create_with_planes(session, &call, &own, pool) : pool_call(session, &call, pool);
}

int attnd_pool_attach(struct attnd_session *session, const struct attnd_token *token,
                      uint32_t *pool)
{
    if (token == NULL || pool == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, token ? ATTND_F_POOL : ATTND_F_TOKEN, 0, 0, 0);
    struct attnd_token own = *token;
    Attnd__PoolAttach message = ATTND__POOL_ATTACH__INIT;
    message.token = (ProtobufCBinaryData){.len = ATTND_TOKEN_BYTES, .data = own.bytes};
    struct attnd_rpc call = ATTND_CALL(POOL_ATTACH, .pool_attach = &message);
    return pool_call(session, &call, pool);
}

int attnd_pool_info(struct attnd_session *session, uint32_t pool, struct attnd_pool_info *info)
{
    int rc = attnd_session_check_owner(session);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&session->objects_lock);
    const struct attnd_object *object = attnd_object_find(session, ATTND_OBJECT_POOL, pool);
    rc = object ? attnd_args_give(info, &object->u.pool.info, sizeof(object->u.pool.info))
                : attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_POOL, 0, pool, 0);
    pthread_mutex_unlock(&session->objects_lock);
    return rc;
}

int attnd_pool_share(struct attnd_session *session, uint32_t pool, int writable,
                     struct attnd_token *token)
{
    if (token == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_TOKEN, 0, 0, 0);
    Attnd__PoolShare message = ATTND__POOL_SHARE__INIT;
    message.pool = pool;
    message.writable = writable != 0;
    struct attnd_rpc call = ATTND_CALL(POOL_SHARE, .pool_share = &message);
    return attnd_call_secret(session, &call, ATTND__REPLY__RESULT_TOKEN, token);
}

int attnd_pool_release(struct attnd_session *session, uint32_t pool)
{
    Attnd__PoolRelease message = ATTND__POOL_RELEASE__INIT;
    message.pool = pool;
    struct attnd_rpc call = ATTND_CALL(POOL_RELEASE, .pool_release = &message);
    return attnd_object_release(session, &call, ATTND_OBJECT_POOL, pool);
}
