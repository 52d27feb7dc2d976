/*
 * test_admit_hostile.c - a client that rewrites its arena while it is being read.
 *
 * A thread spoils and mends bytes of header and arrays without pause; admission runs against it.
 * What is admitted must keep the contract when it is looked at afterwards, and the planner must be
 * able to live with it. Built with ASan this also shows that nothing was read or unpacked past its
 * end. TSan would call the race by its name: the race is the test.
 */
#include "schemas/atomics.h"
#include "schemas/clock.h"
#include "tests/support/oracle/batch_check.h"
#include "tests/support/random/seed.h"
#include "tests/support/rigs/admit_case.h"
#include "tests/support/rigs/plan_check.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define RUN_S 1.5

static uint64_t seed;
static struct admit_case t;
static uint32_t stop;

static double now_s(void)
{
    return (double)attnd_clock_ns() * 1e-9;
}

static uint32_t spoilt(struct prng *prng, uint32_t good)
{
    switch (prng_below(prng, 4)) {
    case 0:
        return good ^ 1u << prng_below(prng, 32);
    case 1:
        return prng_below(prng, 80);
    case 2:
        return good ^ (uint32_t)prng_below(prng, 256) << 8 * prng_below(prng, 4);
    default:
        return (uint32_t)prng_next(prng);
    }
}

/* Spoils a word, waits a moment or not at all, mends it. */
static void *flip(void *good_bytes)
{
    const uint32_t *good = good_bytes;
    uint32_t *words = (uint32_t *)(void *)t.arena;
    const uint32_t header = t.at.header_offset_bytes / 4, header_words = t.at.header_bytes / 4 + 1;
    const uint32_t arrays = (uint32_t)t.at.qo_indptr[0] / 4;
    const uint32_t array_words = (uint32_t)(t.arena_bytes / 4) - arrays;
    struct prng prng = prng_fork(seed, 0);

    while (!attnd_peek32(&stop)) {
        uint32_t i = prng_percent(&prng, 30) ? header + prng_below(&prng, header_words)
                                             : arrays + prng_below(&prng, array_words);
        attnd_poke32(&words[i], spoilt(&prng, good[i]));
        for (uint32_t pause = prng_below(&prng, 200); pause > 0; pause--)
            attnd_relax();
        attnd_poke32(&words[i], good[i]);
    }
    return NULL;
}

static void nothing_the_client_writes_meanwhile_gets_through(void **state)
{
    uint32_t admitted = 0, refused = 0;
    struct attnd_fault fault;
    pthread_t thread;
    char why[200];

    (void)state;
    admit_case_begin(&t);
    assert_int_equal(plan_case_new(&t.c), 0);
    uint8_t *good = malloc(t.arena_bytes);
    assert_non_null(good);
    memcpy(good, t.arena, t.arena_bytes);
    assert_int_equal(pthread_create(&thread, NULL, flip, good), 0);

    const struct attnd_batch_view mine = t.c.batch;
    for (const double end = now_s() + RUN_S; now_s() < end;) {
        if (admit_case_admit(&t)) {
            refused++;
            continue;
        }
        admitted++;
        const char *wrong = batch_check(&t.batch, &t.limits);
        if (wrong)
            fail_msg("admitted, but: %s", wrong);
        /* Another number of heads than the plan's is the planner's to refuse. */
        if (attnd_planner_set(t.c.plan, &t.batch, &fault))
            continue;
        t.c.batch = t.batch;
        int right = plan_check(&t.c, why, sizeof(why));
        t.c.batch = mine;
        if (!right)
            fail_msg("planned, but: %s", why);
    }
    attnd_poke32(&stop, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    print_message("admitted %u, refused %u\n", admitted, refused);
    assert_true(admitted > 20 && refused > 20);
    free(good);
    admit_case_end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_the_client_writes_meanwhile_gets_through),
    };

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
