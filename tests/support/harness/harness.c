/*
 * harness.c - starting, watching and ending processes.
 *
 * The daemon is the leader of a process group of its own, so it can be ended together with its
 * worker, and its parent-death signal is SIGKILL: a test program that is killed leaves nothing. The
 * worker of a daemon killed by a test is an orphan; as a subreaper the program inherits it and can
 * prove that it ends by itself.
 */
#include "tests/support/harness/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h> /* wants those two before it */

#define HARNESSES_MAX 4
#define READY_MS 30000
#define STOP_MS 10000
#define ARGUMENTS_MAX 32

static struct harness *running[HARNESSES_MAX];

/* ---- failing ---- */

static void print_log(const struct harness *harness)
{
    char line[512];
    FILE *log = fopen(harness->log, "r");

    if (!log)
        return;
    fprintf(stderr, "--- log of the daemon at %s\n", harness->socket);
    while (fgets(line, sizeof(line), log))
        fprintf(stderr, "    %s", line);
    fprintf(stderr, "---\n");
    (void)fclose(log);
}

static void print_logs(void)
{
    for (int i = 0; i < HARNESSES_MAX; i++)
        if (running[i])
            print_log(running[i]);
}

static void fail_test(const char *file, int line)
{
    print_logs();
    _fail(file, line);
}

static void fail_part(const char *file, int line)
{
    (void)file;
    (void)line;
    print_logs();
    fflush(NULL);
    _exit(1);
}

void harness_init(void)
{
    check_failed = fail_test;
}

/* ---- the daemon ---- */

static void notify_open(struct harness *harness)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", harness->directory);
    (void)unlink(address.sun_path);
    harness->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(harness->notify >= 0);
    CHECK_EQUAL(bind(harness->notify, (const struct sockaddr *)&address, sizeof(address)), 0);
}

/* Threads of a CPU worker: two, on however many processors, so that a batch takes as long
 * everywhere. A GPU's worker takes --threads for a limit of its SMs, and is to have them all. */
static int backend_options(const char **arguments, int count)
{
    const char *backend = getenv("ATTND_TEST_BACKEND"), *reserve = getenv("ATTND_TEST_RESERVE"),
               *execute = getenv("ATTND_TEST_EXECUTE"), *isa = getenv("ATTND_TEST_ISA");

    if (backend) {
        arguments[count++] = "--backend";
        arguments[count++] = backend;
    }
    if (!backend || strcmp(backend, "cuda") != 0) {
        arguments[count++] = "--threads";
        arguments[count++] = "2";
    } else if (reserve) {
        arguments[count++] = "--reserve";
        arguments[count++] = reserve;
    }
    if (isa) {
        arguments[count++] = "--isa";
        arguments[count++] = isa;
    }
    if (execute) {
        arguments[count++] = "--execute";
        arguments[count++] = execute;
    }
    return count;
}

/* As a service manager does it: descriptor 3, and two variables. */
static void hand_over(int fd)
{
    char pid[16];

    if (fd == 0)
        return;
    if (fd == 3)
        (void)fcntl(fd, F_SETFD, 0);
    else
        dup2(fd, 3);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "1", 1);
}

static _Noreturn void exec_daemon(const struct harness *harness, const char *const *options)
{
    char path[600], notify[96];
    const char *arguments[ARGUMENTS_MAX] = {"attnd", "--socket", harness->socket, "--verbose"};
    int count = backend_options(arguments, 4);

    for (; options && *options && count < ARGUMENTS_MAX - 1; options++)
        arguments[count++] = *options;
    harness_program_path("attnd", path, sizeof(path));
    snprintf(notify, sizeof(notify), "%s/notify", harness->directory);
    setenv("NOTIFY_SOCKET", notify, 1);
    hand_over(harness->handed);
    int log = open(harness->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log >= 0) {
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
    }
    execv(path, (char *const *)(uintptr_t)arguments);
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    _exit(127);
}

/* Return: 1; 0 it has ended, with *@status as wait() has it. */
static int await_ready(struct harness *harness, int *status)
{
    struct pollfd ready = {.fd = harness->notify, .events = POLLIN};
    char text[256] = "";
    uint64_t end_ns = harness_now_ns() + READY_MS * 1000000ull;

    while (!strstr(text, "READY=1")) {
        CHECK(harness_now_ns() < end_ns); /* the daemon says READY in time */
        if (poll(&ready, 1, 20) > 0) {
            ssize_t got = recv(harness->notify, text, sizeof(text) - 1, 0);
            text[got > 0 ? got : 0] = 0;
        } else if (waitpid(harness->daemon, status, WNOHANG) == harness->daemon) {
            harness->daemon = 0;
            return 0;
        }
    }
    return 1;
}

static int try_restart(struct harness *harness, const char *const *options, int *status)
{
    const pid_t parent = getpid();

    notify_open(harness);
    fflush(NULL);
    harness->daemon = fork();
    CHECK(harness->daemon >= 0);
    if (harness->daemon == 0) {
        setpgid(0, 0);
        harness_die_with(parent);
        exec_daemon(harness, options);
    }
    setpgid(harness->daemon, harness->daemon);
    return await_ready(harness, status);
}

void harness_restart(struct harness *harness, const char *const *options)
{
    int status;

    if (!try_restart(harness, options, &status))
        CHECK_FAIL("the daemon ended before it was ready");
}

void harness_start(struct harness *harness, const char *const *options)
{
    harness_start_activated(harness, 0, options);
}

static void make_place(struct harness *harness, int fd)
{
    int slot = 0;

    while (slot < HARNESSES_MAX - 1 && running[slot])
        slot++;
    memset(harness, 0, sizeof(*harness));
    harness->handed = fd;
    snprintf(harness->directory, sizeof(harness->directory), "/tmp/attnd-test-XXXXXX");
    CHECK(mkdtemp(harness->directory) != NULL);
    snprintf(harness->socket, sizeof(harness->socket), "%s/sock", harness->directory);
    const char *logs = getenv("ATTND_TEST_LOGS"), *name = strrchr(harness->directory, '/');
    if (logs)
        CHECK(snprintf(harness->log, sizeof(harness->log), "%s%s.log", logs, name) <
              (int)sizeof(harness->log));
    else
        snprintf(harness->log, sizeof(harness->log), "%s/log", harness->directory);
    running[slot] = harness;
    CHECK_EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
}

void harness_start_activated(struct harness *harness, int fd, const char *const *options)
{
    make_place(harness, fd);
    harness_restart(harness, options);
}

struct part {
    int (*run)(void *context);
    void *context;
};

static int run_part(void *context)
{
    const struct part *part = context;

    check_failed = fail_part;
    return part->run(part->context);
}

pid_t harness_fork_part(int (*run)(void *context), void *context)
{
    return harness_fork(run_part, &(struct part){run, context});
}

/* kill -9 of whatever child there is, adopted ones included. */
static void kill_children(void)
{
    char path[64];
    int pid;

    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    FILE *children = fopen(path, "r");
    while (children && fscanf(children, "%d", &pid) == 1)
        kill(pid, SIGKILL);
    if (children)
        (void)fclose(children);
}

static int others_run(const struct harness *harness)
{
    int others = 0;

    for (int i = 0; i < HARNESSES_MAX; i++)
        others |= running[i] && running[i] != harness && running[i]->daemon > 0;
    return others;
}

/* The daemon of @group is gone: its worker must have ended, and so must what a test forked, unless
 * another service runs that it may belong to; or they are ended. Return: 1 if they did it by
 * themselves. */
static int orphans_end(const struct harness *harness, pid_t group)
{
    const int others = others_run(harness);
    int rc, status;

    if (others && group <= 0)
        return 1;
    while ((rc = harness_reap(others ? -group : -1, STOP_MS, &status)) > 0)
        ;
    if (rc < 0)
        return 1;
    if (others)
        kill(-group, SIGKILL);
    else
        kill_children();
    while (harness_reap(others ? -group : -1, STOP_MS, &status) > 0)
        ;
    return 0;
}

static void clean_up(struct harness *harness)
{
    static const char *const names[] = {"sock", "notify", "log"};
    char path[128];

    for (int i = 0; i < HARNESSES_MAX; i++)
        if (running[i] == harness)
            running[i] = NULL;
    close(harness->notify);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", harness->directory, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(harness->directory);
    harness->directory[0] = 0;
}

/* SIGTERM, and SIGKILL if that does not help. Return: 1 if it helped. */
static int end_daemon(struct harness *harness, int *status)
{
    int in_time = 1;

    *status = 0;
    if (harness->daemon > 0) {
        kill(harness->daemon, SIGTERM);
        in_time = harness_reap(harness->daemon, STOP_MS, status) != 0;
    }
    if (!in_time) {
        kill(-harness->daemon, SIGKILL); /* the worker with it */
        (void)harness_reap(harness->daemon, STOP_MS, status);
    }
    harness->daemon = 0;
    return in_time;
}

void harness_stop(struct harness *harness)
{
    int status;

    if (!harness->directory[0])
        return;
    const pid_t group = harness->daemon;
    const int in_time = end_daemon(harness, &status), alone = orphans_end(harness, group);
    if (!in_time || !alone || status != 0)
        print_log(harness);
    clean_up(harness);
    check_true(in_time, "the daemon ends within 10 s of SIGTERM", __FILE__, __LINE__);
    CHECK_EQUAL(status, 0);
    check_true(alone, "no process outlives the daemon", __FILE__, __LINE__);
}

int harness_try_start(struct harness *harness, const char *const *options, int *status)
{
    make_place(harness, 0);
    if (try_restart(harness, options, status))
        return 1;
    const int alone = orphans_end(harness, 0), gone = access(harness->socket, F_OK) < 0;
    if (!alone || !gone)
        print_log(harness);
    clean_up(harness);
    check_true(alone, "no process outlives the daemon", __FILE__, __LINE__);
    check_true(gone, "no socket outlives the daemon", __FILE__, __LINE__);
    return 0;
}

int harness_end_all(void **state)
{
    int status, found = 0;

    (void)state;
    for (int i = 0; i < HARNESSES_MAX; i++)
        if (running[i]) {
            found = 1;
            (void)end_daemon(running[i], &status);
            clean_up(running[i]);
        }
    if (found) /* clients that wait for the test that failed */
        kill_children();
    while (found && harness_reap(-1, STOP_MS, &status) > 0)
        ;
    return 0;
}

void harness_kill_daemon(struct harness *harness)
{
    int status;

    kill(harness->daemon, SIGKILL);
    CHECK_EQUAL(harness_reap(harness->daemon, STOP_MS, &status), 1);
    harness->daemon = 0;
    close(harness->notify);
    harness->notify = -1;
}
