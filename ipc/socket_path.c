/*
 * socket_path.c - one rule for the daemon that listens and for everybody who connects.
 *
 * A user's own service goes before the system's, so that a developer on a machine with a system
 * service is served by what the developer started. Root has no place of its own: a daemon of root
 * is the system's, and $XDG_RUNTIME_DIR may be another user's where root was become by su.
 */
#include "ipc/socket_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int is_set(const char *text)
{
    return text && text[0];
}

static size_t join(char *path, size_t bytes, const char *directory, const char *name)
{
    const int length = snprintf(path, bytes, "%s%s", directory, name);
    return length < 0 ? bytes : (size_t)length;
}

size_t attnd_socket_path_in(const struct attnd_socket_world *world, enum attnd_socket_side side,
                            char *path, size_t bytes)
{
    if (is_set(world->given))
        return join(path, bytes, world->given, "");
    if (world->uid != 0 && is_set(world->runtime)) {
        const size_t length = join(path, bytes, world->runtime, "/attnd/attnd.sock");
        if (side == ATTND_SOCKET_LISTEN || access(path, F_OK) == 0 ||
            access(world->system, F_OK) < 0)
            return length;
    }
    return join(path, bytes, world->system, "");
}

size_t attnd_socket_path(enum attnd_socket_side side, char *path, size_t bytes)
{
    const struct attnd_socket_world world = {.uid = geteuid(),
                                             .given = getenv("ATTND_SOCKET"),
                                             .runtime = getenv("XDG_RUNTIME_DIR"),
                                             .system = ATTND_SOCKET_SYSTEM};
    return attnd_socket_path_in(&world, side, path, bytes);
}
