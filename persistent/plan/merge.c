/*
 * merge.c - what is added up: partial rows for tiles, and merges for rows.
 *
 * Each level's blocks lie in row order, so one walk over the rows with a cursor a level meets every
 * segment: a maximal run of rows that the same blocks cover. A first walk marks the blocks that
 * share a row with another level's; the tiles of these and of split blocks are partial, all others
 * write o and lse directly. A second walk makes a merge of each segment that partial tiles cover
 * and lists its parts, by level and then by kv_begin, so results add up in one order, in any order
 * of arrival.
 *
 * Levels may partition the rows differently. A block can then share some rows and be alone on
 * others; it is partial as a whole, and where it is alone the merge has a single part.
 */
#include "persistent/plan/steps.h"

#include <assert.h>
#include <string.h>

struct row_walk {
    uint32_t row_end;                  /* of the batch */
    uint32_t levels;                   /* that have a block at all, packed */
    uint32_t next[ATTND_LEVELS_MAX];   /* cursor: first block that ends behind the segment */
    uint32_t blocks[ATTND_LEVELS_MAX]; /* end of the level's blocks */
    /* the current segment */
    uint32_t begin, end;
    uint32_t covers;
    uint32_t cover[ATTND_LEVELS_MAX]; /* blocks over it, by level */
};

static struct row_walk walk_rows(const struct attnd_plan *plan)
{
    struct row_walk walk = {.row_end = plan->shape.rows};

    for (uint32_t l = 0; l < plan->shape.levels; l++) {
        if (plan->level_blocks[l] == plan->level_blocks[l + 1])
            continue;
        walk.next[walk.levels] = plan->level_blocks[l];
        walk.blocks[walk.levels++] = plan->level_blocks[l + 1];
    }
    return walk;
}

/* Moves to the next segment; 0 when there is none. */
static int walk_next(const struct attnd_plan *plan, struct row_walk *walk)
{
    walk->begin = walk->end;
    if (walk->begin == walk->row_end)
        return 0;
    walk->end = walk->row_end;
    walk->covers = 0;
    for (uint32_t l = 0; l < walk->levels; l++) {
        const struct attnd_row_block *block = &plan->blocks[walk->next[l]];

        if (walk->next[l] < walk->blocks[l] && block->row_begin + block->row_count == walk->begin)
            block = &plan->blocks[++walk->next[l]];
        if (walk->next[l] == walk->blocks[l])
            continue;
        uint32_t edge = block->row_begin; /* between blocks, where the level adds nothing */
        if (edge <= walk->begin) {
            walk->cover[walk->covers++] = walk->next[l];
            edge += block->row_count;
        }
        walk->end = edge < walk->end ? edge : walk->end;
    }
    assert(walk->covers > 0 && walk->end > walk->begin);
    return 1;
}

static void mark_shared(struct attnd_plan *plan)
{
    struct row_walk walk = walk_rows(plan);

    if (walk.levels < 2)
        return;
    while (walk_next(plan, &walk))
        for (uint32_t c = 0; walk.covers > 1 && c < walk.covers; c++)
            plan->blocks[walk.cover[c]].partial = 1;
}

static void assign_partials(struct attnd_plan *plan)
{
    uint32_t rows = 0;

    for (uint32_t b = 0; b < plan->level_blocks[plan->shape.levels]; b++) {
        const struct attnd_row_block *block = &plan->blocks[b];

        for (uint32_t t = 0; block->partial && t < block->tile_count; t++) {
            plan->built[block->tile_begin + t].partial = rows;
            rows += block->row_count;
        }
    }
    assert(rows <= plan->capacity.partial_rows);
    plan->shape.partial_rows = rows;
}

/* The merge over the current segment; its parts come from @part_begin on. */
static struct attnd_merge merge_of(const struct attnd_plan *plan, const struct row_walk *walk,
                                   uint32_t part_begin)
{
    struct attnd_merge merge = {walk->begin, walk->end - walk->begin, part_begin, 0};

    for (uint32_t c = 0; c < walk->covers; c++)
        merge.part_count += plan->blocks[walk->cover[c]].tile_count;
    return merge;
}

/* Lists the tiles of @block as parts of merge number @index; returns parts so far. */
static uint32_t list_parts(struct attnd_plan *plan, const struct attnd_row_block *block,
                           const struct attnd_merge *merge, uint32_t index, uint32_t parts)
{
    for (uint32_t t = 0; t < block->tile_count; t++) {
        struct attnd_tile *tile = &plan->built[block->tile_begin + t];

        if (tile->merge_count++ == 0) {
            tile->merge_begin = index;
            tile->first_merge = *merge;
        }
        plan->merge_parts[parts++] = tile->partial + (merge->row_begin - block->row_begin);
    }
    return parts;
}

/* Parts of one block and of nothing else: a worker may add them up in pairs. Not those of fixed
 * splits: how many there are follows from pages that are reserved for all requests, and the order
 * of a sum must not. */
static void mark_alone(struct attnd_plan *plan, const struct row_walk *walk,
                       const struct attnd_merge *merge)
{
    const struct attnd_row_block *block = &plan->blocks[walk->cover[0]];

    if (plan->shape.options & ATTND_OPTION_FIXED_SPLIT || walk->covers != 1 ||
        block->row_begin != merge->row_begin || block->row_count != merge->row_count ||
        merge->part_count > ATTND_PARTS_ALONE_MAX)
        return;
    for (uint32_t t = 0; t < block->tile_count; t++)
        plan->built[block->tile_begin + t].parts_alone = 1;
}

/* Of one level each block is a segment. */
static void count_of_blocks(struct attnd_plan *plan)
{
    for (uint32_t b = 0; b < plan->level_blocks[plan->shape.levels]; b++) {
        plan->shape.merges += plan->blocks[b].partial;
        plan->shape.parts += plan->blocks[b].partial ? plan->blocks[b].tile_count : 0;
    }
}

void attnd_plan_count_merges(struct attnd_plan *plan)
{
    struct row_walk walk = walk_rows(plan);

    mark_shared(plan);
    assign_partials(plan);
    plan->shape.merges = plan->shape.parts = 0;
    if (walk.levels < 2) {
        count_of_blocks(plan);
    } else {
        while (plan->shape.partial_rows && walk_next(plan, &walk)) {
            if (!plan->blocks[walk.cover[0]].partial)
                continue;
            plan->shape.merges++;
            plan->shape.parts += merge_of(plan, &walk, 0).part_count;
        }
    }
    assert(plan->shape.merges <= plan->capacity.merges &&
           plan->shape.parts <= plan->capacity.partial_rows);
}

void attnd_plan_build_merges(struct attnd_plan *plan)
{
    struct row_walk walk = walk_rows(plan);
    uint32_t merges = 0, parts = 0;

    while (plan->shape.partial_rows && walk_next(plan, &walk)) {
        if (!plan->blocks[walk.cover[0]].partial)
            continue;
        const struct attnd_merge merge = merge_of(plan, &walk, parts);
        for (uint32_t c = 0; c < walk.covers; c++)
            parts = list_parts(plan, &plan->blocks[walk.cover[c]], &merge, merges, parts);
        mark_alone(plan, &walk, &merge);
        plan->merges[merges++] = merge;
    }
    assert(merges == plan->shape.merges && parts == plan->shape.parts);
}
