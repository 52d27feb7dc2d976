/*
 * stream.c - what a session has for its streams, and what they are asked.
 *
 * A launcher is made by the first call that needs one: of rings (ring.c), or of an engine of its
 * own (engine.c). It is of one context and lasts as long as the session.
 */
#include "client/cuda/stream.h"

#include "client/cuda/device.h"
#include "client/internal.h"
#include "schemas/atomics.h"

#include <stdlib.h>

int attnd_stream_fault(CUresult result)
{
    return attnd_fault_raise(-ATTND_E_DEVICE, ATTND_F_MAILBOX, 0, result, 0);
}

/* ---- once a session ---- */

/* The context may be gone, and with it all there is to undo: results do not matter. */
static void end(struct attnd_stream_launcher *launcher)
{
    if (launcher->engine)
        attnd_engine_end(launcher->engine);
    if (launcher->stream)
        (void)cuStreamDestroy(launcher->stream);
    attnd_rings_end(launcher);
    free(launcher);
}

/* At the end of the session, whatever context is current then. */
static void end_in_context(struct attnd_stream_launcher *launcher)
{
    CUcontext context = NULL;

    if (cuCtxPushCurrent(launcher->context) != CUDA_SUCCESS) {
        free(launcher);
        return;
    }
    end(launcher);
    (void)cuCtxPopCurrent(&context);
}

/* What the engine has of the session ends, whatever context is current, and maybe while another
 * thread captures. Return: 0: there is nothing to do; else leave() follows. */
static int enter(const struct attnd_stream_launcher *launcher, CUstreamCaptureMode *mode)
{
    if (!launcher->engine || cuCtxPushCurrent(launcher->context) != CUDA_SUCCESS)
        return 0;
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)cuThreadExchangeStreamCaptureMode(mode);
    return 1;
}

static void leave(CUstreamCaptureMode mode)
{
    CUcontext context = NULL;

    (void)cuThreadExchangeStreamCaptureMode(&mode);
    (void)cuCtxPopCurrent(&context);
}

static void prepared_ends(struct attnd_stream_launcher *launcher, uint32_t prepared)
{
    CUstreamCaptureMode mode;

    if (!enter(launcher, &mode))
        return;
    attnd_engine_unprepare(launcher->engine, prepared);
    leave(mode);
}

static void plan_ends(struct attnd_stream_launcher *launcher, uint32_t plan)
{
    CUstreamCaptureMode mode;

    if (!enter(launcher, &mode))
        return;
    attnd_engine_plan_ends(launcher->engine, plan);
    leave(mode);
}

static void memory_ends(struct attnd_stream_launcher *launcher, uint64_t serial)
{
    CUstreamCaptureMode mode;

    if (!enter(launcher, &mode))
        return;
    attnd_engine_memory_ends(launcher->engine, serial);
    leave(mode);
}

/* Of the service's GPU this context must be in either case. */
static int open_engine(struct attnd_session *session, struct attnd_stream_launcher *launcher)
{
    CUdevice device = 0;
    CUresult result = cuCtxGetDevice(&device);

    if (result != CUDA_SUCCESS)
        return attnd_stream_fault(result);
    int rc = attnd_cuda_check_device(session, device);
    return rc < 0 ? rc : attnd_engine_open(session, launcher->stream, &launcher->engine);
}

/* Return: NULL with *code. */
static struct attnd_stream_launcher *make_launcher(struct attnd_session *session, CUcontext context,
                                                   int *code)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct attnd_stream_launcher *launcher = calloc(1, sizeof(*launcher));

    if (launcher == NULL) {
        *code = attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_MAILBOX, 0, 0, 0);
        return NULL;
    }
    launcher->context = context;
    (void)cuThreadExchangeStreamCaptureMode(&mode);
    CUresult result = cuStreamCreate(&launcher->stream, CU_STREAM_NON_BLOCKING);
    *code = result == CUDA_SUCCESS ? 0 : attnd_stream_fault(result);
    if (*code == 0)
        *code = attnd_mailbox_open(session);
    if (*code == 0)
        *code = attnd_observe32(&session->by_engine) ? open_engine(session, launcher)
                                                     : attnd_rings_open(session, launcher);
    if (*code < 0) {
        end(launcher);
        launcher = NULL;
    }
    (void)cuThreadExchangeStreamCaptureMode(&mode);
    return launcher;
}

/* Return: what the session already has. */
static struct attnd_stream_launcher *peek_launcher(struct attnd_session *session)
{
    pthread_mutex_lock(&session->objects_lock);
    struct attnd_stream_launcher *launcher = session->launcher;
    pthread_mutex_unlock(&session->objects_lock);
    return launcher;
}

static void keep_launcher(struct attnd_session *session, struct attnd_stream_launcher *made)
{
    pthread_mutex_lock(&session->objects_lock);
    session->launcher = made;
    session->launcher_end = end_in_context;
    session->prepared_ends = prepared_ends;
    session->plan_ends = plan_ends;
    session->memory_ends = memory_ends;
    pthread_mutex_unlock(&session->objects_lock);
}

/* The session's, made by the first thread that asks while the others wait. Return: NULL with
 * *code. */
static struct attnd_stream_launcher *the_launcher(struct attnd_session *session, CUcontext context,
                                                  int *code)
{
    struct attnd_stream_launcher *launcher = peek_launcher(session);

    if (launcher)
        return launcher;
    pthread_mutex_lock(&session->launcher_lock);
    launcher = peek_launcher(session);
    if (launcher == NULL && (launcher = make_launcher(session, context, code)) != NULL)
        keep_launcher(session, launcher);
    pthread_mutex_unlock(&session->launcher_lock);
    return launcher;
}

/* Return: NULL with *code. */
struct attnd_stream_launcher *attnd_stream_launcher_open(struct attnd_session *session, int *code)
{
    CUcontext context = NULL;

    *code = attnd_session_check(session);
    if (*code < 0)
        return NULL;
    CUresult result = cuCtxGetCurrent(&context);
    if (result != CUDA_SUCCESS || context == NULL) {
        *code = attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_NONE, 0, result, 0);
        return NULL;
    }
    struct attnd_stream_launcher *launcher = the_launcher(session, context, code);
    if (launcher == NULL || launcher->context == context)
        return launcher;
    *code = attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_NONE, 0, 0, 0);
    return NULL;
}

int attnd_cuda_stream_open(struct attnd_session *session)
{
    int rc;
    (void)attnd_stream_launcher_open(session, &rc);
    return rc;
}

/* ---- each time ---- */

int attnd_stream_check_lane(uint32_t lane)
{
    if (lane < ATTND_LANES_MAX)
        return 0;
    return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_LANE, 0, lane, ATTND_LANES_MAX - 1);
}

int attnd_cuda_run_on_stream(struct attnd_session *session, uint32_t lane, uint32_t prepared,
                             CUstream stream)
{
    int rc;
    const struct attnd_stream_launcher *launcher = attnd_stream_launcher_open(session, &rc);

    if (launcher == NULL)
        return rc;
    rc = attnd_stream_check_lane(lane);
    if (rc == 0 && (prepared == 0 || prepared >= ATTND_DOORBELL_RUNS))
        rc = attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_PREPARED, 0, prepared, 0);
    if (rc < 0)
        return rc;
    if (launcher->engine)
        return attnd_engine_run(launcher->engine, lane, prepared, NULL, stream);
    CUresult result = attnd_ring(launcher, lane, prepared, stream);
    return result == CUDA_SUCCESS ? 0 : attnd_stream_fault(result);
}
