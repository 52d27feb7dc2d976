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

/* Unlinks the handle when its last use goes; returns it, with next NULL, or NULL. objects_lock is
 * held. */
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
    object->next = NULL;
    return object;
}

/* Forgets a handle; unknown ones are fine. Return: a list of what went with it. */
static struct attnd_object *take_out(struct attnd_session *session, enum attnd_object_kind kind,
                                     uint32_t handle)
{
    pthread_mutex_lock(&session->objects_lock);
    struct attnd_object *object = unlink_unused(session, kind, handle);
    if (object && kind == ATTND_OBJECT_POOL && object->u.pool.info.memory != 0)
        object->next = unlink_unused(session, ATTND_OBJECT_MEMORY, object->u.pool.info.memory);
    pthread_mutex_unlock(&session->objects_lock);
    return object;
}

static void tell_of_memories(struct attnd_session *session, const struct attnd_object *object)
{
    pthread_mutex_lock(&session->objects_lock);
    struct attnd_stream_launcher *launcher = session->launcher;
    void (*ends)(struct attnd_stream_launcher * launcher, uint64_t serial) = session->memory_ends;
    pthread_mutex_unlock(&session->objects_lock);
    for (; launcher && ends && object; object = object->next)
        if (object->kind == ATTND_OBJECT_MEMORY)
            ends(launcher, object->serial);
}

static void free_all(struct attnd_object *object, int unmap)
{
    while (object) {
        struct attnd_object *next = object->next;
        object_free(object, unmap);
        object = next;
    }
}

int attnd_object_release(struct attnd_session *session, struct attnd_rpc *call,
                         enum attnd_object_kind kind, uint32_t handle)
{
    int rc = attnd_call(session, call, ATTND__REPLY__RESULT__NOT_SET);
    if (rc < 0)
        return rc;
    struct attnd_object *objects = take_out(session, kind, handle);
    attnd_call_end(session, call);
    tell_of_memories(session, objects); /* while they are mapped still */
    free_all(objects, 1);
    return 0;
}

void attnd_object_drop_all(struct attnd_session *session, int unmap)
{
    free_all(session->objects, unmap);
    session->objects = NULL;
}
