/* test_intervals.c - a set of intervals against a plain list of them. */
#include "service/objects/intervals.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MANY 500u
#define BYTES 4096u

static struct attnd_interval all[MANY];
static int there[MANY];

static int overlap(const struct attnd_interval *a, uint64_t begin, uint64_t end)
{
    return a->begin < end && begin < a->end;
}

static int any_overlaps(uint64_t begin, uint64_t end)
{
    for (uint32_t i = 0; i < MANY; i++)
        if (there[i] && overlap(&all[i], begin, end))
            return 1;
    return 0;
}

static void draw(struct prng *prng, uint64_t *begin, uint64_t *end)
{
    *begin = prng_below(prng, BYTES);
    *end = *begin + 1 + prng_below(prng, prng_percent(prng, 10) ? BYTES : 8);
}

static void it_finds_what_a_list_finds_while_intervals_come_and_go(void **state)
{
    struct attnd_interval *root = NULL;
    struct prng prng = {test_seed()};
    (void)state;
    memset(there, 0, sizeof(there));
    for (int step = 0; step < 20000; step++) {
        const uint32_t i = prng_below(&prng, MANY);
        uint64_t begin, end;
        if (there[i]) {
            attnd_intervals_remove(&root, &all[i]);
        } else {
            draw(&prng, &all[i].begin, &all[i].end);
            attnd_intervals_add(&root, &all[i]);
        }
        there[i] = !there[i];
        draw(&prng, &begin, &end);
        const struct attnd_interval *found = attnd_intervals_find(root, begin, end);
        assert_int_equal(found != NULL, any_overlaps(begin, end));
        if (found)
            assert_true(overlap(found, begin, end) && there[found - all]);
    }
    for (uint32_t i = 0; i < MANY; i++)
        if (there[i])
            attnd_intervals_remove(&root, &all[i]);
    assert_null(root);
}

static uint32_t depth(const struct attnd_interval *at)
{
    if (!at)
        return 0;
    const uint32_t left = depth(at->left), right = depth(at->right);
    return 1 + (left > right ? left : right);
}

/* As those of a client that adds them in order, or all the same one. */
static void the_order_in_which_they_come_does_not_make_it_deep(void **state)
{
    (void)state;
    for (uint64_t stride = 0; stride < 2; stride++) {
        struct attnd_interval *root = NULL;
        for (uint64_t i = 0; i < MANY; i++) {
            all[i] = (struct attnd_interval){.begin = stride * i, .end = stride * i + 1};
            attnd_intervals_add(&root, &all[i]);
        }
        assert_true(depth(root) < 50); /* of 500; a list would have as many */
    }
}

static void merged_are_sorted_and_apart(void **state)
{
    struct attnd_interval of[] = {{.begin = 10, .end = 20}, {.begin = 0, .end = 5},
                                  {.begin = 20, .end = 30}, {.begin = 12, .end = 13},
                                  {.begin = 40, .end = 41}, {.begin = 0, .end = 5}};
    (void)state;
    assert_int_equal(attnd_intervals_merge(of, 6), 4);
    assert_true(of[0].begin == 0 && of[0].end == 5);
    assert_true(of[1].begin == 10 && of[1].end == 20);
    assert_true(of[2].begin == 20 && of[2].end == 30); /* it only touches the one before */
    assert_true(of[3].begin == 40 && of[3].end == 41);
    assert_int_equal(attnd_intervals_merge(of, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_finds_what_a_list_finds_while_intervals_come_and_go),
        cmocka_unit_test(the_order_in_which_they_come_does_not_make_it_deep),
        cmocka_unit_test(merged_are_sorted_and_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
