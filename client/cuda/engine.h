/*
 * engine.h - runs that this engine's own stream executes: what the files engine*.c share.
 *
 * A session has one block in device memory, a slot in it for each prepared run, and for each plan
 * in each lane a block and a mirror. All of it is this process's own; of the service it has plans'
 * images, which it may read, and the kernels' files. Everything here is under engine->lock.
 */
#ifndef ATTND_CLIENT_CUDA_ENGINE_H
#define ATTND_CLIENT_CUDA_ENGINE_H

#include "client/cuda/attnd_cuda.h"
#include "client/internal.h"
#include "schemas/engine.h"
#include "schemas/kernels.h"

#include <cuda.h>

/* A plan's block has room for as many first items (persistent/cuda/state/engine.cuh). */
#define ENGINE_WORKERS_MAX 192

/* Of a lane, at least: what a graph has captured cannot grow later. */
#define ENGINE_SCRATCH_BYTES_MIN (64ull << 20)

/* Of a cut: what a block may have beside its static memory, at most. */
#define ENGINE_CUT_SHARED_BYTES_MAX (200 * 1024)

/* Device memory that was allocated here; it goes with the session. */
struct engine_block {
    struct engine_block *next;
    CUdeviceptr address;
    uint64_t size_bytes;
};

/* A memory of the session as the GPU sees it. */
struct engine_memory {
    struct engine_memory *next;
    uint32_t handle;
    uint64_t serial;  /* of the session's object: a handle may come to name another one */
    int mapped;       /* by this library */
    void *registered; /* host memory that this library registered; else NULL */
    struct attnd_engine_memory at;
};

/* A plan in a lane. */
struct engine_lane {
    struct engine_lane *next;
    uint32_t lane;
    CUdeviceptr block, mirror;
    uint64_t mirror_bytes;
    uint64_t set_version; /* of the last refresh in a stream */
    uint64_t told_ns;     /* when that was */
    uint32_t advance_version;
    uint64_t capture;     /* the last one that has a refresh */
    uint64_t cut_version; /* of the set whose lengths are cut on the device; 0: none */
    uint32_t first_rows;  /* as in struct attnd_engine_launch */
    uint32_t most_rows;   /* of an entry, packed */
    uint32_t rows;        /* of the batch; of a cut, at most */
    struct engine_block *cut, *arrivals; /* of those: mirror, and what merges count */
};

/* What a plan's image says, read between two equal even numbers. */
struct engine_view {
    struct attnd_plan_image image;
    struct attnd_plan_head head;
    struct attnd_variant variant;
};

struct engine_plan {
    struct engine_plan *next;
    uint32_t handle;
    uint64_t serial; /* of the session's object: a handle may come to name another one */
    struct attnd_shm shm;
    const struct attnd_plan_image *image;
    CUdeviceptr image_at;
    uint32_t runs; /* resolved, of the plan */
    struct engine_lane *lanes;
};

struct engine_run {
    uint32_t prepared, serial, lane;
    int fused_code; /* why it cannot rotate and store, naming fused_field; 0: it can */
    uint32_t fused_field;
    struct engine_plan *plan;
    struct engine_lane *at;
};

struct engine_kernel {
    CUmodule module;
    CUfunction function;
    uint32_t shared_bytes;
    uint32_t early;       /* 1: it may begin while what is in front of it ends */
    uint32_t decode_rows; /* as in struct attnd_kernel_facts */
    uint32_t number;      /* its own: a varied one may stand in for a plain one */
};

struct attnd_engine {
    pthread_mutex_t lock;
    struct attnd_session *session;
    CUstream stream; /* the launcher's */
    uint32_t workers;
    CUmodule module;
    CUfunction open, prepare, unprepare, refresh, cut, rotate;
    uint32_t cut_blocks, cut_shared_max; /* of a cut's launch; bytes beside its static memory */
    int maps;                            /* the GPU has tensor maps */
    struct attnd_engine_facts facts;
    CUdeviceptr block;
    CUdeviceptr account; /* the session's, registered; 0: the service does not ask */
    struct engine_kernel kernels[ATTND_KERNELS];
    struct engine_block *blocks;
    struct engine_block *scratch[ATTND_LANES_MAX];
    struct engine_block *turned[ATTND_LANES_MAX]; /* rotated q; NULL: nobody asked */
    CUevent launched[ATTND_LANES_MAX]; /* behind the last launch outside of a capture; NULL: none */
    struct engine_memory *memories;
    struct engine_plan *plans;
    struct engine_run **runs; /* [facts.runs_max], a slot each */
    uint32_t serial;
};

/* ---- engine.c ---- */

/** attnd_engine_open() - modules and the session's block. @stream: for what is not the engine's.
 * Return: 0 and *@out; as attnd_cuda_stream_open(). */
int attnd_engine_open(struct attnd_session *session, CUstream stream, struct attnd_engine **out);
/** attnd_engine_end() - nothing of it is in flight, or its context is gone. */
void attnd_engine_end(struct attnd_engine *engine);
/** attnd_engine_fault() - the driver's @result as a fault. Return: 0 or its code. */
int attnd_engine_fault(CUresult result);
/** attnd_engine_alloc() - zeroed device memory that goes with the session. NULL: *@code. */
struct engine_block *attnd_engine_alloc(struct attnd_engine *engine, uint64_t size_bytes,
                                        int *code);
/** attnd_engine_grow() - *@block has at least @bytes: another one, if need be, because a graph may
 * have captured what is outgrown. Return: 0 or a fault. */
int attnd_engine_grow(struct attnd_engine *engine, struct engine_block **block, uint64_t bytes);
/** attnd_engine_call() - one block of @threads of a kernel in the engine's own stream, waited for.
 * Return: 0 or a fault. */
int attnd_engine_call(struct attnd_engine *engine, CUfunction function, uint32_t threads,
                      void **arguments);
/** attnd_engine_free() - a block that nothing in flight and no graph uses. */
void attnd_engine_free(struct attnd_engine *engine, CUdeviceptr address);
/** attnd_engine_note_launch() - one of a lane, so that it can be waited for. It is in the stream
 * already: where it cannot be noted it is waited for, and what that fails with is the stream's. */
void attnd_engine_note_launch(struct attnd_engine *engine, uint32_t lane, CUstream stream);
/** attnd_engine_wait() - for the launches of a lane that no capture took in. */
void attnd_engine_wait(struct attnd_engine *engine, uint32_t lane);
/** attnd_engine_kernel() - the worker kernel that executes what @number does. NULL: *@code. */
const struct engine_kernel *attnd_engine_kernel(struct attnd_engine *engine, uint32_t number,
                                                int *code);

/* ---- engine_memory.c ---- */

/** attnd_engine_memory() - makes memory @handle known to the session's kernels.
 * Return: 0; -ATTND_E_UNKNOWN; -ATTND_E_UNSUPPORTED (field memory): this process imported it by
 * attnd_memory_import() and has not said where it lies: attnd_cuda_export() does. */
int attnd_engine_memory(struct attnd_engine *engine, uint32_t handle);
/** attnd_engine_memory_ends() - waits for the lanes' launches outside of captures, and forgets it.
 */
void attnd_engine_memory_ends(struct attnd_engine *engine, uint64_t serial);
void attnd_engine_memories_end(struct attnd_engine *engine);

/* ---- engine_plan.c ---- */

/** attnd_engine_plan() - the plan in a lane. @serial: of its object. Return: 0 or a fault. */
int attnd_engine_plan(struct attnd_engine *engine, uint32_t handle, uint64_t serial, uint32_t lane,
                      struct engine_plan **plan, struct engine_lane **at);
/** attnd_engine_refresh() - a refresh of the plan in front of a run in @stream, if one is wanted
 * there. Return: 0 and *@kernel, the number of the one that executes the plan, *@captures, does the
 * stream capture; or a fault. */
int attnd_engine_refresh(struct attnd_engine *engine, struct engine_plan *plan,
                         struct engine_lane *at, CUstream stream, uint32_t *kernel, int *captures);
/** attnd_engine_view() - of a plan that is filled. Return: 0; why it is not; -ATTND_E_DISCONNECTED:
 * the daemon ended while it wrote. */
int attnd_engine_view(struct attnd_engine *engine, const struct engine_plan *plan,
                      struct engine_view *view);
/** attnd_engine_tables() - memories that the variant's tables lie in. Return: 0 or a fault. */
int attnd_engine_tables(struct attnd_engine *engine, const struct engine_view *view);
/** attnd_engine_scratch() - engine->scratch[lane] has as much. Return: 0 or a fault. */
int attnd_engine_scratch(struct attnd_engine *engine, uint32_t lane, uint64_t wanted);
/** attnd_engine_capture() - *@id: the capture that the stream is part of; 0: none. */
CUresult attnd_engine_capture(CUstream stream, uint64_t *id);
void attnd_engine_plan_ends(struct attnd_engine *engine, uint32_t handle);
void attnd_engine_plans_end(struct attnd_engine *engine);

/* ---- engine_cut.c ---- */

/** attnd_engine_cut() - attnd_cuda_plan_on_stream(). */
int attnd_engine_cut(struct attnd_engine *engine, uint32_t plan, uint32_t lane,
                     const struct attnd_cuda_plan_args *args, CUstream stream);
/** attnd_engine_lane_failed() - @code of a lane as a fault, with what a cut has said of it.
 * Return: its code. */
int attnd_engine_lane_failed(struct attnd_engine *engine, uint32_t lane, uint32_t code);

/* ---- engine_fused.c ---- */

/** attnd_engine_fused_pool() - what of the pool and of q is in the way of fused runs, into @run. */
void attnd_engine_fused_pool(const struct attnd_pool_info *info, const struct attnd_engine_run *of,
                             struct engine_run *run);
/** attnd_engine_fuse() - rotation and storing in front of a launch of @run: in *@fused as the
 * launch's part, or by a kernel in @stream. @few: the most rows that one launch takes, packed; 0:
 * none. Return: 0 or a fault. */
int attnd_engine_fuse(struct attnd_engine *engine, const struct engine_run *run, uint32_t few,
                      const struct attnd_cuda_fused_args *args, CUstream stream,
                      struct attnd_engine_fused *fused);

/* ---- engine_run.c ---- */

/** attnd_engine_run() - attnd_cuda_run_on_stream(), executed by the stream itself; with @args,
 * which may be NULL, attnd_cuda_run_fused_on_stream(). */
int attnd_engine_run(struct attnd_engine *engine, uint32_t lane, uint32_t prepared,
                     const struct attnd_cuda_fused_args *args, CUstream stream);
/** attnd_engine_unprepare() - waits for the lane's launches outside of captures, and clears the
 * run's slot: a graph that launches it later finds it gone (-ATTND_E_UNKNOWN of its lane). */
void attnd_engine_unprepare(struct attnd_engine *engine, uint32_t prepared);

#endif
