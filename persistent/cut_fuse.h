/*
 * cut_fuse.h - both classes of a batch at once: the best way, found by all threads of a team, each
 * of which looks at some ways. What a way takes is in fuse.h; plan/fuse.c does the same one way
 * after the other. Included behind the team's header, as cut_batch.h.
 */
#ifndef ATTND_PERSISTENT_CUT_FUSE_H
#define ATTND_PERSISTENT_CUT_FUSE_H

#ifdef __CUDACC__
#define ATTND_OF_TEAM __device__ __forceinline__
#define ATTND_OF_TEAM_CALL                                                                         \
    __device__ __noinline__ /* what few batches need: registers of its own                         \
                             */
#else
#include "persistent/cut_alone.h"
#define ATTND_OF_TEAM inline
#define ATTND_OF_TEAM_CALL inline
#endif
#include "persistent/cut_parts.h"
#include "persistent/fuse.h"

/* Ways in which some workers compute: parts, of these waves behind those of whole blocks, and so
 * many numbers of waves of whole ones. Behind them those in which all compute first. */
#define ATTND_CUT_FUSE_KINDS 4u
#define ATTND_CUT_FUSE_WAVES 48u
#define ATTND_CUT_FUSE_SOME (ATTND_CUT_FUSE_KINDS * ATTND_CUT_FUSE_WAVES)
#define ATTND_CUT_FUSE_WAYS (ATTND_CUT_FUSE_SOME + ATTND_FUSE_ALL_PARTS_MAX)
#if ATTND_CUT_FUSE_WAYS > ATTND_CUT_WAYS * ATTND_CUT_CLASSES
#error "their ends do not fit where those of splits lie"
#endif

static ATTND_OF_TEAM struct attnd_fuse_batch
attnd_cut_fuse_batch(const struct attnd_cut_shape *shape, const struct attnd_cut_seen *seen,
                     float memory_ns, float bytes_ns)
{
    const float rows = (float)attnd_cut_fewer(seen->rows_max, shape->pace.rows_per_tile);
    const float workers = (float)shape->workers;
    struct attnd_fuse_batch batch;

    batch.workers = workers;
    batch.heads = (float)shape->heads_kv;
    batch.blocks = (float)seen->count[ATTND_TILE_COMPUTE];
    batch.longest_ns = seen->longest_ns[ATTND_TILE_COMPUTE];
    batch.shortest_ns = seen->shortest_ns[ATTND_TILE_COMPUTE];
    batch.mean_ns = seen->total_ns[ATTND_TILE_COMPUTE] / (float)seen->count[ATTND_TILE_COMPUTE];
    batch.part_ns = shape->pace.part_ns + rows * shape->pace.part_row_ns;
    batch.reading_ns = attnd_cut_larger(bytes_ns, memory_ns);
    batch.readers =
        bytes_ns > memory_ns ? attnd_cut_larger(1.0f, workers * memory_ns / bytes_ns) : workers;
    batch.cuts_max = (float)shape->splits_max;
    return batch;
}

/* Way number @way. Return: 0: there is none, or the plan has not so many tiles. */
static ATTND_OF_TEAM int attnd_cut_fuse_way(const struct attnd_fuse_batch *batch, uint32_t way,
                                            struct attnd_fuse_way *how)
{
    const attnd_real items = batch->blocks * batch->heads;

    if (way >= ATTND_CUT_FUSE_SOME) {
        const uint32_t parts = way - ATTND_CUT_FUSE_SOME + 1;
        const attnd_real waves = ceil(items * (attnd_real)parts / batch->workers);
        how->workers = batch->workers;
        how->parts = parts;
        how->whole = parts > 1 ? 0 : batch->blocks;
        how->cut = parts > 1 ? batch->blocks : 0;
        how->waves = parts > 1 ? 0 : waves;
        how->part_waves = parts > 1 ? (uint32_t)waves : 0;
        return how->cut * (attnd_real)(parts - 1) <= batch->cuts_max;
    }
    const uint32_t kind = way / ATTND_CUT_FUSE_WAVES, parts = kind < 2 ? kind + 1 : 3;
    attnd_real waves = attnd_fuse_larger(parts <= 1, ceil(items / batch->workers) - 1);

    for (uint32_t i = way % ATTND_CUT_FUSE_WAVES; i > 0; i--)
        waves = ceil(waves * ATTND_FUSE_WAVES_STEP + (attnd_real)1e-3);
    if (waves > items || (parts > 1 && batch->longest_ns / (attnd_real)parts + batch->part_ns <
                                           ATTND_FUSE_PART_NS_MIN))
        return 0;
    return attnd_fuse_take_waves(batch, waves, kind < 2 ? kind : kind - 1, parts, how) &&
           how->workers < batch->workers &&
           how->workers > batch->workers * ATTND_FUSE_COMPUTING_MIN;
}

/* The earliest of @count ways from @first on that ends before *@before, which becomes its end.
 * Return: its number; ATTND_NONE: there is none. */
static ATTND_OF_TEAM uint32_t attnd_cut_fuse_first(const float *ends, uint32_t first,
                                                   uint32_t count, float *before)
{
    uint32_t found = ATTND_NONE;

    for (uint32_t way = first; way < first + count; way++)
        if (ends[way] < *before) {
            *before = ends[way];
            found = way;
        }
    return found;
}

/* The best of all, where each more part has to gain. Return: its number, and *@end. */
static ATTND_OF_TEAM uint32_t attnd_cut_fuse_best(const float *ends, uint32_t fusion, float *end)
{
    const float gain = (float)ATTND_FUSE_PARTS_GAIN;
    float serial = INFINITY, both = INFINITY;
    uint32_t all = ATTND_CUT_FUSE_SOME, some = ATTND_NONE;

    for (uint32_t way = ATTND_CUT_FUSE_SOME; way < ATTND_CUT_FUSE_WAYS; way++)
        if (ends[way] < serial * gain) {
            serial = ends[way];
            all = way;
        }
    for (uint32_t parts = 1; parts <= ATTND_FUSE_PARTS_MAX; parts++) {
        float before = parts > 1 ? both * gain : both;
        const uint32_t found =
            attnd_cut_fuse_first(ends, (parts - 1) * ATTND_CUT_FUSE_WAVES,
                                 (parts < 3 ? 1 : 2) * ATTND_CUT_FUSE_WAVES, &before);
        both = found != ATTND_NONE ? before : both;
        some = found != ATTND_NONE ? found : some;
    }
    const int apart = some != ATTND_NONE && (fusion || both < serial * (float)ATTND_FUSE_GAIN);
    *end = apart ? both : serial;
    return apart ? some : all;
}

/* Splits of memory-bound blocks that @split asks for, of all. */
static ATTND_OF_TEAM uint32_t attnd_cut_fuse_splits(const struct attnd_team *team,
                                                    const struct attnd_cut_shape *shape,
                                                    const struct attnd_cut *cut, uint32_t blocks,
                                                    const struct attnd_cut_split *split)
{
    uint32_t splits = 0;

    for (uint32_t b = team->thread; b < blocks; b += team->threads)
        if (attnd_cut_class(shape, cut, b) == ATTND_TILE_MEMORY)
            splits += attnd_cut_parts(shape, cut, b, split, ATTND_CUT_KEYS_MIN) - 1;
    return attnd_team_total(team, splits);
}

/* Both classes at once, if that is worth it: into @choice. Return: 0: it is not. */
static ATTND_OF_TEAM_CALL int attnd_cut_fuse(const struct attnd_team *team,
                                             const struct attnd_cut_shape *shape,
                                             const struct attnd_cut *cut, uint32_t blocks,
                                             const struct attnd_cut_seen *seen,
                                             struct attnd_cut_choice *choice)
{
    const float heads = (float)shape->heads_kv, workers = (float)shape->workers;
    const float compute_ns = seen->total_ns[ATTND_TILE_COMPUTE] * heads / workers;
    const float memory_ns = seen->total_ns[ATTND_TILE_MEMORY] * heads / workers;
    const float bytes_ns = seen->keys * heads * shape->pace.bytes_ns;
    const float serial = compute_ns + attnd_cut_larger(memory_ns, bytes_ns);
    const int automatic = shape->pace.fusion == 0;
    float *const ends = (float *)(void *)cut->way_ns;

    if (shape->pace.fusion == 1 || shape->workers < 2 || seen->count[0] > UINT16_MAX ||
        (automatic &&
         attnd_cut_larger(compute_ns + memory_ns, bytes_ns) > serial * (float)ATTND_FUSE_FLOOR))
        return 0;
    const struct attnd_fuse_batch batch = attnd_cut_fuse_batch(shape, seen, memory_ns, bytes_ns);
    struct attnd_fuse_way how;
    float end;
    for (uint32_t way = team->thread; way < ATTND_CUT_FUSE_WAYS; way += team->threads)
        ends[way] =
            attnd_cut_fuse_way(&batch, way, &how) ? (float)attnd_fuse_end(&batch, &how) : INFINITY;
    attnd_team_sync(team);
    const uint32_t way = attnd_cut_fuse_best(ends, shape->pace.fusion, &end);
    attnd_team_sync(team); /* who goes on writes there */
    if (automatic && end > serial * (float)ATTND_FUSE_END)
        return 0;
    (void)attnd_cut_fuse_way(&batch, way, &how);
    const float reading = workers - (float)how.workers;
    const float stretch = attnd_cut_larger(1.0f, reading / (float)batch.readers);
    struct attnd_cut_split *const memory = &choice->of[ATTND_TILE_MEMORY];
    choice->compute_workers = (uint32_t)how.workers;
    choice->whole = (uint32_t)how.whole;
    choice->parts = how.parts;
    choice->stretch = stretch;
    memory->target_ns =
        attnd_cut_larger(end / (float)ATTND_FUSE_ITEMS, (float)ATTND_FUSE_ITEM_NS_MIN) / stretch;
    memory->round = 0.5f;
    const uint32_t more = (seen->count[ATTND_TILE_COMPUTE] - choice->whole) * (how.parts - 1);
    const uint32_t fits = shape->splits_max > more ? shape->splits_max - more : 0;
    while (attnd_cut_fuse_splits(team, shape, cut, blocks, memory) > fits)
        memory->target_ns *= (float)ATTND_FUSE_COARSER;
    choice->halved = seen->longest_ns[ATTND_TILE_MEMORY] < 1.5f * memory->target_ns
                         ? attnd_cut_halved(shape, seen)
                         : 0;
    choice->halves_ns = seen->longest_ns[ATTND_TILE_MEMORY] / 2.0f;
    choice->unhalved = seen->count[ATTND_TILE_MEMORY] - choice->halved;
    return 1;
}

#endif
