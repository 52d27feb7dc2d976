/* test_admit_leased.c - a page that is not leased is found, whatever the ids around it are. */
#include "ipc/admit.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leases_are_found_as_by_a_plain_loop),
        cmocka_unit_test(each_place_of_a_list_counts),
    };

    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
