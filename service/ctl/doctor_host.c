/*
 * doctor_host.c - the kernel, its limits, and the place of the socket.
 *
 * The service does without io_uring, pidfds and the like where it must, and says so once in its
 * log. Here the same is said before anything is started, with what would mend it.
 */
#include "service/ctl/doctor.h"

#include "ipc/loop.h"
#include "ipc/shm.h"
#include "ipc/socket_path.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define MEMLOCK_BYTES_WANTED (8u << 20)
#define FILES_WANTED 4096u

void attnd_doctor_say(struct attnd_finding *finding, const char *subject, enum attnd_health health,
                      const char *mend, const char *format, ...)
{
    va_list arguments;

    finding->subject = subject;
    finding->health = health;
    snprintf(finding->mend, sizeof(finding->mend), "%s", mend);
    va_start(arguments, format);
    vsnprintf(finding->what, sizeof(finding->what), format, arguments);
    va_end(arguments);
}

enum attnd_health attnd_doctor_worst(const struct attnd_finding *findings, uint32_t count)
{
    enum attnd_health worst = ATTND_HEALTH_OK;
    for (uint32_t i = 0; i < count; i++)
        if (findings[i].health > worst)
            worst = findings[i].health;
    return worst;
}

/* ---- the socket ---- */

/* Return: a connection to the listener at @path; -1 with errno. */
static int dial(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static void judge_directory(const char *path, int is_default, struct attnd_finding *finding)
{
    char copy[256];
    struct stat status;

    snprintf(copy, sizeof(copy), "%s", path);
    char *directory = dirname(copy);
    int rc = stat(directory, &status);
    if (rc < 0 && errno == ENOENT && is_default) { /* the daemon makes it */
        directory = dirname(directory);
        rc = stat(directory, &status);
    }
    if (rc < 0)
        attnd_doctor_say(finding, "socket", ATTND_HEALTH_FAIL,
                         "make the directory, or name another place with --socket", "%s: %s",
                         directory, strerror(errno));
    else if (access(directory, W_OK | X_OK) < 0)
        attnd_doctor_say(finding, "socket", ATTND_HEALTH_FAIL,
                         "name a directory of your own with --socket or ATTND_SOCKET",
                         "%s is not yours to write", directory);
    else if (status.st_mode & S_IWOTH && !(status.st_mode & S_ISVTX))
        attnd_doctor_say(finding, "socket", ATTND_HEALTH_WARN,
                         "use a directory that only you can write, as $XDG_RUNTIME_DIR",
                         "%s: anybody can replace the socket", directory);
    else
        attnd_doctor_say(finding, "socket", ATTND_HEALTH_OK, "", "%s is free", path);
}

void attnd_doctor_socket(const char *path, int is_default, struct attnd_finding *finding)
{
    int fd = dial(path);
    int error = errno;
    if (fd >= 0) {
        close(fd);
        attnd_doctor_say(finding, "socket", ATTND_HEALTH_OK, "", "a service listens at %s", path);
    } else if (error == EACCES) {
        attnd_doctor_say(finding, "socket", ATTND_HEALTH_FAIL,
                         "start the service with --allow-uid for this user",
                         "a socket is at %s, but not for this user", path);
    } else if (error == ENAMETOOLONG || error == EPROTOTYPE || error == ENOTSOCK) {
        attnd_doctor_say(finding, "socket", ATTND_HEALTH_FAIL, "name another place with --socket",
                         "%s: %s", path, strerror(error));
    } else {
        judge_directory(path, is_default, finding);
    }
}

/* ---- the kernel ---- */

void attnd_doctor_loop(const char *name, const char *reason, struct attnd_finding *finding)
{
    if (reason[0])
        attnd_doctor_say(finding, "io_uring", ATTND_HEALTH_WARN,
                         "allow io_uring_setup, _enter and _register (a container's seccomp "
                         "profile, kernel.io_uring_disabled=0) on Linux 6.7 or newer",
                         "%s is used instead: %s", name, reason);
    else
        attnd_doctor_say(finding, "io_uring", ATTND_HEALTH_OK, "",
                         "allowed, with futex operations");
}

static void ask_loop(struct attnd_finding *finding)
{
    struct attnd_fault fault = {0};
    struct attnd_loop *loop;
    char text[160];
    const struct attnd_loop_hooks hooks = {0};

    int rc = attnd_loop_new(ATTND_LOOP_AUTO, 0, &hooks, &loop, &fault);
    if (rc < 0) {
        attnd_doctor_say(finding, "io_uring", ATTND_HEALTH_FAIL, "", "no event loop: %s",
                         attnd_fault_string(&fault, text, sizeof(text)));
        return;
    }
    attnd_doctor_loop(attnd_loop_name(loop), attnd_loop_reason(loop), finding);
    attnd_loop_free(loop);
}

void attnd_doctor_memlock(uint64_t limit_bytes, struct attnd_finding *finding)
{
    if (limit_bytes == UINT64_MAX)
        attnd_doctor_say(finding, "memlock", ATTND_HEALTH_OK, "", "no limit");
    else if (limit_bytes >= MEMLOCK_BYTES_WANTED)
        attnd_doctor_say(finding, "memlock", ATTND_HEALTH_OK, "", "%" PRIu64 " MiB",
                         limit_bytes >> 20);
    else
        attnd_doctor_say(finding, "memlock", ATTND_HEALTH_WARN,
                         "ulimit -l unlimited (LimitMEMLOCK=infinity in a unit)",
                         "%" PRIu64 " KiB of locked memory: kernels before 5.12 count io_uring's "
                         "rings against it",
                         limit_bytes >> 10);
}

void attnd_doctor_files(uint64_t limit, struct attnd_finding *finding)
{
    if (limit >= FILES_WANTED)
        attnd_doctor_say(finding, "files", ATTND_HEALTH_OK, "", "%" PRIu64 " descriptors", limit);
    else
        attnd_doctor_say(finding, "files", ATTND_HEALTH_WARN,
                         "ulimit -Hn 65536 (LimitNOFILE=65536 in a unit)",
                         "%" PRIu64 " descriptors at most: every session holds several and every "
                         "memory one",
                         limit);
}

void attnd_doctor_memfd(int error, struct attnd_finding *finding)
{
    if (error)
        attnd_doctor_say(finding, "memfd", ATTND_HEALTH_FAIL,
                         "Linux 5.1 or newer, memfd_create allowed by the seccomp profile",
                         "sealed shared memory cannot be made: %s", strerror(error));
    else
        attnd_doctor_say(finding, "memfd", ATTND_HEALTH_OK, "",
                         "can be made and sealed; huge pages are not used");
}

static int try_memfd(void)
{
    struct attnd_fault fault = {0};
    int fd;
    if (attnd_shm_create_unmapped("attnd-doctor", 4096, &fd, &fault) < 0)
        return (int)fault.value;
    errno = 0;
    int error = attnd_shm_seal(fd, ATTND_SEAL_COMPLETION) < 0 ? errno : 0;
    close(fd);
    return error;
}

void attnd_doctor_pidfd(int error, pid_t peer_pid, struct attnd_finding *finding)
{
    if (peer_pid == 0)
        attnd_doctor_say(
            finding, "pidfd", ATTND_HEALTH_WARN,
            "run engines and service in one pid namespace (--pid=host, or one pod with "
            "shareProcessNamespace)",
            "the service is in another pid namespace: an engine's death is seen by its "
            "socket alone, and not while a child of it holds that");
    else if (error)
        attnd_doctor_say(finding, "pidfd", ATTND_HEALTH_WARN,
                         "Linux 5.3 or newer, pidfd_open allowed by the seccomp profile",
                         "a process's death is seen by its socket alone: %s", strerror(error));
    else
        attnd_doctor_say(finding, "pidfd", ATTND_HEALTH_OK, "",
                         peer_pid > 0 ? "there, and the service is in this pid namespace"
                                      : "there");
}

static void ask_pidfd(const char *path, struct attnd_finding *finding)
{
    int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    int error = own < 0 ? errno : 0;
    int service = dial(path);
    struct ucred peer = {.pid = -1};
    socklen_t bytes = sizeof(peer);

    if (service >= 0 && getsockopt(service, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
        peer.pid = -1;
    attnd_doctor_pidfd(error, peer.pid, finding);
    if (own >= 0)
        close(own);
    if (service >= 0)
        close(service);
}

static uint64_t hard_limit(int resource)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) < 0)
        return 0;
    return limit.rlim_max == RLIM_INFINITY ? UINT64_MAX : limit.rlim_max;
}

uint32_t attnd_doctor_host(const char *socket_path, struct attnd_finding *findings)
{
    char standard[108];
    uint32_t count = 0;

    const int is_default = !socket_path;
    if (is_default) {
        (void)attnd_socket_path(ATTND_SOCKET_CONNECT, standard, sizeof(standard));
        socket_path = standard;
    }
    attnd_doctor_socket(socket_path, is_default, &findings[count++]);
    ask_loop(&findings[count++]);
    attnd_doctor_memfd(try_memfd(), &findings[count++]);
    ask_pidfd(socket_path, &findings[count++]);
    attnd_doctor_memlock(hard_limit(RLIMIT_MEMLOCK), &findings[count++]);
    attnd_doctor_files(hard_limit(RLIMIT_NOFILE), &findings[count++]);
    return count;
}

uint32_t attnd_doctor_all(const char *socket_path, struct attnd_finding *findings)
{
    uint32_t count = attnd_doctor_host(socket_path, findings);
    return count + attnd_doctor_gpus(socket_path, findings + count);
}
