/*
 * test_e2e_operations.c - a configuration file, SIGHUP, and how sessions end, of a service that
 * runs.
 */
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/json.h"

#include "client/attnd.h"
#include "schemas/errors.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char text[65536], config[64];
static struct harness harness;

static int setup(void **state)
{
    (void)state;
    snprintf(config, sizeof(config), "/tmp/attnd-test-%d.conf", (int)getpid());
    return 0;
}

static int teardown(void **state)
{
    (void)unlink(config);
    return harness_end_all(state);
}

static void write_config(const char *lines)
{
    FILE *file = fopen(config, "we");
    CHECK(file && fputs(lines, file) >= 0 && fclose(file) == 0);
}

static int check_config(void)
{
    const char *const argv[] = {"attnd", "--config",       config, "--heap",
                                "64M",   "--check-config", NULL};
    return harness_program(&harness, argv, text, sizeof(text));
}

static void start(const char *lines)
{
    const char *const options[] = {"--config", config, "--heap", "64M", NULL};
    write_config(lines);
    harness_start(&harness, options);
}

/* The log has a line with @part. */
static int log_says(void *part)
{
    int found = 0;
    FILE *log = fopen(harness.log, "re");
    while (log && !found && fgets(text, sizeof(text), log))
        found = strstr(text, part) != NULL;
    if (log)
        (void)fclose(log);
    return found;
}

static void await_log(const char *part)
{
    harness_eventually(log_says, (void *)(uintptr_t)part, 5000, part);
}

static const json_t *setting(const char *name)
{
    static const char *const arguments[] = {"status", "--json", NULL};
    CHECK_EQUAL(harness_attnctl(&harness, arguments, text, sizeof(text)), 0);
    return json_find(json_object_get(json_document(text), "settings"), "name", name);
}

static void values_in_force_are_told_with_their_origin(void **state)
{
    (void)state;
    start("# budgets\nmemory-max = 128M ; of one session\nheap = 32M\ntrust = yes\n");
    CHECK(json_is(setting("memory-max"), "value", "134217728"));
    CHECK(json_is(setting("memory-max"), "origin", "file"));
    CHECK(json_is(setting("heap"), "value", "67108864")); /* the command line goes first */
    CHECK(json_is(setting("heap"), "origin", "command line"));
    CHECK(json_is(setting("trust"), "value", "yes"));
    CHECK(json_is(setting("sms"), "origin", "default"));
    CHECK_EQUAL(check_config(), 0);
    CHECK(strstr(text, "memory-max = 134217728 ; file\n"));
    CHECK(strstr(text, "heap = 67108864 ; command line\n"));
    CHECK(strstr(text, "watchdog = 3 ; default\n"));
    harness_stop(&harness);
}

static void a_wrong_file_is_refused(void **state)
{
    static const char *const wrong[] = {"memory-max = much\n",
                                        "memory_max = 1G\n",
                                        "trust = on\n",
                                        "[other]\nheap = 1G\n",
                                        "heap\n",
                                        "config = /x\n",
                                        "version = yes\n",
                                        "allow-uid = no-such-user-here\n"};
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_config(wrong[i]);
        CHECK_EQUAL(check_config(), 1);
    }
    (void)unlink(config);
    CHECK_EQUAL(check_config(), 1);
}

static int make_memory(struct attnd_session *session, uint64_t bytes)
{
    uint32_t memory;
    void *address;
    return attnd_memory_create(session, bytes, &memory, &address);
}

static void sighup_changes_budgets_and_ends_nothing(void **state)
{
    struct attnd_fault fault;
    (void)state;
    start("memory-max = 64M\n");
    struct attnd_session *session = e2e_open(&harness);
    CHECK_OK(make_memory(session, 32u << 20));
    write_config("memory-max = 16M\nheap = 32M\nwatchdog = 9\n");
    CHECK_EQUAL(kill(harness.daemon, SIGHUP), 0);
    await_log("memory-max is now 16777216, was 67108864");
    await_log("watchdog is now 9 in the file, from the next start on");
    CHECK_EQUAL(make_memory(session, 1u << 20), -ATTND_E_NO_MEMORY); /* it has more already */
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.limit, 0);
    write_config("memory-max = 128M\n");
    CHECK_EQUAL(kill(harness.daemon, SIGHUP), 0);
    await_log("memory-max is now 134217728, was 16777216");
    CHECK_OK(make_memory(session, 64u << 20));
    attnd_close(session);
    harness_stop(&harness);
}

static void a_file_that_is_wrong_by_now_changes_nothing(void **state)
{
    (void)state;
    start("memory-max = 64M\n");
    write_config("memory-max = 16M\nlog-level = loud\n");
    CHECK_EQUAL(kill(harness.daemon, SIGHUP), 0);
    await_log("nothing is changed: ");
    CHECK(json_is(setting("memory-max"), "value", "67108864"));
    harness_stop(&harness);
}

static int serve_stranger(void *context)
{
    struct attnd_completion done;
    (void)context;
    CHECK_EQUAL(setuid(65533), 0);
    struct attnd_session *session = e2e_open(&harness);
    const int rc = attnd_wait(session, &done, 1, ATTND_FOREVER);
    attnd_close(session);
    return rc == -ATTND_E_DISCONNECTED ? 0 : 2;
}

static mode_t mode_of_socket(void)
{
    struct stat file;
    CHECK_EQUAL(stat(harness.socket, &file), 0);
    return file.st_mode & 0777;
}

static void users_come_and_go_with_the_file(void **state)
{
    (void)state;
    if (getuid() != 0)
        skip(); /* nobody else can become another user */
    start("allow-uid = root\n");
    CHECK_EQUAL(mode_of_socket(), 0600);
    CHECK_EQUAL(chmod(harness.directory, 0755), 0);
    write_config("allow-uid = 0\nallow-uid = 65533\n");
    CHECK_EQUAL(kill(harness.daemon, SIGHUP), 0);
    await_log("allow-uid is now 0 65533, was 0");
    struct attnd_session *session = e2e_open(&harness);
    CHECK_EQUAL(mode_of_socket(), 0666);
    pid_t stranger = harness_fork(serve_stranger, NULL);
    await_log("session 2: ");
    write_config("allow-uid = 0\n");
    CHECK_EQUAL(kill(harness.daemon, SIGHUP), 0);
    CHECK_EQUAL(harness_join(stranger, 10000), 0); /* ended, and 1 is not */
    CHECK_OK(make_memory(session, 4096));
    attnd_close(session);
    harness_stop(&harness);
}

static void the_service_managers_watchdog_is_fed(void **state)
{
    char notice[64] = "";
    (void)state;
    CHECK_EQUAL(setenv("WATCHDOG_USEC", "900000", 1), 0);
    harness_start(&harness, NULL);
    CHECK_EQUAL(unsetenv("WATCHDOG_USEC"), 0);
    struct pollfd readable = {.fd = harness.notify, .events = POLLIN};
    for (int i = 0; i < 2; i++) { /* and again */
        CHECK_EQUAL(poll(&readable, 1, 10000), 1);
        notice[0] = 0;
        CHECK(recv(harness.notify, notice, sizeof(notice) - 1, 0) > 0);
        CHECK(!strncmp(notice, "WATCHDOG=1", 10));
    }
    harness_stop(&harness);
}

/* ---- how sessions end ---- */

static _Noreturn int exit_with_7(void *context)
{
    (void)e2e_open(&harness);
    (void)context;
    _exit(7);
}

static _Noreturn int wait_for_ever(void *context)
{
    (void)e2e_open(&harness);
    harness_say(context, 1);
    for (;;)
        pause();
}

static void the_log_says_how_a_session_ended_and_when(void **state)
{
    static const char *const kill_it[] = {"kill", "4", NULL};
    uint32_t *word = harness_shared(sizeof(*word));
    unsigned year = 0, month = 0, day = 0;
    (void)state;
    harness_start(&harness, NULL);
    attnd_close(e2e_open(&harness));
    await_log("(unnamed) is gone: closed");
    pid_t child = harness_fork(exit_with_7, NULL);
    await_log("(unnamed) is gone: exited with status 7");
    harness_kill(child);
    child = harness_fork(wait_for_ever, word);
    harness_await(word, 1);
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    await_log("(unnamed) is gone: was killed by signal 9");
    harness_kill(child); /* not before: older kernels tell only until then */
    struct attnd_session *session = e2e_open(&harness);
    CHECK_EQUAL(harness_attnctl(&harness, kill_it, text, sizeof(text)), 0);
    await_log("(unnamed) is gone: was ended: user ");
    CHECK_EQUAL(sscanf(text, "%4u-%2u-%2uT", &year, &month, &day), 3);
    CHECK(year > 2000 && month >= 1 && month <= 12 && day >= 1 && day <= 31);
    attnd_close(session);
    harness_stop(&harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(values_in_force_are_told_with_their_origin),
        TEST(a_wrong_file_is_refused),
        TEST(sighup_changes_budgets_and_ends_nothing),
        TEST(a_file_that_is_wrong_by_now_changes_nothing),
        TEST(users_come_and_go_with_the_file),
        TEST(the_service_managers_watchdog_is_fed),
        TEST(the_log_says_how_a_session_ended_and_when),
#undef TEST
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
