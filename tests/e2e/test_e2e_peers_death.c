/*
 * test_e2e_peers_death.c - somebody dies or stands still while pages go from one service to
 * another.
 *
 * Whatever happens, and to whom: whoever waits is answered, in a second after a death and in five
 * after a process stands still; the ticket is either spent or as it was, and never both; no page
 * stays leased that nobody has; and what a claim that succeeded brought is right, element by
 * element. Rows of the matrix are points of schemas/crash.h, which only builds with CRASH_POINTS=1
 * have; the other tests run everywhere.
 */
#include "schemas/crash.h"
#include "tests/support/harness/armed.h"
#include "tests/support/harness/claim_trial.h"
#include "tests/support/harness/e2e.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGES TRIAL_PAGES
#define LONG_MS TRIAL_LONG_MS
#define KILLED_MS TRIAL_KILLED_MS
#define STOPPED_MS TRIAL_STOPPED_MS

static struct harness giver, claimer;

static const struct side_shape shape = {
    .layers = 2, .pages = 40, .page_size = 16, .heads_kv = 2, .dim = 64};

/* ---- while the claimer's worker stands still ---- */

static void start_held(struct claim_trial *trial, uint64_t seed, pid_t *worker)
{
    hand_over_start(&giver, &claimer, (const char *const[]){"--watchdog", "0", NULL});
    claim_trial_begin(trial, &giver, &claimer, seed);
    *worker = harness_stop_worker(&claimer);
    claim_trial_claim(trial);
    side_await_lent(&giver);
}

static void stop_both(struct claim_trial *trial)
{
    if (trial->giver.session)
        side_close(&trial->giver);
    if (trial->claimer.session)
        side_close(&trial->claimer);
    harness_stop(&claimer);
    harness_stop(&giver);
}

static void restart_giver(struct harness *service)
{
    harness_restart(service, NULL);
}

static void restart_claimer(struct harness *service)
{
    char peer[160];

    snprintf(peer, sizeof(peer), "giver=%s", giver.socket);
    harness_restart(service, (const char *const[]){"--peer", peer, NULL});
}

static void a_killed_giver_is_told_within_a_second(void **state)
{
    struct claim_trial trial;
    pid_t worker;
    (void)state;

    start_held(&trial, 1, &worker);
    harness_kill_daemon(&giver);
    CHECK_EQUAL(claim_trial_answer(&trial, KILLED_MS), TRIAL_FAILED);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    side_await_free(&claimer, "nothing is leased here");
    claim_trial_close(&trial);
    restart_giver(&giver);
    claim_trial_once_more(&giver, &claimer);
    stop_both(&trial);
}

static void a_giver_that_stands_still_is_told_within_five(void **state)
{
    struct claim_trial trial;
    pid_t worker;
    (void)state;

    start_held(&trial, 2, &worker);
    CHECK_EQUAL(kill(giver.daemon, SIGSTOP), 0);
    CHECK_EQUAL(claim_trial_answer(&trial, STOPPED_MS), TRIAL_FAILED);
    CHECK_EQUAL(kill(giver.daemon, SIGCONT), 0);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    CHECK_EQUAL(claim_trial_claim_there(&trial, LONG_MS), 1);
    claim_trial_close(&trial);
    claim_trial_once_more(&giver, &claimer);
    stop_both(&trial);
}

static void a_killed_claimer_gives_the_ticket_back_within_a_second(void **state)
{
    struct claim_trial trial;
    pid_t worker;
    (void)state;

    start_held(&trial, 3, &worker);
    harness_kill_daemon(&claimer);
    CHECK_EQUAL(claim_trial_claim_there(&trial, KILLED_MS), 1);
    CHECK_EQUAL(claim_trial_answer(&trial, KILLED_MS), TRIAL_DISCONNECTED);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    claim_trial_close(&trial);
    restart_claimer(&claimer);
    claim_trial_once_more(&giver, &claimer);
    stop_both(&trial);
}

/* It goes on later, when the pages that it was bringing are somebody else's. */
static void a_claimer_that_stood_still_uses_nothing_that_it_lost(void **state)
{
    struct claim_trial trial;
    int32_t pages[PAGES];
    pid_t worker;
    (void)state;

    start_held(&trial, 4, &worker);
    CHECK_EQUAL(kill(claimer.daemon, SIGSTOP), 0);
    CHECK_EQUAL(claim_trial_claim_there(&trial, STOPPED_MS), 1);
    CHECK_OK(attnd_pages_alloc(trial.giver.session, trial.giver.pool, PAGES, pages));
    side_fill(&trial.giver, pages, PAGES, 1000);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    CHECK_EQUAL(kill(claimer.daemon, SIGCONT), 0);
    CHECK_EQUAL(claim_trial_answer(&trial, STOPPED_MS), TRIAL_FAILED);
    side_await_free(&claimer, "nothing is leased here");
    claim_trial_close(&trial);
    claim_trial_once_more(&giver, &claimer);
    stop_both(&trial);
}

static void a_worker_that_dies_is_followed_by_one_that_brings_them(void **state)
{
    struct claim_trial trial;
    pid_t worker;
    (void)state;

    start_held(&trial, 5, &worker);
    CHECK_EQUAL(kill(worker, SIGKILL), 0);
    CHECK_EQUAL(claim_trial_answer(&trial, LONG_MS), TRIAL_SUCCEEDED);
    claim_trial_close(&trial);
    claim_trial_once_more(&giver, &claimer);
    stop_both(&trial);
}

struct engine_of {
    const struct attnd_token *ticket;
    uint32_t claimed;
};

static int claim_and_wait(void *context)
{
    struct engine_of *engine = context;
    struct side side;
    struct attnd_completion completion;

    side_open(&side, &claimer, &shape, SIDE_OF_SERVICE);
    side_claim(&side, engine->ticket, PAGES, NULL);
    harness_say(&engine->claimed, 1);
    return attnd_wait(side.session, &completion, 1, ATTND_FOREVER) != 1;
}

static void an_engine_that_dies_gives_the_ticket_back(void **state)
{
    struct claim_trial trial;
    struct engine_of *engine = harness_shared(sizeof(*engine));
    (void)state;

    hand_over_start(&giver, &claimer, (const char *const[]){"--watchdog", "0", NULL});
    claim_trial_begin(&trial, &giver, &claimer, 6);
    engine->ticket = &trial.ticket;
    const pid_t worker = harness_stop_worker(&claimer);
    const pid_t pid = harness_fork(claim_and_wait, engine);
    harness_await(&engine->claimed, 1);
    side_await_lent(&giver);
    harness_kill(pid);
    side_await_returned(&giver, KILLED_MS);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    side_await_free(&claimer, "nothing is leased here");
    claim_trial_claim(&trial);
    CHECK_EQUAL(claim_trial_answer(&trial, LONG_MS), TRIAL_SUCCEEDED);
    stop_both(&trial);
}

/* ---- the matrix ---- */

#ifdef ATTND_CRASH_POINTS

enum victim { OF_GIVER, OF_CLAIMER, WORKER_OF_CLAIMER };

struct row {
    enum attnd_crash_point point;
    enum victim victim;
};

static const struct row rows[] = {
    {ATTND_CRASH_DAEMON_PEER_TOLD, OF_CLAIMER},
    {ATTND_CRASH_DAEMON_PEER_LENT, OF_GIVER},
    {ATTND_CRASH_DAEMON_PEER_TOLD, OF_GIVER},
    {ATTND_CRASH_DAEMON_PEER_GRANTED, OF_CLAIMER},
    {ATTND_CRASH_DAEMON_MEMORY_SENT, OF_CLAIMER},
    {ATTND_CRASH_WORKER_MEMORY_MAPPED, WORKER_OF_CLAIMER},
    {ATTND_CRASH_DAEMON_PEER_MAPPED, OF_CLAIMER},
    {ATTND_CRASH_DAEMON_PEER_PIECE_SENT, OF_CLAIMER},
    {ATTND_CRASH_CPU_BRING_BEGUN, WORKER_OF_CLAIMER},
    {ATTND_CRASH_CPU_BRING_DONE, WORKER_OF_CLAIMER},
    {ATTND_CRASH_DAEMON_PEER_PIECE_LANDED, OF_CLAIMER},
    {ATTND_CRASH_DAEMON_PEER_BROUGHT, OF_CLAIMER},
    {ATTND_CRASH_DAEMON_PEER_SPENT, OF_GIVER},
    {ATTND_CRASH_DAEMON_PEER_GIVEN, OF_CLAIMER},
};

static void start_armed(const struct row *row, int signal)
{
    char crash[256], peer[160];

    snprintf(crash, sizeof(crash), "%s %d 1 %s", attnd_crash_name(row->point), signal,
             armed_new("peers"));
    if (row->victim == OF_GIVER)
        setenv("ATTND_CRASH", crash, 1);
    harness_start(&giver, NULL);
    unsetenv("ATTND_CRASH");
    if (row->victim != OF_GIVER)
        setenv("ATTND_CRASH", crash, 1);
    snprintf(peer, sizeof(peer), "giver=%s", giver.socket);
    harness_start(&claimer, (const char *const[]){"--peer", peer, NULL});
    unsetenv("ATTND_CRASH");
    side_await_linked(&claimer);
}

static void run_row(const struct row *row, int signal, int early)
{
    const uint64_t seed = (uint64_t)row->point * 64 + (uint64_t)signal;
    struct claim_trial trial;

    fprintf(stderr, "%s, signal %d, of the %s%s\n", attnd_crash_name(row->point), signal,
            row->victim == OF_GIVER     ? "giver"
            : row->victim == OF_CLAIMER ? "claimer"
                                        : "claimer's worker",
            early ? ", layer by layer" : "");
    start_armed(row, signal);
    if (early)
        claim_trial_begin_early(&trial, &giver, &claimer, seed);
    else
        claim_trial_begin(&trial, &giver, &claimer, seed);
    armed_now(); /* beats pass DAEMON_PEER_TOLD too: any time is good */
    claim_trial_claim(&trial);
    harness_eventually(armed_fired, NULL, LONG_MS, "the point was reached");
    if (row->victim == OF_GIVER)
        claim_trial_after_giver(&trial, signal, restart_giver);
    else if (row->victim == OF_CLAIMER)
        claim_trial_after_claimer(&trial, signal, restart_claimer);
    else
        CHECK_EQUAL(claim_trial_answer(&trial, LONG_MS), TRIAL_SUCCEEDED);
    claim_trial_close(&trial);
    claim_trial_once_more(&giver, &claimer);
    stop_both(&trial);
}

/* Rows wait more than they compute, mostly until silence is noticed: some at once, each with
 * services of its own. */
enum { ROWS = sizeof(rows) / sizeof(rows[0]), AT_ONCE = 7, STEPS_MS = 200000 };

struct part_of {
    size_t begin, end; /* of 2 * ROWS: killed and stopped */
    int early;
};

static int run_part(void *context)
{
    const struct part_of *part = context;

    for (size_t i = part->begin; i < part->end; i++)
        run_row(&rows[i / 2], i % 2 ? SIGSTOP : SIGKILL, part->early);
    return 0;
}

static void run_all(int early)
{
    struct part_of parts[AT_ONCE];
    pid_t pids[AT_ONCE];
    int failed = 0;

    for (size_t i = 0; i < AT_ONCE; i++) {
        parts[i] = (struct part_of){2 * ROWS * i / AT_ONCE, 2 * ROWS * (i + 1) / AT_ONCE, early};
        pids[i] = harness_fork_part(run_part, &parts[i]);
    }
    for (size_t i = 0; i < AT_ONCE; i++)
        failed |= harness_join(pids[i], STEPS_MS);
    CHECK_EQUAL(failed, 0); /* when none of them runs any more */
}

static void nothing_is_lost_at_any_step(void **state)
{
    (void)state;
    run_all(0);
}

static void nothing_is_lost_at_any_step_between_layers(void **state)
{
    (void)state;
    run_all(1);
}

/* The pages of a claim that was cancelled while its worker is in the middle of a piece. */
static void pages_that_may_still_be_written_are_not_free(void **state)
{
    const struct row row = {ATTND_CRASH_CPU_BRING_BEGUN, WORKER_OF_CLAIMER};
    struct claim_trial trial;
    int32_t pages[40];
    (void)state;

    start_armed(&row, SIGSTOP);
    claim_trial_begin(&trial, &giver, &claimer, 9);
    armed_now();
    side_claim(&trial.claimer, &trial.ticket, PAGES, &(struct attnd_op){.user_data = 1});
    harness_eventually(armed_fired, NULL, LONG_MS, "the piece is begun");
    CHECK_OK(attnd_cancel(trial.claimer.session, 1));
    CHECK_EQUAL(side_wait(&trial.claimer, LONG_MS).fault.code, -ATTND_E_CANCELLED);
    CHECK_EQUAL(side_leased(&claimer), PAGES);
    CHECK_ERROR(attnd_pages_alloc(trial.claimer.session, trial.claimer.pool, 40, pages),
                ATTND_E_NO_SPACE);
    side_await_free(&claimer, "its worker is gone: they are free");
    stop_both(&trial);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(a_killed_giver_is_told_within_a_second),
        E2E_OWN_TEST(a_giver_that_stands_still_is_told_within_five),
        E2E_OWN_TEST(a_killed_claimer_gives_the_ticket_back_within_a_second),
        E2E_OWN_TEST(a_claimer_that_stood_still_uses_nothing_that_it_lost),
        E2E_OWN_TEST(a_worker_that_dies_is_followed_by_one_that_brings_them),
        E2E_OWN_TEST(an_engine_that_dies_gives_the_ticket_back),
#ifdef ATTND_CRASH_POINTS
        E2E_OWN_TEST(pages_that_may_still_be_written_are_not_free),
        E2E_OWN_TEST(nothing_is_lost_at_any_step),
        E2E_OWN_TEST(nothing_is_lost_at_any_step_between_layers),
#endif
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
