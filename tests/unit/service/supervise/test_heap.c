/* test_heap.c - ranges never overlap, and what is handed back can be had again. */
#include "schemas/errors.h"
#include "service/supervise/heap.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LINE 64u
#define LINES 256u
#define RANGES 64u

static void a_range_is_rounded_up_to_lines_and_taken_from_the_front(void **state)
{
    struct attnd_heap heap = {0};
    uint64_t first, second;
    (void)state;
    assert_int_equal(attnd_heap_reset(&heap, 4096, 8192), 0);
    assert_int_equal(attnd_heap_take(&heap, 1, &first), 0);
    assert_int_equal(attnd_heap_take(&heap, 65, &second), 0);
    assert_int_equal(first, 4096);
    assert_int_equal(second, 4096 + 64);
    assert_int_equal(heap.used_bytes, 192);
    attnd_heap_destroy(&heap);
}

static void no_range_is_larger_than_the_heap(void **state)
{
    struct attnd_heap heap = {0};
    uint64_t offset;
    (void)state;
    assert_int_equal(attnd_heap_reset(&heap, 0, 1024), 0);
    assert_int_equal(attnd_heap_take(&heap, 0, &offset), -ATTND_E_RANGE);
    assert_int_equal(attnd_heap_take(&heap, 1025, &offset), -ATTND_E_NO_SPACE);
    assert_int_equal(attnd_heap_take(&heap, UINT64_MAX, &offset), -ATTND_E_NO_SPACE);
    assert_int_equal(attnd_heap_take(&heap, 1024, &offset), 0);
    assert_int_equal(attnd_heap_take(&heap, 1, &offset), -ATTND_E_NO_SPACE);
    attnd_heap_give(&heap, offset, 1024);
    assert_int_equal(attnd_heap_take(&heap, 1024, &offset), 0);
    attnd_heap_destroy(&heap);
}

static void neighbours_grow_together_whatever_the_order(void **state)
{
    static const uint8_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        struct attnd_heap heap = {0};
        uint64_t at[3];
        assert_int_equal(attnd_heap_reset(&heap, 0, 3 * LINE), 0);
        for (int r = 0; r < 3; r++)
            assert_int_equal(attnd_heap_take(&heap, LINE, &at[r]), 0);
        assert_int_equal(heap.free_count, 0);
        for (int r = 0; r < 3; r++)
            attnd_heap_give(&heap, at[orders[i][r]], LINE);
        assert_int_equal(heap.free_count, 1);
        assert_int_equal(heap.used_bytes, 0);
        attnd_heap_destroy(&heap);
    }
}

struct range {
    uint64_t offset, bytes;
};

/* The model: one flag a line. A range fails only if no run of free lines is long enough. */
static uint32_t longest_free(const uint8_t *taken)
{
    uint32_t longest = 0, run = 0;
    for (uint32_t i = 0; i < LINES; i++) {
        run = taken[i] ? 0 : run + 1;
        longest = run > longest ? run : longest;
    }
    return longest;
}

static void mark(uint8_t *taken, const struct range *range, uint8_t value)
{
    for (uint64_t i = range->offset / LINE; i < (range->offset + range->bytes + LINE - 1) / LINE;
         i++) {
        assert_int_equal(taken[i], !value);
        taken[i] = value;
    }
}

static void random_steps_agree_with_a_map_of_lines(void **state)
{
    uint64_t seed = test_seed();
    struct prng prng = prng_fork(seed, 0);
    struct attnd_heap heap = {0};
    struct range ranges[RANGES] = {0};
    uint8_t taken[LINES] = {0};
    (void)state;
    assert_int_equal(attnd_heap_reset(&heap, 0, LINES * LINE), 0);
    for (uint32_t step = 0; step < 300000; step++) {
        struct range *range = &ranges[prng_below(&prng, RANGES)];
        if (range->bytes) {
            attnd_heap_give(&heap, range->offset, range->bytes);
            mark(taken, range, 0);
            range->bytes = 0;
            continue;
        }
        uint64_t bytes = 1 + prng_below(&prng, 16 * LINE);
        int rc = attnd_heap_take(&heap, bytes, &range->offset);
        uint32_t lines = (uint32_t)((bytes + LINE - 1) / LINE);
        assert_int_equal(rc, lines <= longest_free(taken) ? 0 : -ATTND_E_NO_SPACE);
        if (rc == 0) {
            range->bytes = bytes;
            mark(taken, range, 1);
        }
    }
    attnd_heap_destroy(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_is_rounded_up_to_lines_and_taken_from_the_front),
        cmocka_unit_test(no_range_is_larger_than_the_heap),
        cmocka_unit_test(neighbours_grow_together_whatever_the_order),
        cmocka_unit_test(random_steps_agree_with_a_map_of_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
