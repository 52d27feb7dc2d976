/*
 * fuse.c - both classes of a batch at once: how many workers compute, and which blocks are cut for
 * that.
 *
 * Where a batch has compute-bound and memory-bound blocks, the memory has little to do while all
 * workers compute, and the tensor cores have little to do while all workers read. A part of the
 * workers can read as fast as all of them. So the batch ends earlier if each class keeps some
 * workers busy from the beginning to the end. Workers begin with the items of their class, and go
 * on with the other's: none waits.
 *
 * Compute-bound items are long, and few of them are a worker's. Whole blocks alone come out even
 * for few numbers of workers: those that divide the items. So some of the blocks are cut, and their
 * parts make one more wave that is shorter. A number of workers is found for each number of waves
 * of whole blocks and of parts; the whole ones are begun first.
 */
#include "persistent/fuse.h"
#include "persistent/plan/split.h"
#include "persistent/plan/times.h"

#include <assert.h>
#include <math.h>

static struct attnd_fuse_batch look(const struct attnd_plan *plan, const struct blocks_seen *seen)
{
    const struct attnd_plan_load *load = &seen->load;
    const uint32_t rows_max = plan->limits.target.rows_per_tile;
    const uint32_t rows = seen->rows_max < rows_max ? seen->rows_max : rows_max;
    const double workers = plan->limits.target.tile_workers;
    const double blocks = seen->count[ATTND_TILE_COMPUTE];

    return (struct attnd_fuse_batch){
        .workers = workers,
        .heads = plan->shape.heads_kv,
        .blocks = blocks,
        .longest_ns = seen->longest_ns[ATTND_TILE_COMPUTE],
        .shortest_ns = seen->shortest_ns[ATTND_TILE_COMPUTE],
        .mean_ns = seen->total_ns[ATTND_TILE_COMPUTE] / blocks,
        .part_ns = attnd_plan_part_ns(plan, rows, 0),
        .reading_ns = attnd_larger(load->bytes_ns, load->memory_ns),
        .readers = load->bytes_ns > load->memory_ns
                       ? attnd_larger(1, workers * load->memory_ns / load->bytes_ns)
                       : workers,
        .cuts_max = plan->capacity.splits,
    };
}

/* The best of all ways to cut blocks in @parts, or none. Return: its end if that is before @before;
 * else @before. */
static double best_waves(const struct attnd_fuse_batch *batch, uint32_t parts, double before,
                         struct attnd_fuse_way *chosen)
{
    const double items = batch->blocks * batch->heads;
    struct attnd_fuse_way how = {.workers = batch->workers};

    for (double waves = attnd_larger(parts <= 1, ceil(items / batch->workers) - 1);
         waves <= items && how.workers > batch->workers * ATTND_FUSE_COMPUTING_MIN;
         waves = ceil(waves * ATTND_FUSE_WAVES_STEP + 1e-3)) {
        for (uint32_t part_waves = parts > 1; part_waves < parts; part_waves++) {
            if (!attnd_fuse_take_waves(batch, waves, part_waves, parts, &how) ||
                how.workers >= batch->workers)
                continue;
            const double end = attnd_fuse_end(batch, &how);
            if (end >= before)
                continue;
            before = end;
            *chosen = how;
        }
    }
    return before;
}

/* The best of all. Return: its end. */
static double best_of_all(const struct attnd_fuse_batch *batch, struct attnd_fuse_way *chosen)
{
    double best = best_waves(batch, 1, INFINITY, chosen);

    for (uint32_t parts = 2; parts <= ATTND_FUSE_PARTS_MAX; parts++) {
        if (batch->longest_ns / parts + batch->part_ns < ATTND_FUSE_PART_NS_MIN)
            break;
        const double before = best * ATTND_FUSE_PARTS_GAIN;
        const double end = best_waves(batch, parts, before, chosen);
        best = end < before ? end : best;
    }
    return best;
}

/* All workers compute first, whole blocks or parts of all. Return: when all is done. */
static double all_compute(const struct attnd_fuse_batch *batch, struct attnd_fuse_way *chosen)
{
    double best = INFINITY;

    for (uint32_t parts = 1; parts <= ATTND_FUSE_ALL_PARTS_MAX; parts++) {
        const double waves = ceil(batch->blocks * batch->heads * parts / batch->workers);
        struct attnd_fuse_way how = {.workers = batch->workers, .parts = parts};

        if (parts > 1) {
            how.cut = batch->blocks;
            how.part_waves = (uint32_t)attnd_smaller(waves, UINT32_MAX);
        } else {
            how.whole = batch->blocks;
            how.waves = waves;
        }
        const double end = attnd_fuse_end(batch, &how);
        if (end >= best * ATTND_FUSE_PARTS_GAIN || how.cut * (parts - 1) > batch->cuts_max)
            continue;
        best = end;
        *chosen = how;
    }
    return best;
}

/* Splits that @split asks for, of memory-bound blocks. */
static uint64_t memory_splits(const struct attnd_plan *plan, const struct blocks_seen *seen,
                              const struct attnd_split *split)
{
    uint64_t splits = 0;

    for (uint32_t r = 0; r < seen->runs; r++) {
        const struct attnd_row_block *block = &plan->blocks[plan->order[r]];
        const uint32_t end = r + 1 < seen->runs ? plan->order[r + 1] : seen->blocks;
        if (block->tile_class == ATTND_TILE_MEMORY)
            splits +=
                (uint64_t)(end - plan->order[r]) * (attnd_plan_split_parts(plan, block, split) - 1);
    }
    return splits;
}

/* Memory-bound blocks as fine as the plan has tiles for, all alike: a few that stay whole would end
 * last. */
static void coarsen(struct attnd_plan *plan, struct blocks_seen *seen, struct attnd_splits *splits)
{
    const uint64_t more =
        (uint64_t)(seen->count[ATTND_TILE_COMPUTE] - splits->whole) * (splits->parts - 1);
    const uint64_t fits = plan->capacity.splits > more ? plan->capacity.splits - more : 0;

    seen->runs = attnd_plan_find_runs(plan, seen->blocks);
    while (memory_splits(plan, seen, &splits->of[ATTND_TILE_MEMORY]) > fits)
        splits->of[ATTND_TILE_MEMORY].target_ns *= ATTND_FUSE_COARSER;
}

/* The best of all, if both at once gains enough; else all compute first. Return: its end. */
static double choose(const struct attnd_fuse_batch *batch, enum attnd_plan_fusion fusion,
                     struct attnd_fuse_way *chosen)
{
    struct attnd_fuse_way both;
    const double serial_ns = all_compute(batch, chosen);
    const double end = best_of_all(batch, &both);
    const double before = fusion == ATTND_FUSION_SM_SPLIT ? INFINITY : serial_ns * ATTND_FUSE_GAIN;

    if (end >= before)
        return serial_ns;
    *chosen = both;
    return end;
}

int attnd_plan_fuse(struct attnd_plan *plan, struct blocks_seen *seen, struct attnd_splits *splits)
{
    const enum attnd_plan_fusion fusion = plan->limits.target.fusion;
    const struct attnd_plan_load *load = &seen->load;
    const double serial = load->compute_ns + attnd_larger(load->memory_ns, load->bytes_ns);
    const double floor = attnd_larger(load->compute_ns + load->memory_ns, load->bytes_ns);

    /* A plan's head counts whole blocks, and workers, in 16 bits. */
    if (fusion == ATTND_FUSION_OFF || !seen->count[0] || !seen->count[1] ||
        seen->count[ATTND_TILE_COMPUTE] > UINT16_MAX || plan->limits.target.tile_workers < 2 ||
        plan->limits.target.tile_workers > UINT16_MAX ||
        (fusion == ATTND_FUSION_AUTO && floor > serial * ATTND_FUSE_FLOOR))
        return 0;
    const struct attnd_fuse_batch batch = look(plan, seen);
    struct attnd_fuse_way how = {0};
    const double end = choose(&batch, fusion, &how);
    if (fusion == ATTND_FUSION_AUTO && end > serial * ATTND_FUSE_END)
        return 0;
    assert(how.workers >= 1 && how.workers <= batch.workers && how.parts >= 1);
    const double reading = batch.workers - how.workers;
    plan->mix.compute_workers = (uint32_t)how.workers;
    plan->mix.stretch = attnd_larger(1, reading / batch.readers);
    *splits = (struct attnd_splits){.whole = (uint32_t)how.whole, .parts = how.parts};
    splits->of[ATTND_TILE_MEMORY] = (struct attnd_split){
        attnd_larger(end / ATTND_FUSE_ITEMS, ATTND_FUSE_ITEM_NS_MIN) / plan->mix.stretch, 0.5,
        ATTND_SPLIT_KEYS_MIN};
    coarsen(plan, seen, splits);
    return 1;
}
