/*
 * attack_thread.h - sessions that want the daemon's one thread and not the worker. Each runs in a
 * process of its own until it is killed, and says by a byte to @fd that it is under way
 * (attack.c).
 */
#ifndef ATTND_BENCH_SUPPORT_ATTACK_THREAD_H
#define ATTND_BENCH_SUPPORT_ATTACK_THREAD_H

#include "bench/support/suite.h"

/** bench_attack_timeouts() - 32 sessions whose operations have shorter and shorter deadlines. */
void bench_attack_timeouts(struct bench_suite *suite, int fd);
/** bench_attack_planes() - 100 pools of 1,024 layers in one memory, and runs into what is behind
 * them. */
void bench_attack_planes(struct bench_suite *suite, int fd);
/** bench_attack_pools() - pools of 1,024 layers whose planes take turns in 1,000 memories, made and
 * let go. */
void bench_attack_pools(struct bench_suite *suite, int fd);
/** bench_attack_deaths() - processes that lease 2^22 pages, and are killed. */
void bench_attack_deaths(struct bench_suite *suite, int fd);
/** bench_attack_batches() - sets of 2^14 requests with 256 pages in common, each followed by an
 * advance that plans again. */
void bench_attack_batches(struct bench_suite *suite, int fd);

#endif
