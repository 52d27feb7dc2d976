/* stall.c - a closed loop of questions, and where the time of the longest answer went.
 *
 * The kernel counts for each thread how long it ran and how long it was ready to run and did not
 * (/proc/PID/schedstat). Both are read around each question, of the daemon's thread and of the one
 * that asks. So work of the daemon's, which is attnd's to bound, is told from waiting for a
 * processor. */
#include "bench/support/stall.h"
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

static struct times read_times(int file)
{
    struct times times = {0};
    char text[80];
    const ssize_t bytes = file < 0 ? 0 : pread(file, text, sizeof(text) - 1, 0);

    if (bytes <= 0)
        return times;
    text[bytes] = 0;
    (void)sscanf(text, "%llu %llu", &times.ran, &times.waited);
    return times;
}

static double since_ms(unsigned long long after, unsigned long long before)
{
    return after ? (double)(after - before) * 1e-6 : (double)NAN;
}

/* Return: how long the answer took, in nanoseconds. */
static uint64_t ask(struct bench_suite *suite, struct attnd_session *session)
{
    const uint64_t asked_ns = attnd_clock_ns();

    if (attnd_plan_destroy(session, UNKNOWN_PLAN) != -ATTND_E_UNKNOWN)
        bench_suite_fail(suite, "a trivial call was answered wrongly");
    return attnd_clock_ns() - asked_ns;
}

struct bench_stall bench_stall_probe(struct bench_suite *suite, struct attnd_session *session)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    const int daemon_file = open_times(bench_private_pid()), own_file = open_times(getpid());
    const uint64_t begin_ns = attnd_clock_ns();
    struct bench_stall stall = {.worked_ms = NAN, .waited_ms = NAN, .asker_waited_ms = NAN};
    uint64_t longest_ns = 0, over_ns = 0;

    while (attnd_clock_ns() - begin_ns < PROBE_NS && !suite->failed) {
        const struct times daemon = read_times(daemon_file), own = read_times(own_file);
        const uint64_t took_ns = ask(suite, session);
        over_ns += took_ns > OVER_NS ? took_ns : 0;
        if (took_ns > longest_ns) {
            const struct times daemon_now = read_times(daemon_file), now = read_times(own_file);
            longest_ns = took_ns;
            stall.worked_ms = since_ms(daemon_now.ran, daemon.ran);
            stall.waited_ms = since_ms(daemon_now.waited, daemon.waited);
            stall.asker_waited_ms = since_ms(now.waited, own.waited);
        }
        nanosleep(&pause, NULL);
    }
    if (daemon_file >= 0)
        close(daemon_file);
    if (own_file >= 0)
        close(own_file);
    stall.longest_ms = (double)longest_ns * 1e-6;
    stall.share = (double)over_ns / (double)PROBE_NS;
    return stall;
}
