/*
 * admit_strides.c - where rows and heads of q, o, lse, k and v lie.
 *
 * Inputs may overlap themselves (a stride of 0 broadcasts); outputs may not, because two workers
 * would write one element. Two nested layouts are accepted for outputs, and nothing in between:
 * heads inside rows ([rows, heads, dim] and anything padded) or rows inside heads ([heads, rows,
 * dim]). Whether a tensor fits its memory, and whether an output overlaps an input, is known only
 * when a run names the memory; here the extent is computed, and proven not to overflow.
 */
#include "service/admission/admit_internal.h"

struct tensor_shape {
    enum attnd_field field;
    uint64_t rows, heads, dim;
    uint32_t element_bytes;
};

/* In a fault, index 0 is the row stride and 1 the head stride. */
static int stride_fault(struct attnd_fault *fault, int code, const struct tensor_shape *shape,
                        uint64_t index, int64_t value, int64_t limit)
{
    return attnd_fault_set(fault, code, shape->field, index, value, limit);
}

static int strides_take(const Attnd__Strides *given, const struct tensor_shape *shape,
                        struct attnd_pitch *pitch, uint64_t *bytes, struct attnd_fault *fault)
{
    pitch->row = given ? given->row : 0;
    pitch->head = given ? given->head : 0;
    if (pitch->row == 0 && pitch->head == 0) {
        pitch->row = (int64_t)(shape->heads * shape->dim);
        pitch->head = (int64_t)shape->dim;
    }
    if (pitch->row < 0)
        return stride_fault(fault, -ATTND_E_RANGE, shape, 0, pitch->row, 0);
    if (pitch->head < 0)
        return stride_fault(fault, -ATTND_E_RANGE, shape, 1, pitch->head, 0);

    const uint64_t counts[3] = {shape->rows, shape->heads, shape->dim};
    const int64_t strides[3] = {pitch->row, pitch->head, 1};
    if (attnd_extent_bytes(counts, strides, 3, shape->element_bytes, bytes)) {
        int64_t larger = pitch->row > pitch->head ? pitch->row : pitch->head;
        return stride_fault(fault, -ATTND_E_RANGE, shape, larger == pitch->head, larger,
                            INT64_MAX / shape->element_bytes);
    }
    return 0;
}

/* Elements from the first to past the last of @count blocks of @inner, @stride apart. Where there
 * are rows the whole extent was proven not to overflow; where there are none nothing overlaps. */
static uint64_t nested_span(uint64_t count, int64_t stride, uint64_t inner)
{
    return count ? (count - 1) * (uint64_t)stride + inner : 0;
}

static int output_disjoint(const struct tensor_shape *shape, const struct attnd_pitch *pitch,
                           struct attnd_fault *fault)
{
    const int64_t row = pitch->row, head = pitch->head;
    uint64_t one_row = nested_span(shape->heads, head, shape->dim);
    uint64_t one_head = nested_span(shape->rows, row, shape->dim);
    int heads_apart = shape->heads <= 1 || (uint64_t)head >= shape->dim;
    int rows_apart = shape->rows <= 1 || (uint64_t)row >= shape->dim;

    if (heads_apart && (shape->rows <= 1 || (uint64_t)row >= one_row))
        return 0;
    if (rows_apart && (shape->heads <= 1 || (uint64_t)head >= one_head))
        return 0;
    if (!heads_apart)
        return stride_fault(fault, -ATTND_E_INVALID, shape, 1, head, (int64_t)shape->dim);
    return stride_fault(fault, -ATTND_E_INVALID, shape, 0, row, (int64_t)one_row);
}

int attnd_admit_strides(const Attnd__Batch *message, const struct attnd_batch_limits *limits,
                        struct attnd_batch_view *batch, struct attnd_fault *fault)
{
    const uint64_t rows = batch->rows, heads_q = batch->heads_q, heads_kv = limits->heads_kv;
    const struct tensor_shape q = {ATTND_F_Q, rows, heads_q, limits->dim_qk, 2};
    const struct tensor_shape o = {ATTND_F_O, rows, heads_q, limits->dim_vo, 2};
    const struct tensor_shape lse = {ATTND_F_LSE, rows, heads_q, 1, 4};
    const struct tensor_shape k = {ATTND_F_K, rows, heads_kv, limits->dim_qk, 2};
    const struct tensor_shape v = {ATTND_F_V, rows, heads_kv, limits->dim_vo, 2};
    struct attnd_extents *extents = &batch->extents;
    int code;

    if ((code = strides_take(message->q, &q, &batch->q_pitch, &extents->q_bytes, fault)) ||
        (code = strides_take(message->o, &o, &batch->o_pitch, &extents->o_bytes, fault)) ||
        (code = strides_take(message->lse, &lse, &batch->lse_pitch, &extents->lse_bytes, fault)) ||
        (code = strides_take(message->k, &k, &batch->k_pitch, &extents->k_bytes, fault)) ||
        (code = strides_take(message->v, &v, &batch->v_pitch, &extents->v_bytes, fault)))
        return code;
    code = output_disjoint(&o, &batch->o_pitch, fault);
    return code ? code : output_disjoint(&lse, &batch->lse_pitch, fault);
}
