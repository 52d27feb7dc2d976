/*
 * planobj.c - plan objects: the planner's plan, and what the scheduler asks of it for every run.
 *
 * Everything a run needs to know of the batch (how far its tensors reach, items, scratch) is
 * derived once, when the batch is set. Lengths have generations: an advance writes into one that
 * nobody has pinned, so operations keep the lengths that they were submitted with.
 */
#include "service/objects/planobj.h"

#include "schemas/crash.h"
#include "service/objects/lease.h"
#include "service/supervise/queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One request of the last level: where its new tokens go. */
struct attnd_append_entry {
    uint32_t row_count;
    uint32_t page_begin, page_count; /* in kv_pages */
};

static uint64_t append_bytes(const struct attnd_plan_limits *limits)
{
    return (limits->requests ? limits->requests : 1) * sizeof(struct attnd_append_entry);
}

static uint64_t private_bytes(const struct attnd_plan_limits *limits)
{
    return sizeof(struct attnd_plan_object) + attnd_plan_private_bytes(limits) +
           append_bytes(limits);
}

static int charge(struct attnd_client *client, struct attnd_plan_object *object,
                  struct attnd_fault *fault)
{
    object->payer = attnd_quota_payer(client);
    int rc = attnd_quota_charge(client, object->charged_bytes, fault);
    if (rc < 0)
        return rc;
    rc = attnd_quota_take(client, ATTND_QUOTA_HEAP, object->heap_bytes, fault);
    if (rc < 0)
        attnd_quota_refund(client->service, object->payer, object->charged_bytes);
    return rc;
}

/* It was charged for. */
static int allocate(struct attnd_queue *queue, const struct attnd_plan_limits *limits,
                    struct attnd_plan_object *object, struct attnd_fault *fault)
{
    const struct attnd_pool *pool = object->attachment->pool;
    object->heap_offset_bytes = attnd_heap_alloc(queue, object->heap_bytes);
    if (!object->heap_offset_bytes)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_PLAN, 0,
                               (int64_t)object->heap_bytes,
                               (int64_t)(queue->heap.bytes - queue->heap.used_bytes));
    object->append = calloc(1, append_bytes(limits));
    int rc = -ATTND_E_NO_MEMORY;
    if (object->append)
        rc = attnd_plan_new(limits, attnd_heap_at(queue, object->heap_offset_bytes), pool->heap,
                            pool->heap_offset_bytes, &object->plan);
    return rc < 0 ? attnd_fault_set(fault, rc, ATTND_F_NONE, 0, 0, 0) : 0;
}

static enum attnd_plan_cascade cascade_of(const struct attnd_options *options)
{
    if (!options->cascade || strcmp(options->cascade, "off") == 0)
        return ATTND_CASCADE_OFF;
    return strcmp(options->cascade, "hint") == 0 ? ATTND_CASCADE_HINT : ATTND_CASCADE_AUTO;
}

static enum attnd_plan_fusion fusion_of(const struct attnd_options *options)
{
    if (!options->fusion || strcmp(options->fusion, "off") == 0)
        return ATTND_FUSION_OFF;
    return strcmp(options->fusion, "sm-split") == 0 ? ATTND_FUSION_SM_SPLIT : ATTND_FUSION_AUTO;
}

static struct attnd_plan_limits plan_limits_of(const struct attnd_service *service,
                                               const struct attnd_batch_limits *limits)
{
    const struct attnd_worker_info *info = &service->queue->info;
    const struct attnd_rates *rates = &service->queue->rates;
    return (struct attnd_plan_limits){
        .requests = limits->requests,
        .rows = limits->rows,
        .pages = limits->pages,
        .levels = limits->levels,
        .page_size = limits->page_size,
        .heads_q = limits->heads_q,
        .heads_kv = limits->heads_kv,
        .fixed_split = limits->fixed_split,
        .target = {.tile_workers = info->tile_workers,
                   .rows_per_tile = info->rows_per_tile,
                   .kv_granule = info->kv_granule,
                   .rates = {.worker_gflops = rates->worker_gflops,
                             .worker_gbps = rates->worker_gbps,
                             .worker_l2_gbps = rates->worker_l2_gbps,
                             .memory_gbps = rates->memory_gbps,
                             .rows_step = info->sms ? info->rows_per_tile : 1},
                   .fusion = fusion_of(&service->options),
                   .cascade = cascade_of(&service->options)}};
}

int attnd_planobj_create(struct attnd_client *client, struct attnd_attachment *attachment,
                         const struct attnd_batch_limits *limits, struct attnd_plan_object **out,
                         struct attnd_fault *fault)
{
    struct attnd_queue *queue = client->service->queue;
    const struct attnd_plan_limits plan_limits = plan_limits_of(client->service, limits);
    uint64_t heap_bytes = attnd_plan_heap_bytes(&plan_limits);
    if (heap_bytes == 0)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_PLAN, 0, 0, 0);

    struct attnd_plan_object *object = calloc(1, sizeof(*object));
    if (!object)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    object->attachment = attachment;
    object->limits = *limits;
    object->image.fd = -1;
    object->heap_bytes = heap_bytes;
    object->charged_bytes = private_bytes(&plan_limits);
    object->tile_rows = plan_limits.target.rows_per_tile;
    int rc = charge(client, object, fault);
    if (rc < 0) {
        free(object);
        return rc;
    }
    rc = allocate(queue, &plan_limits, object, fault);
    if (rc < 0) {
        attnd_planobj_destroy(client->service, object);
        return rc;
    }
    object->kv_len_stride = attnd_plan_shape(object->plan)->entries_max;
    *out = object;
    return 0;
}

void attnd_planobj_hold(struct attnd_service *service, struct attnd_plan_object *object,
                        struct attnd_memory **tables)
{
    for (uint32_t i = 0; i < ATTND_TABLES; i++) {
        if (object->tables[i])
            attnd_memory_unref(service, object->tables[i]);
        object->tables[i] = tables[i];
        tables[i] = NULL;
    }
}

/* On the closer's thread: a plan may have hundreds of megabytes, and its image as many. */
static void close_plan(struct attnd_closing *closing)
{
    struct attnd_plan_object *object = (struct attnd_plan_object *)(void *)closing;

    attnd_plan_free(object->plan);
    attnd_shm_unmap(&object->image);
    free(object->image_pages);
    free(object->append);
    free(object);
}

void attnd_planobj_destroy(struct attnd_service *service, struct attnd_plan_object *object)
{
    assert(object->in_flight == 0);
    assert(object->prepared == 0);
    struct attnd_memory *none[ATTND_TABLES] = {NULL};
    attnd_planobj_hold(service, object, none);
    free(object->prepared_runs);
    if (object->image.fd >= 0) /* at once: descriptors are few, and it is counted as one of them */
        close(object->image.fd);
    object->image.fd = -1;
    if (object->heap_offset_bytes)
        attnd_heap_free(service->queue, object->heap_offset_bytes, object->heap_bytes);
    attnd_quota_give(service, object->payer, ATTND_QUOTA_HEAP, object->heap_bytes);
    attnd_quota_refund(service, object->payer, object->charged_bytes);
    object->closing = (struct attnd_closing){.close = close_plan, .bytes = object->charged_bytes};
    attnd_closer_take(&object->closing);
}

/* Private copies: what an append may write is decided without asking shared memory for sizes. */
static void keep_append(struct attnd_plan_object *object, const struct attnd_plan_head *head)
{
    const char *base = (const char *)attnd_plan_head(object->plan);
    object->append_entries = 0;
    object->kv_pages = (const void *)(base + head->kv_pages_offset_bytes);
    object->kv_len = (const void *)(base + head->kv_len_offset_bytes);
    object->append_first = 0;
    for (uint32_t i = 0; i < head->entries; i++) {
        const struct attnd_entry *entry = attnd_plan_entry(object->plan, i);
        if (entry->level + 1 != head->levels)
            continue;
        if (object->append_entries == 0)
            object->append_first = i;
        object->append[object->append_entries++] =
            (struct attnd_append_entry){.row_count = entry->row_count,
                                        .page_begin = entry->page_begin,
                                        .page_count = entry->page_count};
    }
}

#define CHECK_PAGES 65536u

/* Pages of one level, from page @at of the batch on, of which the level's begin at @first. Return:
 * 0 with *@at behind those that were looked at, or the fault's code. */
static int check_some(const struct attnd_plan_object *object, const struct attnd_level_view *level,
                      uint64_t first, uint64_t *at, struct attnd_fault *fault)
{
    const uint64_t begin = *at - first, left = level->pages - begin;
    const uint32_t count = (uint32_t)(left < CHECK_PAGES ? left : CHECK_PAGES);
    const int rc = attnd_lease_check(object->attachment, level->kv_indices + begin, count, fault);

    *at += count;
    if (rc < 0)
        fault->index += begin;
    return rc;
}

int attnd_planobj_check(const struct attnd_plan_object *object,
                        const struct attnd_batch_view *batch, uint32_t *done,
                        struct attnd_fault *fault)
{
    uint64_t first = 0, at = *done;

    if (batch->leased && batch->releases == object->attachment->releases)
        return 0;
    for (uint32_t l = 0; l < batch->levels; l++) {
        const struct attnd_level_view *level = &batch->level[l];
        if (at < first + level->pages) {
            const int rc = check_some(object, level, first, &at, fault);
            *done = (uint32_t)at;
            return rc < 0 ? rc : at < batch->pages;
        }
        first += level->pages;
    }
    return 0;
}

static uint64_t shared_bytes(const struct attnd_plan_object *object,
                             const struct attnd_batch_view *batch)
{
    const struct attnd_batch_limits *limits = &object->limits;
    const uint32_t group = batch->heads_q / limits->heads_kv;
    const uint32_t tokens = object->tile_rows > group ? object->tile_rows / group : 1;

    return attnd_plan_shared_keys(batch, limits->page_size, tokens) * limits->heads_kv *
           (limits->dim_qk + limits->dim_vo) * attnd_dtype_bytes(limits->pool_dtype);
}

/* Numbers that follow from the tiles that there are now. */
static void derive(struct attnd_plan_object *object)
{
    const struct attnd_plan_head *head = attnd_plan_shape(object->plan);
    object->tile_items = attnd_plan_items(head, ATTND_RUN_ATTEND);
    object->append_items = attnd_plan_items(head, ATTND_RUN_APPEND);
    object->merge_items = attnd_plan_items(head, ATTND_RUN_MERGE);
    object->scratch_bytes = attnd_plan_scratch_bytes(head);
    const struct attnd_plan_found found = attnd_plan_found(object->plan);
    object->shared_bytes = object->level_bytes + found.bytes_saved;
    object->fused = found.fused;
    keep_append(object, head);
}

int attnd_planobj_build(struct attnd_plan_object *object, const struct attnd_batch_view *batch,
                        struct attnd_fault *fault)
{
    return attnd_planner_build(object->plan, batch, fault);
}

int attnd_planobj_check_scratch(const struct attnd_plan_object *object,
                                uint64_t scratch_limit_bytes, uint64_t *scratch_bytes,
                                struct attnd_fault *fault)
{
    *scratch_bytes = attnd_plan_scratch_bytes(attnd_plan_shape(object->plan));
    if (*scratch_bytes <= scratch_limit_bytes)
        return 0;
    return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_PARTIALS, 0, (int64_t)*scratch_bytes,
                           (int64_t)scratch_limit_bytes);
}

int attnd_planobj_refuses(const struct attnd_plan_object *object, uint32_t lane, uint32_t refusals)
{
    const struct attnd_refusal *refusal = &object->refusal;

    return refusal->number && refusal->lane == lane && (int32_t)(refusal->number - refusals) > 0;
}

void attnd_planobj_drop(struct attnd_plan_object *object)
{
    attnd_planner_drop(object->plan);
}

void attnd_planobj_write(struct attnd_plan_object *object, const struct attnd_batch_view *batch)
{
    attnd_planner_write(object->plan, batch);
    attnd_crash(ATTND_CRASH_DAEMON_PLAN_FILLED);
    object->extents = batch->extents;
    object->level_bytes = shared_bytes(object, batch);
    derive(object);
}

void attnd_planobj_fill(struct attnd_plan_object *object)
{
    const struct attnd_plan_head *head = attnd_plan_shape(object->plan);

    object->set_version = head->set_version;
    object->advance_version = head->advance_version;
    object->generation = 0;
    object->refusal.number = 0;
    object->filled = 1;
}

int attnd_planobj_free_generation(const struct attnd_plan_object *object)
{
    uint32_t read = object->prepared ? object->published : 0;
    for (uint32_t g = 0; g < ATTND_GENERATIONS; g++)
        if (g != object->generation && object->generation_pins[g] == 0 && !(read >> g & 1))
            return (int)g;
    return -1;
}

void attnd_planobj_pin(struct attnd_plan_object *object, struct attnd_lengths *lengths)
{
    assert(object->filled);
    if (lengths->generation != ATTND_NONE)
        return;
    *lengths = (struct attnd_lengths){object->generation, object->advance_version};
    object->generation_pins[lengths->generation]++;
}

void attnd_planobj_unpin(struct attnd_plan_object *object, struct attnd_lengths *lengths)
{
    if (lengths->generation == ATTND_NONE)
        return;
    object->generation_pins[lengths->generation]--;
    lengths->generation = ATTND_NONE;
}

int attnd_planobj_check_advance(const struct attnd_plan_object *object,
                                const struct attnd_advance_view *advance, struct attnd_fault *fault)
{
    uint32_t pool_pages = object->limits.pool_pages;

    for (uint32_t i = 0; i < advance->pages; i++) /* leases are looked up by page */
        if (advance->page_indices[i] < 0 || (uint32_t)advance->page_indices[i] >= pool_pages)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_INDICES, i,
                                   advance->page_indices[i],
                                   advance->page_indices[i] < 0 ? 0 : (int64_t)pool_pages - 1);
    return attnd_lease_check(object->attachment, advance->page_indices, advance->pages, fault);
}

int attnd_planobj_unshares(const struct attnd_plan_object *object,
                           const struct attnd_advance_view *advance)
{
    return object->filled && attnd_planner_unshares(object->plan, advance);
}

int attnd_planobj_plan_advance(struct attnd_plan_object *object,
                               const struct attnd_advance_view *advance, uint32_t generation,
                               struct attnd_fault *fault)
{
    const uint32_t pool_pages = object->limits.pool_pages;

    if (generation != ATTND_NONE)
        return attnd_planner_advance(object->plan, advance, generation, pool_pages, fault);
    return attnd_planner_build_unshared(object->plan, advance, pool_pages, fault);
}

void attnd_planobj_write_advance(struct attnd_plan_object *object,
                                 const struct attnd_advance_view *advance)
{
    attnd_planner_write_unshared(object->plan, advance);
    derive(object);
}

void attnd_planobj_advanced(struct attnd_plan_object *object, uint32_t generation)
{
    object->generation = generation;
    object->advance_version = attnd_plan_shape(object->plan)->advance_version;
}

/* Pages that the new tokens of one request fall into: the session must still have the lease of
 * each, and nobody else one. */
static int check_pages(const struct attnd_plan_object *object, const struct attnd_append_entry *to,
                       uint32_t begin, uint32_t end, struct attnd_fault *fault)
{
    const struct attnd_pool *pool = object->attachment->pool;
    for (uint32_t page = begin; page < end && page < to->page_count; page++) {
        const int32_t *id = &object->kv_pages[to->page_begin + page];
        if (*id < 0 || (uint32_t)*id >= pool->shape.pages)
            continue;
        if (attnd_lease_check(object->attachment, id, 1, fault) < 0) {
            fault->index = to->page_begin + page;
            return fault->code;
        }
        if (attnd_lease_shared(pool, (uint32_t)*id))
            return attnd_fault_set(fault, -ATTND_E_SHARED_PAGE, ATTND_F_KV_INDICES,
                                   to->page_begin + page, *id, 1);
    }
    return 0;
}

int attnd_planobj_check_append(const struct attnd_plan_object *object, uint32_t generation,
                               struct attnd_fault *fault)
{
    const struct attnd_pool *pool = object->attachment->pool;
    uint32_t page_size = pool->shape.page_size;
    const int32_t *kv_len =
        object->kv_len + (uint64_t)generation * object->kv_len_stride + object->append_first;

    for (uint32_t i = 0; i < object->append_entries; i++) {
        const struct attnd_append_entry *entry = &object->append[i];
        uint32_t length = kv_len[i] > 0 ? (uint32_t)kv_len[i] : 0;
        if (length < entry->row_count)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_LEN,
                                   object->append_first - attnd_plan_shared_entries(object->plan) +
                                       i,
                                   length, entry->row_count);
        if (!pool->leases || entry->row_count == 0)
            continue;
        int rc = check_pages(object, entry, (length - entry->row_count) / page_size,
                             (length + page_size - 1) / page_size, fault);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void attnd_planobj_command(const struct attnd_plan_object *object, const struct attnd_run *run,
                           uint32_t advance_version, struct attnd_command *command)
{
    const struct attnd_pool *pool = object->attachment->pool;
    const struct attnd_heap_plane *planes = (const void *)(pool->heap + 1);
    command->set_version = object->set_version;
    command->advance_version = advance_version;
    command->page_size = pool->shape.page_size;
    command->pages = pool->shape.pages;
    command->body = *run;
    command->k = planes[run->layer];
    command->v = planes[pool->shape.layers + run->layer];
}
