/*
 * variant.c - the variant of a batch against the worker that there is and the memory of its
 * session.
 *
 * A table is looked up when the batch is submitted, as the places of a run are: a handle given out
 * again meanwhile is another memory. The plan holds the memory until it is set again or destroyed,
 * because every run of the plan reads it.
 */
#include "service/objects/variant.h"

#include "schemas/atomics.h"
#include "schemas/kernels.h"
#include "service/objects/client.h"
#include "service/supervise/queue.h"

#include <assert.h>

/* The first option of @missing, as a fault. */
static int refuse_option(const struct attnd_variant *variant, uint32_t missing,
                         struct attnd_fault *fault)
{
#define OPTION(name, field, value)                                                                 \
    if (missing & ATTND_OPTION_##name)                                                             \
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_##field, ATTND_F_BACKEND,      \
                               value, 0);
#include "schemas/options.def"
    assert(0 && "an option of a batch has a row");
    return -ATTND_E_UNSUPPORTED;
}

/* From the table's first to past its last element. */
static uint64_t table_bytes(const struct attnd_variant_table *table, uint64_t elements,
                            uint32_t layers, uint32_t element_bytes)
{
    return ((uint64_t)(layers - 1) * table->layer_stride + elements) * element_bytes;
}

static int resolve_table(const struct attnd_client *client, struct attnd_variant_table *table,
                         uint64_t bytes, enum attnd_field field, struct attnd_memory **out,
                         struct attnd_fault *fault)
{
    struct attnd_memory *memory = attnd_client_memory(client, table->memory);
    uint64_t end;

    if (!memory)
        return attnd_fault_set(fault, -ATTND_E_UNKNOWN, field, 0, table->memory, 0);
    if (__builtin_add_overflow(table->offset_bytes, bytes, &end) || end > memory->size_bytes)
        return attnd_fault_set(fault, -ATTND_E_RANGE, field, 0,
                               end > INT64_MAX || end < bytes ? INT64_MAX : (int64_t)end,
                               (int64_t)memory->size_bytes);
    attnd_memory_ref(memory);
    *out = memory;
    table->memory = memory->index;
    return 0;
}

/* Tables of floats. */
static int resolve_floats(const struct attnd_client *client, const struct attnd_heap_pool *pool,
                          struct attnd_batch_view *batch,
                          struct attnd_memory *memories[ATTND_TABLES], struct attnd_fault *fault)
{
    const uint64_t heads_q = batch->heads_q, heads_kv = pool->heads_kv;
    int rc = 0;

#define OPTION(name, field, value)
#define TABLE(name, field, member, elements, beside)                                               \
    if (rc == 0 && batch->options & ATTND_OPTION_##name)                                           \
        rc = resolve_table(                                                                        \
            client, &batch->variant.member,                                                        \
            table_bytes(&batch->variant.member, elements, pool->layers, sizeof(float)),            \
            ATTND_F_##field, &memories[ATTND_TABLE_##name], fault);
#include "schemas/options.def"
    return rc;
}

/* V in the rows of K, of some layer. */
static int is_one_plane(const struct attnd_pool *pool)
{
    const struct attnd_heap_plane *k = attnd_pool_planes(pool), *v = k + pool->shape.layers;
    const uint64_t row_bytes = pool->shape.dim_qk * attnd_dtype_bytes(pool->shape.dtype);

    for (uint32_t l = 0; l < pool->shape.layers; l++)
        if (k[l].memory == v[l].memory && v[l].offset_bytes - k[l].offset_bytes < row_bytes)
            return 1;
    return 0;
}

/* What is appended to V is stored over what is appended to K there, so both must be the same. */
static int check_one_plane(const struct attnd_pool *pool, const struct attnd_batch_view *batch,
                           struct attnd_fault *fault)
{
    const struct attnd_variant *variant = &batch->variant;
    const int scaled = attnd_dtype_is_fp8(pool->shape.dtype) &&
                       attnd_fault_float(variant->k_scale) != attnd_fault_float(variant->v_scale);
    const int rotated = (batch->options & ATTND_OPTION_ROPE_APPEND) != 0;

    if ((!scaled && !rotated) || !is_one_plane(pool))
        return 0;
    if (rotated)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_POSITION_ENCODING,
                               ATTND_F_DIM_VO, variant->position_encoding, 0);
    return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_V_SCALE, ATTND_F_K_SCALE,
                           attnd_fault_float(variant->v_scale),
                           attnd_fault_float(variant->k_scale));
}

int attnd_variant_resolve(const struct attnd_client *client, const struct attnd_plan_object *plan,
                          struct attnd_batch_view *batch,
                          struct attnd_memory *memories[ATTND_TABLES], struct attnd_fault *fault)
{
    const struct attnd_worker_info *worker = &client->service->queue->info;
    const struct attnd_heap_pool *pool = &plan->attachment->pool->shape;
    const uint32_t missing = batch->options & ~(worker->options | ATTND_OPTIONS_PLANNER);
    struct attnd_variant *variant = &batch->variant;

    if (missing)
        return refuse_option(variant, missing, fault);
    int rc = check_one_plane(plan->attachment->pool, batch, fault);
    if (rc < 0)
        return rc;
    /* Its kernel may come while the worker runs: a module. */
    const uint32_t kernel =
        attnd_kernel_of(pool->dim_qk, pool->dim_vo, batch->dtype, pool->dtype, batch->options);
    const uint32_t absent = attnd_observe32(&client->service->queue->head->missing);
    if (kernel < ATTND_KERNELS && absent >> kernel & 1)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_KERNEL, 0, kernel, 0);
    if (batch->options & ATTND_OPTION_MASK) {
        uint64_t bytes = (uint64_t)batch->mask_indptr[batch->level[batch->levels - 1].entries];
        rc = resolve_table(client, &variant->mask, bytes, ATTND_F_MASK, &memories[ATTND_TABLE_MASK],
                           fault);
    }
    return rc < 0 ? rc : resolve_floats(client, pool, batch, memories, fault);
}
