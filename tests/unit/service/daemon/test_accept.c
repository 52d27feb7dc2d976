/* test_accept.c - who comes in when others crowd the door, and what a peer's files may cost. */
#include "ipc/discard.h"
#include "ipc/wake.h"
#include "tests/support/harness/harness.h"
#include "tests/support/harness/slow_file.h"
#include "tests/support/rigs/service_rig.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

/* 1: the daemon of a test is on a kernel before Linux 6.16, which refuses no descriptors. */
static int old_kernel;

/* In place of the C library's, for the daemon too. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
    if (old_kernel && level == SOL_SOCKET && name == SO_PASSRIGHTS) {
        errno = ENOPROTOOPT;
        return -1;
    }
    return (int)syscall(SYS_setsockopt, fd, level, name, value, bytes);
}

/* A process of this user's that does @what, says that it has, and stays. */
static pid_t fork_peer(void (*what)(void))
{
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        what();
        if (write(ready[1], &byte, 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void end_peer(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(service_rig_join(pid), 1000 + SIGKILL);
}

static void crowd(void)
{
    for (uint32_t i = 0; i < 4 * ATTND_VISITORS_MAX; i++)
        (void)service_rig_dial();
}

static void a_process_that_connects_and_says_nothing_keeps_nobody_out(void **state)
{
    (void)state;
    service_rig.options.log_level = (enum attnd_log_level)0;
    service_rig_start();
    pid_t silent = fork_peer(crowd);
    for (int i = 0; i < 20; i++) {
        struct session session = service_rig_open_session();
        service_rig_close_session(&session);
    }
    end_peer(silent);
}

static void many_processes_that_say_nothing_keep_nobody_out(void **state)
{
    (void)state;
    pid_t silent[8];
    service_rig.options.log_level = (enum attnd_log_level)0;
    service_rig_start();
    for (size_t i = 0; i < 8; i++)
        silent[i] = fork_peer(crowd);
    for (int i = 0; i < 20; i++) {
        struct session session = service_rig_open_session();
        service_rig_close_session(&session);
    }
    for (size_t i = 0; i < 8; i++)
        end_peer(silent[i]);
}

/* More descriptors in a datagram than a call has, all of files that take long to close. */
static void send_slow_files(int socket)
{
    enum { FILES = 200 };
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(FILES * sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(FILES * sizeof(int)),
                            .cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS}};
    char byte = 1;
    struct iovec part = {&byte, 1};
    const struct msghdr message = {.msg_iov = &part,
                                   .msg_iovlen = 1,
                                   .msg_control = control.bytes,
                                   .msg_controllen = sizeof(control.bytes)};
    int fds[FILES], listener;

    for (int i = 0; i < FILES; i++)
        fds[i] = slow_file(&listener);
    memcpy(CMSG_DATA(&control.header), fds, sizeof(fds));
    (void)sendmsg(socket, &message, 0);
    for (int i = 0; i < FILES; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* The daemon stands still meanwhile, so that it is the one that closes them last. */
static void flood(void)
{
    struct session session = service_rig_open_session();
    assert_int_equal(kill(service_rig.daemon, SIGSTOP), 0);
    while (!harness_threads_are(service_rig.daemon, 'T'))
        usleep(1000);
    send_slow_files(session.socket);
    assert_int_equal(kill(service_rig.daemon, SIGCONT), 0);
}

static void files_that_take_long_to_close_make_nobody_wait(void **state)
{
    (void)state;
    int listener, probe = slow_file(&listener);
    if (probe < 0)
        skip();
    close(listener);
    close(probe);
    service_rig.options.log_level = (enum attnd_log_level)0;
    service_rig_start();
    struct session honest = service_rig_open_session();
    pid_t hostile[2];
    for (size_t i = 0; i < 2; i++)
        hostile[i] = fork_peer(flood);
    /* The daemon's own wait would be SLOW_LINGER_S for each file. */
    uint64_t begin_ns = attnd_clock_ns();
    for (int i = 0; i < 100; i++)
        service_rig_expect_sessions(1);
    assert_int_equal(service_rig_create_pool(honest.socket), 0);
    assert_true(attnd_clock_ns() - begin_ns < SLOW_LINGER_S * UINT64_C(500000000));
    for (size_t i = 0; i < 2; i++)
        end_peer(hostile[i]);
    service_rig_close_session(&honest);
}

/* As a call without effect that brings @fd. */
static void ask_with(int socket, int fd)
{
    uint8_t bytes[64];
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    size_t size_bytes = attnd__request__pack(&request, bytes);
    assert_int_equal(attnd_fdpass_send(socket, bytes, size_bytes, &fd, 1), 0);
}

static void a_session_waits_while_descriptors_run_low(void **state)
{
    (void)state;
    struct rlimit limit, low;
    service_rig.options.log_level = (enum attnd_log_level)0;
    service_rig_start();
    struct session session = service_rig_open_session();
    assert_int_equal(prlimit(service_rig.daemon, RLIMIT_NOFILE, NULL, &limit), 0);
    low = limit;
    low.rlim_cur = service_rig_fds_at_rest() + 4; /* less than a datagram may carry */
    assert_int_equal(prlimit(service_rig.daemon, RLIMIT_NOFILE, &low, NULL), 0);
    struct pollfd answer = {.fd = session.socket, .events = POLLIN};
    ask_with(session.socket, service_rig.notify);
    assert_int_equal(poll(&answer, 1, 200), 0);
    assert_int_equal(prlimit(service_rig.daemon, RLIMIT_NOFILE, &limit, NULL), 0);
    assert_int_equal(poll(&answer, 1, 10000), 1);
    assert_int_equal(answer.revents, POLLIN);
    service_rig_close_session(&session);
}

static int hangs_up(int socket)
{
    uint8_t byte;
    struct pollfd end = {.fd = socket, .events = POLLIN};
    return poll(&end, 1, 10000) == 1 && recv(socket, &byte, 1, 0) <= 0;
}

static void begin_with_strangers(void)
{
    old_kernel = 1;
    service_rig.options.allow_uids[0] = getuid() + 1; /* not us */
    service_rig.options.log_level = (enum attnd_log_level)0;
    service_rig_start();
}

static int end_on_an_old_kernel(void **state)
{
    old_kernel = 0;
    return service_rig_teardown(state);
}

static void a_stranger_that_sends_descriptors_gets_no_answer(void **state)
{
    (void)state;
    begin_with_strangers();
    int socket = service_rig_dial();
    ask_with(socket, service_rig.notify);
    assert_true(hangs_up(socket));
    close(socket);
}

/* Return: 1 it got an answer, a refusal. */
static int is_answered(int socket, int timeout_ms)
{
    uint8_t bytes[64];
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    struct pollfd answer = {.fd = socket, .events = POLLIN};
    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    size_t size_bytes = attnd__request__pack(&request, bytes);
    assert_int_equal(attnd_fdpass_send(socket, bytes, size_bytes, NULL, 0), 0);
    return poll(&answer, 1, timeout_ms) == 1;
}

/* Each connection of a stranger may have descriptors in it, so its end waits behind the others'. */
static void nobody_new_comes_in_while_what_strangers_left_is_not_closed(void **state)
{
    enum { PATIENCE_MS = 500 };
    int listener, last = -1, shut = 0;
    (void)state;
    begin_with_strangers();
    int socket = service_rig_dial(), slow = slow_file(&listener); /* which the daemon has not yet */
    if (slow < 0)
        skip();
    assert_int_equal(kill(service_rig.daemon, SIGSTOP), 0);
    while (!harness_threads_are(service_rig.daemon, 'T'))
        usleep(1000);
    ask_with(socket, slow);
    close(slow); /* the daemon is the last to have it */
    assert_int_equal(kill(service_rig.daemon, SIGCONT), 0);
    assert_true(hangs_up(socket));
    close(socket);
    for (uint32_t i = 0; i < 2 * ATTND_DISCARD_WAITING_MAX && !shut; i++) {
        last = service_rig_dial();
        shut = !is_answered(last, PATIENCE_MS);
        if (!shut)
            close(last);
    }
    assert_true(shut);
    close(listener); /* what is slow is over */
    struct pollfd answer = {.fd = last, .events = POLLIN};
    assert_int_equal(poll(&answer, 1, 10000), 1);
    close(last);
}

static int is_replied(int socket)
{
    int fds[ATTND_FDS_MAX], fd_count = 0;
    Attnd__Reply *reply = service_rig_receive(socket, fds, &fd_count);
    if (reply)
        attnd__reply__free_unpacked(reply, NULL);
    return reply != NULL;
}

/* The descriptors of a call are closed by the thread of its user. */
static void a_session_whose_files_do_not_close_is_ended(void **state)
{
    int listener, ended = 0;
    (void)state;
    service_rig.options.log_level = (enum attnd_log_level)0;
    service_rig_start();
    struct session session = service_rig_open_session(), honest = service_rig_open_session();
    int slow = slow_file(&listener); /* which the daemon has not yet */
    if (slow < 0)
        skip();
    assert_int_equal(kill(service_rig.daemon, SIGSTOP), 0);
    while (!harness_threads_are(service_rig.daemon, 'T'))
        usleep(1000);
    ask_with(session.socket, slow);
    close(slow);
    assert_int_equal(kill(service_rig.daemon, SIGCONT), 0);
    assert_true(is_replied(session.socket));
    for (uint32_t i = 0; i < 2 * ATTND_DISCARD_WAITING_MAX && !ended; i++) {
        ask_with(session.socket, service_rig.notify);
        ended = !is_replied(session.socket);
    }
    assert_true(ended);
    assert_int_equal(service_rig_create_pool(honest.socket), 0);
    close(listener);
    service_rig_close_session(&session);
    service_rig_close_session(&honest);
}

int main(void)
{
    static const enum attnd_loop_kind automatic = ATTND_LOOP_AUTO, epoll = ATTND_LOOP_EPOLL;
    const struct CMUnitTest tests[] = {
#define TEST(name, loop)                                                                           \
    {#name, name, service_rig_setup, service_rig_teardown, (void *)(uintptr_t) & (loop)}
        TEST(a_process_that_connects_and_says_nothing_keeps_nobody_out, automatic),
        TEST(many_processes_that_say_nothing_keep_nobody_out, automatic),
        TEST(files_that_take_long_to_close_make_nobody_wait, automatic),
        TEST(a_session_waits_while_descriptors_run_low, automatic),
        TEST(a_session_waits_while_descriptors_run_low, epoll),
        TEST(a_session_whose_files_do_not_close_is_ended, automatic),
#undef TEST
#define TEST(name)                                                                                 \
    {#name, name, service_rig_setup, end_on_an_old_kernel, (void *)(uintptr_t)&automatic}
        TEST(a_stranger_that_sends_descriptors_gets_no_answer),
        TEST(nobody_new_comes_in_while_what_strangers_left_is_not_closed),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
