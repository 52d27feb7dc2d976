/* test_service.c - the daemon from outside, spoken to in raw messages, with a data plane that is
 * only a stub: its socket, the handshake and those who get it wrong, and the end of everything. */
#include "ipc/fdpass.h"
#include "schemas/attnd.pb-c.h"
#include "service/run.h"
#include "tests/support/data_stub.h"

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
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct {
    char directory[32];
    char notify_path[64];
    int notify;
    struct attnd_options options;
    pid_t daemon;
} rig;

/* ---- the daemon, in a process of its own ---- */

static pid_t start_daemon(void)
{
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(99);
    close(rig.notify);
    setenv("NOTIFY_SOCKET", rig.notify_path, 1);
    exit((int)attnd_service_run(&rig.options)); /* not _exit: leaks are looked for */
}

static void expect_notice(const char *notice)
{
    char got[32] = "";
    struct pollfd readable = {.fd = rig.notify, .events = POLLIN};
    assert_int_equal(poll(&readable, 1, 10000), 1);
    assert_true(read(rig.notify, got, sizeof(got) - 1) > 0);
    assert_string_equal(got, notice);
}

static int join(pid_t pid)
{
    int status = 0;
    for (int tries = 0; tries < 1000; tries++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        usleep(10000);
    }
    fail_msg("process %d does not end", (int)pid);
    return -1;
}

static int setup(void **state)
{
    const enum attnd_loop_kind *loop = *state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(&rig, 0, sizeof(rig));
    strcpy(rig.directory, "/tmp/attnd-test-XXXXXX");
    if (!mkdtemp(rig.directory))
        return -1;
    snprintf(rig.notify_path, sizeof(rig.notify_path), "%s/notify", rig.directory);
    memcpy(address.sun_path, rig.notify_path, sizeof(rig.notify_path));
    rig.notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (bind(rig.notify, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return -1;
    rig.options.loop = *loop;
    rig.options.memory_max_bytes = 64u << 20;
    rig.options.allow_uids[0] = getuid();
    rig.options.allow_uids_count = 1;
    rig.options.log_level = ATTND_LOG_ERROR;
    snprintf(rig.options.socket_path, sizeof(rig.options.socket_path), "%s/attnd.sock",
             rig.directory);
    return 0;
}

static void start(void)
{
    rig.daemon = start_daemon();
    expect_notice("READY=1");
}

static void stop(void)
{
    assert_int_equal(kill(rig.daemon, SIGTERM), 0);
    assert_int_equal(join(rig.daemon), ATTND_EXIT_OK);
    rig.daemon = 0;
}

static int teardown(void **state)
{
    (void)state;
    if (rig.daemon)
        stop();
    close(rig.notify);
    unlink(rig.notify_path);
    unlink(rig.options.socket_path);
    return rmdir(rig.directory);
}

/* ---- a client that speaks by hand ---- */

static int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const struct timeval timeout = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    memcpy(address.sun_path, rig.options.socket_path, sizeof(address.sun_path));
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* What came back; NULL: the connection ended. Its descriptors are in @fds. */
static Attnd__Reply *receive(int socket, int *fds, int *fd_count)
{
    static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    long got = attnd_fdpass_recv(socket, bytes, sizeof(bytes), fds, fd_count);
    assert_int_not_equal(got, 0); /* nothing within ten seconds */
    return got < 0 ? NULL : attnd__reply__unpack(NULL, (size_t)got, bytes);
}

static Attnd__Reply *ask_fds(int socket, Attnd__Request *request, int *fds, int *fd_count)
{
    static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    request->id = 42;
    size_t size_bytes = attnd__request__pack(request, bytes);
    if (attnd_fdpass_send(socket, bytes, size_bytes, NULL, 0) == -ATTND_E_DISCONNECTED)
        return NULL;
    Attnd__Reply *reply = receive(socket, fds, fd_count);
    if (reply)
        assert_int_equal(reply->id, 42);
    return reply;
}

/* For calls whose answer is a code; descriptors are closed. */
static int ask(int socket, Attnd__Request *request, struct attnd_fault *fault)
{
    int fds[ATTND_FDS_MAX], fd_count = 0;
    Attnd__Reply *reply = ask_fds(socket, request, fds, &fd_count);
    if (!reply)
        return -ATTND_E_DISCONNECTED;
    int code = reply->code;
    if (fault)
        *fault = (struct attnd_fault){
            .code = code, .field = reply->field, .value = reply->value, .limit = reply->limit};
    attnd_fdpass_close(fds, fd_count);
    attnd__reply__free_unpacked(reply, NULL);
    return code;
}

struct session {
    int socket;
    int fds[ATTND_FDS_MAX], fd_count;
    uint64_t submission_bytes;
};

static int say_hello(struct session *session, uint32_t version, uint32_t entries,
                     uint64_t arena_bytes, struct attnd_fault *fault)
{
    Attnd__Hello hello = ATTND__HELLO__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    hello.version = version;
    hello.name = (char *)(uintptr_t) "by\nhand";
    hello.has_ring_entries = hello.has_arena_bytes = 1;
    hello.ring_entries = entries;
    hello.arena_bytes = arena_bytes;
    request.call_case = ATTND__REQUEST__CALL_HELLO;
    request.hello = &hello;
    Attnd__Reply *reply = ask_fds(session->socket, &request, session->fds, &session->fd_count);
    assert_non_null(reply);
    int code = reply->code;
    if (code == 0)
        session->submission_bytes = reply->hello->arena_offset_bytes + reply->hello->arena_bytes;
    else if (fault)
        *fault = (struct attnd_fault){
            .field = reply->field, .value = reply->value, .limit = reply->limit};
    attnd__reply__free_unpacked(reply, NULL);
    return code;
}

static int say_mapped(int socket)
{
    Attnd__Mapped mapped = ATTND__MAPPED__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    request.call_case = ATTND__REQUEST__CALL_MAPPED;
    request.mapped = &mapped;
    return ask(socket, &request, NULL);
}

static struct session open_session(void)
{
    struct session session = {.socket = dial()};
    assert_true(session.socket >= 0);
    assert_int_equal(say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL), 0);
    assert_int_equal(say_mapped(session.socket), 0);
    return session;
}

static void close_session(struct session *session)
{
    attnd_fdpass_close(session->fds, session->fd_count);
    close(session->socket);
}

static int create_pool(int socket)
{
    Attnd__PoolCreate desc = ATTND__POOL_CREATE__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    desc.layers = desc.heads_kv = 1;
    desc.pages = desc.page_size = 16;
    desc.dim_qk = desc.dim_vo = 64;
    desc.dtype = ATTND_FP16;
    desc.page_owner = ATTND__PAGE_OWNER__OWNER_SERVICE;
    request.call_case = ATTND__REQUEST__CALL_POOL_CREATE;
    request.pool_create = &desc;
    return ask(socket, &request, NULL);
}

static Attnd__Reply *ask_status(void)
{
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    int fds[ATTND_FDS_MAX], fd_count = 0, socket = dial();
    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    Attnd__Reply *reply = ask_fds(socket, &request, fds, &fd_count);
    close(socket);
    assert_non_null(reply);
    assert_int_equal(reply->code, 0);
    assert_int_equal(reply->result_case, ATTND__REPLY__RESULT_STATUS);
    return reply;
}

static size_t count_sessions(void)
{
    Attnd__Reply *reply = ask_status();
    size_t count = reply->status->n_sessions;
    attnd__reply__free_unpacked(reply, NULL);
    return count;
}

static void expect_sessions(size_t count)
{
    for (int tries = 0; tries < 500 && count_sessions() != count; tries++)
        usleep(10000);
    assert_int_equal(count_sessions(), count);
}

static size_t count_fds(pid_t pid)
{
    char path[64];
    size_t count = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

/* The daemon closes descriptors a moment after we know that it will: what it has when it rests. */
static size_t settled_fds(void)
{
    size_t count = count_fds(rig.daemon);
    for (int same = 0, tries = 0; same < 10 && tries < 1000; same++, tries++) {
        usleep(5000);
        size_t now = count_fds(rig.daemon);
        if (now != count)
            same = 0;
        count = now;
    }
    return count;
}

/* ---- the socket ---- */

static void a_signal_ends_it_cleanly(void **state)
{
    (void)state;
    struct stat file;
    start();
    assert_int_equal(stat(rig.options.socket_path, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0600);
    struct session session = open_session();
    stop();
    expect_notice("STOPPING=1");
    assert_int_equal(stat(rig.options.socket_path, &file), -1);
    assert_int_equal(say_mapped(session.socket), -ATTND_E_DISCONNECTED);
    close_session(&session);
}

static void a_second_service_is_refused_and_the_first_goes_on(void **state)
{
    (void)state;
    start();
    rig.options.log_level = (enum attnd_log_level)0;
    assert_int_equal(join(start_daemon()), ATTND_EXIT_SOCKET);
    expect_sessions(0);
}

static void the_socket_of_a_dead_service_is_replaced(void **state)
{
    (void)state;
    start();
    kill(rig.daemon, SIGKILL);
    assert_int_equal(join(rig.daemon), 1000 + SIGKILL);
    assert_int_equal(access(rig.options.socket_path, F_OK), 0);
    start();
    expect_sessions(0);
}

static void what_is_no_socket_is_left_alone(void **state)
{
    (void)state;
    int fd = open(rig.options.socket_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    rig.options.log_level = (enum attnd_log_level)0;
    assert_int_equal(join(start_daemon()), ATTND_EXIT_SOCKET);
    assert_int_equal(access(rig.options.socket_path, F_OK), 0);
}

/* ---- the handshake ---- */

static void a_session_has_a_private_name_and_sealed_segments(void **state)
{
    (void)state;
    start();
    struct session session = open_session();
    assert_true(session.fd_count == 3 || session.fd_count == 4);
    int fixed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    assert_int_equal(fcntl(session.fds[0], F_GET_SEALS) & fixed, fixed);
    assert_int_equal(fcntl(session.fds[1], F_GET_SEALS) & fixed, fixed);
    assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, session.fds[1], 0) ==
                MAP_FAILED);

    Attnd__Reply *reply = ask_status();
    assert_int_equal(reply->status->n_sessions, 1);
    assert_string_equal(reply->status->sessions[0]->name, "by?hand");
    assert_int_equal(reply->status->sessions[0]->pid, getpid());
    assert_string_equal(reply->status->backend, "stub");
    attnd__reply__free_unpacked(reply, NULL);
    close_session(&session);
    expect_sessions(0);
}

static void calls_out_of_turn_are_refused_and_change_nothing(void **state)
{
    (void)state;
    start();
    struct session session = {.socket = dial()};
    assert_int_equal(say_mapped(session.socket), -ATTND_E_PROTOCOL);
    assert_int_equal(create_pool(session.socket), -ATTND_E_PROTOCOL);
    assert_int_equal(say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL), 0);
    assert_int_equal(create_pool(session.socket), -ATTND_E_PROTOCOL);
    assert_int_equal(say_mapped(session.socket), 0);
    assert_int_equal(say_mapped(session.socket), -ATTND_E_PROTOCOL);
    assert_int_equal(create_pool(session.socket), 0);
    close_session(&session);
}

static void a_wish_that_cannot_be_granted_is_named(void **state)
{
    (void)state;
    struct attnd_fault fault = {0};
    start();
    struct session session = {.socket = dial()};
    assert_int_equal(say_hello(&session, 2, 8, 64 << 10, &fault), -ATTND_E_VERSION);
    assert_int_equal(fault.value, 2);
    assert_int_equal(fault.limit, ATTND_PROTOCOL_VERSION);
    assert_int_equal(say_hello(&session, 1, 12, 64 << 10, &fault), -ATTND_E_RANGE);
    assert_int_equal(fault.field, ATTND_F_RING_ENTRIES);
    assert_int_equal(say_hello(&session, 1, 8, UINT64_MAX, &fault), -ATTND_E_RANGE);
    assert_int_equal(fault.field, ATTND_F_ARENA);
    assert_int_equal(say_hello(&session, 1, 8, 0, &fault), -ATTND_E_RANGE);
    assert_int_equal(fault.limit, 64 << 10);
    assert_int_equal(say_hello(&session, 1, 4096, 64 << 10, NULL), 0);
    assert_int_equal(say_mapped(session.socket), 0);
    close_session(&session);
}

static void a_segment_resized_before_it_is_sealed_ends_the_session(void **state)
{
    (void)state;
    start();
    size_t fds = settled_fds();
    const off_t sizes[] = {4096, 1 << 20};
    for (int i = 0; i < 2; i++) {
        struct session session = {.socket = dial()};
        assert_int_equal(say_hello(&session, 1, 8, 64 << 10, NULL), 0);
        assert_int_equal(ftruncate(session.fds[0], sizes[i]), 0);
        assert_int_equal(say_mapped(session.socket), -ATTND_E_DISCONNECTED);
        close_session(&session);
    }
    expect_sessions(0);
    assert_int_equal(settled_fds(), fds);
}

static void a_segment_sealed_by_the_client_ends_the_session(void **state)
{
    (void)state;
    start();
    struct session session = {.socket = dial()};
    assert_int_equal(say_hello(&session, 1, 8, 64 << 10, NULL), 0);
    assert_int_equal(fcntl(session.fds[0], F_ADD_SEALS, F_SEAL_SEAL), 0);
    assert_int_equal(say_mapped(session.socket), -ATTND_E_DISCONNECTED);
    close_session(&session);
    expect_sessions(0);
}

static void what_is_no_request_ends_the_connection(void **state)
{
    (void)state;
    static uint8_t large[ATTND_DATAGRAM_BYTES_MAX + 1];
    int fds[ATTND_FDS_MAX], fd_count = 0;
    start();
    int socket = dial();
    assert_int_equal(attnd_fdpass_send(socket, "rubbish", 7, NULL, 0), 0);
    assert_null(receive(socket, fds, &fd_count));
    close(socket);
    struct session session = open_session();
    assert_int_equal(attnd_fdpass_send(session.socket, large, sizeof(large), NULL, 0), 0);
    assert_null(receive(session.socket, fds, &fd_count));
    close_session(&session);
    expect_sessions(0);
}

static void descriptors_nobody_asked_for_are_closed(void **state)
{
    (void)state;
    uint8_t bytes[64];
    int fds[ATTND_FDS_MAX], fd_count = 0;
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    start();
    int socket = dial();
    expect_sessions(0);
    size_t before = settled_fds();
    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    size_t size_bytes = attnd__request__pack(&request, bytes);
    for (int i = 0; i < ATTND_FDS_MAX; i++)
        fds[i] = rig.notify;
    assert_int_equal(attnd_fdpass_send(socket, bytes, size_bytes, fds, ATTND_FDS_MAX), 0);
    Attnd__Reply *reply = receive(socket, fds, &fd_count);
    assert_non_null(reply);
    attnd__reply__free_unpacked(reply, NULL);
    assert_int_equal(settled_fds(), before);
    close(socket);
}

static void a_stranger_is_told_so(void **state)
{
    (void)state;
    struct stat file;
    struct attnd_fault fault = {0};
    rig.options.allow_uids[0] = getuid() + 1;
    start();
    /* Others may connect: what they are decides, not the file. */
    assert_int_equal(stat(rig.options.socket_path, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0666);
    struct session session = {.socket = dial()};
    assert_int_equal(say_hello(&session, 1, 8, 64 << 10, &fault), -ATTND_E_PERMISSION);
    assert_int_equal(fault.field, ATTND_F_SOCKET);
    assert_int_equal(fault.value, getuid());
    close_session(&session);
}

static void a_full_house_refuses_sessions_and_still_answers(void **state)
{
    (void)state;
    static struct session sessions[ATTND_SESSIONS_MAX];
    struct attnd_fault fault = {0};
    start();
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        sessions[i] = open_session();
    struct session late = {.socket = dial()};
    assert_int_equal(say_hello(&late, 1, 8, 64 << 10, &fault), -ATTND_E_RANGE);
    assert_int_equal(fault.field, ATTND_F_SESSIONS);
    assert_int_equal(fault.limit, ATTND_SESSIONS_MAX);
    assert_int_equal(count_sessions(), ATTND_SESSIONS_MAX);
    close_session(&sessions[10]);
    expect_sessions(ATTND_SESSIONS_MAX - 1);
    assert_int_equal(say_hello(&late, 1, 8, 64 << 10, &fault), 0);
    assert_int_equal(say_mapped(late.socket), 0);
    close_session(&late);
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (i != 10)
            close_session(&sessions[i]);
    expect_sessions(0);
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
        struct session session = {.socket = dial()};
        if (say_hello(&session, 1, 8, 64 << 10, NULL) < 0 || say_mapped(session.socket) < 0 ||
            create_pool(session.socket) < 0)
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
    start();
    size_t fds = settled_fds();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = fork_client(&child);
    expect_sessions(1);
    kill(pid, SIGKILL);
    assert_int_equal(join(pid), 1000 + SIGKILL);
    expect_sessions(0);
    assert_int_equal(settled_fds(), fds);
    assert_int_equal(waitpid(child, NULL, WNOHANG), 0); /* it lived all the while */
    kill(child, SIGKILL);
    assert_int_equal(join(child), 1000 + SIGKILL);
}

static void many_deaths_leave_nothing_behind(void **state)
{
    (void)state;
    start();
    struct session warm = open_session();
    assert_int_equal(create_pool(warm.socket), 0);
    close_session(&warm);
    expect_sessions(0);
    size_t fds = settled_fds();
    for (int round = 0; round < 100; round++) {
        struct session session = {.socket = dial()};
        /* At every stage of its life. */
        if (round % 4 > 0)
            assert_int_equal(say_hello(&session, 1, 8, 64 << 10, NULL), 0);
        if (round % 4 > 1)
            assert_int_equal(say_mapped(session.socket), 0);
        if (round % 4 > 2)
            assert_int_equal(create_pool(session.socket), 0);
        close_session(&session);
    }
    expect_sessions(0);
    assert_int_equal(settled_fds(), fds);
    Attnd__Reply *reply = ask_status();
    assert_int_equal(reply->status->n_pools, 0);
    assert_int_equal(reply->status->heap_used_bytes, 0);
    attnd__reply__free_unpacked(reply, NULL);
}

static void who_does_not_finish_the_handshake_is_dropped(void **state)
{
    (void)state;
    int fds[ATTND_FDS_MAX], fd_count = 0;
    start();
    int silent = dial();
    struct session half = {.socket = dial()};
    assert_int_equal(say_hello(&half, 1, 8, 64 << 10, NULL), 0);
    uint64_t begin_ns = attnd_clock_ns();
    assert_null(receive(silent, fds, &fd_count));
    assert_null(receive(half.socket, fds, &fd_count));
    uint64_t waited_ns = attnd_clock_ns() - begin_ns;
    assert_in_range(waited_ns, 4000000000u, 9000000000u);
    close(silent);
    close_session(&half);
    expect_sessions(0);
}

int main(void)
{
    static const enum attnd_loop_kind automatic = ATTND_LOOP_AUTO, epoll = ATTND_LOOP_EPOLL;
    const struct CMUnitTest tests[] = {
#define TEST(name, loop) {#name, name, setup, teardown, (void *)(uintptr_t) & (loop)}
        TEST(a_signal_ends_it_cleanly, automatic),
        TEST(a_signal_ends_it_cleanly, epoll),
        TEST(a_second_service_is_refused_and_the_first_goes_on, automatic),
        TEST(the_socket_of_a_dead_service_is_replaced, automatic),
        TEST(what_is_no_socket_is_left_alone, automatic),
        TEST(a_session_has_a_private_name_and_sealed_segments, automatic),
        TEST(a_session_has_a_private_name_and_sealed_segments, epoll),
        TEST(calls_out_of_turn_are_refused_and_change_nothing, automatic),
        TEST(a_wish_that_cannot_be_granted_is_named, automatic),
        TEST(a_segment_resized_before_it_is_sealed_ends_the_session, automatic),
        TEST(a_segment_resized_before_it_is_sealed_ends_the_session, epoll),
        TEST(a_segment_sealed_by_the_client_ends_the_session, automatic),
        TEST(what_is_no_request_ends_the_connection, automatic),
        TEST(descriptors_nobody_asked_for_are_closed, automatic),
        TEST(a_stranger_is_told_so, automatic),
        TEST(a_full_house_refuses_sessions_and_still_answers, automatic),
        TEST(a_dead_clients_session_ends_though_its_child_holds_the_socket, automatic),
        TEST(a_dead_clients_session_ends_though_its_child_holds_the_socket, epoll),
        TEST(many_deaths_leave_nothing_behind, automatic),
        TEST(many_deaths_leave_nothing_behind, epoll),
        TEST(who_does_not_finish_the_handshake_is_dropped, automatic),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
