/*
 * objects.c - what the session remembers of its handles.
 *
 * The daemon is the authority on what a handle means. Kept here is only what it cannot know or is
 * not asked again: where memory is mapped in this process, a pool's description, a plan's defaults.
 * A session has tens of handles, so a list will do; no operation of the hot path looks into it.
 */
#include "client/internal.h"

#include <stdlib.h>

struct attnd_object *attnd_object_find(const struct attnd_session *session,
                                       enum attnd_object_kind kind, uint32_t handle)
{
    struct attnd_object *object = session->objects;
    while (object && (object->kind != kind || object->handle != handle))
        object = object->next;
    return object;
}

void attnd_object_add(struct attnd_session *session, struct attnd_object *object)
{
    pthread_mutex_lock(&session->objects_lock);
    object->serial = ++session->objects_added;
    object->next = session->objects;
    session->objects = object;
    pthread_mutex_unlock(&session->objects_lock);
}

static void object_free(struct attnd_object *object, int unmap)
{
    if (object->kind == ATTND_OBJECT_POOL)
        free(object->u.pool.planes);
    if (object->kind == ATTND_OBJECT_MEMORY) {
        if (!unmap) /* a fork has the descriptor of device memory, but no mapping */
            object->u.memory.shm.address = NULL;
        attnd_shm_unmap(&object->u.memory.shm);
    }
    free(object);
}

/* Unlinks the handle when its last use goes; returns it, or NULL. objects_lock is held. */
static struct attnd_object *unlink_unused(struct attnd_session *session,
                                          enum attnd_object_kind kind, uint32_t handle)
{
    struct attnd_object *object = attnd_object_find(session, kind, handle);
    if (object == NULL || (kind == ATTND_OBJECT_MEMORY && --object->u.memory.uses > 0))
        return NULL;
    struct attnd_object **link = &session->objects;
    while (*link != object)
        link = &(*link)->next;
    *link = object->next;
    return object;
}

void attnd_object_drop(struct attnd_session *session, enum attnd_object_kind kind, uint32_t handle)
{
    struct attnd_object *memory = NULL;
    pthread_mutex_lock(&session->objects_lock);
    struct attnd_object *object = unlink_unused(session, kind, handle);
    if (object && kind == ATTND_OBJECT_POOL && object->u.pool.info.memory != 0)
        memory = unlink_unused(session, ATTND_OBJECT_MEMORY, object->u.pool.info.memory);
    pthread_mutex_unlock(&session->objects_lock);

    if (object)
        object_free(object, 1);
    if (memory)
        object_free(memory, 1);
}

int attnd_object_release(struct attnd_session *session, struct attnd_rpc *call,
                         enum attnd_object_kind kind, uint32_t handle)
{
    int rc = attnd_call(session, call, ATTND__REPLY__RESULT__NOT_SET);
    if (rc < 0)
        return rc;
    attnd_object_drop(session, kind, handle);
    attnd_call_end(session, call);
    return 0;
}

void attnd_object_drop_all(struct attnd_session *session, int unmap)
{
    struct attnd_object *object = session->objects;
    session->objects = NULL;
    while (object) {
        struct attnd_object *next = object->next;
        object_free(object, unmap);
        object = next;
    }
}
