/*
 * activate.h - the socket that the service manager has made and hands over.
 */
#ifndef ATTND_SERVICE_DAEMON_ACTIVATE_H
#define ATTND_SERVICE_DAEMON_ACTIVATE_H

#include "service/daemon/listen.h"

/**
 * attnd_activate() - take the listening socket of $LISTEN_FDS, if there is one for this process
 * @out:  receives it; its file stays the service manager's
 * @path: [bytes], receives the name that it is bound to
 *
 * The variables are removed, so that no child takes them for its own.
 * Threads: none other yet. Return: 1 it is taken; 0 none is handed over; -ATTND_E_RANGE more than
 * one is (value, limit); -ATTND_E_INVALID what is handed over is no listening unix socket of
 * SOCK_SEQPACKET that has a path of less than @bytes; -ATTND_E_SYSTEM (errno in @fault->value).
 */
int attnd_activate(struct attnd_listen *out, char *path, size_t bytes, struct attnd_fault *fault);

#endif
