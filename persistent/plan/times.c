/*
 * times.c - how long a tile takes one worker, by what its backend says of itself.
 *
 * There are two resources. Products go by the packed rows, reading by the keys. A worker that loads
 * keys while it computes on others takes the longer of the two; one that does not, the sum. What
 * all workers read together is bounded by the memory. Only ratios matter for balance, but they
 * decide which of two ways ends earlier, so they are measured, not guessed.
 */
#include "persistent/plan/times.h"
#include "persistent/plan/layout.h"
#include "schemas/kernels.h"

/* A processor's thread: reading a key takes as long as eight rows of products. */
#define CPU_GFLOPS 80u
#define CPU_GBPS 10u

/* Where keys are loaded ahead: what a tile takes beside them, because its first load and its end
 * are not hidden behind others; what every wave of parts of memory-bound blocks takes more, because
 * their rows are stored, counted and merged, and no keys are on their way meanwhile (3 to 5 us, and
 * nothing of it is hidden where parts are short: persistent/cuda/journal/shapes.md); and what a
 * part of a compute-bound block takes more, because the last one to arrive merges all rows alone,
 * except for rows of a shared level, which others merge. */
#define LOADED_AHEAD_START_NS 300.0
#define LOADED_AHEAD_WAVE_NS 3500.0
#define LOADED_AHEAD_PART_NS 6000.0
#define LOADED_AHEAD_SHARED_NS 1500.0

void attnd_plan_default_rates(struct attnd_plan_target *target)
{
    struct attnd_plan_rates *rates = &target->rates;

    if (rates->worker_gflops && rates->worker_gbps && rates->worker_l2_gbps && rates->memory_gbps &&
        rates->rows_step)
        return;
    *rates = (struct attnd_plan_rates){.worker_gflops = CPU_GFLOPS,
                                       .worker_gbps = CPU_GBPS,
                                       .worker_l2_gbps = CPU_GBPS,
                                       .memory_gbps = CPU_GBPS * target->tile_workers,
                                       .rows_step = 1};
}

void attnd_plan_take_times(struct attnd_plan *plan)
{
    const struct attnd_plan_rates *rates = &plan->limits.target.rates;
    const double dims = plan->pool.dim_qk + plan->pool.dim_vo;
    const double row_ns = 2.0 * dims / rates->worker_gflops;
    const double key_bytes = attnd_dtype_bytes(plan->pool.dtype) * dims;
    const double row_bytes = sizeof(float) * (double)plan->pool.dim_vo; /* of a partial */

    plan->times = (struct attnd_plan_times){
        .row_ns = row_ns,
        .read_ns = key_bytes / rates->worker_gbps,
        .again_ns = key_bytes / rates->worker_l2_gbps,
        .bytes_ns = key_bytes / rates->memory_gbps,
        .start_ns = rates->rows_step > 1 ? LOADED_AHEAD_START_NS : ATTND_COST_TILE * row_ns,
        .wave_ns = rates->rows_step > 1 ? LOADED_AHEAD_WAVE_NS : ATTND_COST_TILE * row_ns,
        .merge_row_ns = 2.0 * row_bytes / rates->worker_gbps,
    };
    if (attnd_kernel_dim(plan->pool.dim_qk, plan->pool.dim_vo) == 576) { /* latents */
        plan->times.merge_row_ns = row_bytes / rates->worker_l2_gbps;
        plan->times.merges_many = 1;
    }
}

/* @reading: the key. */
static double key_ns(const struct attnd_plan *plan, uint32_t packed_rows, double reading)
{
    const uint32_t step = plan->limits.target.rates.rows_step;

    if (step <= 1)
        return reading + packed_rows * plan->times.row_ns;
    if (packed_rows <= ATTND_TILE_MEMORY_ROWS)
        return reading;
    const uint32_t steps = packed_rows <= step ? 1 : (packed_rows + step - 1) / step;
    const double products = (double)steps * step * plan->times.row_ns;
    return products > reading ? products : reading;
}

double attnd_plan_key_ns(const struct attnd_plan *plan, uint32_t packed_rows)
{
    return key_ns(plan, packed_rows, plan->times.read_ns);
}

double attnd_plan_again_ns(const struct attnd_plan *plan, uint32_t packed_rows)
{
    return key_ns(plan, packed_rows, plan->times.again_ns);
}

uint64_t attnd_plan_tile_cost(const struct attnd_plan *plan, uint32_t keys, uint32_t packed_rows)
{
    if (plan->limits.target.rates.rows_step <= 1)
        return attnd_item_cost(keys, packed_rows);
    const double rows = attnd_plan_key_ns(plan, packed_rows) / plan->times.row_ns;
    return (uint64_t)(keys * rows) + ATTND_COST_TILE;
}

double attnd_plan_start_ns(const struct attnd_plan *plan)
{
    return plan->times.start_ns;
}

double attnd_plan_item_ns(const struct attnd_plan *plan, uint32_t keys, uint32_t packed_rows)
{
    return keys * attnd_plan_key_ns(plan, packed_rows) + attnd_plan_start_ns(plan);
}

double attnd_plan_part_ns(const struct attnd_plan *plan, uint32_t packed_rows, int shared)
{
    const double bytes = 2.0 * sizeof(float) * plan->pool.dim_vo * packed_rows;

    const double merging = shared ? LOADED_AHEAD_SHARED_NS : LOADED_AHEAD_PART_NS;
    const double wait = plan->limits.target.rates.rows_step > 1 ? merging : 0;

    return bytes / plan->limits.target.rates.worker_gbps + wait;
}

double attnd_plan_bytes_ns(const struct attnd_plan *plan)
{
    return plan->times.bytes_ns;
}

struct attnd_pace attnd_plan_pace(const struct attnd_plan *plan)
{
    const struct attnd_plan_target *target = &plan->limits.target;
    const uint32_t group = plan->shape.group;
    const uint32_t rows = target->rows_per_tile > group ? target->rows_per_tile : group;
    const double part_ns = attnd_plan_part_ns(plan, 0, 0);

    return (struct attnd_pace){
        .rows_per_tile = target->rows_per_tile,
        .granule = target->kv_granule,
        .rows_step = target->rates.rows_step,
        .fusion = target->fusion,
        .wave_ns = (float)plan->times.wave_ns,
        .keys_item = attnd_plan_keys_max(target, rows),
        .row_ns = (float)plan->times.row_ns,
        .read_ns = (float)plan->times.read_ns,
        .bytes_ns = (float)plan->times.bytes_ns,
        .start_ns = (float)plan->times.start_ns,
        .part_ns = (float)part_ns,
        .part_row_ns = (float)(attnd_plan_part_ns(plan, 1, 0) - part_ns),
        .merge_row_ns = (float)plan->times.merge_row_ns,
        .merges_many = (uint32_t)plan->times.merges_many,
    };
}
