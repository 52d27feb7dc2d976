/*
 * test_cut.c - lengths into tiles as an engine's kernel cuts them, by one thread: tiles do what the
 * batch says, and end as early as the planner's.
 *
 * The judge knows what a tile means and nothing of how it is made: it asks of each row which tiles
 * answer for it. ATTND_SEED repeats a run, ATTND_CASES changes its length.
 */
#include "persistent/cut_batch.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"
#include "tests/support/rigs/plan_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS 300
#define ROWS 9000
#define BLOCKS 2500
#define TILES 9000
#define CASES (8u * 3 * 4) /* beside the planner */

static uint64_t seed;
static uint32_t number; /* of the case */

static struct attnd_cut_shape shape;
static int32_t lengths[REQUESTS], qo_indptr[REQUESTS + 1];
static struct attnd_cut cut;
static struct attnd_cut_result result;
static struct attnd_tile tiles[TILES];
static struct attnd_merge merges[BLOCKS];
static uint32_t parts[TILES];
static uint32_t memory[200000];

/* ---- one batch ---- */

static void write_tiles(void)
{
    for (uint32_t t = 0; t < result.tiles; t++) {
        const uint32_t b = attnd_cut_block_at(&cut, result.blocks, t);
        const uint32_t part = t - cut.place[b].tile;
        struct attnd_tile *tile = &tiles[cut.order[t]];
        attnd_cut_tile(&shape, &cut, b, part, tile);
        if (!tile->merge_count)
            continue;
        assert_true(tile->merge_begin < BLOCKS);
        merges[tile->merge_begin] = tile->first_merge;
        if (tile->first_merge.part_begin)
            parts[tile->first_merge.part_begin + part] = tile->partial;
    }
    for (uint32_t i = 0; i < ATTND_CUT_REFUSED_PARTS; i++)
        parts[i] = i * shape.tokens;
}

static void make(void)
{
    const struct attnd_team alone = attnd_team_alone();
    const uint32_t bytes = attnd_cut_lay(&cut, memory, shape.requests, BLOCKS, TILES);

    assert_int_equal(bytes, ATTND_CUT_BYTES + shape.requests * ATTND_CUT_REQUEST_BYTES +
                                BLOCKS * ATTND_CUT_BLOCK_BYTES + TILES * ATTND_CUT_TILE_BYTES);
    assert_true(bytes <= sizeof(memory));
    memset(memory, 0xa5, sizeof(memory));
    memset(tiles, 0xa5, sizeof(tiles));
    attnd_cut_requests(&alone, &shape, &cut, lengths, qo_indptr);
    if (*cut.rows_refused)
        return;
    assert_true(cut.block_begin[shape.requests] <= BLOCKS);
    result = attnd_cut_batch(&alone, &shape, &cut);
    assert_true(result.tiles <= TILES);
    write_tiles();
}

/* A GPU's worker, for heads of 128. */
static void begin(uint32_t requests, uint32_t group)
{
    shape = (struct attnd_cut_shape){
        .requests = requests,
        .rows_each = 1,
        .rows = ROWS,
        .keys = 1 << 20,
        .table_stride = 1 << 16,
        .page_size = 16,
        .heads_kv = 8,
        .group = group,
        .tokens = group < 128 ? 128 / group : 1,
        .workers = 132,
        .pace = {.rows_per_tile = 128,
                 .granule = 64,
                 .rows_step = 128,
                 .keys_item = 400000,
                 .row_ns = 0.1f,
                 .read_ns = 25.0f,
                 .bytes_ns = 0.2f,
                 .start_ns = 300.0f,
                 .wave_ns = 3500.0f,
                 .part_ns = 6000.0f,
                 .part_row_ns = 50.0f,
                 .merge_row_ns = 50.0f},
    };
    shape.splits_max = (132 * ATTND_CUT_TILES_PER_WORKER + 7) / 8;
}

/* ---- the judge ---- */

static uint8_t seen_keys[1 << 16];

static uint32_t rows_of(uint32_t request)
{
    return shape.rows_each ? shape.rows_each
                           : (uint32_t)(qo_indptr[request + 1] - qo_indptr[request]);
}

static uint32_t first_row(uint32_t request)
{
    return shape.rows_each ? request * shape.rows_each : (uint32_t)qo_indptr[request];
}

static int refused(uint32_t request)
{
    return lengths[request] < 0 || (uint32_t)lengths[request] > shape.keys;
}

#define MUST(what)                                                                                 \
    do {                                                                                           \
        if (!(what))                                                                               \
            fail_msg("ATTND_SEED=%llu case %u: %s", (unsigned long long)seed, number, #what);      \
    } while (0)

static void check_merge(const struct attnd_tile *tile, uint32_t answers)
{
    const struct attnd_merge *merge = &merges[tile->merge_begin];
    uint32_t mine = 0;

    MUST(tile->merge_count == 1 && tile->merge_begin < result.merges);
    MUST(memcmp(merge, &tile->first_merge, sizeof(*merge)) == 0);
    MUST(merge->row_begin == tile->row_begin && merge->row_count == tile->row_count);
    MUST(merge->part_count == answers);
    for (uint32_t p = 0; p < merge->part_count; p++)
        mine += parts[merge->part_begin + p] == tile->partial;
    MUST(mine == 1);
}

/* Of one row: each key it sees is in one tile. */
static void check_row(uint32_t request, uint32_t row)
{
    const uint32_t length = (uint32_t)lengths[request];
    uint32_t answers = 0;

    memset(seen_keys, 0, length);
    for (uint32_t t = 0; t < result.tiles; t++) {
        const struct attnd_tile *tile = &tiles[t];
        if (row < tile->row_begin || row >= tile->row_begin + tile->row_count)
            continue;
        const uint32_t end = tile->kv_end < length ? tile->kv_end : length;
        MUST(tile->entry == request && tile->kv_begin % shape.pace.granule == 0);
        for (uint32_t key = tile->kv_begin; key < end; key++)
            seen_keys[key]++;
        answers++;
    }
    for (uint32_t key = 0; key < length; key++)
        MUST(seen_keys[key] == 1);
    MUST(answers >= 1);
    for (uint32_t t = 0; t < result.tiles; t++) {
        const struct attnd_tile *tile = &tiles[t];
        if (row < tile->row_begin || row >= tile->row_begin + tile->row_count)
            continue;
        MUST((tile->partial != ATTND_NONE) == (answers > 1));
        if (answers > 1)
            check_merge(tile, answers);
        else
            MUST(tile->merge_count == 0);
    }
}

/* Two parts that see nothing, merged with one that is no number. */
static void check_refused(uint32_t request, uint32_t row)
{
    uint32_t answers = 0;

    for (uint32_t t = 0; t < result.tiles; t++) {
        const struct attnd_tile *tile = &tiles[t];
        if (row < tile->row_begin || row >= tile->row_begin + tile->row_count)
            continue;
        answers++;
        MUST(tile->entry == request && tile->partial == 0 && tile->parts_alone == 0);
        MUST(tile->of_entry.page_count == 0);
        MUST(parts[tile->first_merge.part_begin + 1] == shape.tokens);
        check_merge(tile, ATTND_CUT_REFUSED_PARTS);
    }
    MUST(answers == ATTND_CUT_REFUSED_PARTS);
}

static void check_tile(const struct attnd_tile *tile)
{
    const uint32_t packed = tile->row_count * shape.group;
    const struct attnd_entry *entry = &tile->of_entry;

    MUST(entry->row_begin == first_row(tile->entry) && entry->row_count == rows_of(tile->entry));
    MUST(tile->row_begin >= entry->row_begin && tile->row_count <= shape.tokens);
    MUST(tile->row_begin + tile->row_count <= entry->row_begin + entry->row_count);
    MUST(entry->page_begin == tile->entry * shape.table_stride);
    MUST(tile->tile_class == (packed <= 16 ? ATTND_TILE_MEMORY : ATTND_TILE_COMPUTE));
    if (!refused(tile->entry))
        MUST(entry->page_count == ((uint32_t)lengths[tile->entry] + 15) / 16);
}

/* No partial row has two writers, except for those of refused requests. */
static void check_partials(void)
{
    static uint8_t taken[400000];
    const uint32_t first = ATTND_CUT_REFUSED_PARTS * shape.tokens;

    MUST(first + result.partials <= sizeof(taken));
    memset(taken, 0, first + result.partials);
    for (uint32_t t = 0; t < result.tiles; t++)
        for (uint32_t i = 0;
             tiles[t].partial != ATTND_NONE && !refused(tiles[t].entry) && i < tiles[t].row_count;
             i++) {
            MUST(tiles[t].partial >= first && tiles[t].partial + i < first + result.partials);
            MUST(!taken[tiles[t].partial + i]++);
        }
}

static void check_all(void)
{
    uint32_t expected = 0, most = 0;
    double sum = 0;

    for (uint32_t t = 0; t < result.tiles; t++) {
        check_tile(&tiles[t]);
        most = tiles[t].cost > most ? tiles[t].cost : most;
        sum += tiles[t].cost;
    }
    const double mean = result.tiles ? sum / result.tiles / most : 1; /* of the dearest */
    if (!result.compute_workers && (mean < 0.25 || mean > 0.25 + 1.0 / 31))
        MUST(result.uneven == (mean < 0.25));
    for (uint32_t t = 1; t < result.tiles; t++) /* in classes of a 31st of the dearest */
        MUST(t == result.whole_tiles || t == result.compute_tiles ||
             (double)tiles[t].cost <= tiles[t - 1].cost + most / 30.0);
    for (uint32_t r = 0; r < shape.requests; r++) {
        const uint32_t rows = rows_of(r), first = first_row(r);
        expected += lengths[r] != 0 && rows ? (rows + shape.tokens - 1) / shape.tokens : 0;
        if (lengths[r] == 0)
            continue;
        for (uint32_t row = first; row < first + rows; row += shape.tokens)
            if (refused(r))
                check_refused(r, row);
            else
                check_row(r, row);
    }
    MUST(result.blocks == expected);
    check_partials();
}

/* ---- random ---- */

static void draw(uint32_t which)
{
    struct prng prng = prng_fork(seed, which);
    const uint32_t longest = 1 + prng_below(&prng, prng_below(&prng, 3) ? 3000 : 60000);
    const uint32_t kind = prng_below(&prng, 3);
    uint32_t row = 0;

    begin(1 + prng_below(&prng, prng_below(&prng, 4) ? 40 : REQUESTS), 1u << prng_below(&prng, 6));
    shape.workers = 1 + prng_below(&prng, 140);
    shape.heads_kv = 1 + prng_below(&prng, 8);
    shape.splits_max = prng_below(&prng, 3) ? 528 / shape.heads_kv : prng_below(&prng, 9);
    shape.pace.rows_step = prng_below(&prng, 4) ? 128 : 1;
    shape.causal = prng_below(&prng, 2);
    shape.pace.keys_item = prng_below(&prng, 4) ? 400000 : 6400;
    shape.pace.merges_many = prng_below(&prng, 4) == 0;
    shape.rows_each = kind == 0 ? 1 : kind == 1 ? 1 + prng_below(&prng, 8) : 0;
    for (uint32_t r = 0; r < shape.requests; r++) {
        const uint32_t rows = prng_below(&prng, 5) ? 1 : prng_below(&prng, 200);
        qo_indptr[r] = (int32_t)row;
        row += rows && row + rows <= ROWS ? rows : 0;
        lengths[r] = (int32_t)(1 + prng_below(&prng, longest));
        if (prng_below(&prng, 10) == 0)
            lengths[r] = prng_below(&prng, 3) ? 0 : prng_below(&prng, 2) ? -1 : INT32_MAX;
    }
    qo_indptr[shape.requests] = (int32_t)row;
}

static void tiles_of_any_batch_cover_each_key_once(void **state)
{
    (void)state;
    for (number = 0; number < (uint32_t)test_number("ATTND_CASES", 300); number++) {
        draw(number);
        make();
        assert_int_equal(*cut.rows_refused, 0);
        check_all();
    }
}

/* What a window hides need not be covered; what is seen is. */
static void a_window_is_cut_where_it_begins(void **state)
{
    (void)state;
    begin(4, 4);
    shape.causal = 1;
    shape.window = 4096;
    for (uint32_t r = 0; r < 4; r++)
        lengths[r] = 50000;
    make();
    check_all();
    assert_true(result.tiles > 4);
    for (uint32_t t = 0; t < result.tiles; t++) /* parts of what is seen alone */
        assert_true(tiles[t].kv_begin == 0 || tiles[t].kv_begin >= 50000 - 4096 - 64);
}

static void rows_that_decrease_or_are_too_many_are_refused(void **state)
{
    (void)state;
    begin(3, 4);
    shape.rows_each = 0;
    shape.rows = 12;
    lengths[0] = lengths[1] = lengths[2] = 100;
    const int32_t wrong[][4] = {{0, 4, 3, 12}, {0, 4, 8, 13}, {-1, 4, 8, 12}, {0, -4, 8, 12}};
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(qo_indptr, wrong[i], sizeof(wrong[i]));
        make();
        assert_int_equal(*cut.rows_refused, 1);
    }
    const int32_t right[4] = {2, 4, 4, 12};
    memcpy(qo_indptr, right, sizeof(right));
    make();
    assert_int_equal(*cut.rows_refused, 0);
    check_all();
}

static void padding_alone_has_no_tiles(void **state)
{
    (void)state;
    begin(64, 4);
    memset(lengths, 0, sizeof(lengths));
    make();
    assert_int_equal(result.tiles, 0);
}

/* ---- beside the planner ---- */

/* Which tile is taken next: of a fused plan workers prefer a class. */
static uint32_t next_item(uint32_t worker, uint32_t computing, uint32_t computes, uint32_t items,
                          uint32_t taken[2])
{
    const int prefers = worker < computing;

    if ((prefers && taken[0] < computes) || computes + taken[1] == items)
        return taken[0]++;
    return computes + taken[1]++;
}

/* When the last of @count tiles is done if items are taken in order. @computes: tiles of a fused
 * plan that so many workers begin with. */
static double finish_of(const struct attnd_tile *of, uint32_t count, double stretch,
                        uint32_t computes, uint32_t computing)
{
    static double free_at[256];
    uint32_t taken[2] = {0, 0};
    double last = 0;

    memset(free_at, 0, sizeof(free_at));
    for (uint32_t i = 0; i < count * shape.heads_kv; i++) {
        uint32_t worker = 0;
        for (uint32_t w = 1; w < shape.workers; w++)
            worker = free_at[w] < free_at[worker] ? w : worker;
        const uint32_t item =
            next_item(worker, computing, computes * shape.heads_kv, count * shape.heads_kv, taken);
        const struct attnd_tile *tile = &of[item / shape.heads_kv];
        const uint32_t packed = tile->row_count * shape.group;
        const double keys =
            (tile->cost - ATTND_CUT_COST_TILE) / (double)attnd_cut_key_cost(&shape, packed);
        double ns = keys * (double)attnd_cut_key_ns(&shape, packed) + 300;

        if (tile->tile_class == ATTND_TILE_MEMORY)
            ns *= stretch;
        else if (tile->partial != ATTND_NONE)
            ns += (double)shape.pace.part_ns + packed * (double)shape.pace.part_row_ns;
        free_at[worker] += ns;
        last = free_at[worker] > last ? free_at[worker] : last;
    }
    return last;
}

/* The case's batch by both. */
static double over_planner(struct plan_case *c, double stretch)
{
    const struct attnd_level_view *level = &c->batch.level[0];

    assert_int_equal(plan_case_plan(c), 0);
    const struct attnd_plan_head *head = attnd_plan_head(c->plan);
    begin(level->entries, head->group);
    shape.rows_each = 0;
    shape.heads_kv = head->heads_kv;
    shape.workers = c->limits.target.tile_workers;
    shape.causal = head->flags & ATTND_BATCH_CAUSAL;
    shape.splits_max =
        (shape.workers * ATTND_CUT_TILES_PER_WORKER + head->heads_kv - 1) / head->heads_kv;
    shape.pace = attnd_plan_pace(c->plan);
    assert_int_equal(shape.pace.fusion, c->limits.target.fusion);
    shape.tokens = shape.pace.rows_per_tile / shape.group;
    for (uint32_t r = 0; r < level->entries; r++) {
        lengths[r] = (int32_t)attnd_level_keys(level, r, c->pool.page_size);
        qo_indptr[r] = level->qo_indptr[r];
    }
    qo_indptr[level->entries] = level->qo_indptr[level->entries];
    make();
    check_all();
    return finish_of(tiles, result.tiles, stretch, result.compute_tiles, result.compute_workers) /
           finish_of(plan_tiles(c), head->tiles, stretch, head->compute_tiles,
                     head->compute_workers);
}

static void batches_end_as_early_as_the_planner_lets_them(void **state)
{
    static int32_t qo[REQUESTS], kv[REQUESTS];
    const uint32_t counts[] = {1, 3, 8, 11, 32, 64, 100, 256};
    const uint32_t heads[] = {8, 1, 4};
    double sum = 0;

    (void)state;
    for (uint32_t i = 0; i < CASES; i++) {
        struct prng prng = prng_fork(seed, i);
        const uint32_t requests = counts[i % 8], kind = i / 24;
        struct plan_case c;

        number = i;
        plan_case_begin_gpu(&c);
        c.limits.target.fusion = ATTND_FUSION_OFF;
        c.limits.target.cascade = ATTND_CASCADE_OFF;
        c.pool.heads_kv = c.limits.heads_kv = heads[i / 8 % 3];
        c.limits.heads_q = c.batch.heads_q = 4 * c.limits.heads_kv;
        c.batch.flags = ATTND_BATCH_CAUSAL;
        for (uint32_t r = 0; r < requests; r++) {
            qo[r] = kind == 0 ? 1 : kind == 1 ? 5 : 1 + (int32_t)prng_below(&prng, 60);
            kv[r] = kind == 3 ? 4000 : 500 + (int32_t)prng_below(&prng, 3500);
        }
        plan_case_level(&c, requests, qo, kv);
        const double ratio = over_planner(&c, 1.5);
        plan_case_free(&c);
        sum += ratio;
        if (ratio > 1.2)
            fail_msg("ATTND_SEED=%llu case %u: ends %.3f times as late", (unsigned long long)seed,
                     i, ratio);
    }
    assert_true(sum / CASES < 1.01);
}

static void prompts_and_decodes_are_in_work_at_once_as_the_planner_has_them(void **state)
{
    uint32_t fused = 0;
    double sum = 0;

    (void)state;
    for (uint32_t i = 0; i < CASES; i++) {
        struct prng prng = prng_fork(seed, i);
        const uint32_t decodes = 8 + prng_below(&prng, 100), prompts = 1 + prng_below(&prng, 3);
        static int32_t qo[REQUESTS], kv[REQUESTS];
        struct plan_case c;

        number = i;
        plan_case_begin_gpu(&c);
        c.limits.target.cascade = ATTND_CASCADE_OFF;
        c.pool.heads_kv = c.limits.heads_kv = i % 2 ? 8 : 1;
        c.limits.heads_q = c.batch.heads_q = 4 * c.limits.heads_kv;
        c.batch.flags = ATTND_BATCH_CAUSAL;
        for (uint32_t r = 0; r < decodes + prompts; r++) {
            const int prompt = r % 37 == 3 && r / 37 < prompts;
            qo[r] = prompt ? 200 + (int32_t)prng_below(&prng, 1000) : 1;
            kv[r] = 2000 + (int32_t)prng_below(&prng, 9000);
        }
        plan_case_level(&c, decodes + prompts, qo, kv);
        const double ratio = over_planner(&c, 1.5);
        fused += result.compute_workers != 0;
        assert_int_equal(result.compute_workers != 0,
                         attnd_plan_head(c.plan)->compute_workers != 0);
        plan_case_free(&c);
        sum += ratio;
        if (ratio > 1.25)
            fail_msg("ATTND_SEED=%llu case %u: ends %.3f times as late", (unsigned long long)seed,
                     i, ratio);
    }
    assert_true(fused > CASES / 4);
    assert_true(sum / CASES < 1.02);
}

static void a_long_decode_of_one_head_has_as_many_parts_as_the_planner_gives_it(void **state)
{
    const int32_t qo[] = {1}, kv[] = {32000};
    struct plan_case c;

    (void)state;
    plan_case_begin_gpu(&c);
    c.limits.target.cascade = ATTND_CASCADE_OFF;
    c.pool.heads_kv = c.limits.heads_kv = 1;
    c.limits.heads_q = c.batch.heads_q = 8;
    plan_case_level(&c, 1, qo, kv);
    const double ratio = over_planner(&c, 1);
    const uint32_t planned = attnd_plan_head(c.plan)->tiles;
    plan_case_free(&c);
    assert_true(ratio > 0.95 && ratio < 1.05);
    assert_in_range(result.tiles, planned - 1, planned + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_of_any_batch_cover_each_key_once),
        cmocka_unit_test(a_window_is_cut_where_it_begins),
        cmocka_unit_test(rows_that_decrease_or_are_too_many_are_refused),
        cmocka_unit_test(padding_alone_has_no_tiles),
        cmocka_unit_test(batches_end_as_early_as_the_planner_lets_them),
        cmocka_unit_test(a_long_decode_of_one_head_has_as_many_parts_as_the_planner_gives_it),
        cmocka_unit_test(prompts_and_decodes_are_in_work_at_once_as_the_planner_has_them),
    };

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
