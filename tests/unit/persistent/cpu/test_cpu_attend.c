/* What the CPU backend computes, in every instruction set that this machine has. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "persistent/cpu/kernel.h"
#include "persistent/plan/plan.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"
#include "tests/support/rigs/cpu_rig.h"

static const char *const isas[] = {"portable", "avx2", "avx512"};
#define ISAS (sizeof isas / sizeof isas[0])
static struct rig rigs[ISAS];
static int open_rigs[ISAS];
static uint64_t seed = 1;

static void everywhere(const struct rig_batch *batch, const char *what)
{
    struct rig_batch seeded = *batch;
    seeded.seed = seed++;
    for (size_t i = 0; i < ISAS; i++) {
        if (!open_rigs[i])
            continue;
        char text[160];
        (void)snprintf(text, sizeof text, "%s, %s, class %u, dtype %u", what, isas[i],
                       batch->tile_class, batch->dtype);
        rig_attend(&rigs[i], &seeded, text);
    }
}

/* Both types in both inner loops. */
static void both(const struct rig_batch *batch, const char *what)
{
    struct rig_batch b = *batch;
    for (b.dtype = ATTND_FP16; b.dtype <= ATTND_BF16; b.dtype++)
        for (b.tile_class = ATTND_TILE_COMPUTE; b.tile_class <= ATTND_TILE_MEMORY; b.tile_class++)
            everywhere(&b, what);
}

static struct rig_batch base(void)
{
    return (struct rig_batch){.heads_kv = 2, .group = 4, .dim = 64, .page_size = 16};
}

/* @of: queries and keys of each request. */
static void set_lengths(struct rig_batch *b, uint32_t requests, const uint32_t (*of)[2])
{
    b->requests = requests;
    for (uint32_t r = 0; r < requests; r++) {
        b->qo_len[r] = of[r][0];
        b->kv_len[r] = of[r][1];
    }
}

static void decode_of_any_length_is_right(void **state)
{
    (void)state;
    struct rig_batch b = base();
    b.requests = 8;
    const uint32_t lengths[] = {1, 2, 15, 16, 63, 64, 65, 333};
    for (uint32_t r = 0; r < 8; r++) {
        b.qo_len[r] = 1;
        b.kv_len[r] = lengths[r];
    }
    both(&b, "decode");
    b.causal = 1;
    both(&b, "causal decode");
}

static void every_head_dim_is_right(void **state)
{
    (void)state;
    const uint32_t dims[] = {64, 128, 256};
    for (int i = 0; i < 3; i++) {
        struct rig_batch b = base();
        b.dim = dims[i];
        static const uint32_t lengths[][2] = {{1, 100}, {37, 70}};
        set_lengths(&b, 2, lengths);
        b.causal = 1;
        both(&b, "head dim");
    }
}

static void every_page_size_is_right(void **state)
{
    (void)state;
    const uint32_t sizes[] = {1, 3, 16, 64, 100};
    for (int i = 0; i < 5; i++)
        for (uint32_t hnd = 0; hnd < 2; hnd++) {
            struct rig_batch b = base();
            b.page_size = sizes[i];
            b.hnd = hnd;
            b.pad = 8;
            static const uint32_t lengths[][2] = {{2, 131}, {9, 64}};
            set_lengths(&b, 2, lengths);
            both(&b, "page size");
        }
}

static void every_group_is_right(void **state)
{
    (void)state;
    const uint32_t groups[] = {1, 3, 7, 8, 17, 64, 128};
    for (int i = 0; i < 7; i++) {
        struct rig_batch b = base();
        b.heads_kv = 1;
        b.group = groups[i];
        b.causal = 1;
        static const uint32_t lengths[][2] = {{1, 77}, {3, 90}, {11, 20}};
        set_lengths(&b, 3, lengths);
        both(&b, "group");
    }
}

static void many_kv_heads_are_right(void **state)
{
    (void)state;
    struct rig_batch b = base();
    b.heads_kv = 15;
    b.group = 1;
    static const uint32_t lengths[][2] = {{1, 200}, {14, 33}};
    set_lengths(&b, 2, lengths);
    both(&b, "heads");
}

static void causal_prefill_is_right(void **state)
{
    (void)state;
    struct rig_batch b = base();
    b.causal = 1;
    /* The second is a chunk after 100 tokens. */
    static const uint32_t lengths[][2] = {{130, 130}, {60, 160}, {64, 128}, {1, 1}};
    set_lengths(&b, 4, lengths);
    b.tokens = 24;
    both(&b, "causal prefill");
    b.group = 1;
    b.tokens = 64;
    both(&b, "causal prefill, one head a group");
    b.tokens = 0; /* more rows than a worker's buffers hold */
    both(&b, "causal prefill in one tile");
}

static void rows_before_the_first_key_see_nothing(void **state)
{
    (void)state;
    struct rig_batch b = base();
    b.causal = 1;
    static const uint32_t lengths[][2] = {{20, 5}, {3, 0}, {0, 12}}; /* positions -15 to 4 */
    set_lengths(&b, 3, lengths);
    both(&b, "no keys");
    b.split = 2;
    both(&b, "no keys, split");
}

static void a_request_without_keys_is_zero_and_minus_infinity(void **state)
{
    (void)state;
    struct rig_batch b = base();
    static const uint32_t lengths[][2] = {{5, 0}, {1, 0}};
    set_lengths(&b, 2, lengths);
    both(&b, "kv_len 0");
}

static void split_keys_merge(void **state)
{
    (void)state;
    const uint32_t splits[] = {7, 64, 100};
    for (int i = 0; i < 3; i++) {
        struct rig_batch b = base();
        b.causal = 1;
        b.split = splits[i];
        static const uint32_t lengths[][2] = {{1, 500}, {40, 130}, {1, 3}};
        set_lengths(&b, 3, lengths);
        b.tokens = 16;
        both(&b, "split");
    }
}

static void a_shared_prefix_level_merges(void **state)
{
    (void)state;
    struct rig_batch b = base();
    b.prefix_len = 150;
    static const uint32_t lengths[][2] = {{1, 30}, {7, 7}, {1, 0}, {2, 66}};
    set_lengths(&b, 4, lengths);
    b.causal = 1;
    both(&b, "cascade");
    b.split = 64;
    both(&b, "cascade, split");
}

static void lse_may_be_natural(void **state)
{
    (void)state;
    struct rig_batch b = base();
    b.lse_ln = 1;
    static const uint32_t lengths[][2] = {{1, 90}, {2, 0}};
    set_lengths(&b, 2, lengths);
    both(&b, "natural lse");
}

static void sharp_softmax_is_right(void **state)
{
    (void)state;
    struct rig_batch b = base();
    b.q_scale = 40; /* weights span hundreds of binary orders */
    static const uint32_t lengths[][2] = {{1, 300}, {30, 300}};
    set_lengths(&b, 2, lengths);
    b.causal = 1;
    for (b.tile_class = 0; b.tile_class < 2; b.tile_class++) {
        b.dtype = ATTND_FP16;
        everywhere(&b, "sharp");
    }
}

/* One special value among the visible keys and values: where it may be seen and where not is the
 * reference's to say. */
static void special_values_go_where_they_are_seen_and_nowhere_else(void **state)
{
    (void)state;
    const double special[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (size_t i = 0; i < ISAS * 3 * 2 * 2; i++) {
        const size_t isa = i % ISAS;
        if (!open_rigs[isa])
            continue;
        struct rig_batch b = base();
        b.seed = seed++;
        b.dtype = ATTND_BF16;
        b.causal = 1;
        b.tile_class = i / ISAS % 2;
        b.split = i / ISAS / 2 / 3 ? 64 : 0;
        static const uint32_t lengths[][2] = {{4, 100}, {40, 60}, {1, 1}};
        set_lengths(&b, 3, lengths);
        struct rig *rig = &rigs[isa];
        struct rig_work work;
        uint64_t heap_used_bytes = rig->heap_used_bytes;
        rig_make(&work, rig, &b);
        uint16_t bits = bits16_round(b.dtype, special[i / ISAS / 2 % 3]);
        rig_element(&work, work.k, 0, 98, 0)[5] = bits;
        rig_element(&work, work.v, 0, 97, 1)[6] = bits;
        rig_element(&work, work.v, 1, 40, 1)[7] = bits;
        rig_element(&work, work.k, 2, 0, 0)[3] = bits;
        rig_run(&work, 0, ATTND_RUN_ATTEND);
        rig->retires[0] = 0;
        rig_submit(rig, 0);
        (void)rig_wait(rig, 0, 1);
        rig_judge(&work, isas[isa]);
        rig_free(&work);
        rig->heap_used_bytes = heap_used_bytes;
        rig->scratch_used_bytes = 0;
    }
}

static void draw_batch(struct rig_batch *b, struct prng *prng)
{
    const uint32_t dims[] = {64, 64, 128, 256}, pages[] = {1, 2, 3, 16, 64};
    *b = (struct rig_batch){
        .seed = prng_next(prng),
        .dtype = 1 + prng_below(prng, 2),
        .heads_kv = 1 + prng_below(prng, 3),
        .group = 1 + prng_below(prng, prng_percent(prng, 20) ? 12 : 4),
        .dim = dims[prng_below(prng, 4)],
        .page_size = pages[prng_below(prng, 5)],
        .hnd = prng_below(prng, 2),
        .causal = prng_below(prng, 2),
        .lse_ln = prng_below(prng, 2),
        .requests = 1 + prng_below(prng, 4),
        .prefix_len = prng_percent(prng, 30) ? prng_below(prng, 100) : 0,
        .tokens = prng_percent(prng, 50) ? 1 + prng_below(prng, 40) : 0,
        .split = prng_percent(prng, 50) ? 1 + prng_below(prng, 130) : 0,
        .tile_class = prng_below(prng, 2),
        .pad = prng_below(prng, 3) * 4,
    };
    for (uint32_t r = 0; r < b->requests; r++) {
        b->qo_len[r] = prng_percent(prng, 50) ? prng_below(prng, 3) : prng_below(prng, 30);
        b->kv_len[r] = prng_below(prng, 150);
    }
}

static void random_batches_are_right(void **state)
{
    (void)state;
    struct prng prng = {test_number("ATTND_SEED", 20251121)};
    print_message("ATTND_SEED=%llu\n", (unsigned long long)prng.state);
    for (int i = 0; i < 25; i++) {
        struct rig_batch b;
        draw_batch(&b, &prng);
        for (size_t isa = 0; isa < ISAS; isa++)
            if (open_rigs[isa])
                rig_attend(&rigs[isa], &b, isas[isa]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_of_any_length_is_right),
        cmocka_unit_test(every_head_dim_is_right),
        cmocka_unit_test(every_page_size_is_right),
        cmocka_unit_test(every_group_is_right),
        cmocka_unit_test(many_kv_heads_are_right),
        cmocka_unit_test(causal_prefill_is_right),
        cmocka_unit_test(rows_before_the_first_key_see_nothing),
        cmocka_unit_test(a_request_without_keys_is_zero_and_minus_infinity),
        cmocka_unit_test(split_keys_merge),
        cmocka_unit_test(a_shared_prefix_level_merges),
        cmocka_unit_test(lse_may_be_natural),
        cmocka_unit_test(sharp_softmax_is_right),
        cmocka_unit_test(special_values_go_where_they_are_seen_and_nowhere_else),
        cmocka_unit_test(random_batches_are_right),
    };
    for (size_t i = 0; i < ISAS; i++) {
        if (attnd_kernel_find(isas[i]) == NULL)
            continue;
        open_rigs[i] = 1;
        rig_open(&rigs[i], 2, isas[i]);
        (void)attnd_backend_cpu.start(rigs[i].backend);
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < ISAS; i++)
        if (open_rigs[i])
            rig_close(&rigs[i]);
    return failed;
}
