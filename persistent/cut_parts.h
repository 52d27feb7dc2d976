/*
 * cut_parts.h - into how many parts a block is cut, and when the last item is done then: what
 * plan/split.c does, for one thread of a team (cut.h).
 */
#ifndef ATTND_PERSISTENT_CUT_PARTS_H
#define ATTND_PERSISTENT_CUT_PARTS_H

#include "persistent/cut.h"

/* Constants of plan/split.c. */
#define ATTND_CUT_KEYS_MIN 128u /* of a part */
#define ATTND_CUT_MERGED_AT_ONCE 16.0f
#define ATTND_CUT_SLACK 1.125f /* unsplit is good enough up to so much over perfect */
#define ATTND_CUT_GAIN 0.95f   /* a finer split must end by this much earlier */
#define ATTND_CUT_HALVES_WORKERS_MIN 32u
#define ATTND_CUT_HALVES_KEYS_MIN 4096u

/* All workers' time of a batch whose parts come out even, memory-bound items stretched. */
static ATTND_HOST_DEVICE float attnd_cut_share(const struct attnd_cut_shape *shape,
                                               const struct attnd_cut_seen *seen, float *stretch)
{
    const float heads = (float)shape->heads_kv, workers = (float)shape->workers;
    const float memory_ns = seen->total_ns[ATTND_TILE_MEMORY] * heads / workers;
    const float bytes_ns = seen->keys * heads * shape->pace.bytes_ns;

    *stretch = memory_ns > 0.0f ? attnd_cut_larger(1.0f, bytes_ns / memory_ns) : 1.0f;
    return seen->total_ns[ATTND_TILE_COMPUTE] * heads / workers + memory_ns * *stretch;
}

/* Way number @way: nothing is split, or parts of a share, a half, a third or a fourth of it, of at
 * least that much or to the nearest. */
static ATTND_HOST_DEVICE struct attnd_cut_split attnd_cut_way(uint32_t way, float share_ns)
{
    struct attnd_cut_split split;

    split.target_ns = way ? share_ns / (float)((way - 1) / 2 + 1) : 0.0f;
    split.round = way && (way - 1) % 2 ? 0.5f : 0.0f;
    return split;
}

/* Parts of a block, at most, where one worker merges them; see parts_max() in plan/split.c. */
static ATTND_HOST_DEVICE float attnd_cut_parts_max(const struct attnd_cut_shape *shape,
                                                   uint32_t packed_rows, float time_ns)
{
    const float merged_ns = (float)packed_rows * shape->pace.merge_row_ns;
    const float at_once = packed_rows <= ATTND_CUT_MEMORY_ROWS ? ATTND_CUT_MERGED_AT_ONCE : 1.0f;

    const float most = attnd_cut_larger(at_once, sqrtf(time_ns / merged_ns));
    float power = 1.0f;

    if (!shape->pace.merges_many)
        return most;
    while (2.0f * power <= most && power < 1024.0f)
        power *= 2.0f;
    return power;
}

static ATTND_HOST_DEVICE uint32_t attnd_cut_parts(const struct attnd_cut_shape *shape,
                                                  const struct attnd_cut *cut, uint32_t b,
                                                  const struct attnd_cut_split *split,
                                                  uint32_t shortest)
{
    if (split->target_ns <= 0.0f)
        return 1;
    const uint32_t least = shape->pace.granule > shortest ? shape->pace.granule : shortest;
    const uint32_t packed_rows = attnd_cut_packed(shape, cut, b);
    float wanted = cut->time_ns[b] / split->target_ns + split->round;
    uint32_t parts = cut->keys[b] / least;

    if (shape->pace.rows_step > 1 &&
        (packed_rows <= ATTND_CUT_MEMORY_ROWS || shape->pace.merges_many)) {
        const float most = attnd_cut_parts_max(shape, packed_rows, cut->time_ns[b]);
        wanted = wanted < most ? wanted : most;
    }

    if ((float)parts > wanted)
        parts = (uint32_t)wanted;
    return parts ? parts : 1;
}

/* An item of block @b if that is cut as @split says. */
static ATTND_HOST_DEVICE float attnd_cut_part_ns(const struct attnd_cut_shape *shape,
                                                 const struct attnd_cut *cut, uint32_t b,
                                                 struct attnd_cut_split split, float stretch,
                                                 uint32_t *parts)
{
    const int memory = attnd_cut_class(shape, cut, b) == ATTND_TILE_MEMORY;
    float ns = cut->time_ns[b];

    if (memory)
        split.target_ns /= stretch;
    *parts = attnd_cut_parts(shape, cut, b, &split, ATTND_CUT_KEYS_MIN);
    if (memory)
        ns *= stretch;
    else if (*parts > 1)
        ns += (float)*parts * (shape->pace.part_ns +
                               (float)attnd_cut_packed(shape, cut, b) * shape->pace.part_row_ns);
    return ns / (float)*parts;
}

/* When the last item is done; see finish_of() in plan/split.c. @list_ns: items begin longest first,
 * @tiles: and in waves of the longest. @wave_ns: what a wave takes beside its items. */
static ATTND_HOST_DEVICE float attnd_cut_finish(const struct attnd_cut_shape *shape, float wave_ns,
                                                float list_ns, float longest_ns, uint32_t tiles)
{
    const float waves = (float)((tiles * shape->heads_kv + shape->workers - 1) / shape->workers);
    const float even_ns = waves * longest_ns;

    return (even_ns < list_ns ? even_ns : list_ns) + waves * wave_ns;
}

/* The first way that ends early enough, or each that gains on those before. */
static ATTND_HOST_DEVICE uint32_t attnd_cut_best(const float *finish_ns, float share_ns)
{
    float best = finish_ns[0];
    uint32_t chosen = 0;

    if (best <= share_ns * ATTND_CUT_SLACK)
        return 0;
    for (uint32_t way = 1; way < ATTND_CUT_WAYS; way++)
        if (finish_ns[way] < best * ATTND_CUT_GAIN) {
            best = finish_ns[way];
            chosen = way;
        }
    return chosen;
}

/* Memory-bound blocks at the end that are halved; see halved_blocks() in plan/split.c. */
static ATTND_HOST_DEVICE uint32_t attnd_cut_halved(const struct attnd_cut_shape *shape,
                                                   const struct attnd_cut_seen *seen)
{
    const uint32_t items = seen->count[ATTND_TILE_MEMORY] * shape->heads_kv;

    if (shape->workers < ATTND_CUT_HALVES_WORKERS_MIN || items <= shape->workers ||
        seen->longest_ns[ATTND_TILE_MEMORY] / 2.0f > seen->shortest_ns[ATTND_TILE_MEMORY])
        return 0;
    const uint32_t last = (items - 1) % shape->workers + 1;
    return (last + shape->heads_kv - 1) / shape->heads_kv;
}

/* @way: the best one. */
static ATTND_HOST_DEVICE struct attnd_cut_choice
attnd_cut_choose(const struct attnd_cut_shape *shape, const struct attnd_cut_seen *seen,
                 uint32_t way, float share_ns, float stretch)
{
    struct attnd_cut_choice choice;

    choice.of[ATTND_TILE_COMPUTE] = choice.of[ATTND_TILE_MEMORY] = attnd_cut_way(way, share_ns);
    choice.of[ATTND_TILE_MEMORY].target_ns /= stretch;
    choice.stretch = stretch;
    choice.halves_ns = seen->longest_ns[ATTND_TILE_MEMORY] / 2.0f;
    choice.halved = way ? 0 : attnd_cut_halved(shape, seen);
    choice.unhalved = seen->count[ATTND_TILE_MEMORY] - choice.halved;
    choice.compute_workers = choice.whole = choice.parts = 0;
    return choice;
}

/* Parts of block @b, the @nth of its class. */
static ATTND_HOST_DEVICE uint32_t attnd_cut_wanted(const struct attnd_cut_shape *shape,
                                                   const struct attnd_cut *cut,
                                                   const struct attnd_cut_choice *choice,
                                                   uint32_t b, uint32_t nth)
{
    const uint32_t tile_class = attnd_cut_class(shape, cut, b);
    struct attnd_cut_split split = choice->of[tile_class];
    uint32_t shortest = ATTND_CUT_KEYS_MIN;
    int again = 0;

    if (tile_class == ATTND_TILE_COMPUTE && choice->compute_workers) {
        const uint32_t least = shape->pace.granule > shortest ? shape->pace.granule : shortest;
        const uint32_t most = cut->keys[b] / least;
        return nth > choice->whole && most > 1 ? attnd_cut_fewer(choice->parts, most) : 1;
    }
    if (tile_class == ATTND_TILE_MEMORY && choice->halved && nth > choice->unhalved) {
        split.target_ns = choice->halves_ns;
        split.round = 0.5f;
        shortest = ATTND_CUT_HALVES_KEYS_MIN;
        again = nth > choice->unhalved + choice->halved - choice->halved / 2;
    }
    const uint32_t parts = attnd_cut_parts(shape, cut, b, &split, shortest);
    return parts > 1 && again ? 2 * parts : parts;
}

/* Parts that block @b needs for none to be longer than an item may be, of which it has @parts. */
static ATTND_HOST_DEVICE uint32_t attnd_cut_bound(const struct attnd_cut_shape *shape,
                                                  const struct attnd_cut *cut, uint32_t b,
                                                  uint32_t parts)
{
    const uint32_t step = shape->pace.keys_item / shape->pace.granule;
    const uint32_t needed = (cut->keys[b] / shape->pace.granule + step - 1) / step;

    return cut->keys[b] > shape->pace.keys_item && needed > parts ? needed : parts;
}

/* What block @b takes of each array. */
static ATTND_HOST_DEVICE struct attnd_cut_place attnd_cut_takes(const struct attnd_cut *cut,
                                                                uint32_t b)
{
    const uint32_t parts = cut->parts[b];
    const int refused = cut->kv_len[cut->request[b]] < 0;
    struct attnd_cut_place takes = {parts, 0, 0, 0};

    if (refused) {
        takes.tile = ATTND_CUT_REFUSED_PARTS;
        takes.merge = 1;
    } else if (parts > 1) {
        takes.merge = 1;
        takes.partial = parts * cut->rows[b];
        takes.list = parts;
    }
    return takes;
}

#endif
