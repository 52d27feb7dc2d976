/*
 * test_wake_model.c - the wake word of residency `elastic`: every interleaving of two engines that
 * ring, of the host, and of gangs that come and leave (persistent/cuda/host/helper.cu has the
 * table).
 *
 * A ring is two stores, its doorbell and then the word; an engine may also call first, by the same
 * word, so that a gang is on its way before the doorbell is rung. A gang takes doorbells and
 * answers them. It closes when it likes, also before it has seen what it could, and while runs are
 * in flight. It clears the word then, looks at one doorbell after the other, sets the word if one
 * is rung, and says that it leaves. It is gone when all that it took is answered and retired. An
 * engine may ring again in between: its lane is busy until then, and no other gang is there.
 *
 * The host calls for a command, and again when it sees that a gang leaves and the command waits. It
 * may dismiss gangs for a while. One that sees this leaves the word alone and is gone; what it took
 * before, it answers. When that is over the host calls a gang.
 *
 * All states are visited. One in which nothing can happen is a lost wake-up, unless every ring was
 * answered and every command taken. Mistakes show that the model can tell.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ENGINES 2
#define RINGS 2 /* of each engine */
#define COMMANDS 1
#define DISMISSALS 1

enum mistake {
    NONE,
    NO_LAST_LOOK,
    LOOK_FIRST,  /* and the word is cleared behind it */
    SPARES_BUSY, /* lanes are not looked at whose last run is not retired */
    CALL_ONLY,
    WIPES,       /* who is dismissed, and no call */
    LEAVES_FIRST /* it says that it leaves, and clears the word behind that */
};
enum gang { GONE, THERE, CLOSED, LOOKS, SETS, LEAVES, DRAINS, PASSES, GANGS };
enum engine { READY, CALLED, HALF, RUNG, STEPS }; /* HALF: the doorbell is rung, the word not set */
enum doorbell { REST, RINGS_NOW, TAKEN, DOORBELLS };

struct state {
    uint8_t wake, gang, looked, found; /* looked: doorbells of the last look; found: one is rung */
    uint8_t command, commands, called; /* called: by the host, and no gang has left since */
    uint8_t dismissed, dismissals;
    uint8_t step[ENGINES], doorbell[ENGINES], busy[ENGINES], left[ENGINES];
};

#define STATES_MAX (1u << 24)
#define WAITING_MAX (1u << 20) /* visited, and not yet moved from */

struct model {
    enum mistake mistake;
    uint32_t visited, lost, waiting;
    struct state *stack;
    uint8_t *seen; /* by number_of() */
};

static uint32_t number_of(const struct state *state)
{
    uint32_t number = state->wake;

    number = number * GANGS + state->gang;
    number = number * ENGINES + state->looked;
    number = number * 2 + state->found;
    number = number * 2 + state->command;
    number = number * (COMMANDS + 1) + state->commands;
    number = number * 2 + state->called;
    number = number * 2 + state->dismissed;
    number = number * (DISMISSALS + 1) + state->dismissals;
    for (int e = 0; e < ENGINES; e++) {
        number = number * STEPS + state->step[e];
        number = number * DOORBELLS + state->doorbell[e];
        number = number * 2 + state->busy[e];
        number = number * (RINGS + 1) + state->left[e];
    }
    return number;
}

static void visit(struct model *model, const struct state *state)
{
    uint32_t number = number_of(state);

    assert_true(number < STATES_MAX);
    if (model->seen[number])
        return;
    model->seen[number] = 1;
    model->visited++;
    assert_true(model->waiting < WAITING_MAX);
    model->stack[model->waiting++] = *state;
}

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
        visit(model, &called);
        if (model->mistake == CALL_ONLY) /* it always calls, and never behind its doorbell */
            return 1;
        /* fall through */
    case CALLED:
        state.left[e]--;
        state.doorbell[e] = RINGS_NOW;
        state.step[e] = model->mistake == CALL_ONLY ? RUNG : HALF;
        break;
    case HALF:
        state.wake = 1;
        state.step[e] = RUNG;
        break;
    default:
        if (state.doorbell[e] != REST)
            return 0;
        state.step[e] = READY;
    }
    visit(model, &state);
    return 1;
}

/* What becomes of runs while the gang is there in whatever state: an item's end is the answer, and
 * some time later the run is retired. Return: 1 if one is not. */
static int runs_move(struct model *model, const struct state *state)
{
    int moves = 0;

    for (int e = 0; e < ENGINES; e++) {
        struct state next = *state;
        if (!state->busy[e])
            continue;
        moves = 1;
        if (state->doorbell[e] == TAKEN)
            next.doorbell[e] = REST;
        else
            next.busy[e] = 0;
        visit(model, &next);
    }
    return moves;
}

/* The gang takes a doorbell, also of an engine that has only half rung, or the command. */
static void gang_takes(struct model *model, const struct state *state)
{
    struct state next = *state;

    next.command = 0;
    visit(model, &next);
    for (int e = 0; e < ENGINES; e++)
        if (state->doorbell[e] == RINGS_NOW && !state->busy[e]) {
            next = *state;
            next.doorbell[e] = TAKEN;
            next.busy[e] = 1;
            visit(model, &next);
        }
}

static void gang_looks(struct model *model, struct state state)
{
    const int e = state.looked;

    if (model->mistake != NO_LAST_LOOK && state.doorbell[e] == RINGS_NOW &&
        !(model->mistake == SPARES_BUSY && state.busy[e]))
        state.found = 1;
    state.looked = (uint8_t)((e + 1) % ENGINES);
    if (state.looked == 0)
        state.gang = SETS;
    visit(model, &state);
}

/* Return: 1 if it can do something. */
static int gang_moves(struct model *model, struct state state)
{
    const int busy = state.gang == GONE ? 0 : runs_move(model, &state);

    switch (state.gang) {
    case GONE: /* the stream's wait for the word */
        if (!state.wake)
            return 0;
        state.gang = THERE;
        break;
    case THERE:
        gang_takes(model, &state);
        if (state.dismissed) { /* it may see that, or have closed before */
            struct state passes = state;
            passes.gang = PASSES;
            visit(model, &passes);
        }
        if (model->mistake == LEAVES_FIRST)
            state.called = 0;
        state.gang = CLOSED;
        break;
    case CLOSED:
        if (model->mistake != LOOK_FIRST)
            state.wake = 0;
        state.gang = LOOKS;
        break;
    case LOOKS:
        gang_looks(model, state);
        return 1;
    case SETS:
        if (model->mistake == LOOK_FIRST)
            state.wake = 0;
        if (state.found)
            state.wake = 1;
        state.found = 0;
        state.gang = LEAVES;
        break;
    case LEAVES:
        if (model->mistake != LEAVES_FIRST)
            state.called = 0;
        state.gang = DRAINS;
        break;
    default:
        if (busy)
            return 1;
        if (state.gang == PASSES) {
            state.called = 0;
            if (model->mistake == WIPES)
                state.wake = 0;
        }
        state.gang = GONE;
    }
    visit(model, &state);
    return 1;
}

/* Return: 1 if it can do something. */
static int host_moves(struct model *model, const struct state *state)
{
    struct state next = *state;
    int moves = 0;

    if (state->commands > 0 && !state->command) {
        next.commands--;
        next.command = 1;
        visit(model, &next);
        moves = 1;
    }
    next = *state;
    if (state->command && !state->called && !state->dismissed) {
        next.wake = next.called = 1;
        visit(model, &next);
        moves = 1;
    }
    /* It lets all that is armed come and go, and goes on when none is there. */
    next = *state;
    if (!state->dismissed && state->dismissals > 0) {
        next.dismissals--;
        next.dismissed = 1;
        next.wake = 1;
    } else if (state->dismissed && state->gang == GONE) {
        next.dismissed = 0;
        next.called = 1;
        if (model->mistake != WIPES)
            next.wake = 1;
    } else {
        return moves;
    }
    visit(model, &next);
    return 1;
}

static void move_all(struct model *model)
{
    while (model->waiting > 0) {
        const struct state state = model->stack[--model->waiting];
        int moves = 0, owed = state.command || state.commands > 0;
        for (int e = 0; e < ENGINES; e++) {
            moves |= engine_moves(model, state, e);
            owed |= state.step[e] != READY || state.left[e] > 0;
        }
        moves |= gang_moves(model, state);
        moves |= host_moves(model, &state);
        model->lost += !moves && owed;
    }
}

static uint32_t lost_by(enum mistake mistake)
{
    struct model model = {.mistake = mistake};
    struct state begin = {.gang = GONE, .commands = COMMANDS, .dismissals = DISMISSALS};

    model.seen = calloc(STATES_MAX, 1);
    model.stack = calloc(WAITING_MAX, sizeof(*model.stack));
    assert_non_null(model.seen);
    assert_non_null(model.stack);
    for (int e = 0; e < ENGINES; e++)
        begin.left[e] = RINGS;
    visit(&model, &begin);
    move_all(&model);
    assert_true(model.visited > 10000);
    free(model.stack);
    free(model.seen);
    return model.lost;
}

static void no_ring_and_no_command_is_lost_whenever_a_gang_leaves(void **state)
{
    (void)state;
    assert_int_equal(lost_by(NONE), 0);
}

static void the_look_at_all_lanes_behind_the_cleared_word_is_needed(void **state)
{
    (void)state;
    assert_true(lost_by(NO_LAST_LOOK) > 0);
    assert_true(lost_by(LOOK_FIRST) > 0);
    assert_true(lost_by(SPARES_BUSY) > 0);
}

static void the_order_of_stores_and_a_call_behind_a_dismissal_are_needed(void **state)
{
    (void)state;
    assert_true(lost_by(CALL_ONLY) > 0);
    assert_true(lost_by(WIPES) > 0);
    assert_true(lost_by(LEAVES_FIRST) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_ring_and_no_command_is_lost_whenever_a_gang_leaves),
        cmocka_unit_test(the_look_at_all_lanes_behind_the_cleared_word_is_needed),
        cmocka_unit_test(the_order_of_stores_and_a_call_behind_a_dismissal_are_needed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
