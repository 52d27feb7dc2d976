/* test_client_tables.c - dense tables and ragged keys as CSR arrays, and what of them is refused.
 */
#include "client/attnd_tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS 4
#define STRIDE 3
#define INDICES 8

static const int32_t table[REQUESTS][STRIDE] = {{5, 6, 7}, {1, 2, 3}, {9, 9, 9}, {4, 8, 0}};
static int32_t indptr[REQUESTS + 1], indices[INDICES], last[REQUESTS];

static int dense(const int32_t *rows, const int32_t *keys, uint32_t page_size, uint32_t most)
{
    return attnd_tables_of_dense(table[0], STRIDE, rows, keys, REQUESTS, page_size, indptr, indices,
                                 most, last);
}

static void expect_fault(enum attnd_field field, uint64_t index, int64_t value, int64_t limit)
{
    struct attnd_fault fault;

    attnd_last_fault(&fault);
    assert_int_equal(fault.field, field);
    assert_int_equal(fault.index, index);
    assert_int_equal(fault.value, value);
    assert_int_equal(fault.limit, limit);
}

static void a_dense_table_gives_each_request_the_pages_of_its_keys(void **state)
{
    const int32_t keys[] = {33, 16, 0, 17}, want[] = {5, 6, 7, 1, 4, 8};
    const int32_t starts[] = {0, 3, 4, 4, 6}, lengths[] = {1, 16, 0, 1};

    (void)state;
    assert_int_equal(dense(NULL, keys, 16, 6), 6);
    assert_memory_equal(indices, want, sizeof(want));
    assert_memory_equal(indptr, starts, sizeof(starts));
    assert_memory_equal(last, lengths, sizeof(lengths));
}

static void rows_may_be_chosen_and_pages_be_tokens(void **state)
{
    const int32_t keys[] = {2, 3, 1, 0}, rows[] = {3, 0, 1, 2}, want[] = {4, 8, 5, 6, 7, 1};
    const int32_t lengths[] = {1, 1, 1, 0};

    (void)state;
    assert_int_equal(dense(rows, keys, 1, INDICES), 6);
    assert_memory_equal(indices, want, sizeof(want));
    assert_memory_equal(last, lengths, sizeof(lengths));
}

static void what_a_table_cannot_have_is_refused(void **state)
{
    const int32_t long_one[] = {1, 1, 49, 1}, negative[] = {1, -1, 1, 1}, most[] = {48, 48, 48, 0};

    (void)state;
    assert_int_equal(dense(NULL, long_one, 16, INDICES), -ATTND_E_RANGE);
    expect_fault(ATTND_F_KV_LEN, 2, 49, 48);
    assert_int_equal(dense(NULL, negative, 16, INDICES), -ATTND_E_RANGE);
    expect_fault(ATTND_F_KV_LEN, 1, -1, 0);
    const int32_t before[] = {0, 1, -1, 2}, few[] = {1, 1, 1, 1};
    assert_int_equal(dense(before, few, 16, INDICES), -ATTND_E_RANGE);
    expect_fault(ATTND_F_REQUESTS, 2, -1, 0);
    assert_int_equal(dense(NULL, most, 16, INDICES), -ATTND_E_NO_SPACE);
    expect_fault(ATTND_F_KV_INDICES, 2, 9, INDICES);
    assert_int_equal(dense(NULL, most, 0, INDICES), -ATTND_E_RANGE);
    expect_fault(ATTND_F_PAGE_SIZE, 0, 0, INT32_MAX);
}

static void ragged_keys_are_pages_of_one(void **state)
{
    const int32_t starts[] = {0, 3, 3, 5}, falls[] = {0, 3, 2}, later[] = {1, 2};
    const int32_t want[] = {0, 1, 2, 3, 4}, lengths[] = {1, 1, 1};

    (void)state;
    assert_int_equal(attnd_tables_of_ragged(starts, 3, indices, INDICES, last), 5);
    assert_memory_equal(indices, want, sizeof(want));
    assert_memory_equal(last, lengths, sizeof(lengths));
    assert_int_equal(attnd_tables_of_ragged(falls, 2, indices, INDICES, last), -ATTND_E_RANGE);
    expect_fault(ATTND_F_KV_INDPTR, 2, 2, 3);
    assert_int_equal(attnd_tables_of_ragged(later, 1, indices, INDICES, last), -ATTND_E_RANGE);
    expect_fault(ATTND_F_KV_INDPTR, 0, 1, 0);
    assert_int_equal(attnd_tables_of_ragged(starts, 3, indices, 4, last), -ATTND_E_NO_SPACE);
    expect_fault(ATTND_F_KV_INDICES, 2, 5, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dense_table_gives_each_request_the_pages_of_its_keys),
        cmocka_unit_test(rows_may_be_chosen_and_pages_be_tokens),
        cmocka_unit_test(what_a_table_cannot_have_is_refused),
        cmocka_unit_test(ragged_keys_are_pages_of_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
