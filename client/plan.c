/*
 * plan.c - plans: made by a call, filled and advanced by submission.
 *
 * A batch is a header of some hundred bytes and arrays of up to millions of integers. The header is
 * a protobuf message, so that it can grow; the arrays are copied flat beside it, because packing
 * them would cost a thousand times more. All of it is one block of the arena, in this order:
 *
 *   for each level: qo_indptr, kv_indptr, kv_indices, kv_last_page_len    (each 64-byte aligned)
 *   mask_indptr, if there is a mask
 *   the packed Attnd.Batch, which names the arrays by arena offset
 *
 * Arrays in attnd_tables_memory(), which lies in the arena too, stay where they are.
 *
 * The daemon checks the contents of the arrays. Only the two ends that say how long they are must
 * be believed here.
 */
#include "client/submit.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A Batch of ATTND_LEVELS_MAX levels with every varint at its longest takes less. */
#define HEADER_BYTES_MAX 1024u

/* A batch that fills the plan must fit in the arena, or nobody learns before the first that does
 * not; but an engine that chose the arena's size may know better. What lies in
 * attnd_tables_memory() needs no room there. */
static int fits_arena(const struct attnd_session *session, const struct attnd_plan_args *args)
{
    const uint64_t levels = args->levels ? args->levels : 1;
    const uint64_t words = 4 * ((uint64_t)args->requests + levels) + args->pages;
    const uint64_t bytes =
        words * sizeof(int32_t) + (4 * levels + 1) * ATTND_CACHE_LINE + HEADER_BYTES_MAX;
    const uint64_t room = session->arena.bytes + session->tables_bytes;

    /* What is beyond every arena is beyond other limits, too, which the service knows. */
    return session->arena_chosen || bytes <= room || bytes > ATTND_ARENA_BYTES_MAX ||
                   levels > ATTND_LEVELS_MAX
               ? 0
               : attnd_fault_raise(-ATTND_E_NO_SPACE, ATTND_F_ARENA, 0, (int64_t)bytes,
                                   (int64_t)room);
}

int attnd_plan_create(struct attnd_session *session, const struct attnd_plan_args *args,
                      uint32_t *plan)
{
    struct attnd_plan_args own;
    int rc = attnd_session_check(session);
    if (rc == 0)
        rc = attnd_args_take(&own, sizeof(own), args);
    if (rc == 0)
        rc = fits_arena(session, &own);
    if (rc != 0)
        return rc;
    struct attnd_object *object = plan ? calloc(1, sizeof(*object)) : NULL;
    if (object == NULL)
        return attnd_fault_raise(plan ? -ATTND_E_NO_MEMORY : -ATTND_E_INVALID, ATTND_F_PLAN, 0, 0,
                                 0);
    Attnd__PlanCreate message = ATTND__PLAN_CREATE__INIT;
    message.pool = own.pool;
    message.requests = own.requests;
    message.rows = own.rows;
    message.pages = own.pages;
    message.levels = own.levels;
    message.heads_q = own.heads_q;
    message.has_fixed_split = own.fixed_split != 0;
    message.fixed_split = own.fixed_split;
    struct attnd_rpc call = ATTND_CALL(PLAN_CREATE, .plan_create = &message);
    rc = attnd_call(session, &call, ATTND__REPLY__RESULT_PLAN);
    if (rc < 0) {
        free(object);
        return rc;
    }

    pthread_mutex_lock(&session->objects_lock);
    const struct attnd_object *pool = attnd_object_find(session, ATTND_OBJECT_POOL, own.pool);
    object->u.plan.dtype = pool ? pool->u.pool.info.desc.dtype : 0;
    pthread_mutex_unlock(&session->objects_lock);
    object->u.plan.heads_q = own.heads_q;
    object->u.plan.pool = own.pool;
    object->kind = ATTND_OBJECT_PLAN;
    object->handle = call.reply->plan->plan;
    *plan = object->handle;
    attnd_object_add(session, object);
    attnd_call_end(session, &call);
    return 0;
}

int attnd_plan_destroy(struct attnd_session *session, uint32_t plan)
{
    Attnd__PlanDestroy message = ATTND__PLAN_DESTROY__INIT;
    message.plan = plan;
    struct attnd_rpc call = ATTND_CALL(PLAN_DESTROY, .plan_destroy = &message);
    return attnd_launcher_release(session, &call, ATTND_OBJECT_PLAN, plan);
}

int attnd_plan_info(const struct attnd_completion *completion, struct attnd_plan_info *info)
{
    if (completion == NULL || completion->operation != ATTND_PLAN_SET ||
        completion->fault.code != 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_NONE, 0, 0, 0);
    const struct attnd_plan_info own = {.size = sizeof(own),
                                        .shared_groups = (uint32_t)completion->fault.index,
                                        .fused = (uint32_t)(completion->fault.index >> 32),
                                        .bytes_saved = (uint64_t)completion->fault.value};
    return attnd_args_give(info, &own, sizeof(own));
}

/* ---- plan_set ---- */

/* A batch with its defaults filled in, and where its parts go. */
struct packing {
    struct attnd_batch batch;
    struct attnd_variant variant; /* of the batch, if it has one */
    uint32_t rows;
    uint32_t pages[ATTND_LEVELS_MAX];
    uint64_t arrays_bytes;
};

/* Are @count of them in attnd_tables_memory()? */
static int in_place(const struct attnd_session *session, const int32_t *values, uint64_t count)
{
    const uint64_t at = (uint64_t)((uintptr_t)values - (uintptr_t)session->tables);

    return values && at < session->tables_bytes &&
           count * sizeof(*values) <= session->tables_bytes - at;
}

/* What an array takes in the block. */
static uint64_t array_bytes(const struct attnd_session *session, const int32_t *values,
                            uint64_t count)
{
    const uint64_t bytes = in_place(session, values, count) ? 0 : count * sizeof(*values);
    return (bytes + ATTND_CACHE_LINE - 1) & ~(uint64_t)(ATTND_CACHE_LINE - 1);
}

/* The arrays of a level exist and its counts are counts. */
static int measure_level(const struct attnd_session *session, const struct attnd_level *level,
                         uint32_t *pages, uint64_t *bytes)
{
    if (level->qo_indptr == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_QO_INDPTR, 0, 0, 0);
    if (level->kv_indptr == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_KV_INDPTR, 0, 0, 0);
    int32_t count = level->kv_indptr[level->requests];
    if (count < 0)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_KV_INDPTR, level->requests, count, 0);
    if (count > 0 && level->kv_indices == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_KV_INDICES, 0, 0, 0);
    if (count > 0 && level->kv_last_page_len == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_KV_LAST_PAGE_LEN, 0, 0, 0);
    *pages = (uint32_t)count;
    *bytes += array_bytes(session, level->qo_indptr, level->requests + UINT64_C(1)) +
              array_bytes(session, level->kv_indptr, level->requests + UINT64_C(1)) +
              array_bytes(session, level->kv_indices, *pages) +
              array_bytes(session, level->kv_last_page_len, level->requests);
    return 0;
}

static int apply_defaults(struct attnd_session *session, uint32_t plan, struct attnd_batch *batch)
{
    if (batch->levels == 0)
        batch->levels = 1;
    if (batch->heads_q != 0 && batch->dtype != 0)
        return 0;
    pthread_mutex_lock(&session->objects_lock);
    const struct attnd_object *object = attnd_object_find(session, ATTND_OBJECT_PLAN, plan);
    if (object && batch->heads_q == 0)
        batch->heads_q = object->u.plan.heads_q;
    if (object && batch->dtype == 0)
        batch->dtype = object->u.plan.dtype;
    pthread_mutex_unlock(&session->objects_lock);
    return object ? 0 : attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_PLAN, 0, plan, 0);
}

static int measure(const struct attnd_session *session, struct packing *packing)
{
    const struct attnd_batch *batch = &packing->batch;
    if (batch->levels > ATTND_LEVELS_MAX)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_LEVELS, 0, batch->levels,
                                 ATTND_LEVELS_MAX);
    if (batch->level == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_LEVELS, 0, 0, 0);
    packing->arrays_bytes = 0;
    for (uint32_t i = 0; i < batch->levels; i++) {
        int rc =
            measure_level(session, &batch->level[i], &packing->pages[i], &packing->arrays_bytes);
        if (rc < 0)
            return rc;
    }
    int32_t rows = batch->level[0].qo_indptr[batch->level[0].requests];
    if (rows < 0)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_QO_INDPTR, batch->level[0].requests, rows,
                                 0);
    packing->rows = (uint32_t)rows;
    if (batch->mask_indptr)
        packing->arrays_bytes += array_bytes(
            session, batch->mask_indptr, batch->level[batch->levels - 1].requests + UINT64_C(1));
    return 0;
}

/* Copies one array (zeros where the caller has none) and moves on. Return: its arena offset. */
static uint64_t put_array(const struct attnd_session *session, uint64_t *offset_bytes,
                          const int32_t *values, uint64_t count)
{
    uint8_t *const arena = session->arena.base;
    uint64_t at = *offset_bytes;
    if (in_place(session, values, count))
        return (uint64_t)((uintptr_t)values - (uintptr_t)arena);
    if (values)
        attnd_copy_out(arena + at, values, count * sizeof(*values));
    else
        memset(arena + at, 0, count * sizeof(*values));
    *offset_bytes = at + array_bytes(session, values, count);
    return at;
}

static void put_level(const struct attnd_session *session, uint64_t *offset_bytes,
                      const struct attnd_level *level, uint32_t pages, Attnd__Level *message)
{
    attnd__level__init(message);
    message->entries = level->requests;
    message->pages = pages;
    message->qo_indptr =
        put_array(session, offset_bytes, level->qo_indptr, level->requests + UINT64_C(1));
    message->kv_indptr =
        put_array(session, offset_bytes, level->kv_indptr, level->requests + UINT64_C(1));
    message->kv_indices = put_array(session, offset_bytes, level->kv_indices, pages);
    message->kv_last_page_len =
        put_array(session, offset_bytes, level->kv_last_page_len, level->requests);
}

/* Absent strides mean contiguous. */
static Attnd__Strides *put_strides(Attnd__Strides *message, const struct attnd_strides *strides)
{
    attnd__strides__init(message);
    message->row = strides->row;
    message->head = strides->head;
    return strides->row != 0 || strides->head != 0 ? message : NULL;
}

/* As it is: its fields are the daemon's to check. */
static void put_variant(Attnd__Batch *message, struct attnd_variant *variant, int given)
{
    message->has_variant = given;
    message->variant.data = (uint8_t *)variant;
    message->variant.len = given ? sizeof(*variant) : 0;
}

/* Writes the block that begins at @offset_bytes. Return: its length. */
static uint64_t put_batch(const struct attnd_session *session, uint64_t offset_bytes,
                          const struct packing *packing, struct attnd_sqe_set *set)
{
    const struct attnd_batch *batch = &packing->batch;
    Attnd__Level levels[ATTND_LEVELS_MAX], *level[ATTND_LEVELS_MAX];
    Attnd__Strides q, o, lse, k, v;
    uint64_t at = offset_bytes;
    for (uint32_t i = 0; i < batch->levels; i++) {
        level[i] = &levels[i];
        put_level(session, &at, &batch->level[i], packing->pages[i], level[i]);
    }

    Attnd__Batch message = ATTND__BATCH__INIT;
    if (batch->mask_indptr) {
        message.has_mask_indptr = 1;
        message.mask_indptr = put_array(session, &at, batch->mask_indptr,
                                        batch->level[batch->levels - 1].requests + UINT64_C(1));
    }
    message.rows = packing->rows;
    message.heads_q = batch->heads_q;
    message.dtype = batch->dtype;
    message.flags = batch->flags;
    message.has_sm_scale = batch->sm_scale != 0.0f;
    message.sm_scale = batch->sm_scale;
    message.has_reserve_pages = batch->reserve_pages != 0;
    message.reserve_pages = batch->reserve_pages;
    message.n_level = batch->levels;
    message.level = level;
    message.q = put_strides(&q, &batch->q);
    message.o = put_strides(&o, &batch->o);
    message.lse = put_strides(&lse, &batch->lse);
    message.k = put_strides(&k, &batch->k);
    message.v = put_strides(&v, &batch->v);
    struct attnd_variant variant = packing->variant;
    put_variant(&message, &variant, batch->variant != NULL);
    assert(attnd__batch__get_packed_size(&message) <= HEADER_BYTES_MAX);
    size_t header_bytes = attnd__batch__pack(&message, session->arena.base + at);
    *set =
        (struct attnd_sqe_set){.header_offset_bytes = at, .header_bytes = (uint32_t)header_bytes};
    return at + header_bytes - offset_bytes;
}

int attnd_plan_set(struct attnd_session *session, uint32_t plan, const struct attnd_batch *batch,
                   const struct attnd_op *op)
{
    struct attnd_sqe sqe;
    struct packing packing;
    uint64_t offset_bytes;
    int rc = attnd_submit_begin(session, plan, ATTND_OP_PLAN_SET, op, &sqe);
    if (rc == 0)
        rc = attnd_args_take(&packing.batch, sizeof(packing.batch), batch);
    if (rc == 0 && packing.batch.variant)
        rc = attnd_args_take(&packing.variant, sizeof(packing.variant), packing.batch.variant);
    if (rc == 0)
        rc = apply_defaults(session, plan, &packing.batch);
    if (rc == 0)
        rc = measure(session, &packing);
    if (rc == 0)
        rc = attnd_submit_reserve(session, packing.arrays_bytes + HEADER_BYTES_MAX, &offset_bytes);
    if (rc != 0)
        return rc;
    uint64_t bytes = put_batch(session, offset_bytes, &packing, &sqe.u.set);
    return attnd_submit_push_block(session, &sqe, bytes);
}

/* ---- plan_advance ---- */

static int measure_advance(const struct attnd_advance *advance, uint32_t *pages)
{
    if (advance->kv_len == NULL && advance->entries > 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_KV_LEN, 0, 0, 0);
    int32_t count = advance->page_indptr ? advance->page_indptr[advance->entries] : 0;
    if (count < 0)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_KV_INDPTR, advance->entries, count, 0);
    if (count > 0 && advance->page_indices == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_KV_INDICES, 0, 0, 0);
    /* Starts of no pages stay here, and the service does not see them. */
    for (uint32_t i = 0; advance->page_indptr && count == 0 && i < advance->entries; i++)
        if (advance->page_indptr[i] != 0)
            return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_KV_INDPTR, i, advance->page_indptr[i],
                                     0);
    *pages = (uint32_t)count;
    return 0;
}

static void copy_words(uint8_t **to, const int32_t *values, uint64_t count)
{
    if (count > 0)
        memcpy(*to, values, count * sizeof(*values));
    *to += count * sizeof(*values);
}

int attnd_plan_advance(struct attnd_session *session, uint32_t plan,
                       const struct attnd_advance *advance, const struct attnd_op *op)
{
    struct attnd_sqe sqe;
    struct attnd_advance own;
    uint32_t pages = 0;
    uint64_t offset_bytes;
    int rc = attnd_submit_begin(session, plan, ATTND_OP_PLAN_ADVANCE, op, &sqe);
    if (rc == 0)
        rc = attnd_args_take(&own, sizeof(own), advance);
    if (rc == 0)
        rc = measure_advance(&own, &pages);
    if (rc != 0)
        return rc;

    uint64_t words = own.entries + (pages > 0 ? own.entries + UINT64_C(1) + pages : 0);
    rc = attnd_submit_reserve(session, words * sizeof(int32_t), &offset_bytes);
    if (rc < 0)
        return rc;
    uint8_t *to = session->arena.base + offset_bytes;
    copy_words(&to, own.kv_len, own.entries);
    if (pages > 0) {
        copy_words(&to, own.page_indptr, own.entries + UINT64_C(1));
        copy_words(&to, own.page_indices, pages);
    }
    sqe.u.advance = (struct attnd_sqe_advance){.arrays_offset_bytes = offset_bytes,
                                               .entries = own.entries,
                                               .pages = pages,
                                               .refusals = attnd_observe32(&session->refusals)};
    return attnd_submit_push_block(session, &sqe, words * sizeof(int32_t));
}
