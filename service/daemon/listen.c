/*
 * listen.c - taking a name in the file system, from the dead but never from the living.
 *
 * A daemon that was killed leaves its socket file behind, and bind() then fails. Whether anybody
 * listens is asked by connecting: refused means nobody, and so does a connection that is reset. Two
 * daemons that start at once could both ask, and the slower would unlink the faster one's new
 * socket. So the question is asked and answered under a lock on a file of our own, which nobody
 * else can open, and which is taken away before the lock is.
 */
#include "service/daemon/listen.h"

#include "ipc/fdpass.h"
#include "service/service.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define BACKLOG 64
#define DYING_MS 1000
#define GONE_MS 4000 /* shorter than LOCK_MS: another start waits meanwhile */
#define LOCK_MS 5000
#define LOCK_LOOK_MS 50

static int system_fault(struct attnd_fault *fault)
{
    return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_SOCKET, 0, errno, 0);
}

int attnd_listen_directory(const char *path)
{
    char directory[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
    const char *slash = strrchr(path, '/');

    if (!slash || slash == path || (size_t)(slash - path) >= sizeof(directory))
        return 0;
    memcpy(directory, path, (size_t)(slash - path));
    directory[slash - path] = '\0';
    return mkdir(directory, 0755) == 0 || errno == EEXIST ? 0 : -ATTND_E_SYSTEM;
}

/* ---- the lock: a file beside the socket, which is gone again when this is over ---- */

static int same_file(int fd, const char *path)
{
    struct stat held, named;
    return fstat(fd, &held) == 0 && lstat(path, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

/* Another user's file of that name could be locked by that user for ever. */
static int open_lock(const char *path, struct attnd_fault *fault)
{
    struct stat file;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return system_fault(fault);
    if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_uid == geteuid())
        return fd;
    close(fd);
    return attnd_fault_set(fault, -ATTND_E_PERMISSION, ATTND_F_SOCKET, 0, file.st_uid, geteuid());
}

/* Return: a descriptor that holds the lock until let_go(); or a fault's code. */
static int take_lock(const char *path, struct attnd_fault *fault)
{
    for (int waited_ms = 0;; waited_ms += LOCK_LOOK_MS) {
        const struct timespec pause = {0, LOCK_LOOK_MS * 1000000};
        int fd = open_lock(path, fault);
        if (fd < 0)
            return fd;
        /* The one before may have taken the name away between our open() and our lock. */
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && same_file(fd, path))
            return fd;
        close(fd);
        if (waited_ms == 0)
            attnd_log(ATTND_LOG_INFO, "another start holds %s: waiting for at most %d s", path,
                      LOCK_MS / 1000);
        if (waited_ms >= LOCK_MS)
            return attnd_fault_set(fault, -ATTND_E_TIMEOUT, ATTND_F_SOCKET, 0, waited_ms, LOCK_MS);
        nanosleep(&pause, NULL);
    }
}

static void let_go(int fd, const char *path)
{
    unlink(path);
    close(fd);
}

/* Of a connection: is the process no more that began to listen? One that took the socket over from
 * it may live. */
static int listener_is_gone(int fd)
{
    struct ucred listener;
    socklen_t bytes = sizeof(listener);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &listener, &bytes) == 0 && listener.pid > 0 &&
           kill(listener.pid, 0) < 0 && errno == ESRCH;
}

/* A killed daemon's io_uring is taken apart after the process is gone, by a thread of the kernel
 * that waits its turn on a busy machine, and holds the listening socket until then: a connection to
 * it succeeds and is reset soon. A living one keeps it. */
static int hangs_up(int fd)
{
    struct pollfd end = {.fd = fd, .events = POLLRDHUP};
    return poll(&end, 1, listener_is_gone(fd) ? GONE_MS : DYING_MS) > 0;
}

/* Return: 1 somebody listens, 0 nobody does, -ATTND_E_SYSTEM. */
static int somebody_listens(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -ATTND_E_SYSTEM;
    int rc = connect(fd, (const struct sockaddr *)address, sizeof(*address));
    int error = errno;
    int dying = rc == 0 && hangs_up(fd);
    close(fd);
    if (dying)
        return 0;
    errno = error;
    if (rc == 0 || error == EAGAIN || error == EPROTOTYPE)
        return 1;
    return error == ECONNREFUSED || error == ENOENT ? 0 : -ATTND_E_SYSTEM;
}

/* Makes room for bind() where a socket nobody listens on is in the way. */
static int remove_stale(const struct sockaddr_un *address, struct attnd_fault *fault)
{
    struct stat file;

    if (lstat(address->sun_path, &file) < 0)
        return errno == ENOENT ? 0 : system_fault(fault);
    if (!S_ISSOCK(file.st_mode))
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_SOCKET, 0, 0, 0);
    int rc = somebody_listens(address);
    if (rc == 1)
        return attnd_fault_set(fault, -ATTND_E_BUSY, ATTND_F_SOCKET, 0, 0, 0);
    if (rc < 0)
        return system_fault(fault);
    if (unlink(address->sun_path) < 0 && errno != ENOENT)
        return system_fault(fault);
    return 0;
}

static int bind_here(int fd, const struct sockaddr_un *address, mode_t mode,
                     struct attnd_listen *out, struct attnd_fault *fault)
{
    struct stat file;
    mode_t mask = umask(0777 & ~mode);
    int rc = bind(fd, (const struct sockaddr *)address, sizeof(*address));
    int error = errno;

    umask(mask);
    errno = error;
    if (rc < 0 || listen(fd, BACKLOG) < 0 || lstat(address->sun_path, &file) < 0)
        return system_fault(fault);
    /* Peers inherit it when they connect; a session that is open may send some (session.c). */
    out->refuses_descriptors = attnd_fdpass_allow(fd, 0) == 0;
    out->fd = fd;
    out->inherited = 0;
    out->device = file.st_dev;
    out->inode = file.st_ino;
    return 0;
}

static int listen_at(const char *path, int type, mode_t mode, struct attnd_listen *out,
                     struct attnd_fault *fault)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);

    if (length == 0 || length >= sizeof(address.sun_path))
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_SOCKET, 0, (int64_t)length,
                               sizeof(address.sun_path) - 1);
    memcpy(address.sun_path, path, length);

    char lock_path[sizeof(address.sun_path) + sizeof(".lock")];
    snprintf(lock_path, sizeof(lock_path), "%s.lock", path);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return system_fault(fault);
    int lock = take_lock(lock_path, fault);
    int rc = lock < 0 ? lock : remove_stale(&address, fault);
    if (rc == 0)
        rc = bind_here(fd, &address, mode, out, fault);
    if (lock >= 0)
        let_go(lock, lock_path);
    if (rc < 0)
        close(fd);
    return rc;
}

int attnd_listen_open(const char *path, mode_t mode, struct attnd_listen *out,
                      struct attnd_fault *fault)
{
    return listen_at(path, SOCK_SEQPACKET, mode, out, fault);
}

int attnd_listen_stream(const char *path, mode_t mode, struct attnd_listen *out,
                        struct attnd_fault *fault)
{
    return listen_at(path, SOCK_STREAM, mode, out, fault);
}

/* Not by its path: what lies there may be another file by the time. */
int attnd_listen_mode(const struct attnd_listen *listener, const char *path, mode_t mode)
{
    struct stat file;
    char self[32];
    int rc = -1, fd;

    if (listener->inherited)
        return 0;
    fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -ATTND_E_SYSTEM;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    errno = ENOENT;
    if (fstat(fd, &file) == 0 && file.st_dev == listener->device && file.st_ino == listener->inode)
        rc = (file.st_mode & 0777) == mode ? 0 : chmod(self, mode);
    const int error = errno;
    close(fd);
    errno = error;
    return rc < 0 ? -ATTND_E_SYSTEM : 0;
}

void attnd_listen_unlink(const struct attnd_listen *listener, const char *path)
{
    struct stat file;

    if (!listener->inherited && lstat(path, &file) == 0 && file.st_dev == listener->device &&
        file.st_ino == listener->inode)
        unlink(path);
}
