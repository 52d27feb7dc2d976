/*
 * split.c - how blocks are cut along KV.
 *
 * A worker takes queue items (tile x KV head) in the order of the plan, so a batch is well spread
 * when no item is large against a worker's share, or when the items happen to come out even. Only
 * if neither holds are blocks split, because a split is not free: its parts go through memory and
 * somebody merges them.
 *
 * Whether compute-bound and memory-bound blocks of a batch are in work at once, and how they are
 * cut for that, is asked of fuse.c first.
 */
#include "persistent/plan/split.h"
#include "persistent/plan/times.h"

#include <math.h>

/* Unsplit is good enough when it is at most 1/8 slower than perfect. */
#define BALANCE_SLACK 1.125
/* A finer split must end by this much earlier. */
#define SPLIT_GAIN 0.95
/* Parts of a block whose merge is one trip to memory (merge_batch of cuda/items/merge.cuh). */
#define MERGED_AT_ONCE 16u
/* A shared level is spread over all workers if each of its blocks can have so many parts. */
#define SPREAD_PARTS_MIN 4u

#define COST_CLASSES 32u

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
        seen.longest_ns = attnd_larger(ns, seen.longest_ns);
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
        attnd_larger(0, keys_read - plan->keys_again) * heads * attnd_plan_bytes_ns(plan);
    seen.stretch =
        seen.load.memory_ns > 0 ? attnd_larger(1, seen.load.bytes_ns / seen.load.memory_ns) : 1;
    return seen;
}

static double block_ns(const struct attnd_row_block *block, const struct blocks_seen *seen)
{
    return (double)block->time_ns * (block->tile_class == ATTND_TILE_MEMORY ? seen->stretch : 1);
}

/* Parts of a block, at most, where whoever arrives last merges all of them: that is not to take
 * longer than a part. Of few rows it is one trip to memory up to a number of parts; and the merge
 * of latents is fastest with a power of two (cuda/items/merge_wide.cuh). */
static double parts_max(const struct attnd_plan *plan, const struct attnd_row_block *block)
{
    const double merged_ns = block->row_count * plan->shape.group * plan->times.merge_row_ns;
    const double at_once = block->tile_class == ATTND_TILE_MEMORY ? MERGED_AT_ONCE : 1;

    const double most = attnd_larger(at_once, sqrt((double)block->time_ns / merged_ns));
    double power = 1;

    if (!plan->times.merges_many)
        return most;
    while (2 * power <= most && power < 1024)
        power *= 2;
    return power;
}

static int merged_by_one(const struct attnd_plan *plan, const struct attnd_row_block *block)
{
    return plan->limits.target.rates.rows_step > 1 &&
           (block->tile_class == ATTND_TILE_MEMORY || plan->times.merges_many);
}

uint32_t attnd_plan_split_parts(const struct attnd_plan *plan, const struct attnd_row_block *block,
                                const struct attnd_split *split)
{
    const uint32_t granule = plan->limits.target.kv_granule;
    const uint32_t shortest = granule > split->shortest ? granule : split->shortest;

    if (split->target_ns <= 0)
        return 1;
    double wanted = (double)block->time_ns / split->target_ns + split->round;
    if (merged_by_one(plan, block))
        wanted = attnd_smaller(wanted, parts_max(plan, block));
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

uint32_t attnd_plan_find_runs(struct attnd_plan *plan, uint32_t blocks)
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
        longest = attnd_larger(ns, longest);
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
    const double wave_ns =
        seen->count[ATTND_TILE_COMPUTE] ? plan->times.start_ns : plan->times.wave_ns;
    const double starts = splits->of[0].target_ns > 0 ? (double)waves * wave_ns : 0;
    return (even < list ? even : list) + starts;
}

/* Nothing is split if that comes out even. Else a worker's share is one part, because whatever is
 * split more finely pays more for its starts and merges; or two, three or four, if that much is
 * gained. */
static struct attnd_splits split_evenly(struct attnd_plan *plan, struct blocks_seen *seen)
{
    const uint32_t workers = plan->limits.target.tile_workers, heads = plan->shape.heads_kv;
    const double share = seen->load.compute_ns + seen->load.memory_ns * seen->stretch;
    const double longest = attnd_larger(seen->longest_ns[ATTND_TILE_COMPUTE],
                                        seen->longest_ns[ATTND_TILE_MEMORY] * seen->stretch);
    const uint64_t waves = ((uint64_t)seen->blocks * heads + workers - 1) / workers;
    struct attnd_splits chosen = {0};

    if ((double)waves * longest <= share * BALANCE_SLACK)
        return chosen; /* most batches: no second look at the blocks */
    seen->runs = attnd_plan_find_runs(plan, seen->blocks);
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

/* ---- which of these ---- */

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
    plan->mix.fused = (uint32_t)attnd_plan_fuse(plan, &seen, &splits);
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
