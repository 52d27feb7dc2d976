/* test_admit_leased.c - a page that is not leased is found, and one that is not in the pool,
 * whatever the ids around it are. */
#include "service/admission/admit_internal.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define POOL 4096u
#define COUNT_MAX 300u

static uint64_t seed;

static int plain(const int16_t *held, const int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (held[pages[i]] >= 0)
            return 0;
    return 1;
}

/* Runs of some length, up and down, and pages from anywhere. */
static void draw_pages(struct prng *prng, int32_t *pages, uint32_t count)
{
    for (uint32_t i = 0; i < count;) {
        const uint32_t length = 1 + prng_below(prng, prng_below(prng, 2) ? 100 : 3);
        const uint32_t first = prng_below(prng, POOL - length + 1);
        for (uint32_t j = 0; j < length && i < count; j++)
            pages[i++] = (int32_t)(first + j);
    }
}

static void leases_are_found_as_by_a_plain_loop(void **state)
{
    const uint32_t cases = (uint32_t)test_number("ATTND_CASES", 20000);
    uint32_t leased = 0;

    (void)state;
    int16_t *held = malloc(POOL * sizeof(*held));
    int32_t *pages = malloc(COUNT_MAX * sizeof(*pages)); /* exactly, for a sanitizer to see */
    assert_true(held && pages);
    for (uint32_t c = 0; c < cases; c++) {
        struct prng prng = prng_fork(seed, c);
        const uint32_t count = prng_below(&prng, COUNT_MAX + 1);
        for (uint32_t p = 0; p < POOL; p++)
            held[p] = (int16_t)(-1 - (int)prng_below(&prng, 5));
        draw_pages(&prng, pages + COUNT_MAX - count, count);
        for (uint32_t i = prng_below(&prng, 3); i-- > 0;)
            held[prng_below(&prng, POOL)] = 0;
        const int32_t *drawn = pages + COUNT_MAX - count;
        const int expected = plain(held, drawn, count);
        leased += (uint32_t)expected;
        if (attnd_admit_leased(held, drawn, count) != expected)
            fail_msg("ATTND_SEED=%llu case %u", (unsigned long long)seed, c);
    }
    assert_true(leased > cases / 4 && leased < cases);
    free(held);
    free(pages);
}

/* Runs at both ends of the pool: nothing beside it is read. */
static void each_place_of_a_list_counts(void **state)
{
    int16_t *held = malloc(POOL * sizeof(*held));
    int32_t *pages = malloc(POOL * sizeof(*pages));

    (void)state;
    assert_true(held && pages);
    memset(held, 0xff, POOL * sizeof(*held));
    for (uint32_t p = 0; p < POOL; p++)
        pages[p] = (int32_t)p;
    for (uint32_t count = 0; count <= POOL; count += count < 100 ? 1 : 333) {
        const int32_t *last = pages + POOL - count;
        assert_int_equal(attnd_admit_leased(held, last, count), 1);
        for (uint32_t i = 0; i < count; i += 1 + count / 100) {
            held[last[i]] = 0;
            assert_int_equal(attnd_admit_leased(held, last, count), 0);
            held[last[i]] = -1;
        }
    }
    free(held);
    free(pages);
}

/* Pages that follow each other, out of the pool at either end. */
static void draw_run_outside(struct prng *prng, int32_t *pages, uint32_t count)
{
    const uint32_t firsts[] = {POOL - 16, 0u - 16, (uint32_t)INT32_MAX - 16, POOL, 0u - 64};
    const uint32_t first = firsts[prng_below(prng, 5)], from = prng_below(prng, count);

    for (uint32_t i = from; i < count && i < from + 64; i++)
        pages[i] = (int32_t)(first + (i - from));
}

/* Ids of the arena with up to two that are wrong, which may be where a run would be. */
static void ids_are_copied_and_found_as_by_a_plain_loop(void **state)
{
    const uint32_t cases = (uint32_t)test_number("ATTND_CASES", 20000);
    uint32_t good = 0, inside = 0;

    (void)state;
    int16_t *held = malloc(POOL * sizeof(*held));
    int32_t *pages = malloc(COUNT_MAX * sizeof(*pages)), *copy = malloc(COUNT_MAX * sizeof(*copy));
    assert_true(held && pages && copy);
    for (uint32_t c = 0; c < cases; c++) {
        struct prng prng = prng_fork(seed + 1, c);
        const uint32_t count = prng_below(&prng, COUNT_MAX + 1), before = COUNT_MAX - count;
        const struct attnd_admit_arena arena = {(const uint8_t *)pages, COUNT_MAX * sizeof(*pages)};
        struct attnd_admit_ids ids = {.max = POOL - 1, .held = held};
        struct attnd_fault fault;
        int all_inside = 1;

        memset(held, 0xff, POOL * sizeof(*held));
        draw_pages(&prng, pages + before, count);
        for (uint32_t i = prng_below(&prng, 3); i-- > 0;)
            held[prng_below(&prng, POOL)] = 0;
        for (uint32_t i = prng_below(&prng, 3); i-- > 0 && count;) {
            const int32_t wrong[] = {-1, POOL, INT32_MIN, INT32_MAX, POOL - 1 + 32};
            pages[before + prng_below(&prng, count)] = wrong[prng_below(&prng, 5)];
        }
        if (count && prng_below(&prng, 4) == 0)
            draw_run_outside(&prng, pages + before, count);
        for (uint32_t i = before; i < COUNT_MAX; i++)
            all_inside &= pages[i] >= 0 && pages[i] < (int32_t)POOL;
        const int expected = all_inside && plain(held, pages + before, count);
        assert_int_equal(attnd_arena_copy_ids(&arena, before * sizeof(*pages), count, 0,
                                              copy + before, &ids, &fault),
                         0);
        assert_memory_equal(copy + before, pages + before, count * sizeof(*pages));
        if ((ids.outside == 0) != all_inside || (ids.unleased == 0) != expected)
            fail_msg("ATTND_SEED=%llu case %u", (unsigned long long)seed, c);
        good += (uint32_t)expected;
        inside += (uint32_t)all_inside;
    }
    assert_true(good > cases / 8 && good < inside && inside < cases);
    free(held);
    free(pages);
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leases_are_found_as_by_a_plain_loop),
        cmocka_unit_test(each_place_of_a_list_counts),
        cmocka_unit_test(ids_are_copied_and_found_as_by_a_plain_loop),
    };

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
