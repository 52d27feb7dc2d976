/*
 * share.c - equal leading pages within a batch, found and read once.
 *
 * Requests that begin with the same prompt name the same pages in front. A batch of one level does
 * not say so; the planner sees it. Neighbours whose lists begin alike form intervals, and intervals
 * nest: each has as many leading pages in common as its least equal pair of neighbours. This is a
 * tree (of longest common prefixes), found in one pass with a stack. Whether an interval's keys are
 * read once for all its rows is decided from the root on: it must save more time of all workers
 * than its partials cost. What is not read once there is left to the intervals inside.
 *
 * An interval that is used becomes an entry of a level of its own in front of the batch's. It has
 * the pages of its first request, which are not copied. The batch's entries keep their pages and
 * lengths; their tiles begin behind what is read for them. So an advance changes them as ever, and
 * shared keys stay what they are.
 *
 * Only whole pages are shared that hold no query row's own key, so nothing is shared that a row
 * does not see, or that an append of this batch writes.
 */
#include "persistent/plan/steps.h"
#include "persistent/plan/times.h"

#include <string.h>

/* What a level costs beside its partials: its tiles are waited for by those that merge. */
#define LEVEL_NS 24000.0
/* What an interval saves at least. */
#define NODE_NS 1000.0
/* Pages compared at once. */
#define STEP 64u

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t rows_of(const struct attnd_level_view *level, uint32_t r)
{
    return (uint32_t)(level->qo_indptr[r + 1] - level->qo_indptr[r]);
}

/* Leading pages that request @r may share. */
static uint32_t sharable(const struct attnd_plan *plan, const struct attnd_level_view *level,
                         uint32_t r)
{
    const uint32_t length = (uint32_t)attnd_level_keys(level, r, plan->pool.page_size);
    const uint32_t rows = rows_of(level, r);

    return length > rows ? (length - rows) / plan->pool.page_size : 0;
}

/* Pages that @a and @b have in common in front, at most @most. */
static uint32_t common(const int32_t *a, const int32_t *b, uint32_t most)
{
    uint32_t pages = 0;

    for (uint32_t step = STEP; step; step /= 8)
        while (pages + step <= most && !memcmp(a + pages, b + pages, step * sizeof(*a)))
            pages += step;
    return pages;
}

/* Whole granules of keys in @pages: tiles begin there. */
static uint32_t whole_keys(const struct attnd_plan *plan, uint32_t pages)
{
    const uint32_t page_size = plan->pool.page_size, granule = plan->limits.target.kv_granule;
    uint64_t keys = (uint64_t)pages * page_size;

    while (keys % granule)
        keys -= page_size;
    return keys < INT32_MAX ? (uint32_t)keys : 0;
}

/* ---- the tree ---- */

struct stack {
    uint32_t node[ATTND_SHARED_OPEN_MAX];
    uint32_t depth, nodes;
};

/* Closes open intervals that have more keys in common than @keys; request @end begins another.
 * Return: where an interval of @keys begins that holds the last of those. */
static uint32_t close_to(struct attnd_plan *plan, struct stack *stack, uint32_t keys, uint32_t end,
                         uint32_t begin)
{
    while (stack->depth && plan->nodes[stack->node[stack->depth - 1]].keys > keys) {
        struct attnd_shared_node *node = &plan->nodes[stack->node[--stack->depth]];
        node->end = end;
        begin = node->begin;
    }
    return begin;
}

/* Neighbours @end - 1 and @end have @keys in common. Intervals too many for their places are left
 * out; what they have in common is then read by each. */
static void take_pair(struct attnd_plan *plan, struct stack *stack, uint32_t keys, uint32_t end)
{
    const uint32_t begin = close_to(plan, stack, keys, end, end - 1);
    const uint32_t open = stack->depth ? plan->nodes[stack->node[stack->depth - 1]].keys : 0;

    if (keys <= open || stack->depth == ATTND_SHARED_OPEN_MAX ||
        stack->nodes == plan->capacity.shared)
        return;
    plan->nodes[stack->nodes] = (struct attnd_shared_node){.begin = begin, .keys = keys};
    stack->node[stack->depth++] = stack->nodes++;
}

/* Return: intervals, inner ones before or behind outer ones; their nesting follows from keys. */
static uint32_t find_intervals(struct attnd_plan *plan, const struct attnd_level_view *level)
{
    struct stack stack = {.depth = 0};

    for (uint32_t r = 1; r < level->entries; r++) {
        const int32_t *a = level->kv_indices + level->kv_indptr[r - 1];
        const int32_t *b = level->kv_indices + level->kv_indptr[r];
        uint32_t keys = 0;

        if (level->kv_indptr[r + 1] > level->kv_indptr[r] &&
            level->kv_indptr[r] > level->kv_indptr[r - 1] && a[0] == b[0]) {
            const uint32_t most = smaller(sharable(plan, level, r - 1), sharable(plan, level, r));
            keys = whole_keys(plan, common(a, b, most));
        }
        take_pair(plan, &stack, keys, r);
    }
    (void)close_to(plan, &stack, 0, level->entries, 0);
    return stack.nodes;
}

/* ---- what pays ---- */

/* Time of all workers for a key of each request, summed over requests: all but one of those that
 * have it in common read it of the L2. */
static void sum_key_ns(struct attnd_plan *plan, const struct attnd_level_view *level)
{
    const uint32_t group = plan->shape.group, tile = plan->limits.target.rows_per_tile;
    const uint32_t tokens = tile > group ? tile / group : 1;

    plan->key_ns[0] = 0;
    for (uint32_t r = 0; r < level->entries; r++) {
        const uint32_t rows = rows_of(level, r);
        const uint32_t full = rows / tokens;
        double ns = full * attnd_plan_again_ns(plan, tokens * group);
        if (rows % tokens)
            ns += attnd_plan_again_ns(plan, rows % tokens * group);
        plan->key_ns[r + 1] = plan->key_ns[r] + ns;
    }
}

/* What it saves to read an interval's keys once, of the time that all workers take; 0: nothing. */
static double saved_ns(const struct attnd_plan *plan, const struct attnd_level_view *level,
                       const struct attnd_shared_node *node)
{
    const uint32_t group = plan->shape.group, tile = plan->limits.target.rows_per_tile;
    const uint32_t tokens = tile > group ? tile / group : 1;
    const uint32_t rows = (uint32_t)(level->qo_indptr[node->end] - level->qo_indptr[node->begin]);
    const double workers = plan->limits.target.tile_workers, heads = plan->shape.heads_kv;
    const double keys = node->keys - node->keys_begin;
    const double alone = plan->key_ns[node->end] - plan->key_ns[node->begin];

    if (!rows || node->end - node->begin < 2 || keys < ATTND_SPLIT_KEYS_MIN)
        return 0;
    const uint32_t blocks = (rows + tokens - 1) / tokens;
    const double block_ns = attnd_plan_key_ns(plan, (blocks > 1 ? tokens : rows) * group);
    /* Parts of a block, and one more for what each row has of its own. */
    double parts = workers / (blocks * heads);
    parts = parts > keys / ATTND_SPLIT_KEYS_MIN ? keys / ATTND_SPLIT_KEYS_MIN : parts;
    parts = (parts < 1 ? 1 : parts) + 1;
    const double cost_ns =
        (keys * blocks * block_ns + parts * attnd_plan_part_ns(plan, rows * group, 1)) * heads /
        workers;
    return keys * alone * heads / workers - cost_ns;
}

/* Outer intervals before inner ones: by where they begin, the longer one first. */
static int comes_before(const struct attnd_shared_node *a, const struct attnd_shared_node *b)
{
    return a->begin != b->begin ? a->begin < b->begin : a->end > b->end;
}

static void sift(struct attnd_shared_node *nodes, uint32_t at, uint32_t count)
{
    for (uint32_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && comes_before(&nodes[child], &nodes[child + 1]);
        if (!comes_before(&nodes[at], &nodes[child]))
            return;
        const struct attnd_shared_node node = nodes[at];
        nodes[at] = nodes[child];
        nodes[child] = node;
        at = child;
    }
}

/* By a heap: in place, and no batch makes it slow. */
static void sort_nodes(struct attnd_shared_node *nodes, uint32_t count)
{
    for (uint32_t i = count / 2; i-- > 0;)
        sift(nodes, i, count);
    for (uint32_t left = count; left-- > 1;) {
        const struct attnd_shared_node last = nodes[left];
        nodes[left] = nodes[0];
        nodes[0] = last;
        sift(nodes, 0, left);
    }
}

/* Uses the intervals that save more than their level asks for. Return: how many levels these make;
 * @saved: what each level saves. */
static uint32_t use(struct attnd_plan *plan, const struct attnd_level_view *level, uint32_t count,
                    const double least_ns[ATTND_SHARED_LEVELS], double saved[ATTND_SHARED_LEVELS])
{
    struct attnd_shared_node *nodes = plan->nodes;
    uint32_t open[ATTND_SHARED_LEVELS], depth = 0, levels = 0;

    memset(saved, 0, ATTND_SHARED_LEVELS * sizeof(*saved));
    for (uint32_t i = 0; i < count; i++) {
        struct attnd_shared_node *node = &nodes[i];
        while (depth && nodes[open[depth - 1]].end <= node->begin)
            depth--;
        node->keys_begin = depth ? nodes[open[depth - 1]].keys : 0;
        node->depth = depth;
        const double ns = depth < ATTND_SHARED_LEVELS ? saved_ns(plan, level, node) : 0;
        node->used = depth < ATTND_SHARED_LEVELS && ns > least_ns[depth];
        if (!node->used)
            continue;
        saved[depth] += ns;
        open[depth++] = i;
        levels = depth > levels ? depth : levels;
    }
    return levels;
}

/* A level costs what it costs, however many intervals it has. So each saves a little at least; and
 * where all of a level do not pay for it together, those that are used do so alone. Return: levels
 * of intervals that are used. */
static uint32_t choose(struct attnd_plan *plan, const struct attnd_level_view *level,
                       uint32_t count)
{
    double least_ns[ATTND_SHARED_LEVELS], saved[ATTND_SHARED_LEVELS];
    uint32_t levels, d;

    for (d = 0; d < ATTND_SHARED_LEVELS; d++)
        least_ns[d] = NODE_NS;
    for (;;) {
        levels = use(plan, level, count, least_ns, saved);
        for (d = 0; d < levels && saved[d] > LEVEL_NS;)
            d++;
        if (d == levels)
            return levels;
        least_ns[d] = LEVEL_NS;
    }
}

/* Memory-bound requests of an interval but the first: those read of the L2 what it has in common.
 */
static double again_in(const struct attnd_plan *plan, const struct attnd_level_view *level,
                       const struct attnd_shared_node *node)
{
    double requests = 0;

    for (uint32_t r = node->begin; r < node->end; r++)
        requests += rows_of(level, r) * plan->shape.group <= ATTND_TILE_MEMORY_ROWS;
    return requests > 1 ? requests - 1 : 0;
}

/* Keys of intervals that are not used: the memory has them once, whoever reads them. Nodes are
 * sorted; as many are open at a time as find_intervals() had open. */
static double count_again(const struct attnd_plan *plan, const struct attnd_level_view *level,
                          uint32_t count)
{
    const struct attnd_shared_node *open[ATTND_SHARED_OPEN_MAX];
    double keys = 0;
    uint32_t depth = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct attnd_shared_node *node = &plan->nodes[i];
        while (depth && open[depth - 1]->end <= node->begin)
            depth--;
        const uint32_t outside = depth ? open[depth - 1]->keys : 0;
        if (!node->used && node->keys > outside)
            keys += again_in(plan, level, node) * (node->keys - outside);
        if (depth < ATTND_SHARED_OPEN_MAX)
            open[depth++] = node;
    }
    return keys;
}

/* Those that are used, in front; by level, then by row. */
static uint32_t keep_used(struct attnd_plan *plan, uint32_t count, uint32_t levels)
{
    struct attnd_shared_node *nodes = plan->nodes, *kept = nodes + plan->capacity.shared;
    uint32_t used = 0;

    for (uint32_t l = 0; l < levels; l++)
        for (uint32_t i = 0; i < count; i++)
            if (nodes[i].used && nodes[i].depth == l)
                kept[used++] = nodes[i];
    memcpy(nodes, kept, used * sizeof(*nodes));
    return used;
}

/* Options that ask neither where a row stands among all its keys, nor how those are split. */
#define OPTIONS_SHARED                                                                             \
    (ATTND_OPTION_SOFT_CAP | ATTND_OPTION_SINKS | ATTND_OPTION_SCALES | ATTND_OPTION_HEAD_SCALES)

static int looked_for(const struct attnd_plan *plan, const struct attnd_batch_view *batch)
{
    const enum attnd_plan_cascade cascade = plan->limits.target.cascade;

    return plan->capacity.shared && batch->levels == 1 && !(batch->options & ~OPTIONS_SHARED) &&
           (cascade == ATTND_CASCADE_AUTO ||
            (cascade == ATTND_CASCADE_HINT && batch->flags & ATTND_BATCH_SHARED_PAGES));
}

void attnd_plan_share(struct attnd_plan *plan, const struct attnd_batch_view *batch)
{
    const struct attnd_level_view *level = &batch->level[0];

    plan->shared = plan->shared_levels = 0;
    plan->keys_again = 0;
    if (!looked_for(plan, batch))
        return;
    const uint32_t count = find_intervals(plan, level);
    if (!count)
        return;
    sum_key_ns(plan, level);
    sort_nodes(plan->nodes, count);
    const uint32_t levels = choose(plan, level, count);
    plan->keys_again = count_again(plan, level, count);
    plan->shared = keep_used(plan, count, levels);
    plan->shared_levels = levels;
    plan->shape.levels += levels;
    plan->shape.entries += plan->shared;
}

void attnd_plan_share_entries(struct attnd_plan *plan)
{
    const uint64_t head_bytes =
        (uint64_t)attnd_dtype_bytes(plan->pool.dtype) * (plan->pool.dim_qk + plan->pool.dim_vo);

    plan->found.shared_groups = plan->shared;
    for (uint32_t i = 0; i < plan->shared; i++) {
        const struct attnd_shared_node *node = &plan->nodes[i];
        struct attnd_entry_state *first = &plan->state[plan->shared + node->begin];
        const struct attnd_entry_state *last = &plan->state[plan->shared + node->end - 1];
        const uint32_t row_end = last->entry.row_begin + last->entry.row_count;
        const uint32_t pages = node->keys / plan->pool.page_size;

        plan->state[i] = (struct attnd_entry_state){
            .entry = {.row_begin = first->entry.row_begin,
                      .row_count = row_end - first->entry.row_begin,
                      .page_begin = first->entry.page_begin,
                      .page_count = pages,
                      .level = node->depth},
            .pages_used = pages,
            .kv_len = node->keys,
            .keys_begin = node->keys_begin,
            .page = first->page,
        };
        for (uint32_t r = node->begin; r < node->end; r++)
            plan->state[plan->shared + r].keys_begin = node->keys;
        plan->found.bytes_saved += (uint64_t)(node->end - node->begin - 1) *
                                   (node->keys - node->keys_begin) * head_bytes *
                                   plan->shape.heads_kv;
    }
}
