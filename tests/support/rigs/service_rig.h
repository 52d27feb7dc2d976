/*
 * service_rig.h - the daemon in a process of its own, spoken to in raw messages, with a data plane
 * that is only a stub.
 *
 * Included by the one .c file of a test program, as data_stub.h is. The state of a test is the kind
 * of loop that its daemon runs.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_SERVICE_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_SERVICE_RIG_H

#include "ipc/fdpass.h"
#include "schemas/attnd.pb-c.h"
#include "service/daemon/run.h"
#include "tests/support/harness/harness.h"
#include "tests/support/rigs/data_stub.h"

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

#define SETTLE_TRIES 10000 /* of a millisecond each */

static struct {
    char directory[32];
    char notify_path[64];
    int notify;
    struct attnd_options options;
    pid_t daemon;
} rig;

/* ---- the daemon, in a process of its own ---- */

static inline pid_t start_daemon(void)
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
    exit((int)attnd_service_run(&rig.options, 0, NULL)); /* not _exit: leaks are looked for */
}

static inline void expect_notice(const char *notice)
{
    char got[32] = "";
    struct pollfd readable = {.fd = rig.notify, .events = POLLIN};
    assert_int_equal(poll(&readable, 1, 10000), 1);
    assert_true(read(rig.notify, got, sizeof(got) - 1) > 0);
    assert_string_equal(got, notice);
}

static inline int join(pid_t pid)
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

static inline int setup(void **state)
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
    rig.options.host_memory_max_bytes = 64u << 20;
    rig.options.allow_uids[0] = getuid();
    rig.options.allow_uids_count = 1;
    rig.options.log_level = ATTND_LOG_ERROR;
    snprintf(rig.options.socket_path, sizeof(rig.options.socket_path), "%s/attnd.sock",
             rig.directory);
    return 0;
}

static inline void start(void)
{
    rig.daemon = start_daemon();
    expect_notice("READY=1");
}

static inline void stop(void)
{
    assert_int_equal(kill(rig.daemon, SIGTERM), 0);
    assert_int_equal(join(rig.daemon), ATTND_EXIT_OK);
    rig.daemon = 0;
}

static inline int teardown(void **state)
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

static inline int dial(void)
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
static inline Attnd__Reply *receive(int socket, int *fds, int *fd_count)
{
    static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    long got = attnd_fdpass_recv(socket, bytes, sizeof(bytes), fds, fd_count);
    assert_int_not_equal(got, 0); /* nothing within ten seconds */
    return got < 0 ? NULL : attnd__reply__unpack(NULL, (size_t)got, bytes);
}

static inline Attnd__Reply *ask_fds(int socket, Attnd__Request *request, int *fds, int *fd_count)
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
static inline int ask(int socket, Attnd__Request *request, struct attnd_fault *fault)
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

static inline int say_hello(struct session *session, uint32_t version, uint32_t entries,
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

static inline int say_mapped(int socket)
{
    Attnd__Mapped mapped = ATTND__MAPPED__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    request.call_case = ATTND__REQUEST__CALL_MAPPED;
    request.mapped = &mapped;
    return ask(socket, &request, NULL);
}

static inline struct session open_session(void)
{
    struct session session = {.socket = dial()};
    assert_true(session.socket >= 0);
    assert_int_equal(say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL), 0);
    assert_int_equal(say_mapped(session.socket), 0);
    return session;
}

static inline void close_session(struct session *session)
{
    attnd_fdpass_close(session->fds, session->fd_count);
    close(session->socket);
}

static inline int create_pool(int socket)
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

static inline Attnd__Reply *ask_status(void)
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

static inline size_t count_sessions(void)
{
    Attnd__Reply *reply = ask_status();
    size_t count = reply->status->n_sessions;
    attnd__reply__free_unpacked(reply, NULL);
    return count;
}

static inline void expect_sessions(size_t count)
{
    for (int tries = 0; tries < 500 && count_sessions() != count; tries++)
        usleep(10000);
    assert_int_equal(count_sessions(), count);
}

static inline size_t count_fds(pid_t pid)
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

/*
 * The daemon, or a thread that it made for that, closes descriptors a moment after we know that it
 * will: what it has when all its threads sleep. Two looks, because the first may miss a thread that
 * was just made; a thread that came and went between them has changed the count.
 */
static inline size_t settled_fds(void)
{
    for (int tries = 0; tries < SETTLE_TRIES; tries++) {
        size_t count = count_fds(rig.daemon);
        if (harness_threads_are(rig.daemon, 'S') && harness_threads_are(rig.daemon, 'S') &&
            count_fds(rig.daemon) == count)
            return count;
        usleep(1000);
    }
    fail_msg("the daemon never rests");
    return 0;
}

/* However long it takes to come back to @count; what is leaked stays. */
static inline void expect_fds(size_t count)
{
    size_t now = settled_fds();
    for (int tries = 0; tries < SETTLE_TRIES && now != count; tries++) {
        usleep(1000);
        now = settled_fds();
    }
    assert_int_equal(now, count);
}

#endif
