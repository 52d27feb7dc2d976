/* test_session.c - the life of a client: its segments, and its end at any stage of it. */
#include "tests/support/rigs/service_rig.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- segments ---- */

static void a_session_has_a_private_name_and_sealed_segments(void **state)
{
    (void)state;
    service_rig_start();
    struct session session = service_rig_open_session();
    assert_true(session.fd_count == 3 || session.fd_count == 4);
    int fixed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    assert_int_equal(fcntl(session.fds[0], F_GET_SEALS) & fixed, fixed);
    assert_int_equal(fcntl(session.fds[1], F_GET_SEALS) & fixed, fixed);
    assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, session.fds[1], 0) ==
                MAP_FAILED);

    Attnd__Reply *reply = service_rig_ask_status();
    assert_int_equal(reply->status->n_sessions, 1);
    assert_string_equal(reply->status->sessions[0]->name, "by?hand");
    assert_int_equal(reply->status->sessions[0]->pid, getpid());
    assert_string_equal(reply->status->backend, "stub");
    attnd__reply__free_unpacked(reply, NULL);
    service_rig_close_session(&session);
    service_rig_expect_sessions(0);
}

static void a_segment_resized_before_it_is_sealed_ends_the_session(void **state)
{
    (void)state;
    service_rig_start();
    size_t fds = service_rig_fds_at_rest();
    const off_t sizes[] = {4096, 1 << 20};
    for (int i = 0; i < 2; i++) {
        struct session session = {.socket = service_rig_dial()};
        assert_int_equal(service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL),
                         0);
        assert_int_equal(ftruncate(session.fds[0], sizes[i]), 0);
        assert_int_equal(service_rig_say_mapped(session.socket), -ATTND_E_DISCONNECTED);
        service_rig_close_session(&session);
    }
    service_rig_expect_sessions(0);
    service_rig_expect_fds(fds);
}

static void a_segment_sealed_by_the_client_ends_the_session(void **state)
{
    (void)state;
    service_rig_start();
    struct session session = {.socket = service_rig_dial()};
    assert_int_equal(service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL), 0);
    assert_int_equal(fcntl(session.fds[0], F_ADD_SEALS, F_SEAL_SEAL), 0);
    assert_int_equal(service_rig_say_mapped(session.socket), -ATTND_E_DISCONNECTED);
    service_rig_close_session(&session);
    service_rig_expect_sessions(0);
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
        TEST(a_session_has_a_private_name_and_sealed_segments, automatic),
        TEST(a_session_has_a_private_name_and_sealed_segments, epoll),
        TEST(a_segment_resized_before_it_is_sealed_ends_the_session, automatic),
        TEST(a_segment_resized_before_it_is_sealed_ends_the_session, epoll),
        TEST(a_segment_sealed_by_the_client_ends_the_session, automatic),
        TEST(a_dead_clients_session_ends_though_its_child_holds_the_socket, automatic),
        TEST(a_dead_clients_session_ends_though_its_child_holds_the_socket, epoll),
        TEST(many_deaths_leave_nothing_behind, automatic),
        TEST(many_deaths_leave_nothing_behind, epoll),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
