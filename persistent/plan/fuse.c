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
#include "persistent/plan/split.h"

#include <assert.h>
#include <math.h>

/* What is left of the sum of both classes if nobody ever waited, for fusion to be looked at. */
#define FUSION_FLOOR 0.98
/* Both at once is chosen if it takes less than this much of the time in which all compute first. */
#define FUSION_GAIN 0.98
/* Blocks are cut as those of one class are if all of this takes longer than this much of the sum of
 * both classes: then there are too few of them, or one is longer than all others together. */
#define FUSION_END 1.1
/* Blocks of a class whose times differ by less end in waves. */
#define WAVES_ALIKE 0.75
/* Workers beside which others compute read so much of what they would alone. */
#define READING_BESIDE 0.9
/* Parts that a compute-bound block is cut into at most where some blocks are, and the least time of
 * one; and where all are, because all workers compute first. Fewer parts are taken if more do not
 * end by so much earlier. */
#define FUSED_PARTS_MAX 3u
#define FUSED_PART_NS_MIN 15e3
#define ALL_PARTS_MAX 4u
#define FUSED_PARTS_GAIN 0.97
/* A memory-bound item of a fused batch is at most this part of it, because readers do not end
 * together; but not shorter than that. */
#define FUSED_ITEMS 8.0
#define FUSED_ITEM_NS_MIN 12e3

/* Items that are more than a plan has tiles for become longer by this factor. */
#define COARSER 1.125

/* No way with fewer workers is looked for behind one that has less than this part of them compute,
 * and the numbers of waves that are looked at lie so close. */
#define COMPUTING_MIN 0.125
#define WAVES_STEP 1.125

/* A way to compute: @whole blocks, and @cut ones in @parts each, by so many workers, in waves of
 * whole blocks and behind these in waves of parts. */
struct computing {
    double whole, cut, workers, waves;
    uint32_t parts, part_waves;
};

/* What all of this needs to know of the batch. */
struct batch_seen {
    double workers, heads, blocks;
    double longest_ns, shortest_ns, mean_ns; /* compute-bound blocks of one KV head */
    double part_ns;                          /* what a part takes more */
    double reading_ns;                       /* all that is read, by all workers */
    double readers;                          /* workers that just keep the memory busy, on paper */
    double cuts_max;                         /* parts that the plan has tiles for */
};

static struct batch_seen look(const struct attnd_plan *plan, const struct blocks_seen *seen)
{
    const struct attnd_plan_load *load = &seen->load;
    const uint32_t rows_max = plan->limits.target.rows_per_tile;
    const uint32_t rows = seen->rows_max < rows_max ? seen->rows_max : rows_max;
    const double workers = plan->limits.target.tile_workers;
    const double blocks = seen->count[ATTND_TILE_COMPUTE];

    return (struct batch_seen){
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

static double part_ns(const struct batch_seen *batch, const struct computing *how)
{
    return batch->longest_ns / how->parts + batch->part_ns;
}

/* As many blocks stay whole as @workers begin in @waves, or @more. Return: workers that it takes.
 */
static double take_whole(const struct batch_seen *batch, double workers, double more,
                         struct computing *how)
{
    const double heads = batch->heads, whole = floor(how->waves * workers / heads) + more;

    how->whole = how->waves > 0 ? attnd_smaller(whole, batch->blocks) : 0;
    if (!how->part_waves)
        how->whole = batch->blocks;
    how->cut = batch->blocks - how->whole;
    const double begin = how->waves > 0 ? ceil(how->whole * heads / how->waves) : 0;
    return how->cut > 0 ? attnd_larger(begin, ceil(how->cut * how->parts * heads / how->part_waves))
                        : begin;
}

/* Workers for @waves of whole blocks and @part_waves of parts behind them, as few as will do.
 * Return: 0 if the plan has not so many tiles. */
static int take_waves(const struct batch_seen *batch, double waves, uint32_t part_waves,
                      uint32_t parts, struct computing *how)
{
    const double items = batch->blocks * batch->heads;
    const double even = ceil(items / (waves + (double)part_waves / parts));
    struct computing fewer = {.parts = parts, .waves = waves, .part_waves = part_waves}, more;

    more = fewer;
    fewer.workers = take_whole(batch, even, 0, &fewer);
    more.workers = take_whole(batch, even, 1, &more);
    *how = fewer.workers < more.workers ? fewer : more;
    return how->cut * (how->parts - 1) <= batch->cuts_max;
}

/* Time of workers that compute-bound items take. */
static double busy_ns(const struct batch_seen *batch, const struct computing *how)
{
    return (batch->blocks * batch->mean_ns + how->cut * how->parts * batch->part_ns) * batch->heads;
}

/* The item that begins last. */
static double last_ns(const struct batch_seen *batch, const struct computing *how)
{
    return how->cut > 0 ? part_ns(batch, how) : batch->longest_ns;
}

static int alike(const struct batch_seen *batch)
{
    return batch->shortest_ns >= batch->longest_ns * WAVES_ALIKE;
}

/* When they are done if @share_ns were each worker's, and none waited. The longest block of the
 * last head begins when all of the other heads' have begun. */
static double uneven_end(const struct batch_seen *batch, const struct computing *how,
                         double share_ns)
{
    const double longest = how->whole > 0 ? batch->longest_ns : part_ns(batch, how);
    const double before = share_ns * (batch->heads - 1) / batch->heads;
    const double end = share_ns + last_ns(batch, how) / 2;

    return alike(batch) ? end : attnd_larger(end, before + longest);
}

/* When they are done, in waves if they are alike. */
static double compute_end(const struct batch_seen *batch, const struct computing *how)
{
    const double whole = how->waves > 0 ? (how->waves - 1) * batch->mean_ns + batch->longest_ns : 0;

    if (!alike(batch))
        return uneven_end(batch, how, busy_ns(batch, how) / how->workers);
    return whole + (how->cut > 0 ? how->part_waves * part_ns(batch, how) : 0);
}

/* How fast @reading workers read, of how fast the memory is: a few as fast as each of them can,
 * many as fast as it, and those who could just keep it busy hinder each other a little. */
static double reading_speed(const struct batch_seen *batch, double reading)
{
    const double slower = batch->readers / attnd_larger(reading, 1e-3), squared = slower * slower;

    return 1 / sqrt(sqrt(1 + squared * squared));
}

/* When all is done. Workers that the last wave leaves over read, too, and readers that have nothing
 * left to read help to compute. */
static double fused_end(const struct batch_seen *batch, const struct computing *how)
{
    const double speed = READING_BESIDE * reading_speed(batch, batch->workers - how->workers);
    const double end = compute_end(batch, how), busy = busy_ns(batch, how);
    const double last = attnd_smaller(last_ns(batch, how), end), full = end - last;
    const double ending = attnd_larger(0, (busy - how->workers * full) / last);
    double left_ns = batch->reading_ns - full * speed;

    if (left_ns <= 0) {
        const double read_ns = batch->reading_ns / speed;
        const double rest_ns = busy - how->workers * read_ns;
        return uneven_end(batch, how, read_ns + rest_ns / batch->workers);
    }
    left_ns -= last * READING_BESIDE *
               reading_speed(batch, batch->workers - attnd_smaller(ending, how->workers));
    return end + attnd_larger(left_ns, 0);
}

/* The best of all ways to cut blocks in @parts, or none. Return: its end if that is before @before;
 * else @before. */
static double best_waves(const struct batch_seen *batch, uint32_t parts, double before,
                         struct computing *chosen)
{
    const double items = batch->blocks * batch->heads;
    struct computing how = {.workers = batch->workers};

    for (double waves = attnd_larger(parts <= 1, ceil(items / batch->workers) - 1);
         waves <= items && how.workers > batch->workers * COMPUTING_MIN;
         waves = ceil(waves * WAVES_STEP + 1e-3)) {
        for (uint32_t part_waves = parts > 1; part_waves < parts; part_waves++) {
            if (!take_waves(batch, waves, part_waves, parts, &how) || how.workers >= batch->workers)
                continue;
            const double end = fused_end(batch, &how);
            if (end >= before)
                continue;
            before = end;
            *chosen = how;
        }
    }
    return before;
}

/* The best of all. Return: its end. */
static double best_of_all(const struct batch_seen *batch, struct computing *chosen)
{
    double best = best_waves(batch, 1, INFINITY, chosen);

    for (uint32_t parts = 2; parts <= FUSED_PARTS_MAX; parts++) {
        if (batch->longest_ns / parts + batch->part_ns < FUSED_PART_NS_MIN)
            break;
        const double before = best * FUSED_PARTS_GAIN;
        const double end = best_waves(batch, parts, before, chosen);
        best = end < before ? end : best;
    }
    return best;
}

/* All workers compute first, whole blocks or parts of all. Return: when all is done. */
static double all_compute(const struct batch_seen *batch, struct computing *chosen)
{
    double best = INFINITY;

    for (uint32_t parts = 1; parts <= ALL_PARTS_MAX; parts++) {
        const double waves = ceil(batch->blocks * batch->heads * parts / batch->workers);
        struct computing how = {.workers = batch->workers, .parts = parts};

        if (parts > 1) {
            how.cut = batch->blocks;
            how.part_waves = (uint32_t)attnd_smaller(waves, UINT32_MAX);
        } else {
            how.whole = batch->blocks;
            how.waves = waves;
        }
        const double end = fused_end(batch, &how);
        if (end >= best * FUSED_PARTS_GAIN || how.cut * (parts - 1) > batch->cuts_max)
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
        splits->of[ATTND_TILE_MEMORY].target_ns *= COARSER;
}

/* The best of all, if both at once gains enough; else all compute first. Return: its end. */
static double choose(const struct batch_seen *batch, enum attnd_plan_fusion fusion,
                     struct computing *chosen)
{
    struct computing both;
    const double serial_ns = all_compute(batch, chosen);
    const double end = best_of_all(batch, &both);
    const double before = fusion == ATTND_FUSION_SM_SPLIT ? INFINITY : serial_ns * FUSION_GAIN;

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
        (fusion == ATTND_FUSION_AUTO && floor > serial * FUSION_FLOOR))
        return 0;
    const struct batch_seen batch = look(plan, seen);
    struct computing how = {0};
    const double end = choose(&batch, fusion, &how);
    if (fusion == ATTND_FUSION_AUTO && end > serial * FUSION_END)
        return 0;
    assert(how.workers >= 1 && how.workers <= batch.workers && how.parts >= 1);
    const double reading = batch.workers - how.workers;
    plan->mix.compute_workers = (uint32_t)how.workers;
    plan->mix.stretch = attnd_larger(1, reading / batch.readers);
    *splits = (struct attnd_splits){.whole = (uint32_t)how.whole, .parts = how.parts};
    splits->of[ATTND_TILE_MEMORY] =
        (struct attnd_split){attnd_larger(end / FUSED_ITEMS, FUSED_ITEM_NS_MIN) / plan->mix.stretch,
                             0.5, ATTND_SPLIT_KEYS_MIN};
    coarsen(plan, seen, splits);
    return 1;
}
