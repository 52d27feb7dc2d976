/*
 * harness_client.c - client processes and what tests share with them.
 *
 * A forked client exits without running the test program's atexit handlers and dies with it.
 */
#include "tests/support/harness/harness.h"

#include "schemas/atomics.h"
#include "schemas/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint64_t harness_now_ns(void)
{
    return attnd_clock_ns();
}

void harness_sleep_ms(uint32_t ms)
{
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

void harness_die_with(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); /* it died before the line above */
}

#define KILL_MS 10000

static void fail_client(const char *file, int line)
{
    (void)file;
    (void)line;
    fflush(NULL);
    _exit(1);
}

int harness_reap(pid_t pid, uint32_t timeout_ms, int *status)
{
    uint64_t end_ns = harness_now_ns() + timeout_ms * 1000000ull;

    for (;;) {
        pid_t got = waitpid(pid, status, WNOHANG);
        if (got > 0)
            return 1;
        if (got < 0 && errno == ECHILD)
            return -1;
        if (harness_now_ns() >= end_ns)
            return 0;
        struct timespec pause = {0, 500000};
        nanosleep(&pause, NULL);
    }
}

pid_t harness_fork(int (*client)(void *context), void *context)
{
    const pid_t parent = getpid();

    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        harness_die_with(parent);
        check_failed = fail_client;
        int status = client(context);
        fflush(NULL);
        _exit(status);
    }
    return pid;
}

int harness_join(pid_t pid, uint32_t timeout_ms)
{
    int status = 0;

    if (harness_reap(pid, timeout_ms, &status) != 1) {
        harness_kill(pid);
        CHECK_FAIL("a client ends in time");
    }
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void harness_kill(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    CHECK_EQUAL(harness_reap(pid, KILL_MS, &status), 1);
}

void *harness_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

void harness_say(uint32_t *word, uint32_t value)
{
    attnd_publish32(word, value); /* R1: what was written before is there when it is heard */
}

void harness_await(const uint32_t *word, uint32_t value)
{
    uint64_t end_ns = harness_now_ns() + 20000000000u;

    while (attnd_observe32(word) != value) { /* A1 */
        CHECK(harness_now_ns() < end_ns);
        struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
    }
}

double harness_eventually(int (*holds)(void *context), void *context, uint32_t timeout_ms,
                          const char *what)
{
    uint64_t begin_ns = harness_now_ns(), now_ns;

    while (!holds(context)) {
        now_ns = harness_now_ns();
        if (now_ns - begin_ns > timeout_ms * 1000000ull) {
            check_say(__FILE__, __LINE__, "not within %u ms: %s", timeout_ms, what);
            check_failed(__FILE__, __LINE__);
        }
        harness_sleep_ms(1);
    }
    return (double)(harness_now_ns() - begin_ns) / 1e6;
}
