/* plan_check.c - plan_check(): for every row, the list of tiles that answer for it; everything else
 * is a statement about these lists. */
#include "tests/support/rigs/plan_check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of tiles, in their order where each class has workers that begin with it. */
enum kind { WHOLE_BLOCK, PART_OF_BLOCK, MEMORY_BOUND, KINDS };

/* Tiles over one row, by level, then by kv_begin. */
struct row_tiles {
    uint32_t count;
    uint32_t *tile;
};

struct checker {
    const struct plan_case *c;
    const struct attnd_plan_head *head;
    const struct attnd_entry *entries;
    const struct attnd_tile *tiles;
    const struct attnd_merge *merges;
    const uint32_t *parts;
    struct row_tiles *rows;         /* [rows] */
    uint32_t cost_before[KINDS];    /* all of one kind where classes have no workers */
    uint32_t shared, shared_levels; /* entries and levels that the planner added */
    char *why;
    size_t why_bytes;
};

__attribute__((format(printf, 2, 3))) static int wrong(struct checker *k, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(k->why, k->why_bytes, format, arguments);
    va_end(arguments);
    return 0;
}

static const void *at(const struct plan_case *c, uint64_t offset_bytes)
{
    return (const uint8_t *)attnd_plan_head(c->plan) + offset_bytes;
}

const struct attnd_entry *plan_entries(const struct plan_case *c)
{
    return at(c, attnd_plan_head(c->plan)->entries_offset_bytes);
}

const struct attnd_tile *plan_tiles(const struct plan_case *c)
{
    return at(c, attnd_plan_head(c->plan)->tiles_offset_bytes);
}

const struct attnd_merge *plan_merges(const struct plan_case *c)
{
    return at(c, attnd_plan_head(c->plan)->merges_offset_bytes);
}

const uint32_t *plan_merge_parts(const struct plan_case *c)
{
    return at(c, attnd_plan_head(c->plan)->merge_parts_offset_bytes);
}

const int32_t *plan_kv_pages(const struct plan_case *c)
{
    return at(c, attnd_plan_head(c->plan)->kv_pages_offset_bytes);
}

const int32_t *plan_kv_len(const struct plan_case *c, uint32_t generation)
{
    const struct attnd_plan_head *head = attnd_plan_head(c->plan);
    const int32_t *kv_len = at(c, head->kv_len_offset_bytes);
    return kv_len + (size_t)generation * head->entries_max;
}

/* The arrays follow each other in the heap; none may reach into the next. */
static int check_places(struct checker *k)
{
    const struct attnd_plan_head *h = k->head;
    const uint64_t end[][2] = {
        {sizeof(*h), h->entries_offset_bytes},
        {h->entries_offset_bytes + (uint64_t)h->entries * 32, h->tiles_offset_bytes},
        {h->tiles_offset_bytes + (uint64_t)h->tiles * 48, h->merges_offset_bytes},
        {h->merges_offset_bytes + (uint64_t)h->merges * 16, h->merge_parts_offset_bytes},
        {h->merge_parts_offset_bytes + (uint64_t)h->parts * 4, h->kv_pages_offset_bytes},
        {h->kv_pages_offset_bytes + (uint64_t)k->c->limits.pages * 4, h->kv_len_offset_bytes},
        {h->kv_len_offset_bytes + (uint64_t)ATTND_GENERATIONS * h->entries_max * 4,
         attnd_plan_heap_bytes(&k->c->limits)},
    };

    for (size_t i = 0; i < sizeof(end) / sizeof(end[0]); i++)
        if (end[i][0] > end[i][1] || end[i][1] % (i < 6 ? 64 : 1))
            return wrong(k, "array %zu ends at %llu, beyond %llu", i, (unsigned long long)end[i][0],
                         (unsigned long long)end[i][1]);
    return 1;
}

static int check_entry(struct checker *k, uint32_t index, uint32_t l, uint32_t r, uint32_t *page)
{
    const struct attnd_batch_view *batch = &k->c->batch;
    const struct attnd_level_view *level = &batch->level[l];
    const struct attnd_entry *entry = &k->entries[index];
    const uint32_t last = l + 1 == batch->levels;
    const uint32_t at_level = k->shared_levels + l;
    const uint32_t pages = (uint32_t)(level->kv_indptr[r + 1] - level->kv_indptr[r]);
    const uint32_t reserve = last ? batch->reserve_pages : 0;
    const int32_t *slots = plan_kv_pages(k->c) + entry->page_begin;
    int64_t kv_len =
        pages ? (int64_t)(pages - 1) * k->c->pool.page_size + level->kv_last_page_len[r] : 0;

    if (entry->row_begin != (uint32_t)level->qo_indptr[r] ||
        entry->row_begin + entry->row_count != (uint32_t)level->qo_indptr[r + 1] ||
        entry->level != at_level || entry->causal != (last && (batch->flags & ATTND_BATCH_CAUSAL)))
        return wrong(k, "entry %u is not request %u of level %u", index, r, l);
    if (entry->page_begin != *page || entry->page_count != pages + reserve)
        return wrong(k, "entry %u has pages %u+%u", index, entry->page_begin, entry->page_count);
    for (uint32_t p = 0; p < entry->page_count; p++)
        if (slots[p] != (p < pages ? level->kv_indices[level->kv_indptr[r] + (int32_t)p] : 0))
            return wrong(k, "page %u of entry %u is %d", p, index, slots[p]);
    if (plan_kv_len(k->c, 0)[index] != kv_len)
        return wrong(k, "kv_len of entry %u is %d", index, plan_kv_len(k->c, 0)[index]);
    *page += entry->page_count;
    return 1;
}

/* Keys that are read for the batch's rows in front of their own tiles: whole pages, of every
 * request over those rows, that each of its rows sees; the same length in all generations. */
static int check_shared(struct checker *k, uint32_t e)
{
    const struct attnd_level_view *level = &k->c->batch.level[0];
    const struct attnd_entry *entry = &k->entries[e];
    const uint32_t page_size = k->c->pool.page_size;
    uint32_t members = 0;

    if (k->c->batch.levels != 1 || entry->level >= k->shared_levels || entry->causal)
        return wrong(k, "entry %u is shared at level %u", e, entry->level);
    for (uint32_t g = 0; g < ATTND_GENERATIONS; g++)
        if (plan_kv_len(k->c, g)[e] != (int32_t)(entry->page_count * page_size))
            return wrong(k, "shared entry %u has %d keys", e, plan_kv_len(k->c, g)[e]);
    for (uint32_t r = 0; r < level->entries; r++) {
        const uint32_t begin = (uint32_t)level->qo_indptr[r];
        const uint32_t end = (uint32_t)level->qo_indptr[r + 1];
        const uint32_t kv_len = (uint32_t)plan_kv_len(k->c, 0)[k->shared + r];
        const int32_t *pages = level->kv_indices + level->kv_indptr[r];
        if (begin == end || end <= entry->row_begin || begin >= entry->row_begin + entry->row_count)
            continue;
        members++;
        if (begin < entry->row_begin || end > entry->row_begin + entry->row_count)
            return wrong(k, "shared entry %u has a part of request %u", e, r);
        if (kv_len < entry->page_count * page_size + (end - begin))
            return wrong(k, "shared entry %u has keys of request %u's own", e, r);
        for (uint32_t p = 0; p < entry->page_count; p++)
            if (plan_kv_pages(k->c)[entry->page_begin + p] != pages[p])
                return wrong(k, "page %u of shared entry %u is not request %u's", p, e, r);
    }
    return members > 1 || wrong(k, "shared entry %u has %u requests", e, members);
}

static int check_entries(struct checker *k)
{
    const struct attnd_batch_view *batch = &k->c->batch;
    uint32_t index = k->shared, page = 0;

    for (uint32_t e = 0; e < k->shared; e++)
        if (!check_shared(k, e))
            return 0;
    for (uint32_t l = 0; l < batch->levels; l++)
        for (uint32_t r = 0; r < batch->level[l].entries; r++, index++)
            if (!check_entry(k, index, l, r, &page))
                return 0;
    return index == k->head->entries || wrong(k, "%u entries", k->head->entries);
}

/* The entry of @level over @row. */
static uint32_t entry_over(const struct checker *k, uint32_t level, uint32_t row)
{
    uint32_t found = ATTND_NONE;

    for (uint32_t e = 0; e < k->head->entries; e++)
        if (k->entries[e].level == level && row >= k->entries[e].row_begin &&
            row < k->entries[e].row_begin + k->entries[e].row_count)
            found = e;
    return found;
}

/* Where a variant asks for the places of rows, a tile of an earlier level has rows of one entry on
 * each later level; it names the keys of these, and the last one's rows. */
static int check_placed(struct checker *k, uint32_t t)
{
    const struct attnd_tile *tile = &k->tiles[t];
    struct attnd_entry want = k->entries[tile->entry];
    const int32_t *kv_len = plan_kv_len(k->c, 0);
    int32_t behind = 0;

    const int placed = k->head->flags & ATTND_PLAN_PLACED &&
                       k->head->options & ATTND_OPTIONS_PLACE && want.level + 1 < k->head->levels;

    if (placed)
        for (uint32_t l = want.level + 1; l < k->head->levels; l++) {
            const uint32_t e = entry_over(k, l, tile->row_begin);
            if (e == ATTND_NONE || e != entry_over(k, l, tile->row_begin + tile->row_count - 1))
                return wrong(k, "tile %u has rows of several entries of level %u", t, l);
            behind += kv_len[e];
            want.row_begin = k->entries[e].row_begin;
            want.row_count = k->entries[e].row_count;
            want.behind = tile->of_entry.behind;
        }
    if (memcmp(&tile->of_entry, &want, sizeof(want)) != 0)
        return wrong(k, "tile %u repeats its entry wrongly", t);
    if (placed && (want.behind < k->head->entries || want.behind >= k->head->entries_max ||
                   kv_len[want.behind] != behind))
        return wrong(k, "tile %u has other keys behind it than %d", t, behind);
    return 1;
}

/* What a worker is told of both classes. */
static int check_classes(struct checker *k)
{
    const struct attnd_plan_head *head = k->head;
    const uint32_t workers = k->c->limits.target.tile_workers;
    const int beside = head->compute_workers > 0 && head->compute_workers < workers;

    if (attnd_plan_found(k->c->plan).fused != (uint32_t)beside)
        return wrong(k, "%u of %u workers compute first", head->compute_workers, workers);
    if (head->compute_tiles
            ? head->compute_tiles >= head->tiles || head->whole_tiles > head->compute_tiles ||
                  !head->compute_workers || head->compute_workers > workers
            : head->compute_workers || head->whole_tiles)
        return wrong(k, "%u whole of %u compute-bound tiles in front, for %u workers",
                     head->whole_tiles, head->compute_tiles, head->compute_workers);
    return 1;
}

/* Are there other tiles of the same rows of its entry? */
static int has_others(const struct checker *k, const struct attnd_tile *tile)
{
    for (uint32_t t = 0; t < k->head->tiles; t++)
        if (&k->tiles[t] != tile && k->tiles[t].entry == tile->entry &&
            k->tiles[t].row_begin == tile->row_begin)
            return 1;
    return 0;
}

/* All are of one where no class has workers of its own. */
static enum kind kind_of(const struct checker *k, const struct attnd_tile *tile)
{
    if (!k->head->compute_tiles || tile->tile_class != ATTND_TILE_COMPUTE)
        return MEMORY_BOUND;
    return has_others(k, tile) ? PART_OF_BLOCK : WHOLE_BLOCK;
}

/* As a worker reads the head. */
static enum kind place_of(const struct checker *k, uint32_t t)
{
    if (t >= k->head->compute_tiles)
        return MEMORY_BOUND;
    return t < k->head->whole_tiles ? WHOLE_BLOCK : PART_OF_BLOCK;
}

static int check_tile(struct checker *k, uint32_t t)
{
    const struct attnd_tile *tile = &k->tiles[t];
    const uint32_t group = k->head->group, full = k->c->limits.target.rows_per_tile;

    if (tile->entry >= k->head->entries)
        return wrong(k, "tile %u has entry %u", t, tile->entry);
    const struct attnd_entry *entry = &k->entries[tile->entry];
    if (!check_placed(k, t))
        return 0;
    if (tile->row_count == 0 || tile->row_begin < entry->row_begin ||
        tile->row_begin + tile->row_count > entry->row_begin + entry->row_count)
        return wrong(k, "tile %u leaves its entry", t);
    if (tile->row_count > 1 && tile->row_count * group > full)
        return wrong(k, "tile %u has %u packed rows", t, tile->row_count * group);
    if (tile->tile_class !=
        (uint32_t)(tile->row_count * group <= 16 ? ATTND_TILE_MEMORY : ATTND_TILE_COMPUTE))
        return wrong(k, "tile %u has class %u", t, tile->tile_class);
    const enum kind kind = kind_of(k, tile);
    if (kind != place_of(k, t))
        return wrong(k, "tile %u is of kind %d, and at a place for %d", t, kind, place_of(k, t));
    if (tile->cost > k->cost_before[kind])
        return wrong(k, "tile %u costs more than the one before", t);
    k->cost_before[kind] = tile->cost;
    return 1;
}

/* Puts tile @t into the list of a row, by (level, kv_begin). */
static void insert_tile(struct checker *k, struct row_tiles *row, uint32_t t)
{
    row->tile = realloc(row->tile, (row->count + 1) * sizeof(uint32_t));
    if (!row->tile)
        abort();
    uint32_t i = row->count++;
    for (; i > 0; i--) {
        const struct attnd_tile *before = &k->tiles[row->tile[i - 1]];
        uint32_t level = k->entries[k->tiles[t].entry].level;
        uint32_t level_before = k->entries[before->entry].level;
        if (level_before < level ||
            (level_before == level && before->kv_begin <= k->tiles[t].kv_begin))
            break;
        row->tile[i] = row->tile[i - 1];
    }
    row->tile[i] = t;
}

/* Do keys of this level, of whatever entry, belong to @row? */
static int has_keys(const struct checker *k, uint32_t row, uint32_t level)
{
    for (uint32_t e = 0; e < k->head->entries; e++)
        if (k->entries[e].level == level && row >= k->entries[e].row_begin &&
            row < k->entries[e].row_begin + k->entries[e].row_count && k->entries[e].page_count)
            return 1;
    return 0;
}

/* The tiles of one level over @row, as a chain over the keys. *next: first not of this level.
 * *from: the key that it begins with; then, of a level that the planner added, the one behind it.
 */
static int check_chain(struct checker *k, uint32_t row, uint32_t level, uint32_t *next,
                       uint32_t *from)
{
    const struct row_tiles *list = &k->rows[row];
    uint32_t key = *from, tiles = 0, entry = 0;

    for (; *next < list->count; (*next)++, tiles++) {
        const struct attnd_tile *tile = &k->tiles[list->tile[*next]];
        if (k->entries[tile->entry].level != level)
            break;
        if (key == ATTND_KV_OPEN || tile->kv_begin != key || tile->kv_end <= key)
            return wrong(k, "level %u of row %u: keys %u..%u after %u", level, row, tile->kv_begin,
                         tile->kv_end, key);
        if (tile->kv_end != ATTND_KV_OPEN && tile->kv_end % k->c->limits.target.kv_granule)
            return wrong(k, "level %u of row %u is cut at %u", level, row, tile->kv_end);
        key = tile->kv_end;
        entry = tile->entry;
    }
    if (tiles && key != ATTND_KV_OPEN)
        return wrong(k, "level %u of row %u ends at key %u", level, row, key);
    if (tiles && level < k->shared_levels)
        *from = (uint32_t)plan_kv_len(k->c, 0)[entry];
    if (tiles || level < k->shared_levels)
        return 1;
    if (level + 1 == k->head->levels)
        return wrong(k, "the last level has no tile for row %u", row);
    if (has_keys(k, row, level))
        return wrong(k, "level %u has no tile for row %u", level, row);
    return 1;
}

static int check_coverage(struct checker *k)
{
    for (uint32_t t = 0; t < k->head->tiles; t++) {
        if (!check_tile(k, t))
            return 0;
        for (uint32_t i = 0; i < k->tiles[t].row_count; i++)
            insert_tile(k, &k->rows[k->tiles[t].row_begin + i], t);
    }
    for (uint32_t row = 0; row < k->head->rows; row++) {
        uint32_t next = 0, from = 0;
        for (uint32_t l = 0; l < k->head->levels; l++)
            if (!check_chain(k, row, l, &next, &from))
                return 0;
        if (next != k->rows[row].count)
            return wrong(k, "row %u has a tile of no level", row);
    }
    return 1;
}

static int check_partials(struct checker *k)
{
    uint8_t *used = calloc(k->head->partial_rows + 1, 1);
    uint64_t total = 0;
    int good = used != NULL;

    for (uint32_t t = 0; good && t < k->head->tiles; t++) {
        const struct attnd_tile *tile = &k->tiles[t];
        int alone = 1;
        for (uint32_t i = 0; i < tile->row_count; i++)
            alone &= k->rows[tile->row_begin + i].count == 1;
        if ((tile->partial == ATTND_NONE) != alone)
            good = wrong(k, "tile %u is %s", t, alone ? "partial" : "direct");
        if (tile->partial == ATTND_NONE) {
            if (tile->merge_count)
                good = wrong(k, "tile %u is direct and arrives", t);
            continue;
        }
        for (uint32_t i = 0; good && i < tile->row_count; i++) {
            uint64_t row = (uint64_t)tile->partial + i;
            if (row >= k->head->partial_rows || used[row]++)
                good = wrong(k, "partial row %llu of tile %u is beyond or taken",
                             (unsigned long long)row, t);
        }
        total += tile->row_count;
    }
    free(used);
    if (good && total != k->head->partial_rows)
        return wrong(k, "%u partial rows, %llu used", k->head->partial_rows,
                     (unsigned long long)total);
    return good;
}

static int rows_alike(const struct checker *k, uint32_t a, uint32_t b)
{
    return k->rows[a].count == k->rows[b].count &&
           !memcmp(k->rows[a].tile, k->rows[b].tile, k->rows[a].count * sizeof(uint32_t));
}

/* One merge: its rows have these parts, in this order, and its neighbours have others. */
static int check_merge(struct checker *k, uint32_t m, uint32_t *row, uint32_t *part)
{
    const struct attnd_merge *merge = &k->merges[m];

    while (*row < merge->row_begin && *row < k->head->rows)
        if (k->tiles[k->rows[(*row)++].tile[0]].partial != ATTND_NONE)
            return wrong(k, "row %u is in no merge", *row - 1);
    if (merge->row_begin != *row || merge->row_count == 0 ||
        merge->row_count > k->head->rows - *row || merge->part_begin != *part)
        return wrong(k, "merge %u: rows %u+%u, parts from %u", m, merge->row_begin,
                     merge->row_count, merge->part_begin);
    for (uint32_t i = 0; i < merge->row_count; i++) {
        const struct row_tiles *list = &k->rows[merge->row_begin + i];
        if (list->count != merge->part_count || !rows_alike(k, merge->row_begin, *row + i))
            return wrong(k, "merge %u has %u parts, row %u has %u", m, merge->part_count, *row + i,
                         list->count);
        for (uint32_t p = 0; p < list->count; p++) {
            const struct attnd_tile *tile = &k->tiles[list->tile[p]];
            uint32_t want = tile->partial + (merge->row_begin + i - tile->row_begin);
            if (tile->partial == ATTND_NONE || k->parts[merge->part_begin + p] + i != want)
                return wrong(k, "part %u of merge %u is not row %u of tile %u", p, m, *row + i,
                             list->tile[p]);
        }
    }
    *row += merge->row_count;
    *part += merge->part_count;
    if (*row < k->head->rows && rows_alike(k, *row - 1, *row))
        return wrong(k, "merge %u could be longer", m);
    return 1;
}

/* Merges follow each other over the rows and over the list of parts, and nothing is left over. */
static int check_merge_list(struct checker *k)
{
    uint32_t row = 0, part = 0;

    for (uint32_t m = 0; m < k->head->merges; m++)
        if (!check_merge(k, m, &row, &part))
            return 0;
    for (; row < k->head->rows; row++)
        if (k->tiles[k->rows[row].tile[0]].partial != ATTND_NONE)
            return wrong(k, "row %u is in no merge", row);
    if (part != k->head->parts)
        return wrong(k, "%u parts, %u listed", k->head->parts, part);
    return 1;
}

/* By the rows: whether the parts of all rows of a tile are of the same rows of the same entry.
 * Those of fixed splits are never said to be. */
static int parts_alone(const struct checker *k, const struct attnd_tile *tile)
{
    int alone = tile->merge_count > 0 && !(k->head->options & ATTND_OPTION_FIXED_SPLIT);

    for (uint32_t i = 0; i < tile->row_count; i++) {
        const struct row_tiles *list = &k->rows[tile->row_begin + i];
        for (uint32_t p = 0; p < list->count; p++) {
            const struct attnd_tile *part = &k->tiles[list->tile[p]];
            alone &= part->entry == tile->entry && part->row_begin == tile->row_begin &&
                     part->row_count == tile->row_count && list->count <= ATTND_PARTS_ALONE_MAX;
        }
    }
    return alone;
}

static int check_first_merges(struct checker *k)
{
    for (uint32_t t = 0; t < k->head->tiles; t++) {
        const struct attnd_tile *tile = &k->tiles[t];
        const struct attnd_merge none = {0};
        const struct attnd_merge *first = tile->merge_count && tile->merge_begin < k->head->merges
                                              ? &k->merges[tile->merge_begin]
                                              : &none;
        if (memcmp(&tile->first_merge, first, sizeof(*first)) != 0)
            return wrong(k, "tile %u repeats its first merge wrongly", t);
        if (parts_alone(k, tile) != (int)tile->parts_alone)
            return wrong(k, "tile %u: its parts are alone or not: %u", t, tile->parts_alone);
    }
    return 1;
}

static int count_arrivals(struct checker *k, uint32_t *arrivals)
{
    for (uint32_t t = 0; t < k->head->tiles; t++)
        for (uint32_t i = 0; i < k->tiles[t].merge_count; i++) {
            uint32_t m = k->tiles[t].merge_begin + i;
            if (m >= k->head->merges)
                return wrong(k, "tile %u arrives at merge %u", t, m);
            arrivals[m]++;
        }
    for (uint32_t m = 0; m < k->head->merges; m++)
        if (arrivals[m] != k->merges[m].part_count)
            return wrong(k, "merge %u: %u arrivals, %u parts", m, arrivals[m],
                         k->merges[m].part_count);
    return 1;
}

static int check_merges(struct checker *k)
{
    uint32_t *arrivals = calloc((size_t)k->head->merges + 1, sizeof(*arrivals));
    int good =
        arrivals && check_merge_list(k) && check_first_merges(k) && count_arrivals(k, arrivals);

    free(arrivals);
    return good;
}

int plan_check(const struct plan_case *c, char *why, size_t why_bytes)
{
    struct checker k = {.c = c,
                        .head = attnd_plan_head(c->plan),
                        .entries = plan_entries(c),
                        .tiles = plan_tiles(c),
                        .merges = plan_merges(c),
                        .parts = plan_merge_parts(c),
                        .why = why,
                        .why_bytes = why_bytes};
    k.shared = attnd_plan_shared_entries(c->plan);
    k.shared_levels = k.head->levels - c->batch.levels;
    memset(k.cost_before, 0xff, sizeof(k.cost_before));
    int good = k.head->rows == c->batch.rows && k.head->levels >= c->batch.levels &&
               (k.shared ? k.shared_levels > 0 : k.shared_levels == 0) &&
               k.head->heads_q == c->batch.heads_q &&
               k.head->group * c->pool.heads_kv == c->batch.heads_q;

    if (!good)
        return wrong(&k, "the head is not the batch's");
    if (!check_classes(&k))
        return 0;
    k.rows = calloc(k.head->rows + 1u, sizeof(*k.rows));
    good = k.rows && check_places(&k) && check_entries(&k) && check_coverage(&k) &&
           check_partials(&k) && check_merges(&k);
    for (uint32_t row = 0; k.rows && row < k.head->rows; row++)
        free(k.rows[row].tile);
    free(k.rows);
    return good;
}
