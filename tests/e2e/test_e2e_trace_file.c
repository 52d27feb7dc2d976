/*
 * test_e2e_trace_file.c - attnctl trace: what was executed meanwhile is a file that Perfetto reads.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/json.h"
#include "tests/support/harness/traced.h"

#include "service/ctl/attnctl.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char path[512];

static int run_command(void *context)
{
    static const char *const arguments[] = {"trace", "--seconds", "0.5", "--output", path, NULL};
    char nothing[64];

    CHECK_EQUAL(harness_attnctl(context, arguments, nothing, sizeof(nothing)), 0);
    CHECK_EQUAL(nothing[0], 0);
    return 0;
}

struct slice {
    double begin, end;
};

static int by_begin(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

/* Perfetto draws slices of a track as a stack: each lies within the one below or beside it. */
static void check_stack(struct slice *slices, size_t count)
{
    double open[16];
    size_t depth = 0;

    qsort(slices, count, sizeof(*slices), by_begin);
    for (size_t i = 0; i < count; i++) {
        while (depth && open[depth - 1] <= slices[i].begin + 1e-3)
            depth--;
        CHECK(!depth || slices[i].end <= open[depth - 1] + 1e-3);
        CHECK(depth < 16);
        open[depth++] = slices[i].end;
    }
}

static void check_event(const json_t *event, const char *session_name, uint32_t session)
{
    CHECK(json_number(event, "pid") >= 1 && json_number(event, "tid") >= 1);
    if (json_is(event, "ph", "M"))
        return;
    CHECK(json_is(event, "ph", "X"));
    CHECK(strstr(json_text(event, "name"), session_name));
    CHECK(json_is(event, "cat", "compute-bound") || json_is(event, "cat", "memory-bound"));
    CHECK(json_number(event, "ts") > 0 && json_number(event, "dur") >= 0);
    CHECK_EQUAL((uint32_t)json_number(json_object_get(event, "args"), "session"), session);
}

/* Slices of a track. Return: how many; its name is among the events as well. */
static size_t slices_of(const json_t *events, double pid, double tid, struct slice *slices)
{
    size_t count = 0, names = 0, index;
    const json_t *event;

    json_array_foreach(events, index, event)
    {
        if (json_number(event, "pid") != pid || json_number(event, "tid") != tid)
            continue;
        names += (size_t)json_is(event, "name", "thread_name");
        if (!json_is(event, "ph", "X"))
            continue;
        const double begin = json_number(event, "ts");
        slices[count++] = (struct slice){begin, begin + json_number(event, "dur")};
    }
    CHECK_EQUAL(names, count > 0);
    return count;
}

static void check_file(uint32_t session)
{
    char name[64];
    size_t index, slices_count = 0, tracks = 0;
    const json_t *event;
    json_t *document = json_load_file(path, 0, NULL);
    CHECK(document);
    const json_t *events = json_object_get(document, "traceEvents");
    struct slice *slices = calloc(json_array_size(events) + 1, sizeof(*slices));

    CHECK(slices && json_array_size(events) > 0);
    (void)snprintf(name, sizeof(name), "session %u", session);
    json_array_foreach(events, index, event)
    {
        check_event(event, name, session);
        if (!json_is(event, "name", "thread_name"))
            continue;
        const size_t count =
            slices_of(events, json_number(event, "pid"), json_number(event, "tid"), slices);
        check_stack(slices, count);
        slices_count += count;
        tracks++;
    }
    const json_t *other = json_object_get(document, "otherData");
    CHECK(tracks > 0 && slices_count > 0);
    CHECK_EQUAL(json_number(other, "items"), slices_count);
    CHECK_EQUAL(json_number(other, "lost"), 0);
    CHECK(json_number(other, "layer_busy_ns") > 0);
    CHECK_EQUAL(json_number(other, "layer_together_ns"), 0); /* there is one session */
    free(slices);
    json_decref(document);
}

/* In place of the file there is a link then, which leads where nothing is made. */
static void expect_file_of_its_owner(const struct harness *harness)
{
    const char *const arguments[] = {"trace", "--output", path, NULL};
    struct stat file;
    char output[64];

    CHECK(stat(path, &file) == 0 && (file.st_mode & 0777) == 0600);
    CHECK(unlink(path) == 0 && symlink("trace-elsewhere", path) == 0);
    CHECK_EQUAL(harness_attnctl(harness, arguments, output, sizeof(output)), ATTNCTL_EXIT_USAGE);
    CHECK(stat(path, &file) < 0 && unlink(path) == 0);
}

static void the_command_writes_a_timeline_whose_slices_nest(void **state)
{
    struct harness *harness = *state;
    const struct random_batch batch = traced_batch();
    struct traced_times times;
    struct engine engine;
    struct trial trial;
    int status = 0;

    (void)snprintf(path, sizeof(path), "%s/trace.json", harness->directory);
    engine_open(&engine, harness->socket, "drawn");
    trial_begin(&trial, &engine, &batch, 0);
    CHECK_OK(trial_submit_set(&trial, 0, 0));
    CHECK_EQUAL(trial_await(&trial), 0);
    const pid_t tracing = harness_fork(run_command, harness);
    do
        traced_run(&trial, &times);
    while (harness_reap(tracing, 0, &status) == 0);
    CHECK_EQUAL(status, 0);
    check_file(traced_session(engine.session));
    expect_file_of_its_owner(harness);
    trial_end(&trial);
    engine_close(&engine);
}

static void a_time_or_a_file_that_cannot_be_is_refused(void **state)
{
    static const char *const wrong[][4] = {
        {"trace", "--seconds=0", NULL},   {"trace", "--seconds=x", NULL},
        {"trace", "--seconds=nan", NULL}, {"trace", "--seconds=4000", NULL},
        {"trace", "--session=0", NULL},   {"trace", "--output=/nowhere/at/all", NULL}};
    char output[64];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK_EQUAL(harness_attnctl(*state, wrong[i], output, sizeof(output)), ATTNCTL_EXIT_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(the_command_writes_a_timeline_whose_slices_nest),
        E2E_TEST(a_time_or_a_file_that_cannot_be_is_refused),
    };
    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
