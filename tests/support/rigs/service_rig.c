/* service_rig.c - the daemon in a process of its own, spoken to in raw messages, with a data plane
 * that is only a stub. */
#include "tests/support/rigs/service_rig.h"
#include "tests/support/harness/harness.h"

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
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct service_rig service_rig;

/* ---- the daemon, in a process of its own ---- */

pid_t service_rig_start_daemon(void)
{
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(99);
    close(service_rig.notify);
    setenv("NOTIFY_SOCKET", service_rig.notify_path, 1);
    exit((int)attnd_service_run(&service_rig.options, 0,
                                NULL)); /* not _exit: leaks are looked for */
}

void service_rig_expect_notice(const char *notice)
{
    char got[32] = "";
    struct pollfd readable = {.fd = service_rig.notify, .events = POLLIN};
    assert_int_equal(poll(&readable, 1, 10000), 1);
    assert_true(read(service_rig.notify, got, sizeof(got) - 1) > 0);
    assert_string_equal(got, notice);
}

int service_rig_join(pid_t pid)
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

int service_rig_setup(void **state)
{
    const enum attnd_loop_kind *loop = *state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(&service_rig, 0, sizeof(service_rig));
    strcpy(service_rig.directory, "/tmp/attnd-test-XXXXXX");
    if (!mkdtemp(service_rig.directory))
        return -1;
    snprintf(service_rig.notify_path, sizeof(service_rig.notify_path), "%s/notify",
             service_rig.directory);
    memcpy(address.sun_path, service_rig.notify_path, sizeof(service_rig.notify_path));
    service_rig.notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (bind(service_rig.notify, (const struct sockaddr *)&address, sizeof(address)) < 0)
        return -1;
    service_rig.options.loop = *loop;
    service_rig.options.memory_max_bytes = 64u << 20;
    service_rig.options.host_memory_max_bytes = 64u << 20;
    service_rig.options.allow_uids[0] = getuid();
    service_rig.options.allow_uids_count = 1;
    service_rig.options.log_level = ATTND_LOG_ERROR;
    snprintf(service_rig.options.socket_path, sizeof(service_rig.options.socket_path),
             "%s/attnd.sock", service_rig.directory);
    return 0;
}

void service_rig_start(void)
{
    service_rig.daemon = service_rig_start_daemon();
    service_rig_expect_notice("READY=1");
}

void service_rig_stop(void)
{
    assert_int_equal(kill(service_rig.daemon, SIGTERM), 0);
    assert_int_equal(service_rig_join(service_rig.daemon), ATTND_EXIT_OK);
    service_rig.daemon = 0;
}

int service_rig_teardown(void **state)
{
    (void)state;
    if (service_rig.daemon)
        service_rig_stop();
    close(service_rig.notify);
    unlink(service_rig.notify_path);
    unlink(service_rig.options.socket_path);
    return rmdir(service_rig.directory);
}

/* ---- a client that speaks by hand ---- */

int service_rig_dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const struct timeval timeout = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    memcpy(address.sun_path, service_rig.options.socket_path, sizeof(address.sun_path));
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

Attnd__Reply *service_rig_receive(int socket, int *fds, int *fd_count)
{
    static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    long got = attnd_fdpass_recv(socket, bytes, sizeof(bytes), fds, fd_count);
    assert_int_not_equal(got, 0); /* nothing within ten seconds */
    return got < 0 ? NULL : attnd__reply__unpack(NULL, (size_t)got, bytes);
}

Attnd__Reply *service_rig_ask_fds(int socket, Attnd__Request *request, int *fds, int *fd_count)
{
    static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    request->id = 42;
    size_t size_bytes = attnd__request__pack(request, bytes);
    if (attnd_fdpass_send(socket, bytes, size_bytes, NULL, 0) == -ATTND_E_DISCONNECTED)
        return NULL;
    Attnd__Reply *reply = service_rig_receive(socket, fds, fd_count);
    if (reply)
        assert_int_equal(reply->id, 42);
    return reply;
}

int service_rig_ask(int socket, Attnd__Request *request, struct attnd_fault *fault)
{
    int fds[ATTND_FDS_MAX], fd_count = 0;
    Attnd__Reply *reply = service_rig_ask_fds(socket, request, fds, &fd_count);
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

int service_rig_say_hello(struct session *session, uint32_t version, uint32_t entries,
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
    Attnd__Reply *reply =
        service_rig_ask_fds(session->socket, &request, session->fds, &session->fd_count);
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

int service_rig_say_mapped(int socket)
{
    Attnd__Mapped mapped = ATTND__MAPPED__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    request.call_case = ATTND__REQUEST__CALL_MAPPED;
    request.mapped = &mapped;
    return service_rig_ask(socket, &request, NULL);
}

struct session service_rig_open_session(void)
{
    struct session session = {.socket = service_rig_dial()};
    assert_true(session.socket >= 0);
    assert_int_equal(service_rig_say_hello(&session, ATTND_PROTOCOL_VERSION, 8, 64 << 10, NULL), 0);
    assert_int_equal(service_rig_say_mapped(session.socket), 0);
    return session;
}

void service_rig_close_session(struct session *session)
{
    attnd_fdpass_close(session->fds, session->fd_count);
    close(session->socket);
}

int service_rig_create_pool(int socket)
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
    return service_rig_ask(socket, &request, NULL);
}

Attnd__Reply *service_rig_ask_status(void)
{
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    int fds[ATTND_FDS_MAX], fd_count = 0, socket = service_rig_dial();
    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    Attnd__Reply *reply = service_rig_ask_fds(socket, &request, fds, &fd_count);
    close(socket);
    assert_non_null(reply);
    assert_int_equal(reply->code, 0);
    assert_int_equal(reply->result_case, ATTND__REPLY__RESULT_STATUS);
    return reply;
}

size_t service_rig_count_sessions(void)
{
    Attnd__Reply *reply = service_rig_ask_status();
    size_t count = reply->status->n_sessions;
    attnd__reply__free_unpacked(reply, NULL);
    return count;
}

void service_rig_expect_sessions(size_t count)
{
    for (int tries = 0; tries < 500 && service_rig_count_sessions() != count; tries++)
        usleep(10000);
    assert_int_equal(service_rig_count_sessions(), count);
}

size_t service_rig_count_fds(pid_t pid)
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

size_t service_rig_fds_at_rest(void)
{
    for (int tries = 0; tries < REST_TRIES; tries++) {
        size_t count = service_rig_count_fds(service_rig.daemon);
        int looks = 0;
        while (looks < 2 && harness_threads_are(service_rig.daemon, 'S'))
            looks++;
        if (looks == 2 && service_rig_count_fds(service_rig.daemon) == count)
            return count;
        usleep(1000);
    }
    fail_msg("the daemon never rests");
    return 0;
}

void service_rig_expect_fds(size_t count)
{
    size_t now = service_rig_fds_at_rest();
    for (int tries = 0; tries < REST_TRIES && now != count; tries++) {
        usleep(1000);
        now = service_rig_fds_at_rest();
    }
    assert_int_equal(now, count);
}
