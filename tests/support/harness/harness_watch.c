/*
 * harness_watch.c - what a daemon says of itself, and what the kernel says of its processes.
 */
#include "tests/support/harness/harness.h"

#include "ipc/fdpass.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define REST_MS 10000

int harness_connect(const struct harness *harness)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path, harness->socket, sizeof(harness->socket));
    CHECK(fd >= 0);
    CHECK_EQUAL(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

Attnd__Status *harness_status(const struct harness *harness)
{
    static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    int fds[ATTND_FDS_MAX], fd_count = 0;

    const int fd = harness_connect(harness);
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

int harness_is_busy(void *harness)
{
    Attnd__Status *status = harness_status(harness);
    const int busy = status->queue_runs > 0;

    attnd__status__free_unpacked(status, NULL);
    return busy;
}

int harness_has_ended(void *harness)
{
    const pid_t daemon = ((const struct harness *)harness)->daemon;
    siginfo_t info = {0};

    CHECK_EQUAL(waitid(P_PID, (id_t)daemon, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid == daemon;
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

static int has_name(pid_t pid, const char *name)
{
    char path[64], text[64] = "";

    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    text[fread(text, 1, sizeof(text) - 1, file)] = 0;
    (void)fclose(file);
    text[strcspn(text, "\n")] = 0;
    return strcmp(text, name) == 0;
}

/* Not by a look at every process: while one looks at a process that has died, whoever reaps it
 * spins in the kernel, and reaps of all tests that run would. */
pid_t harness_child(pid_t parent, const char *name, pid_t but)
{
    char path[64];
    pid_t found = 0;
    int pid;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *children = fopen(path, "re");
    CHECK(children != NULL);
    while (!found && fscanf(children, "%d", &pid) == 1)
        if (pid != but && (!name || has_name(pid, name)))
            found = pid;
    (void)fclose(children);
    return found;
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
    harness_eventually(sleeps, path, REST_MS, "the thread sleeps");
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
    harness_eventually(stands_still, &worker, REST_MS, "the worker stands still");
    return worker;
}
