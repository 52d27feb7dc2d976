/*
 * test_tree_large.c - a million blocks: all are found, memory is what is promised, and keys that
 * were chosen badly cost no more than others.
 */
#include "service/prefix/tree.h"
#include "tests/support/random/prng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define BLOCKS 1000000u
#define CHAIN 250u
#define BYTES_MAX 128u

static uint16_t *leases;
static struct attnd_tree *tree;
static uint32_t used;
static struct attnd_tree_owner owner;
static uint32_t space;

static void take(void *context, const int32_t *pages, uint32_t count)
{
    (void)context;
    for (uint32_t i = 0; i < count; i++)
        leases[pages[i]]++;
}

static void drop(void *context, const int32_t *pages, uint32_t count)
{
    (void)context;
    for (uint32_t i = 0; i < count; i++)
        leases[pages[i]]--;
}

static int setup(void **state)
{
    (void)state;
    leases = calloc(BLOCKS, sizeof(*leases));
    struct attnd_tree_args args = {.pages = BLOCKS,
                                   .page_size = 16,
                                   .blocks_max = BLOCKS,
                                   .leases = {leases, 1000, take, drop, NULL},
                                   .used = &used,
                                   .used_max = BLOCKS};
    struct attnd_tree_space_args space_args = {1, BLOCKS, 0, 0};
    return attnd_tree_new(&args, &tree) || attnd_tree_space_open(tree, &space_args, &space);
}

static int teardown(void **state)
{
    (void)state;
    attnd_tree_free(tree);
    free(leases);
    return 0;
}

typedef struct attnd_block_key key_fn(uint32_t number);

static struct attnd_block_key random_key(uint32_t number)
{
    return (struct attnd_block_key){{prng_mix(number), prng_mix(~(uint64_t)number)}};
}

/* All alike except for the bits that a hash of low bits, or of high ones, would not see. */
static struct attnd_block_key middle_key(uint32_t number)
{
    return (struct attnd_block_key){{(uint64_t)number << 24, (uint64_t)number << 24}};
}

static struct attnd_block_key step_key(uint32_t number)
{
    return (struct attnd_block_key){{(uint64_t)number << 44, 0}};
}

static struct attnd_tree_chain chain_of(key_fn *key, uint32_t first, struct attnd_block_key *keys)
{
    for (uint32_t i = 0; i < CHAIN; i++)
        keys[i] = key(first + i);
    return (struct attnd_tree_chain){space, CHAIN, keys, NULL, 0, 0};
}

/* In chains; nobody holds them afterwards. */
static void fill(key_fn *key)
{
    struct attnd_block_key keys[CHAIN];
    struct attnd_tree_result result;
    int32_t pages[CHAIN];

    for (uint32_t first = 0; first < BLOCKS; first += CHAIN) {
        struct attnd_tree_chain chain = chain_of(key, first, keys);
        for (uint32_t i = 0; i < CHAIN; i++)
            leases[pages[i] = (int32_t)(first + i)] = 1;
        assert_int_equal(attnd_tree_publish(tree, &owner, &chain, pages, &result), 0);
        assert_int_equal(result.taken, CHAIN);
        for (uint32_t i = 0; i < CHAIN; i++) {
            leases[pages[i]] = 1;
            attnd_tree_page_idle(tree, pages[i]);
        }
    }
}

static void find_all(key_fn *key)
{
    struct attnd_block_key keys[CHAIN];
    int32_t pages[CHAIN];

    for (uint32_t first = 0; first < BLOCKS; first += CHAIN) {
        struct attnd_tree_chain chain = chain_of(key, first, keys);
        assert_int_equal(attnd_tree_match(tree, &owner, &chain, pages).blocks, CHAIN);
        for (uint32_t i = 0; i < CHAIN; i++) {
            assert_int_equal(pages[i], first + i);
            attnd_tree_page_idle(tree, pages[i]);
        }
    }
}

static void a_million_blocks_are_found_in_memory_that_is_bounded(void **state)
{
    (void)state;
    fill(random_key);
    assert_int_equal(attnd_tree_pages(tree), BLOCKS);
    assert_true(attnd_tree_bytes(tree) <= (uint64_t)BYTES_MAX * BLOCKS);
    print_message("%.1f bytes a block\n", (double)attnd_tree_bytes(tree) / BLOCKS);
    find_all(random_key);
    assert_int_equal(attnd_tree_evictable(tree), BLOCKS);
    assert_int_equal(attnd_tree_evict(tree, BLOCKS), BLOCKS);
    assert_int_equal(attnd_tree_pages(tree), 0);
}

static double seconds_of(key_fn *key)
{
    struct timespec begin, end;
    fill(key);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    find_all(key);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    (void)attnd_tree_evict(tree, BLOCKS);
    return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

/* Where a hash lets such keys collide, a thousand fall into one bucket. */
static void keys_chosen_badly_are_found_as_fast(void **state)
{
    (void)state;
    double random_s = seconds_of(random_key);
    assert_true(seconds_of(middle_key) < 20 * random_s + 1);
    assert_true(seconds_of(step_key) < 20 * random_s + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_million_blocks_are_found_in_memory_that_is_bounded, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(keys_chosen_badly_are_found_as_fast, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
