/*
 * fdpass.h - one datagram with file descriptors over a unix SEQPACKET socket.
 */
#ifndef ATTND_IPC_FDPASS_H
#define ATTND_IPC_FDPASS_H

#include "schemas/errors.h"

#include <stddef.h>

#define ATTND_FDS_MAX 8
#define ATTND_DATAGRAM_BYTES_MAX (128u * 1024u)

/**
 * attnd_fdpass_send() - send @bytes and @fd_count descriptors, never SIGPIPE
 * @fds: stay open and the caller's
 * Return: 0; -ATTND_E_FULL (would block, non-blocking sockets); -ATTND_E_DISCONNECTED;
 * -ATTND_E_SYSTEM.
 */
int attnd_fdpass_send(int socket, const void *data, size_t bytes, const int *fds, int fd_count);

/**
 * attnd_fdpass_recv() - receive one datagram
 * @fds: receives up to ATTND_FDS_MAX descriptors, CLOEXEC, now the caller's; *fd_count says how
 * many
 *
 * A datagram with more descriptors is refused, and they are discarded (discard.h).
 * Return: bytes > 0; 0 would block; -ATTND_E_DISCONNECTED at end of file; -ATTND_E_PROTOCOL for a
 * truncated datagram or control message (its descriptors are discarded); -ATTND_E_SYSTEM.
 */
long attnd_fdpass_recv(int socket, void *data, size_t bytes, int *fds, int *fd_count);

/** attnd_fdpass_close() - close an array of descriptors. Those of a client are discarded instead
 * (discard.h). */
void attnd_fdpass_close(const int *fds, int fd_count);

#endif
