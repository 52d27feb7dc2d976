/* test_maps.c - what the worker has mapped, through every order of answers and deaths. */
#include "schemas/errors.h"
#include "service/supervise/maps.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct attnd_maps maps;
static uint32_t freed[ATTND_MEMORIES_MAX];

static int setup(void **state)
{
    (void)state;
    memset(&maps, 0, sizeof(maps));
    return 0;
}

static uint32_t send_next(void)
{
    uint32_t index = ATTND_NONE;
    assert_int_equal(attnd_maps_due(&maps, &index), 1);
    attnd_maps_sent(&maps);
    return index;
}

static void memory_is_ready_once_the_worker_says_so(void **state)
{
    (void)state;
    attnd_maps_add(&maps, 7);
    assert_int_equal(attnd_maps_ready(&maps, 7), 0);
    assert_int_equal(send_next(), 7);
    assert_int_equal(attnd_maps_ready(&maps, 7), 0);
    assert_int_equal(maps.not_mapped, 1);
    attnd_maps_mapped(&maps, 7, 0);
    assert_int_equal(attnd_maps_ready(&maps, 7), 1);
    assert_int_equal(maps.not_mapped, 0);
}

static void memory_that_cannot_be_mapped_says_why(void **state)
{
    (void)state;
    attnd_maps_add(&maps, 7);
    send_next();
    attnd_maps_mapped(&maps, 7, -ATTND_E_NO_MEMORY);
    assert_int_equal(attnd_maps_ready(&maps, 7), -ATTND_E_NO_MEMORY);
    assert_int_equal(attnd_maps_remove(&maps, 7), 1);
    assert_int_equal(maps.not_mapped, 0);
}

static void memory_nobody_heard_of_goes_at_once(void **state)
{
    uint32_t index;
    (void)state;
    attnd_maps_add(&maps, 7);
    assert_int_equal(attnd_maps_remove(&maps, 7), 1);
    assert_int_equal(attnd_maps_due(&maps, &index), 0);
    attnd_maps_add(&maps, 7); /* and its index may come back */
    assert_int_equal(send_next(), 7);
}

/* What a worker died over is suspect until another one has brought it in. */
static void memory_that_was_brought_in_is_not_suspect_any_more(void **state)
{
    (void)state;
    attnd_maps_add(&maps, 7);
    send_next();
    maps.deaths[7] = 1;
    (void)attnd_maps_lost(&maps, freed);
    assert_int_equal(maps.deaths[7], 1);
    send_next();
    attnd_maps_mapped(&maps, 7, -ATTND_E_DEVICE);
    assert_int_equal(maps.deaths[7], 1);
    (void)attnd_maps_lost(&maps, freed);
    send_next();
    attnd_maps_mapped(&maps, 7, 0);
    assert_int_equal(maps.deaths[7], 0);
}

static void an_index_that_is_used_again_is_not_suspect(void **state)
{
    (void)state;
    attnd_maps_add(&maps, 7);
    maps.deaths[7] = 1;
    assert_int_equal(attnd_maps_remove(&maps, 7), 1);
    attnd_maps_add(&maps, 7);
    assert_int_equal(maps.deaths[7], 0);
}

/* The queue has a place for every index, and for no index two. */
static void what_is_due_is_in_the_queue_once_however_often_it_changes(void **state)
{
    uint32_t index;
    (void)state;
    for (uint32_t i = 0; i < 3 * ATTND_MEMORIES_MAX; i++) {
        attnd_maps_add(&maps, 7); /* while the worker takes no messages */
        assert_int_equal(attnd_maps_remove(&maps, 7), 1);
    }
    assert_int_equal(maps.due_count, 1);
    attnd_maps_add(&maps, 7);
    attnd_maps_add(&maps, 8);
    assert_int_equal(send_next(), 7);
    assert_int_equal(send_next(), 8);
    assert_int_equal(attnd_maps_due(&maps, &index), 0);
}

static void an_unmap_may_overtake_the_answer_to_its_map(void **state)
{
    (void)state;
    attnd_maps_add(&maps, 7);
    send_next();
    assert_int_equal(attnd_maps_remove(&maps, 7), 0);
    send_next();
    attnd_maps_mapped(&maps, 7, 0);
    assert_int_equal(attnd_maps_ready(&maps, 7), 0);
    assert_int_equal(attnd_maps_unmapped(&maps, 7), 1);
    assert_int_equal(attnd_maps_unmapped(&maps, 7), 0);
}

static void after_a_death_the_living_are_mapped_again_and_the_leaving_are_gone(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++)
        attnd_maps_add(&maps, i);
    for (uint32_t i = 0; i < 3; i++)
        send_next();
    attnd_maps_mapped(&maps, 0, 0);
    attnd_maps_mapped(&maps, 1, 0);
    assert_int_equal(attnd_maps_remove(&maps, 1), 0);
    assert_int_equal(attnd_maps_lost(&maps, freed), 1);
    assert_int_equal(freed[0], 1);
    assert_int_equal(maps.not_mapped, 3);
    uint32_t seen = 0;
    for (int i = 0; i < 3; i++)
        seen |= 1u << send_next();
    assert_int_equal(seen, 0xd);
}

static void what_is_barred_is_given_to_no_worker_and_goes_at_once(void **state)
{
    (void)state;
    attnd_maps_add(&maps, 7);
    attnd_maps_add(&maps, 8);
    send_next();
    assert_int_equal(attnd_maps_lost(&maps, freed), 0);
    attnd_maps_bar(&maps, 7, -ATTND_E_NO_MEMORY);
    for (int death = 0; death < 2; death++) {
        uint32_t index;
        assert_int_equal(send_next(), 8);
        assert_int_equal(attnd_maps_due(&maps, &index), 0);
        assert_int_equal(attnd_maps_ready(&maps, 7), -ATTND_E_NO_MEMORY);
        assert_int_equal(attnd_maps_lost(&maps, freed), 0);
    }
    assert_int_equal(maps.not_mapped, 2);
    assert_int_equal(attnd_maps_remove(&maps, 7), 1);
    assert_int_equal(maps.not_mapped, 1);
    attnd_maps_add(&maps, 7); /* another memory */
    assert_int_equal(attnd_maps_ready(&maps, 7), 0);
}

enum { INDICES = 8, WIRE = 64 };

/* The model: the worker's own table, and messages on the way to it. */
struct model {
    uint8_t alive[INDICES], leaving[INDICES], worker[INDICES];
    struct {
        uint32_t index;
        int map;
    } wire[WIRE];
    uint32_t wire_count;
};

static void come_or_go(struct model *model, uint32_t pick)
{
    if (model->alive[pick]) {
        model->alive[pick] = 0;
        model->leaving[pick] = !attnd_maps_remove(&maps, pick);
    } else if (!model->leaving[pick]) {
        model->alive[pick] = 1;
        attnd_maps_add(&maps, pick);
    }
}

static void send_one(struct model *model, uint32_t pick)
{
    uint32_t index;

    (void)pick;
    if (model->wire_count == WIRE || !attnd_maps_due(&maps, &index))
        return;
    model->wire[model->wire_count].index = index;
    model->wire[model->wire_count++].map = maps.state[index] == ATTND_MAP_TO_MAP;
    attnd_maps_sent(&maps);
}

static void receive_one(struct model *model, uint32_t pick)
{
    const uint32_t index = model->wire[0].index;
    const int map = model->wire[0].map;

    (void)pick;
    if (model->wire_count == 0)
        return;
    assert_int_equal(model->worker[index], !map);
    model->worker[index] = (uint8_t)map;
    if (map)
        attnd_maps_mapped(&maps, index, 0);
    else if (attnd_maps_unmapped(&maps, index))
        model->leaving[index] = 0;
    memmove(&model->wire[0], &model->wire[1], --model->wire_count * sizeof(model->wire[0]));
}

static void die(struct model *model)
{
    model->wire_count = 0;
    memset(model->worker, 0, sizeof(model->worker));
    for (uint32_t count = attnd_maps_lost(&maps, freed); count > 0; count--) {
        assert_int_equal(model->leaving[freed[count - 1]], 1);
        model->leaving[freed[count - 1]] = 0;
    }
    for (uint32_t i = 0; i < INDICES; i++)
        assert_int_equal(model->leaving[i], 0);
}

static void random_lives_end_with_both_sides_agreed(void **state)
{
    static void (*const acts[])(struct model *, uint32_t) = {come_or_go, send_one, receive_one};
    struct prng prng = prng_fork(test_seed(), 0);
    struct model model = {.wire_count = 0};

    (void)state;
    for (uint32_t step = 0; step < 200000; step++) {
        const uint32_t pick = prng_below(&prng, INDICES);

        if (prng_below(&prng, 40) == 0)
            die(&model);
        else
            acts[prng_below(&prng, 3)](&model, pick);
        for (uint32_t i = 0; i < INDICES; i++)
            if (attnd_maps_ready(&maps, i) == 1)
                assert_true(model.worker[i] && model.alive[i]);
    }
}

#define CASE(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(memory_is_ready_once_the_worker_says_so),
        CASE(memory_that_cannot_be_mapped_says_why),
        CASE(memory_nobody_heard_of_goes_at_once),
        CASE(what_is_due_is_in_the_queue_once_however_often_it_changes),
        CASE(an_unmap_may_overtake_the_answer_to_its_map),
        CASE(after_a_death_the_living_are_mapped_again_and_the_leaving_are_gone),
        CASE(what_is_barred_is_given_to_no_worker_and_goes_at_once),
        CASE(memory_that_was_brought_in_is_not_suspect_any_more),
        CASE(an_index_that_is_used_again_is_not_suspect),
        CASE(random_lives_end_with_both_sides_agreed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
