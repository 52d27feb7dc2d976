/* test_handshake.c - how a session begins, and those who get it wrong. */
#include "ipc/wake.h"
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

static void calls_out_of_turn_are_refused_and_change_nothing(void **state)
{
    (void)state;
    service_rig_start();
    struct session session = {.socket = service_rig_dial()};
    assert_int_equal(service_rig_say_mapped(session.socket), -ATTND_E_PROTOCOL);
    assert_int_equal(service_rig_create_pool(session.socket), -ATTND_E_PROTOCOL);
    assert_int_equal(service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL), 0);
    assert_int_equal(service_rig_create_pool(session.socket), -ATTND_E_PROTOCOL);
    assert_int_equal(service_rig_say_mapped(session.socket), 0);
    assert_int_equal(service_rig_say_mapped(session.socket), -ATTND_E_PROTOCOL);
    assert_int_equal(service_rig_create_pool(session.socket), 0);
    service_rig_close_session(&session);
}

static void a_wish_that_cannot_be_granted_is_named(void **state)
{
    (void)state;
    struct attnd_fault fault = {0};
    service_rig_start();
    struct session session = {.socket = service_rig_dial()};
    assert_int_equal(
        service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION + 1, 8, 64 << 10, &fault),
        -ATTND_E_VERSION);
    assert_int_equal(fault.value, ATTND_PROTOCOL_VERSION + 1);
    assert_int_equal(fault.limit, ATTND_PROTOCOL_VERSION);
    assert_int_equal(service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 12, 64 << 10, &fault),
                     -ATTND_E_RANGE);
    assert_int_equal(fault.field, ATTND_F_RING_ENTRIES);
    assert_int_equal(service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 8, UINT64_MAX, &fault),
                     -ATTND_E_RANGE);
    assert_int_equal(fault.field, ATTND_F_ARENA);
    assert_int_equal(service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 0, &fault),
                     -ATTND_E_RANGE);
    assert_int_equal(fault.limit, 64 << 10);
    assert_int_equal(service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 4096, 64 << 10, NULL),
                     0);
    assert_int_equal(service_rig_say_mapped(session.socket), 0);
    service_rig_close_session(&session);
}

static void what_is_no_request_ends_the_connection(void **state)
{
    (void)state;
    static uint8_t large[ATTND_DATAGRAM_BYTES_MAX + 1];
    int fds[ATTND_FDS_MAX], fd_count = 0;
    service_rig_start();
    int socket = service_rig_dial();
    assert_int_equal(attnd_fdpass_send(socket, "rubbish", 7, NULL, 0), 0);
    assert_null(service_rig_receive(socket, fds, &fd_count));
    close(socket);
    struct session session = service_rig_open_session();
    assert_int_equal(attnd_fdpass_send(session.socket, large, sizeof(large), NULL, 0), 0);
    assert_null(service_rig_receive(session.socket, fds, &fd_count));
    service_rig_close_session(&session);
    service_rig_expect_sessions(0);
}

static size_t pack_status(uint8_t bytes[64])
{
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    return attnd__request__pack(&request, bytes);
}

static void descriptors_nobody_asked_for_are_closed(void **state)
{
    (void)state;
    uint8_t bytes[64];
    int fds[ATTND_FDS_MAX], fd_count = 0;
    service_rig_start();
    struct session session = service_rig_open_session();
    size_t before = service_rig_fds_at_rest(), size_bytes = pack_status(bytes);
    for (int i = 0; i < ATTND_FDS_MAX; i++)
        fds[i] = service_rig.notify;
    assert_int_equal(attnd_fdpass_send(session.socket, bytes, size_bytes, fds, ATTND_FDS_MAX), 0);
    Attnd__Reply *reply = service_rig_receive(session.socket, fds, &fd_count);
    assert_non_null(reply);
    attnd__reply__free_unpacked(reply, NULL);
    service_rig_expect_fds(before);
    service_rig_close_session(&session);
}

static void a_visitor_brings_no_descriptors(void **state)
{
    (void)state;
    uint8_t bytes[64];
    int pair[2];
    service_rig_start();
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    int refused = attnd_fdpass_allow(pair[0], 0) == 0;
    close(pair[0]);
    close(pair[1]);
    if (!refused)
        skip(); /* Linux before 6.16: they come, and are closed */
    int socket = service_rig_dial();
    size_t size_bytes = pack_status(bytes);
    assert_int_equal(attnd_fdpass_send(socket, bytes, size_bytes, &service_rig.notify, 1),
                     -ATTND_E_SYSTEM);
    assert_int_equal(attnd_fdpass_send(socket, bytes, size_bytes, NULL, 0), 0);
    close(socket);
}

static void a_stranger_is_told_so(void **state)
{
    (void)state;
    struct stat file;
    struct attnd_fault fault = {0};
    service_rig.options.allow_uids[0] = getuid() + 1;
    service_rig_start();
    /* Others may connect: what they are decides, not the file. */
    assert_int_equal(stat(service_rig.options.socket_path, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0666);
    struct session session = {.socket = service_rig_dial()};
    assert_int_equal(service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 64 << 10, &fault),
                     -ATTND_E_PERMISSION);
    assert_int_equal(fault.field, ATTND_F_SOCKET);
    assert_int_equal(fault.value, getuid());
    service_rig_close_session(&session);
}

#define HALF (ATTND_SESSIONS_MAX / 2)

/* Another process with @count sessions, until end_process(). */
static pid_t begin_process(uint32_t count)
{
    char byte = 0;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (uint32_t i = 0; i < count; i++)
            (void)service_rig_open_session();
        (void)!write(ends[1], &byte, 1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return pid;
}

static void end_process(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void expect_refused(struct session *late, uint32_t value, uint32_t limit)
{
    struct attnd_fault fault = {0};
    assert_int_equal(service_rig_say_hello(late, ATTND_PROTOCOL_VERSION, 8, 64 << 10, &fault),
                     -ATTND_E_RANGE);
    assert_int_equal(fault.field, ATTND_F_SESSIONS);
    assert_int_equal(fault.value, value);
    assert_int_equal(fault.limit, limit);
}

static void a_process_may_have_half_of_the_sessions(void **state)
{
    static struct session sessions[HALF];
    (void)state;
    service_rig_start();
    for (uint32_t i = 0; i < HALF; i++)
        sessions[i] = service_rig_open_session();
    struct session late = {.socket = service_rig_dial()};
    expect_refused(&late, HALF + 1, HALF);
    pid_t other = begin_process(2); /* which has no less room for it */
    assert_int_equal(service_rig_count_sessions(), HALF + 2);
    end_process(other);
    service_rig_expect_sessions(HALF);
    service_rig_close_session(&sessions[0]);
    service_rig_expect_sessions(HALF - 1);
    assert_int_equal(service_rig_say_hello(&late, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL), 0);
    assert_int_equal(service_rig_say_mapped(late.socket), 0);
    service_rig_close_session(&late);
    for (uint32_t i = 1; i < HALF; i++)
        service_rig_close_session(&sessions[i]);
    service_rig_expect_sessions(0);
}

/* A process can fork, and a user cannot. */
static void a_user_among_several_may_have_half_of_the_sessions(void **state)
{
    (void)state;
    service_rig.options.allow_uids[service_rig.options.allow_uids_count++] = getuid() + 1;
    service_rig_start();
    pid_t one = begin_process(HALF / 2), other = begin_process(HALF - HALF / 2);
    struct session late = {.socket = service_rig_dial()};
    expect_refused(&late, HALF + 1, HALF);
    close(late.socket);
    end_process(one);
    end_process(other);
}

static void a_full_house_refuses_sessions_and_still_answers(void **state)
{
    (void)state;
    static struct session sessions[HALF - 1];
    struct attnd_fault fault = {0};
    service_rig_start();
    pid_t most = begin_process(HALF), another = begin_process(1);
    for (uint32_t i = 0; i < HALF - 1; i++)
        sessions[i] = service_rig_open_session();
    struct session late = {.socket = service_rig_dial()};
    assert_int_equal(service_rig_count_sessions(), ATTND_SESSIONS_MAX); /* and late is accepted */
    size_t fds = service_rig_fds_at_rest();
    for (int i = 0; i < 3; i++)
        expect_refused(&late, ATTND_SESSIONS_MAX + 1, ATTND_SESSIONS_MAX);
    service_rig_expect_fds(fds); /* nothing was kept for it */
    assert_int_equal(service_rig_count_sessions(), ATTND_SESSIONS_MAX);
    service_rig_close_session(&sessions[10]);
    service_rig_expect_sessions(ATTND_SESSIONS_MAX - 1);
    assert_int_equal(service_rig_say_hello(&late, ATTND_PROTOCOL_VERSION, 8, 64 << 10, &fault), 0);
    assert_int_equal(service_rig_say_mapped(late.socket), 0);
    service_rig_close_session(&late);
    for (uint32_t i = 0; i < HALF - 1; i++)
        if (i != 10)
            service_rig_close_session(&sessions[i]);
    end_process(most);
    end_process(another);
    service_rig_expect_sessions(0);
}

static void who_does_not_finish_the_handshake_is_dropped(void **state)
{
    (void)state;
    int fds[ATTND_FDS_MAX], fd_count = 0;
    service_rig_start();
    uint64_t begin_ns = attnd_clock_ns(); /* before the first of them is there */
    int silent = service_rig_dial();
    struct session half = {.socket = service_rig_dial()};
    assert_int_equal(service_rig_say_hello(&half, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL), 0);
    assert_null(service_rig_receive(silent, fds, &fd_count));
    assert_null(service_rig_receive(half.socket, fds, &fd_count));
    uint64_t waited_ns = attnd_clock_ns() - begin_ns;
    assert_in_range(waited_ns, 5000000000u, 9000000000u);
    close(silent);
    service_rig_close_session(&half);
    service_rig_expect_sessions(0);
}

int main(void)
{
    static const enum attnd_loop_kind automatic = ATTND_LOOP_AUTO;
    const struct CMUnitTest tests[] = {
#define TEST(name, loop)                                                                           \
    {#name, name, service_rig_setup, service_rig_teardown, (void *)(uintptr_t) & (loop)}
        TEST(calls_out_of_turn_are_refused_and_change_nothing, automatic),
        TEST(a_wish_that_cannot_be_granted_is_named, automatic),
        TEST(what_is_no_request_ends_the_connection, automatic),
        TEST(descriptors_nobody_asked_for_are_closed, automatic),
        TEST(a_visitor_brings_no_descriptors, automatic),
        TEST(a_stranger_is_told_so, automatic),
        TEST(a_process_may_have_half_of_the_sessions, automatic),
        TEST(a_user_among_several_may_have_half_of_the_sessions, automatic),
        TEST(a_full_house_refuses_sessions_and_still_answers, automatic),
        TEST(who_does_not_finish_the_handshake_is_dropped, automatic),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
