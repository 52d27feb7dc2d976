/*
 * test_e2e_operators.c - attnctl top, latency, ping, metrics and kill on a service that works.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/json.h"
#include "tests/support/trial/trial.h"

#include "client/attnd.h"
#include "schemas/errors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define STRANGER 65533u /* a user that nobody is */

static char text[262144];

static const json_t *json_of(const struct harness *harness, const char *command, const char *option)
{
    const char *const arguments[] = {command, "--json", option, NULL};

    CHECK_EQUAL(harness_attnctl(harness, arguments, text, sizeof(text)), 0);
    return json_document(text);
}

static double counted(const json_t *histogram)
{
    const json_t *buckets = json_object_get(histogram, "buckets");
    double count = 0;

    for (size_t i = 0; i < json_array_size(buckets); i++)
        count += json_number(json_array_get(buckets, i), "count");
    return count;
}

static void every_run_that_ended_well_is_in_the_histograms(void **state)
{
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "one");
    for (int i = 0; i < 3; i++)
        trial_expect(&engine, &batch); /* two layers: two runs */
    const json_t *latency = json_of(harness, "latency", NULL);
    const json_t *all = json_object_get(latency, "latency");
    const json_t *work = json_object_get(latency, "duration");
    const json_t *session = json_find(json_object_get(latency, "sessions"), "name", "one");
    CHECK_EQUAL(counted(all), 6);
    CHECK_EQUAL(counted(work), 6);
    CHECK_EQUAL(counted(json_object_get(session, "latency")), 6);
    CHECK(json_number(all, "sum_ns") >= json_number(work, "sum_ns")); /* waiting is in it */
    CHECK(json_number(work, "sum_ns") > 0);
    CHECK(json_number(all, "p99") >= json_number(all, "p50") && json_number(all, "p50") > 0);
    engine_close(&engine);
}

static void top_tells_what_happened_between_two_looks_and_not_since_birth(void **state)
{
    static const char *const table[] = {"top", "--once", "--interval", "0.01", NULL};
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness->socket, "idle now");
    trial_expect(&engine, &batch);
    const json_t *top = json_of(harness, "top", "--once");
    const json_t *row = json_array_get(json_object_get(top, "sessions"), 0);
    CHECK(json_is(row, "name", "idle now"));
    CHECK(json_number(top, "seconds") >= 1); /* as the default interval */
    CHECK(json_number(row, "runs_per_s") == 0 && json_number(row, "share") == 0);
    CHECK(json_number(row, "p50_ns") == 0 && json_number(row, "memory_bytes") > 0);
    CHECK_EQUAL(harness_attnctl(harness, table, text, sizeof(text)), 0);
    CHECK(strstr(text, "runs/s") && strstr(text, "idle now"));
    engine_close(&engine);
}

static void ping_says_that_the_worker_moves(void **state)
{
    const json_t *ping = json_of(*state, "ping", NULL);

    CHECK(json_number(ping, "status_ns") > 0 && json_number(ping, "heartbeat_ns") > 0);
}

static int line_is(const char *line)
{
    const char *at = strstr(text, line);
    return at && (at == text || at[-1] == '\n') && at[strlen(line)] == '\n';
}

static void metrics_are_text_that_counts_runs_and_faults_by_code(void **state)
{
    static const char *const arguments[] = {"metrics", NULL};
    const struct harness *harness = *state;
    struct attnd_run_args wrong = {.size = sizeof(wrong)};
    struct random_batch batch = e2e_batch();
    struct attnd_completion done;
    struct engine engine;

    engine_open(&engine, harness->socket, "a\"b\\c");
    trial_expect(&engine, &batch);
    CHECK_OK(attnd_run(engine.session, 77, &wrong, NULL));
    CHECK_EQUAL(attnd_wait(engine.session, &done, 1, ATTND_FOREVER), 1);
    CHECK_EQUAL(done.fault.code, -ATTND_E_UNKNOWN);
    CHECK_EQUAL(harness_attnctl(harness, arguments, text, sizeof(text)), 0);
    CHECK(line_is("attnd_runs_total 2"));
    CHECK(line_is("# TYPE attnd_run_latency_seconds histogram"));
    CHECK(line_is("attnd_run_latency_seconds_count 2"));
    CHECK(line_is("attnd_run_latency_seconds_bucket{le=\"+Inf\"} 2"));
    CHECK(line_is("attnd_faults_total{code=\"ATTND_E_UNKNOWN\"} 1"));
    CHECK(line_is("attnd_session_runs_total{session=\"1\",name=\"a\\\"b\\\\c\"} 2"));
    CHECK(line_is("attnd_worker_restarts_total 0"));
    engine_close(&engine);
}

/* Four requests of one row each share a prefix of 64 keys, of 2 heads of K and V of 64 elements. */
static void what_a_cascade_saves_is_counted(void **state)
{
    static const char *const arguments[] = {"metrics", NULL};
    const struct harness *harness = *state;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    batch.levels = 2;
    batch.level[0] = (struct random_level){.requests = 1, .entry = {{4, {64}}}};
    batch.level[1] =
        (struct random_level){.requests = 4, .entry = {{1, {1}}, {1, {20}}, {1, {33}}, {1, {16}}}};
    engine_open(&engine, harness->socket, "cascade");
    trial_expect(&engine, &batch); /* two layers: two runs */
    CHECK_EQUAL(harness_attnctl(harness, arguments, text, sizeof(text)), 0);
    const int saved_bytes = 2 * (4 - 1) * 64 * 2 * (64 + 64) * 2;
    char line[96];
    snprintf(line, sizeof(line), "attnd_kv_shared_bytes_total %d", saved_bytes);
    CHECK(line_is(line));
    snprintf(line, sizeof(line),
             "attnd_session_kv_shared_bytes_total{session=\"1\",name=\"cascade\"} %d", saved_bytes);
    CHECK(line_is(line));
    engine_close(&engine);
}

/* ---- kill ---- */

static int session_is_gone(void *context)
{
    Attnd__Status *status = harness_status(context);
    const int gone = status->n_sessions == 0;

    attnd__status__free_unpacked(status, NULL);
    return gone;
}

static void a_killed_session_is_gone_and_its_engine_learns_of_it(void **state)
{
    static const char *const one[] = {"kill", "1", NULL}, *const bare[] = {"kill", NULL};
    static const char *const other[] = {"kill", "2", NULL}, *const word[] = {"kill", "x", NULL};
    struct harness *harness = *state;
    struct attnd_session *session = e2e_open(harness);
    struct attnd_completion done;

    CHECK_EQUAL(harness_attnctl(harness, bare, text, sizeof(text)), 1);
    CHECK_EQUAL(harness_attnctl(harness, word, text, sizeof(text)), 1);
    CHECK_EQUAL(harness_attnctl(harness, other, text, sizeof(text)), 4); /* there is none */
    CHECK_EQUAL(harness_attnctl(harness, one, text, sizeof(text)), 0);
    CHECK_EQUAL(attnd_wait(session, &done, 1, ATTND_FOREVER), -ATTND_E_DISCONNECTED);
    harness_eventually(session_is_gone, harness, 5000, "the session is gone");
    CHECK_EQUAL(harness_attnctl(harness, one, text, sizeof(text)), 4);
    attnd_close(session);
}

struct stranger {
    const struct harness *harness;
    const char *session;
};

/* By another user, whom the service admits. Return: what attnctl kill returned. */
static int kill_as_stranger(const struct stranger *stranger)
{
    const char *const arguments[] = {"kill", stranger->session, NULL};

    return harness_attnctl_as(stranger->harness, STRANGER, arguments, text, sizeof(text));
}

static int open_as_stranger(void *context)
{
    const struct stranger *stranger = context;
    struct attnd_completion done;

    CHECK_EQUAL(setuid(STRANGER), 0);
    struct attnd_session *session = e2e_open(stranger->harness);
    const int rc = attnd_wait(session, &done, 1, ATTND_FOREVER);
    attnd_close(session);
    return rc == -ATTND_E_DISCONNECTED ? 0 : 2;
}

static int stranger_is_there(void *context)
{
    Attnd__Status *status = harness_status(context);
    const int there = status->n_sessions == 2 && status->sessions[1]->uid == STRANGER;

    attnd__status__free_unpacked(status, NULL);
    return there;
}

static void a_user_ends_own_sessions_only(void **state)
{
    static const char *const options[] = {"--allow-uid", "0", "--allow-uid", "65533", NULL};
    static struct harness harness;
    struct stranger stranger = {&harness, "1"};

    (void)state;
    if (getuid() != 0)
        skip(); /* nobody else can become another user */
    harness_start(&harness, options);
    CHECK_EQUAL(chmod(harness.directory, 0755), 0);
    struct attnd_session *session = e2e_open(&harness);
    pid_t other = harness_fork(open_as_stranger, &stranger);
    harness_eventually(stranger_is_there, &harness, 5000, "the stranger has a session");
    CHECK_EQUAL(kill_as_stranger(&stranger), 4);
    stranger.session = "2";
    CHECK_EQUAL(kill_as_stranger(&stranger), 0);
    CHECK_EQUAL(harness_join(other, 10000), 0);
    Attnd__Status *status = harness_status(&harness);
    CHECK_EQUAL(status->sessions[0]->session, 1); /* untouched */
    attnd__status__free_unpacked(status, NULL);
    attnd_close(session);
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(every_run_that_ended_well_is_in_the_histograms),
        E2E_TEST(top_tells_what_happened_between_two_looks_and_not_since_birth),
        E2E_TEST(ping_says_that_the_worker_moves),
        E2E_TEST(metrics_are_text_that_counts_runs_and_faults_by_code),
        E2E_TEST(what_a_cascade_saves_is_counted),
        E2E_TEST(a_killed_session_is_gone_and_its_engine_learns_of_it),
        E2E_OWN_TEST(a_user_ends_own_sessions_only),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
