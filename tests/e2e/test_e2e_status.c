/*
 * test_e2e_status.c - attnctl status, for people and as JSON: valid, complete, and true.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/json.h"
#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char text[65536];

static const json_t *status_json(const struct harness *harness)
{
    static const char *const arguments[] = {"status", "--json", NULL};

    CHECK_EQUAL(harness_attnctl(harness, arguments, text, sizeof(text)), 0);
    return json_document(text);
}

static const json_t *session_named(const json_t *status, const char *name)
{
    return json_find(json_object_get(status, "sessions"), "name", name);
}

static void an_idle_service_says_what_it_is(void **state)
{
    const struct harness *harness = *state;
    static const char *const arguments[] = {"status", NULL};
    const json_t *status = status_json(harness);

    CHECK(json_is(status, "backend", e2e_on_gpu() ? "cuda" : "cpu"));
    CHECK(json_is(status, "worker_state", "running"));
    CHECK(json_is(status, "loop", "io_uring") || json_is(status, "loop", "epoll"));
    CHECK(json_text(status, "isa") && json_text(status, "version"));
    CHECK_EQUAL(json_number(status, "worker_pid"), harness_worker(harness));
    CHECK_EQUAL(json_number(status, "worker_restarts"), 0);
    CHECK_EQUAL(json_number(status, "runs"), 0);
    CHECK_EQUAL(json_number(status, "heap_used_bytes"), 0);
    CHECK_EQUAL(json_number(status, "host_memory_bytes"), 0);
    CHECK(json_number(status, "host_memory_max_bytes") > json_number(status, "memory_max_bytes"));
    CHECK(json_number(status, "memory_max_bytes") > 0);
    CHECK(json_number(status, "tile_workers") >= 1);
    if (e2e_on_gpu())
        CHECK(json_text(status, "rates") && json_number(status, "worker_gflops") > 0);
    else
        CHECK(!json_object_get(status, "rates") && !json_object_get(status, "switch_cost_us"));
    CHECK(json_array_size(json_object_get(status, "sessions")) == 0);
    CHECK(json_array_size(json_object_get(status, "pools")) == 0);

    CHECK_EQUAL(harness_attnctl(harness, arguments, text, sizeof(text)), 0);
    CHECK(strstr(text, "attnd ") && strstr(text, "running"));
    CHECK(strstr(text, "on the host, a session up to "));
    CHECK(strstr(text, e2e_on_gpu() ? "backend cuda" : "backend cpu"));
}

static void numbers_are_those_of_what_was_done(void **state)
{
    static const char *const arguments[] = {"status", NULL};
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine one, two;
    struct trial trial;

    engine_open(&one, harness->socket, "one");
    engine_open(&two, harness->socket, "two");
    batch.append = 1;
    batch.shape.service_pool = 1;
    trial_expect(&one, &batch); /* two layers: two appends, two runs */
    trial_expect(&one, &batch);
    trial_begin(&trial, &two, &batch, 0);
    trial_must(&trial, trial_submit(&trial) || trial_judge(&trial));

    const json_t *status = status_json(harness);
    const json_t *first = session_named(status, "one"), *second = session_named(status, "two");
    CHECK(first && second);
    CHECK_EQUAL(json_number(first, "runs"), 4);
    CHECK_EQUAL(json_number(first, "appends"), 4);
    CHECK_EQUAL(json_number(second, "runs"), 2);
    CHECK_EQUAL(json_number(second, "in_flight"), 0);
    CHECK_EQUAL(json_number(second, "plans"), 1);
    CHECK_EQUAL(json_number(second, "pid"), getpid());
    CHECK(json_number(first, "memory_bytes") > 0);
    CHECK_EQUAL(json_number(first, "memory_bytes") + json_number(second, "memory_bytes"),
                json_number(status, "host_memory_bytes"));
    CHECK_EQUAL(json_number(status, "runs"), 6);
    CHECK_EQUAL(json_number(status, "plans"), 2);
    CHECK(json_number(status, "heap_used_bytes") > 0);
    CHECK(json_number(status, "tiles") > 0 && json_number(status, "kv_bytes") > 0);

    double share = json_number(first, "share") + json_number(second, "share");
    CHECK(fabs(share - 1) < 1e-9); /* between them they did everything */
    CHECK(json_number(first, "share") > 0 && json_number(second, "share") > 0);
    CHECK_EQUAL(json_number(first, "busy_ns") + json_number(second, "busy_ns"),
                json_number(status, "busy_ns"));

    const json_t *pool = json_array_get(json_object_get(status, "pools"), 1);
    CHECK_EQUAL(json_array_size(json_object_get(status, "pools")), 2);
    CHECK_EQUAL(json_number(pool, "page_size"), 16);
    CHECK_EQUAL(json_number(pool, "layers"), 2);
    CHECK_EQUAL(json_number(pool, "attached"), 1);
    CHECK_EQUAL(json_number(pool, "pages_leased"), two.pages); /* a service pool: all of them */

    CHECK_EQUAL(harness_attnctl(harness, arguments, text, sizeof(text)), 0);
    CHECK(strstr(text, "one") && strstr(text, "two"));
    trial_end(&trial);
    engine_close(&one);
    engine_close(&two);
}

/* A session may call itself what it likes; the status stays readable by machine and terminal. */
static void a_hostile_name_does_no_harm(void **state)
{
    static const char *const arguments[] = {"status", NULL};
    const struct harness *harness = *state;
    struct engine engine;

    engine_open(&engine, harness->socket, "a\"b\\c\x1b[31m\xff\xc3\n\x01");
    CHECK(json_array_size(json_object_get(status_json(harness), "sessions")) == 1);
    CHECK_EQUAL(harness_attnctl(harness, arguments, text, sizeof(text)), 0);
    CHECK(!strchr(text, '\x1b') && !strchr(text, '\x01'));
    engine_close(&engine);
    engine_open(&engine, harness->socket,
                "a name that is far longer than anybody would want to see in a table of sessions");
    CHECK(json_array_size(json_object_get(status_json(harness), "sessions")) == 1);
    engine_close(&engine);
}

static int another_worker_runs(void *harness)
{
    const json_t *status = status_json(harness);

    return json_number(status, "worker_restarts") == 1 &&
           json_is(status, "worker_state", "running");
}

/* Plans of one service are made with the same rates, whoever of its workers executes them. */
static void rates_that_are_given_are_those_of_every_worker(void **state)
{
    static const char *const options[] = {"--rates=5200,60,61,4400", NULL};
    static const char *const arguments[] = {"status", NULL};
    struct harness harness;

    (void)state;
    harness_start(&harness, options);
    for (uint32_t deaths = 0; deaths < 2; deaths++) {
        const json_t *status = status_json(&harness);
        CHECK_EQUAL(json_number(status, "worker_restarts"), deaths);
        CHECK(json_is(status, "rates", "given"));
        CHECK_EQUAL(json_number(status, "worker_gflops"), 5200);
        CHECK_EQUAL(json_number(status, "worker_gbps"), 60);
        CHECK_EQUAL(json_number(status, "worker_l2_gbps"), 61);
        CHECK_EQUAL(json_number(status, "memory_gbps"), 4400);
        CHECK_EQUAL(harness_attnctl(&harness, arguments, text, sizeof(text)), 0);
        CHECK(strstr(text, "rates    given: "));
        if (deaths)
            break;
        CHECK_EQUAL(kill(harness_worker(&harness), SIGKILL), 0);
        harness_eventually(another_worker_runs, &harness, 5000, "a new worker runs");
    }
    harness_stop(&harness);
}

static void without_a_service_attnctl_says_so(void **state)
{
    static const char *const status[] = {"status", NULL}, *const unknown[] = {"dance", NULL};
    struct harness *harness = *state;

    CHECK_EQUAL(harness_attnctl(harness, unknown, text, sizeof(text)), 1);
    harness_kill_daemon(harness);
    CHECK_EQUAL(harness_attnctl(harness, status, text, sizeof(text)), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(an_idle_service_says_what_it_is),
        E2E_TEST(numbers_are_those_of_what_was_done),
        E2E_TEST(a_hostile_name_does_no_harm),
        cmocka_unit_test(rates_that_are_given_are_those_of_every_worker),
        E2E_TEST(without_a_service_attnctl_says_so),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
