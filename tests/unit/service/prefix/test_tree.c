/* test_tree.c - what the prefix tree promises, one claim at a time. */
#include "schemas/batch.h"
#include "tests/support/harness/check.h"
#include "tests/support/rigs/tree_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define CHAIN 8u

static struct attnd_tree_owner owner[2]; /* of sessions 0 and 1 */
static struct attnd_block_key keys[64];
static int32_t pages[256], found[256];

static int setup(void **state)
{
    (void)state;
    check_failed = _fail;
    tree_rig_begin(64, 64, 1000);
    memset(owner, 0, sizeof(owner));
    owner[0].session = 1;
    owner[1].session = 2;
    for (uint32_t i = 0; i < 64; i++)
        keys[i] = tree_rig_key(i + 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tree_rig_end();
    return 0;
}

static struct attnd_tree_chain chain(uint32_t space, uint32_t begin, uint32_t end)
{
    return (struct attnd_tree_chain){
        space, end - begin, keys + begin, begin ? &keys[begin - 1] : NULL, 0, 0};
}

/* Blocks begin..end under keys of these numbers, by @session, who keeps its leases. */
static struct attnd_tree_result publish(uint32_t session, uint32_t space, uint32_t begin,
                                        uint32_t end, uint32_t block_pages)
{
    struct attnd_tree_result result;
    struct attnd_tree_chain of = chain(space, begin, end);
    assert_int_equal(tree_rig_alloc(session, of.count * block_pages, pages),
                     of.count * block_pages);
    assert_int_equal(attnd_tree_publish(tree_rig.tree, &owner[session], &of, pages, &result), 0);
    return result;
}

static struct attnd_tree_result match(uint32_t session, uint32_t space, uint32_t begin,
                                      uint32_t end)
{
    struct attnd_tree_chain of = chain(space, begin, end);
    struct attnd_tree_result result = attnd_tree_match(tree_rig.tree, &owner[session], &of, found);
    uint32_t block_pages = attnd_tree_space_info(tree_rig.tree, space)->args.block_pages;
    tree_rig_lease(session, found, result.blocks * block_pages);
    return result;
}

static void what_is_published_is_found_with_its_pages(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(2, 64, 0);
    struct attnd_tree_result result = publish(0, space, 0, CHAIN, 2);
    assert_int_equal(result.blocks, CHAIN);
    assert_int_equal(result.taken, CHAIN);
    result = match(1, space, 0, CHAIN + 3);
    assert_int_equal(result.blocks, CHAIN);
    assert_int_equal(result.foreign, CHAIN);
    assert_int_equal(result.stop, ATTND_PREFIX_STOP_MISSING);
    assert_memory_equal(found, pages, 2 * CHAIN * sizeof(pages[0]));
    result = match(0, space, 3, 5); /* from the middle on */
    assert_int_equal(result.blocks, 2);
    assert_int_equal(result.foreign, 0);
    assert_memory_equal(found, pages + 6, 4 * sizeof(pages[0]));
}

static void a_key_of_another_parent_is_a_miss_and_cannot_be_published(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(1, 64, 0);
    publish(0, space, 0, CHAIN, 1);
    /* keys[3] exists, but not at the beginning of a prompt */
    struct attnd_tree_chain wrong = {space, 1, &keys[3], NULL, 0, 0};
    assert_int_equal(attnd_tree_match(tree_rig.tree, &owner[1], &wrong, found).blocks, 0);
    struct attnd_tree_result result;
    assert_int_equal(tree_rig_alloc(1, 1, pages), 1);
    assert_int_equal(attnd_tree_publish(tree_rig.tree, &owner[1], &wrong, pages, &result),
                     -ATTND_E_INVALID);
    assert_int_equal(result.blocks, 0);
}

static void a_page_can_be_published_once_and_a_block_is_whole(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(2, 64, 0);
    struct attnd_tree_result result;
    struct attnd_tree_chain two = chain(space, 0, 2);
    assert_int_equal(tree_rig_alloc(0, 4, pages), 4);
    int32_t twice[] = {pages[0], pages[1], pages[2], pages[2]};
    assert_int_equal(attnd_tree_publish(tree_rig.tree, &owner[0], &two, twice, &result),
                     -ATTND_E_INVALID);
    assert_int_equal(result.blocks, 1); /* the one before is there, whole */
    assert_int_equal(match(1, space, 0, 2).blocks, 1);
    assert_int_equal(tree_rig.leases[pages[2]], 1);
    int32_t others[] = {pages[0], pages[3]};
    struct attnd_tree_chain next = {space, 1, &keys[9], NULL, 0, 0};
    assert_int_equal(attnd_tree_publish(tree_rig.tree, &owner[0], &next, others, &result),
                     -ATTND_E_INVALID);
    assert_false(tree_rig_publishes(pages[3]));
}

#define SEEN (64u + 128u) /* places, of keys and of pages */

/* Return: the first of blocks 0..@count that is wrong; @count: none. In parts of @part. */
static uint32_t checked_by(uint32_t space, uint32_t count, const int32_t *of_blocks, uint32_t part)
{
    const struct attnd_tree_chain of = chain(space, 0, count);
    uint16_t seen[SEEN] = {0};
    struct attnd_tree_check check = {.seen = seen};
    int rc = 0;

    assert_true(attnd_prefix_seen_places(count) + attnd_prefix_seen_places(2 * count) <= SEEN);
    while (rc == 0 && check.blocks < count) {
        const uint32_t left = count - check.blocks;
        rc = attnd_tree_publish_check(tree_rig.tree, &of, of_blocks, left < part ? left : part,
                                      &check);
    }
    assert_int_equal(rc, check.blocks == count ? 0 : -ATTND_E_INVALID);
    return check.blocks;
}

/* However it is cut. */
static uint32_t checked(uint32_t space, uint32_t count, const int32_t *of_blocks)
{
    const uint32_t wrong = checked_by(space, count, of_blocks, count);

    for (uint32_t part = 1; part < count; part++)
        assert_int_equal(checked_by(space, count, of_blocks, part), wrong);
    return wrong;
}

static void what_a_publish_would_refuse_is_found_before_it_begins(void **state)
{
    (void)state;
    uint16_t seen[SEEN] = {0};
    struct attnd_tree_check check = {.seen = seen};
    uint32_t space = tree_rig_space(2, 64, 0);
    publish(0, space, 0, 2, 2);
    const int32_t published = pages[3];
    assert_int_equal(tree_rig_alloc(0, 2 * CHAIN, pages), 2 * CHAIN);
    /* Again and again: it leaves no mark. What is published already may have any page. */
    for (uint32_t round = 0; round < 2; round++)
        assert_int_equal(checked(space, CHAIN, pages), CHAIN);
    pages[0] = pages[3] = published;
    assert_int_equal(checked(space, CHAIN, pages), CHAIN);
    int32_t kept = pages[13];
    pages[13] = published;
    assert_int_equal(checked(space, CHAIN, pages), 6);
    pages[13] = pages[5];
    assert_int_equal(checked(space, CHAIN, pages), 6);
    pages[13] = kept;
    const struct attnd_block_key key = keys[7];
    keys[7] = keys[4]; /* the key of a block that is not there yet */
    assert_int_equal(checked(space, CHAIN, pages), 7);
    keys[7] = keys[1]; /* of one that is, under another parent */
    assert_int_equal(checked(space, CHAIN, pages), 7);
    keys[7] = keys[0]; /* and under none */
    assert_int_equal(checked(space, CHAIN, pages), 7);
    keys[7] = key;
    const struct attnd_tree_chain no_parent = chain(space, 5, 6);
    assert_int_equal(attnd_tree_publish_check(tree_rig.tree, &no_parent, pages, 1, &check),
                     -ATTND_E_UNKNOWN);
    assert_int_equal(match(1, space, 0, CHAIN).blocks, 2); /* and nothing was published */
    assert_int_equal(checked(space, CHAIN, pages), CHAIN);
}

static void a_namespace_sees_nothing_of_another(void **state)
{
    (void)state;
    uint32_t a = tree_rig_space(1, 64, 0), b = tree_rig_space(1, 64, 0);
    publish(0, a, 0, CHAIN, 1);
    assert_int_equal(match(0, b, 0, CHAIN).blocks, 0);
    assert_int_equal(publish(1, b, 0, CHAIN, 1).taken, CHAIN);
    assert_int_equal(attnd_tree_space_info(tree_rig.tree, b)->stats.found, 0);
}

static void leaves_go_before_parents_and_pages_in_use_stay(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(1, 64, 0);
    publish(0, space, 0, CHAIN, 1);
    int32_t kept[CHAIN];
    memcpy(kept, pages, sizeof(kept));
    assert_int_equal(attnd_tree_evict(tree_rig.tree, 64), 0);
    tree_rig_free_all(0);
    assert_int_equal(match(1, space, 0, 3).blocks, 3);
    assert_int_equal(attnd_tree_evictable(tree_rig.tree), CHAIN - 3);
    assert_int_equal(attnd_tree_evict(tree_rig.tree, 2), 2);
    assert_false(tree_rig_publishes(kept[CHAIN - 1]));
    assert_false(tree_rig_publishes(kept[CHAIN - 2]));
    assert_true(tree_rig_publishes(kept[CHAIN - 3]));
    assert_int_equal(attnd_tree_evict(tree_rig.tree, 64), CHAIN - 5);
    for (uint32_t i = 0; i < CHAIN; i++)
        assert_int_equal(tree_rig.leases[kept[i]], i < 3 ? 2 : 0);
    tree_rig_free_all(1);
    assert_int_equal(attnd_tree_evict(tree_rig.tree, 64), 3);
}

static void least_recently_used_goes_first(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(1, 64, 0);
    int32_t page[4];
    for (uint32_t i = 0; i < 4; i++) { /* four beginnings */
        struct attnd_tree_chain one = {space, 1, &keys[i], NULL, 0, 0};
        struct attnd_tree_result result;
        assert_int_equal(tree_rig_alloc(0, 1, &page[i]), 1);
        assert_int_equal(attnd_tree_publish(tree_rig.tree, &owner[0], &one, &page[i], &result), 0);
        tree_rig_free(0, &page[i], 1);
    }
    struct attnd_tree_chain first = {space, 1, &keys[0], NULL, 0, 0};
    assert_int_equal(attnd_tree_match(tree_rig.tree, &owner[0], &first, found).blocks, 1);
    tree_rig_lease(0, found, 1);
    tree_rig_free(0, found, 1);
    const uint32_t order[] = {1, 2, 3, 0};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(attnd_tree_evict(tree_rig.tree, 1), 1);
        assert_false(tree_rig_publishes(page[order[i]]));
    }
}

static void what_costs_more_to_compute_stays_longer(void **state)
{
    (void)state;
    tree_rig_end();
    tree_rig_begin(TREE_RIG_PAGES_MAX, 1000, 1000);
    uint32_t space = tree_rig_space(ATTND_PREFIX_BLOCK_PAGES_MAX, TREE_RIG_PAGES_MAX, 0);
    /* 12 blocks of 4,096 tokens: the last stands behind 45,056. Then a beginning, used later. */
    static int32_t deep[12 * ATTND_PREFIX_BLOCK_PAGES_MAX], flat[ATTND_PREFIX_BLOCK_PAGES_MAX];
    struct attnd_tree_result result;
    struct attnd_tree_chain twelve = chain(space, 0, 12), one = {space, 1, &keys[20], NULL, 0, 0};
    assert_int_equal(tree_rig_alloc(0, 12 * ATTND_PREFIX_BLOCK_PAGES_MAX, deep),
                     12 * ATTND_PREFIX_BLOCK_PAGES_MAX);
    assert_int_equal(attnd_tree_publish(tree_rig.tree, &owner[0], &twelve, deep, &result), 0);
    assert_int_equal(tree_rig_alloc(1, ATTND_PREFIX_BLOCK_PAGES_MAX, flat),
                     ATTND_PREFIX_BLOCK_PAGES_MAX);
    assert_int_equal(attnd_tree_publish(tree_rig.tree, &owner[1], &one, flat, &result), 0);
    tree_rig_free_all(0);
    tree_rig_free_all(1);
    assert_int_equal(attnd_tree_evict(tree_rig.tree, 1), ATTND_PREFIX_BLOCK_PAGES_MAX);
    assert_false(tree_rig_publishes(flat[0]));
    assert_true(tree_rig_publishes(deep[0]));
}

static void a_namespace_evicts_its_own_beyond_its_budget(void **state)
{
    (void)state;
    uint32_t small = tree_rig_space(1, 4, 0), other = tree_rig_space(1, 64, 0);
    publish(0, other, 0, 8, 1);
    publish(0, small, 0, 4, 1);
    tree_rig_free_all(0);
    struct attnd_tree_chain next = {small, 2, &keys[10], NULL, 0, 0};
    struct attnd_tree_result result;
    assert_int_equal(tree_rig_alloc(1, 2, pages), 2);
    assert_int_equal(attnd_tree_publish(tree_rig.tree, &owner[1], &next, pages, &result), 0);
    assert_int_equal(result.taken, 2);
    assert_int_equal(attnd_tree_space_info(tree_rig.tree, small)->blocks, 4);
    assert_int_equal(attnd_tree_space_info(tree_rig.tree, other)->blocks, 8);
    assert_int_equal(match(1, small, 0, 4).blocks, 2); /* the end went, not the beginning */
    /* All four are in use: no room, and that is said. */
    struct attnd_tree_chain more = {small, 1, &keys[20], NULL, 0, 0};
    assert_int_equal(tree_rig_alloc(1, 1, pages), 1);
    assert_int_equal(attnd_tree_publish(tree_rig.tree, &owner[1], &more, pages, &result), 0);
    assert_int_equal(result.blocks, 0);
    assert_int_equal(result.stop, ATTND_PREFIX_STOP_FULL);
    assert_int_equal(tree_rig.leases[pages[0]], 1);
}

static void the_low_mark_keeps_a_namespace_until_nothing_else_is_left(void **state)
{
    (void)state;
    uint32_t kept = tree_rig_space(1, 64, 6), other = tree_rig_space(1, 64, 0);
    publish(0, kept, 0, 8, 1);
    tree_rig_free_all(0); /* used less recently than the other's */
    publish(1, other, 0, 4, 1);
    tree_rig_free_all(1);
    assert_int_equal(attnd_tree_evict(tree_rig.tree, 6), 6);
    assert_int_equal(attnd_tree_space_info(tree_rig.tree, kept)->blocks, 6);
    assert_int_equal(attnd_tree_space_info(tree_rig.tree, other)->blocks, 0);
    assert_int_equal(attnd_tree_evict(tree_rig.tree, 2), 2);
    assert_int_equal(attnd_tree_space_info(tree_rig.tree, kept)->blocks, 4);
}

static void a_pinned_block_stays_until_it_is_unpinned_or_its_namespace_released(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(1, 64, 0);
    publish(0, space, 0, CHAIN, 1);
    tree_rig_free_all(0);
    struct attnd_tree_chain of = chain(space, 0, 4);
    assert_int_equal(attnd_tree_pin(tree_rig.tree, &of).blocks, 4);
    assert_int_equal(attnd_tree_pin(tree_rig.tree, &of).blocks, 4); /* once is enough */
    assert_int_equal(attnd_tree_evict(tree_rig.tree, 64), CHAIN - 4);
    struct attnd_tree_chain half = chain(space, 2, 4);
    assert_int_equal(attnd_tree_unpin(tree_rig.tree, &half).blocks, 2);
    assert_int_equal(attnd_tree_evict(tree_rig.tree, 64), 2);
    attnd_tree_space_release(tree_rig.tree, space);
    assert_int_equal(attnd_tree_evict(tree_rig.tree, 64), 2);
    assert_null(attnd_tree_space_info(tree_rig.tree, space));
}

static void not_more_than_half_can_be_pinned(void **state)
{
    (void)state;
    uint32_t small = tree_rig_space(1, 8, 0), large = tree_rig_space(1, 64, 0);
    publish(0, small, 0, CHAIN, 1);
    struct attnd_tree_chain of = chain(small, 0, CHAIN);
    struct attnd_tree_result result = attnd_tree_pin(tree_rig.tree, &of);
    assert_int_equal(result.blocks, 4);
    assert_int_equal(result.stop, ATTND_PREFIX_STOP_FULL);
    publish(0, large, 0, 40, 1);
    struct attnd_tree_chain orphan = {large, 30, &keys[10], &keys[50], 0, 0};
    assert_int_equal(attnd_tree_pin(tree_rig.tree, &orphan).blocks,
                     0); /* its parent is not there */
    struct attnd_tree_chain whole = chain(large, 0, 40);
    result = attnd_tree_pin(tree_rig.tree, &whole);
    assert_int_equal(result.blocks, 64 / 2 - 4); /* of the pool, with those of the other */
    assert_int_equal(result.stop, ATTND_PREFIX_STOP_FULL);
}

static void a_block_is_claimed_once_and_the_others_are_told(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(1, 64, 0);
    struct attnd_tree_chain of = chain(space, 0, CHAIN), longer = chain(space, 0, CHAIN + 1);
    assert_int_equal(attnd_tree_claim(tree_rig.tree, &owner[0], &of).blocks, CHAIN);
    assert_int_equal(attnd_tree_claim(tree_rig.tree, &owner[0], &longer).blocks, 0);
    assert_int_equal(attnd_tree_claim(tree_rig.tree, &owner[0], &longer).stop,
                     ATTND_PREFIX_STOP_CLAIMED);
    struct attnd_tree_result result = attnd_tree_claim(tree_rig.tree, &owner[1], &of);
    assert_int_equal(result.blocks, 0);
    assert_int_equal(result.stop, ATTND_PREFIX_STOP_CLAIMED);
    assert_int_equal(match(1, space, 0, CHAIN).stop, ATTND_PREFIX_STOP_CLAIMED);
    assert_int_equal(match(0, space, 0, CHAIN).stop, ATTND_PREFIX_STOP_CLAIMED);
    publish(0, space, 0, 2, 1);
    result = attnd_tree_claim(tree_rig.tree, &owner[1], &of);
    assert_int_equal(result.stop, ATTND_PREFIX_STOP_PUBLISHED);
    assert_int_equal(attnd_tree_space_info(tree_rig.tree, space)->claims, CHAIN - 2);
    (void)attnd_tree_owner_end(tree_rig.tree, &owner[0], UINT32_MAX);
    assert_int_equal(owner[0].claims, 0);
    assert_int_equal(attnd_tree_space_info(tree_rig.tree, space)->claims, 0);
}

static void who_waits_is_woken_by_the_block_or_by_the_end_of_the_claim(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(1, 64, 0);
    struct attnd_tree_chain of = chain(space, 0, 3);
    struct attnd_tree_waiter waiter[4] = {0};
    assert_int_equal(attnd_tree_wait(tree_rig.tree, space, &keys[0], &waiter[0]), 0);
    assert_int_equal(attnd_tree_claim(tree_rig.tree, &owner[0], &of).blocks, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(attnd_tree_wait(tree_rig.tree, space, &keys[i], &waiter[i]), 1);
    assert_int_equal(attnd_tree_wait(tree_rig.tree, space, &keys[2], &waiter[3]), 1);
    attnd_tree_unwait(&waiter[3]);
    assert_null(attnd_tree_woken(tree_rig.tree));
    publish(0, space, 0, 1, 1);
    assert_ptr_equal(attnd_tree_woken(tree_rig.tree), &waiter[0]);
    assert_int_equal(waiter[0].abandoned, 0);
    assert_null(attnd_tree_woken(tree_rig.tree));
    publish(1, space, 1, 2, 1); /* somebody else computed it too */
    assert_ptr_equal(attnd_tree_woken(tree_rig.tree), &waiter[1]);
    assert_int_equal(waiter[1].abandoned, 0);
    (void)attnd_tree_owner_end(tree_rig.tree, &owner[0], UINT32_MAX);
    assert_ptr_equal(attnd_tree_woken(tree_rig.tree), &waiter[2]);
    assert_int_equal(waiter[2].abandoned, 1);
    assert_null(attnd_tree_woken(tree_rig.tree));
}

static void the_second_of_two_that_computed_a_block_keeps_its_page(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(1, 64, 0);
    publish(0, space, 0, 3, 1);
    struct attnd_tree_result result = publish(1, space, 0, 4, 1);
    assert_int_equal(result.blocks, 4);
    assert_int_equal(result.taken, 1);
    assert_false(tree_rig_publishes(pages[0]));
    assert_int_equal(tree_rig.leases[pages[0]], 1);
    assert_int_equal(tree_rig.leases[pages[3]], 2);
}

static void claims_are_limited_for_each_and_for_all(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(1, 64, 0);
    struct attnd_tree_chain all = chain(space, 0, 64);
    struct attnd_tree_result result = attnd_tree_claim(tree_rig.tree, &owner[0], &all);
    assert_int_equal(result.stop, ATTND_PREFIX_STOP_FULL);
    assert_true(result.blocks > 0 && result.blocks <= 64 / 4);
    struct attnd_tree_chain rest = {space, 64 - result.blocks, keys + result.blocks, NULL, 0, 0};
    struct attnd_tree_result other = attnd_tree_claim(tree_rig.tree, &owner[1], &rest);
    assert_true(other.blocks > 0);
    assert_true(result.blocks + other.blocks <= 64 / 4 + 2);
    (void)attnd_tree_owner_end(tree_rig.tree, &owner[0], UINT32_MAX);
    (void)attnd_tree_owner_end(tree_rig.tree, &owner[1], UINT32_MAX);
}

static void all_trees_together_stay_within_their_budget(void **state)
{
    (void)state;
    tree_rig_end();
    tree_rig_begin(64, 64, 6);
    uint32_t space = tree_rig_space(1, 64, 0);
    struct attnd_tree_result result = publish(0, space, 0, CHAIN, 1);
    assert_int_equal(result.blocks, 6);
    assert_int_equal(result.stop, ATTND_PREFIX_STOP_FULL);
    tree_rig_free_all(0);
    struct attnd_tree_chain next = {space, 2, &keys[10], NULL, 0, 0};
    assert_int_equal(tree_rig_alloc(1, 2, pages), 2);
    assert_int_equal(attnd_tree_publish(tree_rig.tree, &owner[1], &next, pages, &result), 0);
    assert_int_equal(result.taken, 2); /* two of its own went */
    assert_int_equal(tree_rig.used, 6);
}

static void namespaces_end_and_a_new_one_finds_room(void **state)
{
    (void)state;
    uint32_t space[ATTND_PREFIX_SPACES_MAX], extra;
    struct attnd_tree_space_args args = {1, 64, 0, 0};
    for (uint32_t i = 0; i < ATTND_PREFIX_SPACES_MAX; i++)
        space[i] = tree_rig_space(1, 64, 0);
    assert_int_equal(attnd_tree_space_open(tree_rig.tree, &args, &extra), -ATTND_E_NO_SPACE);
    publish(0, space[5], 0, 4, 1);
    attnd_tree_space_release(tree_rig.tree, space[5]);
    assert_int_equal(attnd_tree_space_info(tree_rig.tree, space[5])->blocks,
                     4); /* and can be found */
    assert_int_equal(attnd_tree_space_open(tree_rig.tree, &args, &extra), -ATTND_E_NO_SPACE);
    tree_rig_free_all(0);
    assert_int_equal(attnd_tree_space_open(tree_rig.tree, &args, &extra), 0);
    assert_int_equal(extra, space[5]);
    assert_int_equal(attnd_tree_space_info(tree_rig.tree, extra)->blocks, 0);
}

static void the_prefixes_found_most_often_are_known(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(1, 64, 0);
    struct attnd_tree_top top[ATTND_TREE_TOP];
    publish(0, space, 0, 30, 1);
    for (uint32_t length = 1; length <= 20; length++)
        for (uint32_t times = 0; times < (length == 7 ? 40 : length); times++) {
            (void)match(1, space, 0, length);
            tree_rig_free_all(1);
        }
    assert_int_equal(attnd_tree_space_top(tree_rig.tree, space, top), ATTND_TREE_TOP);
    assert_int_equal(top[0].blocks, 7);
    assert_int_equal(top[0].hits, 40);
    assert_memory_equal(&top[0].key, &keys[6], sizeof(keys[6]));
    for (uint32_t i = 1; i < ATTND_TREE_TOP; i++)
        assert_int_equal(top[i].blocks, 21 - i);
}

static void a_page_with_all_its_leases_ends_a_match(void **state)
{
    (void)state;
    uint32_t space = tree_rig_space(1, 64, 0);
    publish(0, space, 0, 3, 1);
    tree_rig.leases[pages[1]] = TREE_RIG_LEASES_MAX;
    struct attnd_tree_result result = match(1, space, 0, 3);
    assert_int_equal(result.blocks, 1);
    assert_int_equal(result.stop, ATTND_PREFIX_STOP_FULL);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(what_is_published_is_found_with_its_pages),
        CASE(a_key_of_another_parent_is_a_miss_and_cannot_be_published),
        CASE(a_page_can_be_published_once_and_a_block_is_whole),
        CASE(what_a_publish_would_refuse_is_found_before_it_begins),
        CASE(a_namespace_sees_nothing_of_another),
        CASE(leaves_go_before_parents_and_pages_in_use_stay),
        CASE(least_recently_used_goes_first),
        CASE(what_costs_more_to_compute_stays_longer),
        CASE(a_namespace_evicts_its_own_beyond_its_budget),
        CASE(the_low_mark_keeps_a_namespace_until_nothing_else_is_left),
        CASE(a_pinned_block_stays_until_it_is_unpinned_or_its_namespace_released),
        CASE(not_more_than_half_can_be_pinned),
        CASE(a_block_is_claimed_once_and_the_others_are_told),
        CASE(who_waits_is_woken_by_the_block_or_by_the_end_of_the_claim),
        CASE(the_second_of_two_that_computed_a_block_keeps_its_page),
        CASE(claims_are_limited_for_each_and_for_all),
        CASE(all_trees_together_stay_within_their_budget),
        CASE(namespaces_end_and_a_new_one_finds_room),
        CASE(the_prefixes_found_most_often_are_known),
        CASE(a_page_with_all_its_leases_ends_a_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
