/*
 * discard.h - close descriptors without waiting for what that means.
 */
#ifndef ATTND_IPC_DISCARD_H
#define ATTND_IPC_DISCARD_H

#include <stdint.h>

/* A user's own number (its uid), or one of these. */
#define ATTND_DISCARD_OWN UINT32_MAX /* this program's peers that it trusts */
#define ATTND_DISCARD_STRANGERS (UINT32_MAX - 1)

/* As many of one owner may wait before nothing more is taken from it. */
#define ATTND_DISCARD_WAITING_MAX 512u

/**
 * attnd_discard() - have @fds closed soon, by the thread of @owner
 * @fds: no longer the caller's; @fd_count of them, 1 to 253
 *
 * One owner's descriptors are closed one after the other, so a file whose close() never returns
 * holds up those of its owner and nobody else's. More than the kernel carries in one datagram
 * beyond ATTND_DISCARD_WAITING_MAX are closed with those of strangers, and where as many of those
 * wait, they stay open: a caller looks at attnd_discard_full() first.
 * Threads: any. Never blocks.
 */
void attnd_discard(uint32_t owner, const int *fds, int fd_count);

/** attnd_discard_full() - 1: so many of @owner's wait that nothing is to be received from it. */
int attnd_discard_full(uint32_t owner);

#endif
