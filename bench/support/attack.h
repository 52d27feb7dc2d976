/*
 * attack.h - sessions that take what they can, each a process of its own, for the figures of what
 * others have beside them. They do nothing that is refused.
 */
#ifndef ATTND_BENCH_SUPPORT_ATTACK_H
#define ATTND_BENCH_SUPPORT_ATTACK_H

#include "bench/support/suite.h"

#include <sys/types.h>

enum bench_attack {
    BENCH_ATTACK_FLOOD,   /* 32 lanes of prefills, 512 rows x 2048 keys, 8 heads */
    BENCH_ATTACK_ENDLESS, /* 64 lanes of runs of 2^31 keys */
    BENCH_ATTACK_PLANNER, /* sets of 2^18 requests, one behind the other */
    BENCH_ATTACK_OUTSIDE, /* none: one processor's time, burnt without the service */
    /* Those of attack_thread.h, which want the daemon's thread. */
    BENCH_ATTACK_CLAIMS,
    BENCH_ATTACK_TIMEOUTS,
    BENCH_ATTACK_PLANES,
    BENCH_ATTACK_POOLS,
    BENCH_ATTACK_DEATHS,
    BENCH_ATTACK_BATCHES,
    BENCH_ATTACK_EVICTIONS,
    /* Those of attack_prefix.h: of caches and tickets. */
    BENCH_ATTACK_PARKED,
    BENCH_ATTACK_READERS,
    BENCH_ATTACK_TICKETS,
    /* Those of attack_kernel.h: what the thread does takes the kernel long. */
    BENCH_ATTACK_FUTEXES,
    BENCH_ATTACK_WAITERS,
    BENCH_ATTACK_MEMORIES,
    BENCH_ATTACK_ASKERS,
    BENCH_ATTACK_VISITS,
    BENCH_ATTACKS_END
};

/** bench_attack_processors() - how many of the last kind leave no processor idle. */
uint32_t bench_attack_processors(void);

/** bench_attack_start() - in a child, until bench_attack_stop(). Returns when its operations are
 * under way. Return: its pid; 0 after bench_suite_fail(). */
pid_t bench_attack_start(struct bench_suite *suite, enum bench_attack attack);
void bench_attack_stop(pid_t pid);

/** bench_endless_open() - a session with a plan of one row and @kv_len keys (a multiple of 2^20, or
 * INT32_MAX) that cost 64 MiB of memory. @memory: of q, and of o behind 4096 bytes.
 * Return: false after bench_suite_fail(). */
bool bench_endless_open(struct bench_suite *suite, uint32_t kv_len, struct attnd_session **session,
                        uint32_t *plan, uint32_t *memory);

#endif
