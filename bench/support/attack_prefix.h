/*
 * attack_prefix.h - the same by way of prefix caches and tickets (attack_thread.h).
 */
#ifndef ATTND_BENCH_SUPPORT_ATTACK_PREFIX_H
#define ATTND_BENCH_SUPPORT_ATTACK_PREFIX_H

#include "bench/support/suite.h"

/** bench_attack_claims() - 16 sessions, each of which claims and abandons 4,096 keys. */
void bench_attack_claims(struct bench_suite *suite, int fd);
/** bench_attack_evictions() - 16,384 pages are published, given back, and taken again. */
void bench_attack_evictions(struct bench_suite *suite, int fd);
/** bench_attack_parked() - 960 matches of 4,096 keys wait for one publish, again and again. */
void bench_attack_parked(struct bench_suite *suite, int fd);
/** bench_attack_readers() - one that attached for reading matches all pages, and keeps them. */
void bench_attack_readers(struct bench_suite *suite, int fd);
/** bench_attack_tickets() - as many as there may be, which expire together. */
void bench_attack_tickets(struct bench_suite *suite, int fd);

#endif
