/*
 * fdpass.h - one datagram with file descriptors over a unix SEQPACKET socket.
 */
#ifndef ATTND_IPC_FDPASS_H
#define ATTND_IPC_FDPASS_H

#include "schemas/errors.h"

#include <stddef.h>
#include <stdint.h>

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

/**
 * attnd_fdpass_recv_from() - the same from a peer that is not trusted
 * @owner: whose descriptors they are if they are discarded (discard.h)
 * Look at attnd_fdpass_room() and attnd_discard_full() first.
 */
long attnd_fdpass_recv_from(int socket, uint32_t owner, void *data, size_t bytes, int *fds,
                            int *fd_count);

/** attnd_fdpass_carries() - 1: the next datagram has descriptors. It and they stay where they are.
 */
int attnd_fdpass_carries(int socket);

/** attnd_fdpass_allow() - may the peer of @socket send descriptors? Those of a listening socket's
 * peers are what it was when they connected. Return: 0; -ATTND_E_UNSUPPORTED: this kernel (before
 * 6.16) lets them in any case. */
int attnd_fdpass_allow(int socket, int allow);

/** attnd_fdpass_room() - 1: this process can open as many descriptors as a datagram may carry, and
 * some more. Otherwise the kernel would close what has no room, in our name and at our expense.
 * Under a limit of less than 1012 descriptors as many as ATTND_FDS_MAX are enough. */
int attnd_fdpass_room(void);

/** attnd_fdpass_close() - close an array of descriptors. Those of a client are discarded instead
 * (discard.h). */
void attnd_fdpass_close(const int *fds, int fd_count);

#endif
