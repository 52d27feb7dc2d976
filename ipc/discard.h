/*
 * discard.h - close descriptors without waiting for what that means.
 */
#ifndef ATTND_IPC_DISCARD_H
#define ATTND_IPC_DISCARD_H

/**
 * attnd_discard() - have @fds closed soon, by another thread
 * @fds: no longer the caller's; @fd_count of them, at least 1
 *
 * Threads: any. Never blocks.
 */
void attnd_discard(const int *fds, int fd_count);

#endif
