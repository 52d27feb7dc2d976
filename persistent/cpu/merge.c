/*
 * merge.c - where partial results meet.
 *
 * Every tile that holds a part of a row arrives at the row's merge when its part is in scratch; the
 * last to arrive merges. Nobody waits. Parts are added in the order the plan lists them, so a
 * result does not depend on timing.
 */
#include <math.h>
#include <string.h>

#include "persistent/cpu/merge.h"
#include "persistent/cpu/variant.h"
#include "schemas/atomics.h"

#define LN2 0x1.62e430p-1f

void attnd_cpu_row_store(const struct attnd_kernel *kernel, const struct attnd_cpu_run *run,
                         uint32_t row, uint32_t head, const float *o, float m, float l)
{
    const struct attnd_plan_head *plan = run->plan;
    uint16_t *out = run->o + row * plan->o_pitch.row + head * plan->o_pitch.head;
    const int seen = l != 0.0f; /* NaN is not 0 */
    const float scale = attnd_cpu_row_finish(run, head, &m, &l);
    if (seen && m == -INFINITY)
        l = NAN; /* every key seen was at -inf: all weights are 0, their sum's 0 / 0 */
    const float lse = l == 0.0f ? -INFINITY : m + log2f(l);
    if (seen)
        kernel->narrow(out, o, plan->dim_vo, plan->dtype, scale / l);
    else
        memset(out, 0, plan->dim_vo * sizeof *out);
    if (run->lse != NULL)
        run->lse[row * plan->lse_pitch.row + head * plan->lse_pitch.head] =
            plan->flags & ATTND_BATCH_LSE_LN ? lse * LN2 : lse;
}

/* Row @i of a merge, query head @head. */
static void merge_row(struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                      const struct attnd_merge *merge, uint32_t i, uint32_t head)
{
    const struct attnd_kernel *kernel = worker->backend->kernel;
    const uint32_t dim = run->plan->dim_vo, heads = run->plan->heads_q;
    const uint32_t *parts = run->merge_parts + merge->part_begin;
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t p = 0; p < merge->part_count; p++) {
        float m = run->states[((size_t)(parts[p] + i) * heads + head) * 2];
        top = m > top ? m : top;
    }
    memset(worker->o, 0, dim * sizeof *worker->o);
    for (uint32_t p = 0; p < merge->part_count; p++) {
        size_t index = (size_t)(parts[p] + i) * heads + head;
        float m = run->states[index * 2], l = run->states[index * 2 + 1];
        if (l == 0.0f) /* the identity, also beside NaN */
            continue;
        float weight = m == top ? 1.0f : exp2f(m - top);
        sum += weight * l;
        kernel->blend(worker->o, run->outputs + index * dim, dim, weight);
    }
    attnd_cpu_row_store(kernel, run, merge->row_begin + i, head, worker->o, top, sum);
}

void attnd_cpu_merge_arrive(struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                            const struct attnd_tile *tile, uint32_t kv_head)
{
    const uint32_t group = run->plan->group;
    for (uint32_t i = 0; i < tile->merge_count; i++) {
        const uint32_t index = tile->merge_begin + i;
        const struct attnd_merge *merge = &run->merges[index];
        uint32_t *counter = &run->counters[index * run->plan->heads_kv + kv_head];
        if (attnd_arrive32(counter, 1) + 1 != merge->part_count)
            continue;
        for (uint32_t row = 0; row < merge->row_count && !attnd_cpu_run_cancelled(run); row++)
            for (uint32_t g = 0; g < group; g++)
                merge_row(worker, run, merge, row, kv_head * group + g);
    }
}
