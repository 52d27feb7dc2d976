/* stall.c - a closed loop of questions, and where the time of the longest answers went.
 *
 * The kernel counts for each thread how long it ran and how long it was ready to run and did not
 * (/proc/PID/schedstat). Both are read around each question, of the daemon's thread and of the one
 * that asks. So work of the daemon's, which is attnd's to bound, is told from waiting for a
 * processor: its own is what it ran, and no more than what is left of the answer's time when both
 * had a processor. Of a service that is not this program's nothing is known. */
#include "bench/support/stall.h"
#include "bench/support/amounts.h"
#include "bench/support/private_service.h"
#include "ipc/wake.h"
#include "schemas/timeslice.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define PROBE_NS UINT64_C(4000000000)
#define PAUSE_NS 300000
#define OVER_NS 5000000u
#define UNKNOWN_PLAN 7u

void bench_brief_slices(void)
{
    struct attnd_timeslice slice = {0};

    if (attnd_timeslice_get(0, &slice) < 0)
        return;
    slice.runtime_ns = ATTND_TIMESLICE_BRIEF_NS;
    slice.flags |= ATTND_TIMESLICE_RESET_ON_FORK;
    (void)attnd_timeslice_put(&slice);
}

/* Nanoseconds: of a thread, since it began. */
struct times {
    unsigned long long ran, waited;
};

static int open_times(pid_t pid)
{
    char path[40];

    snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", (int)pid, (int)pid);
    return pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
}

static struct times read_times(struct bench_suite *suite, int file)
{
    struct times times = {0};
    char text[80];

    if (file < 0)
        return times;
    const ssize_t bytes = pread(file, text, sizeof(text) - 1, 0);
    text[bytes > 0 ? bytes : 0] = 0;
    if (sscanf(text, "%llu %llu", &times.ran, &times.waited) != 2)
        bench_suite_fail(suite, "/proc/PID/schedstat does not tell two numbers: %s", text);
    return times;
}

/* Return: how long the answer took, in nanoseconds. */
static uint64_t ask(struct bench_suite *suite, struct attnd_session *session)
{
    const uint64_t asked_ns = attnd_clock_ns();

    if (attnd_plan_destroy(session, UNKNOWN_PLAN) != -ATTND_E_UNKNOWN)
        bench_suite_fail(suite, "a trivial call was answered wrongly");
    return attnd_clock_ns() - asked_ns;
}

/* What both had and did, around one question. */
struct moment {
    struct times daemon, asker;
};

static void note(struct bench_stall *stall, const struct moment *before, const struct moment *after,
                 uint64_t took_ns)
{
    const uint64_t worked_ns = after->daemon.ran - before->daemon.ran;
    const uint64_t waited_ns = after->daemon.waited - before->daemon.waited;
    const uint64_t asker_waited_ns = after->asker.waited - before->asker.waited;
    const uint64_t left_ns = bench_left(took_ns, waited_ns + asker_waited_ns);
    const double own_ms = (double)bench_least(worked_ns, left_ns) * 1e-6;
    const double took_ms = (double)took_ns * 1e-6;

    stall->own_ms = own_ms > stall->own_ms ? own_ms : stall->own_ms;
    if (took_ms <= stall->longest_ms)
        return;
    stall->longest_ms = took_ms;
    stall->waited_ms = (double)waited_ns * 1e-6;
    stall->asker_waited_ms = (double)asker_waited_ns * 1e-6;
}

struct bench_stall bench_stall_probe(struct bench_suite *suite, struct attnd_session *session)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    const int daemon = open_times(bench_private_pid()), asker = open_times(getpid());
    const uint64_t begin_ns = attnd_clock_ns();
    struct bench_stall stall = {0};
    uint64_t over_ns = 0;

    while (attnd_clock_ns() - begin_ns < PROBE_NS && !suite->failed) {
        const struct moment before = {read_times(suite, daemon), read_times(suite, asker)};
        const uint64_t took_ns = ask(suite, session);
        const struct moment after = {read_times(suite, daemon), read_times(suite, asker)};
        note(&stall, &before, &after, took_ns);
        over_ns += took_ns > OVER_NS ? took_ns : 0;
        nanosleep(&pause, NULL);
    }
    if (daemon < 0 || asker < 0)
        stall.own_ms = NAN;
    if (daemon >= 0)
        close(daemon);
    if (asker >= 0)
        close(asker);
    stall.share = (double)over_ns / (double)PROBE_NS;
    return stall;
}
