/*
 * test_e2e_far_death.c - somebody dies or stands still, or the network goes, while pages go from
 * one host to another.
 *
 * What holds is in claim_trial.h: answers in a second after a death and in five after a standstill,
 * and nothing lost. Rows of the matrix are points of schemas/crash.h, of daemons and movers on both
 * sides, which only builds with CRASH_POINTS=1 have; ATTND_ROUNDS says how often each (default 1).
 */
#include "schemas/crash.h"
#include "tests/support/harness/armed.h"
#include "tests/support/harness/claim_trial.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/far.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static struct harness giver, claimer;

/* A ticket whose layers are not whole yet is claimed, and lent until they are. */
static void start_lent(struct claim_trial *trial, uint64_t seed)
{
    far_start(&giver, &claimer, NULL);
    claim_trial_begin_early(trial, &giver, &claimer, seed);
    trial->early = 0; /* the claim waits for its bytes */
    claim_trial_claim(trial);
    side_await_lent(&giver);
}

static void stop_both(struct claim_trial *trial)
{
    if (trial->giver.session)
        claim_trial_close(trial);
    harness_stop(&claimer);
    harness_stop(&giver);
}

/* The claim fails in @limit_ms, and the ticket can be claimed where it is from. */
static void lose_the_link(const struct claim_trial *trial, uint32_t limit_ms)
{
    struct attnd_completion completion = {0};

    CHECK_EQUAL(
        attnd_wait(trial->claimer.session, &completion, 1, (limit_ms + 500) * UINT64_C(1000000)),
        1);
    CHECK_EQUAL(completion.fault.code, -ATTND_E_PEER_LOST);
    side_await_returned(&giver, limit_ms);
    side_await_free(&claimer, "nothing is leased here");
}

static void lose_a_mover(struct harness *whose, int signal, uint64_t seed)
{
    struct claim_trial trial;

    start_lent(&trial, seed);
    const pid_t mover = far_mover(whose);
    CHECK(mover > 0);
    CHECK_EQUAL(kill(mover, signal), 0);
    lose_the_link(&trial, signal == SIGKILL ? TRIAL_KILLED_MS : TRIAL_STOPPED_MS);
    claim_trial_close(&trial);
    claim_trial_once_more(&giver, &claimer);
    CHECK(far_mover(whose) != mover);
    stop_both(&trial);
}

static void a_killed_mover_is_told_within_a_second_and_replaced(void **state)
{
    (void)state;
    lose_a_mover(&giver, SIGKILL, 1);
    lose_a_mover(&claimer, SIGKILL, 2);
}

static void a_mover_that_stands_still_is_told_within_five_and_replaced(void **state)
{
    (void)state;
    lose_a_mover(&giver, SIGSTOP, 3);
    lose_a_mover(&claimer, SIGSTOP, 4);
}

/* Packets go nowhere, and nobody is told. */
static void a_network_that_goes_down_is_told_within_five(void **state)
{
    struct claim_trial trial;
    (void)state;

    start_lent(&trial, 5);
    if (!far_network_is_own()) {
        fprintf(stderr, "skipped: only root has a network to take down\n");
        stop_both(&trial);
        return;
    }
    far_network(0);
    lose_the_link(&trial, TRIAL_STOPPED_MS);
    far_network(1);
    claim_trial_close(&trial);
    claim_trial_once_more(&giver, &claimer);
    stop_both(&trial);
}

/* The matrix. */
#ifdef ATTND_CRASH_POINTS

enum victim { OF_GIVER, OF_CLAIMER, MOVER_OF_GIVER, MOVER_OF_CLAIMER };
static const char *const victim_names[] = {"giver", "claimer", "giver's mover", "claimer's mover"};

struct row {
    enum attnd_crash_point point;
    enum victim victim;
    int count; /* beats pass some points, too */
};

static const struct row rows[] = {
    {ATTND_CRASH_DAEMON_PEER_TOLD, OF_CLAIMER, 1},
    {ATTND_CRASH_DAEMON_PEER_LENT, OF_GIVER, 1},
    {ATTND_CRASH_DAEMON_PEER_TOLD, OF_GIVER, 1},
    {ATTND_CRASH_DAEMON_PEER_GRANTED, OF_CLAIMER, 1},
    {ATTND_CRASH_DAEMON_PEER_MAPPED, OF_CLAIMER, 1},
    {ATTND_CRASH_DAEMON_PEER_PIECE_SENT, OF_CLAIMER, 1},
    {ATTND_CRASH_DAEMON_PEER_PIECE_LANDED, OF_CLAIMER, 1},
    {ATTND_CRASH_DAEMON_PEER_BROUGHT, OF_CLAIMER, 1},
    {ATTND_CRASH_DAEMON_PEER_SPENT, OF_GIVER, 1},
    {ATTND_CRASH_DAEMON_PEER_GIVEN, OF_CLAIMER, 1},
    {ATTND_CRASH_MOVER_HEARD_DAEMON, MOVER_OF_CLAIMER, 1},
    {ATTND_CRASH_MOVER_HEARD_DAEMON, MOVER_OF_CLAIMER, 2},
    {ATTND_CRASH_MOVER_HEARD_DAEMON, MOVER_OF_CLAIMER, 3},
    {ATTND_CRASH_MOVER_HEARD_DAEMON, MOVER_OF_CLAIMER, 4},
    {ATTND_CRASH_MOVER_HEARD_PEER, MOVER_OF_CLAIMER, 1},
    {ATTND_CRASH_MOVER_HEARD_PEER, MOVER_OF_CLAIMER, 2},
    {ATTND_CRASH_MOVER_FRAGMENT_TAKEN, MOVER_OF_CLAIMER, 1},
    {ATTND_CRASH_MOVER_FRAGMENT_TAKEN, MOVER_OF_CLAIMER, 3},
    {ATTND_CRASH_MOVER_LANDED, MOVER_OF_CLAIMER, 1},
    {ATTND_CRASH_MOVER_HEARD_PEER, MOVER_OF_GIVER, 1},
    {ATTND_CRASH_MOVER_HEARD_PEER, MOVER_OF_GIVER, 2},
    {ATTND_CRASH_MOVER_HEARD_PEER, MOVER_OF_GIVER, 3},
    {ATTND_CRASH_MOVER_HEARD_DAEMON, MOVER_OF_GIVER, 1},
    {ATTND_CRASH_MOVER_HEARD_DAEMON, MOVER_OF_GIVER, 2},
    {ATTND_CRASH_MOVER_FRAGMENT_SENT, MOVER_OF_GIVER, 1},
    {ATTND_CRASH_MOVER_FRAGMENT_SENT, MOVER_OF_GIVER, 3},
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]), AT_ONCE = 4, STEP_MS = 60000, LOST_MAX = 100 };

static void start_armed(const struct row *row, int signal)
{
    const int of_giver = row->victim == OF_GIVER || row->victim == MOVER_OF_GIVER;
    char crash[256];

    snprintf(crash, sizeof(crash), "%s %d %d %s", attnd_crash_name(row->point), signal, row->count,
             armed_new("far"));
    if (of_giver)
        setenv("ATTND_CRASH", crash, 1);
    far_start_giver(&giver, NULL);
    unsetenv("ATTND_CRASH");
    if (!of_giver)
        setenv("ATTND_CRASH", crash, 1);
    far_start_claimer(&claimer, NULL);
    unsetenv("ATTND_CRASH");
    side_await_linked(&claimer);
}

struct mover_of {
    struct harness *whose;
    pid_t pid;
};

static int is_replaced(void *context)
{
    const struct mover_of *before = context;
    return far_mover(before->whose) != before->pid;
}

/* A claim may have succeeded before. Its link stays up until somebody notices. */
static void after_mover(const struct claim_trial *trial, int signal, struct mover_of *before)
{
    const uint32_t limit_ms = signal == SIGKILL ? TRIAL_KILLED_MS : TRIAL_STOPPED_MS;
    const enum trial_outcome outcome = claim_trial_answer(trial, limit_ms);

    harness_eventually(is_replaced, before, TRIAL_LONG_MS, "the mover is replaced");

    CHECK(outcome != TRIAL_DISCONNECTED);
    CHECK(!claim_trial_claim_there(trial, limit_ms) || outcome == TRIAL_FAILED);
    side_await_free(&claimer, "nothing is leased here");
}

static int run_row(void *context)
{
    const char *only = getenv("ATTND_TRIAL");
    const size_t number = only ? strtoul(only, NULL, 10) : *(const size_t *)context;
    const struct row *row = &rows[number / 2 % ROWS];
    const int signal = number % 2 ? SIGSTOP : SIGKILL;
    const int early = (number + number / 2 + number / 2 / ROWS) % 2; /* the other way next round */
    const uint64_t seed = number + 1;
    struct claim_trial trial;

    fprintf(stderr, "%s %d, signal %d, of the %s%s\n", attnd_crash_name(row->point), row->count,
            signal, victim_names[row->victim], early ? ", layer by layer" : "");
    start_armed(row, signal);
    if (early)
        claim_trial_begin_early(&trial, &giver, &claimer, seed);
    else
        claim_trial_begin(&trial, &giver, &claimer, seed);
    struct mover_of mover = {row->victim == MOVER_OF_GIVER ? &giver : &claimer, 0};
    mover.pid = far_mover(mover.whose);
    armed_now();
    claim_trial_claim(&trial);
    harness_eventually(armed_fired, NULL, TRIAL_LONG_MS, "the point was reached");
    if (row->victim == OF_GIVER)
        claim_trial_after_giver(&trial, signal, far_restart_giver);
    else if (row->victim == OF_CLAIMER)
        claim_trial_after_claimer(&trial, signal, far_restart_claimer);
    else
        after_mover(&trial, signal, &mover);
    claim_trial_close(&trial);
    claim_trial_once_more(&giver, &claimer);
    stop_both(&trial);
    return 0;
}

static size_t rounds(void)
{
    const char *text = getenv("ATTND_ROUNDS");
    const long count = text ? strtol(text, NULL, 10) : 1;

    return count > 0 ? (size_t)count : 1;
}

struct part_of {
    size_t begin, end; /* trials */
};

/* Return: trials that were lost, as an exit status. */
static int run_part(void *context)
{
    const struct part_of *part = context;
    int lost = 0;

    for (size_t i = part->begin; i < part->end; i++)
        lost += harness_join(harness_fork_part(run_row, &i), STEP_MS) != 0;
    return lost < LOST_MAX ? lost : LOST_MAX;
}

/* Trials wait more than they compute: some at once, each with services and a network of its own. */
static void nothing_is_lost_at_any_step(void **state)
{
    const size_t trials = rounds() * ROWS * 2;
    struct part_of parts[AT_ONCE];
    pid_t pids[AT_ONCE];
    int lost = 0;
    (void)state;

    for (size_t i = 0; i < AT_ONCE; i++) {
        parts[i] = (struct part_of){trials * i / AT_ONCE, trials * (i + 1) / AT_ONCE};
        pids[i] = harness_fork_part(run_part, &parts[i]);
    }
    for (size_t i = 0; i < AT_ONCE; i++)
        lost += harness_join(pids[i], (uint32_t)trials * STEP_MS);
    printf("matrix: %zu trials, %d lost\n", trials, lost);
    fflush(stdout);
    CHECK_EQUAL(lost, 0);
}

/* The pages of a claim that was cancelled while the mover is in the middle of a fragment. */
static void pages_that_may_still_be_written_are_not_free(void **state)
{
    const struct row row = {ATTND_CRASH_MOVER_FRAGMENT_TAKEN, MOVER_OF_CLAIMER, 1};
    struct claim_trial trial;
    int32_t pages[40];
    (void)state;

    start_armed(&row, SIGSTOP);
    claim_trial_begin(&trial, &giver, &claimer, 9);
    armed_now();
    side_claim(&trial.claimer, &trial.ticket, TRIAL_PAGES, &(struct attnd_op){.user_data = 1});
    harness_eventually(armed_fired, NULL, TRIAL_LONG_MS, "a fragment has come");
    CHECK_OK(attnd_cancel(trial.claimer.session, 1));
    CHECK_EQUAL(side_wait(&trial.claimer, TRIAL_LONG_MS).fault.code, -ATTND_E_CANCELLED);
    CHECK_EQUAL(side_leased(&claimer), TRIAL_PAGES);
    CHECK_ERROR(attnd_pages_alloc(trial.claimer.session, trial.claimer.pool, 40, pages),
                ATTND_E_NO_SPACE);
    side_await_free(&claimer, "the mover is gone: they are free");
    CHECK_EQUAL(claim_trial_claim_there(&trial, TRIAL_LONG_MS), 1);
    claim_trial_close(&trial);
    claim_trial_once_more(&giver, &claimer);
    stop_both(&trial);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(a_killed_mover_is_told_within_a_second_and_replaced),
        E2E_OWN_TEST(a_mover_that_stands_still_is_told_within_five_and_replaced),
        E2E_OWN_TEST(a_network_that_goes_down_is_told_within_five),
#ifdef ATTND_CRASH_POINTS
        E2E_OWN_TEST(pages_that_may_still_be_written_are_not_free),
        E2E_OWN_TEST(nothing_is_lost_at_any_step),
#endif
    };

    harness_init();
    if (far_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
