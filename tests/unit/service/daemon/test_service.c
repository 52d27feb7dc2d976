/* test_service.c - the daemon from outside: its socket, and its end. */
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
    if (getuid() != 0) /* root alone can be somebody else */
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
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
