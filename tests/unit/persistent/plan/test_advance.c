/*
 * test_advance.c - a plan that moves on: new lengths, new pages, or nothing at all.
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

#define POOL_PAGES 1000u
#define ENTRIES 4u

/* Counts what this program allocates. Sanitizers bring their own malloc: there it stays 0. */
static uint64_t allocations;
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OWN_MALLOC 0
#endif
#endif
#if !defined(OWN_MALLOC) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

void *malloc(size_t size)
{
    allocations++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    allocations++;
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    allocations++;
    return __libc_realloc(old, size);
}
#endif

static uint64_t seed;
static struct plan_case c;
static struct attnd_fault fault;

/* A prefix level of two requests, then four requests of 20 tokens (2 pages of 16), 3 in reserve. */
static int begin(void **state)
{
    const int32_t two_rows[2] = {2, 2}, prefix[2] = {32, 0};
    const int32_t one_row[4] = {1, 1, 1, 1}, own[4] = {20, 20, 20, 20};

    (void)state;
    plan_case_begin(&c);
    c.batch.reserve_pages = 3;
    plan_case_level(&c, 2, two_rows, prefix);
    plan_case_level(&c, 4, one_row, own);
    memset(&fault, 0, sizeof(fault));
    return plan_case_plan(&c);
}

static int end(void **state)
{
    (void)state;
    plan_case_free(&c);
    return 0;
}

static int advance(const int32_t *kv_len, const int32_t *indptr, const int32_t *pages,
                   uint32_t generation)
{
    const struct attnd_advance_view view = {.entries = 6,
                                            .pages = indptr ? (uint32_t)indptr[6] : 0,
                                            .kv_len = kv_len,
                                            .page_indptr = indptr,
                                            .page_indices = pages};
    return attnd_planner_advance(c.plan, &view, generation, POOL_PAGES, &fault);
}

static void expect_fault(int code, int error, enum attnd_field field, uint64_t index, int64_t value,
                         int64_t limit)
{
    assert_int_equal(code, -error);
    assert_int_equal(fault.code, -error);
    assert_int_equal(fault.field, field);
    assert_int_equal(fault.index, index);
    assert_int_equal(fault.value, value);
    assert_int_equal(fault.limit, limit);
}

static void lengths_go_into_one_generation_only(void **state)
{
    const int32_t kv_len[6] = {32, 0, 21, 32, 0, 7};

    (void)state;
    assert_int_equal(advance(kv_len, NULL, NULL, 3), 0);
    assert_memory_equal(plan_kv_len(&c, 3), kv_len, sizeof(kv_len));
    assert_int_equal(plan_kv_len(&c, 0)[2], 20);
    for (uint32_t g = 1; g < ATTND_GENERATIONS; g++)
        assert_int_equal(plan_kv_len(&c, g)[0], g == 3 ? 32 : 0);
}

static void pages_go_behind_the_list_of_their_entry(void **state)
{
    const int32_t kv_len[6] = {32, 0, 20, 64, 20, 40};
    const int32_t indptr[7] = {0, 0, 0, 0, 2, 2, 3}, pages[3] = {77, 78, 99};

    (void)state;
    assert_int_equal(advance(kv_len, indptr, pages, 1), 0);
    const struct attnd_entry *entry = plan_entries(&c) + 3;
    const int32_t *slots = plan_kv_pages(&c) + entry->page_begin;
    assert_int_equal(entry->page_count, 5);
    assert_int_equal(slots[2], 77);
    assert_int_equal(slots[3], 78);
    assert_int_equal(slots[4], 0);
    assert_int_equal(plan_kv_pages(&c)[plan_entries(&c)[5].page_begin + 2], 99);

    const int32_t more_indptr[7] = {0, 0, 0, 0, 1, 1, 1}, more[1] = {500};
    assert_int_equal(advance(kv_len, more_indptr, more, 2), 0);
    assert_int_equal(slots[4], 500);
}

static void a_length_beyond_the_pages_in_use_is_refused(void **state)
{
    const int32_t kv_len[6] = {32, 0, 20, 33, 20, 20};

    (void)state;
    expect_fault(advance(kv_len, NULL, NULL, 1), ATTND_E_RANGE, ATTND_F_KV_LEN, 3, 33, 32);
    const int32_t negative[6] = {32, 0, 20, 20, -1, 20};
    expect_fault(advance(negative, NULL, NULL, 1), ATTND_E_RANGE, ATTND_F_KV_LEN, 4, -1, 0);
}

static void more_pages_than_were_reserved_are_refused(void **state)
{
    const int32_t kv_len[6] = {32, 0, 20, 20, 20, 20}, pages[4] = {1, 2, 3, 4};
    const int32_t last[7] = {0, 0, 0, 0, 0, 0, 4}, prefix[7] = {0, 1, 1, 1, 1, 1, 1};

    (void)state;
    expect_fault(advance(kv_len, last, pages, 1), ATTND_E_RANGE, ATTND_F_KV_INDPTR, 6, 4, 3);
    expect_fault(advance(kv_len, prefix, pages, 1), ATTND_E_RANGE, ATTND_F_KV_INDPTR, 1, 1, 0);
}

static void a_page_outside_the_pool_is_refused_and_nothing_changes(void **state)
{
    const int32_t kv_len[6] = {16, 0, 1, 2, 3, 48};
    const int32_t indptr[7] = {0, 0, 0, 1, 1, 1, 2};
    const int32_t beyond[2] = {5, POOL_PAGES}, negative[2] = {-3, 5};
    const uint64_t bytes = attnd_plan_heap_bytes(&c.limits);
    void *before = malloc(bytes);

    (void)state;
    assert_non_null(before);
    memcpy(before, c.heap, bytes);
    expect_fault(advance(kv_len, indptr, beyond, 1), ATTND_E_RANGE, ATTND_F_KV_INDICES, 1,
                 POOL_PAGES, POOL_PAGES - 1);
    expect_fault(advance(kv_len, indptr, negative, 1), ATTND_E_RANGE, ATTND_F_KV_INDICES, 0, -3, 0);
    assert_memory_equal(before, c.heap, bytes);
    free(before);
}

static void an_advance_of_another_number_of_entries_is_refused(void **state)
{
    const int32_t kv_len[7] = {0};
    const struct attnd_advance_view view = {.entries = 7, .kv_len = kv_len};

    (void)state;
    expect_fault(attnd_planner_advance(c.plan, &view, 1, POOL_PAGES, &fault), ATTND_E_RANGE,
                 ATTND_F_REQUESTS, 0, 7, 6);
}

static void advances_are_counted_from_the_last_set(void **state)
{
    const int32_t kv_len[6] = {0}, bad[6] = {-1};

    (void)state;
    assert_int_equal(attnd_plan_head(c.plan)->advance_version, 0);
    assert_int_equal(advance(kv_len, NULL, NULL, 1), 0);
    assert_int_equal(advance(kv_len, NULL, NULL, 2), 0);
    assert_int_equal(advance(bad, NULL, NULL, 3), -ATTND_E_RANGE);
    assert_int_equal(attnd_plan_head(c.plan)->advance_version, 2);
    assert_int_equal(attnd_planner_set(c.plan, &c.batch, &fault), 0);
    assert_int_equal(attnd_plan_head(c.plan)->advance_version, 0);
}

/* What a worker with a copy of the plan lives by: it copies the lengths of one generation and the
 * page ids that they reach, and is to have the plan then. Advances are made of the heap as it was
 * before, with the words that they may write; nothing else may differ. */
static void an_advance_writes_its_lengths_and_free_slots_and_nothing_else(void **state)
{
    const uint64_t bytes = attnd_plan_heap_bytes(&c.limits);
    uint8_t *want = malloc(bytes);
    struct attnd_plan_head *head = (void *)want;
    uint32_t used[6] = {2, 0, 2, 2, 2, 2};

    (void)state;
    assert_non_null(want);
    memcpy(want, c.heap, bytes);
    for (uint32_t step = 1; step <= 12; step++) {
        struct prng prng = prng_fork(seed, 1000 + step);
        const uint32_t generation = step % ATTND_GENERATIONS;
        int32_t kv_len[6], indptr[7] = {0}, pages[6];
        int32_t *slots = (void *)(want + head->kv_pages_offset_bytes);
        for (uint32_t e = 0; e < 6; e++) {
            const struct attnd_entry *entry = plan_entries(&c) + e;
            const uint32_t add = used[e] < entry->page_count && prng_percent(&prng, 25);
            indptr[e + 1] = indptr[e] + (int32_t)add;
            if (add)
                slots[entry->page_begin + used[e]++] = pages[indptr[e]] =
                    prng_between(&prng, 0, POOL_PAGES - 1);
            kv_len[e] = prng_between(&prng, 0, (int32_t)(used[e] * c.pool.page_size));
        }
        memcpy(want + head->kv_len_offset_bytes +
                   (uint64_t)generation * head->entries_max * sizeof(int32_t),
               kv_len, sizeof(kv_len));
        head->advance_version = step;
        head->generation = generation;
        assert_int_equal(advance(kv_len, indptr, pages, generation), 0);
        assert_memory_equal(c.heap, want, bytes);
    }
    free(want);
}

/* What the plan must say of its pages, kept here. */
struct lists {
    int32_t list[ENTRIES][64], used[ENTRIES];
    uint32_t reserve;
};

static void begin_lists(struct prng *prng, struct lists *lists)
{
    const int32_t one_row[ENTRIES] = {1, 1, 1, 1};
    int32_t kv_len[ENTRIES];

    lists->reserve = prng_below(prng, 20);
    plan_case_begin(&c);
    c.pool.page_size = 1 + prng_below(prng, 20);
    c.batch.reserve_pages = lists->reserve;
    for (uint32_t e = 0; e < ENTRIES; e++)
        kv_len[e] = prng_between(prng, 0, 30 * (int32_t)c.pool.page_size);
    plan_case_level(&c, ENTRIES, one_row, kv_len);
    assert_int_equal(plan_case_plan(&c), 0);
    const struct attnd_level_view *level = &c.batch.level[0];
    for (uint32_t e = 0; e < ENTRIES; e++) {
        lists->used[e] = level->kv_indptr[e + 1] - level->kv_indptr[e];
        for (int32_t p = 0; p < lists->used[e]; p++)
            lists->list[e][p] = level->kv_indices[level->kv_indptr[e] + p];
    }
}

struct drawn {
    int32_t kv_len[ENTRIES], indptr[ENTRIES + 1], pages[ENTRIES * 4];
};

/* New pages and lengths, now and then one that cannot be. Return: 1 if all of them can. */
static int draw_advance(struct prng *prng, const struct lists *lists, struct drawn *drawn)
{
    const struct attnd_level_view *level = &c.batch.level[0];
    int good = 1;

    drawn->indptr[0] = 0;
    for (uint32_t e = 0; e < ENTRIES; e++) {
        const int32_t begin = drawn->indptr[e];
        int32_t now = level->kv_indptr[e + 1] - level->kv_indptr[e] + (int32_t)lists->reserve;
        int32_t add = prng_percent(prng, 80) ? 0 : prng_between(prng, 0, 4);
        good &= lists->used[e] + add <= now;
        for (int32_t p = 0; p < add; p++) {
            int32_t id = prng_between(prng, prng_percent(prng, 99) ? 0 : -1, POOL_PAGES - 1);
            good &= id >= 0;
            drawn->pages[begin + p] = id;
        }
        drawn->indptr[e + 1] = begin + add;
        int32_t room = (lists->used[e] + add) * (int32_t)c.pool.page_size;
        drawn->kv_len[e] = prng_between(prng, 0, room + (prng_percent(prng, 3) ? 2 : 0));
        good &= drawn->kv_len[e] <= room;
    }
    return good;
}

static void expect_lists(struct lists *lists, const struct drawn *drawn, int good)
{
    for (uint32_t e = 0; e < ENTRIES; e++) {
        for (int32_t p = drawn->indptr[e]; good && p < drawn->indptr[e + 1]; p++)
            lists->list[e][lists->used[e]++] = drawn->pages[p];
        assert_memory_equal(plan_kv_pages(&c) + plan_entries(&c)[e].page_begin, lists->list[e],
                            (size_t)lists->used[e] * sizeof(int32_t));
    }
}

/* Generations of one plan in a row, some of them impossible, against lists kept here. */
static void any_sequence_of_advances_keeps_the_lists_right(void **state)
{
    (void)state;
    end(NULL);
    for (uint32_t round = 0; round < 300; round++) {
        struct prng prng = prng_fork(seed, round);
        struct lists lists;

        begin_lists(&prng, &lists);
        for (uint32_t step = 1; step < 30; step++) {
            struct drawn drawn;
            const int good = draw_advance(&prng, &lists, &drawn);
            const int32_t added = drawn.indptr[ENTRIES];
            const struct attnd_advance_view view = {.entries = ENTRIES,
                                                    .pages = (uint32_t)added,
                                                    .kv_len = drawn.kv_len,
                                                    .page_indptr = added ? drawn.indptr : NULL,
                                                    .page_indices = drawn.pages};
            const uint32_t generation = step % ATTND_GENERATIONS;
            int code = attnd_planner_advance(c.plan, &view, generation, POOL_PAGES, &fault);
            assert_int_equal(code, good ? 0 : -ATTND_E_RANGE);
            expect_lists(&lists, &drawn, good);
            if (good)
                assert_memory_equal(plan_kv_len(&c, generation), drawn.kv_len,
                                    sizeof(drawn.kv_len));
        }
        plan_case_free(&c);
    }
}

static void setting_and_advancing_allocate_nothing(void **state)
{
    const int32_t kv_len[6] = {32, 0, 20, 20, 20, 20};

    (void)state;
    const uint64_t before = allocations;
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(attnd_planner_set(c.plan, &c.batch, &fault), 0);
        assert_int_equal(advance(kv_len, NULL, NULL, 1), 0);
    }
    assert_int_equal(allocations, before);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(lengths_go_into_one_generation_only),
        TEST(pages_go_behind_the_list_of_their_entry),
        TEST(a_length_beyond_the_pages_in_use_is_refused),
        TEST(more_pages_than_were_reserved_are_refused),
        TEST(a_page_outside_the_pool_is_refused_and_nothing_changes),
        TEST(an_advance_of_another_number_of_entries_is_refused),
        TEST(advances_are_counted_from_the_last_set),
        TEST(an_advance_writes_its_lengths_and_free_slots_and_nothing_else),
        TEST(any_sequence_of_advances_keeps_the_lists_right),
        TEST(setting_and_advancing_allocate_nothing),
    };
#undef TEST
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
