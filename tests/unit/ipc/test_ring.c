/* test_ring.c - the ring, one claim at a time, one thread. */
#include "ipc/ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ENTRIES 8u

struct fixture {
    _Alignas(64) uint64_t slots[ENTRIES][8];
    uint32_t tail, head;
    struct attnd_producer producer;
    struct attnd_consumer consumer;
};

static struct fixture ring;

static int fresh(void **state)
{
    (void)state;
    memset(&ring, 0, sizeof(ring));
    attnd_producer_init(&ring.producer, ring.slots, &ring.tail, &ring.head, ENTRIES);
    attnd_consumer_init(&ring.consumer, ring.slots, &ring.tail, &ring.head, ENTRIES);
    return 0;
}

static int push(uint64_t value)
{
    uint64_t slot[8];
    for (int i = 0; i < 8; i++)
        slot[i] = value * 8 + (uint64_t)i;
    return attnd_producer_push(&ring.producer, slot);
}

static void expect_slot(const uint64_t *slot, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        assert_int_equal(slot[i], value * 8 + (uint64_t)i);
}

static void only_powers_of_two_in_range_are_ring_lengths(void **state)
{
    (void)state;
    for (uint32_t bit = 0; bit < 32; bit++) {
        uint32_t entries = 1u << bit;
        int valid = entries >= ATTND_RING_ENTRIES_MIN && entries <= ATTND_RING_ENTRIES_MAX;
        assert_int_equal(attnd_ring_entries_valid(entries), valid);
        if (entries > 2) {
            assert_false(attnd_ring_entries_valid(entries - 1));
            assert_false(attnd_ring_entries_valid(entries + 1));
        }
    }
    assert_false(attnd_ring_entries_valid(0));
}

static void an_empty_ring_says_empty(void **state)
{
    (void)state;
    uint64_t slot[8] = {77};
    assert_true(attnd_consumer_empty(&ring.consumer));
    assert_int_equal(attnd_consumer_pop(&ring.consumer, slot), 0);
    assert_int_equal(attnd_consumer_peek(&ring.consumer, slot), 0);
    assert_int_equal(slot[0], 77);
}

static void a_full_ring_says_full_and_keeps_what_it_has(void **state)
{
    (void)state;
    uint64_t slot[8];
    for (uint64_t i = 0; i < ENTRIES; i++) {
        assert_int_equal(attnd_producer_space(&ring.producer), (int)(ENTRIES - i));
        assert_int_equal(push(i), 0);
    }
    assert_int_equal(attnd_producer_space(&ring.producer), 0);
    assert_int_equal(push(99), -ATTND_E_FULL);
    for (uint64_t i = 0; i < ENTRIES; i++) {
        assert_int_equal(attnd_consumer_pop(&ring.consumer, slot), 1);
        expect_slot(slot, i);
    }
    assert_int_equal(push(100), 0);
}

static void every_byte_of_a_slot_arrives_in_order(void **state)
{
    (void)state;
    uint64_t slot[8];
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_equal(push(2 * i), 0);
        assert_int_equal(push(2 * i + 1), 0);
        for (uint64_t j = 0; j < 2; j++) {
            assert_int_equal(attnd_consumer_pop(&ring.consumer, slot), 1);
            expect_slot(slot, 2 * i + j);
        }
    }
}

static void a_peek_frees_nothing_and_a_skip_frees_one(void **state)
{
    (void)state;
    uint64_t slot[8];
    for (uint64_t i = 0; i < ENTRIES; i++)
        assert_int_equal(push(i), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(attnd_consumer_peek(&ring.consumer, slot), 1);
        expect_slot(slot, 0);
    }
    assert_int_equal(attnd_producer_space(&ring.producer), 0);
    attnd_consumer_skip(&ring.consumer);
    assert_int_equal(attnd_producer_space(&ring.producer), 1);
    assert_int_equal(attnd_consumer_peek(&ring.consumer, slot), 1);
    expect_slot(slot, 1);
}

static void a_tail_further_than_the_ring_is_long_is_refused(void **state)
{
    (void)state;
    uint64_t slot[8];
    const uint32_t tails[] = {ENTRIES + 1, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        ring.tail = tails[i];
        assert_false(attnd_consumer_empty(&ring.consumer)); /* so that somebody looks */
        assert_int_equal(attnd_consumer_pop(&ring.consumer, slot), -ATTND_E_PROTOCOL);
        assert_int_equal(attnd_consumer_peek(&ring.consumer, slot), -ATTND_E_PROTOCOL);
        assert_int_equal(ring.head, 0);
    }
}

static void a_head_outside_what_was_pushed_is_refused(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < ENTRIES; i++)
        assert_int_equal(push(i), 0);
    ring.head = 3;
    assert_int_equal(attnd_producer_space(&ring.producer), 3);
    const uint32_t heads[] = {2, 0, ENTRIES + 1, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        ring.head = heads[i];
        assert_int_equal(attnd_producer_space(&ring.producer), -ATTND_E_PROTOCOL);
    }
    ring.head = 3;
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(push(i), 0);
    ring.head = 12;
    assert_int_equal(push(0), -ATTND_E_PROTOCOL);
}

/* The peer may write our own published word; we never read it back. */
static void our_own_published_index_is_not_trusted_either(void **state)
{
    (void)state;
    uint64_t slot[8];
    assert_int_equal(push(1), 0);
    ring.tail = 0xdeadbeef;
    assert_int_equal(push(2), 0);
    assert_int_equal(ring.tail, 2);
    assert_int_equal(attnd_consumer_pop(&ring.consumer, slot), 1);
    ring.head = 0xdeadbeef;
    assert_int_equal(attnd_consumer_pop(&ring.consumer, slot), 1);
    expect_slot(slot, 2);
    assert_int_equal(ring.head, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(only_powers_of_two_in_range_are_ring_lengths, fresh),
        cmocka_unit_test_setup(an_empty_ring_says_empty, fresh),
        cmocka_unit_test_setup(a_full_ring_says_full_and_keeps_what_it_has, fresh),
        cmocka_unit_test_setup(every_byte_of_a_slot_arrives_in_order, fresh),
        cmocka_unit_test_setup(a_peek_frees_nothing_and_a_skip_frees_one, fresh),
        cmocka_unit_test_setup(a_tail_further_than_the_ring_is_long_is_refused, fresh),
        cmocka_unit_test_setup(a_head_outside_what_was_pushed_is_refused, fresh),
        cmocka_unit_test_setup(our_own_published_index_is_not_trusted_either, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
