/*
 * engine.c - what libattnd-cuda needs where the engine's own stream executes launched runs: plans
 * as the kernels read them, the kernels, and what was prepared.
 */
#include "client/internal.h"

#include "schemas/engine.h"

int attnd_prepared_args(struct attnd_session *session, uint32_t prepared,
                        struct attnd_prepare_args *out, uint32_t *plan)
{
    pthread_mutex_lock(&session->objects_lock);
    const struct attnd_object *object = attnd_object_find(session, ATTND_OBJECT_PREPARED, prepared);
    const int known = object != NULL && !object->ending;
    if (known) {
        *out = object->u.prepared.args;
        *plan = object->u.prepared.plan;
    }
    pthread_mutex_unlock(&session->objects_lock);
    return known ? 0 : attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_PREPARED, 0, prepared, 0);
}

/* Return: the launcher, if it wants to hear of an end by *@ends. */
static struct attnd_stream_launcher *
mark(struct attnd_session *session, enum attnd_object_kind kind, uint32_t handle, int ending,
     void (**ends)(struct attnd_stream_launcher *launcher, uint32_t handle))
{
    pthread_mutex_lock(&session->objects_lock);
    struct attnd_object *object = attnd_object_find(session, kind, handle);
    if (object)
        object->ending = ending;
    *ends = kind == ATTND_OBJECT_PLAN ? session->plan_ends : session->prepared_ends;
    struct attnd_stream_launcher *launcher = *ends ? session->launcher : NULL;
    pthread_mutex_unlock(&session->objects_lock);
    return launcher;
}

int attnd_launcher_release(struct attnd_session *session, struct attnd_rpc *call,
                           enum attnd_object_kind kind, uint32_t handle)
{
    void (*ends)(struct attnd_stream_launcher * launcher, uint32_t handle);
    int rc = attnd_session_check(session);
    if (rc < 0)
        return rc;
    struct attnd_stream_launcher *launcher = mark(session, kind, handle, 1, &ends);
    if (launcher)
        ends(launcher, handle);
    rc = attnd_object_release(session, call, kind, handle);
    if (rc < 0)
        (void)mark(session, kind, handle, 0, &ends);
    return rc;
}

int attnd_plan_pool(struct attnd_session *session, uint32_t plan, uint32_t *pool, uint64_t *serial)
{
    pthread_mutex_lock(&session->objects_lock);
    const struct attnd_object *object = attnd_object_find(session, ATTND_OBJECT_PLAN, plan);
    const int known = object != NULL && !object->ending;
    if (known) {
        *pool = object->u.plan.pool;
        *serial = object->serial;
    }
    pthread_mutex_unlock(&session->objects_lock);
    return known ? 0 : attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_PLAN, 0, plan, 0);
}

/* A reply that came with one descriptor, of a file of @bytes. Ends the call. */
static int take_file(struct attnd_session *session, struct attnd_rpc *call, uint64_t bytes,
                     uint64_t bytes_min, int *fd, uint64_t *size_bytes)
{
    if (call->fd_count != 1 || bytes < bytes_min)
        return attnd_call_broken(session, call);
    *fd = attnd_call_take_fd(call, 0);
    *size_bytes = bytes;
    attnd_call_end(session, call);
    return 0;
}

int attnd_plan_image_open(struct attnd_session *session, uint32_t plan, int *fd,
                          uint64_t *size_bytes)
{
    Attnd__PlanImage message = ATTND__PLAN_IMAGE__INIT;
    message.plan = plan;
    struct attnd_rpc call = ATTND_CALL(PLAN_IMAGE, .plan_image = &message);
    int rc = attnd_call(session, &call, ATTND__REPLY__RESULT_PLAN_IMAGE);
    if (rc < 0)
        return rc;
    return take_file(session, &call, call.reply->plan_image->size_bytes,
                     ATTND_IMAGE_PLAN_AT + sizeof(struct attnd_plan_head), fd, size_bytes);
}

int attnd_kernel_file(struct attnd_session *session, uint32_t kernel, int *fd, uint64_t *size_bytes)
{
    Attnd__KernelFile message = ATTND__KERNEL_FILE__INIT;
    message.kernel = kernel;
    struct attnd_rpc call = ATTND_CALL(KERNEL_FILE, .kernel_file = &message);
    int rc = attnd_call(session, &call, ATTND__REPLY__RESULT_KERNEL_FILE);
    if (rc < 0)
        return rc;
    return take_file(session, &call, call.reply->kernel_file->size_bytes, 1, fd, size_bytes);
}
