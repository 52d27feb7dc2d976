/*
 * harness_program.c - programs of the build, and attnctl on a daemon.
 */
#include "tests/support/harness/harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define END_MS 10000
#define ARGUMENTS_MAX 32

void harness_program_path(const char *name, char *path, size_t bytes)
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

    harness_program_path(argv[0], path, sizeof(path));
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
    CHECK_EQUAL(harness_reap(pid, END_MS, &status), 1);
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
