/* slow_file.c - see slow_file.h. */
#include "tests/support/harness/slow_file.h"

#include "tests/support/harness/check.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A connection whose close() waits: it has unsent data, and the other end does not read. */
int slow_lingering(int *listener)
{
    static const char data[65536];
    const struct linger linger = {.l_onoff = 1, .l_linger = SLOW_LINGER_S};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);

    *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*listener < 0 || fd < 0 || bind(*listener, (struct sockaddr *)&address, bytes) < 0 ||
        listen(*listener, 1) < 0 ||
        getsockname(*listener, (struct sockaddr *)&address, &bytes) < 0 ||
        connect(fd, (struct sockaddr *)&address, bytes) < 0)
        return -1;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    while (write(fd, data, sizeof(data)) > 0)
        ;
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    return fd;
}

/* Sends @fd through @socket, and keeps neither. */
static void send_and_close(int socket, int fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)),
                            .cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS}};
    char byte = 1;
    struct iovec part = {&byte, 1};
    const struct msghdr message = {.msg_iov = &part,
                                   .msg_iovlen = 1,
                                   .msg_control = control.bytes,
                                   .msg_controllen = sizeof(control.bytes)};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    CHECK(sendmsg(socket, &message, 0) == 1);
    close(fd);
    close(socket);
}

int slow_nested(int *listener)
{
    int pair[2], inner = slow_lingering(listener);
    if (inner < 0)
        return -1;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    send_and_close(pair[0], inner);
    return pair[1];
}

int slow_file(int *listener)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX}; /* the kernel picks an abstract name */
    socklen_t bytes = sizeof(address);
    int inner = slow_lingering(listener);
    if (inner < 0)
        return -1;
    int outer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(bind(outer, (const struct sockaddr *)&address, sizeof(sa_family_t)) == 0);
    CHECK(listen(outer, 1) == 0);
    CHECK(getsockname(outer, (struct sockaddr *)&address, &bytes) == 0);
    CHECK(connect(peer, (const struct sockaddr *)&address, bytes) == 0);
    send_and_close(peer, inner);
    return outer;
}
