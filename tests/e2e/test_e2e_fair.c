/*
 * test_e2e_fair.c - sessions beside each other: one that takes all it can holds nobody up.
 *
 * The greedy session has runs of 2^31 keys, which take hours, on every lane, or sets of very many
 * requests. The small one has a batch of one row and one page.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/json.h"
#include "tests/support/harness/one_page.h"

#include "client/attnd.h"
#include "schemas/abi.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE_TOKENS (1u << 20)
#define ENDLESS_PAGES 2048
#define LARGE_REQUESTS (1 << 17)
#define WAIT_NS 20000000000u

struct tenant {
    struct attnd_session *session;
    struct one_page own;
};

static void tenant_open(struct tenant *tenant, const struct harness *harness, const char *name,
                        uint32_t page_size, uint32_t capacity)
{
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .socket_path = harness->socket,
                                         .name = name,
                                         .arena_bytes = 32u << 20};
    const uint32_t pages = capacity > ENDLESS_PAGES ? capacity : ENDLESS_PAGES;

    CHECK_OK(attnd_open(&args, &tenant->session));
    CHECK_OK(one_page_make(tenant->session, page_size, capacity, pages, 8192, &tenant->own));
}

static struct attnd_completion tenant_wait(const struct tenant *tenant)
{
    struct attnd_completion done = {0};
    CHECK_EQUAL(attnd_wait(tenant->session, &done, 1, WAIT_NS), 1);
    return done;
}

/* One row, @pages times page 0. */
static void submit_set(const struct tenant *tenant, int32_t pages, int32_t last_page_len)
{
    static const int32_t qo_indptr[] = {0, 1}, page[ENDLESS_PAGES];
    const int32_t kv_indptr[] = {0, pages};
    const struct attnd_level level = {1, qo_indptr, kv_indptr, page, &last_page_len};
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = &level};
    CHECK_OK(attnd_plan_set(tenant->session, tenant->own.plan, &batch, NULL));
}

static void must_set(const struct tenant *tenant, int32_t pages, int32_t last_page_len)
{
    submit_set(tenant, pages, last_page_len);
    CHECK_EQUAL(tenant_wait(tenant).fault.code, 0);
}

static void submit_run(const struct tenant *tenant, uint16_t lane, uint32_t timeout_us)
{
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {tenant->own.memory, 0}, .o = {tenant->own.memory, 4096}};
    const struct attnd_op op = {.lane = lane, .user_data = lane, .timeout_us = timeout_us};
    CHECK_OK(attnd_run(tenant->session, tenant->own.plan, &run, &op));
}

/* As many requests of one row and one key. */
static void submit_large_set(const struct tenant *tenant)
{
    static int32_t indptr[LARGE_REQUESTS + 1], ones[LARGE_REQUESTS], pages[LARGE_REQUESTS];
    const struct attnd_level level = {LARGE_REQUESTS, indptr, indptr, pages, ones};
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = &level};
    for (int32_t i = 0; i < LARGE_REQUESTS; i++) {
        indptr[i + 1] = i + 1;
        ones[i] = 1;
    }
    CHECK_OK(attnd_plan_set(tenant->session, tenant->own.plan, &batch, NULL));
}

static int idle(void *context)
{
    Attnd__Status *status = harness_status(context);
    const int is = status->queue_runs == 0 && status->n_sessions == 0;
    attnd__status__free_unpacked(status, NULL);
    return is;
}

static void submit_endless(const struct tenant *greedy)
{
    must_set(greedy, ENDLESS_PAGES, PAGE_TOKENS - 1);
    for (uint16_t lane = 0; lane < ATTND_LANES_MAX; lane++)
        submit_run(greedy, lane, 0);
}

/* Endless runs on all lanes, under way. */
static void be_greedy(const struct tenant *greedy, struct harness *harness)
{
    submit_endless(greedy);
    harness_eventually(harness_is_busy, harness, 5000, "an endless run is with the worker");
}

static void a_small_run_is_answered_beside_endless_ones(void **state)
{
    struct harness *harness = *state;
    struct tenant greedy, small;

    if (e2e_on_gpu())
        skip(); /* its loops do not make way yet */
    tenant_open(&greedy, harness, "greedy", PAGE_TOKENS, 1);
    tenant_open(&small, harness, "small", 16, 1);
    be_greedy(&greedy, harness);
    for (int i = 0; i < 50; i++) {
        must_set(&small, 1, 16);
        submit_run(&small, 0, 0);
        CHECK_EQUAL(tenant_wait(&small).fault.code, 0);
    }
    attnd_close(small.session);
    attnd_close(greedy.session);
    harness_eventually(idle, harness, 10000, "nothing of them is left");
}

static void a_deadline_is_answered_when_it_passes(void **state)
{
    enum { ATTEMPTS = 200, TIMEOUT_US = 20000, LATE_US = 10000 };
    struct harness *harness = *state;
    struct tenant tenant;
    uint64_t best_ns = UINT64_MAX;

    if (e2e_on_gpu())
        skip();
    tenant_open(&tenant, harness, "late", PAGE_TOKENS, 1);
    must_set(&tenant, ENDLESS_PAGES, PAGE_TOKENS - 1);
    /* Other programs run, too. */
    for (int i = 0; i < ATTEMPTS && best_ns > (TIMEOUT_US + LATE_US) * 1000ull; i++) {
        const uint64_t from_ns = harness_now_ns();
        submit_run(&tenant, 0, TIMEOUT_US);
        CHECK_EQUAL(tenant_wait(&tenant).fault.code, -ATTND_E_TIMEOUT);
        const uint64_t ns = harness_now_ns() - from_ns;
        best_ns = ns < best_ns ? ns : best_ns;
    }
    CHECK(best_ns >= TIMEOUT_US * 1000ull);
    CHECK(best_ns <= (TIMEOUT_US + LATE_US) * 1000ull);
    attnd_close(tenant.session);
}

struct forked {
    struct harness *harness;
    uint32_t *ready;
    int plans;
};

static int greedy_client(void *context)
{
    struct forked *own = context;
    struct tenant greedy;

    tenant_open(&greedy, own->harness, "greedy", PAGE_TOKENS, own->plans ? LARGE_REQUESTS : 1);
    if (!own->plans)
        be_greedy(&greedy, own->harness);
    for (int i = 0; i < 4 && own->plans; i++)
        submit_large_set(&greedy);
    harness_say(own->ready, 1);
    for (;;)
        (void)pause();
    return 0;
}

static void what_a_dead_client_ran_ends_with_it(void **state)
{
    struct harness *harness = *state;
    struct forked own = {.harness = harness, .ready = harness_shared(sizeof(uint32_t))};

    if (e2e_on_gpu())
        skip();
    pid_t pid = harness_fork(greedy_client, &own);
    harness_await(own.ready, 1);
    harness_kill(pid);
    harness_eventually(idle, harness, 5000, "nothing of it is left");
}

/* In the order of submission it would be: the large one first. */
static void a_small_batch_is_not_planned_behind_a_large_one(void **state)
{
    enum { ATTEMPTS = 10 };
    const struct harness *harness = *state;
    struct tenant large, small;
    int first = 0;

    tenant_open(&large, harness, "large", 16, LARGE_REQUESTS);
    tenant_open(&small, harness, "small", 16, 1);
    submit_large_set(&large); /* its memory is there from now on */
    CHECK_EQUAL(tenant_wait(&large).fault.code, 0);
    for (int i = 0; i < ATTEMPTS; i++) {
        submit_large_set(&large);
        submit_set(&small, 1, 16);
        const struct attnd_completion soon = tenant_wait(&small), late = tenant_wait(&large);
        CHECK_EQUAL(soon.fault.code, 0);
        CHECK_EQUAL(late.fault.code, 0);
        CHECK(late.begin_ns < late.end_ns);
        first += soon.end_ns < late.end_ns;
    }
    CHECK(first > ATTEMPTS / 2);
    attnd_close(large.session);
    attnd_close(small.session);
}

/* Behind the set in its lane, and in another lane beside it. */
static void runs_of_a_plan_that_is_being_planned_come_after_that(void **state)
{
    enum { ROUNDS = 5 };
    const struct harness *harness = *state;
    struct tenant tenant;

    tenant_open(&tenant, harness, "lanes", 16, LARGE_REQUESTS);
    CHECK_OK(attnd_memory_release(tenant.session, tenant.own.memory) == -ATTND_E_BUSY ? 0 : -1);
    for (int i = 0; i < ROUNDS; i++) {
        struct attnd_completion done[3];
        int seen[3] = {0};
        submit_large_set(&tenant);
        submit_run(&tenant, 0, 0); /* o is too small for so many rows, which only the plan knows */
        submit_run(&tenant, 1, 0);
        for (int d = 0; d < 3; d++) {
            done[d] = tenant_wait(&tenant);
            const int set = done[d].operation == ATTND_PLAN_SET;
            CHECK_EQUAL(done[d].fault.code, set ? 0 : -ATTND_E_RANGE);
            seen[set ? 2 : done[d].lane]++;
            CHECK(set || seen[2] == 1);
        }
        CHECK(seen[0] == 1 && seen[1] == 1);
    }
    attnd_close(tenant.session);
}

static void a_client_that_dies_while_it_is_planned_for_leaves_nothing(void **state)
{
    enum { ROUNDS = 5 };
    struct harness *harness = *state;
    struct forked own = {.harness = harness, .plans = 1};

    for (int i = 0; i < ROUNDS; i++) {
        own.ready = harness_shared(sizeof(uint32_t));
        pid_t pid = harness_fork(greedy_client, &own);
        harness_await(own.ready, 1);
        harness_kill(pid);
        harness_eventually(idle, harness, 10000, "nothing of it is left");
    }
    Attnd__Status *status = harness_status(harness);
    CHECK_EQUAL(status->heap_used_bytes, 0);
    attnd__status__free_unpacked(status, NULL);
}

/* In order: harness_stop() would say if it did not. */
static void a_service_ends_while_it_plans(void **state)
{
    struct harness *harness = *state;
    struct tenant tenant;

    tenant_open(&tenant, harness, "last", 16, LARGE_REQUESTS);
    for (int i = 0; i < 4; i++)
        submit_large_set(&tenant);
    harness_stop(harness);
    attnd_close(tenant.session);
}

static void attnctl_weighs_sessions(void **state)
{
    const struct harness *harness = *state;
    static const char *const status[] = {"status", "--json", NULL};
    static char text[65536];
    char number[16];
    struct tenant tenant;

    tenant_open(&tenant, harness, "heavy", 16, 1);
    CHECK_EQUAL(harness_attnctl(harness, status, text, sizeof(text)), 0);
    const json_t *session =
        json_find(json_object_get(json_document(text), "sessions"), "name", "heavy");
    CHECK_EQUAL(json_number(session, "weight"), 1);
    snprintf(number, sizeof(number), "%.0f", (double)json_number(session, "session"));
    const char *const weigh[] = {"weight", number, "8", NULL};
    const char *const wrong[] = {"weight", number, "1001", NULL};
    const char *const nobody[] = {"weight", "0", "8", NULL};
    const char *const half[] = {"weight", number, NULL};
    CHECK_EQUAL(harness_attnctl(harness, weigh, text, sizeof(text)), 0);
    CHECK_EQUAL(harness_attnctl(harness, wrong, text, sizeof(text)), 4);
    CHECK_EQUAL(harness_attnctl(harness, nobody, text, sizeof(text)), 1);
    CHECK_EQUAL(harness_attnctl(harness, half, text, sizeof(text)), 1);
    CHECK_EQUAL(harness_attnctl(harness, status, text, sizeof(text)), 0);
    session = json_find(json_object_get(json_document(text), "sessions"), "name", "heavy");
    CHECK_EQUAL(json_number(session, "weight"), 8);
    attnd_close(tenant.session);
}

enum { EQUAL_RUNS = 48, HEAVY = 8 };

static void weigh(const struct harness *harness, const struct tenant *tenant, const char *weight)
{
    struct attnd_info info = {.size = sizeof(info)};
    char number[16], text[1024];
    const char *const arguments[] = {"weight", number, weight, NULL};

    CHECK_OK(attnd_info(tenant->session, &info));
    snprintf(number, sizeof(number), "%u", info.session);
    CHECK_EQUAL(harness_attnctl(harness, arguments, text, sizeof(text)), 0);
}

static void await_all(const struct tenant *tenant, uint64_t end_ns[EQUAL_RUNS])
{
    for (int i = 0; i < EQUAL_RUNS; i++) {
        const struct attnd_completion done = tenant_wait(tenant);
        CHECK_EQUAL(done.fault.code, 0);
        end_ns[i] = done.end_ns;
    }
}

static int by_time(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int all_are_queued(void *context)
{
    Attnd__Status *status = harness_status(context);
    const uint32_t runs = status->queue_runs;
    attnd__status__free_unpacked(status, NULL);
    return runs == 2 * EQUAL_RUNS;
}

/* Equal runs of both, all of them with the worker: when half of the heavy one's are over, the other
 * has had an eighth of as many. Not when all are: the last may be with a thread that has no
 * processor. Those of the heavy one are there first, because on a GPU a run takes as long as to
 * submit one. */
static void a_session_has_time_by_its_weight(void **state)
{
    struct harness *harness = *state;
    struct tenant heavy, light;
    uint64_t heavy_ns[EQUAL_RUNS], light_ns[EQUAL_RUNS];
    int before = 0;

    tenant_open(&heavy, harness, "heavy", 16, 1);
    tenant_open(&light, harness, "light", 16, 1);
    must_set(&heavy, ENDLESS_PAGES, 16);
    must_set(&light, ENDLESS_PAGES, 16);
    weigh(harness, &heavy, "8");
    const pid_t worker = e2e_on_gpu() ? 0 : e2e_hold_worker(harness);
    for (int i = 0; i < EQUAL_RUNS; i++)
        submit_run(&heavy, (uint16_t)i, 0);
    for (int i = 0; i < EQUAL_RUNS; i++)
        submit_run(&light, (uint16_t)i, 0);
    if (worker) {
        harness_eventually(all_are_queued, harness, 10000, "all runs are with the worker");
        e2e_let_go(worker);
    }
    await_all(&heavy, heavy_ns);
    await_all(&light, light_ns);
    qsort(heavy_ns, EQUAL_RUNS, sizeof(heavy_ns[0]), by_time);
    for (int i = 0; i < EQUAL_RUNS; i++)
        before += light_ns[i] <= heavy_ns[EQUAL_RUNS / 2 - 1];
    print_message("%d runs of the light session while the heavy one had %d\n", before,
                  EQUAL_RUNS / 2);
    CHECK(before <= 4 * EQUAL_RUNS / 2 / HEAVY);
    attnd_close(light.session);
    attnd_close(heavy.session);
}

/* Its runs are answered: the worker is not killed, which would answer nothing. */
static int run_endlessly(void *context)
{
    struct tenant greedy;
    int answered = 0;

    tenant_open(&greedy, context, "greedy", PAGE_TOKENS, 1);
    submit_endless(&greedy); /* the service stops when they are under way */
    while (!answered) {
        const struct attnd_completion done = tenant_wait(&greedy);
        answered = done.fault.code == -ATTND_E_CANCELLED;
        CHECK(answered || done.fault.code == 0);
    }
    return 0;
}

static void what_runs_without_end_is_cancelled_when_the_service_stops(void **state)
{
    static struct harness harness;

    (void)state;
    if (e2e_on_gpu())
        skip(); /* its loops end by themselves */
    harness_start(&harness, NULL);
    pid_t client = harness_fork(run_endlessly, &harness);
    harness_eventually(harness_is_busy, &harness, 20000, "an endless run is with the worker");
    CHECK_EQUAL(kill(harness.daemon, SIGTERM), 0);
    CHECK_EQUAL(harness_join(client, 20000), 0);
    harness_eventually(harness_has_ended, &harness, 20000, "the service has stopped");
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(a_small_run_is_answered_beside_endless_ones),
        E2E_TEST(a_deadline_is_answered_when_it_passes),
        E2E_TEST(what_a_dead_client_ran_ends_with_it),
        E2E_TEST(a_small_batch_is_not_planned_behind_a_large_one),
        E2E_TEST(runs_of_a_plan_that_is_being_planned_come_after_that),
        E2E_TEST(a_client_that_dies_while_it_is_planned_for_leaves_nothing),
        E2E_TEST(a_service_ends_while_it_plans),
        E2E_OWN_TEST(what_runs_without_end_is_cancelled_when_the_service_stops),
        E2E_TEST(attnctl_weighs_sessions),
        E2E_TEST(a_session_has_time_by_its_weight),
    };
    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
