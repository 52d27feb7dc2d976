/*
 * test_e2e_turns.c - the daemon's one thread belongs to everybody: what a client leaves behind is
 * given back in pieces, and nothing of it stays.
 */
#include "client/internal.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/trial/trial.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGES (1u << 22)
#define CALL_PAGES 16384u
#define MEMORIES 700u /* more than a queue of others' descriptors holds, in one session's share */

static struct harness harness;

static int has_leases(const Attnd__Status *status, uint64_t least, uint64_t most)
{
    for (size_t i = 0; i < status->n_sessions; i++)
        if (status->sessions[i]->pages_leased >= least && status->sessions[i]->pages_leased <= most)
            return status->sessions[i]->dying ? 2 : 1;
    return 0;
}

/* A pool of so many pages in a file that is never touched, and a lease of each. */
static int lease_all(void *context)
{
    static int32_t pages[CALL_PAGES];
    const uint64_t plane_bytes = (uint64_t)PAGES * 16;
    int file = memfd_create("leases", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    struct attnd_session *session = e2e_open(context);
    uint32_t memory, pool;

    CHECK(file >= 0 && ftruncate(file, (off_t)(2 * plane_bytes)) == 0);
    CHECK_EQUAL(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    CHECK_OK(attnd_memory_register(session, file, 2 * plane_bytes, &memory));
    const struct attnd_plane k = {memory, 0, 16, 16, 16}, v = {memory, plane_bytes, 16, 16, 16};
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = PAGES,
                                         .page_size = 1,
                                         .heads_kv = 1,
                                         .dim_qk = 16,
                                         .dim_vo = 16,
                                         .dtype = ATTND_DTYPE_FP8_E4M3,
                                         .page_owner = ATTND_PAGES_OF_SERVICE,
                                         .k = &k,
                                         .v = &v};
    CHECK_OK(attnd_pool_create(session, &desc, &pool));
    for (uint32_t i = 0; i < PAGES / CALL_PAGES; i++)
        CHECK_OK(attnd_pages_alloc(session, pool, CALL_PAGES, pages));
    pause();
    return 0;
}

static int all_are_leased(void *context)
{
    Attnd__Status *status = harness_status(context);
    const int leased = has_leases(status, PAGES, PAGES);

    attnd__status__free_unpacked(status, NULL);
    return leased;
}

static void others_are_answered_while_millions_of_leases_are_given_back(void **state)
{
    static const char *const options[] = {"--daemon-memory-max", "2G", NULL};
    int seen = 0, there = 1;

    (void)state;
    harness_start(&harness, options);
    pid_t client = harness_fork(lease_all, &harness);
    harness_eventually(all_are_leased, &harness, 60000, "all pages are leased");
    harness_kill(client);
    while (there) { /* each of these is an answer while some are there still */
        Attnd__Status *status = harness_status(&harness);
        there = status->n_sessions > 0;
        seen += has_leases(status, 1, PAGES - 1) == 2;
        attnd__status__free_unpacked(status, NULL);
    }
    CHECK(seen > 0);
    harness_stop(&harness);
}

static int two_have_all(void *context)
{
    Attnd__Status *status = harness_status(context);
    const int all = status->n_sessions == 2 && status->sessions[0]->pages_leased == PAGES &&
                    status->sessions[1]->pages_leased == PAGES;

    attnd__status__free_unpacked(status, NULL);
    return all;
}

/* Sessions have had the time of the turn when those who said nothing are ended. */
static void a_service_stops_with_much_to_give_back_and_silent_visitors(void **state)
{
    static const char *const options[] = {"--daemon-memory-max", "2G", NULL};
    pid_t clients[2];
    int silent[4];

    (void)state;
    harness_start(&harness, options);
    for (int i = 0; i < 2; i++)
        clients[i] = harness_fork(lease_all, &harness);
    harness_eventually(two_have_all, &harness, 60000, "all pages are leased");
    for (int i = 0; i < 4; i++)
        silent[i] = harness_connect(&harness);
    CHECK_EQUAL(kill(harness.daemon, SIGTERM), 0);
    harness_eventually(harness_has_ended, &harness, 20000, "the service has ended");
    for (int i = 0; i < 4; i++)
        close(silent[i]);
    for (int i = 0; i < 2; i++)
        harness_kill(clients[i]);
    harness_stop(&harness);
}

/* @folder: fd, task. */
static int count_of(const char *folder, pid_t pid)
{
    char path[40];
    int count = 0;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, folder);
    DIR *entries = opendir(path);
    CHECK(entries != NULL);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}

static int register_many(void *context)
{
    struct attnd_session *session = e2e_open(context);
    uint32_t memory;

    for (uint32_t i = 0; i < MEMORIES; i++) {
        int file = memfd_create("memory", MFD_ALLOW_SEALING | MFD_CLOEXEC);
        CHECK(file >= 0 && ftruncate(file, 16 << 20) == 0);
        CHECK_EQUAL(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        CHECK_OK(attnd_memory_register(session, file, 16 << 20, &memory));
        close(file);
    }
    pause();
    return 0;
}

static int has_all_memories(void *context)
{
    Attnd__Status *status = harness_status(context);
    const int all = status->n_sessions == 2 &&
                    status->sessions[0]->n_quota_used > 1 && /* memories are the second kind */
                    status->sessions[0]->quota_used[1] == MEMORIES &&
                    status->sessions[1]->quota_used[1] == MEMORIES;

    attnd__status__free_unpacked(status, NULL);
    return all;
}

static int nothing_is_left(void *context)
{
    Attnd__Status *status = harness_status(&harness);
    const int nothing = status->n_sessions == 0 && status->closing == 0 &&
                        count_of("fd", harness.daemon) <= *(const int *)context;

    attnd__status__free_unpacked(status, NULL);
    return nothing;
}

static void all_memories_of_a_client_that_dies_are_closed(void **state)
{
    static const char *const options[] = {"--host-memory-max", "64G", "--memory-max", "32G", NULL};
    pid_t clients[2];

    (void)state;
    harness_start(&harness, options);
    int before = count_of("fd", harness.daemon);
    for (int i = 0; i < 2; i++)
        clients[i] = harness_fork(register_many, &harness);
    harness_eventually(has_all_memories, &harness, 60000, "all memories are registered");
    for (int i = 0; i < 2; i++)
        harness_kill(clients[i]);
    harness_eventually(nothing_is_left, &before, 60000, "all is closed and nothing is counted");
    harness_stop(&harness);
}

#define COPIES 600
#define SETS 100

/* As many wait for its pipe as there are copies in sets. */
static void wait_many_times(int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int sets[SETS];

    for (int i = 0; i < SETS; i++) {
        sets[i] = epoll_create1(EPOLL_CLOEXEC);
        CHECK(sets[i] >= 0);
    }
    for (int i = 0; i < COPIES; i++) {
        int copy = dup(fd);
        CHECK(copy >= 0);
        for (int j = 0; j < SETS; j++)
            CHECK_EQUAL(epoll_ctl(sets[j], EPOLL_CTL_ADD, copy, &event), 0);
    }
}

/* That a thread wakes this process is told once it does: from the start, where its user owes. */
static int is_told(void)
{
    char line[512], self[32];
    int told = 0;
    FILE *log = fopen(harness.log, "re");

    CHECK(log != NULL);
    snprintf(self, sizeof(self), " pid %d ", (int)getpid());
    while (fgets(line, sizeof(line), log))
        told |= strstr(line, self) && strstr(line, "a thread wakes it from now on");
    (void)fclose(log);
    return told;
}

/* Each is refused, and its completion wakes the one that has asked for it. */
static void be_woken(struct attnd_session *session)
{
    struct attnd_completion done;
    const struct attnd_run_args run = {.size = sizeof(run)};
    const struct attnd_op op = {0};

    CHECK_EQUAL(attnd_arm(session), 0);
    CHECK_OK(attnd_run(session, 1, &run, &op));
    CHECK_EQUAL(attnd_wait(session, &done, 1, ATTND_FOREVER), 1);
    CHECK_EQUAL(done.fault.code, -ATTND_E_UNKNOWN);
}

static void until_a_thread_wakes(struct attnd_session *session)
{
    wait_many_times(session->notify);
    for (int i = 0; i < 5000 && !is_told(); i++)
        be_woken(session);
    CHECK(is_told());
}

static int be_woken_by_a_thread(void *context)
{
    struct attnd_session *session = e2e_open(context);

    until_a_thread_wakes(session);
    for (int i = 0; i < 2; i++) /* it rests in between */
        be_woken(session);
    attnd_close(session);
    return 0;
}

static void one_that_many_wait_for_is_woken_by_a_thread_and_still_woken(void **state)
{
    (void)state;
    harness_start(&harness, NULL);
    CHECK_EQUAL(harness_join(harness_fork(be_woken_by_a_thread, &harness), 60000), 0);
    harness_stop(&harness);
}

struct crew {
    int threads, descriptors;
};

static int no_thread_is_left(void *context)
{
    const struct crew *before = context;

    return nothing_is_left((void *)(uintptr_t)&before->descriptors) &&
           count_of("task", harness.daemon) <= before->threads;
}

/* Runs are under way when it is killed: they end after it. */
static int run_for_ever(void *context)
{
    const struct harness *service = context;
    const struct random_batch batch = e2e_long_batch();
    struct engine engine;
    struct trial trial;

    engine_open(&engine, service->socket, "victim");
    until_a_thread_wakes(engine.session);
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    for (;;) {
        attnd_poke32(engine.session->cq_need, 1);
        if (trial_submit_run(&trial, 0, 0, 0, ATTND_SKIP_SUCCESS))
            harness_sleep_ms(1);
    }
    return 1;
}

static void the_thread_that_wakes_a_client_ends_with_it(void **state)
{
    struct crew before;

    (void)state;
    harness_start(&harness, NULL);
    attnd_close(e2e_open(&harness)); /* threads that are made once are there */
    before = (struct crew){count_of("task", harness.daemon), count_of("fd", harness.daemon)};
    for (int i = 0; i < 3; i++) {
        pid_t client = harness_fork(run_for_ever, &harness);
        harness_eventually(harness_is_busy, &harness, 60000, "runs of the client are under way");
        harness_kill(client);
        harness_eventually(no_thread_is_left, &before, 60000, "its threads and descriptors go");
    }
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(others_are_answered_while_millions_of_leases_are_given_back),
        E2E_OWN_TEST(a_service_stops_with_much_to_give_back_and_silent_visitors),
        E2E_OWN_TEST(all_memories_of_a_client_that_dies_are_closed),
        E2E_OWN_TEST(one_that_many_wait_for_is_woken_by_a_thread_and_still_woken),
        E2E_OWN_TEST(the_thread_that_wakes_a_client_ends_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
