/*
 * activate.c - the protocol of sd_listen_fds(), which is two variables and descriptors from 3 on.
 *
 * Written out here because libsystemd is a large thing to link for it. The service manager listens
 * before the daemon runs and while it is being replaced, so that a client that comes in between
 * waits and is not refused. Therefore the file is neither unlinked nor given another mode here, and
 * the socket is not shut down at the end: it is the service manager's.
 */
#include "service/daemon/activate.h"

#include "ipc/fdpass.h"
#include "service/args/args.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 3

/* Return: how many descriptors are handed to this process. */
static uint64_t handed_over(void)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
    uint64_t number = 0, count = 0;

    if (!pid || !fds || attnd_number_parse(pid, 1, INT32_MAX, &number) < 0 ||
        (pid_t)number != getpid() || attnd_number_parse(fds, 0, INT32_MAX, &count) < 0)
        count = 0;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return count;
}

static int option_is(int fd, int option, int wanted)
{
    int value = 0;
    socklen_t bytes = sizeof(value);

    return getsockopt(fd, SOL_SOCKET, option, &value, &bytes) == 0 && value == wanted;
}

/* Return: 1 it is one that the service could have made itself, bound to @path. */
static int is_ours(int fd, char *path, size_t path_bytes)
{
    struct sockaddr_un address = {0};
    socklen_t bytes = sizeof(address);

    if (!option_is(fd, SO_DOMAIN, AF_UNIX) || !option_is(fd, SO_TYPE, SOCK_SEQPACKET) ||
        !option_is(fd, SO_ACCEPTCONN, 1) ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) < 0)
        return 0;
    const size_t length = strnlen(address.sun_path, sizeof(address.sun_path));
    if (length == 0 || length >= path_bytes)
        return 0;
    memcpy(path, address.sun_path, length);
    path[length] = '\0';
    return 1;
}

int attnd_activate(struct attnd_listen *out, char *path, size_t bytes, struct attnd_fault *fault)
{
    const uint64_t count = handed_over();

    if (count == 0)
        return 0;
    if (count > 1)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SOCKET, 0, (int64_t)count, 1);
    if (!is_ours(FIRST_FD, path, bytes))
        return attnd_fault_set(fault, -ATTND_E_INVALID, ATTND_F_SOCKET, 0, 0, 0);
    const int flags = fcntl(FIRST_FD, F_GETFL);
    if (flags < 0 || fcntl(FIRST_FD, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(FIRST_FD, F_SETFD, FD_CLOEXEC) < 0)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_SOCKET, 0, errno, 0);
    *out = (struct attnd_listen){.fd = FIRST_FD,
                                 .inherited = 1,
                                 .refuses_descriptors = attnd_fdpass_allow(FIRST_FD, 0) == 0};
    return 1;
}
