/*
 * listen.h - the daemon's socket in the file system.
 */
#ifndef ATTND_SERVICE_DAEMON_LISTEN_H
#define ATTND_SERVICE_DAEMON_LISTEN_H

#include "schemas/errors.h"

#include <stddef.h>
#include <sys/types.h>

/* The socket and the file that is its name. */
struct attnd_listen {
    int fd;
    int refuses_descriptors; /* of peers, unless their own socket says otherwise */
    int inherited;           /* of the service manager's, whose file is not ours to touch */
    dev_t device;            /* of the file, to unlink ours and nobody else's */
    ino_t inode;
};

/**
 * attnd_listen_directory() - make the directory of @path if it is missing and its parent is there
 * Its mode is 0755: the socket's own mode says who may connect.
 * Return: 0; -ATTND_E_SYSTEM (errno says why).
 */
int attnd_listen_directory(const char *path);

/**
 * attnd_listen_open() - bind and listen at @path
 * @mode: of the file; it never exists with more rights than these
 *
 * The file of a socket that nobody listens on is replaced. Starts on one path exclude each other by
 * a lock on @path.lock, a file of this user's that is gone afterwards. Blocks for that at most 5 s.
 * Return: 0; -ATTND_E_BUSY somebody listens there; -ATTND_E_INVALID the path is too long or
 * something else lies there; -ATTND_E_TIMEOUT the lock was held for all of that time (limit, ms);
 * -ATTND_E_PERMISSION @path.lock belongs to another user (value; limit is this one);
 * -ATTND_E_SYSTEM with errno in @fault->value.
 */
int attnd_listen_open(const char *path, mode_t mode, struct attnd_listen *out,
                      struct attnd_fault *fault);

/** attnd_listen_stream() - the same of a SOCK_STREAM socket, for HTTP. */
int attnd_listen_stream(const char *path, mode_t mode, struct attnd_listen *out,
                        struct attnd_fault *fault);

/** attnd_listen_mode() - give the file another mode, if it is still ours; not an inherited one's.
 * Return: 0; -ATTND_E_SYSTEM (errno says why). */
int attnd_listen_mode(const struct attnd_listen *listener, const char *path, mode_t mode);

/** attnd_listen_unlink() - remove the file if it is still ours; the socket stays open. */
void attnd_listen_unlink(const struct attnd_listen *listener, const char *path);

#endif
