/* test_client_arena.c - blocks of the arena: contiguous, aligned, never overlapping, freed by the
 * submission head and by nothing else. */
#include "client/internal.h"
#include "tests/support/harness/check.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define ENTRIES 16u

/* One block, reserved and committed. Return: the code of reserve. */
static int place(struct attnd_arena *arena, uint64_t bytes, uint32_t index, uint32_t in_flight,
                 uint64_t *offset_bytes)
{
    int rc = attnd_arena_reserve(arena, bytes, index, in_flight, offset_bytes);
    if (rc == 0)
        attnd_arena_commit(arena, bytes, index);
    return rc;
}

static void blocks_are_aligned_and_follow_each_other(void **state)
{
    (void)state;
    struct attnd_arena arena;
    uint64_t offset_bytes;
    CHECK_EQUAL(attnd_arena_init(&arena, NULL, 1024, ENTRIES), 0);
    CHECK_EQUAL(place(&arena, 1, 0, 0, &offset_bytes), 0);
    CHECK_EQUAL(offset_bytes, 0);
    CHECK_EQUAL(place(&arena, 65, 1, 1, &offset_bytes), 0);
    CHECK_EQUAL(offset_bytes, 64);
    CHECK_EQUAL(place(&arena, 64, 2, 2, &offset_bytes), 0);
    CHECK_EQUAL(offset_bytes, 192);
    attnd_arena_free(&arena);
}

static void a_block_that_does_not_fit_before_the_end_begins_at_the_start(void **state)
{
    (void)state;
    struct attnd_arena arena;
    uint64_t offset_bytes;
    CHECK_EQUAL(attnd_arena_init(&arena, NULL, 1024, ENTRIES), 0);
    CHECK_EQUAL(place(&arena, 512, 0, 0, &offset_bytes), 0);
    CHECK_EQUAL(place(&arena, 256, 1, 1, &offset_bytes), 0);
    CHECK_EQUAL(place(&arena, 320, 2, 2, &offset_bytes), -ATTND_E_FULL);
    CHECK_EQUAL(place(&arena, 320, 2, 1, &offset_bytes), 0); /* slot 0 was consumed */
    CHECK_EQUAL(offset_bytes, 0);
    /* The gap at the end belongs to the block behind it: only 192 bytes are left. */
    CHECK_EQUAL(place(&arena, 193, 3, 2, &offset_bytes), -ATTND_E_FULL);
    CHECK_EQUAL(place(&arena, 192, 3, 2, &offset_bytes), 0);
    CHECK_EQUAL(offset_bytes, 320);
    attnd_arena_free(&arena);
}

static void the_whole_arena_is_one_block_once_nothing_is_in_flight(void **state)
{
    (void)state;
    struct attnd_arena arena;
    uint64_t offset_bytes;
    CHECK_EQUAL(attnd_arena_init(&arena, NULL, 1024, ENTRIES), 0);
    CHECK_EQUAL(place(&arena, 1025, 0, 0, &offset_bytes), -ATTND_E_NO_SPACE);
    CHECK_EQUAL(place(&arena, 100, 0, 0, &offset_bytes), 0);
    CHECK_EQUAL(place(&arena, 1024, 1, 1, &offset_bytes), -ATTND_E_FULL);
    CHECK_EQUAL(place(&arena, 1024, 1, 0, &offset_bytes), 0);
    CHECK_EQUAL(offset_bytes, 0);
    attnd_arena_free(&arena);
}

static void a_reservation_that_is_not_committed_costs_nothing(void **state)
{
    (void)state;
    struct attnd_arena arena;
    uint64_t offset_bytes;
    CHECK_EQUAL(attnd_arena_init(&arena, NULL, 1024, ENTRIES), 0);
    for (int i = 0; i < 100; i++)
        CHECK_EQUAL(attnd_arena_reserve(&arena, 1000, 0, 0, &offset_bytes), 0);
    attnd_arena_free(&arena);
}

static void a_block_is_free_even_after_two_thousand_million_slots(void **state)
{
    (void)state;
    struct attnd_arena arena;
    uint64_t offset_bytes;
    CHECK_EQUAL(attnd_arena_init(&arena, NULL, 1024, ENTRIES), 0);
    CHECK_EQUAL(place(&arena, 1024, 5, 0, &offset_bytes), 0);
    CHECK_EQUAL(place(&arena, 1024, 5 + 0x80000010u, 3, &offset_bytes), 0);
    CHECK_EQUAL(place(&arena, 1024, 5 + 0x50000000u, 3, &offset_bytes), 0);
    /* and across the wrap of the index */
    CHECK_EQUAL(place(&arena, 1024, 0xffffffffu, 0, &offset_bytes), 0);
    CHECK_EQUAL(place(&arena, 64, 2, 3, &offset_bytes), -ATTND_E_FULL);
    CHECK_EQUAL(place(&arena, 64, 2, 2, &offset_bytes), 0);
    attnd_arena_free(&arena);
}

/* The model: for every slot in flight, the bytes it holds. */
struct model {
    uint64_t begin[ENTRIES], end[ENTRIES];
};

static void check_disjoint(const struct model *model, uint32_t index, uint32_t in_flight)
{
    uint64_t begin = model->begin[index % ENTRIES], end = model->end[index % ENTRIES];
    for (uint32_t i = index - in_flight; i != index; i++)
        CHECK(end <= model->begin[i % ENTRIES] || model->end[i % ENTRIES] <= begin);
}

static void random_traffic_never_hands_out_bytes_in_flight(void **state)
{
    (void)state;
    uint64_t seed = test_seed();

    for (uint64_t round = 0; round < 200; round++) {
        struct prng prng = prng_fork(seed, round);
        uint64_t bytes = 64u * (uint64_t)prng_between(&prng, 1, 64);
        uint32_t index = (uint32_t)prng_next(&prng), in_flight = 0, placed = 0;
        struct attnd_arena arena;
        struct model model;
        CHECK_EQUAL(attnd_arena_init(&arena, NULL, bytes, ENTRIES), 0);
        for (int step = 0; step < 2000; step++) {
            in_flight -= prng_below(&prng, in_flight + 1); /* the daemon consumes some */
            if (in_flight == ENTRIES)
                continue;
            uint64_t want = prng_below(&prng, (uint32_t)bytes + 1), offset_bytes = 0;
            int rc = attnd_arena_reserve(&arena, want, index, in_flight, &offset_bytes);
            CHECK(rc == 0 || rc == -ATTND_E_FULL);
            CHECK(rc == 0 || in_flight > 0); /* an idle ring has room for whatever fits at all */
            if (rc < 0)
                continue;
            CHECK(offset_bytes % ATTND_CACHE_LINE == 0 && offset_bytes + want <= bytes);
            uint64_t used = want - prng_below(&prng, (uint32_t)want / 4 + 1);
            model.begin[index % ENTRIES] = offset_bytes;
            model.end[index % ENTRIES] = offset_bytes + used;
            check_disjoint(&model, index, in_flight);
            attnd_arena_commit(&arena, used, index++);
            in_flight++;
            placed++;
        }
        CHECK(placed > 100);
        attnd_arena_free(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_follow_each_other),
        cmocka_unit_test(a_block_that_does_not_fit_before_the_end_begins_at_the_start),
        cmocka_unit_test(the_whole_arena_is_one_block_once_nothing_is_in_flight),
        cmocka_unit_test(a_reservation_that_is_not_committed_costs_nothing),
        cmocka_unit_test(a_block_is_free_even_after_two_thousand_million_slots),
        cmocka_unit_test(random_traffic_never_hands_out_bytes_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
