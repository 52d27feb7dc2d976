/*
 * notify.c - the sd_notify protocol, which is one datagram to a socket named in the environment.
 *
 * Written out here because libsystemd is a large thing to link for it. An address that begins with
 * '@' is in the abstract namespace.
 */
#include "service/daemon/notify.h"

#include "schemas/errors.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int attnd_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (!path || !path[0])
        return 0;
    size_t length = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || length >= sizeof(address.sun_path)) {
        errno = EINVAL;
        return -ATTND_E_SYSTEM;
    }
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = '\0';

    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -ATTND_E_SYSTEM;
    socklen_t address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    ssize_t sent = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&address,
                          address_bytes);
    int error = errno;
    close(fd);
    errno = error;
    return sent < 0 ? -ATTND_E_SYSTEM : 1;
}
