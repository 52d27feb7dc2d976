/* admit_case.c - arenas of exactly the right length. */
#include "tests/support/rigs/admit_case.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES_MAX (8u << 20)

void admit_case_begin(struct admit_case *a)
{
    const int32_t all_rows[1] = {7}, prefix[1] = {48};
    const int32_t rows[3] = {5, 0, 2}, kv_len[3] = {50, 0, 33};

    memset(a, 0, sizeof(*a));
    plan_case_begin(&a->c);
    a->c.pool.pages = 5000;
    plan_case_level(&a->c, 1, all_rows, prefix);
    plan_case_level(&a->c, 3, rows, kv_len);
    a->c.batch.reserve_pages = 1;
    plan_case_fit(&a->c);
    admit_case_write(a);
}

void admit_case_one(struct admit_case *a, uint32_t page_size, int32_t kv_len)
{
    const int32_t one_row[1] = {1};

    plan_case_free(&a->c);
    plan_case_begin(&a->c);
    a->c.pool.pages = 5000;
    a->c.pool.page_size = page_size;
    plan_case_level(&a->c, 1, one_row, &kv_len);
    plan_case_fit(&a->c);
    admit_case_write(a);
}

void admit_case_write(struct admit_case *a)
{
    uint8_t *large = malloc(ARENA_BYTES_MAX);

    assert(large);
    a->at = case_write(&a->c, large, ARENA_BYTES_MAX);
    assert(a->at.end > 0);
    free(a->arena);
    a->arena_bytes = a->at.end;
    a->arena = malloc(a->arena_bytes);
    assert(a->arena);
    memcpy(a->arena, large, a->arena_bytes);
    free(large);
    a->limits = case_limits(&a->c);
}

int admit_case_admit(struct admit_case *a)
{
    return attnd_admit_batch(a->arena, a->arena_bytes, a->at.header_offset_bytes,
                             a->at.header_bytes, &a->limits, &a->staging, &a->batch, &a->fault);
}

void admit_case_word(struct admit_case *a, uint64_t array_offset_bytes, uint32_t index,
                     int32_t value)
{
    memcpy(a->arena + array_offset_bytes + index * sizeof(int32_t), &value, sizeof(value));
}

void admit_case_end(struct admit_case *a)
{
    plan_case_free(&a->c);
    attnd_staging_free(&a->staging);
    free(a->arena);
    memset(a, 0, sizeof(*a));
}
