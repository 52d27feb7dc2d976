/*
 * accept.h - new connections on the listening socket.
 */
#ifndef ATTND_SERVICE_DAEMON_ACCEPT_H
#define ATTND_SERVICE_DAEMON_ACCEPT_H

#include "service/service.h"

/** attnd_accept_allows() - 1: the user is on the allow-list. */
int attnd_accept_allows(const struct attnd_options *options, uid_t uid);

/** attnd_accept_start() - watch service->listen_fd. On failure service->listen_watch is NULL and
 * the log says why. While descriptors are short the watch pauses by itself. */
void attnd_accept_start(struct attnd_service *service);

/** attnd_accept_stop() - watch it no more. Harmless twice. */
void attnd_accept_stop(struct attnd_service *service);

#endif
