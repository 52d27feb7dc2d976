/*
 * socket_path.h - where the service's socket is when nobody names it.
 *
 * Daemon, libattnd and attnctl ask the same function, so that they meet without any variable of the
 * environment.
 */
#ifndef ATTND_IPC_SOCKET_PATH_H
#define ATTND_IPC_SOCKET_PATH_H

#include <stddef.h>
#include <sys/types.h>

#define ATTND_SOCKET_SYSTEM "/run/attnd/attnd.sock"

/* For the help of every program that has --socket. */
#define ATTND_SOCKET_RULE                                                                          \
    "$ATTND_SOCKET, else $XDG_RUNTIME_DIR/attnd/attnd.sock of a user other than root, else "       \
    "/run/attnd/attnd.sock"

enum attnd_socket_side { ATTND_SOCKET_LISTEN, ATTND_SOCKET_CONNECT };

/* Facts that the rule looks at. */
struct attnd_socket_world {
    uid_t uid;
    const char *given;   /* $ATTND_SOCKET; NULL or "": not set */
    const char *runtime; /* $XDG_RUNTIME_DIR; NULL or "": not set */
    const char *system;  /* ATTND_SOCKET_SYSTEM, but in tests */
};

/**
 * attnd_socket_path() - the default path of the socket, by this process' user and environment
 * @path: [bytes], terminated
 *
 * $ATTND_SOCKET, if it is set. Else users other than root have $XDG_RUNTIME_DIR/attnd/attnd.sock,
 * if that variable is set. Else it is /run/attnd/attnd.sock. A user's engine connects to the
 * system's service if nothing is at the user's own place and something is at the system's.
 * Threads: any, as getenv(). Return: its length, which is @bytes or more if it is cut off.
 */
size_t attnd_socket_path(enum attnd_socket_side side, char *path, size_t bytes);

/** attnd_socket_path_in() - the rule itself. */
size_t attnd_socket_path_in(const struct attnd_socket_world *world, enum attnd_socket_side side,
                            char *path, size_t bytes);

#endif
