/*
 * test_ring_model.c - the ring against a plain queue, at random, across the wrap of its indices.
 *
 * The model counts in 64 bits and keeps every value in a flat array, so it shares no arithmetic
 * with the ring. A hostile peer is modelled by the same counts: an index is legal exactly if some
 * count that a correct peer could have published truncates to it.
 */
#include "ipc/ring.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 300
#define STEPS 2000

struct model {
    uint64_t start; /* where the indices begin */
    uint64_t pushed, popped;
    uint64_t values[STEPS];
};

struct fixture {
    _Alignas(64) uint64_t slots[64][8];
    uint32_t tail, head, entries;
    struct attnd_producer producer;
    struct attnd_consumer consumer;
};

static uint64_t seed;
static struct fixture ring;
static struct model model;

static void begin(struct prng *prng)
{
    memset(&ring, 0, sizeof(ring));
    memset(&model, 0, sizeof(model));
    ring.entries = 8u << prng_below(prng, 4);
    attnd_producer_init(&ring.producer, ring.slots, &ring.tail, &ring.head, ring.entries);
    attnd_consumer_init(&ring.consumer, ring.slots, &ring.tail, &ring.head, ring.entries);

    /* Mostly close before the wrap, so that every round crosses it. */
    model.start = prng_percent(prng, 80) ? (1ull << 32) - prng_below(prng, 300) : prng_next(prng);
    uint32_t index = (uint32_t)model.start;
    ring.tail = ring.head = index;
    ring.producer.index = ring.producer.head_seen = index;
    ring.consumer.index = ring.consumer.tail_seen = index;
}

static uint64_t size(void)
{
    return model.pushed - model.popped;
}

static void try_push(struct prng *prng)
{
    uint64_t slot[8];
    for (int i = 0; i < 8; i++)
        slot[i] = prng_next(prng);
    int rc = attnd_producer_push(&ring.producer, slot);
    assert_int_equal(rc, size() == ring.entries ? -ATTND_E_FULL : 0);
    if (rc == 0)
        model.values[model.pushed++] = slot[0] ^ slot[7];
}

static void expect_front(const uint64_t *slot)
{
    assert_true((slot[0] ^ slot[7]) == model.values[model.popped]);
}

static void try_take(struct prng *prng)
{
    uint64_t slot[8];
    int want = size() > 0;
    if (prng_percent(prng, 50)) {
        assert_int_equal(attnd_consumer_pop(&ring.consumer, slot), want);
    } else {
        assert_int_equal(attnd_consumer_peek(&ring.consumer, slot), want);
        if (want)
            attnd_consumer_skip(&ring.consumer);
    }
    if (want) {
        expect_front(slot);
        model.popped++;
    }
}

static void expect_indices(void)
{
    assert_int_equal(ring.tail, (uint32_t)(model.start + model.pushed));
    assert_int_equal(ring.head, (uint32_t)(model.start + model.popped));
}

static void the_ring_is_a_bounded_queue(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct prng prng = prng_fork(seed, round);
        begin(&prng);
        uint32_t push_percent = 30 + prng_below(&prng, 41);
        for (int step = 0; step < STEPS; step++) {
            uint32_t what = prng_below(&prng, 100);
            if (what < push_percent)
                try_push(&prng);
            else if (what < 90)
                try_take(&prng);
            else if (what < 95)
                assert_int_equal(attnd_consumer_empty(&ring.consumer), size() == 0);
            else
                assert_int_equal(attnd_producer_space(&ring.producer), ring.entries - size());
            expect_indices();
        }
    }
}

/* Near the truth, where an off-by-one would hide, or anywhere. */
static uint32_t hostile_index(struct prng *prng, uint64_t count)
{
    if (prng_percent(prng, 20))
        return (uint32_t)prng_next(prng);
    return (uint32_t)(model.start + count + prng_below(prng, 3 * ring.entries) - ring.entries);
}

static int reachable(uint32_t index, uint64_t first_count, uint64_t last_count)
{
    for (uint64_t count = first_count; count <= last_count; count++)
        if ((uint32_t)(model.start + count) == index)
            return 1;
    return 0;
}

static void a_hostile_head_is_refused_and_a_possible_one_believed(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct prng prng = prng_fork(seed, 1000 + round);
        begin(&prng);
        uint64_t freed = 0; /* what the producer has believed */
        for (int step = 0; step < 200; step++) {
            while (model.pushed < STEPS && prng_percent(&prng, 60) &&
                   model.pushed - freed < ring.entries) {
                const uint64_t slot[8] = {0};
                int rc = attnd_producer_push(&ring.producer, slot);
                assert_int_equal(rc, 0);
                model.pushed++;
            }
            uint32_t head = hostile_index(&prng, freed);
            int possible = reachable(head, freed, model.pushed);
            ring.head = head;
            int space = attnd_producer_space(&ring.producer);
            if (possible) {
                freed += (uint32_t)(head - (uint32_t)(model.start + freed));
                assert_int_equal(space, ring.entries - (model.pushed - freed));
            } else {
                assert_int_equal(space, -ATTND_E_PROTOCOL);
            }
            ring.head = (uint32_t)(model.start + freed);
        }
    }
}

static void a_hostile_tail_yields_at_most_a_ringful(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct prng prng = prng_fork(seed, 2000 + round);
        begin(&prng);
        for (int step = 0; step < 200; step++) {
            uint32_t tail = hostile_index(&prng, model.popped);
            int possible = reachable(tail, model.popped, model.popped + ring.entries);
            ring.tail = tail;
            uint32_t ready = tail - (uint32_t)(model.start + model.popped);
            uint64_t slot[8];
            if (!possible) {
                assert_int_equal(attnd_consumer_pop(&ring.consumer, slot), -ATTND_E_PROTOCOL);
                continue;
            }
            for (uint32_t i = 0; i < ready; i++)
                assert_int_equal(attnd_consumer_pop(&ring.consumer, slot), 1);
            model.popped += ready;
            assert_int_equal(attnd_consumer_pop(&ring.consumer, slot), 0);
            assert_int_equal(ring.head, (uint32_t)(model.start + model.popped));
        }
    }
}

int main(void)
{
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ring_is_a_bounded_queue),
        cmocka_unit_test(a_hostile_head_is_refused_and_a_possible_one_believed),
        cmocka_unit_test(a_hostile_tail_yields_at_most_a_ringful),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
