/*
 * engine_run.c - prepared runs as this engine's kernels find them, and their launches.
 *
 * A run is resolved when it is first launched: its pointers and tensor maps lie in a slot of the
 * session's block from then on. A launch is one kernel, whose blocks take the run's items. On
 * Hopper a launch may begin while what is in front of it in the stream ends (programmatic dependent
 * launch); it waits for that before it looks at anything.
 */
#include "client/cuda/engine.h"

#include "schemas/atomics.h"
#include "schemas/pool_fields.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORKER_THREADS 384u

static struct attnd_heap_plane plane_of(const struct attnd_plane *plane)
{
    struct attnd_heap_plane own = {.memory = plane->memory};

    ATTND_PLANE_PLACE_COPY(&own, plane);
    return own;
}

static struct attnd_place place_of(const struct attnd_tensor *tensor)
{
    return (struct attnd_place){.memory = tensor->memory ? tensor->memory : ATTND_NONE,
                                .offset_bytes = tensor->offset_bytes};
}

static int know_memories(struct attnd_engine *engine, const struct attnd_engine_run *run)
{
    const uint32_t handles[] = {run->k.memory, run->v.memory, run->q.memory, run->o.memory,
                                run->lse.memory};
    int rc = 0;

    for (uint32_t i = 0; i < sizeof(handles) / sizeof(handles[0]) && rc == 0; i++)
        if (handles[i] != ATTND_NONE)
            rc = attnd_engine_memory(engine, handles[i]);
    return rc;
}

static int describe(struct attnd_engine *engine, uint32_t pool,
                    const struct attnd_prepare_args *args, struct attnd_engine_run *run,
                    struct engine_run *own)
{
    struct attnd_pool_info info = {.size = sizeof(info)};
    int rc = attnd_pool_info(engine->session, pool, &info);

    if (rc != 0)
        return rc;
    if (info.desc.k == NULL || info.desc.v == NULL || args->layer >= info.desc.layers)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_LAYER, 0, args->layer, info.desc.layers);
    *run = (struct attnd_engine_run){.k = plane_of(&info.desc.k[args->layer]),
                                     .v = plane_of(&info.desc.v[args->layer]),
                                     .q = place_of(&args->q),
                                     .o = place_of(&args->o),
                                     .lse = place_of(&args->lse),
                                     .layer = args->layer,
                                     .page_size = info.desc.page_size,
                                     .pages = info.desc.pages,
                                     .heads_kv = info.desc.heads_kv,
                                     .dim_qk = info.desc.dim_qk,
                                     .dim_vo = info.desc.dim_vo,
                                     .kv_dtype = info.desc.dtype};
    attnd_engine_fused_pool(&info, run, own);
    return know_memories(engine, run);
}

static int resolve(struct attnd_engine *engine, uint32_t prepared, uint32_t slot,
                   struct engine_run *own)
{
    struct attnd_prepare_args args = {.size = sizeof(args)};
    struct attnd_engine_run run;
    uint32_t plan, pool;
    uint64_t serial;
    int rc = attnd_prepared_args(engine->session, prepared, &args, &plan);

    if (rc == 0)
        rc = attnd_plan_pool(engine->session, plan, &pool, &serial);
    if (rc == 0)
        rc = attnd_engine_plan(engine, plan, serial, args.lane, &own->plan, &own->at);
    if (rc == 0)
        rc = describe(engine, pool, &args, &run, own);
    if (rc < 0)
        return rc;
    assert(own->at != NULL);
    if (++engine->serial == 0)
        engine->serial = 1;
    run.plan = own->at->block;
    run.slot = slot;
    run.serial = own->serial = engine->serial;
    own->prepared = prepared;
    own->lane = args.lane;
    void *arguments[] = {&engine->block, &run};
    return attnd_engine_call(engine, engine->prepare, 1, arguments);
}

/* Return: NULL with *code. */
static struct engine_run *find_run(struct attnd_engine *engine, uint32_t prepared, int *code)
{
    const uint32_t slot = (uint32_t)(prepared % engine->facts.runs_max);
    struct engine_run *run = engine->runs[slot];

    *code = 0;
    if (run && run->prepared == prepared)
        return run;
    if (run) { /* the service gives out no number twice at a time */
        *code = attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_PREPARED, 0, prepared, 0);
        return NULL;
    }
    run = calloc(1, sizeof(*run));
    if (run == NULL) {
        *code = attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_PREPARED, 0, 0, 0);
        return NULL;
    }
    *code = resolve(engine, prepared, slot, run);
    if (*code < 0) {
        free(run);
        return NULL;
    }
    run->plan->runs++;
    return engine->runs[slot] = run;
}

/* @early: not in a graph, where it brings nothing, and its edge would be in the way of an engine
 * that asks for edges in the plain way. */
static int launch(struct attnd_engine *engine, const struct engine_run *run,
                  const struct engine_kernel *kernel, struct attnd_engine_fused *fused,
                  CUstream stream, uint32_t early)
{
    CUdeviceptr resident = engine->block + engine->facts.resident_at;
    uint32_t number = kernel->number, first_worker = 0, gang = 1;
    struct attnd_engine_launch launched = {.session = engine->block,
                                           .plan = run->at->block,
                                           .slot =
                                               (uint32_t)(run->prepared % engine->facts.runs_max),
                                           .serial = run->serial,
                                           .lane = run->lane,
                                           .first_rows = run->at->first_rows};
    void *arguments[] = {&resident, &number, &first_worker, &gang, &launched, fused};
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                   .value.programmaticStreamSerializationAllowed = 1};
    const CUlaunchConfig config = {.gridDimX = engine->workers,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = WORKER_THREADS,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = kernel->shared_bytes,
                                   .hStream = stream,
                                   .attrs = &attribute,
                                   .numAttrs = early};

    return attnd_engine_fault(cuLaunchKernelEx(&config, kernel->function, arguments, NULL));
}

static int run_locked(struct attnd_engine *engine, uint32_t lane, uint32_t prepared,
                      const struct attnd_cuda_fused_args *args, CUstream stream)
{
    struct attnd_engine_fused fused = {.k = 0};
    const struct engine_kernel *kernel;
    uint32_t number;
    int rc, captures;
    struct engine_run *run = find_run(engine, prepared, &rc);

    if (run == NULL)
        return rc;
    if (run->lane != lane)
        return attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_LANE, 0, lane, run->lane);
    rc = attnd_engine_refresh(engine, run->plan, run->at, stream, &number, &captures);
    if (rc < 0)
        return rc;
    kernel = attnd_engine_kernel(engine, number, &rc);
    if (kernel == NULL)
        return rc;
    if (args)
        rc = attnd_engine_fuse(engine, run, kernel->decode_rows, args, stream, &fused);
    if (rc == 0)
        rc = launch(engine, run, kernel, &fused, stream, captures ? 0 : kernel->early);
    if (rc == 0 && !captures)
        attnd_engine_note_launch(engine, lane, stream);
    return rc;
}

int attnd_engine_run(struct attnd_engine *engine, uint32_t lane, uint32_t prepared,
                     const struct attnd_cuda_fused_args *args, CUstream stream)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    pthread_mutex_lock(&engine->lock);
    (void)cuThreadExchangeStreamCaptureMode(&mode);
    int rc = run_locked(engine, lane, prepared, args, stream);
    (void)cuThreadExchangeStreamCaptureMode(&mode);
    pthread_mutex_unlock(&engine->lock);
    return rc;
}

void attnd_engine_unprepare(struct attnd_engine *engine, uint32_t prepared)
{
    pthread_mutex_lock(&engine->lock);
    uint32_t slot = (uint32_t)(prepared % engine->facts.runs_max);
    struct engine_run *run = engine->runs[slot];
    if (run && run->prepared == prepared) {
        attnd_engine_wait(engine, run->lane);
        void *arguments[] = {&engine->block, &slot};
        (void)attnd_engine_call(engine, engine->unprepare, 1, arguments);
        engine->runs[slot] = NULL;
        run->plan->runs--;
        free(run);
    }
    pthread_mutex_unlock(&engine->lock);
}
