/*
 * planner.c - the plan object: from page tables to work that any worker can take, once for all
 * layers.
 *
 * A batch says which query rows read which pages. The worker wants the opposite view: pieces of
 * about equal time, each self-contained, in an order that ends well. attnd_planner_set() makes it
 * in seven steps, all but linear in the size of the batch:
 *
 *   share.c   leading pages that neighbours have in common: levels in front of the batch's
 *   fill.c    entries, page lists (with room for advance), lengths of generation 0
 *   place.c   where rows stand that have keys on several levels
 *   tile.c    rows of an entry into blocks of one pass over KV, with a time each (times.c); blocks
 *             that are long against a worker's share are split along KV (split.c, fuse.c). The
 *             result is tiles.
 *   merge.c   rows that several tiles answer for (splits, cascade levels) get partials and merges
 *   order.c   tiles by cost, largest first: a free worker takes the next, and the last to finish is
 *             not far behind; or each class so, for workers of its own
 *   head      last, here
 *
 * All that may fail is decided in the private half, beside the batch that the plan has: a set that
 * is refused has written nothing, and gives the private half back as it was.
 *
 * What a plan does not hold is as important: no layer, no q or o address, no lengths inside tiles.
 * A run descriptor brings the first two, a generation the last, so one plan serves every layer of a
 * step and, by advance.c, the steps after it.
 *
 * Memory: the capacities of a plan bound everything a batch can come to (layout.c derives how), so
 * setting and advancing allocate nothing. The heap half is shared with the worker and only written;
 * the private half (private.h) remembers what advance needs. Nothing here synchronises: the daemon
 * sets a plan while no run of it is in flight, and the ring that carries the run publishes it.
 */
#include "persistent/plan/planner.h"
#include "persistent/plan/layout.h"
#include "persistent/plan/place.h"
#include "persistent/plan/steps.h"
#include "persistent/plan/times.h"
#include "schemas/atomics.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Every set of every plan: a worker tells by it whether its copy of the plan at some heap offset is
 * the plan that is there now, even if another one was there before. It never comes around. */
static uint64_t sets;

/* The parts of the private half that grow with the capacities. */
static size_t memory_bytes(const struct attnd_plan_limits *limits,
                           const struct attnd_plan_capacity *capacity)
{
    const struct attnd_plan *plan = NULL;
    const size_t blocks = capacity->blocks, tiles = capacity->tiles;
    const size_t requests = limits->requests;

    return (capacity->shared ? (requests + 1) * sizeof(*plan->key_ns) : 0) +
           blocks * sizeof(*plan->blocks) + tiles * sizeof(*plan->built) +
           2 * (requests + capacity->shared) * sizeof(*plan->state) + sizeof(*plan->before) +
           2 * capacity->shared * sizeof(*plan->nodes) + 2 * tiles * sizeof(*plan->order) +
           tiles * sizeof(*plan->tile_ns);
}

uint64_t attnd_plan_private_bytes(const struct attnd_plan_limits *limits)
{
    struct attnd_plan_capacity capacity;

    if (attnd_plan_capacity(limits, &capacity) < 0)
        return 0;
    return sizeof(struct attnd_plan) + memory_bytes(limits, &capacity);
}

/* All of them in one allocation. */
static int allocate_private(struct attnd_plan *plan)
{
    const struct attnd_plan_capacity *capacity = &plan->capacity;
    const size_t blocks = capacity->blocks, tiles = capacity->tiles;
    const size_t requests = plan->limits.requests;
    size_t bytes = memory_bytes(&plan->limits, capacity);

    plan->memory = malloc(bytes ? bytes : 1);
    if (!plan->memory)
        return -ATTND_E_NO_MEMORY;
    /* Widest alignment first: no padding between them. */
    plan->before = plan->memory;
    plan->key_ns = (double *)(void *)(plan->before + 1);
    plan->blocks =
        (struct attnd_row_block *)(void *)(plan->key_ns + (capacity->shared ? requests + 1 : 0));
    plan->built = (struct attnd_tile *)(void *)(plan->blocks + blocks);
    plan->state = (struct attnd_entry_state *)(void *)(plan->built + tiles);
    plan->state_spare = plan->state + requests + capacity->shared;
    plan->nodes =
        (struct attnd_shared_node *)(void *)(plan->state_spare + requests + capacity->shared);
    plan->order = (uint32_t *)(void *)(plan->nodes + 2 * capacity->shared);
    plan->order_spare = plan->order + tiles;
    plan->tile_ns = (float *)(void *)(plan->order_spare + tiles);
    return 0;
}

static void point_into_heap(struct attnd_plan *plan, void *heap)
{
    const struct attnd_plan_capacity *capacity = &plan->capacity;
    uint8_t *bytes = heap;

    plan->head = heap;
    plan->variant = (void *)(bytes + sizeof(*plan->head));
    plan->entries = (void *)(bytes + capacity->entries_offset_bytes);
    plan->tiles = (void *)(bytes + capacity->tiles_offset_bytes);
    plan->merges = (void *)(bytes + capacity->merges_offset_bytes);
    plan->merge_parts = (void *)(bytes + capacity->merge_parts_offset_bytes);
    plan->kv_pages = (void *)(bytes + capacity->kv_pages_offset_bytes);
    plan->kv_len = (void *)(bytes + capacity->kv_len_offset_bytes);
    plan->mask_begin = (void *)(bytes + capacity->mask_begin_offset_bytes);
}

/* What is true of the plan whatever the batch; a plan of this shape is empty. */
static struct attnd_plan_head empty_shape(const struct attnd_plan *plan, uint64_t pool_offset_bytes)
{
    const struct attnd_plan_capacity *capacity = &plan->capacity;

    return (struct attnd_plan_head){
        .pool_offset_bytes = pool_offset_bytes,
        .heads_q = plan->limits.heads_q,
        .heads_kv = plan->pool.heads_kv,
        .group = plan->limits.heads_q / plan->pool.heads_kv,
        .dim_qk = plan->pool.dim_qk,
        .dim_vo = plan->pool.dim_vo,
        .dtype = plan->pool.dtype,
        .kv_dtype = plan->pool.dtype,
        .entries_max = capacity->entries,
        .entries_offset_bytes = capacity->entries_offset_bytes,
        .tiles_offset_bytes = capacity->tiles_offset_bytes,
        .merges_offset_bytes = capacity->merges_offset_bytes,
        .merge_parts_offset_bytes = capacity->merge_parts_offset_bytes,
        .kv_pages_offset_bytes = capacity->kv_pages_offset_bytes,
        .kv_len_offset_bytes = capacity->kv_len_offset_bytes,
        .mask_begin_offset_bytes = capacity->mask_begin_offset_bytes,
    };
}

int attnd_plan_new(const struct attnd_plan_limits *limits, void *heap,
                   const struct attnd_heap_pool *pool, uint64_t pool_offset_bytes,
                   struct attnd_plan **out)
{
    struct attnd_plan *plan = calloc(1, sizeof(*plan));
    int code;

    if (!plan)
        return -ATTND_E_NO_MEMORY;
    plan->limits = *limits;
    plan->pool = *pool;
    attnd_plan_default_rates(&plan->limits.target);
    code = attnd_plan_capacity(limits, &plan->capacity);
    if (!code && (limits->heads_kv != pool->heads_kv || pool->page_size == 0 ||
                  limits->page_size != pool->page_size))
        code = -ATTND_E_RANGE;
    if (!code)
        code = allocate_private(plan);
    if (code) {
        free(plan);
        return code;
    }
    point_into_heap(plan, heap);
    attnd_plan_take_times(plan);
    plan->shape = empty_shape(plan, pool_offset_bytes);
    *plan->head = plan->shape;
    *out = plan;
    return 0;
}

void attnd_plan_free(struct attnd_plan *plan)
{
    if (!plan)
        return;
    free(plan->memory);
    free(plan);
}

/* What admission has decided (service/admission/): the batch is within the plan's capacities. */
static int fits(const struct attnd_plan_limits *limits, const struct attnd_batch_view *batch)
{
    const uint64_t reserved =
        (uint64_t)batch->level[batch->levels - 1].entries * batch->reserve_pages;

    return batch->levels <= limits->levels && batch->rows <= limits->rows &&
           batch->entries <= limits->requests && batch->pages + reserved <= limits->pages &&
           batch->heads_q <= limits->heads_q;
}

static void take_shape(struct attnd_plan_head *shape, const struct attnd_batch_view *batch)
{
    shape->rows = batch->rows;
    shape->entries = batch->entries;
    shape->levels = batch->levels;
    shape->heads_q = batch->heads_q;
    shape->group = batch->heads_q / shape->heads_kv;
    shape->dtype = batch->dtype;
    shape->flags = batch->flags;
    shape->sm_scale = batch->sm_scale;
    shape->options = batch->options;
    if (batch->options & ATTND_OPTION_SOFT_CAP)
        shape->logits_soft_cap = batch->variant.logits_soft_cap;
    shape->q_pitch = batch->q_pitch;
    shape->o_pitch = batch->o_pitch;
    shape->lse_pitch = batch->lse_pitch;
    shape->k_pitch = batch->k_pitch;
    shape->v_pitch = batch->v_pitch;
}

static void make_empty(struct attnd_plan *plan)
{
    const uint64_t version = plan->shape.set_version;

    plan->shape = empty_shape(plan, plan->shape.pool_offset_bytes);
    plan->shape.set_version = version;
    plan->found = (struct attnd_plan_found){0};
    plan->mix = (struct attnd_plan_mix){0};
    plan->shared = plan->shared_levels = 0;
}

void attnd_plan_begin(struct attnd_plan *plan)
{
    struct attnd_entry_state *state = plan->state_spare;

    *plan->before = *plan;
    plan->state_spare = plan->state;
    plan->state = state;
    plan->shape.set_version = attnd_take64(&sets, 1) + 1;
}

void attnd_planner_drop(struct attnd_plan *plan)
{
    *plan = *plan->before;
}

int attnd_plan_build(struct attnd_plan *plan, uint32_t fixed_split, struct attnd_fault *fault)
{
    int code = attnd_plan_build_tiles(plan, fixed_split, fault);

    if (code)
        return code;
    attnd_plan_count_merges(plan);
    plan->shape.reads_first = attnd_plan_reads_first(plan);
    plan->found.fused =
        plan->mix.fused && plan->mix.compute_workers < plan->limits.target.tile_workers;
    if (plan->mix.classes > 1 || plan->shape.levels > 1)
        plan->shape.flags |= ATTND_PLAN_ONE_PASS;
    return 0;
}

void attnd_plan_write(struct attnd_plan *plan)
{
    attnd_plan_build_merges(plan);
    attnd_plan_order_tiles(plan);
    *plan->head = plan->shape;
}

int attnd_planner_build(struct attnd_plan *plan, const struct attnd_batch_view *batch,
                        struct attnd_fault *fault)
{
    assert(batch->levels >= 1 && batch->levels <= ATTND_LEVELS_MAX);
    assert(batch->heads_q >= plan->pool.heads_kv && batch->heads_q % plan->pool.heads_kv == 0);

    assert(fits(&plan->limits, batch));

    attnd_plan_begin(plan);
    make_empty(plan);
    take_shape(&plan->shape, batch);
    attnd_plan_share(plan, batch);
    attnd_plan_fill_entries(plan, batch);
    attnd_plan_share_entries(plan);
    int code = attnd_plan_place(plan, fault);
    if (!code)
        code = attnd_plan_build(
            plan, batch->options & ATTND_OPTION_FIXED_SPLIT ? batch->variant.fixed_split : 0,
            fault);
    if (code)
        attnd_planner_drop(plan);
    return code;
}

void attnd_planner_write(struct attnd_plan *plan, const struct attnd_batch_view *batch)
{
    *plan->variant = batch->variant;
    attnd_plan_write_entries(plan, batch);
    attnd_plan_write_places(plan, 0, NULL);
    attnd_plan_write(plan);
}

int attnd_planner_set(struct attnd_plan *plan, const struct attnd_batch_view *batch,
                      struct attnd_fault *fault)
{
    int code = attnd_planner_build(plan, batch, fault);

    if (!code)
        attnd_planner_write(plan, batch);
    return code;
}

const struct attnd_plan_head *attnd_plan_head(const struct attnd_plan *plan)
{
    return plan->head;
}

const struct attnd_plan_head *attnd_plan_shape(const struct attnd_plan *plan)
{
    return &plan->shape;
}

const struct attnd_entry *attnd_plan_entry(const struct attnd_plan *plan, uint32_t index)
{
    assert(index < plan->shape.entries);
    return &plan->state[index].entry;
}

struct attnd_plan_found attnd_plan_found(const struct attnd_plan *plan)
{
    return plan->found;
}

uint32_t attnd_plan_shared_entries(const struct attnd_plan *plan)
{
    return plan->shared;
}
