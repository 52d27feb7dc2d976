/*
 * engine_cut.c - plans whose lengths only the GPU knows: what a cut is told, and where it writes.
 *
 * A cut is a kernel in front of the runs of a step. Its arguments are all that it needs: the shape
 * of the plan as its image has it now, the engine's arrays, and places in device memory for as many
 * tiles as bounds can come to. So a graph keeps what it captured, and no word of it crosses the bus
 * when it is launched.
 *
 * The mirror holds what is written anew each time. Only the counters of merges last, because runs
 * leave them zero, so they lie in memory of their own. What is outgrown stays: a graph may have it.
 */
#include "client/cuda/engine.h"

#include <assert.h>

#define CUT_THREADS 512u          /* of a block: persistent/cuda/engine/cut.cuh */
#define CUT_ITEMS_BOUND_MAX 4096u /* that longest items may add, as in a plan of the daemon's */

/* What the bounds can come to. */
struct bounds {
    uint64_t blocks, added, tiles; /* added: by splits */
    uint64_t partial_rows;
    uint64_t shared_bytes;
};

static uint64_t line(uint64_t bytes)
{
    return (bytes + 127) / 128 * 128;
}

static int refuse_option(uint32_t field)
{
    return attnd_fault_raise(-ATTND_E_UNSUPPORTED, field, ATTND_F_KV_LEN, 0, 0);
}

/* What needs lengths on the host. */
static int check_options(const struct engine_view *view)
{
    const struct attnd_plan_head *head = &view->head;

    if (head->levels != 1)
        return attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_LEVELS, 0, head->levels, 1);
    if (head->options & ATTND_OPTION_MASK)
        return refuse_option(ATTND_F_MASK);
    if (head->options & ATTND_OPTION_FIXED_SPLIT)
        return refuse_option(ATTND_F_FIXED_SPLIT);
    if (head->options & ATTND_OPTION_CHUNK)
        return refuse_option(ATTND_F_CHUNK);
    if (view->image.pace.keys_item == 0) /* a service that does not know of this */
        return attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_VERSION, 0, 0, 0);
    return 0;
}

static int range(uint32_t field, uint64_t value, uint64_t limit)
{
    return attnd_fault_raise(-ATTND_E_RANGE, field, 0, (int64_t)value, (int64_t)limit);
}

static int check_args(const struct attnd_cuda_plan_args *args, const struct engine_view *view)
{
    const uint64_t rows = args->qo_indptr ? args->rows : (uint64_t)args->requests * args->rows;
    const uint64_t table_keys = (uint64_t)args->table_stride * view->image.page_size;

    if (args->zero)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_RESERVED, 0, args->zero, 0);
    if (args->lengths == 0 || args->lengths % 4)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_KV_LEN, 0, 0, 0);
    if (args->table == 0 || args->table % 4)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_KV_INDICES, 0, 0, 0);
    if (args->qo_indptr % 4)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_QO_INDPTR, 0, 0, 0);
    if (args->requests == 0 || args->requests > view->head.entries)
        return range(ATTND_F_REQUESTS, args->requests, view->head.entries);
    if (rows == 0 || rows > view->head.rows)
        return range(ATTND_F_ROWS, rows, view->head.rows);
    if (args->keys == 0 || args->keys > table_keys || args->keys > INT32_MAX)
        return range(ATTND_F_KV_LEN, args->keys, table_keys < INT32_MAX ? table_keys : INT32_MAX);
    if ((uint64_t)args->requests * args->table_stride > INT32_MAX)
        return range(ATTND_F_PAGES, (uint64_t)args->requests * args->table_stride, INT32_MAX);
    return 0;
}

static uint32_t window_of(const struct engine_view *view)
{
    if (!(view->head.options & ATTND_OPTION_WINDOW))
        return 0;
    return view->variant.window_left < INT32_MAX ? (uint32_t)view->variant.window_left + 1
                                                 : INT32_MAX;
}

static struct attnd_cut_shape shape_of(const struct attnd_engine *engine,
                                       const struct attnd_cuda_plan_args *args,
                                       const struct engine_view *view)
{
    const struct attnd_plan_head *head = &view->head;
    const uint32_t rows_per_tile = view->image.pace.rows_per_tile;
    const uint32_t tokens = rows_per_tile > head->group ? rows_per_tile / head->group : 1;

    return (struct attnd_cut_shape){
        .requests = args->requests,
        .rows_each = args->qo_indptr ? 0 : args->rows,
        .rows = args->qo_indptr ? args->rows : args->requests * args->rows,
        .keys = args->keys,
        .table_stride = args->table_stride,
        .page_size = view->image.page_size,
        .heads_kv = head->heads_kv,
        .group = head->group,
        .tokens = args->rows < tokens ? args->rows : tokens,
        .workers = engine->workers,
        .causal = (head->flags & ATTND_BATCH_CAUSAL) != 0,
        .window = window_of(view),
        .splits_max =
            (engine->workers * ATTND_CUT_TILES_PER_WORKER + head->heads_kv - 1) / head->heads_kv,
        .pace = view->image.pace};
}

static int find_bounds(const struct attnd_engine *engine, const struct attnd_cut_shape *shape,
                       struct bounds *bounds)
{
    assert(shape->pace.keys_item > 0 && shape->tokens > 0 && shape->heads_kv > 0);
    const uint64_t longest = shape->keys / shape->pace.keys_item;

    if (shape->rows_each)
        bounds->blocks =
            (uint64_t)shape->requests * ((shape->rows_each + shape->tokens - 1) / shape->tokens);
    else
        bounds->blocks = (uint64_t)shape->rows / shape->tokens + shape->requests;
    if (bounds->blocks > shape->rows)
        bounds->blocks = shape->rows;
    if (bounds->blocks * longest > CUT_ITEMS_BOUND_MAX)
        return range(ATTND_F_KV_LEN, shape->keys, shape->pace.keys_item - 1u);
    bounds->added = shape->splits_max + bounds->blocks * longest;
    bounds->tiles = ATTND_CUT_REFUSED_PARTS * bounds->blocks + bounds->added;
    bounds->partial_rows = (ATTND_CUT_REFUSED_PARTS + 2 * bounds->added) * shape->tokens;
    bounds->shared_bytes =
        engine->facts.cut_bytes + (uint64_t)shape->requests * engine->facts.cut_request_bytes +
        bounds->blocks * engine->facts.cut_block_bytes +
        bounds->tiles * engine->facts.cut_tile_bytes + (shape->requests + 127u) / 128 * 16;
    if (bounds->shared_bytes > engine->cut_shared_max)
        return range(ATTND_F_ITEMS, bounds->shared_bytes, engine->cut_shared_max);
    return 0;
}

/* Places for what the bounds can come to. */
static int place(struct attnd_engine *engine, struct engine_lane *at, const struct bounds *bounds,
                 struct attnd_engine_cut *cut)
{
    const struct attnd_plan_head *head = &cut->head;
    const uint64_t states_bytes = line(bounds->partial_rows * head->heads_q * 2 * sizeof(float));
    const uint64_t outputs_bytes =
        bounds->partial_rows * head->heads_q * head->dim_vo * sizeof(float);

    cut->tiles_at = line(sizeof(cut->head) + sizeof(cut->variant));
    cut->merges_at = line(cut->tiles_at + bounds->tiles * sizeof(struct attnd_tile));
    cut->parts_at = line(cut->merges_at + bounds->blocks * sizeof(struct attnd_merge));
    cut->lengths_at =
        line(cut->parts_at + (ATTND_CUT_REFUSED_PARTS + 2 * bounds->added) * sizeof(uint32_t));
    int rc = attnd_engine_grow(
        engine, &at->cut, line(cut->lengths_at + (uint64_t)cut->shape.requests * sizeof(int32_t)));
    if (rc == 0)
        rc = attnd_engine_grow(engine, &at->arrivals,
                               bounds->blocks * head->heads_kv * sizeof(uint32_t));
    if (rc == 0)
        rc = attnd_engine_scratch(engine, at->lane, states_bytes + outputs_bytes);
    if (rc < 0)
        return rc;
    cut->mirror = at->cut->address;
    cut->arrivals = at->arrivals->address;
    cut->states = engine->scratch[at->lane]->address;
    cut->outputs = cut->states + states_bytes;
    cut->blocks_max = (uint32_t)bounds->blocks;
    cut->tiles_max = (uint32_t)bounds->tiles;
    return 0;
}

/* The head as runs have it: scales of q and K are one with that of scores. */
static struct attnd_plan_head head_of(const struct engine_view *view)
{
    struct attnd_plan_head head = view->head;

    head.v_scale = 1.0f;
    head.reads_first = 0;
    head.generation = head.compute_tiles = 0;
    head.compute_workers = head.whole_tiles = 0;
    head.flags &= ~ATTND_PLAN_ONE_PASS;
    if (head.options & ATTND_OPTION_SCALES) {
        head.sm_scale *= view->variant.q_scale * view->variant.k_scale;
        head.v_scale = view->variant.v_scale;
    }
    return head;
}

static int describe(struct attnd_engine *engine, uint32_t pool, struct engine_lane *at,
                    const struct attnd_cuda_plan_args *args, const struct engine_view *view,
                    struct attnd_engine_cut *cut, uint64_t *shared_bytes)
{
    struct attnd_pool_info info = {.size = sizeof(info)};
    struct bounds bounds = {0};
    int rc = attnd_pool_info(engine->session, pool, &info);

    if (rc == 0)
        rc = check_options(view);
    if (rc == 0)
        rc = check_args(args, view);
    if (rc < 0)
        return rc;
    *cut = (struct attnd_engine_cut){.shape = shape_of(engine, args, view),
                                     .lengths = args->lengths,
                                     .table = args->table,
                                     .qo_indptr = args->qo_indptr,
                                     .errors = args->errors,
                                     .set_version = view->image.set_version | ATTND_CUT_VERSION,
                                     .pages = info.desc.pages,
                                     .lane = at->lane,
                                     .head = head_of(view),
                                     .variant = view->variant};
    rc = find_bounds(engine, &cut->shape, &bounds);
    *shared_bytes = bounds.shared_bytes;
    return rc < 0 ? rc : place(engine, at, &bounds, cut);
}

/* Where requests have rows of their own number, all have one if there are no more. */
static uint32_t first_rows_of(const struct attnd_cut_shape *shape)
{
    const int decodes = shape->rows_each == 0 && shape->rows <= shape->requests;

    return (decodes ? 1 : shape->tokens) * shape->group;
}

static int cut_locked(struct attnd_engine *engine, uint32_t handle, uint32_t lane,
                      const struct attnd_cuda_plan_args *args, CUstream stream)
{
    struct engine_plan *plan;
    struct engine_lane *at = NULL;
    struct engine_view view = {0};
    struct attnd_engine_cut cut;
    uint32_t pool;
    uint64_t serial, shared_bytes = 0, capture = 0;
    int rc = attnd_plan_pool(engine->session, handle, &pool, &serial);

    if (rc == 0)
        rc = attnd_engine_plan(engine, handle, serial, lane, &plan, &at);
    if (rc == 0)
        rc = attnd_engine_view(engine, plan, &view);
    if (rc == 0)
        rc = describe(engine, pool, at, args, &view, &cut, &shared_bytes);
    if (rc == 0)
        rc = attnd_engine_tables(engine, &view);
    if (rc == 0)
        rc = attnd_engine_fault(attnd_engine_capture(stream, &capture));
    if (rc < 0)
        return rc;
    assert(at != NULL);
    void *arguments[] = {&engine->block, &at->block, &cut};
    rc = attnd_engine_fault(cuLaunchKernel(engine->cut, engine->cut_blocks, 1, 1, CUT_THREADS, 1, 1,
                                           (unsigned)shared_bytes, stream, arguments, NULL));
    if (rc < 0)
        return rc;
    at->cut_version = view.image.set_version;
    at->first_rows = first_rows_of(&cut.shape);
    at->rows = cut.shape.rows;
    at->most_rows = cut.shape.tokens * cut.shape.group;
    if (capture)
        at->capture = capture;
    else
        attnd_engine_note_launch(engine, lane, stream);
    return 0;
}

int attnd_engine_cut(struct attnd_engine *engine, uint32_t plan, uint32_t lane,
                     const struct attnd_cuda_plan_args *args, CUstream stream)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    pthread_mutex_lock(&engine->lock);
    (void)cuThreadExchangeStreamCaptureMode(&mode);
    int rc = cut_locked(engine, plan, lane, args, stream);
    (void)cuThreadExchangeStreamCaptureMode(&mode);
    pthread_mutex_unlock(&engine->lock);
    return rc;
}

/* ---- what a cut has refused ---- */

/* Takes what the last cuts of a plan in a lane have said. */
static CUresult take_fault(const struct attnd_engine *engine, const struct engine_lane *at,
                           struct attnd_fault *fault)
{
    const CUdeviceptr address = at->block + engine->facts.fault_at;
    CUresult result = cuMemcpyDtoHAsync(fault, address, sizeof(*fault), engine->stream);

    if (result == CUDA_SUCCESS)
        result = cuMemsetD8Async(address, 0, sizeof(*fault), engine->stream);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(engine->stream) : result;
}

int attnd_engine_lane_failed(struct attnd_engine *engine, uint32_t lane, uint32_t code)
{
    struct attnd_fault fault = {0}, found = {0};

    pthread_mutex_lock(&engine->lock);
    for (const struct engine_plan *plan = engine->plans; plan; plan = plan->next)
        for (const struct engine_lane *at = plan->lanes; at; at = at->next) {
            if (at->lane != lane || at->cut_version == 0 ||
                take_fault(engine, at, &fault) != CUDA_SUCCESS)
                continue;
            if (fault.code == -(int)code)
                found = fault;
        }
    pthread_mutex_unlock(&engine->lock);
    return found.code ? attnd_fault_keep(&found) : attnd_lane_failed(lane, code);
}
