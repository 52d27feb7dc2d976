/*
 * futex.h - the two futex calls that cross a process, without glibc's absent wrappers.
 *
 * Never FUTEX_PRIVATE: the words live in memory that two processes map.
 */
#ifndef ATTND_SCHEMAS_FUTEX_H
#define ATTND_SCHEMAS_FUTEX_H

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/**
 * attnd_futex_wait() - sleep while *word == expected
 * @timeout: relative, NULL for ever
 *
 * Return: 0 woken; -EAGAIN the word differs already; -ETIMEDOUT; -EINTR.
 */
static inline int attnd_futex_wait(uint32_t *word, uint32_t expected,
                                   const struct timespec *timeout)
{
    return syscall(SYS_futex, word, FUTEX_WAIT, expected, timeout, NULL, 0) < 0 ? -errno : 0;
}

/** attnd_futex_wake() - wake at most @count sleepers. Return: how many, or -errno. */
static inline int attnd_futex_wake(uint32_t *word, int count)
{
    long woken = syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
    return woken < 0 ? -errno : (int)woken;
}

#endif
