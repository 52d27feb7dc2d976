/*
 * test_e2e_client_death.c - kill -9 of a client in the middle of a batch.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#define RUNS 20

struct victim {
    const struct harness *harness;
    uint32_t busy, done, never;
    struct attnd_token ticket;
    int service_pool;
    int forks; /* leave a child behind that keeps the socket open */
    int holds; /* stop the worker, so that the runs are in flight when it dies */
    pid_t worker;
};

/* What a session holds, as the status tells it. */
struct holdings {
    size_t sessions, pools;
    uint32_t plans, queue_runs;
    uint64_t heap_used_bytes;
};

static struct holdings holdings_of(const struct harness *harness)
{
    Attnd__Status *status = harness_status(harness);
    struct holdings holdings = {.sessions = status->n_sessions,
                                .pools = status->n_pools,
                                .plans = status->plans,
                                .queue_runs = status->queue_runs,
                                .heap_used_bytes = status->heap_used_bytes};

    attnd__status__free_unpacked(status, NULL);
    return holdings;
}

static int holds_nothing(void *context)
{
    struct holdings now = holdings_of(context);
    return !now.sessions && !now.pools && !now.plans && !now.queue_runs && !now.heap_used_bytes;
}

/* Runs of a long batch on every lane, and some pages on offer. */
static int victim(void *context)
{
    struct victim *self = context;
    struct random_batch batch = e2e_long_batch();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, self->harness->socket, "victim");
    batch.shape.service_pool = (uint32_t)self->service_pool;
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    if (self->holds)
        self->worker = e2e_hold_worker(self->harness);
    for (uint32_t i = 0; i < RUNS; i++)
        CHECK_OK(trial_submit_run(&trial, 0, 0, 0, 0));
    if (self->service_pool)
        CHECK_OK(attnd_pages_offer(engine.session, engine.pool, 3, engine.page_ids, 600000,
                                   &self->ticket));
    if (self->forks && fork() == 0) {
        harness_say(&self->busy, 1);
        harness_await(&self->done, 1);
        _exit(0);
    }
    while (!self->forks && holdings_of(self->harness).queue_runs == 0)
        harness_sleep_ms(1);
    harness_say(&self->busy, 1);
    harness_await(&self->never, 1);
    return 1;
}

static struct victim *victim_of(const struct harness *harness)
{
    struct victim *self = harness_shared(sizeof(*self));

    self->harness = harness;
    return self;
}

static void its_work_is_drained_and_its_memory_comes_back(void **state)
{
    struct harness *harness = *state;
    struct victim *self = victim_of(harness);
    const pid_t worker = harness_worker(harness);

    self->holds = 1;
    pid_t pid = harness_fork(victim, self);
    harness_await(&self->busy, 1);
    struct holdings before = holdings_of(harness);
    CHECK_EQUAL(before.sessions, 1);
    CHECK_EQUAL(before.pools, 1);
    CHECK(before.queue_runs > 0 && before.heap_used_bytes > 0 && before.plans > 0);
    harness_kill(pid);
    e2e_let_go(self->worker);
    harness_eventually(holds_nothing, harness, 5000, "nothing is left of the session");
    CHECK_EQUAL(harness_worker(harness), worker);
}

/* The engine beside it computes right results before, while and after its neighbour dies. */
static void others_do_not_notice(void **state)
{
    struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "neighbour");
    batch.append = 1;
    for (uint32_t death = 0; death < 5; death++) {
        struct victim *self = victim_of(harness);
        pid_t pid = harness_fork(victim, self);
        harness_await(&self->busy, 1);
        struct trial trial;
        batch.seed = death;
        trial_begin(&trial, &engine, &batch, 0);
        CHECK_EQUAL(trial_submit(&trial), 0);
        harness_kill(pid);
        trial_must(&trial, trial_judge(&trial));
        trial_end(&trial);
    }
    engine_close(&engine);
    harness_eventually(holds_nothing, harness, 5000, "nothing is left of any session");
}

/* Leases go with their session; what it had put on offer stays until somebody claims it. */
static void its_leases_are_freed_and_its_offers_stay(void **state)
{
    struct harness *harness = *state;
    struct victim *self = victim_of(harness);
    pid_t pid;

    self->service_pool = 1;
    pid = harness_fork(victim, self);
    harness_await(&self->busy, 1);
    harness_kill(pid);
    for (int ms = 0; holdings_of(harness).sessions > 0 && ms < 5000; ms++)
        harness_sleep_ms(1);
    Attnd__Status *status = harness_status(harness);
    CHECK_EQUAL(status->n_sessions, 0);
    CHECK_EQUAL(status->n_pools, 1); /* the ticket holds it */
    CHECK_EQUAL(status->pools[0]->pages_leased, 3);
    attnd__status__free_unpacked(status, NULL);
}

/* A forked child keeps the socket open for ever; the pidfd tells all the same. */
static void a_child_that_keeps_the_socket_does_not_hide_the_death(void **state)
{
    struct harness *harness = *state;
    struct victim *self = victim_of(harness);
    pid_t pid;

    self->forks = 1;
    pid = harness_fork(victim, self);
    harness_await(&self->busy, 1);
    harness_kill(pid);
    harness_eventually(holds_nothing, harness, 5000, "the session ended with its process");
    harness_say(&self->done, 1);
}

/* Closing with work in flight is the polite form of the same. */
static void closing_in_the_middle_of_a_batch_frees_everything_too(void **state)
{
    struct harness *harness = *state;
    const struct random_batch batch = e2e_long_batch();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "leaver");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    for (uint32_t i = 0; i < RUNS; i++)
        CHECK_OK(trial_submit_run(&trial, 0, 0, i % ATTND_LANES_MAX, 0));
    engine_close(&engine);
    trial_forget(&trial);
    harness_eventually(holds_nothing, harness, 5000, "nothing is left of the session");
}

#define LARGE_BYTES (UINT64_C(512) << 20) /* a GPU's worker pins it for a quarter of a second */

static int giant(void *context)
{
    struct victim *self = context;
    struct attnd_session *session = e2e_open(self->harness);
    uint32_t memory;

    harness_say(&self->busy, 1);
    CHECK_OK(attnd_memory_create(session, LARGE_BYTES, &memory, NULL));
    harness_await(&self->never, 1);
    return 1;
}

static int holds_no_memory(void *context)
{
    Attnd__Status *status = harness_status(context);
    int holds_none = status->n_sessions == 0 && status->host_memory_bytes == 0;

    CHECK_EQUAL(status->worker_restarts, 0);
    attnd__status__free_unpacked(status, NULL);
    return holds_none;
}

static int holds_memory(void *context)
{
    Attnd__Status *status = harness_status(context);
    int holds = status->host_memory_bytes != 0;

    attnd__status__free_unpacked(status, NULL);
    return holds;
}

/* What has come of it goes, no more comes, and its place is another's. */
static void a_death_while_memory_is_brought_in_leaves_nothing_of_it(void **state)
{
    struct harness *harness = *state;
    const struct random_batch batch = e2e_batch();
    struct victim *self = harness_shared(sizeof(*self));
    struct engine engine;

    self->harness = harness;
    for (int death = 0; death < 3; death++) {
        self->busy = 0;
        pid_t pid = harness_fork(giant, self);
        harness_await(&self->busy, 1);
        harness_eventually(holds_memory, harness, 5000, "its memory is being brought in");
        harness_kill(pid);
        harness_eventually(holds_no_memory, harness, 5000, "nothing is left of its memory");
        engine_open(&engine, harness->socket, "heir");
        trial_expect(&engine, &batch);
        engine_close(&engine);
        harness_eventually(holds_no_memory, harness, 5000, "nothing is left of the heir's");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(its_work_is_drained_and_its_memory_comes_back),
        E2E_TEST(others_do_not_notice),
        E2E_TEST(its_leases_are_freed_and_its_offers_stay),
        E2E_TEST(a_child_that_keeps_the_socket_does_not_hide_the_death),
        E2E_TEST(closing_in_the_middle_of_a_batch_frees_everything_too),
        E2E_TEST(a_death_while_memory_is_brought_in_leaves_nothing_of_it),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
