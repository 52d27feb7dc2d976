/*
 * fdpass.c - datagrams with descriptors, nothing left open by accident.
 *
 * A descriptor in a control message is open in this process from the moment recvmsg() returns,
 * whether or not the message is to our liking. So the array is collected first and judged after,
 * and every refusal discards it. There is room for as many as the kernel carries: what did not fit
 * it would close in our name, and make us wait for that (discard.c).
 */
#include "ipc/fdpass.h"

#include "ipc/discard.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define CARRIED_MAX 253 /* SCM_MAX_FD of the kernel */
#define SPARE 8         /* for what else is opened meanwhile */

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

/* Aligned for cmsghdr, as CMSG_FIRSTHDR expects. */
union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(CARRIED_MAX * sizeof(int))];
};

static int is_disconnect(int error)
{
    return error == EPIPE || error == ECONNRESET || error == ENOTCONN || error == ECONNREFUSED;
}

int attnd_fdpass_send(int socket, const void *data, size_t bytes, const int *fds, int fd_count)
{
    assert(bytes > 0 && fd_count >= 0 && fd_count <= ATTND_FDS_MAX);
    struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    union control control;

    if (fd_count > 0) {
        size_t fds_bytes = (size_t)fd_count * sizeof(int);
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fds_bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fds_bytes);
        memcpy(CMSG_DATA(header), fds, fds_bytes);
    }

    ssize_t sent;
    do
        sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0)
        return 0;
    if (errno == EAGAIN)
        return -ATTND_E_FULL;
    return is_disconnect(errno) ? -ATTND_E_DISCONNECTED : -ATTND_E_SYSTEM;
}

/* @fds: [CARRIED_MAX] */
static int collect_fds(struct msghdr *message, int *fds)
{
    int count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t fds_bytes = header->cmsg_len - CMSG_LEN(0);
        assert((size_t)count + fds_bytes / sizeof(int) <= CARRIED_MAX);
        memcpy(fds + count, CMSG_DATA(header), fds_bytes);
        count += (int)(fds_bytes / sizeof(int));
    }
    return count;
}

static long recv_failed(void)
{
    if (errno == EAGAIN)
        return 0;
    return is_disconnect(errno) ? -ATTND_E_DISCONNECTED : -ATTND_E_SYSTEM;
}

long attnd_fdpass_recv_from(int socket, uint32_t owner, void *data, size_t bytes, int *fds,
                            int *fd_count)
{
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    union control control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    *fd_count = 0;

    ssize_t received;
    do
        received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (received < 0 && errno == EINTR);
    if (received < 0)
        return recv_failed();

    int carried[CARRIED_MAX];
    int count = collect_fds(&message, carried);
    int truncated = message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || count > ATTND_FDS_MAX;
    if (received == 0 || truncated) {
        /* An empty datagram looks like end of file, and no peer of ours sends one. */
        if (count > 0)
            attnd_discard(owner, carried, count);
        return truncated ? -ATTND_E_PROTOCOL : -ATTND_E_DISCONNECTED;
    }
    memcpy(fds, carried, (size_t)count * sizeof(int));
    *fd_count = count;
    return received;
}

long attnd_fdpass_recv(int socket, void *data, size_t bytes, int *fds, int *fd_count)
{
    return attnd_fdpass_recv_from(socket, ATTND_DISCARD_OWN, data, bytes, fds, fd_count);
}

/* The kernel takes a reference of its own to each descriptor for as long as it looks, and the
 * datagram keeps one: what it lets go of then is never the last. */
int attnd_fdpass_carries(int socket)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT) > 0 && message.msg_flags & MSG_CTRUNC;
}

int attnd_fdpass_allow(int socket, int allow)
{
    return setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &allow, sizeof(allow)) == 0
               ? 0
               : -ATTND_E_UNSUPPORTED;
}

/* Since Linux 6.2 the size of the directory is how many are open; before, it has to be read. */
static rlim_t open_count(void)
{
    struct stat status;
    if (stat("/proc/self/fd", &status) == 0 && status.st_size > 0)
        return (rlim_t)status.st_size;
    rlim_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

int attnd_fdpass_room(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 1;
    /* A process that may open few at all makes do with what a call of ours brings. */
    const rlim_t wanted = limit.rlim_cur < 4 * CARRIED_MAX ? ATTND_FDS_MAX : CARRIED_MAX;
    return open_count() + wanted + SPARE <= limit.rlim_cur;
}

void attnd_fdpass_close(const int *fds, int fd_count)
{
    for (int i = 0; i < fd_count; i++)
        close(fds[i]);
}
