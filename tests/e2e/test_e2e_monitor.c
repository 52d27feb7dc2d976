/*
 * test_e2e_monitor.c - attnctl monitor: what happens is told in order, to those whom it concerns,
 * and a reader that is slow loses events and not the service's time.
 */
#include "tests/support/harness/e2e.h"

#include "client/attnd.h"
#include "schemas/abi.h"
#include "service/base/monitor.h"
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

#define STRANGER 65533u /* a user that nobody is */
#define NO_PLAN 77u

static char text[262144];

struct reader {
    const struct harness *harness;
    uint64_t next;
    uint32_t session;
    int faults, begun;
    uint64_t lost;
    Attnd__Reply *reply;
};

static const Attnd__MonitorReply *ask(struct reader *reader)
{
    Attnd__MonitorQuery query = ATTND__MONITOR_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;

    query.next = reader->next;
    query.has_next = reader->begun;
    query.session = reader->session;
    query.has_session = reader->session != 0;
    query.faults = query.has_faults = reader->faults;
    request.call_case = ATTND__REQUEST__CALL_MONITOR;
    request.monitor = &query;
    if (reader->reply)
        attnd__reply__free_unpacked(reader->reply, NULL);
    CHECK_EQUAL(attnctl_ask(reader->harness->socket, &request, &reader->reply), 0);
    CHECK_EQUAL(reader->reply->code, 0);
    CHECK_EQUAL(reader->reply->result_case, ATTND__REPLY__RESULT_MONITOR);
    reader->next = reader->reply->monitor->next;
    reader->lost += reader->reply->monitor->lost;
    reader->begun = 1;
    return reader->reply->monitor;
}

static void forget(struct reader *reader)
{
    attnd__reply__free_unpacked(reader->reply, NULL);
    reader->reply = NULL;
}

/* An operation that is refused when its turn comes. */
static void fail_once(struct attnd_session *session, uint64_t user_data)
{
    const struct attnd_op op = {.user_data = user_data};
    struct attnd_run_args args = {.size = sizeof(args)};
    struct attnd_completion done;

    CHECK_OK(attnd_run(session, NO_PLAN, &args, &op));
    CHECK_EQUAL(attnd_wait(session, &done, 1, ATTND_FOREVER), 1);
    CHECK_EQUAL(done.fault.code, -ATTND_E_UNKNOWN);
}

/* ---- what is told ---- */

struct seen {
    struct reader reader;
    size_t wanted;
    Attnd__MonitorEvent events[16];
    char texts[16][64];
    size_t count;
};

static int has_seen(void *context)
{
    struct seen *seen = context;
    const Attnd__MonitorReply *reply = ask(&seen->reader);

    for (size_t i = 0; i < reply->n_events && seen->count < 16; i++, seen->count++) {
        seen->events[seen->count] = *reply->events[i];
        snprintf(seen->texts[seen->count], 64, "%s",
                 reply->events[i]->text ? reply->events[i]->text : "");
    }
    return seen->count >= seen->wanted;
}

static void the_life_of_a_session_is_told_in_its_order(void **state)
{
    struct harness *harness = *state;
    struct seen seen = {.reader = {.harness = harness}, .wanted = 4};
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = harness->socket, .name = "one"};
    struct attnd_session *session;

    CHECK_EQUAL(ask(&seen.reader)->n_events, 0); /* from now on */
    CHECK_OK(attnd_open(&args, &session));
    fail_once(session, 0xbeef);
    CHECK_ERROR(attnd_plan_destroy(session, 99), ATTND_E_UNKNOWN);
    attnd_close(session);
    harness_eventually(has_seen, &seen, 5000, "four events");
    CHECK_EQUAL(seen.count, 4);
    CHECK_EQUAL(seen.reader.lost, 0);

    const Attnd__MonitorEvent *event = seen.events;
    CHECK_EQUAL(event[0].kind, ATTND__MONITOR_KIND__MONITOR_OPENED);
    CHECK(strcmp(seen.texts[0], "one") == 0 && event[0].pid == (uint32_t)getpid());
    CHECK_EQUAL(event[1].kind, ATTND__MONITOR_KIND__MONITOR_OPERATION);
    CHECK_EQUAL(event[1].opcode, ATTND_OP_RUN);
    CHECK_EQUAL(event[1].plan, NO_PLAN);
    CHECK_EQUAL(event[1].user_data, 0xbeef);
    CHECK_EQUAL(event[1].code, -ATTND_E_UNKNOWN);
    CHECK_EQUAL(event[1].field, ATTND_F_PLAN);
    CHECK_EQUAL(event[2].kind, ATTND__MONITOR_KIND__MONITOR_REFUSED);
    CHECK(strcmp(seen.texts[2], "plan_destroy") == 0 && event[2].code == -ATTND_E_UNKNOWN);
    CHECK_EQUAL(event[3].kind, ATTND__MONITOR_KIND__MONITOR_ENDED);
    CHECK(strcmp(seen.texts[3], "closed") == 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(event[i].session, event[0].session);
    for (int i = 1; i < 4; i++)
        CHECK(event[i].time_ns >= event[i - 1].time_ns);
    forget(&seen.reader);
}

static void the_death_of_the_worker_is_told(void **state)
{
    struct harness *harness = *state;
    struct seen seen = {.reader = {.harness = harness}, .wanted = 2};

    ask(&seen.reader);
    CHECK_EQUAL(kill(harness_worker(harness), SIGKILL), 0);
    harness_eventually(has_seen, &seen, 10000, "its end, and the next one");
    CHECK(seen.events[0].kind == ATTND__MONITOR_KIND__MONITOR_WORKER &&
          strstr(seen.texts[0], "signal 9"));
    CHECK(seen.events[1].kind == ATTND__MONITOR_KIND__MONITOR_WORKER &&
          strcmp(seen.texts[1], "runs") == 0);
    forget(&seen.reader);
}

static void a_reader_that_is_slow_learns_how_many_events_it_lost(void **state)
{
    const struct harness *harness = *state;
    struct attnd_session *session = e2e_open(harness);
    struct reader slow = {.harness = harness};
    const uint64_t more = ATTND_MONITOR_EVENTS + 1000;
    uint64_t seen = 0, begin;

    ask(&slow);
    begin = slow.next;
    for (uint64_t i = 0; i < more; i++)
        fail_once(session, i);
    do { /* as long as it takes: an answer has room for some only */
        const Attnd__MonitorReply *reply = ask(&slow);
        for (size_t i = 0; i < reply->n_events; i++, seen++)
            CHECK_EQUAL(reply->events[i]->user_data, slow.lost + seen);
    } while (slow.next < begin + more);
    CHECK_EQUAL(slow.lost, 1000);
    CHECK_EQUAL(seen, ATTND_MONITOR_EVENTS);
    attnd_close(session);
    forget(&slow);
}

static void a_reader_sees_one_session_or_only_what_went_wrong(void **state)
{
    const struct harness *harness = *state;
    struct attnd_session *first = e2e_open(harness), *second = e2e_open(harness);
    struct attnd_info info = {.size = sizeof(info)};
    struct reader all = {.harness = harness};
    struct attnd_completion done;

    CHECK_OK(attnd_info(second, &info));
    ask(&all);
    struct reader one = all, faults = all;
    one.reply = faults.reply = NULL;
    one.session = info.session;
    faults.faults = 1;
    fail_once(first, 1);
    fail_once(second, 2);
    CHECK_OK(attnd_cancel(second, 3)); /* of nothing: it goes well */
    (void)attnd_wait(second, &done, 1, 0);
    fail_once(second, 4);
    CHECK(ask(&all)->n_events >= 3);
    const Attnd__MonitorReply *reply = ask(&one);
    CHECK(reply->n_events >= 2 && reply->n_events < all.reply->monitor->n_events);
    for (size_t i = 0; i < reply->n_events; i++)
        CHECK_EQUAL(reply->events[i]->session, info.session);
    reply = ask(&faults);
    CHECK_EQUAL(reply->n_events, 3);
    for (size_t i = 0; i < 3; i++)
        CHECK_EQUAL(reply->events[i]->code, -ATTND_E_UNKNOWN);
    attnd_close(first);
    attnd_close(second);
    forget(&all);
    forget(&one);
    forget(&faults);
}

/* ---- to whom ---- */

static int watch_as_stranger(void *context)
{
    struct reader reader = {.harness = context, .begun = 1};

    CHECK_EQUAL(setuid(STRANGER), 0);
    struct attnd_session *session = e2e_open(context);
    fail_once(session, 5);
    const Attnd__MonitorReply *reply = ask(&reader);
    CHECK(reply->n_events == 2); /* its own session opened, and its own operation */
    for (size_t i = 0; i < reply->n_events; i++)
        CHECK(reply->events[i]->session == 2);
    attnd_close(session);
    forget(&reader);
    return 0;
}

static void others_see_their_own_sessions_only(void **state)
{
    static const char *const options[] = {"--allow-uid", "0", "--allow-uid", "65533", NULL};
    static struct harness harness;
    struct reader reader = {.harness = &harness};

    (void)state;
    if (getuid() != 0)
        skip(); /* nobody else can become another user */
    harness_start(&harness, options);
    CHECK_EQUAL(chmod(harness.directory, 0755), 0);
    ask(&reader);
    struct attnd_session *session = e2e_open(&harness);
    fail_once(session, 1);
    CHECK_EQUAL(harness_join(harness_fork(watch_as_stranger, &harness), 10000), 0);
    CHECK(ask(&reader)->n_events >= 4); /* root sees both */
    attnd_close(session);
    forget(&reader);
    harness_stop(&harness);
}

/* ---- the command ---- */

static int run_command(void *context)
{
    static const char *const arguments[] = {"monitor", "--count", "1", "--faults", NULL};

    CHECK_EQUAL(harness_attnctl(context, arguments, text, sizeof(text)), 0);
    CHECK(strstr(text, "session 1: run, lane 0, plan 77, tag 0x7, "));
    CHECK(strstr(text, ": ATTND_E_UNKNOWN: plan is 77"));
    CHECK(strchr(text, '\n') == text + strlen(text) - 1);
    return 0;
}

static void the_command_prints_a_line_for_each_event(void **state)
{
    struct harness *harness = *state;
    struct attnd_session *session = e2e_open(harness);
    pid_t command = harness_fork(run_command, harness);
    int status = 0;

    do /* it sees none that was before it came */
        fail_once(session, 7);
    while (harness_reap(command, 20, &status) == 0);
    CHECK_EQUAL(status, 0);
    attnd_close(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(the_life_of_a_session_is_told_in_its_order),
        E2E_TEST(the_death_of_the_worker_is_told),
        E2E_TEST(a_reader_that_is_slow_learns_how_many_events_it_lost),
        E2E_TEST(a_reader_sees_one_session_or_only_what_went_wrong),
        E2E_OWN_TEST(others_see_their_own_sessions_only),
        E2E_TEST(the_command_prints_a_line_for_each_event),
    };
    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
