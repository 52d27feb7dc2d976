/*
 * test_wake_model.c - the wake word of residency `elastic`: every interleaving of two engines that
 * ring and of gangs that come and leave (persistent/cuda/host/helper.cu has the table).
 *
 * A ring is two stores, its doorbell and then the word; an engine may also call first, by the same
 * word, so that a gang is on its way before the doorbell is rung. A gang that is called takes
 * doorbells, sees that there is none, closes, clears the word, looks once more, sets the word if a
 * doorbell is rung, and is gone. It may close before it has seen what it could. The host may
 * dismiss gangs for a while: those that are called then take nothing and leave the word alone, and
 * when it is over the host calls one. All states are visited. One in which nothing can happen is a
 * lost wake-up, unless every ring was answered. Three mistakes show that the model can tell.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define ENGINES 2
#define RINGS 2 /* of each engine */

#define DISMISSALS 2

enum mistake { NONE, NO_LAST_LOOK, CALL_ONLY, WIPES }; /* WIPES: who is dismissed, and no call */
enum gang { GONE, THERE, CLOSED, LOOKS, PASSES, GANGS };
enum engine { READY, CALLED, HALF, RUNG, STEPS }; /* HALF: the doorbell is rung, the word not set */

struct state {
    uint8_t wake, gang, dismissed, dismissals, step[ENGINES], doorbell[ENGINES], left[ENGINES];
};

struct model {
    enum mistake mistake;
    uint32_t visited, lost, idle_gangs;
    uint8_t seen[1u << 16]; /* by number_of() */
};

static uint32_t number_of(const struct state *state)
{
    uint32_t number =
        (((uint32_t)state->wake * GANGS + state->gang) * 2 + state->dismissed) * (DISMISSALS + 1) +
        state->dismissals;

    for (int e = 0; e < ENGINES; e++)
        number = ((number * STEPS + state->step[e]) * 2 + state->doorbell[e]) * (RINGS + 1) +
                 state->left[e];
    return number;
}

static void visit(struct model *model, struct state state);

/* The engine's next store, or the wait for its answer. Return: 1 if it can do something. */
static int engine_moves(struct model *model, struct state state, int e)
{
    struct state called = state;

    switch (state.step[e]) {
    case READY:
        if (state.left[e] == 0)
            return 0;
        called.wake = 1;
        called.step[e] = CALLED;
        visit(model, called);
        if (model->mistake == CALL_ONLY) /* it always calls, and never behind its doorbell */
            return 1;
        /* fall through */
    case CALLED:
        state.left[e]--;
        state.doorbell[e] = 1;
        state.step[e] = model->mistake == CALL_ONLY ? RUNG : HALF;
        break;
    case HALF:
        state.wake = 1;
        state.step[e] = RUNG;
        break;
    default:
        if (state.doorbell[e])
            return 0;
        state.step[e] = READY;
    }
    visit(model, state);
    return 1;
}

/* The gang answers a doorbell; an engine that has only half rung is answered all the same. */
static void gang_takes(struct model *model, struct state state)
{
    for (int e = 0; e < ENGINES; e++)
        if (state.doorbell[e]) {
            struct state next = state;
            next.doorbell[e] = 0;
            visit(model, next);
        }
}

static int gang_moves(struct model *model, struct state state)
{
    int rung = 0;

    for (int e = 0; e < ENGINES; e++)
        rung |= state.doorbell[e];
    switch (state.gang) {
    case GONE: /* the stream's wait for the word */
        if (!state.wake)
            return 0;
        state.gang = state.dismissed ? PASSES : THERE;
        model->idle_gangs += !rung;
        break;
    case PASSES:
        if (model->mistake == WIPES)
            state.wake = 0;
        state.gang = GONE;
        break;
    case THERE: /* what is rung between its last look and the word's clearing, it has not seen */
        gang_takes(model, state);
        state.gang = CLOSED;
        break;
    case CLOSED:
        state.wake = 0;
        state.gang = LOOKS;
        break;
    default:
        if (rung && model->mistake != NO_LAST_LOOK)
            state.wake = 1;
        state.gang = GONE;
    }
    visit(model, state);
    return 1;
}

/* It lets all that is armed come and go, and goes on when none is there. */
static int host_moves(struct model *model, struct state state)
{
    if (!state.dismissed && state.dismissals > 0) {
        state.dismissals--;
        state.dismissed = 1;
        state.wake = 1;
    } else if (state.dismissed && state.gang == GONE) {
        state.dismissed = 0;
        if (model->mistake != WIPES)
            state.wake = 1;
    } else {
        return 0;
    }
    visit(model, state);
    return 1;
}

static void visit(struct model *model, struct state state)
{
    uint8_t *seen = &model->seen[number_of(&state)];
    int moves = 0, owed = 0;

    if (*seen)
        return;
    *seen = 1;
    model->visited++;
    for (int e = 0; e < ENGINES; e++) {
        moves |= engine_moves(model, state, e);
        owed |= state.step[e] != READY || state.left[e] > 0;
    }
    moves |= gang_moves(model, state);
    moves |= host_moves(model, state);
    model->lost += !moves && owed;
}

static uint32_t lost_by(enum mistake mistake)
{
    static struct model model;
    struct state begin = {.gang = GONE, .dismissals = DISMISSALS};

    memset(&model, 0, sizeof(model));
    model.mistake = mistake;
    for (int e = 0; e < ENGINES; e++)
        begin.left[e] = RINGS;
    visit(&model, begin);
    assert_true(model.visited > 100);
    return model.lost;
}

static void no_ring_is_lost_whenever_a_gang_leaves(void **state)
{
    (void)state;
    assert_int_equal(lost_by(NONE), 0);
}

static void the_last_look_the_order_of_a_rings_stores_and_a_call_are_needed(void **state)
{
    (void)state;
    assert_true(lost_by(NO_LAST_LOOK) > 0);
    assert_true(lost_by(CALL_ONLY) > 0);
    assert_true(lost_by(WIPES) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_ring_is_lost_whenever_a_gang_leaves),
        cmocka_unit_test(the_last_look_the_order_of_a_rings_stores_and_a_call_are_needed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
