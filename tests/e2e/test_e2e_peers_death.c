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
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/hand_over.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGES 16
#define LONG_MS 20000u
#define KILLED_MS 1000u
#define STOPPED_MS 5000u

static struct harness giver, claimer;

static const struct side_shape shape = {
    .layers = 2, .pages = 40, .page_size = 16, .heads_kv = 2, .dim = 64};

static int nothing_is_leased(void *context)
{
    return side_leased(context) == 0;
}

static int is_linked(void *context)
{
    return side_linked(context);
}

static int is_lent(void *context)
{
    Attnd__Status *status = harness_status(&giver);
    int lent = 0;
    (void)context;

    for (size_t i = 0; i < status->n_peers; i++)
        lent |= status->peers[i]->claims && status->peers[i]->under_way > 0;
    attnd__status__free_unpacked(status, NULL);
    return lent;
}

static int is_lent_no_more(void *context)
{
    return !is_lent(context);
}

/* ---- one claim, and what becomes of it ---- */

enum outcome { SUCCEEDED, FAILED, DISCONNECTED };

struct trial_of {
    struct side giver, claimer;
    struct attnd_token ticket;
    uint64_t seed;
    int early; /* layers are offered one after the other, and the claim does not wait for them */
};

static void begin(struct trial_of *trial, uint64_t seed)
{
    *trial = (struct trial_of){.seed = seed};
    side_open(&trial->giver, &giver, &shape, SIDE_OF_SERVICE);
    side_open(&trial->claimer, &claimer, &shape, SIDE_BY_HEAD);
    side_offer(&trial->giver, PAGES, seed, 600000, &trial->ticket);
}

/* The pages are the claimer's already: until all of them are here, or it is told that they will not
 * be. */
static enum outcome arrive(const struct trial_of *trial, const int32_t *pages, uint32_t limit_ms)
{
    const uint64_t end_ns = harness_now_ns() + limit_ms * UINT64_C(1000000);
    const struct side *side = &trial->claimer;
    struct attnd_token token;
    int32_t same[PAGES];
    uint32_t pool;
    int rc;

    do {
        rc = attnd_pages_offer(side->session, side->pool, PAGES, pages, 60000, &token);
        CHECK(rc != -ATTND_E_BUSY || harness_now_ns() < end_ns);
        harness_sleep_ms(1);
    } while (rc == -ATTND_E_BUSY);
    if (rc == -ATTND_E_DISCONNECTED)
        return DISCONNECTED;
    if (rc == -ATTND_E_PEER_LOST)
        return FAILED;
    CHECK_OK(rc);
    CHECK_EQUAL(attnd_pages_claim(side->session, &token, &pool, same, PAGES), PAGES);
    return SUCCEEDED;
}

/* The answer of the claim, at most @limit_ms after now. Pages of one that succeeded are right. */
static enum outcome answer(const struct trial_of *trial, uint32_t limit_ms)
{
    struct attnd_completion completion = {0};
    int32_t pages[PAGES];
    const int got = attnd_wait(trial->claimer.session, &completion, 1,
                               (limit_ms + 500) * UINT64_C(1000000)); /* our own share of it */

    if (got == -ATTND_E_DISCONNECTED)
        return DISCONNECTED;
    CHECK_EQUAL(got, 1);
    if (completion.fault.code != 0) {
        CHECK_EQUAL(completion.fault.code, -ATTND_E_PEER_LOST);
        return FAILED;
    }
    side_take(&trial->claimer, &completion, PAGES, pages);
    const enum outcome outcome = trial->early ? arrive(trial, pages, limit_ms) : SUCCEEDED;
    if (outcome == DISCONNECTED)
        return DISCONNECTED;
    if (outcome == SUCCEEDED)
        CHECK_EQUAL(side_wrong(&trial->claimer, pages, PAGES, trial->seed), 0);
    CHECK_OK(attnd_pages_free(trial->claimer.session, trial->claimer.pool, PAGES, pages));
    return outcome;
}

/* The ticket is claimed at the giver. Return: 1; 0 it is spent. Awaits that it is lent no more, and
 * that its layers are whole. */
static int claim_there(const struct trial_of *trial, uint32_t limit_ms)
{
    const uint64_t end_ns = harness_now_ns() + LONG_MS * UINT64_C(1000000);
    int32_t pages[PAGES];
    uint32_t pool;
    int rc;

    harness_eventually(is_lent_no_more, NULL, limit_ms, "the ticket is lent no more");
    do
        rc = attnd_pages_claim(trial->giver.session, &trial->ticket, &pool, pages, PAGES);
    while (rc == -ATTND_E_BUSY && trial->early && harness_now_ns() < end_ns);
    if (rc == -ATTND_E_EXPIRED) {
        harness_eventually(nothing_is_leased, &giver, LONG_MS, "the giver has its pages back");
        return 0;
    }
    CHECK_EQUAL(rc, PAGES);
    CHECK_EQUAL(side_wrong(&trial->giver, pages, PAGES, trial->seed), 0);
    CHECK_OK(attnd_pages_free(trial->giver.session, trial->giver.pool, PAGES, pages));
    CHECK_EQUAL(side_leased(&giver), 0);
    return 1;
}

/* All over again, to see that it works. */
static void claim_once_more(void)
{
    struct trial_of trial;

    harness_eventually(is_linked, &claimer, LONG_MS, "there is a link again");
    begin(&trial, 77);
    side_claim(&trial.claimer, &trial.ticket, PAGES, NULL);
    CHECK_EQUAL(answer(&trial, LONG_MS), SUCCEEDED);
    harness_eventually(nothing_is_leased, &giver, LONG_MS, "the giver has its pages back");
    harness_eventually(nothing_is_leased, &claimer, LONG_MS, "nothing is leased here");
    side_close(&trial.giver);
    side_close(&trial.claimer);
}

/* ---- while the claimer's worker stands still ---- */

static void start_held(struct trial_of *trial, uint64_t seed, pid_t *worker)
{
    hand_over_start(&giver, &claimer, (const char *const[]){"--watchdog", "0", NULL});
    begin(trial, seed);
    *worker = harness_stop_worker(&claimer);
    side_claim(&trial->claimer, &trial->ticket, PAGES, NULL);
    harness_eventually(is_lent, NULL, LONG_MS, "the ticket is lent");
}

static void stop_both(struct trial_of *trial)
{
    if (trial->giver.session)
        side_close(&trial->giver);
    if (trial->claimer.session)
        side_close(&trial->claimer);
    harness_stop(&claimer);
    harness_stop(&giver);
}

static void a_killed_giver_is_told_within_a_second(void **state)
{
    struct trial_of trial;
    pid_t worker;
    (void)state;

    start_held(&trial, 1, &worker);
    harness_kill_daemon(&giver);
    CHECK_EQUAL(answer(&trial, KILLED_MS), FAILED);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    harness_eventually(nothing_is_leased, &claimer, LONG_MS, "nothing is leased here");
    side_close(&trial.giver);
    side_close(&trial.claimer);
    harness_restart(&giver, NULL);
    claim_once_more();
    stop_both(&trial);
}

static void a_giver_that_stands_still_is_told_within_five(void **state)
{
    struct trial_of trial;
    pid_t worker;
    (void)state;

    start_held(&trial, 2, &worker);
    CHECK_EQUAL(kill(giver.daemon, SIGSTOP), 0);
    CHECK_EQUAL(answer(&trial, STOPPED_MS), FAILED);
    CHECK_EQUAL(kill(giver.daemon, SIGCONT), 0);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    CHECK_EQUAL(claim_there(&trial, LONG_MS), 1);
    side_close(&trial.giver);
    side_close(&trial.claimer);
    claim_once_more();
    stop_both(&trial);
}

static void a_killed_claimer_gives_the_ticket_back_within_a_second(void **state)
{
    struct trial_of trial;
    char peer[160];
    pid_t worker;
    (void)state;

    start_held(&trial, 3, &worker);
    harness_kill_daemon(&claimer);
    CHECK_EQUAL(claim_there(&trial, KILLED_MS), 1);
    CHECK_EQUAL(answer(&trial, KILLED_MS), DISCONNECTED);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    side_close(&trial.giver);
    side_close(&trial.claimer);
    snprintf(peer, sizeof(peer), "giver=%s", giver.socket);
    harness_restart(&claimer, (const char *const[]){"--peer", peer, NULL});
    claim_once_more();
    stop_both(&trial);
}

/* It goes on later, when the pages that it was bringing are somebody else's. */
static void a_claimer_that_stood_still_uses_nothing_that_it_lost(void **state)
{
    struct trial_of trial;
    int32_t pages[PAGES];
    pid_t worker;
    (void)state;

    start_held(&trial, 4, &worker);
    CHECK_EQUAL(kill(claimer.daemon, SIGSTOP), 0);
    CHECK_EQUAL(claim_there(&trial, STOPPED_MS), 1);
    CHECK_OK(attnd_pages_alloc(trial.giver.session, trial.giver.pool, PAGES, pages));
    side_fill(&trial.giver, pages, PAGES, 1000);
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    CHECK_EQUAL(kill(claimer.daemon, SIGCONT), 0);
    CHECK_EQUAL(answer(&trial, STOPPED_MS), FAILED);
    harness_eventually(nothing_is_leased, &claimer, LONG_MS, "nothing is leased here");
    side_close(&trial.giver);
    side_close(&trial.claimer);
    claim_once_more();
    stop_both(&trial);
}

static void a_worker_that_dies_is_followed_by_one_that_brings_them(void **state)
{
    struct trial_of trial;
    pid_t worker;
    (void)state;

    start_held(&trial, 5, &worker);
    CHECK_EQUAL(kill(worker, SIGKILL), 0);
    CHECK_EQUAL(answer(&trial, LONG_MS), SUCCEEDED);
    side_close(&trial.giver);
    side_close(&trial.claimer);
    claim_once_more();
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
    struct trial_of trial;
    struct engine_of *engine = harness_shared(sizeof(*engine));
    (void)state;

    hand_over_start(&giver, &claimer, (const char *const[]){"--watchdog", "0", NULL});
    begin(&trial, 6);
    engine->ticket = &trial.ticket;
    const pid_t worker = harness_stop_worker(&claimer);
    const pid_t pid = harness_fork(claim_and_wait, engine);
    harness_await(&engine->claimed, 1);
    harness_eventually(is_lent, NULL, LONG_MS, "the ticket is lent");
    harness_kill(pid);
    harness_eventually(is_lent_no_more, NULL, KILLED_MS, "the ticket has returned");
    CHECK_EQUAL(kill(worker, SIGCONT), 0);
    harness_eventually(nothing_is_leased, &claimer, LONG_MS, "nothing is leased here");
    side_claim(&trial.claimer, &trial.ticket, PAGES, NULL);
    CHECK_EQUAL(answer(&trial, LONG_MS), SUCCEEDED);
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

static char arm_file[160];

/* Beats pass DAEMON_PEER_TOLD too: any time is good. */
static void arm(void)
{
    const int fd = open(arm_file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    CHECK(fd >= 0);
    close(fd);
}

static int has_fired(void *context)
{
    (void)context;
    return access(arm_file, F_OK) < 0;
}

static void start_armed(const struct row *row, int signal)
{
    char crash[256], peer[160];

    snprintf(arm_file, sizeof(arm_file), "/tmp/attnd-peers-armed-%d", (int)getpid());
    (void)unlink(arm_file);
    snprintf(crash, sizeof(crash), "%s %d 1 %s", attnd_crash_name(row->point), signal, arm_file);
    if (row->victim == OF_GIVER)
        setenv("ATTND_CRASH", crash, 1);
    harness_start(&giver, NULL);
    unsetenv("ATTND_CRASH");
    if (row->victim != OF_GIVER)
        setenv("ATTND_CRASH", crash, 1);
    snprintf(peer, sizeof(peer), "giver=%s", giver.socket);
    harness_start(&claimer, (const char *const[]){"--peer", peer, NULL});
    unsetenv("ATTND_CRASH");
    harness_eventually(is_linked, &claimer, LONG_MS, "the claimer is linked");
}

/* Of the giver, or of the claimer: a claim that has not succeeded has left the ticket, or it is
 * spent and the giver's pages are free; never both. */
static void after_giver(const struct trial_of *trial, int signal)
{
    const enum outcome outcome = answer(trial, signal == SIGKILL ? KILLED_MS : STOPPED_MS);

    CHECK(outcome != DISCONNECTED);
    harness_eventually(nothing_is_leased, &claimer, LONG_MS, "nothing is leased here");
    if (signal == SIGKILL) {
        harness_kill_daemon(&giver); /* it is dead: reaped */
        harness_restart(&giver, NULL);
        return;
    }
    CHECK_EQUAL(kill(giver.daemon, SIGCONT), 0);
    CHECK(!claim_there(trial, LONG_MS) || outcome == FAILED);
}

static void after_claimer(const struct trial_of *trial, int signal)
{
    const int there = claim_there(trial, signal == SIGKILL ? KILLED_MS : STOPPED_MS);
    char peer[160];

    if (signal == SIGKILL) {
        CHECK_EQUAL(answer(trial, KILLED_MS), DISCONNECTED);
        harness_kill_daemon(&claimer);
        snprintf(peer, sizeof(peer), "giver=%s", giver.socket);
        harness_restart(&claimer, (const char *const[]){"--peer", peer, NULL});
        return;
    }
    CHECK_EQUAL(kill(claimer.daemon, SIGCONT), 0);
    const enum outcome outcome = answer(trial, STOPPED_MS);
    CHECK(outcome == FAILED || (outcome == SUCCEEDED && !there));
    harness_eventually(nothing_is_leased, &claimer, LONG_MS, "nothing is leased here");
}

/* Bytes that are there before their layers are said to be whole; the ticket alone has the pages. */
static void begin_early(struct trial_of *trial, uint64_t seed)
{
    int32_t pages[PAGES];

    *trial = (struct trial_of){.seed = seed, .early = 1};
    side_open(&trial->giver, &giver, &shape, SIDE_OF_SERVICE);
    side_open(&trial->claimer, &claimer, &shape, SIDE_BY_HEAD);
    CHECK_OK(attnd_pages_alloc(trial->giver.session, trial->giver.pool, PAGES, pages));
    side_fill(&trial->giver, pages, PAGES, seed);
    CHECK_OK(attnd_pages_offer_layers(trial->giver.session, trial->giver.pool, PAGES, pages, 600000,
                                      &trial->ticket));
    CHECK_OK(attnd_pages_free(trial->giver.session, trial->giver.pool, PAGES, pages));
}

static void claim_early(const struct trial_of *trial)
{
    const struct attnd_claim_args args = {.size = sizeof(args),
                                          .pool = trial->claimer.pool,
                                          .pages_max = PAGES,
                                          .flags = ATTND_CLAIM_EARLY,
                                          .ticket = &trial->ticket};
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};

    CHECK_OK(attnd_pages_claim_async(trial->claimer.session, &args, NULL));
    for (uint32_t layers = 1; layers <= shape.layers; layers++) {
        const int rc = attnd_pages_ready(trial->giver.session, trial->giver.pool, &trial->ticket,
                                         layers, &quiet);
        CHECK(rc == 0 || rc == -ATTND_E_DISCONNECTED); /* it may be dead already */
    }
}

static void run_row(const struct row *row, int signal, int early)
{
    const uint64_t seed = (uint64_t)row->point * 64 + (uint64_t)signal;
    struct trial_of trial;

    fprintf(stderr, "%s, signal %d, of the %s%s\n", attnd_crash_name(row->point), signal,
            row->victim == OF_GIVER     ? "giver"
            : row->victim == OF_CLAIMER ? "claimer"
                                        : "claimer's worker",
            early ? ", layer by layer" : "");
    start_armed(row, signal);
    if (early)
        begin_early(&trial, seed);
    else
        begin(&trial, seed);
    arm();
    if (early)
        claim_early(&trial);
    else
        side_claim(&trial.claimer, &trial.ticket, PAGES, NULL);
    harness_eventually(has_fired, NULL, LONG_MS, "the point was reached");
    if (row->victim == OF_GIVER)
        after_giver(&trial, signal);
    else if (row->victim == OF_CLAIMER)
        after_claimer(&trial, signal);
    else
        CHECK_EQUAL(answer(&trial, LONG_MS), SUCCEEDED);
    side_close(&trial.giver);
    side_close(&trial.claimer);
    claim_once_more();
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
    struct trial_of trial;
    int32_t pages[40];
    (void)state;

    start_armed(&row, SIGSTOP);
    begin(&trial, 9);
    arm();
    side_claim(&trial.claimer, &trial.ticket, PAGES, &(struct attnd_op){.user_data = 1});
    harness_eventually(has_fired, NULL, LONG_MS, "the piece is begun");
    CHECK_OK(attnd_cancel(trial.claimer.session, 1));
    CHECK_EQUAL(side_wait(&trial.claimer, LONG_MS).fault.code, -ATTND_E_CANCELLED);
    CHECK_EQUAL(side_leased(&claimer), PAGES);
    CHECK_ERROR(attnd_pages_alloc(trial.claimer.session, trial.claimer.pool, 40, pages),
                ATTND_E_NO_SPACE);
    harness_eventually(nothing_is_leased, &claimer, LONG_MS, "its worker is gone: they are free");
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
