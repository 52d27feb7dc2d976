/*
 * attack_kernel.h - sessions beside which what the daemon's thread asks of the kernel takes long
 * (attack_thread.h).
 */
#ifndef ATTND_BENCH_SUPPORT_ATTACK_KERNEL_H
#define ATTND_BENCH_SUPPORT_ATTACK_KERNEL_H

#include "bench/support/suite.h"

/** bench_attack_futexes() - 60,000 waiters, of io_uring, for the doorbell that the worker answers
 * by. Without io_uring the answers alone. */
void bench_attack_futexes(struct bench_suite *suite, int fd);
/** bench_attack_waiters() - 15,000 descriptors of its wake-up's pipe, all of them in a poll set. */
void bench_attack_waiters(struct bench_suite *suite, int fd);
/** bench_attack_memories() - processes that register 1,000 memories of 16 MiB, and are killed. */
void bench_attack_memories(struct bench_suite *suite, int fd);
/** bench_attack_askers() - asks for the service's status where 4 sessions have 500 memories each.
 */
void bench_attack_askers(struct bench_suite *suite, int fd);
/** bench_attack_visits() - sessions that are opened and closed, and connections without a word. */
void bench_attack_visits(struct bench_suite *suite, int fd);

#endif
