/*
 * test_e2e_priority.c - what the threads of the service ask of the scheduler.
 *
 * What comes of it is a figure (bench/safety.c). Here: the loop is more urgent than tiles, tiles
 * are more urgent than large plans, and a new worker begins like the one before.
 */
#include "client/attnd.h"
#include "schemas/timeslice.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/one_page.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LARGE_REQUESTS (1 << 17)
#define ENDLESS_PAGES 2048
#define PAGE_TOKENS (1u << 20)
#define WAIT_NS 20000000000u

/* The thread of @process that is called @name. Return: 0 if there is none. */
static pid_t thread_called(pid_t process, const char *name)
{
    char path[300], comm[32] = "";
    pid_t found = 0;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)process);
    DIR *threads = opendir(path);
    CHECK(threads != NULL);
    for (const struct dirent *entry; !found && (entry = readdir(threads));) {
        snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", (int)process, entry->d_name);
        FILE *file = fopen(path, "r");
        if (file && fgets(comm, sizeof(comm), file) && strncmp(comm, name, strlen(name)) == 0)
            found = (pid_t)strtol(entry->d_name, NULL, 10);
        if (file)
            fclose(file);
    }
    closedir(threads);
    return found;
}

static struct attnd_timeslice slice_of(pid_t thread)
{
    struct attnd_timeslice slice = {0};

    CHECK(thread > 0);
    CHECK_OK(attnd_timeslice_get(thread, &slice));
    return slice;
}

static int nicer_by(int steps)
{
    const int nice = slice_of(getpid()).nice + steps;

    return nice < ATTND_NICE_MAX ? nice : ATTND_NICE_MAX;
}

static int has_nice_tiles(void *context)
{
    const pid_t tiles = thread_called(*(const pid_t *)context, "tiles");
    return tiles > 0 && slice_of(tiles).nice == nicer_by(ATTND_TIMESLICE_TILES_NICE);
}

/* A thread asks as soon as it begins, which may be a little later. */
static void await_nice_tiles(pid_t worker)
{
    harness_eventually(has_nice_tiles, &worker, 5000, "the threads of tiles are nicer");
}

static void open_plan(const struct harness *harness, struct attnd_session **session,
                      uint32_t page_size, uint32_t requests, struct one_page *own)
{
    const struct attnd_open_args open = {
        .size = sizeof(open), .socket_path = harness->socket, .arena_bytes = 32u << 20};
    const uint32_t pages = requests > ENDLESS_PAGES ? requests : ENDLESS_PAGES;

    CHECK_OK(attnd_open(&open, session));
    CHECK_OK(one_page_make(*session, page_size, requests, pages, 8192, own));
}

static void set_and_wait(struct attnd_session *session, uint32_t plan,
                         const struct attnd_level *level)
{
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = level};
    struct attnd_completion done = {0};

    CHECK_OK(attnd_plan_set(session, plan, &batch, NULL));
    CHECK_EQUAL(attnd_wait(session, &done, 1, WAIT_NS), 1);
    CHECK_EQUAL(done.fault.code, 0);
}

/* A set that the planner's thread fills: from then on it is there. */
static void plan_much(const struct harness *harness)
{
    static int32_t indptr[LARGE_REQUESTS + 1], ones[LARGE_REQUESTS], pages[LARGE_REQUESTS];
    const struct attnd_level level = {LARGE_REQUESTS, indptr, indptr, pages, ones};
    struct attnd_session *session;
    struct one_page own;

    for (int32_t i = 0; i < LARGE_REQUESTS; i++) {
        indptr[i + 1] = i + 1;
        ones[i] = 1;
    }
    open_plan(harness, &session, 16, LARGE_REQUESTS, &own);
    set_and_wait(session, own.plan, &level);
    attnd_close(session);
}

static void the_loop_is_more_urgent_than_tiles_and_tiles_than_large_plans(void **state)
{
    const struct harness *harness = *state;

    if (e2e_on_gpu())
        skip(); /* its tiles are not threads */
    plan_much(harness);
    const struct attnd_timeslice loop = slice_of(harness->daemon),
                                 planner = slice_of(thread_called(harness->daemon, "planner"));

    await_nice_tiles(harness_worker(harness));
    CHECK_EQUAL(planner.nice, nicer_by(ATTND_TIMESLICE_PLANS_NICE));
    if (nicer_by(0) == 0 && geteuid() == 0)
        CHECK_EQUAL(loop.nice, ATTND_TIMESLICE_RAISED_NICE);
    else
        CHECK(loop.nice <= nicer_by(0));
    if (loop.runtime_ns == 0)
        return; /* this kernel knows nothing of slices */
    CHECK_EQUAL(loop.runtime_ns, ATTND_TIMESLICE_BRIEF_NS);
    CHECK_EQUAL(planner.runtime_ns, ATTND_TIMESLICE_LONG_NS);
}

struct look {
    pid_t tiles;
    uint64_t runtime_ns;
};

static int has_slices(void *context)
{
    const struct look *look = context;
    return slice_of(look->tiles).runtime_ns == look->runtime_ns;
}

/* All threads of the worker are on items of 2^31 keys, and then on none. */
static void a_thread_that_computes_for_long_makes_way_until_it_rests(void **state)
{
    static const int32_t qo_indptr[] = {0, 1}, page[ENDLESS_PAGES],
                         kv_indptr[] = {0, ENDLESS_PAGES}, last = PAGE_TOKENS - 1;
    static const struct attnd_level level = {1, qo_indptr, kv_indptr, page, &last};
    const struct harness *harness = *state;
    struct attnd_session *session;
    struct one_page own;

    if (e2e_on_gpu() || slice_of(harness->daemon).runtime_ns == 0)
        skip();
    struct look look = {.tiles = thread_called(harness_worker(harness), "tiles"),
                        .runtime_ns = ATTND_TIMESLICE_BRIEF_NS};
    harness_eventually(has_slices, &look, 5000, "a thread that rests is urgent when it wakes up");
    open_plan(harness, &session, PAGE_TOKENS, 1, &own);
    set_and_wait(session, own.plan, &level);
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {own.memory, 0}, .o = {own.memory, 4096}};
    for (uint16_t lane = 0; lane < 8; lane++) {
        const struct attnd_op op = {.lane = lane};
        CHECK_OK(attnd_run(session, own.plan, &run, &op));
    }
    look.runtime_ns = ATTND_TIMESLICE_LONG_NS;
    harness_eventually(has_slices, &look, 5000, "one that computes for long asks for long slices");
    attnd_close(session);
    look.runtime_ns = ATTND_TIMESLICE_BRIEF_NS;
    harness_eventually(has_slices, &look, 5000, "and is urgent again when it has rested");
}

struct replaced {
    const struct harness *harness;
    pid_t before;
};

static int is_replaced(void *context)
{
    const struct replaced *own = context;
    Attnd__Status *status = harness_status(own->harness);
    const pid_t now = (pid_t)status->worker_pid;

    attnd__status__free_unpacked(status, NULL);
    return now > 0 && now != own->before;
}

/* It is forked by the loop, which is more urgent than it may be. */
static void a_new_worker_inherits_nothing_of_the_loop(void **state)
{
    const struct harness *harness = *state;
    struct replaced own = {.harness = harness, .before = harness_worker(harness)};

    if (e2e_on_gpu())
        skip();
    CHECK_EQUAL(kill(own.before, SIGKILL), 0);
    harness_eventually(is_replaced, &own, 10000, "there is another worker");
    const pid_t worker = harness_worker(harness);
    CHECK_EQUAL(slice_of(worker).nice, nicer_by(0));
    await_nice_tiles(worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(the_loop_is_more_urgent_than_tiles_and_tiles_than_large_plans),
        E2E_TEST(a_thread_that_computes_for_long_makes_way_until_it_rests),
        E2E_TEST(a_new_worker_inherits_nothing_of_the_loop),
    };
    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
