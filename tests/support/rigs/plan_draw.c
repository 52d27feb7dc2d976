/* plan_draw.c - any case the planner must be right about: odd sizes more often than round ones. */
#include "tests/support/rigs/plan_case.h"

#include <string.h>

#define ENTRIES_MAX 24u

static uint32_t one_of(struct case_source *source, const uint32_t *values, uint32_t count)
{
    return values[case_below(source, count)];
}

#define ONE_OF(source, ...)                                                                        \
    one_of(source, (const uint32_t[]){__VA_ARGS__},                                                \
           sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static int32_t draw_kv_len(struct case_source *source)
{
    switch (case_below(source, 8)) {
    case 0:
    case 1:
        return 0;
    case 2:
        return (int32_t)case_below(source, 20000);
    case 3:
        return 4096;
    default:
        return (int32_t)case_below(source, 600);
    }
}

/* A partition of @rows in which empty entries, single rows and long runs all occur. */
static void draw_level(struct plan_case *c, struct case_source *source, uint32_t rows)
{
    const uint32_t entries = rows ? 1 + case_below(source, ENTRIES_MAX) : case_below(source, 3);
    int32_t qo_len[ENTRIES_MAX], kv_len[ENTRIES_MAX];
    uint32_t left = rows;

    for (uint32_t r = 0; r < entries; r++) {
        uint32_t most = case_below(source, 3) ? 2 * rows / entries + 2 : 3;
        uint32_t take = case_below(source, most);
        take = take < left && r + 1 < entries ? take : left;
        qo_len[r] = (int32_t)take;
        kv_len[r] = draw_kv_len(source);
        left -= take;
    }
    plan_case_level(c, entries, qo_len, kv_len);
}

/* Often the same partition on the next level, as in real cascades. */
static void repeat_level(struct plan_case *c, struct case_source *source)
{
    const struct attnd_level_view *above = &c->batch.level[c->batch.levels - 1];
    int32_t qo_len[ENTRIES_MAX], kv_len[ENTRIES_MAX];

    for (uint32_t r = 0; r < above->entries; r++) {
        qo_len[r] = above->qo_indptr[r + 1] - above->qo_indptr[r];
        kv_len[r] = draw_kv_len(source);
    }
    plan_case_level(c, above->entries, qo_len, kv_len);
}

/* Requests that begin like the one before, for as long as both lists go on. */
static void draw_shared(struct plan_case *c, struct case_source *source)
{
    struct attnd_level_view *level = &c->batch.level[0];
    int32_t *indices = (int32_t *)(uintptr_t)level->kv_indices;

    for (uint32_t r = 1; r < level->entries; r++) {
        const uint32_t before = (uint32_t)(level->kv_indptr[r] - level->kv_indptr[r - 1]);
        const uint32_t pages = (uint32_t)(level->kv_indptr[r + 1] - level->kv_indptr[r]);
        uint32_t alike = pages < before ? pages : before;

        if (case_below(source, 3) == 0)
            alike = case_below(source, alike + 1);
        memcpy(indices + level->kv_indptr[r], indices + level->kv_indptr[r - 1],
               (case_below(source, 5) ? alike : 0) * sizeof(*indices));
    }
}

void plan_case_draw(struct plan_case *c, struct case_source *source)
{
    plan_case_begin(c);
    c->pool.page_size = ONE_OF(source, 1, 2, 3, 16, 64, 256);
    c->pool.heads_kv = 1 + case_below(source, 8);
    c->batch.heads_q =
        c->pool.heads_kv * ONE_OF(source, 1, 1, 2, 3, 4, 5, 7, 8, 16, 33, 64, ATTND_GROUP_MAX);
    c->limits.target.tile_workers = ONE_OF(source, 1, 2, 3, 16, 66, 132, 1000);
    c->limits.target.rows_per_tile = ONE_OF(source, 1, 16, 60, 64, 128, 256);
    c->limits.target.kv_granule = ONE_OF(source, 1, 7, 16, 64, 128, 1024);
    c->batch.flags = case_below(source, 4);
    c->batch.reserve_pages = case_below(source, 2) ? case_below(source, 4) : 0;

    const uint32_t levels = case_below(source, 3) ? 1 + case_below(source, 3)
                                                  : 1 + case_below(source, ATTND_LEVELS_MAX);
    const uint32_t rows = case_below(source, 4) ? case_below(source, 40) : case_below(source, 400);
    draw_level(c, source, rows);
    while (c->batch.levels < levels)
        if (case_below(source, 3))
            draw_level(c, source, rows);
        else
            repeat_level(c, source);

    c->limits.target.fusion = (enum attnd_plan_fusion)case_below(source, 3);
    c->limits.target.cascade = (enum attnd_plan_cascade)case_below(source, 3);
    if (case_below(source, 2))
        c->limits.target.rates = (struct attnd_plan_rates){5000, 60, 60, 4400, 128};
    if (c->batch.levels == 1 && case_below(source, 4))
        draw_shared(c, source);
    if (case_below(source, 2))
        c->batch.flags |= ATTND_BATCH_SHARED_PAGES;

    plan_case_fit(c);
    if (case_below(source, 3) == 0) {
        c->batch.options |= ATTND_OPTION_WINDOW;
        c->batch.variant.window_left = (int32_t)ONE_OF(source, 0, 1, 15, 63, 64, 200, 5000);
    }
    if (case_below(source, 4) == 0) {
        c->batch.options |= ATTND_OPTION_FIXED_SPLIT;
        c->batch.variant.fixed_split = ONE_OF(source, 1000, 2000, 4999);
        c->limits.fixed_split = c->batch.variant.fixed_split;
    }
    if (case_below(source, 2)) { /* otherwise exactly full */
        c->limits.rows += case_below(source, 50);
        c->limits.requests += case_below(source, 50);
        c->limits.pages += case_below(source, 50);
        c->limits.levels += case_below(source, ATTND_LEVELS_MAX + 1 - c->limits.levels);
        if (c->limits.heads_q / c->limits.heads_kv < 64)
            c->limits.heads_q += c->limits.heads_kv * case_below(source, 8);
    }
}
