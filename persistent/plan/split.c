/*
 * split.c - how blocks are cut along KV, and how many workers each class of tiles is to keep busy.
 *
 * A worker takes queue items (tile x KV head) in the order of the plan, so a batch is well spread
 * when no item is large against a worker's share, or when the items happen to come out even. Only
 * if neither holds are blocks split, because a split is not free: its parts go through memory and
 * somebody merges them.
 *
 * Where a batch has compute-bound and memory-bound blocks, the memory has little to do while all
 * workers compute, and the tensor cores have little to do while all workers read. A part of the
 * workers can read as fast as all of them. So the batch ends earlier if each class keeps some
 * workers busy from the beginning to the end. The shares follow from two sums: the time that all
 * items take of workers, and the time that all bytes take of the memory; the larger one bounds the
 * batch. Workers begin with the items of their class, and go on with the other's: none waits.
 */
#include "persistent/plan/private.h"

#include <math.h>

/* Unsplit is good enough when it is at most 1/8 slower than perfect. */
#define BALANCE_SLACK 1.125
/* A finer split must end by this much earlier. */
#define SPLIT_GAIN 0.95
/* What is left of the sum of both classes if nobody ever waited, for fusion to be looked at; and
 * what it must end before. The sum leaves out that each class ends with some workers idle. */
#define FUSION_FLOOR 0.97
#define FUSION_END 1.03
/* Blocks of a class whose times differ by less end in waves. */
#define WAVES_ALIKE 0.75
/* Compute-bound blocks of a fused batch are halved if it then ends by this much earlier, and if the
 * halves are at least so long. */
#define FUSED_HALVES_GAIN 0.9
#define FUSED_HALF_NS_MIN 40e3
/* A memory-bound item of a fused batch is at most this part of it, because readers do not end
 * together; but not shorter than that. */
#define FUSED_ITEMS 8.0
#define FUSED_ITEM_NS_MIN 12e3

/* Items that are more than a plan has tiles for become longer by this factor. */
#define COARSER 1.125

/* Compute-bound items of a fused batch have at least this part of the workers, and the numbers of
 * waves that are looked at lie so close. */
#define COMPUTING_MIN 0.125
#define WAVES_STEP 1.0625

/* A shared level is spread over all workers if each of its blocks can have so many parts. */
#define SPREAD_PARTS_MIN 4u

#define COST_CLASSES 32u

struct blocks_seen {
    uint32_t blocks, runs, rows_max;
    uint32_t count[2]; /* by enum attnd_tile_class, and so below */
    double total_ns[2], longest_ns[2], shortest_ns[2];
    struct attnd_plan_load load;
    double stretch; /* of memory-bound items, because the memory does not keep up */
};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* What blocks take less of one KV head because others have just read their keys. */
static double again_less(const struct attnd_plan *plan)
{
    const double less = plan->times.read_ns - plan->times.again_ns;

    return plan->limits.target.rates.rows_step > 1 ? plan->keys_again * less : 0;
}

/* What blocks of one class come to. */
struct class_seen {
    uint32_t count, rows_max;
    double total_ns, longest_ns, shortest_ns, keys;
};

static struct class_seen look_at_class(const struct attnd_plan *plan, uint32_t class)
{
    struct class_seen seen = {.shortest_ns = INFINITY};

    for (uint32_t b = 0; b < plan->level_blocks[plan->shape.levels]; b++) {
        const struct attnd_row_block *block = &plan->blocks[b];
        const double ns = (double)block->time_ns;

        if (block->tile_class != class)
            continue;
        seen.count++;
        seen.total_ns += ns;
        seen.longest_ns = larger(ns, seen.longest_ns);
        seen.shortest_ns = ns < seen.shortest_ns ? ns : seen.shortest_ns;
        seen.rows_max = block->row_count > seen.rows_max ? block->row_count : seen.rows_max;
        seen.keys += block->keys;
    }
    return seen;
}

static struct blocks_seen look(const struct attnd_plan *plan)
{
    const double heads = plan->shape.heads_kv, workers = plan->limits.target.tile_workers;
    struct blocks_seen seen = {.blocks = plan->level_blocks[plan->shape.levels]};
    double keys_read = 0;

    for (uint32_t class = 0; class < 2; class ++) {
        const struct class_seen of = look_at_class(plan, class);

        seen.count[class] = of.count;
        seen.total_ns[class] = of.total_ns;
        seen.longest_ns[class] = of.longest_ns;
        seen.shortest_ns[class] = of.shortest_ns;
        seen.rows_max = of.rows_max > seen.rows_max ? of.rows_max : seen.rows_max;
        if (class == ATTND_TILE_MEMORY)
            keys_read = of.keys;
    }
    seen.rows_max *= plan->shape.group;
    seen.load.compute_ns = seen.total_ns[ATTND_TILE_COMPUTE] * heads / workers;
    seen.load.memory_ns = (seen.total_ns[ATTND_TILE_MEMORY] - again_less(plan)) * heads / workers;
    seen.load.bytes_ns =
        larger(0, keys_read - plan->keys_again) * heads * attnd_plan_bytes_ns(plan);
    seen.stretch =
        seen.load.memory_ns > 0 ? larger(1, seen.load.bytes_ns / seen.load.memory_ns) : 1;
    return seen;
}

static double block_ns(const struct attnd_row_block *block, const struct blocks_seen *seen)
{
    return (double)block->time_ns * (block->tile_class == ATTND_TILE_MEMORY ? seen->stretch : 1);
}

uint32_t attnd_plan_split_parts(const struct attnd_plan *plan, const struct attnd_row_block *block,
                                const struct attnd_split *split)
{
    const uint32_t granule = plan->limits.target.kv_granule;
    const uint32_t shortest = granule > split->shortest ? granule : split->shortest;

    if (split->target_ns <= 0)
        return 1;
    double wanted = (double)block->time_ns / split->target_ns + split->round;
    uint32_t parts = shortest ? block->keys / shortest : 1; /* more are not worth it */
    if (parts > wanted)
        parts = (uint32_t)wanted;
    return parts ? parts : 1;
}

/* ---- one class, or one after the other ---- */

static struct attnd_split split_of(double target_ns, const struct blocks_seen *seen, uint32_t class,
                                   double round)
{
    const double stretch = class == ATTND_TILE_MEMORY ? seen->stretch : 1;

    return (struct attnd_split){target_ns / stretch, round, ATTND_SPLIT_KEYS_MIN};
}

static double part_of(const struct attnd_plan *plan, const struct blocks_seen *seen,
                      const struct attnd_row_block *block, const struct attnd_splits *splits,
                      uint32_t *parts)
{
    double ns = block_ns(block, seen);

    *parts = attnd_plan_split_parts(plan, block, &splits->of[block->tile_class]);
    if (*parts > 1 && block->tile_class == ATTND_TILE_COMPUTE)
        ns += *parts * attnd_plan_part_ns(plan, block->row_count * plan->shape.group,
                                          plan->shape.levels > 1);
    return ns / *parts;
}

static int alike(const struct attnd_row_block *a, const struct attnd_row_block *b)
{
    return a->tile_class == b->tile_class && a->row_count == b->row_count && a->keys == b->keys;
}

/* Blocks side by side that are alike need one look: the first of each run, into plan->order, which
 * is not used yet. Return: runs. */
static uint32_t find_runs(struct attnd_plan *plan, uint32_t blocks)
{
    uint32_t runs = 0;

    for (uint32_t b = 0; b < blocks; b++)
        if (!b || !alike(&plan->blocks[b - 1], &plan->blocks[b]))
            plan->order[runs++] = b;
    return runs;
}

/* When the last item is done, all blocks cut as @splits say. Two bounds, whichever is tighter:
 * items of the longest time end in whole waves; and longest first, an item begins when those before
 * it are shared out at the latest, so it ends one of its own time later. Items are in classes by
 * their time. */
static double finish_of(struct attnd_plan *plan, const struct blocks_seen *seen,
                        const struct attnd_splits *splits)
{
    const uint32_t workers = plan->limits.target.tile_workers;
    double longest = 0, class_ns[COST_CLASSES] = {0}, list = 0, before = 0;
    uint64_t tiles = 0, class_items[COST_CLASSES] = {0}, items = 0;

    for (uint32_t r = 0; r < seen->runs; r++) {
        const uint32_t b = plan->order[r];
        const uint32_t end = r + 1 < seen->runs ? plan->order[r + 1] : seen->blocks;
        uint32_t parts;
        const double ns = part_of(plan, seen, &plan->blocks[b], splits, &parts);

        plan->tile_ns[r] = (float)ns;
        plan->order_spare[r] = parts * (end - b);
        tiles += plan->order_spare[r];
        longest = larger(ns, longest);
    }
    const double scale = (COST_CLASSES - 1) / longest;
    for (uint32_t r = 0; r < seen->runs; r++) {
        const double ns = (double)plan->tile_ns[r];
        uint32_t class = (uint32_t)(ns * scale);

        class = class < COST_CLASSES ? class : COST_CLASSES - 1;
        class_ns[class] += ns * plan->order_spare[r];
        class_items[class] += (uint64_t)plan->order_spare[r] * plan->shape.heads_kv;
    }
    for (uint32_t c = COST_CLASSES; c-- > 0;) {
        before += class_ns[c] * plan->shape.heads_kv / workers;
        items += class_items[c];
        const double begin = items > workers ? before : 0; /* else each has a worker at once */
        const double end = begin + longest * (c + 1) / COST_CLASSES;
        list = class_ns[c] > 0 && end > list ? end : list;
    }
    const uint64_t waves = (tiles * plan->shape.heads_kv + workers - 1) / workers;
    const double even = (double)waves * longest;
    const double starts =
        splits->of[0].target_ns > 0 ? (double)waves * attnd_plan_start_ns(plan) : 0;
    return (even < list ? even : list) + starts;
}

/* Nothing is split if that comes out even. Else a worker's share is one part, because whatever is
 * split more finely pays more for its starts and merges; or two, three or four, if that much is
 * gained. */
static struct attnd_splits split_evenly(struct attnd_plan *plan, struct blocks_seen *seen)
{
    const uint32_t workers = plan->limits.target.tile_workers, heads = plan->shape.heads_kv;
    const double share = seen->load.compute_ns + seen->load.memory_ns * seen->stretch;
    const double longest = larger(seen->longest_ns[ATTND_TILE_COMPUTE],
                                  seen->longest_ns[ATTND_TILE_MEMORY] * seen->stretch);
    const uint64_t waves = ((uint64_t)seen->blocks * heads + workers - 1) / workers;
    struct attnd_splits chosen = {0};

    if ((double)waves * longest <= share * BALANCE_SLACK)
        return chosen; /* most batches: no second look at the blocks */
    seen->runs = find_runs(plan, seen->blocks);
    double best = finish_of(plan, seen, &chosen);
    if (best <= share * BALANCE_SLACK)
        return chosen;
    for (uint32_t i = 0; i < 2 * ATTND_SPLIT_TILES_PER_WORKER; i++) {
        const uint32_t parts = i / 2 + 1;
        const double round = i % 2 ? 0.5 : 0;
        const struct attnd_splits splits = {
            .of = {[ATTND_TILE_COMPUTE] = split_of(share / parts, seen, ATTND_TILE_COMPUTE, round),
                   [ATTND_TILE_MEMORY] = split_of(share / parts, seen, ATTND_TILE_MEMORY, round)}};
        const double finish = finish_of(plan, seen, &splits);

        if (finish < best * SPLIT_GAIN) {
            best = finish;
            chosen = splits;
        }
    }
    return chosen;
}

/* Memory-bound blocks at the end that are halved although the others are not split, and the second
 * half of them once more: those of the last wave, if all are alike. Workers do not get the same
 * share of the bandwidth, so such items end far apart, and the few that are left at the end do not
 * fill the memory. Parts come last, the smallest at the very end. */
static uint32_t halved_blocks(const struct attnd_plan *plan, const struct blocks_seen *seen)
{
    const uint32_t workers = plan->limits.target.tile_workers, heads = plan->shape.heads_kv;
    const uint64_t items = (uint64_t)seen->count[ATTND_TILE_MEMORY] * heads;

    if (workers < ATTND_HALVES_WORKERS_MIN || items <= workers ||
        seen->longest_ns[ATTND_TILE_MEMORY] / 2 > seen->shortest_ns[ATTND_TILE_MEMORY])
        return 0;
    const uint64_t last = (items - 1) % workers + 1;
    return (uint32_t)((last + heads - 1) / heads);
}

/* ---- both at once ---- */

/* Compute-bound items, each block in @parts of about the same time. */
struct compute_items {
    uint32_t parts;
    double count, longest_ns, shortest_ns, total_ns; /* of all KV heads */
};

static struct compute_items compute_items(const struct attnd_plan *plan,
                                          const struct blocks_seen *seen, uint32_t parts)
{
    const double heads = plan->shape.heads_kv, blocks = seen->count[ATTND_TILE_COMPUTE];
    const uint32_t rows_max = plan->limits.target.rows_per_tile;
    const uint32_t rows = seen->rows_max < rows_max ? seen->rows_max : rows_max;
    const double more = parts > 1 ? attnd_plan_part_ns(plan, rows, 0) : 0;

    return (struct compute_items){
        .parts = parts,
        .count = blocks * heads * parts,
        .longest_ns = seen->longest_ns[ATTND_TILE_COMPUTE] / parts + more,
        .shortest_ns = seen->shortest_ns[ATTND_TILE_COMPUTE] / parts + more,
        .total_ns = (seen->total_ns[ATTND_TILE_COMPUTE] + blocks * parts * more) * heads};
}

/* When they are done on @workers, in @waves if they are alike. */
static double compute_end(const struct compute_items *items, double waves, double workers)
{
    if (items->shortest_ns >= items->longest_ns * WAVES_ALIKE)
        return waves * items->longest_ns;
    return items->total_ns / workers + items->longest_ns / 2;
}

/* How fast @reading workers read, of how fast the memory is: a few as fast as each of them can,
 * many as fast as it, and @readers, who could just keep it busy, hinder each other a little. */
static double reading_speed(double reading, double readers)
{
    const double slower = readers / larger(reading, 1e-3), squared = slower * slower;

    return 1 / sqrt(sqrt(1 + squared * squared));
}

/* When all is done if compute-bound items keep @workers busy until @compute_ns, in @waves, and the
 * others read: @readers of them keep the memory busy on paper. Workers that the last wave leaves
 * over read, too, and readers that have nothing left to read help to compute. */
static double fused_end(const struct attnd_plan *plan, const struct blocks_seen *seen,
                        const struct compute_items *items, double workers, double waves,
                        double compute_ns, double readers)
{
    const double all = plan->limits.target.tile_workers;
    const double alone = larger(seen->load.bytes_ns, seen->load.memory_ns);
    const double last = items->count - (waves - 1) * workers;
    const double full_ns = compute_ns * (waves - 1) / waves;
    const double speed = reading_speed(all - workers, readers);
    double left_ns = alone - full_ns * speed;

    if (left_ns <= 0) {
        const double read_ns = alone / speed;
        const double rest_ns = items->total_ns - workers * read_ns;
        return read_ns + rest_ns / all + items->longest_ns / 2;
    }
    left_ns -= (compute_ns - full_ns) * reading_speed(all - last, readers);
    return compute_ns + larger(left_ns, 0);
}

/* The best share of workers for these compute-bound items, into plan->mix if all ends by a factor
 * of @gain earlier than at @best. @readers: workers that read as fast as all. Return: the end. */
static double best_share(struct attnd_plan *plan, const struct blocks_seen *seen,
                         const struct compute_items *items, double readers, double best,
                         double gain)
{
    const double workers = plan->limits.target.tile_workers;

    double computing = workers;

    for (double waves = ceil(items->count / (workers - 1)); computing > workers * COMPUTING_MIN;
         waves = ceil(waves * WAVES_STEP)) {
        computing = ceil(items->count / waves);
        const double compute_ns = compute_end(items, waves, computing);
        const double end = fused_end(plan, seen, items, computing, waves, compute_ns, readers);
        if (end >= best * gain)
            continue;
        best = end;
        gain = 1;
        plan->mix.compute_workers = computing;
        plan->mix.memory_workers = workers - computing;
        plan->mix.parts = items->parts;
    }
    return best;
}

/* The best shares of workers. Compute-bound blocks stay whole, or are halved where that fits more
 * workers; each half costs a start and a sum. Return: the end. */
static double best_mix(struct attnd_plan *plan, const struct blocks_seen *seen)
{
    const struct attnd_plan_load *load = &seen->load;
    const double workers = plan->limits.target.tile_workers;
    const double readers =
        load->bytes_ns > load->memory_ns ? workers * load->memory_ns / load->bytes_ns : workers;
    const struct compute_items whole = compute_items(plan, seen, 1),
                               half = compute_items(plan, seen, 2);
    double best = best_share(plan, seen, &whole, readers, INFINITY, 1);

    if (half.longest_ns >= FUSED_HALF_NS_MIN)
        best = best_share(plan, seen, &half, readers, best, FUSED_HALVES_GAIN);
    plan->mix.stretch = larger(1, plan->mix.memory_workers / readers);
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

/* As fine as the plan has tiles for, all alike: a few that stay whole would end last. */
static void coarsen(struct attnd_plan *plan, struct blocks_seen *seen, struct attnd_split *split)
{
    const uint64_t more = (uint64_t)seen->count[ATTND_TILE_COMPUTE] * (plan->mix.parts - 1);
    const uint64_t fits = plan->capacity.splits > more ? plan->capacity.splits - more : 0;

    seen->runs = find_runs(plan, seen->blocks);
    while (memory_splits(plan, seen, split) > fits)
        split->target_ns *= COARSER;
}

/* Return: 1 the batch is to be fused, with plan->mix and *splits for that. */
static int fuse(struct attnd_plan *plan, struct blocks_seen *seen, struct attnd_splits *splits)
{
    const enum attnd_plan_fusion fusion = plan->limits.target.fusion;
    const struct attnd_plan_load *load = &seen->load;
    const double serial = load->compute_ns + larger(load->memory_ns, load->bytes_ns);
    const double floor = larger(load->compute_ns + load->memory_ns, load->bytes_ns);

    if (fusion == ATTND_FUSION_OFF || !seen->count[0] || !seen->count[1] ||
        plan->limits.target.tile_workers < 2 ||
        (fusion == ATTND_FUSION_AUTO && floor > serial * FUSION_FLOOR))
        return 0;
    const double end = best_mix(plan, seen);
    if (fusion == ATTND_FUSION_AUTO && end > serial * FUSION_END)
        return 0;
    *splits = (struct attnd_splits){0};
    if (plan->mix.parts > 1)
        splits->of[ATTND_TILE_COMPUTE] = (struct attnd_split){
            seen->longest_ns[ATTND_TILE_COMPUTE] / plan->mix.parts, 0.5, ATTND_SPLIT_KEYS_MIN};
    splits->of[ATTND_TILE_MEMORY] =
        (struct attnd_split){larger(end / FUSED_ITEMS, FUSED_ITEM_NS_MIN) / plan->mix.stretch, 0.5,
                             ATTND_SPLIT_KEYS_MIN};
    coarsen(plan, seen, &splits->of[ATTND_TILE_MEMORY]);
    return 1;
}

/* A shared level's tiles are waited for by all that merge with them, and a worker that ends one
 * late has all its rows to merge. So a few blocks are cut for all workers to have one part at once,
 * and what the rows have of their own comes behind. Return: 0 if there are too many blocks for
 * that. */
static int spread_shared(const struct attnd_plan *plan, const struct blocks_seen *seen,
                         struct attnd_splits *splits)
{
    const uint64_t items = (uint64_t)seen->count[ATTND_TILE_COMPUTE] * plan->shape.heads_kv;
    const uint64_t parts = items ? plan->limits.target.tile_workers / items : 0;

    if (plan->shape.levels < 2 || !seen->count[ATTND_TILE_MEMORY] || parts < SPREAD_PARTS_MIN)
        return 0;
    *splits = (struct attnd_splits){0};
    splits->of[ATTND_TILE_COMPUTE] = (struct attnd_split){
        seen->longest_ns[ATTND_TILE_COMPUTE] / (double)parts, 0.5, ATTND_SPLIT_KEYS_MIN};
    return 1;
}

struct attnd_splits attnd_plan_choose_splits(struct attnd_plan *plan)
{
    struct blocks_seen seen = look(plan);
    struct attnd_splits splits = {0};

    plan->mix = (struct attnd_plan_mix){.classes = (seen.count[ATTND_TILE_COMPUTE] ? 1u : 0) +
                                                   (seen.count[ATTND_TILE_MEMORY] ? 1u : 0),
                                        .stretch = 1};
    if (spread_shared(plan, &seen, &splits))
        return splits;
    plan->mix.fused = (uint32_t)fuse(plan, &seen, &splits);
    if (!plan->mix.fused)
        splits = split_evenly(plan, &seen);
    const double target_ns = splits.of[ATTND_TILE_MEMORY].target_ns;
    if (plan->mix.fused ? seen.longest_ns[ATTND_TILE_MEMORY] < 1.5 * target_ns : target_ns <= 0)
        splits.halved = halved_blocks(plan, &seen);
    splits.halves =
        (struct attnd_split){seen.longest_ns[ATTND_TILE_MEMORY] / 2, 0.5, ATTND_HALVES_KEYS_MIN};
    splits.unhalved = seen.count[ATTND_TILE_MEMORY] - splits.halved;
    return splits;
}
