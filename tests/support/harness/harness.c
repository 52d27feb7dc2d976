/*
 * harness.c - starting, watching and ending processes.
 *
 * The daemon is the leader of a process group of its own, so it can be ended together with its
 * worker, and its parent-death signal is SIGKILL: a test program that is killed leaves nothing. The
 * worker of a daemon killed by a test is an orphan; as a subreaper the program inherits it and can
 * prove that it ends by itself.
 */
#include "tests/support/harness/harness.h"

#include "ipc/fdpass.h"

#include <dirent.h>
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

/* ---- programs ---- */

void harness_path(const char *name, char *path, size_t bytes)
{
    const char *folder = getenv("ATTND_BIN");
    char self[512];

    if (folder) {
        snprintf(path, bytes, "%s/%s", folder, name);
        return;
    }
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    CHECK(length > 0);
    self[length] = 0;
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(self, '/');
        CHECK(slash != NULL);
        *slash = 0;
    }
    snprintf(path, bytes, "%s/%s", self, name);
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
    harness_path("attnd", path, sizeof(path));
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

/* ---- status ---- */

Attnd__Status *harness_status(const struct harness *harness)
{
    static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    int fds[ATTND_FDS_MAX], fd_count = 0;

    memcpy(address.sun_path, harness->socket, sizeof(harness->socket));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_EQUAL(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    request.id = 1;
    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    CHECK_EQUAL(attnd_fdpass_send(fd, bytes, attnd__request__pack(&request, bytes), NULL, 0), 0);
    long got = attnd_fdpass_recv(fd, bytes, sizeof(bytes), fds, &fd_count);
    close(fd);
    CHECK(got > 0);
    Attnd__Reply *reply = attnd__reply__unpack(NULL, (size_t)got, bytes);
    CHECK(reply && reply->code == 0 && reply->result_case == ATTND__REPLY__RESULT_STATUS);
    Attnd__Status *status = reply->status;
    reply->status = NULL;
    reply->result_case = ATTND__REPLY__RESULT__NOT_SET;
    attnd__reply__free_unpacked(reply, NULL);
    return status;
}

pid_t harness_worker(const struct harness *harness)
{
    Attnd__Status *status = harness_status(harness);
    pid_t pid = (pid_t)status->worker_pid;

    attnd__status__free_unpacked(status, NULL);
    CHECK(pid > 1);
    return pid;
}

/* @path: of a thread's stat. Return: 1, also if there is no such thread. */
static int is_in(const char *path, char state)
{
    const char mark[] = {')', ' ', state, ' ', 0}; /* the name stands in brackets before it */
    char text[256];
    FILE *file = fopen(path, "re");

    if (!file)
        return 1;
    text[fread(text, 1, sizeof(text) - 1, file)] = 0;
    (void)fclose(file);
    return strstr(text, mark) != NULL;
}

int harness_threads_are(pid_t pid, char state)
{
    char path[300];
    int all = 1;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks));) {
        snprintf(path, sizeof(path), "/proc/%d/task/%s/stat", (int)pid, task->d_name);
        all &= task->d_name[0] == '.' || is_in(path, state);
    }
    (void)closedir(tasks);
    return all;
}

uint32_t harness_descriptors(pid_t pid)
{
    char path[64];
    uint32_t count = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *descriptors = opendir(path);
    CHECK(descriptors != NULL);
    for (const struct dirent *entry; (entry = readdir(descriptors));)
        count += entry->d_name[0] != '.';
    (void)closedir(descriptors);
    return count;
}

static int sleeps(void *context)
{
    return is_in(context, 'S');
}

void harness_await_asleep(pid_t thread)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)thread);
    harness_eventually(sleeps, path, STOP_MS, "the thread sleeps");
}

static int stands_still(void *context)
{
    const pid_t *pid = context;

    return harness_threads_are(*pid, 'T');
}

pid_t harness_stop_worker(const struct harness *harness)
{
    pid_t worker = harness_worker(harness);

    CHECK_EQUAL(kill(worker, SIGSTOP), 0);
    harness_eventually(stands_still, &worker, STOP_MS, "the worker stands still");
    return worker;
}

/* In the child. The program is opened before its user changes, who may not be able to enter the
 * folder that it lies in. */
static _Noreturn void exec_as(const struct harness *harness, uid_t uid, const char *path,
                              const char *const *argv)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);

    setenv("ATTND_SOCKET", harness->socket, 1);
    if (fd >= 0 && (uid == getuid() || setuid(uid) == 0))
        fexecve(fd, (char *const *)(uintptr_t)argv, environ);
    _exit(127);
}

static int program_as(const struct harness *harness, uid_t uid, const char *const *argv,
                      char *output, size_t output_bytes)
{
    int pipes[2], status = 0;
    char path[600];
    size_t length = 0;

    harness_path(argv[0], path, sizeof(path));
    CHECK_EQUAL(pipe2(pipes, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        harness_die_with(parent);
        dup2(pipes[1], STDOUT_FILENO);
        exec_as(harness, uid, path, argv);
    }
    close(pipes[1]);
    for (ssize_t got = 1; got > 0 && length + 1 < output_bytes; length += (size_t)got) {
        got = read(pipes[0], output + length, output_bytes - 1 - length);
        if (got < 0)
            got = 0;
    }
    output[length] = 0;
    close(pipes[0]);
    CHECK_EQUAL(harness_reap(pid, STOP_MS, &status), 1);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int harness_program(const struct harness *harness, const char *const *argv, char *output,
                    size_t output_bytes)
{
    return program_as(harness, getuid(), argv, output, output_bytes);
}

int harness_attnctl_as(const struct harness *harness, uid_t uid, const char *const *arguments,
                       char *output, size_t output_bytes)
{
    const char *argv[ARGUMENTS_MAX] = {"attnctl"};
    int count = 1;

    for (; *arguments && count < ARGUMENTS_MAX - 3; arguments++)
        argv[count++] = *arguments;
    argv[count++] = "--socket";
    argv[count] = harness->socket;
    return program_as(harness, uid, argv, output, output_bytes);
}

int harness_attnctl(const struct harness *harness, const char *const *arguments, char *output,
                    size_t output_bytes)
{
    return harness_attnctl_as(harness, getuid(), arguments, output, output_bytes);
}
