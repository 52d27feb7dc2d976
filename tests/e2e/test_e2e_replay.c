/* test_e2e_replay.c - attnd-replay as its user runs it: exit status, last line, and what it leaves
 * behind, which is nothing. The program's private service gets its directory in ours, so that we
 * see what stays; we adopt its orphans, so that we see who stays. */
#include "tests/support/harness/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ARGUMENTS_MAX 40
#define TIMEOUT_MS 50000u

static char directory[] = "/tmp/attnd-test-XXXXXX";
static char program[PATH_MAX], attnd[PATH_MAX], output_path[PATH_MAX], errors_path[PATH_MAX];
static char output[1 << 16], errors[1 << 16];

static void find_programs(void)
{
    const char *folder = getenv("ATTND_BIN");
    char own[PATH_MAX] = "";

    if (!folder) {
        ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 16);

        assert_true(length > 0);
        snprintf(strrchr(own, '/'), 8, "/../..");
        folder = own;
    }
    snprintf(program, sizeof(program), "%.4000s/bench/attnd-replay", folder);
    snprintf(attnd, sizeof(attnd), "%.4000s/attnd", folder);
    snprintf(output_path, sizeof(output_path), "%s/output", directory);
    snprintf(errors_path, sizeof(errors_path), "%s/errors", directory);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(directory) || prctl(PR_SET_CHILD_SUBREAPER, 1) ||
        setenv("XDG_RUNTIME_DIR", directory, 1))
        return -1;
    find_programs();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(output_path);
    unlink(errors_path);
    return rmdir(directory); /* fails if anything else was left in it */
}

/* The arguments after the program's name, up to NULL. */
static pid_t start(const char *const *arguments)
{
    const char *argv[ARGUMENTS_MAX] = {program, "--spawn", "--attnd", attnd};
    pid_t parent = getpid(), pid;
    int count = 4;

    while (*arguments && count < ARGUMENTS_MAX - 1)
        argv[count++] = *arguments++;
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        int out = open(output_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int err = open(errors_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        harness_die_with(parent);
        if (dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0)
            execv(program, (char *const *)argv);
        _exit(127);
    }
    return pid;
}

static void read_whole(const char *path, char *text, size_t text_bytes)
{
    FILE *file = fopen(path, "re");

    assert_non_null(file);
    text[fread(text, 1, text_bytes - 1, file)] = 0;
    fclose(file);
}

/* Waits for the program and for processes that it left to us. Return: its wait status. */
static int finish(pid_t pid)
{
    int status = 0;

    assert_int_equal(harness_reap(pid, TIMEOUT_MS, &status), 1);
    /* What it started has ended before it: there is nobody left to adopt. */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    read_whole(output_path, output, sizeof(output));
    read_whole(errors_path, errors, sizeof(errors));
    return status;
}

static int run(const char *const *arguments)
{
    int status = finish(start(arguments));

    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status))
        print_message("%s", errors);
    return WEXITSTATUS(status);
}

/* What it prints, and nothing else: the caller's. */
static json_t *report_of(const char *const arguments[])
{
    json_error_t error;

    assert_int_equal(run(arguments), 0);
    json_t *report = json_loads(output, JSON_REJECT_DUPLICATES, &error);
    if (!report)
        fail_msg("%s in: %s", error.text, output);
    return report;
}

/* "verified N rows, 0 mismatches" in @text, and nothing behind it. Return: N. */
static unsigned long verified_rows_of(const char *text)
{
    const char *line = strstr(text, "verified ");
    char expected[64];
    unsigned long rows;

    if (!line) {
        fail_msg("no last line; it wrote: %s%s", output, errors);
        return 0;
    }
    rows = strtoul(line + strlen("verified "), NULL, 10);
    snprintf(expected, sizeof(expected), "verified %lu rows, 0 mismatches\n", rows);
    assert_string_equal(line, expected);
    return rows;
}

static unsigned long verified_rows(void)
{
    return verified_rows_of(output);
}

#define SMALL "--engines", "2", "--layers", "2", "--limit", "6", "--max-context", "1024"

static void formats_and_modes_replay_without_a_mismatch(void **state)
{
    static const char *const traces[] = {"bench/traces/sample.jsonl", "bench/traces/sample.csv"};
    static const char *const modes[] = {"shared", "disaggregated"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *const arguments[] = {"--trace", traces[i], "--mode", modes[i], SMALL, NULL};

        assert_int_equal(run(arguments), 0);
        assert_true(verified_rows() > 100);
    }
}

/* The decode engines' service has a pool of its own, which is at times too full for what comes. */
static void pages_brought_from_service_to_service_replay_without_a_mismatch(void **state)
{
    const char *const arguments[] = {"--trace",    "bench/traces/sample.jsonl",
                                     "--mode",     "disaggregated",
                                     "--services", "2",
                                     "--engines",  "4",
                                     "--layers",   "2",
                                     "--limit",    "16",
                                     "--samples",  "8",
                                     "--pool-mib", "24",
                                     "--json",     "-",
                                     NULL};
    json_int_t handed_over = 0, brought = 0;

    (void)state;
    json_t *report = report_of(arguments);
    assert_int_equal(json_unpack(report, "{s:{s:{s:I, s:I}}}", "cache_service", "total",
                                 "handover_bytes", &handed_over, "handover_bytes_brought",
                                 &brought),
                     0);
    assert_true(brought > 0 && brought == handed_over);
    json_decref(report);
    assert_true(verified_rows_of(errors) > 1000);
}

static void two_services_are_refused_where_one_would_do(void **state)
{
    static const char *const arguments[] = {"--trace", "bench/traces/sample.jsonl", "--services",
                                            "2", NULL};

    (void)state;
    assert_int_equal(run(arguments), 64);
}

static void unusual_shapes_replay_without_a_mismatch(void **state)
{
    const char *const arguments[] = {"--trace",     "bench/traces/sample.jsonl",
                                     "--dtype",     "fp16",
                                     "--heads",     "6/3",
                                     "--head-dim",  "128",
                                     "--page-size", "7",
                                     "--chunk",     "33",
                                     "--batch",     "3",
                                     "--samples",   "8",
                                     SMALL,         NULL};

    (void)state;
    assert_int_equal(run(arguments), 0);
    assert_true(verified_rows() > 100);
}

/* Two replays in one: the second shares nothing, so it must read more. Standard output is JSON from
 * its first byte to its last; people read the rest on standard error. */
static void a_comparison_says_what_sharing_saves(void **state)
{
    const char *const arguments[] = {
        "--trace", "bench/traces/sample.jsonl", "--compare", "none", "--json", "-", SMALL, NULL};
    json_int_t shared = 0, apart = 0;

    (void)state;
    json_t *report = report_of(arguments);
    assert_int_equal(json_unpack(report, "{s:{s:{s:I}}, s:{s:{s:I}}}", "cache_service", "total",
                                 "kv_bytes_read", &shared, "cache_none", "total", "kv_bytes_read",
                                 &apart),
                     0);
    assert_true(shared > 0 && shared < apart);
    json_decref(report);
    assert_non_null(strstr(errors, "hit rate"));
    assert_non_null(strstr(errors, "prefix bytes saved, reading"));
    assert_non_null(strstr(errors, "\nCascade read "));
    assert_true(verified_rows_of(errors) > 200);
}

static void an_unreadable_line_is_refused_with_its_number_or_skipped(void **state)
{
    char path[PATH_MAX], expected[PATH_MAX];
    const char *const strict[] = {"--trace", path, "--layers", "1", NULL};
    const char *const lenient[] = {"--trace", path, "--layers", "1", "--skip-bad", NULL};
    FILE *file;

    (void)state;
    snprintf(path, sizeof(path), "%s/trace", directory);
    snprintf(expected, sizeof(expected), "%.4000s:3: ", path);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00,40,30\noops\n"
          "2026-01-01 00:00:00,30,20\n",
          file);
    fclose(file);
    assert_int_equal(run(strict), 2);
    assert_non_null(strstr(errors, expected));
    assert_int_equal(run(lenient), 0);
    assert_non_null(strstr(errors, "line 3 skipped"));
    assert_true(verified_rows() > 0);
    unlink(path);
}

static void a_file_that_cannot_be_written_is_refused_before_the_replay(void **state)
{
    static const char *const arguments[] = {"--trace", "bench/traces/sample.jsonl", "--layers", "1",
                                            "--json",  "/nowhere/figures",          NULL};

    (void)state;
    assert_int_not_equal(run(arguments), 0);
    assert_non_null(strstr(errors, "--json: /nowhere/figures: No such file or directory"));
    assert_null(strstr(output, "verified"));
}

/* ---- what ends in the middle ---- */

#define ENDLESS "--trace", "bench/traces/sample.jsonl", "--engines", "3", "--layers", "64"

static pid_t child_of(pid_t parent, const char *name)
{
    char path[64], children[4096] = "", comm[64];
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", parent, parent);
    read_whole(path, children, sizeof(children));
    for (char *at = strtok(children, " "); at; at = strtok(NULL, " ")) {
        snprintf(path, sizeof(path), "/proc/%s/comm", at);
        file = fopen(path, "re");
        if (!file)
            continue;
        comm[0] = 0;
        if (fgets(comm, sizeof(comm), file))
            comm[strcspn(comm, "\n")] = 0;
        fclose(file);
        if (!strcmp(comm, name))
            return (pid_t)atoi(at);
    }
    return 0;
}

struct family {
    pid_t replay, daemon, worker, engine;
};

static int is_complete(void *context)
{
    struct family *family = context;

    family->daemon = child_of(family->replay, "attnd");
    family->engine = child_of(family->replay, "attnd-replay");
    family->worker = family->daemon ? child_of(family->daemon, "attnd-worker") : 0;
    return family->engine && family->worker;
}

static int has_run(void *context)
{
    const struct family *family = context;
    struct harness harness = {.daemon = family->daemon};
    char path[64], line[4096] = "";
    uint64_t runs = 0;

    snprintf(path, sizeof(path), "/proc/%d/cmdline", family->daemon);
    read_whole(path, line, sizeof(line)); /* attnd --socket PATH ... */
    const char *option = line + strlen(line) + 1;
    assert_string_equal(option, "--socket");
    snprintf(harness.socket, sizeof(harness.socket), "%s", option + strlen(option) + 1);
    Attnd__Status *status = harness_status(&harness);
    for (size_t i = 0; i < status->n_sessions; i++)
        runs += status->sessions[i]->runs;
    attnd__status__free_unpacked(status, NULL);
    return runs > 0;
}

/* A replay that has begun to compute. */
static struct family start_endless(void)
{
    static const char *const arguments[] = {ENDLESS, NULL};
    struct family family = {.replay = start(arguments)};

    harness_eventually(is_complete, &family, 10000, "engines and worker run");
    harness_eventually(has_run, &family, 10000, "a run is over");
    return family;
}

static void a_signal_leaves_nothing_behind(void **state)
{
    static const int signals[] = {SIGINT, SIGTERM};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct family family = start_endless();
        int status;

        assert_int_equal(kill(family.replay, signals[i]), 0);
        status = finish(family.replay);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), signals[i]);
    }
    /* tear_down sees whether a directory or a socket has stayed */
}

static void a_dead_daemon_is_an_error_and_not_a_hang(void **state)
{
    struct family family = start_endless();
    uint64_t killed_ns;
    int status;

    (void)state;
    assert_int_equal(kill(family.daemon, SIGKILL), 0);
    killed_ns = harness_now_ns();
    assert_int_equal(harness_reap(family.replay, TIMEOUT_MS, &status), 1);
    assert_true(harness_now_ns() - killed_ns < 3000000000u);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    /* The worker is ours now: it ends with its daemon, but not before us. */
    while (harness_reap(-1, 10000, &status) == 1) {
    }
}

static void a_dead_engine_is_an_error(void **state)
{
    struct family family = start_endless();
    int status;

    (void)state;
    assert_int_equal(kill(family.engine, SIGKILL), 0);
    status = finish(family.replay);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    assert_non_null(strstr(errors, "ended by signal 9"));
}

static void a_worker_killed_in_the_middle_changes_no_answer(void **state)
{
    static const char *const arguments[] = {"--trace",
                                            "bench/traces/sample.jsonl",
                                            "--engines",
                                            "2",
                                            "--layers",
                                            "4",
                                            "--limit",
                                            "6",
                                            "--max-context",
                                            "2048",
                                            "--samples",
                                            "8",
                                            NULL};
    struct family family = {.replay = start(arguments)};

    (void)state;
    harness_eventually(is_complete, &family, 10000, "engines and worker run");
    harness_eventually(has_run, &family, 10000, "a run is over");
    assert_int_equal(kill(family.worker, SIGKILL), 0);
    assert_int_equal(finish(family.replay), 0);
    assert_true(verified_rows() > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_and_modes_replay_without_a_mismatch),
        cmocka_unit_test(pages_brought_from_service_to_service_replay_without_a_mismatch),
        cmocka_unit_test(two_services_are_refused_where_one_would_do),
        cmocka_unit_test(unusual_shapes_replay_without_a_mismatch),
        cmocka_unit_test(a_comparison_says_what_sharing_saves),
        cmocka_unit_test(an_unreadable_line_is_refused_with_its_number_or_skipped),
        cmocka_unit_test(a_file_that_cannot_be_written_is_refused_before_the_replay),
        cmocka_unit_test(a_signal_leaves_nothing_behind),
        cmocka_unit_test(a_dead_daemon_is_an_error_and_not_a_hang),
        cmocka_unit_test(a_dead_engine_is_an_error),
        cmocka_unit_test(a_worker_killed_in_the_middle_changes_no_answer),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
