/*
 * order.c - tiles by cost, largest first, in linear time; and two classes side by side.
 *
 * A radix sort over the four bytes of the cost, least significant first. It is stable, so tiles of
 * equal cost stay in the order of rows and lengths, which keeps the tiles of one shared prefix
 * together; and a byte that is the same in all costs (the high ones, mostly) costs no pass.
 *
 * Workers take tiles in their order and never wait, so the order decides what is in work at once.
 * Of a fused plan each class is imagined on workers of its own, as many as split.c found, and a
 * tile begins there when the one ends that as many items before it began. The two classes are
 * merged by these beginnings. Where times turn out otherwise, a free worker takes what is next all
 * the same.
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

/* Return: the tiles by cost, in one of the two arrays; the other is free. */
static uint32_t *sort_by_cost(struct attnd_plan *plan)
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
    return order;
}

/* The tiles of one class, and as many workers. */
struct line {
    const uint32_t *tiles; /* by cost */
    uint32_t count, next;
    double back; /* tiles that are in work at once */
    double stretch;
    float *end_ns; /* [count] */
};

static float begin_of(const struct line *line)
{
    return line->next < line->back ? 0 : line->end_ns[(uint32_t)((double)line->next - line->back)];
}

static uint32_t take_next(const struct attnd_plan *plan, struct line *line)
{
    const uint32_t tile = line->tiles[line->next];

    line->end_ns[line->next] = begin_of(line) + plan->tile_ns[tile] * (float)line->stretch;
    line->next++;
    return tile;
}

/* Both classes of @sorted side by side. @spare: as long. Return: the order. */
static const uint32_t *interleave(struct attnd_plan *plan, uint32_t *sorted, uint32_t *spare)
{
    const struct attnd_plan_mix *mix = &plan->mix;
    const uint32_t count = plan->shape.tiles;
    uint32_t computes = 0, memories = 0;

    for (uint32_t i = 0; i < count; i++)
        if (plan->built[sorted[i]].tile_class == ATTND_TILE_COMPUTE)
            spare[computes++] = sorted[i];
    for (uint32_t i = 0; i < count; i++)
        if (plan->built[sorted[i]].tile_class == ATTND_TILE_MEMORY)
            spare[computes + memories++] = sorted[i];
    struct line compute = {.tiles = spare,
                           .count = computes,
                           .back = mix->compute_workers / plan->shape.heads_kv,
                           .stretch = 1,
                           .end_ns = plan->end_ns};
    struct line memory = {.tiles = spare + computes,
                          .count = memories,
                          .back = mix->memory_workers / plan->shape.heads_kv,
                          .stretch = mix->stretch,
                          .end_ns = plan->end_ns + computes};
    for (uint32_t i = 0; i < count; i++) {
        const int first = memory.next == memory.count ||
                          (compute.next < compute.count && begin_of(&compute) <= begin_of(&memory));
        sorted[i] = take_next(plan, first ? &compute : &memory);
    }
    return sorted;
}

void attnd_plan_order_tiles(struct attnd_plan *plan)
{
    uint32_t *sorted = sort_by_cost(plan);
    const uint32_t *order = sorted;

    if (plan->mix.fused)
        order = interleave(plan, sorted, sorted == plan->order ? plan->order_spare : plan->order);
    for (uint32_t i = 0; i < plan->shape.tiles; i++)
        plan->tiles[i] = plan->built[order[i]];
}
