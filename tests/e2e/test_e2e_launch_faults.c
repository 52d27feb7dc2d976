/*
 * test_e2e_launch_faults.c - launches that mean harm, and deaths while somebody waits for an
 * answer.
 *
 * This process launches, so none of it is for a GPU, where mailboxes lie in device memory;
 * tests/gpu/test_gpu_stream.c has deaths while a stream waits. Stopping the worker's process keeps
 * it from taking a launch on the CPU worker alone: kernels do not stop with it.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/launched.h"

#include "schemas/atomics.h"
#include "schemas/futex.h"

#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LANE 5u

/* ---- hostile doorbells ---- */

static void ring_by_hand(struct attnd_mailbox *mailbox, uint32_t lane, uint32_t value)
{
    attnd_publish32(&mailbox->doorbell[lane], value);
    (void)attnd_arrive32(&mailbox->rung, 1);
    (void)attnd_futex_wake(&mailbox->rung, INT_MAX);
}

static void expect_unknown(struct attnd_session *session, uint32_t lane, uint32_t run)
{
    struct attnd_mailbox *mailbox = launched_mailbox(session);
    ring_by_hand(mailbox, lane, ATTND_DOORBELL_RUNG + run);
    CHECK_EQUAL(attnd_launch_wait(session, lane, TRIAL_WAIT_NS), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(attnd_observe32(&mailbox->doorbell[lane]), 1 + ATTND_E_UNKNOWN);
}

static void doorbells_of_any_value_reach_nothing_but_what_is_prepared_for_them(void **state)
{
    static const uint32_t wild[] = {0,
                                    1,
                                    511,
                                    512,
                                    513,
                                    600,
                                    4607,
                                    4608,
                                    0x00010200,
                                    0x20000000,
                                    ATTND_DOORBELL_RUNS - 2,
                                    ATTND_DOORBELL_RUNS - 1};
    const struct harness *harness = *state;
    const struct random_batch batch = launched_batch();
    struct engine owner, stranger;
    struct trial trial, own;
    uint32_t prepared[LAUNCHED_LAYERS], mine;

    launched_open_all(&owner, &trial, harness->socket, "owner", &batch, LANE, prepared);
    launched_open(&stranger, &own, harness->socket, "stranger", &batch);
    CHECK_OK(launched_prepare(&own, 0, LANE, &mine));
    struct attnd_mailbox *mailbox = launched_mailbox(stranger.session);

    for (uint32_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++)
        if (wild[i] != mine)
            expect_unknown(stranger.session, LANE, wild[i]);
    for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++) /* of another session */
        expect_unknown(stranger.session, LANE, prepared[layer]);
    expect_unknown(stranger.session, LANE + 1, mine); /* of another lane */
    CHECK_EQUAL(attnd_lane_error(stranger.session, LANE), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(attnd_lane_error(stranger.session, LANE), 0);
    CHECK_EQUAL(attnd_lane_error(stranger.session, LANE + 1), -ATTND_E_UNKNOWN);

    /* Words that are the worker's to write, and all of the rest. */
    memset(mailbox->doorbell, 0x7f, sizeof(mailbox->doorbell));
    memset(mailbox->error, 0xff, sizeof(mailbox->error));
    memset(mailbox->zero, 0xff, sizeof(mailbox->zero));
    CHECK_EQUAL(launched_ring(&own, LANE, mine), 0);
    launched_verify(&own, 0);
    for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++) {
        CHECK_EQUAL(launched_ring(&trial, LANE, prepared[layer]), 0);
        launched_verify(&trial, layer);
    }
    CHECK_OK(attnd_unprepare(stranger.session, mine));
    launched_close(&stranger, &own);
    launched_close_all(&owner, &trial, prepared);
}

static void a_launch_of_a_run_that_is_gone_starts_none_that_has_its_slot(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    uint32_t gone, other;

    launched_open(&engine, &trial, harness->socket, "gone", &batch);
    CHECK_OK(launched_prepare(&trial, 0, LANE, &gone));
    CHECK_OK(attnd_unprepare(engine.session, gone));
    launched_prepare_at(&trial, 0, LANE, gone, &other);
    CHECK_EQUAL(launched_ring(&trial, LANE, gone), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(attnd_lane_error(engine.session, LANE), -ATTND_E_UNKNOWN);
    CHECK_ERROR(attnd_unprepare(engine.session, gone), ATTND_E_UNKNOWN);
    launched_untouched(&trial, 0);
    CHECK_EQUAL(launched_ring(&trial, LANE, other), 0);
    launched_verify(&trial, 0);
    CHECK_OK(attnd_unprepare(engine.session, other));
    launched_close(&engine, &trial);
}

struct ringer {
    const struct harness *harness;
    uint32_t stop, started;
};

/* Every doorbell, right and wrong ones, over and over, waiting for nothing. */
static int ring_without_end(void *context)
{
    struct ringer *self = context;
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    uint32_t prepared[LAUNCHED_LAYERS];

    launched_open_all(&engine, &trial, self->harness->socket, "flood", &batch, LANE, prepared);
    struct attnd_mailbox *mailbox = launched_mailbox(engine.session);
    harness_say(&self->started, 1);
    for (uint32_t n = 0; !attnd_peek32(&self->stop); n++)
        ring_by_hand(mailbox, n % ATTND_LANES_MAX,
                     n % 3 ? ATTND_DOORBELL_RUNG + prepared[n % LAUNCHED_LAYERS] : n * 2654435761u);
    return 0; /* closes nothing: the session dies as it is */
}

static void a_flood_of_rings_starves_nobody(void **state)
{
    const struct harness *harness = *state;
    struct ringer *flood = harness_shared(sizeof(*flood));
    const struct random_batch batch = launched_batch(), submitted = e2e_batch();
    struct engine engine;
    struct trial trial;
    uint32_t prepared[LAUNCHED_LAYERS];

    flood->harness = harness;
    pid_t pid = harness_fork(ring_without_end, flood);
    harness_await(&flood->started, 1);
    engine_open(&engine, harness->socket, "stream");
    for (uint32_t round = 0; round < 5; round++) {
        trial_expect(&engine, &submitted); /* commands come through */
        launched_begin(&trial, &engine, &batch);
        launched_prepare_all(&trial, LANE, prepared);
        launched_set(&trial, 0); /* holds, and shows */
        for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++) {
            CHECK_EQUAL(launched_ring(&trial, LANE, prepared[layer]), 0);
            launched_verify(&trial, layer);
        }
        launched_unprepare_all(&trial, prepared);
        trial_end(&trial);
    }
    engine_close(&engine);
    harness_say(&flood->stop, 1);
    CHECK_EQUAL(harness_join(pid, 10000), 0);
}

/* ---- the worker dies ---- */

struct restart {
    const struct harness *harness;
    pid_t old;
};

static int works_again(void *context)
{
    struct restart *restart = context;
    Attnd__Status *status = harness_status(restart->harness);
    int works =
        (pid_t)status->worker_pid != restart->old && strcmp(status->worker_state, "running") == 0;

    attnd__status__free_unpacked(status, NULL);
    return works;
}

static void is_taken(const struct attnd_mailbox *mailbox, uint32_t lane)
{
    uint64_t begin_ns = harness_now_ns();
    while (attnd_doorbell_rung(attnd_observe32(&mailbox->doorbell[lane])))
        CHECK(harness_now_ns() - begin_ns < 5000000000u);
}

static void a_killed_worker_releases_the_wait_and_the_next_ring_is_right(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_long_batch();
    struct engine engine;
    struct trial trial;
    uint32_t prepared, released = 0;

    batch.level[0].entry[0].qo_len = 16;
    batch.level[0].entry[0].kv_len[0] = 16384;
    launched_open(&engine, &trial, harness->socket, "survivor", &batch);
    CHECK_OK(launched_prepare(&trial, 0, LANE, &prepared));
    struct attnd_mailbox *mailbox = launched_mailbox(engine.session);
    for (uint32_t death = 0; death < 3; death++) {
        struct restart restart = {harness, e2e_hold_worker(harness)};
        CHECK_OK(attnd_launch(engine.session, LANE, prepared));
        CHECK_EQUAL(attnd_launch(engine.session, LANE, prepared), -ATTND_E_BUSY);
        e2e_let_go(restart.old);
        is_taken(mailbox, LANE);
        CHECK_EQUAL(kill(restart.old, SIGKILL), 0);
        int rc = attnd_launch_wait(engine.session, LANE, TRIAL_WAIT_NS);
        CHECK(rc == 0 || rc == -ATTND_E_WORKER_RESTARTED); /* it may have been done just before */
        CHECK_EQUAL(attnd_lane_error(engine.session, LANE), rc);
        released += rc != 0;
        CHECK_EQUAL(launched_ring(&trial, LANE, prepared), 0);
        harness_eventually(works_again, &restart, 5000, "a new worker runs");
    }
    CHECK(released > 0 || e2e_on_gpu()); /* which is done sooner than a signal arrives */
    Attnd__Status *status = harness_status(harness);
    if (!e2e_on_gpu()) /* whose dead kernels may have answered, where nobody counts any more */
        CHECK_EQUAL(status->sessions[0]->launch_errors, released);
    attnd__status__free_unpacked(status, NULL);
    launched_verify(&trial, 0);
    CHECK_OK(attnd_unprepare(engine.session, prepared));
    launched_close(&engine, &trial);
}

/* The worker is stopped, so it takes nothing; then it is killed. */
static void a_ring_that_was_pending_is_executed_by_the_next_worker(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    uint32_t prepared[LAUNCHED_LAYERS];

    if (e2e_on_gpu())
        skip();
    launched_open(&engine, &trial, harness->socket, "survivor", &batch);
    for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++)
        CHECK_OK(launched_prepare(&trial, layer, layer, &prepared[layer]));
    pid_t worker = harness_stop_worker(harness);
    for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++)
        CHECK_OK(attnd_launch(engine.session, layer, prepared[layer]));
    CHECK_EQUAL(attnd_launch_wait(engine.session, 0, 1000000), -ATTND_E_TIMEOUT);
    CHECK_EQUAL(kill(worker, SIGKILL), 0);
    for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++) {
        CHECK_EQUAL(attnd_launch_wait(engine.session, layer, TRIAL_WAIT_NS), 0);
        launched_verify(&trial, layer);
    }
    launched_close_all(&engine, &trial, prepared);
}

/* As an engine would: what was answered WORKER_RESTARTED is launched again. */
static void ring_until_done(const struct trial *trial, uint32_t prepared, uint32_t *repeated)
{
    int rc;
    while ((rc = launched_ring(trial, LANE, prepared)) == -ATTND_E_WORKER_RESTARTED)
        ++*repeated;
    CHECK_EQUAL(rc, 0);
}

#define DEATHS_MIN 3u /* on a busy machine that takes longer */

struct killer {
    const struct harness *harness;
    uint32_t stop, deaths;
};

static void *kill_workers(void *context)
{
    struct killer *self = context;
    pid_t killed = 0;
    while (!attnd_peek32(&self->stop)) {
        harness_sleep_ms(100 + 37 * (attnd_peek32(&self->deaths) % 5));
        Attnd__Status *status = harness_status(self->harness);
        pid_t worker = (pid_t)status->worker_pid;
        int runs = strcmp(status->worker_state, "running") == 0 && worker != killed;
        attnd__status__free_unpacked(status, NULL);
        if (!runs)
            continue;
        CHECK_EQUAL(kill(worker, SIGKILL), 0);
        killed = worker;
        attnd_poke32(&self->deaths, attnd_peek32(&self->deaths) + 1);
    }
    return NULL;
}

/* Sets and advances hold and show through deaths; whenever they complete, rings see them. */
static void sets_advances_and_rings_survive_a_worker_that_keeps_dying(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    struct killer killer = {.harness = harness};
    pthread_t thread;
    uint32_t prepared[LAUNCHED_LAYERS], repeated = 0, again;

    launched_open_all(&engine, &trial, harness->socket, "survivor", &batch, LANE, prepared);
    launched_extend(&trial, 0);
    const uint64_t end_ns = harness_now_ns() + (e2e_on_gpu() ? 6000000000u : 2500000000u);
    CHECK_EQUAL(pthread_create(&thread, NULL, kill_workers, &killer), 0);
    for (uint32_t replay = 0;
         harness_now_ns() < end_ns || attnd_peek32(&killer.deaths) < DEATHS_MIN; replay++) {
        int32_t kv_len[3];
        for (uint32_t e = 0; e < 3; e++)
            kv_len[e] =
                1 + (int32_t)((replay + 5 * e) % (uint32_t)batch.level[0].entry[e].kv_len[1]);
        if (replay % 7 == 0) {
            trial.batch = batch;
            launched_set(&trial, replay % 2);
            launched_extend(&trial, replay % 2);
        }
        launched_advance(&trial, replay % 3, kv_len);
        for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++)
            ring_until_done(&trial, prepared[layer], &repeated);
        for (uint32_t layer = 0; layer < LAUNCHED_LAYERS; layer++)
            launched_verify(&trial, layer);
        if (replay % 5 == 0) { /* prepared and unprepared while a worker may be missing */
            CHECK_OK(launched_prepare(&trial, 1, LANE + 1, &again));
            CHECK_OK(attnd_unprepare(engine.session, again));
        }
    }
    attnd_poke32(&killer.stop, 1);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    printf("%u deaths, %u rings repeated\n", killer.deaths, repeated);
    launched_close_all(&engine, &trial, prepared);
}

/* ---- the session or the daemon dies ---- */

/* Rings a long run in many lanes, so that some are in flight and some pending, and waits. */
static int ring_and_wait(void *context)
{
    struct ringer *self = context;
    struct random_batch batch = e2e_long_batch();
    struct engine engine;
    struct trial trial;
    uint32_t prepared[16], lanes = 0;

    launched_open(&engine, &trial, self->harness->socket, "victim", &batch);
    while (lanes < 16 && launched_prepare(&trial, 0, lanes, &prepared[lanes]) == 0)
        lanes++;
    CHECK(lanes > 4); /* with many tile workers there is not scratch for all */
    for (uint32_t lane = 0; lane < lanes; lane++)
        CHECK_OK(attnd_launch(engine.session, lane, prepared[lane]));
    CHECK_OK(trial_submit_set(&trial, 0, 0)); /* waits for all of them */
    harness_say(&self->started, 1);
    return trial_await(&trial);
}

static int has_one_session(void *context)
{
    Attnd__Status *status = harness_status(context);
    int one = status->n_sessions == 1;
    attnd__status__free_unpacked(status, NULL);
    return one;
}

static void a_session_killed_with_rings_pending_leaves_nothing_behind(void **state)
{
    struct harness *harness = *state;
    const struct random_batch batch = launched_batch();
    struct ringer *victim = harness_shared(sizeof(*victim));
    struct engine engine;
    struct trial trial;
    uint32_t prepared[LAUNCHED_LAYERS];

    launched_open_all(&engine, &trial, harness->socket, "witness", &batch, LANE, prepared);
    Attnd__Status *before = harness_status(harness);
    for (uint32_t round = 0; round < 4; round++) {
        *victim = (struct ringer){.harness = harness};
        pid_t pid = harness_fork(ring_and_wait, victim);
        harness_await(&victim->started, 1);
        harness_kill(pid);
        CHECK_EQUAL(launched_ring(&trial, LANE, prepared[round]), 0);
        launched_verify(&trial, round);
        harness_eventually(has_one_session, harness, 20000, "the victim's session is gone");
    }
    Attnd__Status *after = harness_status(harness);
    CHECK_EQUAL(after->heap_used_bytes, before->heap_used_bytes);
    CHECK_EQUAL(after->worker_restarts, 0);
    attnd__status__free_unpacked(before, NULL);
    attnd__status__free_unpacked(after, NULL);
    launched_close_all(&engine, &trial, prepared);
}

static void a_wait_ends_with_the_service(void **state)
{
    struct harness *harness = *state;
    const struct random_batch batch = launched_batch();
    struct engine engine;
    struct trial trial;
    uint32_t prepared[LAUNCHED_LAYERS];

    if (e2e_on_gpu())
        skip();
    launched_open_all(&engine, &trial, harness->socket, "orphan", &batch, LANE, prepared);
    pid_t worker = harness_stop_worker(harness);
    CHECK_OK(attnd_launch(engine.session, LANE, prepared[0]));
    harness_kill_daemon(harness);
    CHECK_EQUAL(attnd_launch_wait(engine.session, LANE, TRIAL_WAIT_NS), -ATTND_E_DISCONNECTED);
    CHECK_EQUAL(kill(worker, SIGKILL), 0);
    trial_forget(&trial);
    engine_close(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(doorbells_of_any_value_reach_nothing_but_what_is_prepared_for_them),
        E2E_TEST(a_launch_of_a_run_that_is_gone_starts_none_that_has_its_slot),
        E2E_TEST(a_flood_of_rings_starves_nobody),
        E2E_TEST(a_killed_worker_releases_the_wait_and_the_next_ring_is_right),
        E2E_TEST(a_ring_that_was_pending_is_executed_by_the_next_worker),
        E2E_TEST(sets_advances_and_rings_survive_a_worker_that_keeps_dying),
        E2E_TEST(a_session_killed_with_rings_pending_leaves_nothing_behind),
        E2E_TEST(a_wait_ends_with_the_service),
    };

    harness_init();
    if (!launched_from_host())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
