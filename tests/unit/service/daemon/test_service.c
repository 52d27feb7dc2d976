/* test_service.c - the daemon from outside: its socket, and the end of a client and of everything.
 */
#include "tests/support/rigs/service_rig.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the socket ---- */

static void a_signal_ends_it_cleanly(void **state)
{
    (void)state;
    struct stat file;
    service_rig_start();
    assert_int_equal(stat(service_rig.options.socket_path, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0600);
    struct session session = service_rig_open_session();
    service_rig_stop();
    service_rig_expect_notice("STOPPING=1");
    assert_int_equal(stat(service_rig.options.socket_path, &file), -1);
    assert_int_equal(service_rig_say_mapped(session.socket), -ATTND_E_DISCONNECTED);
    service_rig_close_session(&session);
}

static void a_second_service_is_refused_and_the_first_goes_on(void **state)
{
    (void)state;
    service_rig_start();
    service_rig.options.log_level = (enum attnd_log_level)0;
    assert_int_equal(service_rig_join(service_rig_start_daemon()), ATTND_EXIT_SOCKET);
    service_rig_expect_sessions(0);
}

static void the_socket_of_a_dead_service_is_replaced(void **state)
{
    (void)state;
    service_rig_start();
    kill(service_rig.daemon, SIGKILL);
    assert_int_equal(service_rig_join(service_rig.daemon), 1000 + SIGKILL);
    assert_int_equal(access(service_rig.options.socket_path, F_OK), 0);
    service_rig_start();
    service_rig_expect_sessions(0);
}

static void what_is_no_socket_is_left_alone(void **state)
{
    (void)state;
    int fd = open(service_rig.options.socket_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    service_rig.options.log_level = (enum attnd_log_level)0;
    assert_int_equal(service_rig_join(service_rig_start_daemon()), ATTND_EXIT_SOCKET);
    assert_int_equal(access(service_rig.options.socket_path, F_OK), 0);
}

#define NOBODY 65534u

/* A user who is not admitted opens connections and says nothing. */
static pid_t fork_stranger(void)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (setresuid(NOBODY, NOBODY, NOBODY) < 0) /* first: it forgets the next */
            _exit(1);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (uint32_t i = 0; i < 2 * ATTND_VISITORS_MAX; i++)
            (void)service_rig_dial();
        (void)write(ready[1], "r", 1);
        pause();
        _exit(0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void strangers_leave_room_for_those_who_are_admitted(void **state)
{
    (void)state;
    if (getuid() != 0) /* who can be somebody else */
        skip();
    service_rig.options.allow_uids[service_rig.options.allow_uids_count++] =
        1; /* the socket is for others too */
    assert_int_equal(chmod(service_rig.directory, 0711), 0);
    service_rig.options.log_level = (enum attnd_log_level)0;
    service_rig_start();
    pid_t stranger = fork_stranger();
    for (int i = 0; i < 3; i++) {
        struct session session = service_rig_open_session();
        service_rig_close_session(&session);
    }
    assert_int_equal(kill(stranger, SIGKILL), 0);
    assert_int_equal(service_rig_join(stranger), 1000 + SIGKILL);
}

/* ---- the end of a client ---- */

/* A client process that opens a session and then stays, with a child that holds the socket too. */
static pid_t fork_client(pid_t *child)
{
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct session session = {.socket = service_rig_dial()};
        if (service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL) < 0 ||
            service_rig_say_mapped(session.socket) < 0 ||
            service_rig_create_pool(session.socket) < 0)
            _exit(1);
        pid_t own = fork();
        if (own == 0)
            alarm(30); /* does not outlive a test that fails */
        else if (write(ready[1], &own, sizeof(own)) != (ssize_t)sizeof(own))
            _exit(1);
        pause();
        _exit(0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], child, sizeof(*child)), sizeof(*child));
    close(ready[0]);
    return pid;
}

static void a_dead_clients_session_ends_though_its_child_holds_the_socket(void **state)
{
    (void)state;
    pid_t child;
    service_rig_start();
    size_t fds = service_rig_fds_at_rest();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = fork_client(&child);
    service_rig_expect_sessions(1);
    kill(pid, SIGKILL);
    assert_int_equal(service_rig_join(pid), 1000 + SIGKILL);
    service_rig_expect_sessions(0);
    service_rig_expect_fds(fds);
    assert_int_equal(waitpid(child, NULL, WNOHANG), 0); /* it lived all the while */
    kill(child, SIGKILL);
    assert_int_equal(service_rig_join(child), 1000 + SIGKILL);
}

static void many_deaths_leave_nothing_behind(void **state)
{
    (void)state;
    service_rig_start();
    struct session warm = service_rig_open_session();
    assert_int_equal(service_rig_create_pool(warm.socket), 0);
    service_rig_close_session(&warm);
    service_rig_expect_sessions(0);
    size_t fds = service_rig_fds_at_rest();
    for (int round = 0; round < 100; round++) {
        struct session session = {.socket = service_rig_dial()};
        /* At every stage of its life. */
        if (round % 4 > 0)
            assert_int_equal(
                service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL), 0);
        if (round % 4 > 1)
            assert_int_equal(service_rig_say_mapped(session.socket), 0);
        if (round % 4 > 2)
            assert_int_equal(service_rig_create_pool(session.socket), 0);
        service_rig_close_session(&session);
    }
    service_rig_expect_sessions(0);
    service_rig_expect_fds(fds);
    Attnd__Reply *reply = service_rig_ask_status();
    assert_int_equal(reply->status->n_pools, 0);
    assert_int_equal(reply->status->heap_used_bytes, 0);
    attnd__reply__free_unpacked(reply, NULL);
}

int main(void)
{
    static const enum attnd_loop_kind automatic = ATTND_LOOP_AUTO, epoll = ATTND_LOOP_EPOLL;
    const struct CMUnitTest tests[] = {
#define TEST(name, loop)                                                                           \
    {#name, name, service_rig_setup, service_rig_teardown, (void *)(uintptr_t) & (loop)}
        TEST(a_signal_ends_it_cleanly, automatic),
        TEST(a_signal_ends_it_cleanly, epoll),
        TEST(a_second_service_is_refused_and_the_first_goes_on, automatic),
        TEST(the_socket_of_a_dead_service_is_replaced, automatic),
        TEST(what_is_no_socket_is_left_alone, automatic),
        TEST(strangers_leave_room_for_those_who_are_admitted, automatic),
        TEST(a_dead_clients_session_ends_though_its_child_holds_the_socket, automatic),
        TEST(a_dead_clients_session_ends_though_its_child_holds_the_socket, epoll),
        TEST(many_deaths_leave_nothing_behind, automatic),
        TEST(many_deaths_leave_nothing_behind, epoll),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
