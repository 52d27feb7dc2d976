/*
 * engine_plan.c - plans as this engine's kernels find them: the daemon's image, a mirror a lane.
 *
 * A refresh is a kernel in front of a run in its stream: it compares the image's versions with the
 * mirror's, and copies what differs. It also writes down what the lane has executed so far. Outside
 * of captures it is enqueued when the image has changed since the last one of the lane, and for its
 * sums once in 50 ms. In a capture it is enqueued once, in front of the first run of
 * the plan in a lane, so that each launch of the graph finds the plan as it is by then.
 */
#include "client/cuda/engine.h"

#include "schemas/atomics.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REFRESH_THREADS 512u
#define REFRESH_SHARED_BYTES 512u
#define TELL_NS 50000000u     /* of what is launched in a stream, for the service's statistics */
#define IMAGE_SPIN_NS 100000u /* while the daemon writes, between two looks whether it lives */

/* ---- the image ---- */

static int map_image(struct attnd_engine *engine, struct engine_plan *plan)
{
    struct attnd_fault fault = {0};
    uint64_t size_bytes;
    int fd, rc = attnd_plan_image_open(engine->session, plan->handle, &fd, &size_bytes);

    if (rc < 0)
        return rc;
    rc = attnd_shm_map(fd, size_bytes, 0, &plan->shm, &fault);
    if (rc < 0) {
        close(fd);
        return attnd_fault_keep(&fault);
    }
    plan->image = plan->shm.address;
    CUresult result =
        cuMemHostRegister(plan->shm.address, plan->shm.size_bytes,
                          CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY);
    if (result != CUDA_SUCCESS)
        return attnd_engine_fault(result);
    result = cuMemHostGetDevicePointer(&plan->image_at, plan->shm.address, 0);
    if (result != CUDA_SUCCESS)
        (void)cuMemHostUnregister(plan->shm.address);
    return attnd_engine_fault(result);
}

static void free_plan(struct engine_plan *plan)
{
    while (plan->lanes) {
        struct engine_lane *at = plan->lanes;
        plan->lanes = at->next;
        free(at);
    }
    if (plan->image_at)
        (void)cuMemHostUnregister(plan->shm.address);
    attnd_shm_unmap(&plan->shm);
    free(plan);
}

/* Return: NULL with *code. */
static struct engine_plan *find_plan(struct attnd_engine *engine, uint32_t handle, uint64_t serial,
                                     int *code)
{
    *code = 0;
    for (struct engine_plan *plan = engine->plans; plan; plan = plan->next)
        if (plan->serial == serial)
            return plan;
    struct engine_plan *plan = calloc(1, sizeof(*plan));
    if (plan == NULL) {
        *code = attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_PLAN, 0, 0, 0);
        return NULL;
    }
    plan->handle = handle;
    plan->serial = serial;
    plan->shm.fd = -1;
    *code = map_image(engine, plan);
    if (*code < 0) {
        free_plan(plan);
        return NULL;
    }
    plan->next = engine->plans;
    engine->plans = plan;
    return plan;
}

static int is_captured(const struct engine_plan *plan)
{
    for (const struct engine_lane *at = plan->lanes; at; at = at->next)
        if (at->capture)
            return 1;
    return 0;
}

/* Behind what streams still have of the plan. */
static void free_blocks(struct attnd_engine *engine, const struct engine_plan *plan)
{
    for (struct engine_lane *at = plan->lanes; at; at = at->next) {
        attnd_engine_wait(engine, at->lane);
        attnd_engine_free(engine, at->block);
        attnd_engine_free(engine, at->mirror);
        if (at->cut)
            attnd_engine_free(engine, at->cut->address);
        if (at->arrivals)
            attnd_engine_free(engine, at->arrivals->address);
    }
}

/* The service refuses the end of one with runs. What a graph may refresh still goes with the
 * session. */
static void drop_plan(struct attnd_engine *engine, uint32_t handle)
{
    for (struct engine_plan **link = &engine->plans; *link; link = &(*link)->next) {
        struct engine_plan *plan = *link;
        if (plan->handle != handle || plan->runs || is_captured(plan))
            continue;
        *link = plan->next;
        free_blocks(engine, plan);
        free_plan(plan);
        return;
    }
}

void attnd_engine_plan_ends(struct attnd_engine *engine, uint32_t handle)
{
    pthread_mutex_lock(&engine->lock);
    drop_plan(engine, handle);
    pthread_mutex_unlock(&engine->lock);
}

void attnd_engine_plans_end(struct attnd_engine *engine)
{
    while (engine->plans) {
        struct engine_plan *plan = engine->plans;
        engine->plans = plan->next;
        free_plan(plan);
    }
}

/* ---- what an image says ---- */

/* Return: 0; -ATTND_E_DISCONNECTED: the daemon ended while it wrote. */
static int view_image(struct attnd_session *session, const struct attnd_plan_image *image,
                      struct engine_view *view)
{
    const char *plan = (const char *)image + ATTND_IMAGE_PLAN_AT;
    uint32_t sequence;

    do {
        while ((sequence = attnd_observe32(&image->sequence)) & 1) { /* A1 */
            int rc = attnd_session_check(session);
            if (rc == 0 && attnd_session_lost(session))
                rc = attnd_fault_raise(-ATTND_E_DISCONNECTED, ATTND_F_SOCKET, 0, 0, 0);
            if (rc < 0)
                return rc;
            (void)attnd_wake_spin(&image->sequence, sequence, IMAGE_SPIN_NS);
        }
        memcpy(&view->image, image, sizeof(view->image));
        memcpy(&view->head, plan, sizeof(view->head));
        memcpy(&view->variant, plan + sizeof(view->head), sizeof(view->variant));
        attnd_fence_full();
    } while (attnd_peek32(&image->sequence) != sequence);
    return 0;
}

int attnd_engine_view(struct attnd_engine *engine, const struct engine_plan *plan,
                      struct engine_view *view)
{
    int rc = view_image(engine->session, plan->image, view);

    if (rc == 0 && view->image.code)
        rc = attnd_fault_raise(-(int)view->image.code, ATTND_F_PLAN, 0, plan->handle, 0);
    return rc;
}

/* ---- lanes ---- */

/* The plan's capacity, and an arrival counter for each merge that it may have and KV head. */
static uint64_t mirror_bytes(const struct engine_view *view)
{
    const uint64_t merges = (view->head.merge_parts_offset_bytes - view->head.merges_offset_bytes) /
                            sizeof(struct attnd_merge);
    const uint64_t bytes = view->image.plan_bytes + merges * view->head.heads_kv * sizeof(uint32_t);

    return (bytes + ATTND_PAGE_BYTES - 1) / ATTND_PAGE_BYTES * ATTND_PAGE_BYTES;
}

static int make_lane(struct attnd_engine *engine, struct engine_plan *plan, uint32_t lane,
                     struct engine_lane **out)
{
    struct engine_view view; /* a plan that was not filled yet does not say where its arrays lie */
    int rc = attnd_engine_view(engine, plan, &view);
    if (rc < 0)
        return rc;
    struct engine_lane *at = calloc(1, sizeof(*at));
    if (at == NULL)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_PLAN, 0, 0, 0);
    at->lane = lane;
    at->mirror_bytes = mirror_bytes(&view);
    struct engine_block *block = attnd_engine_alloc(engine, engine->facts.plan_bytes, &rc);
    struct engine_block *mirror = block ? attnd_engine_alloc(engine, at->mirror_bytes, &rc) : NULL;
    if (mirror == NULL) {
        if (block)
            attnd_engine_free(engine, block->address);
        free(at);
        return rc;
    }
    at->block = block->address;
    at->mirror = mirror->address;
    at->next = plan->lanes;
    *out = plan->lanes = at;
    return 0;
}

int attnd_engine_plan(struct attnd_engine *engine, uint32_t handle, uint64_t serial, uint32_t lane,
                      struct engine_plan **plan, struct engine_lane **at)
{
    int rc;

    *plan = find_plan(engine, handle, serial, &rc);
    if (*plan == NULL)
        return rc;
    for (*at = (*plan)->lanes; *at; *at = (*at)->next)
        if ((*at)->lane == lane)
            return 0;
    return make_lane(engine, *plan, lane, at);
}

/* ---- refreshing ---- */

/* The lane's scratch is of all plans: runs of a lane do not overlap. What is outgrown stays,
 * because a graph may have captured it. */
int attnd_engine_scratch(struct attnd_engine *engine, uint32_t lane, uint64_t wanted)
{
    struct engine_block *scratch = engine->scratch[lane];
    int rc;

    if (scratch && scratch->size_bytes >= wanted)
        return 0;
    uint64_t bytes = wanted * 2 > ENGINE_SCRATCH_BYTES_MIN ? wanted * 2 : ENGINE_SCRATCH_BYTES_MIN;
    scratch = attnd_engine_alloc(engine, bytes, &rc);
    if (scratch)
        engine->scratch[lane] = scratch;
    return rc;
}

int attnd_engine_tables(struct attnd_engine *engine, const struct engine_view *view)
{
    const struct attnd_variant_table *tables[] = {&view->variant.sinks, &view->variant.mask,
                                                  &view->variant.kv_scales};
    const uint32_t options[] = {ATTND_OPTION_SINKS, ATTND_OPTION_MASK, ATTND_OPTION_HEAD_SCALES};
    int rc = 0;

    for (uint32_t i = 0; i < 3 && rc == 0; i++)
        if (view->head.options & options[i])
            rc = attnd_engine_memory(engine, tables[i]->memory);
    return rc;
}

static int launch_refresh(struct attnd_engine *engine, const struct engine_plan *plan,
                          struct engine_lane *at, CUstream stream)
{
    struct attnd_engine_plan place = {.image = plan->image_at,
                                      .mirror = at->mirror,
                                      .mirror_bytes = at->mirror_bytes,
                                      .scratch = engine->scratch[at->lane]->address,
                                      .scratch_bytes = engine->scratch[at->lane]->size_bytes};
    void *arguments[] = {&engine->block, &at->block, &place, &at->lane};

    return attnd_engine_fault(cuLaunchKernel(engine->refresh, 1, 1, 1, REFRESH_THREADS, 1, 1,
                                             REFRESH_SHARED_BYTES, stream, arguments, NULL));
}

CUresult attnd_engine_capture(CUstream stream, uint64_t *id)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t number = 0;
#if CUDA_VERSION >= 13000
    CUresult result = cuStreamGetCaptureInfo(stream, &status, &number, NULL, NULL, NULL, NULL);
#else
    CUresult result = cuStreamGetCaptureInfo(stream, &status, &number, NULL, NULL, NULL);
#endif
    *id = status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : number;
    return result;
}

int attnd_engine_refresh(struct attnd_engine *engine, struct engine_plan *plan,
                         struct engine_lane *at, CUstream stream, uint32_t *kernel, int *captures)
{
    struct engine_view view;
    uint64_t capture;
    CUresult result = attnd_engine_capture(stream, &capture);

    if (result != CUDA_SUCCESS)
        return attnd_engine_fault(result);
    *captures = capture != 0;
    int rc = attnd_engine_view(engine, plan, &view);
    if (rc < 0)
        return rc;
    const struct attnd_plan_head *head = &view.head;
    *kernel =
        attnd_kernel_of(head->dim_qk, head->dim_vo, head->dtype, head->kv_dtype, head->options);
    if (at->cut_version == view.image.set_version) /* its tiles are made on the device */
        return 0;
    at->first_rows = view.image.first_rows;
    at->rows = head->rows;
    at->most_rows = view.image.most_rows;
    const uint64_t now_ns = attnd_clock_ns();
    const int known = at->set_version == view.image.set_version &&
                      at->advance_version == view.image.advance_version &&
                      now_ns - at->told_ns < TELL_NS;
    if (capture ? at->capture == capture : known)
        return 0;
    rc = attnd_engine_tables(engine, &view);
    if (rc == 0)
        rc = attnd_engine_scratch(engine, at->lane, view.image.scratch_bytes);
    if (rc == 0)
        rc = launch_refresh(engine, plan, at, stream);
    if (rc < 0)
        return rc;
    if (capture) {
        at->capture = capture;
        return 0;
    }
    at->told_ns = now_ns;
    at->set_version = view.image.set_version;
    at->advance_version = view.image.advance_version;
    return 0;
}
