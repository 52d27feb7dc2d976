/*
 * random_draw.c - where the dice fall.
 *
 * Dense in corners rather than realistic: lengths of 0, lengths at a page's edge, more queries than
 * keys, empty requests, page sizes that are no power of two. And cheap: a budget of multiplications
 * is drawn for each batch first, on a logarithmic scale, and lengths are cut until it is kept, so
 * that a million batches are a matter of minutes and the expensive ones are still among them.
 */
#include "tests/support/random/random_batch.h"

#include "schemas/abi.h"

#include <math.h>
#include <string.h>

static uint32_t pick(struct prng *prng, const uint32_t *values, uint32_t count)
{
    return values[prng_below(prng, count)];
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* ---- the pool ---- */

/* Few enough heads for long lists of keys. */
static uint32_t is_narrow(const struct random_shape *shape)
{
    return shape->heads_kv * (shape->group + 1) * shape->dim <= 512 && shape->layers == 1;
}

static void draw_heads(struct prng *prng, struct random_shape *shape)
{
    static const uint32_t groups[] = {1, 1,  2,  3,  4,  4,  5,  6,  7,  8,
                                      9, 10, 11, 12, 13, 14, 15, 16, 17, 32};
    const uint32_t narrow = prng_percent(prng, 70);

    do {
        shape->layers =
            1 + prng_percent(prng, narrow ? 0 : 40) + prng_percent(prng, narrow ? 0 : 15);
        /* shows: head dimensions 64, 128, 256 | yes | yes | 1 to 8 heads of K and V, groups of 1 to
         * 32 | test_e2e_random */
        shape->dim = 64u << (prng_percent(prng, 45) + prng_percent(prng, 33));
        shape->heads_kv = 1 + prng_below(prng, narrow ? 2 : 8);
        shape->group = narrow ? 1 + prng_below(prng, 3) : pick(prng, groups, 20);
    } while (narrow != is_narrow(shape) || shape->heads_kv * shape->dim > 1024 ||
             shape->heads_kv * shape->group * shape->dim > 8192);
}

/* shows: pages of any size, NHD and HND, joined and split, any strides | yes | yes | pages of 1 to
 * 128 tokens | test_e2e_random */
static void draw_shape(struct prng *prng, struct random_shape *shape)
{
    static const uint32_t page_sizes[] = {1, 2, 3, 5, 8, 16, 16, 32, 64, 128};
    static const uint32_t pads[] = {0, 0, 0, 8, 16, 1, 7, 24};

    memset(shape, 0, sizeof(*shape));
    shape->dtype = prng_percent(prng, 50) ? ATTND_FP16 : ATTND_BF16;
    draw_heads(prng, shape);
    do {
        shape->page_size = pick(prng, page_sizes, 10);
    } while (shape->page_size * shape->heads_kv * shape->dim * shape->layers > 128 * 1024);
    shape->service_pool = prng_percent(prng, 25);
    if (shape->service_pool)
        return;
    shape->hnd = prng_percent(prng, 40);
    shape->interleaved = prng_percent(prng, 30);
    shape->pad = pick(prng, pads, 8);
}

/* Groups beyond those above leave room for few heads. */
static void widen(struct random_shape *shape, uint32_t group)
{
    shape->group = group;
    shape->heads_kv = shape->heads_kv > 1 && group <= 64 ? 2 : 1;
}

/* ---- lengths ---- */

static int32_t draw_kv_len(struct prng *prng, int32_t page_size)
{
    switch (prng_below(prng, 7)) {
    case 0:
        return prng_between(prng, 0, 20);
    case 1: /* at the edge of a page */
        return larger(0, smaller(300, page_size * prng_between(prng, 0, 300 / page_size + 1) +
                                          prng_between(prng, -1, 1)));
    case 2: /* at the edge of a block of keys */
        return 64 * prng_between(prng, 1, 2) + prng_between(prng, -1, 1);
    default:
        return prng_between(prng, 0, 300);
    }
}

/* shows: decode, several tokens, prefill, chunks, more queries than keys, none of either | yes |
 * yes | 0 to 5,000 keys | test_e2e_random */
static int32_t draw_qo_len(struct prng *prng, uint32_t kind, int32_t kv_len)
{
    switch (kind) {
    case 0: /* decode */
        return 1;
    case 1: /* a few drafts */
        return prng_between(prng, 1, 8);
    case 2: /* prefill */
        return kv_len;
    case 3: /* a chunk of one */
        return prng_between(prng, 0, kv_len);
    case 4: /* more queries than keys */
        return kv_len + prng_between(prng, 0, 20);
    default:
        return 0;
    }
}

static void draw_requests(struct prng *prng, struct random_batch *batch, uint32_t is_long)
{
    struct random_level *last = &batch->level[batch->levels - 1];
    const uint32_t mixed = prng_percent(prng, 40);
    uint32_t kind = prng_below(prng, 5);

    last->requests = 1 + prng_below(prng, is_long ? 2 : RANDOM_REQUESTS_MAX);
    for (uint32_t e = 0; e < last->requests; e++) {
        struct random_entry *entry = &last->entry[e];
        entry->kv_len[0] = draw_kv_len(prng, (int32_t)batch->shape.page_size);
        if (mixed)
            kind = prng_below(prng, 6);
        entry->qo_len = draw_qo_len(prng, prng_percent(prng, 5) ? 5 : kind, entry->kv_len[0]);
    }
    for (uint32_t l = 0; l + 1 < batch->levels; l++) {
        batch->level[l].requests = 1 + prng_below(prng, l + 1 == batch->levels - 1 ? 4 : 2);
        for (uint32_t e = 0; e < batch->level[l].requests; e++)
            batch->level[l].entry[e].kv_len[0] =
                prng_percent(prng, 10) ? 0 : draw_kv_len(prng, (int32_t)batch->shape.page_size);
    }
    if (is_long) {
        struct random_level *level = &batch->level[prng_below(prng, batch->levels)];
        struct random_entry *entry = &level->entry[prng_below(prng, level->requests)];
        entry->kv_len[0] =
            RANDOM_KV_LONG + 1 + prng_between(prng, 0, prng_percent(prng, 85) ? 300 : 3000);
        entry->qo_len = level == last ? 1 + (int32_t)prng_percent(prng, 25) : 0;
    }
}

/* Multiplications, with every prefix taken to belong to every row. */
static double estimate(const struct random_batch *batch)
{
    const struct random_level *last = &batch->level[batch->levels - 1];
    double prefix = 0, pairs = 0;

    for (uint32_t l = 0; l + 1 < batch->levels; l++) {
        int32_t longest = 0;
        for (uint32_t e = 0; e < batch->level[l].requests; e++)
            longest = larger(longest, batch->level[l].entry[e].kv_len[0]);
        prefix += longest;
    }
    for (uint32_t e = 0; e < last->requests; e++)
        pairs += (last->entry[e].kv_len[0] + prefix) *
                 (last->entry[e].qo_len * (double)batch->shape.group + 1);
    return pairs * 2 * batch->shape.heads_kv * batch->shape.dim * batch->shape.layers *
           batch->steps;
}

/* The entry with the most keys of all that are not long; NULL if every one is. */
static struct random_entry *deepest(struct random_batch *batch)
{
    struct random_entry *found = NULL;

    for (uint32_t l = 0; l < batch->levels; l++)
        for (uint32_t e = 0; e < batch->level[l].requests; e++) {
            struct random_entry *entry = &batch->level[l].entry[e];
            if (entry->kv_len[0] <= RANDOM_KV_LONG &&
                (!found || entry->kv_len[0] > found->kv_len[0]))
                found = entry;
        }
    return found;
}

/* Halves the most queries, then what keys are not long, then takes steps and requests away, until
 * the work fits. */
static void cut(struct random_batch *batch, double budget)
{
    struct random_level *last = &batch->level[batch->levels - 1];

    while (estimate(batch) > budget) {
        struct random_entry *widest = &last->entry[0], *deep = deepest(batch);
        for (uint32_t e = 1; e < last->requests; e++)
            if (last->entry[e].qo_len > widest->qo_len)
                widest = &last->entry[e];
        if (widest->qo_len > 1)
            widest->qo_len /= 2;
        else if (deep && deep->kv_len[0] > 40)
            deep->kv_len[0] /= 2;
        else if (batch->steps > 1)
            batch->steps--;
        else if (last->requests > 1 && last->entry[last->requests - 1].kv_len[0] <= RANDOM_KV_LONG)
            last->requests--;
        else
            return;
    }
}

/* Rows of the levels above the last: whole requests in a row (nested prefixes), or cut anywhere. */
static void draw_partition(struct prng *prng, struct random_batch *batch, uint32_t l)
{
    const struct random_level *last = &batch->level[batch->levels - 1];
    struct random_level *level = &batch->level[l];
    const int32_t rows = (int32_t)random_batch_rows(batch);
    int32_t left = rows;
    uint32_t next = 0;
    const uint32_t nested = prng_percent(prng, 70);

    for (uint32_t e = 0; e + 1 < level->requests; e++) {
        int32_t take = 0;
        if (nested) {
            uint32_t until = next + prng_below(prng, last->requests - next + 1);
            for (; next < until; next++)
                take += last->entry[next].qo_len;
        } else {
            take = prng_between(prng, 0, left);
        }
        level->entry[e].qo_len = take;
        left -= take;
    }
    level->entry[level->requests - 1].qo_len = left;
}

/* ---- steps ---- */

static void draw_steps(struct prng *prng, struct random_batch *batch, uint32_t l, uint32_t e)
{
    struct random_entry *entry = &batch->level[l].entry[e];
    const uint32_t last = l + 1 == batch->levels;
    const int32_t low = last && batch->append ? entry->qo_len : 0;
    const int32_t high =
        (random_batch_pages(batch, l, e, 0) + (last ? (int32_t)batch->reserve_pages : 0)) *
        (int32_t)batch->shape.page_size;
    const uint32_t kind = prng_below(prng, 4);

    for (uint32_t s = 1; s < batch->steps; s++) {
        int32_t kv_len = entry->kv_len[s - 1];
        if (last && kind < 2) /* as a decode does */
            kv_len += entry->qo_len;
        else if (kind == 2)
            kv_len = prng_between(prng, low, high);
        else if (kind == 3)
            kv_len += prng_between(prng, -3, 12);
        entry->kv_len[s] = larger(low, smaller(high, kv_len));
    }
}

static void draw_advance(struct prng *prng, struct random_batch *batch)
{
    struct random_level *last = &batch->level[batch->levels - 1];

    batch->append = prng_percent(prng, 35);
    for (uint32_t e = 0; batch->append && e < last->requests; e++)
        last->entry[e].kv_len[0] = larger(last->entry[e].kv_len[0], last->entry[e].qo_len);
    if (batch->steps > 1 || prng_percent(prng, 10))
        batch->reserve_pages =
            prng_below(prng, 2 + 64 / (batch->shape.page_size + 1)) + prng_percent(prng, 50);
    for (uint32_t l = 0; l < batch->levels; l++)
        for (uint32_t e = 0; e < batch->level[l].requests; e++)
            draw_steps(prng, batch, l, e);
}

/* ---- the rest ---- */

static struct random_rows draw_rows(struct prng *prng)
{
    static const uint32_t pads[] = {8, 16, 1, 3, 40};
    struct random_rows rows = {0, 0};

    if (prng_percent(prng, 40)) {
        rows.heads_first = prng_percent(prng, 40);
        rows.pad = pick(prng, pads, 5);
    }
    return rows;
}

static void draw_options(struct prng *prng, struct random_batch *batch)
{
    static const float scales[] = {0.01f, 0.25f, 1.0f};

    batch->causal = prng_percent(prng, 60);
    batch->want_lse = prng_percent(prng, 70);
    batch->lse_ln = prng_percent(prng, 40);
    batch->seen_nan = prng_percent(prng, 3);
    batch->garbage = prng_below(prng, 4);
    batch->sharing = prng_percent(prng, 70) ? (uint32_t)SHARE_NONE
                     : batch->append        ? (uint32_t)SHARE_LEADING
                                            : 1 + prng_below(prng, 2);
    batch->sm_scale = prng_percent(prng, 70) ? 0 : scales[prng_below(prng, 3)];
    batch->q_scale = prng_percent(prng, 60) ? 1.0f : prng_percent(prng, 70) ? 4.0f : 0.05f;
    batch->q = draw_rows(prng);
    batch->o = draw_rows(prng);
    batch->lse = draw_rows(prng);
    batch->kv_rows = draw_rows(prng);
    batch->tight = prng_percent(prng, 15);
    batch->quiet = prng_percent(prng, 50);
    batch->lane = prng_percent(prng, 50) ? 0 : prng_below(prng, ATTND_LANES_MAX);
}

void random_batch_draw_group(uint64_t seed, uint64_t index, uint32_t group,
                             struct random_batch *batch)
{
    struct prng shape_prng = prng_fork(seed, index / RANDOM_SHAPE_BATCHES);
    struct prng prng = prng_fork(seed + 1, index);

    do {
        memset(batch, 0, sizeof(*batch));
        batch->seed = prng_next(&prng);
        struct prng same_shape = shape_prng;
        draw_shape(&same_shape, &batch->shape);
        const uint32_t is_long = is_narrow(&batch->shape) && prng_percent(&prng, 18);
        if (group)
            widen(&batch->shape, group);

        batch->levels = 1 + prng_percent(&prng, 35) * (1 + prng_percent(&prng, 30));
        batch->steps = prng_percent(&prng, 70) ? 1 : 2 + prng_below(&prng, RANDOM_STEPS_MAX - 1);
        draw_requests(&prng, batch, is_long);
        cut(batch, exp2(14 + 8 * prng_unit(&prng)));
        for (uint32_t l = 0; l + 1 < batch->levels; l++)
            draw_partition(&prng, batch, l);
        draw_advance(&prng, batch);
        draw_options(&prng, batch);
    } while (!random_batch_valid(batch));
}

void random_batch_draw(uint64_t seed, uint64_t index, struct random_batch *batch)
{
    random_batch_draw_group(seed, index, 0, batch);
}
