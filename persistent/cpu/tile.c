/*
 * tile.c - the tile interpreter: one tile for one or more KV heads.
 *
 * The rows' queries are widened into the worker's buffers, then KV goes by in blocks: page ids
 * become row pointers, once for all heads, and a kernel lets the rows see the block. Where the
 * result goes is the tile's affair: to the caller's o, or to scratch and on to a merge.
 *
 * The class chooses the inner loop. A memory-bound tile has few rows, so several heads' rows fit
 * the buffers at once and a block is read head by head while its pages are near: with the NHD
 * layout the heads of a token are neighbours in memory. A compute-bound tile fills the buffers with
 * one head.
 *
 * A run can be cancelled in the middle of a tile. Its word is read before every kernel call, which
 * takes microseconds, so a tile ends soon however many keys it still has. Such a tile leaves no
 * result: nothing of it is stored, and as it does not arrive at its merges, they are not done.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "persistent/cpu/items.h"
#include "persistent/cpu/lookup.h"
#include "persistent/cpu/merge.h"
#include "persistent/cpu/rope.h"
#include "persistent/cpu/run.h"
#include "persistent/cpu/stage.h"
#include "persistent/cpu/variant.h"
#include "persistent/cpu/worker.h"
#include "persistent/plan/plan.h"
#include "persistent/visible.h"

/* Query rows [row_begin, row_begin + row_count) of a tile that fit the buffers together. */
struct chunk {
    const struct attnd_cpu_run *run;
    const struct attnd_tile *tile;
    struct attnd_entry entry; /* behind: keys that its rows have on later levels */
    int32_t before;           /* keys that they have on earlier ones, as what is stored counts */
    uint32_t row_begin, row_count;
    uint32_t packed;           /* row_count * group */
    uint32_t kv_begin, kv_end; /* keys that any row sees */
    uint32_t block;            /* keys of a kernel call */
    int memory_bound;
};

static void open_chunk(struct attnd_cpu_worker *worker, struct chunk *chunk)
{
    const struct attnd_cpu_run *run = chunk->run;
    const uint32_t kv_len = attnd_cpu_kv_len(run, chunk->tile->entry);
    const uint32_t kv_end = chunk->tile->kv_end < kv_len ? chunk->tile->kv_end : kv_len;
    const uint32_t group = run->plan->group;
    chunk->packed = chunk->row_count * group;
    /* Only what is unpacked can be rotated. */
    chunk->memory_bound = chunk->tile->tile_class == ATTND_TILE_MEMORY &&
                          chunk->packed <= ATTND_DECODE_ROWS && !(run->options & ATTND_OPTION_ROPE);
    if (run->options & (ATTND_OPTION_ROPE | ATTND_OPTION_ROPE_APPEND))
        attnd_cpu_rope_begin(run, worker->frequency);
    chunk->block = chunk->memory_bound ? ATTND_DECODE_ELEMENTS / run->dim : ATTND_KEYS_BLOCK;
    if (run->options & ATTND_OPTION_MASK)
        worker->mask = chunk->entry.level + 1 == run->plan->levels
                           ? run->mask + run->mask_begin[chunk->tile->entry]
                           : NULL;
    chunk->kv_begin = kv_end;
    chunk->kv_end = 0;
    for (uint32_t i = 0; i < chunk->row_count; i++) {
        const uint32_t row = chunk->row_begin + i;
        const struct attnd_visible keys = attnd_visible_range(&chunk->entry, (int32_t)kv_len, row);
        uint32_t begin = (uint32_t)keys.begin, end = keys.end > 0 ? (uint32_t)keys.end : 0;
        begin = begin > chunk->tile->kv_begin ? begin : chunk->tile->kv_begin;
        end = end < kv_end ? end : kv_end;
        for (uint32_t g = 0; g < group; g++) {
            worker->begin[i * group + g] = begin;
            worker->mask_bit[i * group + g] = (uint64_t)(row - chunk->entry.row_begin) * kv_len;
            worker->end[i * group + g] = end;
            worker->position[i * group + g] =
                (int32_t)kv_len - (int32_t)chunk->entry.row_count +
                (int32_t)(row - chunk->entry.row_begin + chunk->entry.behind);
        }
        if (begin >= end)
            continue;
        chunk->kv_begin = begin < chunk->kv_begin ? begin : chunk->kv_begin;
        chunk->kv_end = end > chunk->kv_end ? end : chunk->kv_end;
    }
}

/* The slice of the buffers that holds the rows of the head number @index of those open. */
static struct attnd_rows rows_of(const struct attnd_cpu_worker *worker, const struct chunk *chunk,
                                 uint32_t index)
{
    const uint32_t first = index * chunk->packed, dim = chunk->run->dim;
    return (struct attnd_rows){
        .count = chunk->packed,
        .dim = dim,
        .q = worker->q + (size_t)first * dim,
        .o = worker->o + (size_t)first * dim,
        .m = worker->m + first,
        .l = worker->l + first,
        .begin = worker->begin,
        .end = worker->end,
    };
}

static void load_rows(const struct attnd_cpu_worker *worker, const struct chunk *chunk,
                      uint32_t kv_head, const struct attnd_rows *rows)
{
    const struct attnd_kernel *kernel = worker->backend->kernel;
    const struct attnd_plan_head *plan = chunk->run->plan;
    const float scale = attnd_cpu_variant_scale(chunk->run, kv_head);
    for (uint32_t i = 0; i < rows->count; i++) {
        ptrdiff_t row = chunk->row_begin + i / plan->group;
        ptrdiff_t head = kv_head * plan->group + i % plan->group;
        float *q = rows->q + (size_t)i * rows->dim;
        memset(q + plan->dim_qk, 0, (rows->dim - plan->dim_qk) * sizeof *q);
        kernel->widen(q, chunk->run->q + row * plan->q_pitch.row + head * plan->q_pitch.head,
                      plan->dim_qk, plan->dtype, scale);
        if (chunk->run->options & (ATTND_OPTION_ROPE | ATTND_OPTION_ROPE_APPEND))
            attnd_cpu_rope_row(chunk->run, worker->frequency, worker->position[i] + chunk->before,
                               q);
        rows->m[i] = -INFINITY;
        rows->l[i] = 0.0f;
    }
    memset(rows->o, 0, (size_t)rows->count * rows->dim * sizeof *rows->o);
    if (chunk->memory_bound)
        kernel->decode_begin(rows, chunk->run->pool->dtype);
}

/* Row pointers of keys [begin, begin + count). Return: 0; -1 at a page id outside the pool. */
static int find_keys(const struct chunk *chunk, uint32_t begin, uint32_t count,
                     struct attnd_keys *keys)
{
    const struct attnd_cpu_run *run = chunk->run;
    const uint32_t page_size = run->pool->page_size;
    keys->begin = begin;
    keys->count = count;
    keys->dtype = run->pool->dtype;
    for (uint32_t t = 0; t < count;) {
        const uint32_t in_page = (begin + t) % page_size;
        const int64_t page = attnd_cpu_page(run, &chunk->entry, (begin + t) / page_size);
        if (page < 0)
            return -1;
        const uint8_t *k = run->k.base + page * run->k.stride_page;
        const uint8_t *v = run->v.base + page * run->v.stride_page;
        for (uint32_t token = in_page; token < page_size && t < count; token++, t++) {
            keys->k[t] = k + token * run->k.stride_token;
            keys->v[t] = v + token * run->v.stride_token;
        }
    }
    for (uint32_t t = count; t < ATTND_KEYS_BLOCK; t++) {
        keys->k[t] = keys->k[count - 1];
        keys->v[t] = keys->v[count - 1];
    }
    return 0;
}

/* The keys from @begin on. Return: how many there are; 0 at the end; -1 as find_keys(). */
static int find_block(const struct chunk *chunk, uint32_t begin, struct attnd_keys *keys)
{
    if (begin >= chunk->kv_end)
        return 0;
    const uint32_t left = chunk->kv_end - begin;
    const uint32_t count = left < chunk->block ? left : chunk->block;
    return find_keys(chunk, begin, count, keys) ? -1 : (int)count;
}

static struct attnd_kv_block block_of(const struct chunk *chunk, const struct attnd_keys *keys,
                                      uint32_t head)
{
    return (struct attnd_kv_block){keys, (ptrdiff_t)head * chunk->run->k.stride_head,
                                   (ptrdiff_t)head * chunk->run->v.stride_head};
}

/* What head number @index of those open asks for of one plane while it is at work: as much of the
 * block behind as it uses itself. Where heads of a token are neighbours, all of them ask in the
 * order of memory. @keys: of the block behind, as many rows as this one has. */
static struct attnd_ahead rows_ahead(const struct attnd_cpu_plane *plane, size_t row_bytes,
                                     const uint8_t *const *keys, uint32_t count, uint32_t head,
                                     uint32_t heads, uint32_t index)
{
    const int neighbours = plane->stride_head == (ptrdiff_t)row_bytes;
    const uint32_t together = neighbours ? heads : 1, first = neighbours ? index * count : 0;
    return (struct attnd_ahead){
        .key = keys + first / together,
        .count = count - first / together,
        .head = (ptrdiff_t)(neighbours ? head : head + index) * plane->stride_head,
        .at = first % together * row_bytes,
        .run_bytes = together * row_bytes,
    };
}

static void decode(const struct attnd_cpu_worker *worker, const struct chunk *chunk,
                   const struct attnd_rows *rows, const struct attnd_kv_block *block,
                   const struct attnd_keys *later, uint32_t head, uint32_t heads, uint32_t index)
{
    const struct attnd_cpu_run *run = chunk->run;
    const size_t element_bytes = attnd_dtype_bytes(run->pool->dtype);
    const uint32_t count = block->keys->count;
    const struct attnd_ahead ahead[2] = {
        rows_ahead(&run->k, run->plan->dim_qk * element_bytes, later->k, count, head, heads, index),
        rows_ahead(&run->v, run->plan->dim_vo * element_bytes, later->v, count, head, heads, index),
    };
    worker->backend->kernel->decode(rows, block, ahead);
}

/* @later: the block behind, or NULL. */
static void prefill(struct attnd_cpu_worker *worker, const struct chunk *chunk,
                    const struct attnd_rows *rows, const struct attnd_kv_block *block,
                    const struct attnd_keys *later, uint32_t head)
{
    const int moved_on = later && !chunk->run->staged; /* what is staged lies in one place */
    const struct attnd_kv_block next = moved_on ? block_of(chunk, later, head) : *block;

    worker->backend->kernel->prefill(rows, block, &next, &worker->panel);
}

/* All keys of the chunk by the rows of @heads KV heads from @head on. Return: 0;
 * -ATTND_E_CANCELLED; -ATTND_E_RANGE at a page id outside the pool. */
static int see_keys(struct attnd_cpu_worker *worker, const struct chunk *chunk, uint32_t head,
                    uint32_t heads)
{
    struct attnd_keys *keys = &worker->keys[0], *later = &worker->keys[1];
    int count = find_block(chunk, chunk->kv_begin, keys);
    while (count > 0) {
        const int more = find_block(chunk, keys->begin + keys->count, later);
        if (chunk->run->options & ATTND_OPTION_ROPE)
            attnd_cpu_rope_block(worker, chunk->run, keys->begin, keys->count);
        for (uint32_t h = 0; h < heads; h++) {
            if (attnd_cpu_run_cancelled(chunk->run))
                return -ATTND_E_CANCELLED;
            struct attnd_rows rows = rows_of(worker, chunk, h);
            rows.policy = attnd_cpu_variant_rows(worker, chunk->run, head + h, rows.count);
            struct attnd_kv_block block = block_of(chunk, keys, head + h);
            if (chunk->run->staged)
                block = attnd_cpu_stage(worker, chunk->run, &block);
            if (chunk->memory_bound)
                decode(worker, chunk, &rows, &block, more > 0 ? later : keys, head, heads, h);
            else
                prefill(worker, chunk, &rows, &block, more > 0 ? later : NULL, head);
            attnd_cpu_worker_worked(worker, attnd_item_cost(keys->count, rows.count));
        }
        worker->kv_bytes += (uint64_t)attnd_dtype_bytes(keys->dtype) * keys->count * heads *
                            (chunk->run->plan->dim_qk + chunk->run->plan->dim_vo);
        struct attnd_keys *done = keys;
        keys = later;
        later = done;
        count = more;
    }
    return count < 0 ? -ATTND_E_RANGE : 0;
}

static void store_rows(const struct attnd_cpu_worker *worker, const struct chunk *chunk,
                       uint32_t kv_head, const struct attnd_rows *rows)
{
    const struct attnd_cpu_run *run = chunk->run;
    const struct attnd_plan_head *plan = run->plan;
    for (uint32_t i = 0; i < rows->count; i++) {
        uint32_t row = chunk->row_begin + i / plan->group;
        uint32_t head = kv_head * plan->group + i % plan->group;
        const float *o = rows->o + (size_t)i * rows->dim;
        if (chunk->tile->partial == ATTND_NONE) {
            attnd_cpu_row_store(worker->backend->kernel, run, row, head, o, rows->m[i], rows->l[i]);
            continue;
        }
        size_t partial = chunk->tile->partial + (row - chunk->tile->row_begin);
        size_t index = partial * plan->heads_q + head;
        run->states[index * 2] = rows->m[i];
        run->states[index * 2 + 1] = rows->l[i];
        memcpy(run->outputs + index * plan->dim_vo, o, plan->dim_vo * sizeof *o);
    }
}

/* Return: 0; -ATTND_E_CANCELLED. */
static int attend_chunk(struct attnd_cpu_worker *worker, struct attnd_cpu_run *run,
                        struct chunk *chunk, uint32_t head_begin, uint32_t head_end)
{
    open_chunk(worker, chunk);
    assert(chunk->packed > 0); /* run_open() refuses a group of 0; a chunk has rows */
    const uint32_t room = chunk->memory_bound ? ATTND_ROWS_MAX / chunk->packed : 1; /* heads */
    for (uint32_t head = head_begin; head < head_end; head += room) {
        const uint32_t heads = head_end - head < room ? head_end - head : room;
        for (uint32_t h = 0; h < heads; h++) {
            const struct attnd_rows rows = rows_of(worker, chunk, h);
            load_rows(worker, chunk, head + h, &rows);
        }
        int error = see_keys(worker, chunk, head, heads);
        if (error == -ATTND_E_CANCELLED)
            return error;
        if (error)
            attnd_cpu_run_fail(run, error);
        for (uint32_t h = 0; h < heads; h++) {
            const struct attnd_rows rows = rows_of(worker, chunk, h);
            if (chunk->memory_bound)
                worker->backend->kernel->decode_end(&rows, run->pool->dtype);
            store_rows(worker, chunk, head + h, &rows);
        }
    }
    return 0;
}

/* The tile's, and what its rows have behind it. */
static struct attnd_entry placed_entry(const struct attnd_cpu_run *run,
                                       const struct attnd_tile *tile)
{
    struct attnd_entry entry = run->entries[tile->entry];

    if (!(run->plan->flags & ATTND_PLAN_PLACED))
        return entry;
    entry.row_begin = tile->of_entry.row_begin;
    entry.row_count = tile->of_entry.row_count;
    if (tile->of_entry.behind && tile->of_entry.behind < run->plan->entries_max)
        entry.behind = (uint32_t)run->kv_len[tile->of_entry.behind];
    return entry;
}

int attnd_cpu_tile(struct attnd_cpu_worker *worker, struct attnd_cpu_run *run, uint32_t tile,
                   uint32_t head_begin, uint32_t head_end)
{
    const struct attnd_tile *t = &run->tiles[tile];
    const uint32_t tokens = ATTND_ROWS_MAX / run->plan->group;
    for (uint32_t row = 0; row < t->row_count; row += tokens) {
        struct chunk chunk = {
            .run = run,
            .tile = t,
            .entry = placed_entry(run, t),
            .before = attnd_cpu_keys_before(run, t->entry),
            .row_begin = t->row_begin + row,
            .row_count = t->row_count - row < tokens ? t->row_count - row : tokens,
        };
        if (attend_chunk(worker, run, &chunk, head_begin, head_end))
            return -ATTND_E_CANCELLED;
    }
    for (uint32_t head = head_begin; head < head_end; head++)
        attnd_cpu_merge_arrive(worker, run, t, head);
    return 0;
}
