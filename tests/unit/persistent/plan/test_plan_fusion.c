/*
 * test_plan_fusion.c - batches with compute-bound and memory-bound tiles: when both are in work at
 * once, and how many workers each class has.
 *
 * Every plan made here also passes plan_check().
 */
#include "tests/support/rigs/checked_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define WORKERS 131u
#define ENTRIES 256u

static struct plan_case c;

static int begin(void **state)
{
    (void)state;
    plan_case_begin_gpu(&c);
    c.limits.target.tile_workers = WORKERS;
    c.batch.flags = ATTND_BATCH_CAUSAL;
    return 0;
}

static int end(void **state)
{
    (void)state;
    plan_case_free(&c);
    return 0;
}

/* A chunk of @rows at @context (0: none), and @decodes of @length. Return: what the plan found. */
static struct attnd_plan_found plan(int32_t rows, int32_t context, uint32_t decodes, int32_t length)
{
    int32_t qo_len[ENTRIES], kv_len[ENTRIES];
    uint32_t entries = 0;

    if (rows) {
        qo_len[entries] = rows;
        kv_len[entries++] = context;
    }
    for (uint32_t i = 0; i < decodes; i++) {
        qo_len[entries] = 1;
        kv_len[entries++] = length;
    }
    plan_case_level(&c, entries, qo_len, kv_len);
    checked_plan(&c);
    return attnd_plan_found(c.plan);
}

static uint32_t count(uint32_t first, uint32_t behind, uint32_t tile_class)
{
    uint32_t tiles = 0;

    for (uint32_t t = first; t < behind; t++)
        tiles += plan_tiles(&c)[t].tile_class == tile_class;
    return tiles;
}

/* Time of the tiles of a class, over the workers that begin with it. */
static double class_ns(uint32_t tile_class, double workers)
{
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    const double bytes = 2.0 * (head->dim_qk + head->dim_vo), dims = head->dim_qk + head->dim_vo;
    double ns = 0;

    for (uint32_t t = 0; t < head->tiles; t++) {
        const struct attnd_tile *tile = &plan_tiles(&c)[t];
        const uint32_t open = (uint32_t)plan_kv_len(&c, 0)[tile->entry];
        const double keys = (tile->kv_end < open ? tile->kv_end : open) - tile->kv_begin;
        if (tile->tile_class != tile_class)
            continue;
        ns += tile_class == ATTND_TILE_COMPUTE ? keys * 128 * 2 * dims / 5200 : keys * bytes / 67;
    }
    return ns * head->heads_kv / workers;
}

static void each_class_has_workers_for_as_long_as_the_other(void **state)
{
    (void)state;
    assert_int_equal(plan(2048, 16384, 64, 12288).fused, 1);
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    const double workers = head->compute_workers;
    assert_true(workers > 0 && workers < WORKERS);
    const double compute = class_ns(ATTND_TILE_COMPUTE, workers);
    const double memory = class_ns(ATTND_TILE_MEMORY, WORKERS - workers);
    assert_true(compute < memory * 1.25 && memory < compute * 1.25);
    assert_true(head->flags & ATTND_PLAN_ONE_PASS);
}

/* The long one of each head is to begin first, and not behind the short ones of other heads. Of a
 * causal prompt the longest takes twice the mean. */
static void a_prompt_far_longer_than_the_others_is_begun_first_of_all_heads(void **state)
{
    static const struct {
        int32_t rows, keys;
        uint32_t others, one_pass;
    } cases[] = {{128, 8192, 200, 1}, {4000, 4000, 0, 0}, {200, 200, 200, 0}};

    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int32_t qo_len[ENTRIES] = {cases[i].rows}, kv_len[ENTRIES] = {cases[i].keys};
        for (uint32_t other = 1; other <= cases[i].others; other++)
            qo_len[other] = kv_len[other] = 200;
        c.pool.heads_kv = c.batch.heads_q = 32;
        plan_case_level(&c, 1 + cases[i].others, qo_len, kv_len);
        const uint32_t flags = checked_plan(&c)->flags;
        assert_int_equal((flags & ATTND_PLAN_ONE_PASS) != 0, cases[i].one_pass);
        (void)end(state);
        (void)begin(state);
    }
}

/* Each has fewer tiles than its requests could be cut into: 16 of 16,384 keys in parts of a few
 * microseconds. One that stays whole beside others in many parts is what all wait for. */
static void requests_that_are_alike_are_cut_alike(void **state)
{
    const struct {
        int32_t rows, context;
        uint32_t decodes;
        int32_t length;
    } of[] = {{512, 4096, 16, 16384},
              {512, 16384, 16, 12288},
              {2048, 4096, 16, 12288},
              {1024, 16384, 32, 12288},
              {512, 12288, 64, 4096}};

    (void)state;
    for (uint32_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        uint32_t parts[ENTRIES] = {0}, most = 0, least = UINT32_MAX;
        end(NULL);
        begin(NULL);
        c.limits.target.fusion = ATTND_FUSION_SM_SPLIT;
        assert_int_equal(plan(of[i].rows, of[i].context, of[i].decodes, of[i].length).fused, 1);
        for (uint32_t t = 0; t < attnd_plan_head(c.plan)->tiles; t++)
            parts[plan_tiles(&c)[t].entry]++;
        for (uint32_t r = 1; r <= of[i].decodes; r++) {
            most = parts[r] > most ? parts[r] : most;
            least = parts[r] < least ? parts[r] : least;
        }
        assert_true(most <= 4 * least); /* the end is halved, and again */
    }
}

/* Keys that the rows of tile @t see. */
static double keys_of(uint32_t t)
{
    const struct attnd_tile *tile = &plan_tiles(&c)[t];
    const struct attnd_entry *entry = &tile->of_entry;
    const uint32_t hidden = entry->row_begin + entry->row_count - tile->row_begin - tile->row_count;
    const uint32_t seen = (uint32_t)plan_kv_len(&c, 0)[tile->entry] - hidden;

    return (tile->kv_end < seen ? tile->kv_end : seen) - tile->kv_begin;
}

/* How much of their time the workers that begin with compute-bound items compute, if each takes the
 * next when it has none: whole blocks for all heads, then parts. */
static double busy_part(void)
{
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    const uint32_t group[] = {0, head->whole_tiles, head->compute_tiles};
    double at[WORKERS] = {0}, busy = 0, end = 0;

    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t h = 0; h < head->heads_kv; h++)
            for (uint32_t t = group[g]; t < group[g + 1]; t++) {
                uint32_t first = 0;
                for (uint32_t w = 1; w < head->compute_workers; w++)
                    first = at[w] < at[first] ? w : first;
                at[first] += keys_of(t);
                busy += keys_of(t);
                end = at[first] > end ? at[first] : end;
            }
    return busy / (end * head->compute_workers);
}

/* Of 128 items whole ones fit 64 workers, or 128. */
static void some_blocks_are_cut_where_whole_ones_fit_no_number_of_workers(void **state)
{
    (void)state;
    assert_int_equal(plan(512, 16384, 16, 16384).fused, 1);
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    assert_in_range(head->compute_workers, 65, 127);
    assert_in_range(head->whole_tiles, 1, 15);
    assert_true(head->compute_tiles > 16);
    assert_true(busy_part() > 0.95);
    end(NULL);
    begin(NULL);
    assert_int_equal(plan(512, 4096, 64, 16384).fused, 1);
    assert_int_equal(attnd_plan_head(c.plan)->whole_tiles, 16);
    assert_int_equal(attnd_plan_head(c.plan)->compute_tiles, 16);
}

/* What begins last is short. */
static void whole_blocks_are_begun_before_parts(void **state)
{
    (void)state;
    assert_int_equal(plan(1024, 16384, 64, 4096).fused, 1);
    const struct attnd_plan_head *head = attnd_plan_head(c.plan);
    double least = INFINITY, most = 0;
    assert_in_range(head->whole_tiles, 1, 31);
    for (uint32_t t = 0; t < head->whole_tiles; t++)
        least = keys_of(t) < least ? keys_of(t) : least;
    for (uint32_t t = head->whole_tiles; t < head->compute_tiles; t++)
        most = keys_of(t) > most ? keys_of(t) : most;
    assert_true(most < least * 0.6);
}

/* Few bytes beside a chunk: workers that the chunk's last wave leaves over read them. */
static void all_compute_first_where_both_at_once_gains_nothing(void **state)
{
    (void)state;
    assert_int_equal(plan(1024, 12288, 16, 4096).fused, 0);
    assert_int_equal(attnd_plan_head(c.plan)->compute_workers, WORKERS);
    assert_int_equal(attnd_plan_head(c.plan)->compute_tiles, 32);
}

/* One block of 32,768 keys is as long as all others together. */
static void blocks_that_cannot_come_out_even_are_cut_as_those_of_one_class(void **state)
{
    int32_t qo_len[10], kv_len[10];
    char why[200];

    (void)state;
    for (uint32_t i = 0; i < 10; i++) {
        qo_len[i] = i ? 1 : 32;
        kv_len[i] = i ? 2048 : 32768;
    }
    plan_case_level(&c, 10, qo_len, kv_len);
    assert_int_equal(plan_case_plan(&c), 0);
    assert_true(plan_check(&c, why, sizeof(why)));
    assert_int_equal(attnd_plan_head(c.plan)->compute_tiles, 0);
    uint32_t parts = 0;
    for (uint32_t t = 0; t < attnd_plan_head(c.plan)->tiles; t++)
        parts += plan_tiles(&c)[t].entry == 0;
    assert_true(parts > 4);
}

/* The head has 16 bits for both. */
static void more_blocks_or_workers_than_the_head_can_count_are_not_fused(void **state)
{
    int32_t qo_len[] = {UINT16_MAX * 8 + 8, 1}, kv_len[] = {UINT16_MAX * 8 + 8, 4096};

    (void)state;
    for (uint32_t more = 0; more < 2; more++) {
        end(NULL);
        begin(NULL);
        c.limits.target.fusion = ATTND_FUSION_SM_SPLIT;
        c.limits.target.rows_per_tile = 32;
        qo_len[0] = UINT16_MAX * 8 + 8 * (int32_t)more;
        plan_case_level(&c, 2, qo_len, kv_len);
        assert_int_equal(plan_case_plan(&c), 0);
        const struct attnd_plan_head *head = attnd_plan_head(c.plan);
        assert_int_equal(head->compute_tiles > 0, !more);
        if (!more)
            assert_int_equal(head->whole_tiles, UINT16_MAX);
    }
    for (uint32_t more = 0; more < 2; more++) {
        end(NULL);
        begin(NULL);
        c.limits.target.fusion = ATTND_FUSION_SM_SPLIT;
        c.limits.target.tile_workers = UINT16_MAX + more;
        (void)plan(1024, 1024, 16, 4096);
        assert_int_equal(attnd_plan_head(c.plan)->compute_tiles > 0, !more);
    }
}

/* The longer class is expected to take as long as both together. */
static void what_gains_nothing_is_not_fused(void **state)
{
    (void)state;
    assert_int_equal(plan(1024, 1024, 255, 4096).fused, 0);
    end(NULL);
    begin(NULL);
    assert_int_equal(plan(2048, 16384, 1, 4096).fused, 0);
}

static void one_class_alone_is_not_fused(void **state)
{
    (void)state;
    c.limits.target.fusion = ATTND_FUSION_SM_SPLIT;
    assert_int_equal(plan(0, 0, 64, 8192).fused, 0);
    end(NULL);
    begin(NULL);
    c.limits.target.fusion = ATTND_FUSION_SM_SPLIT;
    assert_int_equal(plan(8192, 8192, 0, 0).fused, 0);
}

static void off_takes_one_class_after_the_other(void **state)
{
    (void)state;
    c.limits.target.fusion = ATTND_FUSION_OFF;
    assert_int_equal(plan(2048, 12288, 128, 12288).fused, 0);
    const uint32_t tiles = attnd_plan_head(c.plan)->tiles;
    const uint32_t computes = count(0, tiles, ATTND_TILE_COMPUTE);
    assert_int_equal(count(0, computes, ATTND_TILE_COMPUTE), computes);
}

static void sm_split_is_obeyed_where_auto_would_not(void **state)
{
    (void)state;
    c.limits.target.fusion = ATTND_FUSION_SM_SPLIT;
    assert_int_equal(plan(1024, 1024, 255, 4096).fused, 1);
}

/* Its threads share no memory that one of them could fill. */
static void a_processor_is_not_fused_by_itself(void **state)
{
    (void)state;
    c.limits.target.rates = (struct attnd_plan_rates){0};
    assert_int_equal(plan(2048, 12288, 128, 12288).fused, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_class_has_workers_for_as_long_as_the_other),
        TEST(a_prompt_far_longer_than_the_others_is_begun_first_of_all_heads),
        TEST(requests_that_are_alike_are_cut_alike),
        TEST(some_blocks_are_cut_where_whole_ones_fit_no_number_of_workers),
        TEST(whole_blocks_are_begun_before_parts),
        TEST(all_compute_first_where_both_at_once_gains_nothing),
        TEST(blocks_that_cannot_come_out_even_are_cut_as_those_of_one_class),
        TEST(more_blocks_or_workers_than_the_head_can_count_are_not_fused),
        TEST(what_gains_nothing_is_not_fused),
        TEST(one_class_alone_is_not_fused),
        TEST(off_takes_one_class_after_the_other),
        TEST(sm_split_is_obeyed_where_auto_would_not),
        TEST(a_processor_is_not_fused_by_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
