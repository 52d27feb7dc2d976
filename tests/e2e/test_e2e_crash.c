/*
 * test_e2e_crash.c - a process ends or stands still at each step of the protocols; nothing is lost.
 *
 * Each row of the matrix is a point of schemas/crash.h and a signal. A client does what clients do
 * (doer.h), and the process of the row is killed or stopped when it comes to the point. Afterwards
 * what is counted balances: quotas, pools, runs, descriptors. Then a client does all of it again.
 *
 *   ATTND_CRASH_COUNTS=N  each row for the first N times that the point is reached (default: 1)
 *
 * Only builds with CRASH_POINTS=1 have the points; elsewhere the program is skipped. With the
 * worker of a GPU the rows are those of the worker.
 */
#include "schemas/crash.h"
#include "tests/support/harness/doer.h"
#include "tests/support/harness/e2e.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef ATTND_CRASH_POINTS

#define END_MS 20000u
#define AFTERWARDS_MS 200

enum side { CLIENT, DAEMON, WORKER };

struct row {
    enum attnd_crash_point point;
    int signal;
    unsigned count;
};

static struct harness service;
static char arm_file[128];

static enum side side_of(enum attnd_crash_point point)
{
    const char *name = attnd_crash_name(point);

    return strncmp(name, "CLIENT", 6) == 0 ? CLIENT : name[0] == 'D' ? DAEMON : WORKER;
}

/* Is it a step of the other backend, or one between two services (test_e2e_peers_death.c)? */
static int is_elsewhere(enum attnd_crash_point point)
{
    if (strstr(attnd_crash_name(point), "_PEER_") || strstr(attnd_crash_name(point), "_BRING_") ||
        strncmp(attnd_crash_name(point), "MOVER_", 6) == 0)
        return 1;
    return strncmp(attnd_crash_name(point), e2e_on_gpu() ? "CPU" : "GPU", 3) == 0;
}

static int do_all(void *context)
{
    if (context) /* the crash is this client's */
        setenv("ATTND_CRASH", context, 1);
    return doer_do_all(service.socket);
}

static void do_all_once(void)
{
    CHECK_EQUAL(harness_join(harness_fork(do_all, NULL), END_MS), 0);
}

/* ---- what must balance ---- */

static int nothing_is_left(void *context)
{
    Attnd__Status *status = harness_status(&service);
    uint64_t left = status->n_sessions + status->n_pools + status->n_users + status->queue_runs +
                    status->queue_waiting;

    (void)context;
    for (size_t i = 0; i < status->n_quotas; i++)
        left += status->quotas[i]->used;
    attnd__status__free_unpacked(status, NULL);
    return left == 0;
}

struct held {
    pid_t pid;
    uint32_t descriptors;
};

static int holds_no_more(void *context)
{
    const struct held *held = context;
    return harness_descriptors(held->pid) <= held->descriptors;
}

struct balance {
    struct held daemon, worker;
};

/* Of a process at rest: all its threads sleep, and two looks in a row agree. */
static uint32_t fds_at_rest(pid_t pid)
{
    uint32_t before, now = harness_descriptors(pid);

    do {
        before = now;
        harness_sleep_ms(20);
        now = harness_descriptors(pid);
    } while (now != before || !harness_threads_are(pid, 'S'));
    return now;
}

/* Everything has been made once that is made once. */
static struct balance balance_at_rest(void)
{
    do_all_once();
    harness_eventually(nothing_is_left, NULL, END_MS, "a client that closed leaves nothing");
    const pid_t worker = harness_worker(&service);
    return (struct balance){{service.daemon, fds_at_rest(service.daemon)},
                            {worker, fds_at_rest(worker)}};
}

static void expect_balance(struct balance *before)
{
    harness_eventually(nothing_is_left, NULL, END_MS, "nothing is left of what was counted");
    harness_eventually(holds_no_more, &before->daemon, END_MS, "the daemon's descriptors");
    if (harness_worker(&service) == before->worker.pid)
        harness_eventually(holds_no_more, &before->worker, END_MS, "the worker's descriptors");
}

/* ---- a row ---- */

static void arm(void)
{
    int fd = open(arm_file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    CHECK(fd >= 0);
    close(fd);
}

static int has_fired(void *context)
{
    (void)context;
    return access(arm_file, F_OK) < 0;
}

/* A count of 1 must be reached, a larger one need not: then the client ends before. The daemon
 * reaches some points after that. Return: 1 it fired; 0 it did not, and will not. */
static int fires(const struct row *row, pid_t client)
{
    siginfo_t ended = {0};

    if (row->count == 1) {
        harness_eventually(has_fired, NULL, END_MS, attnd_crash_name(row->point));
        return 1;
    }
    while (!has_fired(NULL) && ended.si_pid == 0) {
        CHECK_EQUAL(waitid(P_PID, (id_t)client, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
        harness_sleep_ms(1);
    }
    for (int ms = 0; ms < AFTERWARDS_MS && !has_fired(NULL); ms++)
        harness_sleep_ms(1);
    return unlink(arm_file) < 0;
}

static void describe(const struct row *row, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s %d %u %s", attnd_crash_name(row->point), row->signal, row->count,
             arm_file);
}

static int stands_still(void *context)
{
    return harness_threads_are(*(const pid_t *)context, 'T');
}

static void go_on(pid_t pid)
{
    harness_eventually(stands_still, &pid, END_MS, "it stands still");
    CHECK_EQUAL(kill(pid, SIGCONT), 0);
}

static int ended_by(pid_t pid, int signal)
{
    int status = 0;

    CHECK_EQUAL(harness_reap(pid, END_MS, &status), 1);
    return WIFSIGNALED(status) && WTERMSIG(status) == signal;
}

/* While a client stands still, another does all there is. */
static void crash_client(const struct row *row)
{
    static char text[256];
    struct balance before = balance_at_rest();

    describe(row, text, sizeof(text));
    arm();
    pid_t pid = harness_fork(do_all, text);
    if (!fires(row, pid)) {
        CHECK_EQUAL(harness_join(pid, END_MS), 0);
    } else if (row->signal == SIGKILL) {
        CHECK(ended_by(pid, SIGKILL));
    } else {
        harness_eventually(stands_still, &pid, END_MS, "it stands still");
        do_all_once();
        go_on(pid);
        CHECK_EQUAL(harness_join(pid, END_MS), 0);
    }
    expect_balance(&before);
}

/* Clients learn of a daemon's end, its worker leaves, and another daemon takes its place. */
static void crash_daemon(const struct row *row)
{
    if (row->signal == SIGSTOP) {
        struct balance before = balance_at_rest();
        arm();
        pid_t pid = harness_fork(do_all, NULL);
        if (row->point == ATTND_CRASH_DAEMON_WORKER_SPAWNED)
            CHECK_EQUAL(kill(before.worker.pid, SIGKILL), 0);
        if (fires(row, pid))
            go_on(service.daemon);
        CHECK_EQUAL(harness_join(pid, END_MS), 0);
        expect_balance(&before);
        return;
    }
    const pid_t worker = harness_worker(&service);
    int status;
    arm();
    if (row->point == ATTND_CRASH_DAEMON_WORKER_SPAWNED)
        CHECK_EQUAL(kill(worker, SIGKILL), 0);
    pid_t pid = harness_fork(do_all, NULL);
    const int fired = fires(row, pid);
    CHECK_EQUAL(harness_reap(pid, END_MS, &status), 1);
    if (!fired)
        return;
    CHECK(WIFEXITED(status) &&
          (WEXITSTATUS(status) == DOER_DISCONNECTED || WEXITSTATUS(status) == 0));
    harness_kill_daemon(&service); /* it is dead: reaped */
    harness_restart(&service, NULL);
    struct balance after = balance_at_rest();
    expect_balance(&after);
}

struct replaced {
    pid_t worker;
};

static int is_replaced(void *context)
{
    const struct replaced *own = context;
    Attnd__Status *status = harness_status(&service);
    const int is = status->worker_pid && (pid_t)status->worker_pid != own->worker &&
                   strcmp(status->worker_state, "running") == 0;

    attnd__status__free_unpacked(status, NULL);
    return is;
}

/* The client sees at most that what was in flight has to be done again. */
static void crash_worker(const struct row *row)
{
    const int begins =
        row->point == ATTND_CRASH_WORKER_QUEUE_MAPPED || row->point == ATTND_CRASH_WORKER_STARTED;
    struct balance before = balance_at_rest();

    arm();
    pid_t pid = harness_fork(do_all, NULL);
    if (begins)
        CHECK_EQUAL(kill(before.worker.pid, SIGKILL), 0);
    const int fired = fires(row, pid);
    if (fired && row->signal == SIGSTOP)
        go_on(begins ? harness_child(service.daemon, NULL, before.worker.pid) : before.worker.pid);
    CHECK_EQUAL(harness_join(pid, END_MS), 0);
    if ((fired && row->signal == SIGKILL) || begins) {
        struct replaced own = {before.worker.pid};
        harness_eventually(is_replaced, &own, END_MS, "there is another worker");
    } else {
        CHECK_EQUAL(harness_worker(&service), before.worker.pid);
    }
    expect_balance(&before);
}

/* A thread, because the test waits for the daemon meanwhile. */
static void *let_go_on(void *context)
{
    const pid_t worker = *(const pid_t *)context;

    while (!has_fired(NULL) || (kill(worker, 0) == 0 && !harness_threads_are(worker, 'T')))
        harness_sleep_ms(1);
    (void)kill(worker, SIGCONT);
    return NULL;
}

/* The daemon ends in order, whatever its worker does. */
static void crash_worker_at_the_end(const struct row *row)
{
    pid_t worker = harness_worker(&service);
    pthread_t thread;

    if (row->count > 1)
        return; /* it leaves once */
    do_all_once();
    arm();
    if (row->signal == SIGSTOP)
        CHECK_EQUAL(pthread_create(&thread, NULL, let_go_on, &worker), 0);
    harness_stop(&service);
    CHECK(has_fired(NULL));
    if (row->signal == SIGSTOP)
        CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

static void run_row(const struct row *row)
{
    char text[256];
    const enum side side = side_of(row->point);

    printf("%s, signal %d, time %u\n", attnd_crash_name(row->point), row->signal, row->count);
    describe(row, text, sizeof(text));
    (void)unlink(arm_file);
    if (side != CLIENT)
        setenv("ATTND_CRASH", text, 1); /* of the daemon, and of its workers */
    harness_start(&service, NULL);
    unsetenv("ATTND_CRASH");
    if (side == CLIENT)
        crash_client(row);
    else if (side == DAEMON)
        crash_daemon(row);
    else if (row->point == ATTND_CRASH_WORKER_TOLD_TO_LEAVE)
        crash_worker_at_the_end(row);
    else
        crash_worker(row);
    harness_stop(&service);
}

static void run_rows(enum side side, int signal)
{
    const char *text = getenv("ATTND_CRASH_COUNTS");
    const unsigned counts = text ? (unsigned)strtoul(text, NULL, 10) : 1;

    for (int point = 0; point < ATTND_CRASH_POINTS_END; point++) {
        struct row row = {.point = (enum attnd_crash_point)point, .signal = signal};
        if (side_of(row.point) != side || is_elsewhere(row.point))
            continue;
        for (row.count = 1; row.count <= counts; row.count++)
            run_row(&row);
    }
}

static void a_client_that_is_killed_leaves_nothing(void **state)
{
    (void)state;
    run_rows(CLIENT, SIGKILL);
}

static void a_client_that_stands_still_holds_nobody_up(void **state)
{
    (void)state;
    run_rows(CLIENT, SIGSTOP);
}

static void a_daemon_that_is_killed_leaves_nothing(void **state)
{
    (void)state;
    run_rows(DAEMON, SIGKILL);
}

static void a_daemon_that_stood_still_goes_on(void **state)
{
    (void)state;
    run_rows(DAEMON, SIGSTOP);
}

static void a_worker_that_is_killed_is_replaced_and_nothing_is_lost(void **state)
{
    (void)state;
    run_rows(WORKER, SIGKILL);
}

static void a_worker_that_stood_still_goes_on(void **state)
{
    (void)state;
    run_rows(WORKER, SIGSTOP);
}

int main(void)
{
    const struct CMUnitTest others[] = {
        E2E_OWN_TEST(a_client_that_is_killed_leaves_nothing),
        E2E_OWN_TEST(a_client_that_stands_still_holds_nobody_up),
        E2E_OWN_TEST(a_daemon_that_is_killed_leaves_nothing),
        E2E_OWN_TEST(a_daemon_that_stood_still_goes_on),
    };
    const struct CMUnitTest of_worker[] = {
        E2E_OWN_TEST(a_worker_that_is_killed_is_replaced_and_nothing_is_lost),
        E2E_OWN_TEST(a_worker_that_stood_still_goes_on),
    };
    int failed = 0;

    harness_init();
    snprintf(arm_file, sizeof(arm_file), "/tmp/attnd-crash-%d", (int)getpid());
    if (!e2e_on_gpu()) /* they are the same with any worker */
        failed += cmocka_run_group_tests(others, NULL, NULL);
    failed += cmocka_run_group_tests(of_worker, NULL, NULL);
    (void)unlink(arm_file);
    return failed;
}

#else

int main(void)
{
    fprintf(stderr,
            "built without CRASH_POINTS=1: no process can be made to end where it should\n");
    return 77;
}

#endif
