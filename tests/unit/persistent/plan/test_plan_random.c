/*
 * test_plan_random.c - any batch, any pool, any worker: the plan does what the batch says.
 *
 * Each case is drawn from (seed, number) and judged by tests/support/rigs/plan_check.c, which knows
 * nothing of the planner. ATTND_SEED repeats a run, ATTND_CASES changes its length.
 */
#include "tests/support/random/seed.h"
#include "tests/support/rigs/plan_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;

static uint32_t cases(void)
{
    return (uint32_t)test_number("ATTND_CASES", 2000);
}

static void draw(struct plan_case *c, uint32_t number)
{
    struct case_source source = {.prng = prng_fork(seed, number)};
    plan_case_draw(c, &source);
}

static void every_plan_covers_its_batch_exactly(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < cases(); i++) {
        struct plan_case c;
        struct attnd_fault fault = {0};
        char why[300];

        draw(&c, i);
        assert_int_equal(plan_case_new(&c), 0);
        /* What an earlier batch may have left in the arrays. */
        memset((uint8_t *)c.heap + sizeof(struct attnd_plan_head), 0xa5,
               attnd_plan_heap_bytes(&c.limits) - sizeof(struct attnd_plan_head));
        if (attnd_planner_set(c.plan, &c.batch, &fault) != 0)
            fail_msg("ATTND_SEED=%llu case %u: %s", (unsigned long long)seed, i,
                     attnd_fault_string(&fault, why, sizeof(why)));
        if (!plan_check(&c, why, sizeof(why)))
            fail_msg("ATTND_SEED=%llu case %u: %s", (unsigned long long)seed, i, why);
        plan_case_free(&c);
    }
}

/* Two plan objects, one of them used before for another batch: the same bytes. */
static void the_same_batch_gives_the_same_plan(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < cases() / 10; i++) {
        struct plan_case a, b;
        struct attnd_fault fault = {0};

        draw(&a, i);
        draw(&b, i);
        assert_int_equal(plan_case_new(&a), 0);
        assert_int_equal(plan_case_new(&b), 0);
        assert_int_equal(attnd_planner_set(a.plan, &a.batch, &fault), 0);

        struct attnd_batch_view other = b.batch;
        other.flags ^= ATTND_BATCH_CAUSAL;
        assert_int_equal(attnd_planner_set(b.plan, &other, &fault), 0);
        assert_int_equal(attnd_planner_set(b.plan, &b.batch, &fault), 0);

        const struct attnd_plan_head *x = attnd_plan_head(a.plan), *y = attnd_plan_head(b.plan);
        assert_int_equal(x->tiles, y->tiles);
        assert_int_equal(x->merges, y->merges);
        assert_memory_equal(plan_tiles(&a), plan_tiles(&b), x->tiles * sizeof(struct attnd_tile));
        assert_memory_equal(plan_merges(&a), plan_merges(&b),
                            x->merges * sizeof(struct attnd_merge));
        assert_memory_equal(plan_merge_parts(&a), plan_merge_parts(&b),
                            x->parts * sizeof(uint32_t));
        plan_case_free(&a);
        plan_case_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_covers_its_batch_exactly),
        cmocka_unit_test(the_same_batch_gives_the_same_plan),
    };

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
