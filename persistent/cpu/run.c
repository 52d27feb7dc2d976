/*
 * run.c - the two ends of a run: offsets of the queue segment become pointers once, before anybody
 * takes an item; the last item's thread reports it.
 *
 * The daemon wrote plan and run and checked what came from clients. The checks here are those of
 * values that a daemon's bug would turn into a crash of every session's worker.
 */
#include <string.h>

#include "persistent/cpu/mailbox.h"
#include "persistent/cpu/memory.h"
#include "persistent/cpu/run.h"
#include "persistent/cpu/stage.h"
#include "persistent/cpu/variant.h"
#include "persistent/plan/plan.h"
#include "schemas/atomics.h"
#include "schemas/clock.h"
#include "schemas/crash.h"

static const void *segment_at(const struct attnd_backend *backend, uint64_t offset_bytes,
                              uint64_t count, uint64_t element_bytes)
{
    if (offset_bytes > backend->segment_bytes ||
        count > (backend->segment_bytes - offset_bytes) / element_bytes)
        return NULL;
    return backend->segment + offset_bytes;
}

/* Entries are listed by level, and appends act on the last. A search, because a batch may have
 * hundreds of thousands of entries, and everybody waits for the dispatcher. */
static uint32_t first_of_last_level(const struct attnd_entry *entries,
                                    const struct attnd_plan_head *plan)
{
    uint32_t begin = 0, end = plan->entries;
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        if (entries[middle].level + 1 < plan->levels)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

static int open_plan(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                     const struct attnd_run *shared)
{
    const uint64_t at = shared->plan_offset_bytes;
    const struct attnd_plan_head *plan = segment_at(backend, at, 1, sizeof *plan);
    if (plan == NULL || shared->generation >= ATTND_GENERATIONS)
        return -ATTND_E_RANGE;
    run->plan = plan;
    run->entries = segment_at(backend, at + plan->entries_offset_bytes, plan->entries,
                              sizeof(struct attnd_entry));
    run->tiles =
        segment_at(backend, at + plan->tiles_offset_bytes, plan->tiles, sizeof(struct attnd_tile));
    run->merges = segment_at(backend, at + plan->merges_offset_bytes, plan->merges,
                             sizeof(struct attnd_merge));
    run->merge_parts =
        segment_at(backend, at + plan->merge_parts_offset_bytes, plan->parts, sizeof(uint32_t));
    run->kv_pages = segment_at(backend, at + plan->kv_pages_offset_bytes, 0, sizeof(int32_t));
    run->kv_len = segment_at(backend, at + plan->kv_len_offset_bytes,
                             (uint64_t)ATTND_GENERATIONS * plan->entries_max, sizeof(int32_t));
    run->pool = segment_at(backend, plan->pool_offset_bytes, 1, sizeof(struct attnd_heap_pool));
    if (run->entries == NULL || run->tiles == NULL || run->merges == NULL ||
        run->merge_parts == NULL || run->kv_pages == NULL || run->kv_len == NULL ||
        run->pool == NULL)
        return -ATTND_E_RANGE;
    run->kv_len += (uint64_t)shared->generation * plan->entries_max;

    run->last_level_begin = first_of_last_level(run->entries, plan);
    return 0;
}

static int open_plane(const struct attnd_backend *backend, const struct attnd_heap_plane *plane,
                      uint32_t dtype, struct attnd_cpu_plane *out)
{
    const ptrdiff_t element_bytes = attnd_dtype_bytes(dtype);

    out->base = attnd_cpu_memory_at(backend, plane->memory, plane->offset_bytes);
    out->stride_page = plane->stride_page * element_bytes;
    out->stride_token = plane->stride_token * element_bytes;
    out->stride_head = plane->stride_head * element_bytes;
    return out->base == NULL ? -ATTND_E_UNKNOWN : 0;
}

static int open_pool(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                     const struct attnd_run *shared)
{
    const struct attnd_heap_pool *pool = run->pool;
    const struct attnd_plan_head *plan = run->plan;
    const struct attnd_heap_plane *planes =
        segment_at(backend, plan->pool_offset_bytes + sizeof *pool, 2 * (uint64_t)pool->layers,
                   sizeof *planes);
    if (planes == NULL || shared->layer >= pool->layers)
        return -ATTND_E_RANGE;
    if ((!attnd_dims_option(plan->dim_qk, plan->dim_vo) &&
         (plan->dim_qk != plan->dim_vo || !attnd_head_dim_bit(plan->dim_qk))) ||
        plan->group == 0 || plan->group > ATTND_GROUP_MAX ||
        plan->heads_kv * plan->group != plan->heads_q || pool->page_size == 0 ||
        pool->dim_qk != plan->dim_qk || pool->dim_vo != plan->dim_vo || pool->dtype == 0 ||
        pool->dtype >= ATTND_DTYPES_END || pool->heads_kv != plan->heads_kv)
        return -ATTND_E_UNSUPPORTED;
    run->dim = attnd_cpu_dim(plan->dim_qk);
    run->staged = run->dim != plan->dim_qk || run->dim != plan->dim_vo;
    int error = open_plane(backend, &planes[shared->layer], pool->dtype, &run->k);
    return error ? error
                 : open_plane(backend, &planes[pool->layers + shared->layer], pool->dtype, &run->v);
}

/* @needed: an absent place is an error too. */
static int open_place(const struct attnd_backend *backend, const struct attnd_place *place,
                      int needed, void **out)
{
    *out = NULL;
    if (place->memory == ATTND_NONE)
        return needed ? -ATTND_E_UNKNOWN : 0;
    *out = attnd_cpu_memory_at(backend, place->memory, place->offset_bytes);
    return *out == NULL ? -ATTND_E_UNKNOWN : 0;
}

static int open_attend(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                       const struct attnd_run *shared)
{
    void *q, *o, *lse;
    int error = open_place(backend, &shared->q, 1, &q);
    error = error ? error : open_place(backend, &shared->o, 1, &o);
    error = error ? error : open_place(backend, &shared->lse, 0, &lse);
    if (error)
        return error;
    run->q = q;
    run->o = o;
    run->lse = lse;
    return 0;
}

static int open_append(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                       const struct attnd_run *shared)
{
    void *k, *v;
    int error = open_place(backend, &shared->k, 1, &k);
    error = error ? error : open_place(backend, &shared->v, 1, &v);
    if (error)
        return error;
    run->append_k = k;
    run->append_v = v;
    return 0;
}

static int open_merge(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                      const struct attnd_run *shared)
{
    void *other, *lse[2];
    int error = open_attend(backend, run, shared); /* q is the first of the two */
    error = error ? error : open_place(backend, &shared->k, 1, &other);
    error = error ? error : open_place(backend, &shared->v, 1, &lse[0]);
    error = error ? error : open_place(backend, &shared->w, 1, &lse[1]);
    if (error)
        return error;
    run->merge_o[0] = run->q;
    run->merge_o[1] = other;
    run->merge_lse[0] = lse[0];
    run->merge_lse[1] = lse[1];
    return 0;
}

static int open_buffers(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                        const struct attnd_run *shared)
{
    switch (shared->kind) {
    case ATTND_RUN_ATTEND:
        return open_attend(backend, run, shared);
    case ATTND_RUN_APPEND:
        return open_append(backend, run, shared);
    case ATTND_RUN_MERGE:
        return open_merge(backend, run, shared);
    default:
        return -ATTND_E_UNSUPPORTED;
    }
}

static int open_scratch(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                        const struct attnd_run *shared)
{
    uint64_t bytes = attnd_plan_scratch_bytes(run->plan);
    if (bytes == 0)
        return 0;
    if (bytes > backend->scratch_bytes ||
        shared->scratch_offset_bytes > backend->scratch_bytes - bytes)
        return -ATTND_E_RANGE;
    /* Other runs of other plans left their partials here. */
    char *base = backend->scratch + shared->scratch_offset_bytes;
    memset(base, 0, (size_t)run->plan->merges * run->plan->heads_kv * sizeof *run->counters);
    run->counters = (void *)base;
    run->states = (float *)(void *)(base + attnd_scratch_state_offset(run->plan));
    run->outputs = (float *)(void *)(base + attnd_scratch_output_offset(run->plan));
    return 0;
}

static int open_shape(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                      const struct attnd_run *shared)
{
    int error = open_plan(backend, run, shared);
    error = error ? error : open_pool(backend, run, shared);
    error = error ? error : attnd_cpu_variant_open(backend, run, shared->layer);
    return error ? error : open_buffers(backend, run, shared);
}

int attnd_cpu_run_check(const struct attnd_backend *backend, const struct attnd_run *shared)
{
    struct attnd_cpu_run run = {0};
    return open_shape(backend, &run, shared);
}

int64_t attnd_cpu_run_open(struct attnd_backend *backend, uint32_t index,
                           const struct attnd_run *shared)
{
    struct attnd_cpu_run *run = &backend->queue.runs[index];
    run->done = 0;
    run->error = 0;
    attnd_poke64(&run->begin_ns, 0); /* tests look whether it has begun */
    run->busy_ns = run->kv_bytes = 0;
    run->executed = 0;
    run->kind = shared->kind;
    run->layer = shared->layer;
    run->let_go = 0;
    run->cancel =
        index < backend->head->runs_transient ? &backend->runs[index].cancel : &run->let_go;

    int error = open_shape(backend, run, shared);
    if (error == 0 && run->kind == ATTND_RUN_ATTEND)
        error = open_scratch(backend, run, shared);
    if (error)
        return error;
    /* The daemon counts alike; what is executed follows from the plan alone. */
    return attnd_plan_items(run->plan, run->kind);
}

void attnd_cpu_run_fail(struct attnd_cpu_run *run, int error)
{
    (void)attnd_claim32(&run->error, 0, (uint32_t)-error);
}

void attnd_cpu_retire(struct attnd_backend *backend, const struct attnd_retire *retire)
{
    (void)pthread_mutex_lock(&backend->retire_lock);
    backend->port->retire(backend->port->context, retire);
    (void)pthread_mutex_unlock(&backend->retire_lock);
    backend->port->knock(backend->port->context);
}

void attnd_cpu_run_close(struct attnd_backend *backend, struct attnd_cpu_run *run)
{
    if (run->index >= backend->head->runs_transient) {
        attnd_cpu_mail_done(backend, run);
        return;
    }
    struct attnd_retire retire = {
        .run = run->index,
        .kind = ATTND_COMMAND_RUN,
        .tag = run->tag,
        .code = -(int32_t)attnd_peek32(&run->error),
        .begin_ns = attnd_peek64(&run->begin_ns),
        .end_ns = attnd_clock_ns(),
        .busy_ns = attnd_peek64(&run->busy_ns),
        .kv_bytes = attnd_peek64(&run->kv_bytes),
        .tiles = attnd_peek32(&run->executed),
    };
    if (retire.begin_ns == 0)
        retire.begin_ns = retire.end_ns;
    attnd_crash(ATTND_CRASH_CPU_RUN_DONE);
    attnd_cpu_retire(backend, &retire);
    attnd_crash(ATTND_CRASH_CPU_RETIRED);
}
