/*
 * order.c - tiles by cost, largest first, in linear time.
 *
 * A radix sort over the four bytes of the cost, least significant first. It is stable, so tiles of
 * equal cost stay in the order of rows and lengths, which keeps the tiles of one shared prefix
 * together; and a byte that is the same in all costs (the high ones, mostly) costs no pass.
 */
#include "persistent/plan/private.h"

#include <string.h>

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

void attnd_plan_order_tiles(struct attnd_plan *plan)
{
    const uint32_t count = plan->shape.tiles;
    uint32_t bucket[DIGITS][BUCKETS];
    uint32_t *order = plan->order, *spare = plan->order_spare;

    memset(bucket, 0, sizeof(bucket));
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
        for (uint32_t d = 0; d < DIGITS; d++)
            bucket[d][bucket_of(plan->built[i].cost, d)]++;
    }
    for (uint32_t d = 0; d < DIGITS; d++) {
        if (!count || bucket[d][bucket_of(plan->built[0].cost, d)] == count)
            continue;
        count_to_position(bucket[d]);
        for (uint32_t i = 0; i < count; i++)
            spare[bucket[d][bucket_of(plan->built[order[i]].cost, d)]++] = order[i];
        uint32_t *sorted = spare;
        spare = order;
        order = sorted;
    }
    for (uint32_t i = 0; i < count; i++)
        plan->tiles[i] = plan->built[order[i]];
}
