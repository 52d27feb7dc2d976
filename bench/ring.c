/* ring.c - what a round trip through the service costs, and what doing nothing costs.
 *
 * ring.empty_rtt_over_spin: attnd_run() and attnd_wait() of a plan whose requests have no query
 * rows, so that nothing but the way there and back is left, over a bare ring of the same slots
 * between two processes that do nothing but spin on it. Both are measured in alternating blocks, so
 * that the machine's moods meet both; the process at the other end of the bare ring sleeps while
 * the service is measured, because three spinners on two cores would measure the kernel's
 * scheduler.
 *
 * ring.idle_cpu_percent: processor time of daemon and worker with eight idle clients. */
#include "ipc/ring.h"
#include "bench/support/private_service.h"
#include "bench/support/suite.h"
#include "ipc/wake.h"
#include "schemas/atomics.h"
#include "schemas/futex.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK_ROUNDS 10000u
#define SPIN_ENTRIES 256u
#define IDLE_CLIENTS 8

/* ---- the bare ring ---- */

struct bare {
    _Alignas(64) uint32_t there_tail;
    _Alignas(64) uint32_t there_head;
    _Alignas(64) uint32_t back_tail;
    _Alignas(64) uint32_t back_head;
    _Alignas(64) uint32_t running; /* 0: the echo sleeps */
    _Alignas(64) uint8_t there[SPIN_ENTRIES][ATTND_SLOT_BYTES];
    _Alignas(64) uint8_t back[SPIN_ENTRIES][ATTND_SLOT_BYTES];
};

struct bare_ends {
    struct bare *shared;
    struct attnd_producer there;
    struct attnd_consumer back;
    pid_t echo;
};

static void echo(struct bare *shared)
{
    struct attnd_consumer in;
    struct attnd_producer out;
    uint8_t slot[ATTND_SLOT_BYTES];

    attnd_consumer_init(&in, shared->there, &shared->there_tail, &shared->there_head, SPIN_ENTRIES);
    attnd_producer_init(&out, shared->back, &shared->back_tail, &shared->back_head, SPIN_ENTRIES);
    for (;;) {
        while (attnd_consumer_pop(&in, slot) != 1) {
            if (!attnd_observe32(&shared->running))
                attnd_futex_wait(&shared->running, 0, NULL);
            attnd_relax();
        }
        attnd_producer_push(&out, slot);
    }
}

static bool bare_open(struct bench_suite *suite, struct bare_ends *ends)
{
    void *memory =
        mmap(NULL, sizeof(struct bare), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        bench_suite_fail(suite, "no memory for a ring");
        return false;
    }
    ends->shared = memory;
    attnd_producer_init(&ends->there, ends->shared->there, &ends->shared->there_tail,
                        &ends->shared->there_head, SPIN_ENTRIES);
    attnd_consumer_init(&ends->back, ends->shared->back, &ends->shared->back_tail,
                        &ends->shared->back_head, SPIN_ENTRIES);
    ends->echo = fork();
    if (!ends->echo) {
        bench_private_leave();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        echo(ends->shared);
    }
    if (ends->echo < 0)
        bench_suite_fail(suite, "fork failed");
    else
        bench_private_child(ends->echo);
    return !suite->failed;
}

static void bare_close(struct bare_ends *ends)
{
    kill(ends->echo, SIGKILL);
    waitpid(ends->echo, NULL, 0);
    bench_private_gone(ends->echo);
    munmap(ends->shared, sizeof(*ends->shared));
}

static void bare_block(struct bare_ends *ends, uint64_t *samples, uint32_t count)
{
    uint8_t slot[ATTND_SLOT_BYTES] = {0};

    attnd_publish32(&ends->shared->running, 1);
    attnd_futex_wake(&ends->shared->running, 1);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t begin_ns = attnd_clock_ns();

        attnd_producer_push(&ends->there, slot);
        while (attnd_consumer_pop(&ends->back, slot) != 1)
            attnd_relax();
        samples[i] = attnd_clock_ns() - begin_ns;
    }
    attnd_publish32(&ends->shared->running, 0);
}

/* ---- the service ---- */

struct empty {
    struct attnd_session *session;
    uint32_t plan, memory;
};

/* A plan with four requests of 16 keys each and no query rows. */
static bool empty_open(struct bench_suite *suite, struct empty *empty)
{
    static const int32_t no_rows[5] = {0}, kv_indptr[5] = {0, 1, 2, 3, 4}, pages[4] = {0, 1, 2, 3},
                         last_page_len[4] = {16, 16, 16, 16};
    struct attnd_level level = {4, no_rows, kv_indptr, pages, last_page_len};
    struct attnd_batch batch = {
        .size = sizeof(batch), .levels = 1, .flags = ATTND_CAUSAL, .level = &level};
    struct attnd_pool_desc desc = {.size = sizeof(desc),
                                   .layers = 1,
                                   .pages = 4,
                                   .page_size = 16,
                                   .heads_kv = 8,
                                   .dim_qk = 128,
                                   .dim_vo = 128,
                                   .dtype = ATTND_DTYPE_BF16,
                                   .page_owner = ATTND_PAGES_OF_ENGINE};
    struct attnd_plan_args plan = {
        .size = sizeof(plan), .requests = 4, .rows = 4, .pages = 4, .levels = 1, .heads_q = 32};
    struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-ring"};
    struct attnd_op op = {0};

    return bench_suite_call(suite, "attnd_open", attnd_open(&args, &empty->session)) &&
           bench_suite_call(suite, "attnd_memory_create",
                            attnd_memory_create(empty->session, 1 << 20, &empty->memory, NULL)) &&
           bench_suite_call(suite, "attnd_pool_create",
                            attnd_pool_create(empty->session, &desc, &plan.pool)) &&
           bench_suite_call(suite, "attnd_plan_create",
                            attnd_plan_create(empty->session, &plan, &empty->plan)) &&
           bench_suite_call(suite, "attnd_plan_set",
                            attnd_plan_set(empty->session, empty->plan, &batch, &op)) &&
           bench_wait_all(suite, empty->session, 1, NULL);
}

static bool empty_block(struct bench_suite *suite, const struct empty *empty, uint64_t *samples,
                        uint32_t count)
{
    struct attnd_run_args run = {
        .size = sizeof(run), .q = {empty->memory, 0}, .o = {empty->memory, 1 << 19}};
    struct attnd_op op = {0};

    for (uint32_t i = 0; i < count; i++) {
        struct attnd_completion completion = {0};
        uint64_t begin_ns = attnd_clock_ns();
        int code = attnd_run(empty->session, empty->plan, &run, &op);

        if (!code)
            code = attnd_wait(empty->session, &completion, 1, ATTND_FOREVER);
        samples[i] = attnd_clock_ns() - begin_ns;
        if (code != 1 || completion.fault.code)
            return bench_suite_call(suite, "an empty run", code < 0 ? code : completion.fault.code);
    }
    return true;
}

static void measure_round_trip(struct bench_suite *suite)
{
    uint64_t blocks = (suite->rounds + BLOCK_ROUNDS - 1) / BLOCK_ROUNDS;
    size_t samples = blocks * BLOCK_ROUNDS;
    uint64_t *bare_ns = calloc(samples, sizeof(uint64_t));
    uint64_t *empty_ns = calloc(samples, sizeof(uint64_t));
    struct empty empty = {0};
    struct bare_ends ends = {0};
    char notes[160];

    if (!bare_ns || !empty_ns) {
        bench_suite_fail(suite, "out of memory");
    } else if (bare_open(suite, &ends)) {
        bool good = empty_open(suite, &empty);

        for (uint64_t b = 0; good && b < blocks; b++) {
            bare_block(&ends, bare_ns + b * BLOCK_ROUNDS, BLOCK_ROUNDS);
            good = empty_block(suite, &empty, empty_ns + b * BLOCK_ROUNDS, BLOCK_ROUNDS);
        }
        if (good) {
            double bare_us = (double)bench_p50(bare_ns, samples) * 1e-3;
            double empty_us = (double)bench_p50(empty_ns, samples) * 1e-3;

            snprintf(notes, sizeof(notes), "p50 %.2f us over %.2f us, %zu round trips each",
                     empty_us, bare_us, samples);
            bench_suite_figure(suite, "empty_rtt_over_spin", empty_us / bare_us, "ratio", "lower",
                               2, notes);
        }
        attnd_close(empty.session);
        bare_close(&ends);
    }
    free(bare_ns);
    free(empty_ns);
}

/* ---- idleness ---- */

/* User and system time of all threads of a process so far. */
static bool cpu_time_ns(pid_t pid, uint64_t *ns)
{
    struct timespec time;
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &time))
        return false;
    *ns = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    return true;
}

static bool both_ns(pid_t daemon, pid_t worker, uint64_t *ns)
{
    uint64_t daemon_ns, worker_ns;

    if (!cpu_time_ns(daemon, &daemon_ns) || !cpu_time_ns(worker, &worker_ns))
        return false;
    *ns = daemon_ns + worker_ns;
    return true;
}

static void sleep_s(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};

    nanosleep(&time, NULL);
}

static void measure_idle(struct bench_suite *suite)
{
    struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-idle"};
    struct attnd_session *sessions[IDLE_CLIENTS] = {NULL};
    pid_t daemon = bench_private_pid(), worker = 0;
    uint32_t threads;
    uint64_t begin_ns = 0, end_ns = 0, from_ns;
    char notes[160];

    bench_suite_worker(suite, &worker, &threads);
    for (int i = 0; i < IDLE_CLIENTS && !suite->failed; i++)
        bench_suite_call(suite, "attnd_open", attnd_open(&args, &sessions[i]));
    sleep_s(0.5); /* what follows a connection is not idleness */
    from_ns = attnd_clock_ns();
    if (!suite->failed && !both_ns(daemon, worker, &begin_ns))
        bench_suite_fail(suite, "cannot see the processor time of daemon and worker");
    if (!suite->failed) {
        sleep_s(suite->seconds);
        if (!both_ns(daemon, worker, &end_ns))
            bench_suite_fail(suite, "daemon or worker is gone");
    }
    if (!suite->failed) {
        double elapsed_ns = (double)(attnd_clock_ns() - from_ns);

        snprintf(notes, sizeof(notes), "daemon and worker, %d idle clients, %.0f s", IDLE_CLIENTS,
                 elapsed_ns * 1e-9);
        bench_suite_figure(suite, "idle_cpu_percent",
                           100 * (double)(end_ns - begin_ns) / elapsed_ns, "%", "lower", 0.05,
                           notes);
    }
    for (int i = 0; i < IDLE_CLIENTS; i++)
        attnd_close(sessions[i]);
}

int main(int argc, char **argv)
{
    static struct bench_suite suite = {
        .name = "ring",
        .doc = "ring - an empty run against a bare spinning ring; processor time when idle",
        .rounds = 1000000,
        .seconds = 30};

    bench_suite_begin(&suite, argc, argv);
    measure_round_trip(&suite);
    if (suite.spawn)
        measure_idle(&suite);
    else
        printf("ring.idle_cpu_percent needs --spawn: a service nobody else uses\n");
    return bench_suite_end(&suite);
}
