/* test_client_handshake.c - how a session begins, and the ways it must not. */
#include "client/attnd.h"
#include "schemas/atomics.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/fake_daemon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int open_at(const char *path, struct attnd_session **session)
{
    struct attnd_open_args args = {.size = sizeof(args), .socket_path = path, .name = "a test"};
    return attnd_open(&args, session);
}

/* An open that @spoil has made fail. Return: the fault. */
static struct attnd_fault open_spoiled(fake_spoil_fn *spoil)
{
    struct fake_daemon fake = {.spoil = spoil};
    struct attnd_session *session = (void *)&fake;
    struct attnd_fault fault;
    fake_listen(&fake);
    int rc = open_at(fake.path, &session);
    attnd_last_fault(&fault);
    CHECK_EQUAL(rc, fault.code);
    CHECK(session == NULL);
    fake_stop(&fake);
    return fault;
}

static void a_session_opens_and_tells_what_it_is_connected_to(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_info info = {.size = sizeof(info)};
    CHECK_OK(attnd_info(session, &info));
    CHECK_EQUAL(info.session, 7);
    CHECK(strcmp(info.backend, "fake") == 0);
    CHECK(strcmp(info.isa, "none") == 0);
    CHECK(strcmp(info.daemon_version, "9.9.9") == 0);
    CHECK_EQUAL(info.ring_entries, 256);
    CHECK_EQUAL(info.arena_bytes, 8 << 20);
    CHECK_EQUAL(info.size, sizeof(info));
    attnd_close(session);
    fake_stop(&fake);
}

static void the_submission_segment_is_mapped_when_mapped_is_said(void **state)
{
    (void)state;
    /* The fake seals against new writable mappings on Mapped; submitting still works after it. */
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct attnd_sqe sqe;
    CHECK_OK(attnd_cancel(session, 77));
    CHECK_EQUAL(fake_take(&fake, &sqe), 1);
    CHECK_EQUAL(sqe.u.cancel.target_user_data, 77);
    CHECK(mmap(NULL, ATTND_PAGE_BYTES, PROT_WRITE, MAP_SHARED, fake.submission.fd, 0) ==
          MAP_FAILED);
    attnd_close(session);
    fake_stop(&fake);
}

static enum fake_verdict other_version(struct fake_daemon *fake, const Attnd__Request *request,
                                       struct fake_reply *reply)
{
    (void)fake;
    if (request->call_case == ATTND__REQUEST__CALL_HELLO)
        reply->message.hello->version = ATTND_PROTOCOL_VERSION + 1;
    return FAKE_REPLY;
}

static void another_version_is_refused_with_both_numbers(void **state)
{
    (void)state;
    struct attnd_fault fault = open_spoiled(other_version);
    CHECK_EQUAL(fault.code, -ATTND_E_VERSION);
    CHECK_EQUAL(fault.field, ATTND_F_VERSION);
    CHECK_EQUAL(fault.value, ATTND_PROTOCOL_VERSION + 1);
    CHECK_EQUAL(fault.limit, ATTND_PROTOCOL_VERSION);
}

static enum fake_verdict refuse(struct fake_daemon *fake, const Attnd__Request *request,
                                struct fake_reply *reply)
{
    (void)fake;
    (void)request;
    reply->message = (Attnd__Reply)ATTND__REPLY__INIT;
    reply->message.id = request->id;
    reply->message.code = -ATTND_E_PERMISSION;
    reply->message.has_field = 1;
    reply->message.field = ATTND_F_SOCKET;
    reply->fd_count = 0;
    return FAKE_REPLY;
}

static void a_daemon_that_refuses_is_quoted(void **state)
{
    (void)state;
    struct attnd_fault fault = open_spoiled(refuse);
    CHECK_EQUAL(fault.code, -ATTND_E_PERMISSION);
    CHECK_EQUAL(fault.field, ATTND_F_SOCKET);
}

static enum fake_verdict die(struct fake_daemon *fake, const Attnd__Request *request,
                             struct fake_reply *reply)
{
    (void)fake;
    (void)request;
    (void)reply;
    return FAKE_DIE;
}

static void a_daemon_that_dies_in_the_handshake_is_noticed(void **state)
{
    (void)state;
    CHECK_EQUAL(open_spoiled(die).code, -ATTND_E_DISCONNECTED);
}

static enum fake_verdict long_arena(struct fake_daemon *fake, const Attnd__Request *request,
                                    struct fake_reply *reply)
{
    (void)fake;
    if (request->call_case == ATTND__REQUEST__CALL_HELLO)
        reply->message.hello->arena_bytes += ATTND_PAGE_BYTES;
    return FAKE_REPLY;
}

static void a_segment_shorter_than_said_is_refused_before_it_is_touched(void **state)
{
    (void)state;
    struct attnd_fault fault = open_spoiled(long_arena);
    CHECK_EQUAL(fault.code, -ATTND_E_RANGE);
    CHECK_EQUAL(fault.field, ATTND_F_SIZE);
}

static enum fake_verdict odd_ring(struct fake_daemon *fake, const Attnd__Request *request,
                                  struct fake_reply *reply)
{
    (void)fake;
    if (request->call_case == ATTND__REQUEST__CALL_HELLO)
        reply->message.hello->ring_entries = 100;
    return FAKE_REPLY;
}

static enum fake_verdict few_fds(struct fake_daemon *fake, const Attnd__Request *request,
                                 struct fake_reply *reply)
{
    (void)fake;
    (void)request;
    reply->fd_count = reply->fd_count > 0 ? reply->fd_count - 1 : 0;
    return FAKE_REPLY;
}

static enum fake_verdict arena_over_slots(struct fake_daemon *fake, const Attnd__Request *request,
                                          struct fake_reply *reply)
{
    (void)fake;
    if (request->call_case == ATTND__REQUEST__CALL_HELLO)
        reply->message.hello->arena_offset_bytes = ATTND_PAGE_BYTES;
    return FAKE_REPLY;
}

static enum fake_verdict wrong_magic(struct fake_daemon *fake, const Attnd__Request *request,
                                     struct fake_reply *reply)
{
    (void)request;
    (void)reply;
    if (fake->complete)
        fake->complete->magic ^= 1;
    return FAKE_REPLY;
}

static void a_reply_that_contradicts_itself_is_a_protocol_error(void **state)
{
    (void)state;
    CHECK_EQUAL(open_spoiled(odd_ring).code, -ATTND_E_PROTOCOL);
    CHECK_EQUAL(open_spoiled(few_fds).code, -ATTND_E_PROTOCOL);
    CHECK_EQUAL(open_spoiled(arena_over_slots).code, -ATTND_E_PROTOCOL);
    CHECK_EQUAL(open_spoiled(wrong_magic).code, -ATTND_E_PROTOCOL);
}

static void nobody_listening_is_said_with_errno(void **state)
{
    (void)state;
    struct attnd_session *session;
    struct attnd_fault fault;
    CHECK_ERROR(open_at("/tmp/attnd-there-is-nothing-here", &session), ATTND_E_DISCONNECTED);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_SOCKET);
    CHECK_EQUAL(fault.value, ENOENT);
}

static void a_service_that_is_not_there_is_named_by_its_path(void **state)
{
    (void)state;
    struct attnd_session *session;
    char text[256];
    CHECK_ERROR(open_at("/tmp/attnd-there-is-nothing-here", &session), ATTND_E_DISCONNECTED);
    CHECK(strstr(attnd_last_fault_string(text, sizeof(text)), "/tmp/attnd-there-is-nothing-here"));
    CHECK(strlen(attnd_last_fault_string(text, 20)) < 20);
    CHECK_ERROR(attnd_cancel(NULL, 1), ATTND_E_INVALID); /* and the next one is another fault */
    CHECK(!strstr(attnd_last_fault_string(text, sizeof(text)), "nothing-here"));
}

static void a_daemon_of_another_user_than_asked_for_is_told_nothing(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session;
    struct attnd_fault fault;
    const uint32_t wanted = geteuid() + 1;
    struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = fake.path, .daemon_uid = &wanted};
    fake_listen(&fake);
    CHECK_ERROR(attnd_open(&args, &session), ATTND_E_PERMISSION);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_DAEMON_UID);
    CHECK_EQUAL(fault.value, geteuid());
    CHECK_EQUAL(fault.limit, wanted);
    CHECK_EQUAL(fake.calls, 0);
    fake_stop(&fake);
}

/* Listens as another user until its pipe ends. */
static void listen_as_another_user(const char *path, int ready, int end)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char byte = 0;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (setuid(geteuid() + 1) < 0 || bind(fd, (const void *)&address, sizeof(address)) < 0 ||
        listen(fd, 1) < 0 || write(ready, &byte, 1) != 1)
        _exit(1);
    _exit(read(end, &byte, 1) == 0 ? 0 : 1);
}

static void a_stranger_that_listens_on_the_path_is_not_believed(void **state)
{
    (void)state;
    char folder[] = "/tmp/attnd-test-XXXXXX", path[64], byte;
    int ready[2], end[2], status;
    struct attnd_session *session;
    struct attnd_fault fault;
    if (geteuid() != 0)
        skip(); /* only root becomes another user */
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/sock", folder);
    assert_int_equal(chmod(folder, 0777), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC) | pipe2(end, O_CLOEXEC), 0);
    pid_t other = fork();
    if (other == 0) {
        close(end[1]);
        listen_as_another_user(path, ready[1], end[0]);
    }
    CHECK_EQUAL(read(ready[0], &byte, 1), 1);
    CHECK_ERROR(open_at(path, &session), ATTND_E_PERMISSION);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_DAEMON_UID);
    CHECK_EQUAL(fault.value, 1);
    close(end[1]);
    CHECK_EQUAL(waitpid(other, &status, 0), other);
    CHECK_EQUAL(status, 0);
    close(ready[0]);
    close(ready[1]);
    close(end[0]);
    unlink(path);
    rmdir(folder);
}

static void a_path_too_long_for_a_socket_is_refused(void **state)
{
    (void)state;
    char path[200];
    struct attnd_session *session;
    struct attnd_fault fault;
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    CHECK_ERROR(open_at(path, &session), ATTND_E_RANGE);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_SOCKET);
    CHECK_EQUAL(fault.value, 199);
    CHECK_EQUAL(fault.limit, 107);
}

static void the_environment_says_where_when_the_caller_does_not(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session;
    fake_listen(&fake);
    setenv("ATTND_SOCKET", fake.path, 1);
    CHECK_OK(attnd_open(NULL, &session));
    attnd_close(session);
    fake_stop(&fake);

    struct attnd_fault fault;
    setenv("ATTND_SOCKET", "/tmp/attnd-no-such-folder/sock", 1);
    CHECK_ERROR(attnd_open(NULL, &session), ATTND_E_DISCONNECTED);
    unsetenv("ATTND_SOCKET");
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_SOCKET);
    CHECK_EQUAL(fault.value, ENOENT);
}

/* A child that was forked in between holds the same socket, and so the connection, open. */
static void closing_ends_the_session_whatever_children_there_are(void **state)
{
    (void)state;
    struct fake_daemon fake = {0};
    struct attnd_session *session = fake_open(&fake);
    struct pollfd end = {.fd = dup(fake.client), .events = POLLRDHUP};
    CHECK(end.fd >= 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    attnd_close(session);
    CHECK_EQUAL(poll(&end, 1, 5000), 1);
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    CHECK_EQUAL(waitpid(child, NULL, 0), child);
    close(end.fd);
    fake_stop(&fake);
}

static void a_ring_that_is_no_power_of_two_is_refused_here(void **state)
{
    (void)state;
    struct attnd_open_args args = {.size = sizeof(args), .ring_entries = 100, .socket_path = "x"};
    struct attnd_session *session;
    struct attnd_fault fault;
    CHECK_ERROR(attnd_open(&args, &session), ATTND_E_RANGE);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_RING_ENTRIES);
    CHECK_EQUAL(fault.value, 100);
    CHECK_EQUAL(fault.limit, 128);
}

static void tables_beyond_what_an_arena_may_be_are_refused_here(void **state)
{
    (void)state;
    static const struct {
        uint64_t arena_bytes, tables_bytes, value, limit;
    } bad[] = {{64 << 10, (1u << 30) - (64 << 10) + 1, (1u << 30) - (64 << 10) + 1,
                (1u << 30) - (64 << 10)},
               {0, UINT64_MAX, UINT64_MAX, (1u << 30) - (8 << 20)},
               {4096, 64, 4096, 64 << 10},
               {UINT64_MAX, 64, UINT64_MAX, 1u << 30}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct attnd_open_args args = {.size = sizeof(args),
                                       .arena_bytes = bad[i].arena_bytes,
                                       .tables_bytes = bad[i].tables_bytes,
                                       .socket_path = "x"};
        struct attnd_session *session;
        struct attnd_fault fault;
        CHECK_ERROR(attnd_open(&args, &session), ATTND_E_RANGE);
        attnd_last_fault(&fault);
        CHECK_EQUAL(fault.field, ATTND_F_ARENA);
        CHECK_EQUAL(fault.value, (int64_t)bad[i].value);
        CHECK_EQUAL(fault.limit, (int64_t)bad[i].limit);
    }
}

static void a_daemon_without_futex_doorbells_is_rung_by_eventfd(void **state)
{
    (void)state;
    struct fake_daemon fake = {.eventfd_doorbell = 1};
    struct attnd_session *session = fake_open(&fake);
    uint64_t rings;
    CHECK_OK(attnd_cancel(session, 1));
    CHECK_EQUAL(read(fake.doorbell, &rings, sizeof(rings)), -1); /* awake: not rung */
    attnd_poke32(&fake.complete->sq_need, 1);
    CHECK_OK(attnd_cancel(session, 2));
    CHECK_EQUAL(read(fake.doorbell, &rings, sizeof(rings)), sizeof(rings));
    CHECK_EQUAL(rings, 1);
    attnd_close(session);
    fake_stop(&fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_opens_and_tells_what_it_is_connected_to),
        cmocka_unit_test(the_submission_segment_is_mapped_when_mapped_is_said),
        cmocka_unit_test(another_version_is_refused_with_both_numbers),
        cmocka_unit_test(a_daemon_that_refuses_is_quoted),
        cmocka_unit_test(a_daemon_that_dies_in_the_handshake_is_noticed),
        cmocka_unit_test(a_segment_shorter_than_said_is_refused_before_it_is_touched),
        cmocka_unit_test(a_reply_that_contradicts_itself_is_a_protocol_error),
        cmocka_unit_test(nobody_listening_is_said_with_errno),
        cmocka_unit_test(a_service_that_is_not_there_is_named_by_its_path),
        cmocka_unit_test(a_daemon_of_another_user_than_asked_for_is_told_nothing),
        cmocka_unit_test(a_stranger_that_listens_on_the_path_is_not_believed),
        cmocka_unit_test(a_path_too_long_for_a_socket_is_refused),
        cmocka_unit_test(the_environment_says_where_when_the_caller_does_not),
        cmocka_unit_test(closing_ends_the_session_whatever_children_there_are),
        cmocka_unit_test(a_ring_that_is_no_power_of_two_is_refused_here),
        cmocka_unit_test(tables_beyond_what_an_arena_may_be_are_refused_here),
        cmocka_unit_test(a_daemon_without_futex_doorbells_is_rung_by_eventfd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
