/*
 * cut.h - lengths into tiles, by any number of threads: the planner where nobody but the GPU knows
 * the lengths.
 *
 * It does what plan/ does for a batch of one level that nobody will advance, with the same
 * constants: rows into blocks, blocks into parts so that workers end together, parts into merges,
 * tiles by cost. An engine's kernel executes it with a block of threads (cuda/engine/cut.cuh), and
 * so does a test with one. Here is what one thread does with a request, a block and a tile; into
 * how many parts blocks are cut is in cut_parts.h, and what threads do together (a team) in
 * cut_alone.h or in the kernel, cut_fuse.h and cut_batch.h.
 *
 * Nothing here looks at page ids: a tile says where its request's row of the table begins. A
 * request of no length or of no rows is padding and has no tile. One that is refused has two empty
 * parts for each block, which are merged with a part that is not a number: kernels need not know.
 */
#ifndef ATTND_PERSISTENT_CUT_H
#define ATTND_PERSISTENT_CUT_H

#include "persistent/visible.h"
#include "schemas/cut.h"

#include <math.h>

/* Constants of plan/ that both planners reckon with. */
#define ATTND_CUT_MEMORY_ROWS 16u /* packed rows of a tile that is bound by memory, at most */
#define ATTND_CUT_UNEVEN 4u       /* times the mean: UNEVEN of plan/order.c */
#define ATTND_CUT_COST_KEY 8u
#define ATTND_CUT_COST_TILE 256u

#define ATTND_CUT_PLACES 3u   /* of a fused plan: whole blocks, parts of such, and the rest */
#define ATTND_CUT_CLASSES 32u /* of items by their time, of tiles by their cost */
#define ATTND_CUT_WAYS (2 * ATTND_CUT_TILES_PER_WORKER + 1u) /* to split that are looked at */
#define ATTND_CUT_TIME_UNITS 65536.0f                        /* of the longest item's time */

/* Where what a block has begins: its tiles, merges, partial rows, and parts in the list of parts.
 */
struct attnd_cut_place {
    uint32_t tile, merge, partial, list;
};

/* What all blocks come to, by enum attnd_tile_class. */
struct attnd_cut_seen {
    float total_ns[2], longest_ns[2], shortest_ns[2], keys; /* keys of memory-bound ones */
    uint32_t count[2], rows_max;                            /* packed, of a block */
};

/* How a class is cut: parts of about so long; 0: not at all. */
struct attnd_cut_split {
    float target_ns, round;
};

/* What is chosen for a batch. */
struct attnd_cut_choice {
    struct attnd_cut_split of[2];
    float stretch; /* of memory-bound items, because the memory does not keep up */
    float halves_ns;
    uint32_t unhalved, halved; /* memory-bound blocks, as in struct attnd_splits */
    uint32_t
        compute_workers;   /* of a fused plan: those that begin with compute-bound items; else 0 */
    uint32_t whole, parts; /* compute-bound blocks in front, and parts of the others */
};

/* All that the threads share: on a GPU in shared memory. */
struct attnd_cut {
    int32_t *kv_len;       /* [requests]; -1: refused */
    uint32_t *row_begin;   /* [requests + 1] */
    uint32_t *block_begin; /* [requests + 1] */
    uint32_t *request;     /* [blocks], and so the next */
    uint32_t *row, *rows;  /* of q */
    uint32_t *first, *keys, *parts;
    float *time_ns;
    struct attnd_cut_place *place; /* [blocks + 1] */
    uint32_t *order;               /* [tiles]: class by cost, then where the tile stands */
    uint32_t *counts;              /* [ATTND_CUT_COUNTS], for ordering them */
    float *finish_ns;              /* [ATTND_CUT_WAYS] */
    uint32_t *way_ns, *way_items;  /* [ATTND_CUT_WAYS][ATTND_CUT_CLASSES] */
    uint32_t *rows_refused;        /* 1: qo_indptr is no such array */
};

/* For each class of each place one of each of 16 warps. */
#define ATTND_CUT_ORDERS (ATTND_CUT_PLACES * ATTND_CUT_CLASSES)
#define ATTND_CUT_COUNTS (ATTND_CUT_ORDERS * 16u + 1)

/* A part of @memory, @count words of it behind @words. */
static ATTND_HOST_DEVICE uint32_t *attnd_cut_take(uint32_t *memory, uint32_t *words, uint32_t count)
{
    uint32_t *taken = memory ? memory + *words : 0;

    *words += count;
    return taken;
}

/* What arrays take for a request, a block, a tile, and besides. */
#define ATTND_CUT_REQUEST_BYTES 12u
#define ATTND_CUT_BLOCK_BYTES 44u
#define ATTND_CUT_TILE_BYTES 4u
#define ATTND_CUT_BYTES                                                                            \
    (4u * (4 + 2 + ATTND_CUT_COUNTS + ATTND_CUT_WAYS + 2 * ATTND_CUT_WAYS * ATTND_CUT_CLASSES + 1))

/* Arrays for so many, in @memory, which begins at 16 bytes; NULL: how much they take.
 * Return: bytes. */
static ATTND_HOST_DEVICE uint32_t attnd_cut_lay(struct attnd_cut *cut, uint32_t *memory,
                                                uint32_t requests, uint32_t blocks, uint32_t tiles)
{
    const uint32_t ways = ATTND_CUT_WAYS * ATTND_CUT_CLASSES;
    uint32_t words = 0;

    cut->place = (struct attnd_cut_place *)(void *)attnd_cut_take(
        memory, &words, (blocks + 1) * (uint32_t)(sizeof(*cut->place) / sizeof(uint32_t)));
    cut->kv_len = (int32_t *)(void *)attnd_cut_take(memory, &words, requests);
    cut->row_begin = attnd_cut_take(memory, &words, requests + 1);
    cut->block_begin = attnd_cut_take(memory, &words, requests + 1);
    cut->request = attnd_cut_take(memory, &words, blocks);
    cut->row = attnd_cut_take(memory, &words, blocks);
    cut->rows = attnd_cut_take(memory, &words, blocks);
    cut->first = attnd_cut_take(memory, &words, blocks);
    cut->keys = attnd_cut_take(memory, &words, blocks);
    cut->parts = attnd_cut_take(memory, &words, blocks);
    cut->time_ns = (float *)(void *)attnd_cut_take(memory, &words, blocks);
    cut->order = attnd_cut_take(memory, &words, tiles);
    cut->counts = attnd_cut_take(memory, &words, ATTND_CUT_COUNTS);
    cut->finish_ns = (float *)(void *)attnd_cut_take(memory, &words, ATTND_CUT_WAYS);
    cut->way_ns = attnd_cut_take(memory, &words, ways);
    cut->way_items = attnd_cut_take(memory, &words, ways);
    cut->rows_refused = attnd_cut_take(memory, &words, 1);
    return words * (uint32_t)sizeof(uint32_t);
}

static ATTND_HOST_DEVICE float attnd_cut_larger(float a, float b)
{
    return a > b ? a : b;
}

static ATTND_HOST_DEVICE uint32_t attnd_cut_fewer(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The last place in @begins, which grow, that is at or before @at. */
static ATTND_HOST_DEVICE uint32_t attnd_cut_find(const uint32_t *begins, uint32_t count,
                                                 uint32_t step, uint32_t at)
{
    uint32_t low = 0;

    while (count > 1) {
        const uint32_t half = count / 2;
        low += begins[(low + half) * step] <= at ? half : 0;
        count -= half;
    }
    return low;
}

/* ---- blocks ---- */

static ATTND_HOST_DEVICE uint32_t attnd_cut_row_count(const struct attnd_cut *cut, uint32_t request)
{
    return cut->row_begin[request + 1] - cut->row_begin[request];
}

/* Length and rows of @request; refuses what is out of range. */
static ATTND_HOST_DEVICE void attnd_cut_read(const struct attnd_cut_shape *shape,
                                             const struct attnd_cut *cut, uint32_t request,
                                             int32_t length)
{
    const uint32_t begin = cut->row_begin[request], end = cut->row_begin[request + 1];
    const int padding = length == 0 || end == begin;

    if (end < begin || end > shape->rows)
        *cut->rows_refused = 1;
    cut->kv_len[request] = length < 0 || (uint32_t)length > shape->keys ? -1 : length;
    cut->block_begin[request] =
        padding || end < begin ? 0 : (end - begin + shape->tokens - 1) / shape->tokens;
}

static ATTND_HOST_DEVICE float attnd_cut_key_ns(const struct attnd_cut_shape *shape,
                                                uint32_t packed_rows)
{
    const uint32_t step = shape->pace.rows_step;

    if (step <= 1)
        return shape->pace.read_ns + (float)packed_rows * shape->pace.row_ns;
    if (packed_rows <= ATTND_CUT_MEMORY_ROWS)
        return shape->pace.read_ns;
    const uint32_t steps = (packed_rows + step - 1) / step;
    return attnd_cut_larger((float)(steps * step) * shape->pace.row_ns, shape->pace.read_ns);
}

static ATTND_HOST_DEVICE struct attnd_entry
attnd_cut_entry(const struct attnd_cut_shape *shape, const struct attnd_cut *cut, uint32_t request)
{
    const int32_t length = cut->kv_len[request];
    struct attnd_entry entry;

    entry.row_begin = cut->row_begin[request];
    entry.row_count = attnd_cut_row_count(cut, request);
    entry.page_begin = request * shape->table_stride;
    entry.page_count =
        length > 0 ? ((uint32_t)length + shape->page_size - 1) / shape->page_size : 0;
    entry.level = 0;
    entry.causal = shape->causal;
    entry.behind = 0;
    entry.window = shape->window;
    return entry;
}

static ATTND_HOST_DEVICE uint32_t attnd_cut_packed(const struct attnd_cut_shape *shape,
                                                   const struct attnd_cut *cut, uint32_t b)
{
    return cut->rows[b] * shape->group;
}

static ATTND_HOST_DEVICE uint32_t attnd_cut_class(const struct attnd_cut_shape *shape,
                                                  const struct attnd_cut *cut, uint32_t b)
{
    return attnd_cut_packed(shape, cut, b) <= ATTND_CUT_MEMORY_ROWS ? ATTND_TILE_MEMORY
                                                                    : ATTND_TILE_COMPUTE;
}

/* Rows of block @b, the keys that they see, and its time. */
static ATTND_HOST_DEVICE void attnd_cut_look(const struct attnd_cut_shape *shape,
                                             const struct attnd_cut *cut, uint32_t b)
{
    const uint32_t request = attnd_cut_find(cut->block_begin, shape->requests, 1, b);
    const struct attnd_entry entry = attnd_cut_entry(shape, cut, request);
    const uint32_t at = (b - cut->block_begin[request]) * shape->tokens;
    const uint32_t rows = attnd_cut_fewer(shape->tokens, entry.row_count - at);
    const uint32_t row = entry.row_begin + at;
    const int32_t length = cut->kv_len[request] > 0 ? cut->kv_len[request] : 0;
    const struct attnd_visible early = attnd_visible_range(&entry, length, row);
    const struct attnd_visible late = attnd_visible_range(&entry, length, row + rows - 1);
    const uint32_t first = (uint32_t)early.begin / shape->pace.granule * shape->pace.granule;
    const int sees = late.end > early.begin && late.end > (int32_t)first;
    const uint32_t keys = sees ? (uint32_t)late.end - first : 0;

    cut->request[b] = request;
    cut->row[b] = row;
    cut->rows[b] = rows;
    cut->first[b] = first;
    cut->keys[b] = keys;
    cut->time_ns[b] =
        (float)keys * attnd_cut_key_ns(shape, rows * shape->group) + shape->pace.start_ns;
}

static ATTND_HOST_DEVICE void attnd_cut_count(struct attnd_cut_seen *seen, uint32_t tile_class,
                                              float time_ns, uint32_t keys, uint32_t packed_rows)
{
    for (uint32_t c = 0; c < 2; c++) { /* in registers: no index that is not known */
        if (c != tile_class)
            continue;
        seen->count[c]++;
        seen->total_ns[c] += time_ns;
        seen->longest_ns[c] = attnd_cut_larger(seen->longest_ns[c], time_ns);
        seen->shortest_ns[c] = time_ns < seen->shortest_ns[c] ? time_ns : seen->shortest_ns[c];
    }
    if (tile_class == ATTND_TILE_MEMORY)
        seen->keys += (float)keys;
    seen->rows_max = packed_rows > seen->rows_max ? packed_rows : seen->rows_max;
}

/* ---- tiles ---- */

/* Keys [begin, end) of part @part of block @b; end ATTND_KV_OPEN: of the last one. */
static ATTND_HOST_DEVICE uint32_t attnd_cut_begin(const struct attnd_cut_shape *shape,
                                                  const struct attnd_cut *cut, uint32_t b,
                                                  uint32_t part)
{
    const uint64_t granules = cut->keys[b] / shape->pace.granule;

    return part ? cut->first[b] + (uint32_t)(granules * part / cut->parts[b]) * shape->pace.granule
                : 0;
}

/* A key's part of the next. */
static ATTND_HOST_DEVICE float attnd_cut_key_cost(const struct attnd_cut_shape *shape,
                                                  uint32_t packed_rows)
{
    if (shape->pace.rows_step <= 1)
        return (float)(ATTND_CUT_COST_KEY + packed_rows);
    return attnd_cut_key_ns(shape, packed_rows) / shape->pace.row_ns;
}

/* As attnd_plan_tile_cost() in plan/times.c. */
static ATTND_HOST_DEVICE uint32_t attnd_cut_cost(const struct attnd_cut_shape *shape,
                                                 const struct attnd_cut *cut, uint32_t b,
                                                 uint32_t part)
{
    const uint32_t begin = attnd_cut_begin(shape, cut, b, part),
                   last = cut->first[b] + cut->keys[b];
    const uint32_t from = begin > cut->first[b] ? begin : cut->first[b];
    const uint32_t to = part + 1 < cut->parts[b] ? attnd_cut_begin(shape, cut, b, part + 1) : last;
    const float keys = to > from ? (float)(to - from) : 0.0f;
    const float cost = keys * attnd_cut_key_cost(shape, attnd_cut_packed(shape, cut, b));

    return (uint32_t)cost + ATTND_CUT_COST_TILE;
}

/* The block of tile @t, of @blocks. */
static ATTND_HOST_DEVICE uint32_t attnd_cut_block_at(const struct attnd_cut *cut, uint32_t blocks,
                                                     uint32_t t)
{
    return attnd_cut_find(&cut->place->tile, blocks, sizeof(*cut->place) / sizeof(uint32_t), t);
}

static ATTND_HOST_DEVICE uint32_t attnd_cut_cost_class(uint32_t cost, uint32_t most)
{
    return ATTND_CUT_CLASSES - 1 - (uint32_t)((float)cost * (ATTND_CUT_CLASSES - 1) / (float)most);
}

/* The merge of block @b: of one that is split, or whose request is refused. */
static ATTND_HOST_DEVICE struct attnd_merge attnd_cut_merge(const struct attnd_cut *cut, uint32_t b)
{
    const int refused = cut->kv_len[cut->request[b]] < 0;
    struct attnd_merge merge;

    merge.row_begin = cut->row[b];
    merge.row_count = cut->rows[b];
    merge.part_begin = refused ? 0 : ATTND_CUT_REFUSED_PARTS + cut->place[b].list;
    merge.part_count = refused ? ATTND_CUT_REFUSED_PARTS : cut->parts[b];
    return merge;
}

/* Where partial rows of block @b begin. Those of refused ones share a block, and behind it stands
 * one that is not a number. */
static ATTND_HOST_DEVICE uint32_t attnd_cut_partial(const struct attnd_cut_shape *shape,
                                                    const struct attnd_cut *cut, uint32_t b)
{
    const int refused = cut->kv_len[cut->request[b]] < 0;

    return refused ? 0 : ATTND_CUT_REFUSED_PARTS * shape->tokens + cut->place[b].partial;
}

/* Part @part of block @b. */
static ATTND_HOST_DEVICE void attnd_cut_tile(const struct attnd_cut_shape *shape,
                                             const struct attnd_cut *cut, uint32_t b, uint32_t part,
                                             struct attnd_tile *tile)
{
    const uint32_t request = cut->request[b], parts = cut->parts[b];
    const int refused = cut->kv_len[request] < 0, merged = refused || parts > 1;
    const struct attnd_merge none = {0, 0, 0, 0};

    tile->entry = request;
    tile->row_begin = cut->row[b];
    tile->row_count = cut->rows[b];
    tile->kv_begin = refused ? 0 : attnd_cut_begin(shape, cut, b, part);
    tile->kv_end =
        refused || part + 1 == parts ? ATTND_KV_OPEN : attnd_cut_begin(shape, cut, b, part + 1);
    tile->partial = merged ? attnd_cut_partial(shape, cut, b) : ATTND_NONE;
    if (merged && !refused)
        tile->partial += part * cut->rows[b];
    tile->merge_begin = merged ? cut->place[b].merge : 0;
    tile->merge_count = merged ? 1 : 0;
    tile->cost = refused ? ATTND_CUT_COST_TILE : attnd_cut_cost(shape, cut, b, part);
    tile->tile_class = attnd_cut_class(shape, cut, b);
    tile->parts_alone = merged && !refused && parts <= ATTND_PARTS_ALONE_MAX;
    tile->before = 0;
    tile->of_entry = attnd_cut_entry(shape, cut, request);
    tile->first_merge = merged ? attnd_cut_merge(cut, b) : none;
}

#endif
