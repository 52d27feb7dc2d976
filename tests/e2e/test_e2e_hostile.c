/*
 * test_e2e_hostile.c - a client that holds its ends wrong, on purpose. It may lose its own session;
 * the service goes on, awake for others and asleep for it.
 */
#include "client/internal.h"
#include "schemas/futex.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define NOTIFICATIONS 20000u /* more than a pipe or a socket holds */
#define STARE_MS 500u

static struct attnd_session *open_session(const struct harness *harness, uint32_t ring_entries)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .ring_entries = ring_entries, .socket_path = harness->socket};
    struct attnd_session *session;
    CHECK_OK(attnd_open(&args, &session));
    return session;
}

/* The cheapest operation: of a plan that does not exist. */
static int submit_nonsense(struct attnd_session *session)
{
    const struct attnd_run_args run = {.size = sizeof(run)};
    const struct attnd_op op = {.user_data = 7};
    return attnd_run(session, 1, &run, &op);
}

static void expect_nonsense(struct attnd_session *session)
{
    struct attnd_completion done;
    CHECK_EQUAL(attnd_wait(session, &done, 1, 2000000000u), 1);
    CHECK_EQUAL(done.fault.code, -ATTND_E_UNKNOWN);
}

static void others_are_served(const struct harness *harness)
{
    struct attnd_session *other = open_session(harness, 8);
    CHECK_OK(submit_nonsense(other));
    expect_nonsense(other);
    attnd_close(other);
}

/* Clock ticks the daemon has run, user and system. */
static unsigned long daemon_ticks(const struct harness *harness)
{
    char path[64];
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)harness->daemon);
    FILE *file = fopen(path, "re");
    CHECK(file != NULL);
    CHECK_EQUAL(fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                       &user, &kernel),
                2);
    (void)fclose(file);
    return user + kernel;
}

static void notifications_nobody_takes_do_not_block_the_daemon(void **state)
{
    const struct harness *harness = *state;
    struct attnd_session *session = open_session(harness, 8);
    const uint64_t counter_full = UINT64_MAX - 1;

    (void)fcntl(session->notify, F_SETFL, O_NONBLOCK);
    ssize_t written = write(session->notify, &counter_full, sizeof(counter_full));
    (void)written; /* what would fill an eventfd */
    (void)fcntl(session->notify, F_SETFL, 0);
    for (uint32_t i = 0; i < NOTIFICATIONS; i++) {
        struct attnd_completion done;
        attnd_poke32(session->cq_need, 1);
        CHECK_OK(submit_nonsense(session));
        uint64_t begin_ns = harness_now_ns();
        while (attnd_wait(session, &done, 1, 0) == 0)
            CHECK(harness_now_ns() - begin_ns < 2000000000u);
    }
    others_are_served(harness);
    attnd_close(session);
}

static void completions_nobody_reads_leave_the_daemon_asleep(void **state)
{
    const struct harness *harness = *state;
    struct attnd_session *session = open_session(harness, 8);

    for (int i = 0; i < 8; i++)
        CHECK_OK(submit_nonsense(session));
    while (attnd_peek32(session->cq.tail) != 8)
        harness_sleep_ms(1);
    for (int i = 0; i < 8; i++)
        CHECK_OK(submit_nonsense(session));
    CHECK_ERROR(submit_nonsense(session), ATTND_E_FULL);

    unsigned long begin = daemon_ticks(harness);
    harness_sleep_ms(STARE_MS);
    unsigned long ticks_per_s = (unsigned long)sysconf(_SC_CLK_TCK);
    CHECK(daemon_ticks(harness) - begin <= ticks_per_s * STARE_MS / 1000 / 10);
    others_are_served(harness);
    for (int i = 0; i < 16; i++)
        expect_nonsense(session);
    attnd_close(session);
}

static void an_impossible_index_costs_its_owner_the_session(void **state)
{
    const struct harness *harness = *state;
    struct attnd_session *session = open_session(harness, 8);
    struct attnd_completion done;

    attnd_publish32(session->sq.tail, session->sq.index + 9);
    (void)attnd_futex_wake(session->sq.tail, 1);
    CHECK_ERROR(attnd_wait(session, &done, 1, 2000000000u), ATTND_E_DISCONNECTED);
    others_are_served(harness);
    attnd_close(session);
}

static void noise_in_the_whole_segment_harms_nobody_else(void **state)
{
    const struct harness *harness = *state;
    struct attnd_session *session = open_session(harness, 64);
    struct attnd_completion done;
    uint8_t *slots = (uint8_t *)session->submission.address + ATTND_PAGE_BYTES;
    uint64_t left = session->submission.size_bytes - ATTND_PAGE_BYTES;

    memset(slots, 0x5a, left < 1u << 20 ? left : 1u << 20);
    attnd_publish32(session->sq.tail, session->sq.index + 64);
    (void)attnd_futex_wake(session->sq.tail, 1);
    for (int i = 0; i < 64; i++) {
        CHECK_EQUAL(attnd_wait(session, &done, 1, 2000000000u), 1);
        CHECK(done.fault.code < 0);
    }
    others_are_served(harness);
    attnd_close(session);
}

/* Seals do not keep holes from being made. What the worker reads there is the engine's own loss. */
static void holes_in_shared_memory_harm_nobody_else(void **state)
{
    const struct harness *harness = *state;
    const struct random_batch batch = e2e_batch();
    struct attnd_memory_info info = {.size = sizeof(info)};
    struct engine engine, other;
    struct trial trial;
    pid_t worker = harness_worker(harness);

    engine_open(&engine, harness->socket, "holes");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(attnd_memory_info(engine.session, engine.memory, &info));
    CHECK_EQUAL(trial_submit(&trial), 0);
    CHECK_EQUAL(madvise(info.address, info.size_bytes, MADV_REMOVE), 0);
    CHECK_EQUAL(trial_await(&trial), 0);
    CHECK_EQUAL(trial.failure.fault.code, 0);
    trial_forget(&trial);
    engine_close(&engine);

    CHECK_EQUAL(harness_worker(harness), worker);
    engine_open(&other, harness->socket, "other");
    trial_expect(&other, &batch);
    engine_close(&other);
}

/* ---- plans ---- */

#define FORGED_PAGES 16384u

static void done_well(struct attnd_session *session)
{
    struct attnd_completion done;
    CHECK_EQUAL(attnd_wait(session, &done, 1, TRIAL_WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
}

/* Page ids that read like the words of a plan's head that say which set it is of: the second one
 * since the service began. They are run once, so that the worker has seen them. */
static void forge(struct engine *engine, uint32_t plan)
{
    static int32_t pages[FORGED_PAGES];
    const int32_t qo_indptr[] = {0, 1}, kv_indptr[] = {0, FORGED_PAGES}, last_page_len[] = {1};
    const struct attnd_level level = {1, qo_indptr, kv_indptr, pages, last_page_len};
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = &level};
    const struct attnd_run_args run = {.size = sizeof(run),
                                       .q = {engine->memory, engine->rows_offset_bytes},
                                       .o = {engine->memory, engine->rows_offset_bytes + 4096}};
    const struct attnd_op op = {.lane = 0};
    const uint32_t word = offsetof(struct attnd_plan_head, set_version) / sizeof(int32_t);

    for (uint32_t i = 0; i < FORGED_PAGES; i++) /* plans and their arrays begin on a line each */
        pages[i] = i % 16 == word % 16 ? 2 : 0;
    CHECK_OK(attnd_plan_set(engine->session, plan, &batch, &op));
    done_well(engine->session);
    CHECK_OK(attnd_run(engine->session, plan, &run, &op));
    done_well(engine->session);
}

/* A worker behind a bus keeps copies of plans at their places in the heap. */
static void what_a_dead_plan_left_at_its_place_is_no_plan(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, harness->socket, "forger");
    engine_pool(&engine, &batch.shape);
    uint32_t forged = engine_plan(&engine, 1, 1, FORGED_PAGES, 1, 0);
    forge(&engine, forged);
    CHECK_OK(attnd_plan_destroy(engine.session, forged));
    uint32_t before =
        engine_plan(&engine, 1, 1, FORGED_PAGES - 4096, 1, 0); /* as far as the pages */
    batch.tight = 1;
    trial_begin(&trial, &engine, &batch, 0); /* the next plan lies where they were */
    CHECK_EQUAL(trial_submit(&trial), 0);
    trial_must(&trial, trial_judge(&trial));
    trial_end(&trial);
    CHECK_OK(attnd_plan_destroy(engine.session, before));
    engine_close(&engine);
}

/* ---- few descriptors ---- */

#define FEW_FILES 256u

static int another_worker_runs(void *context)
{
    const struct harness *harness = context;
    Attnd__Status *status = harness_status(harness);
    int is = status->worker_restarts == 1 && strcmp(status->worker_state, "running") == 0;

    attnd__status__free_unpacked(status, NULL);
    return is;
}

/* Small memories, as many as there can be. */
static int hoard(void *context)
{
    const struct rlimit few = {FEW_FILES, FEW_FILES};
    static struct harness own;
    struct attnd_fault fault;
    uint32_t memory = 0, last = 0, count = 0;
    (void)context;

    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &few), 0);
    harness_start(&own, NULL);
    struct attnd_session *session = open_session(&own, 8);
    for (; attnd_memory_create(session, 4096, &memory, NULL) == 0; last = memory)
        CHECK(count++ < FEW_FILES);
    attnd_last_fault(&fault);
    CHECK_ERROR(fault.code, ATTND_E_NO_MEMORY);
    CHECK_EQUAL(fault.field, ATTND_F_MEMORY);
    CHECK(count > FEW_FILES / 4);
    others_are_served(&own);
    CHECK_EQUAL(kill(harness_worker(&own), SIGKILL), 0);
    harness_eventually(another_worker_runs, &own, 5000, "a new worker runs");
    others_are_served(&own);
    CHECK_OK(attnd_memory_release(session, last)); /* room for one */
    CHECK_OK(attnd_memory_create(session, 4096, &memory, NULL));
    attnd_close(session);
    harness_stop(&own);
    return 0;
}

static void memories_do_not_use_up_the_descriptors_that_others_need(void **state)
{
    (void)state;
    if (e2e_on_gpu()) /* whose driver wants hundreds itself */
        return;
    CHECK_EQUAL(harness_join(harness_fork(hoard, NULL), 30000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(notifications_nobody_takes_do_not_block_the_daemon),
        E2E_TEST(completions_nobody_reads_leave_the_daemon_asleep),
        E2E_TEST(an_impossible_index_costs_its_owner_the_session),
        E2E_TEST(noise_in_the_whole_segment_harms_nobody_else),
        E2E_TEST(holes_in_shared_memory_harm_nobody_else),
        E2E_TEST(what_a_dead_plan_left_at_its_place_is_no_plan),
        cmocka_unit_test(memories_do_not_use_up_the_descriptors_that_others_need),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
