/*
 * admit_header.c - the packed header of a batch: unpacked from a private copy, its scalars checked.
 *
 * protobuf-c reads its input twice (it counts, then it fills), which is why it may never see the
 * arena. Counts are held against the plan's capacities here, before any array is touched: nothing
 * that a client writes makes the daemon copy or allocate more than its plan may hold.
 *
 * In a fault, limit is the nearest value that would have been accepted.
 */
#include "service/admission/admit_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

int attnd_admit_header_unpack(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                              uint32_t bytes, struct attnd_admit_header *header,
                              struct attnd_fault *fault)
{
    if (bytes > sizeof(header->packed))
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_HEADER, 0, bytes,
                               sizeof(header->packed));
    int code = attnd_arena_copy(arena, offset_bytes, bytes, 1, 0, header->packed, fault);
    if (code)
        return code;

    attnd_admit_alloc_init(&header->alloc, header->alloc_bytes, sizeof(header->alloc_bytes));
    header->message = attnd__batch__unpack(&header->alloc.allocator, bytes, header->packed);
    if (!header->message || !attnd_admit_known(&header->message->base))
        return attnd_fault_set(fault, -ATTND_E_PROTOCOL, ATTND_F_HEADER, 0, bytes, 0);
    return 0;
}

/* q, o and rows to append are of the pool's type; beside a pool of fp8, of either of 16 bits. */
static int check_dtype(uint32_t dtype, uint32_t pool_dtype, struct attnd_fault *fault)
{
    const uint32_t nearest = attnd_dtype_is_fp8(pool_dtype) ? ATTND_BF16 : pool_dtype;

    if (dtype == nearest || (attnd_dtype_is_fp8(pool_dtype) && dtype == ATTND_FP16))
        return 0;
    return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_DTYPE, 0, dtype, nearest);
}

static int check_heads(uint32_t heads_q, const struct attnd_batch_limits *limits,
                       struct attnd_fault *fault)
{
    const uint32_t heads_kv = limits->heads_kv;
    uint32_t group_max = ATTND_HEADS_MAX / heads_kv;

    if (group_max > ATTND_GROUP_MAX)
        group_max = ATTND_GROUP_MAX;
    if (heads_q == 0 || heads_q / heads_kv > group_max)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_HEADS_Q, 0, heads_q,
                               heads_q ? (int64_t)heads_kv * group_max : heads_kv);
    if (heads_q % heads_kv)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_HEADS_Q, 0, heads_q,
                               heads_q - heads_q % heads_kv);
    if (heads_q > limits->heads_q)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_HEADS_Q, 0, heads_q,
                               limits->heads_q);
    return 0;
}

/* Absent and 0 mean 1/sqrt(dim_qk). */
static int check_scale(const Attnd__Batch *message, uint32_t dim_qk, float *sm_scale,
                       struct attnd_fault *fault)
{
    float scale = message->has_sm_scale ? message->sm_scale : 0.0f;

    if (!isfinite(scale) || scale < 0.0f) {
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SM_SCALE, 0, attnd_fault_float(scale),
                               0);
    }
    *sm_scale = scale > 0.0f ? scale : 1.0f / sqrtf((float)dim_qk);
    return 0;
}

int attnd_admit_fits(uint64_t entries, uint64_t pages, const struct attnd_batch_limits *limits,
                     struct attnd_fault *fault)
{
    if (entries > limits->requests)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_REQUESTS, 0, (int64_t)entries,
                               limits->requests);
    if (pages > limits->pages)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_PAGES, 0, (int64_t)pages,
                               limits->pages);
    return 0;
}

/* Counts of all levels and their sums against the plan's capacities. */
static int check_levels(const Attnd__Batch *message, const struct attnd_batch_limits *limits,
                        struct attnd_batch_view *batch, struct attnd_fault *fault)
{
    uint64_t entries = 0, pages = 0;

    for (uint32_t l = 0; l < batch->levels; l++) {
        batch->level[l].entries = message->level[l]->entries;
        batch->level[l].pages = message->level[l]->pages;
        entries += batch->level[l].entries;
        pages += batch->level[l].pages;
    }
    int rc = attnd_admit_fits(entries, pages, limits, fault);
    if (rc < 0)
        return rc;
    uint32_t advancing = batch->level[batch->levels - 1].entries;
    uint64_t spare = limits->pages - pages;
    if (advancing && batch->reserve_pages > spare / advancing)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_RESERVE_PAGES, 0,
                               batch->reserve_pages, (int64_t)(spare / advancing));
    batch->entries = (uint32_t)entries;
    batch->pages = (uint32_t)pages;
    return 0;
}

int attnd_admit_header_check(const Attnd__Batch *message, const struct attnd_batch_limits *limits,
                             struct attnd_batch_view *batch, struct attnd_fault *fault)
{
    assert(limits->heads_kv && limits->page_size && limits->levels <= ATTND_LEVELS_MAX);
    if (message->n_level == 0)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_LEVELS, 0, 0, 1);
    if (message->n_level > limits->levels)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_LEVELS, 0,
                               (int64_t)message->n_level, limits->levels);
    if (message->rows > limits->rows || message->rows > INT32_MAX)
        return attnd_fault_set(fault, -ATTND_E_NO_SPACE, ATTND_F_ROWS, 0, message->rows,
                               limits->rows);
    if (message->flags & ~ATTND_BATCH_FLAGS)
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_FLAGS, 0, message->flags,
                               ATTND_BATCH_FLAGS);
    int code = check_dtype(message->dtype, limits->pool_dtype, fault);
    if (!code)
        code = check_heads(message->heads_q, limits, fault);
    if (!code)
        code = check_scale(message, limits->dim_qk, &batch->sm_scale, fault);
    if (code)
        return code;

    batch->rows = message->rows;
    batch->levels = (uint32_t)message->n_level;
    batch->reserve_pages = message->has_reserve_pages ? message->reserve_pages : 0;
    batch->heads_q = message->heads_q;
    batch->dtype = message->dtype;
    batch->flags = message->flags;
    code = check_levels(message, limits, batch, fault);
    if (!code)
        code = attnd_admit_variant(message, limits, batch, fault);
    return code ? code : attnd_admit_strides(message, limits, batch, fault);
}
