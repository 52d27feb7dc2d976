/*
 * order.c - tiles by cost, largest first, in linear time; of a fused plan each class by itself.
 *
 * A radix sort over the four bytes of the cost, least significant first. It is stable, so tiles of
 * equal cost stay in the order of rows and lengths, which keeps the tiles of one shared prefix
 * together; and a byte that is the same in all costs (the high ones, mostly) costs no pass.
 *
 * Of a long plan not all KV heads are in work at once (cuda/items/item.cuh), and the longest tiles
 * of the last ones begin late. Where a few tiles take far longer than most, all heads are: the
 * short ones would not even that out.
 *
 * Workers never wait. Of a fused plan some of them take compute-bound tiles and the others
 * memory-bound ones, as many as fuse.c found, each class in its order; and where a class is over,
 * all take the other. Of compute-bound blocks those that are whole come first, whatever they cost:
 * their parts are shorter, and fill the end.
 */
#include "persistent/plan/steps.h"

#include <string.h>

/* A tile that takes so many times the mean is far longer. */
#define UNEVEN 4u

#define DIGITS 4u
#define BUCKETS 256u

/* Descending: the bucket of a larger digit comes first. */
static uint32_t bucket_of(uint32_t cost, uint32_t digit)
{
    return BUCKETS - 1 - (cost >> (8 * digit) & (BUCKETS - 1));
}

static void count_to_position(uint32_t *bucket)
{
    uint32_t next = 0;

    for (uint32_t b = 0; b < BUCKETS; b++) {
        uint32_t here = bucket[b];
        bucket[b] = next;
        next += here;
    }
}

/* Return: the tiles by cost, in one of the two arrays; the other is free. */
static uint32_t *sort_by_cost(struct attnd_plan *plan)
{
    const uint32_t count = plan->shape.tiles;
    uint32_t bucket[BUCKETS], differ = 0;
    uint32_t *order = plan->order, *spare = plan->order_spare;

    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
        differ |= plan->built[i].cost ^ plan->built[0].cost;
    }
    for (uint32_t d = 0; d < DIGITS; d++) {
        if (!(differ >> (8 * d) & (BUCKETS - 1)))
            continue;
        memset(bucket, 0, sizeof(bucket));
        for (uint32_t i = 0; i < count; i++)
            bucket[bucket_of(plan->built[i].cost, d)]++;
        count_to_position(bucket);
        for (uint32_t i = 0; i < count; i++)
            spare[bucket[bucket_of(plan->built[order[i]].cost, d)]++] = order[i];
        uint32_t *sorted = spare;
        spare = order;
        order = sorted;
    }
    return order;
}

/* Where a tile of a fused plan stands: whole compute-bound blocks, their parts, the rest. */
enum place { WHOLE, PART, REST };

/* A part of a block has another beside it: it begins later, or ends before what is open. */
static enum place place_of(const struct attnd_plan *plan, const struct attnd_tile *tile)
{
    if (tile->tile_class != ATTND_TILE_COMPUTE)
        return REST;
    const int first = tile->kv_begin == plan->state[tile->entry].keys_begin;
    return first && tile->kv_end == ATTND_KV_OPEN ? WHOLE : PART;
}

/* The tiles of @place into @to, from number @next on. Return: the number behind them. */
static uint32_t take_place(const struct attnd_plan *plan, enum place place, const uint32_t *sorted,
                           uint32_t *to, uint32_t next)
{
    for (uint32_t i = 0; i < plan->shape.tiles; i++)
        if (place_of(plan, &plan->built[sorted[i]]) == place)
            to[next++] = sorted[i];
    return next;
}

/* @first: the dearest tile. */
static int is_uneven(const struct attnd_plan *plan, uint32_t first)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < plan->shape.tiles; i++)
        sum += plan->built[i].cost;
    return plan->shape.tiles &&
           (uint64_t)plan->built[first].cost * plan->shape.tiles > UNEVEN * sum;
}

void attnd_plan_order_tiles(struct attnd_plan *plan)
{
    uint32_t *sorted = sort_by_cost(plan);

    plan->shape.compute_tiles = plan->shape.compute_workers = plan->shape.whole_tiles = 0;
    if (plan->mix.fused) {
        uint32_t *placed = sorted == plan->order ? plan->order_spare : plan->order;
        const uint32_t whole = take_place(plan, WHOLE, sorted, placed, 0);
        const uint32_t computes = take_place(plan, PART, sorted, placed, whole);
        (void)take_place(plan, REST, sorted, placed, computes);
        plan->shape.whole_tiles = (uint16_t)whole;
        plan->shape.compute_tiles = computes;
        plan->shape.compute_workers = (uint16_t)plan->mix.compute_workers;
        sorted = placed;
    } else if (is_uneven(plan, sorted[0])) {
        plan->shape.flags |= ATTND_PLAN_ONE_PASS;
    }
    for (uint32_t i = 0; i < plan->shape.tiles; i++)
        plan->tiles[i] = plan->built[sorted[i]];
}
