/*
 * test_spawn.c - what the worker inherits, how it is told apart from other ends, and that nothing
 * is left behind. The worker is this program again: it says what it found, or ends as it is told.
 */
#include "service/supervise/spawn.h"
#include "service/supervise/worker_abi.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FDS_MAX 64
#define SECOND_NS 1000000000u

/* What the worker found. */
struct report {
    uint64_t fds; /* bit n: descriptor n is open */
    ino_t queue, heap;
    int blocked, ignored; /* signals */
    char arguments[512];  /* each with a space behind */
};

static uint64_t open_fds(void)
{
    uint64_t fds = 0;
    for (int fd = 0; fd < FDS_MAX; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            fds |= UINT64_C(1) << fd;
    return fds;
}

/* ---- the worker ---- */

static int play_worker(int argc, char **argv)
{
    const char *part = getenv("ATTND_TEST_PART");
    struct report report = {.fds = open_fds()};
    struct stat queue, heap;
    sigset_t blocked;

    if (part && strcmp(part, "stay") == 0)
        for (alarm(30);;) /* does not outlive a test that fails */
            pause();
    if (part)
        return atoi(part);
    (void)sigprocmask(SIG_BLOCK, NULL, &blocked);
    for (int s = 1; s < 32; s++) {
        struct sigaction action;
        report.blocked += sigismember(&blocked, s);
        report.ignored += sigaction(s, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
    }
    if (fstat(ATTND_WORKER_FD_QUEUE, &queue) == 0)
        report.queue = queue.st_ino;
    if (fstat(ATTND_WORKER_FD_HEAP, &heap) == 0)
        report.heap = heap.st_ino;
    size_t used = 0;
    for (int i = 0; i < argc; i++)
        used += (size_t)snprintf(report.arguments + used, sizeof(report.arguments) - used, "%s ",
                                 argv[i]);
    return send(ATTND_WORKER_FD_CONTROL, &report, sizeof(report), 0) < 0;
}

/* ---- the daemon ---- */

static struct {
    struct attnd_options options;
    struct attnd_queue *queue;
    struct attnd_process process;
    struct attnd_fault fault;
    uint64_t fds; /* open before the worker was started */
    char text[96];
} rig;

static int begin(int use_eventfd)
{
    static char self[4096];
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) <= 0)
        return -1;
    memset(&rig, 0, sizeof(rig));
    unsetenv("ATTND_TEST_PART");
    rig.options = (struct attnd_options){.backend = "cpu",
                                         .worker_path = self,
                                         .residency = "auto",
                                         .threads = 3,
                                         .scratch_bytes = 4096,
                                         .log_level = ATTND_LOG_WARNING};
    rig.process.control = rig.process.pidfd = -1;
    for (int fd = 3; fd < FDS_MAX; fd++) /* descriptors that the caller of the tests left open */
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (attnd_queue_new(1u << 20, use_eventfd, &rig.queue, &rig.fault) < 0)
        return -1;
    rig.fds = open_fds();
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return begin(0);
}

static int teardown(void **state)
{
    (void)state;
    attnd_spawn_signal(&rig.process, SIGKILL);
    if (!attnd_spawn_reap(&rig.process, SECOND_NS, rig.text, sizeof(rig.text)))
        return -1;
    if (rig.process.control >= 0)
        close(rig.process.control);
    if (rig.process.pidfd >= 0)
        close(rig.process.pidfd);
    int leaked = open_fds() != rig.fds;
    attnd_queue_free(rig.queue);
    return leaked;
}

static void start(const char *part)
{
    if (part)
        setenv("ATTND_TEST_PART", part, 1);
    assert_int_equal(attnd_spawn_worker(&rig.options, rig.queue, &rig.process, &rig.fault), 0);
    assert_true(rig.process.pid > 0);
}

static void reap(void)
{
    assert_int_equal(
        attnd_spawn_reap(&rig.process, 10 * (uint64_t)SECOND_NS, rig.text, sizeof(rig.text)), 1);
    assert_int_equal(rig.process.pid, 0);
}

static struct report listen_to_it(void)
{
    struct report report;
    start(NULL);
    struct pollfd control = {.fd = rig.process.control, .events = POLLIN};
    assert_int_equal(poll(&control, 1, 10000), 1);
    assert_int_equal(recv(rig.process.control, &report, sizeof(report), 0), sizeof(report));
    reap();
    return report;
}

/* ---- what it inherits ---- */

static void the_worker_has_its_descriptors_and_no_other(void **state)
{
    (void)state;
    struct stat queue, heap;
    int daemons = open("/dev/null", O_RDONLY | O_CLOEXEC); /* as everything of the daemon is */
    struct report report = listen_to_it();
    close(daemons);
    assert_int_equal(report.fds >> 3,
                     ((1u << ATTND_WORKER_FD_CONTROL) | (1u << ATTND_WORKER_FD_QUEUE) |
                      (1u << ATTND_WORKER_FD_HEAP)) >>
                         3);
    assert_int_equal(fstat(rig.queue->rings_fd, &queue), 0);
    assert_int_equal(report.queue, queue.st_ino);
    assert_int_equal(fstat(rig.queue->heap_fd, &heap), 0);
    assert_int_equal(report.heap, heap.st_ino);
    assert_null(strstr(report.arguments, "--retire-eventfd"));
}

static void an_eventfd_comes_along_where_the_daemon_sleeps_on_one(void **state)
{
    (void)state;
    assert_int_equal(teardown(NULL), 0);
    assert_int_equal(begin(1), 0);
    struct report report = listen_to_it();
    assert_int_equal(report.fds >> 3, 15);
    assert_non_null(strstr(report.arguments, "--retire-eventfd "));
}

static void signals_that_the_daemon_holds_back_reach_the_worker(void **state)
{
    (void)state;
    sigset_t ending, before;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    assert_int_equal(sigprocmask(SIG_BLOCK, &ending, &before), 0);
    void (*pipes)(int) = signal(SIGPIPE, SIG_IGN);
    struct report report = listen_to_it();
    (void)signal(SIGPIPE, pipes);
    assert_int_equal(sigprocmask(SIG_SETMASK, &before, NULL), 0);
    assert_int_equal(report.blocked, 0);
    assert_int_equal(report.ignored, 0);
}

static void options_become_arguments_and_what_is_not_set_is_not_said(void **state)
{
    char parent[32];
    (void)state;
    snprintf(parent, sizeof(parent), "--parent=%d ", (int)getpid());
    struct report plain = listen_to_it();
    static const char *const always[] = {"attnd-worker ",   "--backend=cpu ", "--threads=3 ",
                                         "--scratch=4096 ", "--log-level=4 ", "--residency=auto "};
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        assert_non_null(strstr(plain.arguments, always[i]));
    assert_non_null(strstr(plain.arguments, parent));
    assert_null(strstr(plain.arguments, "--isa"));
    assert_null(strstr(plain.arguments, "--inject"));

    close(rig.process.control);
    close(rig.process.pidfd);
    rig.options.isa = "avx2";
    rig.options.inject = "stop";
    rig.options.sms = 40;
    rig.options.reserve = 8;
    rig.options.device = 2;
    struct report all = listen_to_it();
    assert_non_null(strstr(all.arguments, "--isa=avx2 "));
    assert_non_null(strstr(all.arguments, "--inject=stop "));
    assert_non_null(strstr(all.arguments, "--sms=40 "));
    assert_non_null(strstr(all.arguments, "--reserve=8 "));
    assert_non_null(strstr(all.arguments, "--device=2 "));
}

/* ---- how it ends ---- */

static void how_it_ended_is_said_by_name(void **state)
{
    static const char *const said[][2] = {{"0", "exited with 0 (it parked and left)"},
                                          {"3", "exited with 3 (its backend does not start)"},
                                          {"5", "exited with 5 (a tile did not end)"},
                                          {"99", "exited with 99 (unknown)"}};
    (void)state;
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        start(said[i][0]);
        reap();
        assert_string_equal(rig.text, said[i][1]);
        close(rig.process.control);
        close(rig.process.pidfd);
    }
    start("stay");
    attnd_spawn_signal(&rig.process, SIGKILL);
    reap();
    assert_string_equal(rig.text, "was killed by signal 9");
}

static void one_that_lives_is_waited_for_no_longer_than_asked(void **state)
{
    (void)state;
    start("stay");
    pid_t pid = rig.process.pid;
    uint64_t begin_ns = attnd_clock_ns();
    assert_int_equal(attnd_spawn_reap(&rig.process, 30000000u, rig.text, sizeof(rig.text)), 0);
    uint64_t took_ns = attnd_clock_ns() - begin_ns;
    assert_true(took_ns >= 30000000u && took_ns < 5 * (uint64_t)SECOND_NS);
    assert_int_equal(rig.process.pid, pid);
    assert_int_equal(attnd_spawn_reap(&rig.process, 0, rig.text, sizeof(rig.text)), 0);
}

static void what_was_reaped_is_gone_for_good(void **state)
{
    (void)state;
    start("0");
    reap();
    attnd_spawn_signal(&rig.process, SIGKILL); /* to nobody: its number may be another's by now */
    assert_int_equal(attnd_spawn_reap(&rig.process, 0, rig.text, sizeof(rig.text)), 1);
}

/* Children are reaped by the kernel then: there is no status, but it is gone. */
static void an_end_that_nobody_may_ask_for_is_an_end(void **state)
{
    (void)state;
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    start("3");
    int rc = attnd_spawn_reap(&rig.process, 10 * (uint64_t)SECOND_NS, rig.text, sizeof(rig.text));
    (void)signal(SIGCHLD, before);
    assert_int_equal(rc, 1);
    assert_string_equal(rig.text, "ended");
}

static void a_program_that_is_not_there_is_an_error_of_the_system(void **state)
{
    (void)state;
    rig.options.worker_path = "/nowhere/attnd-worker";
    assert_int_equal(attnd_spawn_worker(&rig.options, rig.queue, &rig.process, &rig.fault),
                     -ATTND_E_SYSTEM);
    assert_int_equal(rig.fault.value, ENOENT);
    assert_int_equal(rig.process.pid, 0);
    assert_int_equal(open_fds(), rig.fds);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(the_worker_has_its_descriptors_and_no_other),
        TEST(an_eventfd_comes_along_where_the_daemon_sleeps_on_one),
        TEST(signals_that_the_daemon_holds_back_reach_the_worker),
        TEST(options_become_arguments_and_what_is_not_set_is_not_said),
        TEST(how_it_ended_is_said_by_name),
        TEST(one_that_lives_is_waited_for_no_longer_than_asked),
        TEST(what_was_reaped_is_gone_for_good),
        TEST(an_end_that_nobody_may_ask_for_is_an_end),
        TEST(a_program_that_is_not_there_is_an_error_of_the_system),
#undef TEST
    };
    if (strcmp(argv[0], "attnd-worker") == 0)
        return play_worker(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
