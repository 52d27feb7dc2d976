/*
 * merge_state.c - two results of the same queries over different keys become one, by their lse.
 *
 * With 2^lse the sum of a result's weights, o is the mean of both o by that. A result that saw
 * nothing has an lse of -inf: it counts for nothing, whatever its o is, and the other one stays
 * what it is to the bit.
 */
#include <math.h>
#include <string.h>

#include "persistent/cpu/items.h"
#include "persistent/plan/plan.h"

#define LN2 0x1.62e430p-1f
#define LOG2E 0x1.715476p+0f

/* One row of one head. */
static void merge_row(const struct attnd_cpu_run *run, const struct attnd_kernel *kernel,
                      uint32_t row, uint32_t head)
{
    const struct attnd_plan_head *plan = run->plan;
    const uint32_t dim = plan->dim_vo;
    const ptrdiff_t at = row * plan->o_pitch.row + head * plan->o_pitch.head;
    const ptrdiff_t lse_at = row * plan->lse_pitch.row + head * plan->lse_pitch.head;
    const float unit = plan->flags & ATTND_BATCH_LSE_LN ? LOG2E : 1.0f;
    const float a = run->merge_lse[0][lse_at] * unit, b = run->merge_lse[1][lse_at] * unit;
    float sum[ATTND_HEAD_DIM_MAX], part[ATTND_HEAD_DIM_MAX];
    uint16_t *out = run->o + at;
    float lse;

    if (a == -INFINITY || b == -INFINITY) {
        lse = a == -INFINITY ? run->merge_lse[1][lse_at] : run->merge_lse[0][lse_at];
        if (lse == -INFINITY)
            memset(out, 0, dim * sizeof *out);
        else
            memmove(out, run->merge_o[a == -INFINITY] + at, dim * sizeof *out);
    } else {
        const float top = a > b ? a : b;
        const float weight_a = exp2f(a - top), weight_b = exp2f(b - top);
        const float weights = weight_a + weight_b;
        kernel->widen(sum, run->merge_o[0] + at, dim, plan->dtype, weight_a);
        kernel->widen(part, run->merge_o[1] + at, dim, plan->dtype, 1.0f);
        kernel->blend(sum, part, dim, weight_b);
        kernel->narrow(out, sum, dim, plan->dtype, 1.0f / weights);
        lse = (top + log2f(weights)) * (plan->flags & ATTND_BATCH_LSE_LN ? LN2 : 1.0f);
    }
    if (run->lse != NULL)
        run->lse[lse_at] = lse;
}

void attnd_cpu_merge_state(const struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                           uint32_t item)
{
    const uint32_t heads = run->plan->heads_q;
    const uint64_t count = (uint64_t)run->plan->rows * heads;
    const uint64_t begin = (uint64_t)item * ATTND_MERGE_ROWS;
    const uint64_t end = begin + ATTND_MERGE_ROWS < count ? begin + ATTND_MERGE_ROWS : count;

    for (uint64_t i = begin; i < end; i++)
        merge_row(run, worker->backend->kernel, (uint32_t)(i / heads), (uint32_t)(i % heads));
}
