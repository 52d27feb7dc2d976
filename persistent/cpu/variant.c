/*
 * variant.c - the variant of a run: opened once, asked for the rows of a tile, and for their end.
 */
#include "persistent/cpu/variant.h"
#include "persistent/cpu/memory.h"
#include "persistent/position.h"

#include <math.h>

#define LOG2E 0x1.715476p+0f

#define OPTIONS                                                                                    \
    (ATTND_OPTION_WINDOW | ATTND_OPTION_SOFT_CAP | ATTND_OPTION_ALIBI | ATTND_OPTION_SINKS |       \
     ATTND_OPTION_MASK | ATTND_OPTION_ROPE | ATTND_OPTION_ROPE_APPEND | ATTND_OPTION_SCALES |      \
     ATTND_OPTION_HEAD_SCALES | ATTND_OPTION_DIMS_192_128 | ATTND_OPTION_DIMS_576_512 |            \
     ATTND_OPTION_DIMS_FP8 | ATTND_OPTION_ALIBI_SLOPES | ATTND_OPTION_CHUNK |                      \
     ATTND_OPTIONS_PLANNER)

uint32_t attnd_cpu_options(void)
{
    return OPTIONS;
}

/* The layer's part of a table. NULL: it is not mapped. */
static const float *open_table(const struct attnd_backend *backend,
                               const struct attnd_variant_table *table, uint32_t layer)
{
    const uint64_t skip_bytes = (uint64_t)layer * table->layer_stride * sizeof(float);

    return attnd_cpu_memory_at(backend, table->memory, table->offset_bytes + skip_bytes);
}

static int open_mask(const struct attnd_backend *backend, struct attnd_cpu_run *run)
{
    const struct attnd_variant_table *table = &run->variant.mask;

    run->mask = attnd_cpu_memory_at(backend, table->memory, table->offset_bytes);
    run->mask_begin = (const void *)((const char *)run->plan + run->plan->mask_begin_offset_bytes);
    return run->mask == NULL ? -ATTND_E_UNKNOWN : 0;
}

int attnd_cpu_variant_open(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                           uint32_t layer)
{
    const uint32_t options = run->plan->options;

    run->options = options;
#define OPTION(name, field, value)
#define TABLE(name, field, member, elements, beside) run->member = NULL;
#include "schemas/options.def"
    if (options == 0)
        return 0;
    if (options & ~OPTIONS)
        return -ATTND_E_UNSUPPORTED;
    run->variant = *(const struct attnd_variant *)(const void *)(run->plan + 1);
#define OPTION(name, field, value)
#define TABLE(name, field, member, elements, beside)                                               \
    if (options & ATTND_OPTION_##name &&                                                           \
        !(run->member = open_table(backend, &run->variant.member, layer)))                         \
        return -ATTND_E_UNKNOWN;
#include "schemas/options.def"
    return options & ATTND_OPTION_MASK ? open_mask(backend, run) : 0;
}

float attnd_cpu_k_scale(const struct attnd_cpu_run *run, uint32_t kv_head)
{
    const float all = run->options & ATTND_OPTION_SCALES ? run->variant.k_scale : 1.0f;

    return run->kv_scales ? all * run->kv_scales[kv_head] : all;
}

float attnd_cpu_v_scale(const struct attnd_cpu_run *run, uint32_t kv_head)
{
    const float all = run->options & ATTND_OPTION_SCALES ? run->variant.v_scale : 1.0f;

    return run->kv_scales ? all * run->kv_scales[run->plan->heads_kv + kv_head] : all;
}

float attnd_cpu_variant_scale(const struct attnd_cpu_run *run, uint32_t kv_head)
{
    const float q_scale = run->options & ATTND_OPTION_SCALES ? run->variant.q_scale : 1.0f;

    return run->plan->sm_scale * LOG2E * q_scale * attnd_cpu_k_scale(run, kv_head);
}

/* Of a query head; a natural score is 1. */
static float slope_of(const struct attnd_cpu_run *run, uint32_t head)
{
    return run->alibi_slopes ? run->alibi_slopes[head]
                             : attnd_alibi_slope(head, run->plan->heads_q);
}

const struct attnd_cpu_policy *attnd_cpu_variant_rows(struct attnd_cpu_worker *worker,
                                                      const struct attnd_cpu_run *run,
                                                      uint32_t kv_head, uint32_t count)
{
    const uint32_t options = run->options, group = run->plan->group;
    struct attnd_cpu_policy *policy = &worker->policy;

    if (!(options &
          (ATTND_OPTION_SOFT_CAP | ATTND_OPTION_ALIBI | ATTND_OPTION_ROPE | ATTND_OPTION_MASK)))
        return NULL;
    *policy = (struct attnd_cpu_policy){0};
    if (options & ATTND_OPTION_SOFT_CAP)
        policy->soft_cap = run->variant.logits_soft_cap * LOG2E;
    if (options & ATTND_OPTION_ALIBI) {
        for (uint32_t i = 0; i < count; i++)
            worker->slope[i] = slope_of(run, kv_head * group + i % group) * LOG2E;
        policy->slope = worker->slope;
        policy->position = worker->position;
    }
    if (options & ATTND_OPTION_ROPE) {
        policy->cosine = worker->cosine;
        policy->sine = worker->sine;
        policy->pairs = run->variant.rope_dim / 2;
    }
    if (options & ATTND_OPTION_MASK && worker->mask) { /* the last level's */
        policy->mask = worker->mask;
        policy->mask_bit = worker->mask_bit;
    }
    return policy;
}

float attnd_cpu_row_finish(const struct attnd_cpu_run *run, uint32_t head, float *m, float *l)
{
    const float v_scale = attnd_cpu_v_scale(run, head / run->plan->group);
    const float sink = run->sinks ? run->sinks[head] * LOG2E : -INFINITY;

    if (sink == -INFINITY)
        return v_scale;
    const float top = sink > *m ? sink : *m;
    const float weight = exp2f(*m - top);
    *l = *l * weight + exp2f(sink - top);
    *m = top;
    return weight * v_scale;
}
