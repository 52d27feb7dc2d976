/*
 * engine_fused.c - runs that also rotate q and k and store k and v.
 *
 * A batch that is all of decode needs no more than its launch: the worker kernel's loaders do so
 * for each item in front of attention. Else a kernel does it for all rows at once, in front of the
 * launch. It leaves rotated q in memory of the lane's, where the launch then reads it.
 */
#include "client/cuda/engine.h"

#define ROTATE_THREADS 256u
#define ROTATE_BLOCKS 4u /* for each SM, where rows are found by tiles */
#define HEAD_DIM_MAX 256u
#define VECTOR_BYTES 16u

static void refuse(struct engine_run *run, int code, uint32_t field)
{
    run->fused_code = code;
    run->fused_field = field;
}

static int is_odd(const struct attnd_heap_plane *plane, uint32_t elements)
{
    return plane->stride_page % elements || plane->stride_token % elements ||
           plane->stride_head % elements || plane->offset_bytes % VECTOR_BYTES;
}

void attnd_engine_fused_pool(const struct attnd_pool_info *info, const struct attnd_engine_run *of,
                             struct engine_run *run)
{
    const uint32_t elements =
        VECTOR_BYTES / (of->kv_dtype == ATTND_FP8_E4M3 || of->kv_dtype == ATTND_FP8_E5M2 ? 1 : 2);

    if (!info->writable)
        refuse(run, -ATTND_E_PERMISSION, ATTND_F_POOL);
    else if (of->dim_qk > HEAD_DIM_MAX)
        refuse(run, -ATTND_E_UNSUPPORTED, ATTND_F_HEAD_DIM);
    else if (of->k.memory == of->v.memory && of->k.offset_bytes == of->v.offset_bytes)
        refuse(run, -ATTND_E_UNSUPPORTED, ATTND_F_DIM_VO);
    else if (is_odd(&of->k, elements) || is_odd(&of->v, elements))
        refuse(run, -ATTND_E_UNSUPPORTED, ATTND_F_STRIDE);
    else if (of->q.offset_bytes % VECTOR_BYTES)
        refuse(run, -ATTND_E_INVALID, ATTND_F_Q);
}

static int check_tensor(uint32_t field, CUdeviceptr address, uint32_t row, uint32_t head)
{
    if (address == 0 || address % VECTOR_BYTES)
        return attnd_fault_raise(-ATTND_E_INVALID, field, 0, 0, VECTOR_BYTES);
    if (row % 8 || head % 8)
        return attnd_fault_raise(-ATTND_E_INVALID, field, ATTND_F_STRIDE, row % 8 ? row : head, 8);
    return 0;
}

static int check_args(const struct attnd_cuda_fused_args *args, const struct engine_lane *at,
                      const struct attnd_plan_head *head)
{
    int rc = check_tensor(ATTND_F_K, args->k, args->k_row_stride, args->k_head_stride);

    if (rc == 0)
        rc = check_tensor(ATTND_F_V, args->v, args->v_row_stride, args->v_head_stride);
    if (rc < 0)
        return rc;
    if (args->zero || args->interleaved > 1)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_RESERVED, 0, args->zero, 0);
    if (args->positions % 4 || args->slots % 4 || args->cos_sin % VECTOR_BYTES)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_POSITION_ENCODING, 0, 0, 0);
    if (args->rows < at->rows)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_ROWS, 0, args->rows, at->rows);
    if (args->cos_sin &&
        (args->rotary_dim == 0 || args->rotary_dim % 16 || args->rotary_dim > head->dim_qk ||
         args->table_rows == 0 || args->table_rows > INT32_MAX))
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_ROPE_DIM, 0, args->rotary_dim,
                                 head->dim_qk);
    return 0;
}

static int check_plan(const struct engine_run *run, const struct attnd_plan_head *head)
{
    if (run->fused_code)
        return attnd_fault_raise(run->fused_code, run->fused_field, 0, 0, 0);
    if (head->levels != 1)
        return attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_LEVELS, 0, head->levels, 1);
    if (head->options & (ATTND_OPTION_ROPE | ATTND_OPTION_ROPE_APPEND))
        return attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_POSITION_ENCODING, 0, 0, 0);
    if (head->q_pitch.row % 8 || head->q_pitch.head % 8 || head->q_pitch.row < 0 ||
        head->q_pitch.head < 0 || head->q_pitch.row > UINT32_MAX)
        return attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_STRIDE, ATTND_F_Q, head->q_pitch.row,
                                 8);
    return 0;
}

/* Where slots and positions are given, a thread a unit. */
static uint64_t rotate_blocks(const struct attnd_engine *engine, const struct attnd_plan_head *head,
                              const struct attnd_engine_fused *fused)
{
    const uint64_t units = (uint64_t)fused->rows * (head->heads_q + 2 * head->heads_kv) *
                           ((head->dim_qk + ATTND_FUSED_UNIT - 1) / ATTND_FUSED_UNIT);

    if (fused->slots && (fused->positions || !fused->cos_sin))
        return (units + ROTATE_THREADS - 1) / ROTATE_THREADS;
    return engine->workers * ROTATE_BLOCKS;
}

/* By a kernel in front of the launch. */
static int rotate_before(struct attnd_engine *engine, const struct engine_run *run,
                         const struct attnd_plan_head *head, CUstream stream,
                         struct attnd_engine_fused *fused)
{
    uint32_t slot = (uint32_t)(run->prepared % engine->facts.runs_max), serial = run->serial;
    uint32_t lane = run->lane;
    CUdeviceptr plan = run->at->block;
    const uint64_t blocks = rotate_blocks(engine, head, fused);
    int rc = 0;

    if (blocks > INT32_MAX) /* of a grid */
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_ROWS, 0, fused->rows, run->at->rows);
    if (fused->cos_sin)
        rc = attnd_engine_grow(engine, &engine->turned[lane],
                               (uint64_t)fused->rows * head->heads_q * head->dim_qk * 2);
    if (rc < 0)
        return rc;
    fused->q = fused->cos_sin ? engine->turned[lane]->address : 0;
    void *arguments[] = {&engine->block, &plan, &slot, &serial, &lane, fused};
    rc = attnd_engine_fault(cuLaunchKernel(engine->rotate, (uint32_t)blocks, 1, 1, ROTATE_THREADS,
                                           1, 1, 0, stream, arguments, NULL));
    fused->k = 0; /* the launch itself has nothing to do */
    return rc;
}

int attnd_engine_fuse(struct attnd_engine *engine, const struct engine_run *run, uint32_t few,
                      const struct attnd_cuda_fused_args *args, CUstream stream,
                      struct attnd_engine_fused *fused)
{
    struct engine_view view;
    int rc = attnd_engine_view(engine, run->plan, &view);

    if (rc == 0)
        rc = check_plan(run, &view.head);
    if (rc == 0)
        rc = check_args(args, run->at, &view.head);
    if (rc < 0)
        return rc;
    *fused = (struct attnd_engine_fused){.k = args->k,
                                         .v = args->v,
                                         .cos_sin = args->cos_sin,
                                         .positions = args->positions,
                                         .slots = args->slots,
                                         .k_row = args->k_row_stride,
                                         .k_head = args->k_head_stride,
                                         .v_row = args->v_row_stride,
                                         .v_head = args->v_head_stride,
                                         .rows = args->rows,
                                         .table_rows = args->table_rows,
                                         .rotary_dim = args->cos_sin ? args->rotary_dim : 0,
                                         .interleaved = args->interleaved};
    if (run->at->most_rows > few)
        return rotate_before(engine, run, &view.head, stream, fused);
    rc = attnd_engine_grow(engine, &engine->turned[run->lane],
                           (uint64_t)engine->workers * ATTND_FUSED_WORKER_BYTES);
    if (rc == 0)
        fused->turned = engine->turned[run->lane]->address;
    return rc;
}
