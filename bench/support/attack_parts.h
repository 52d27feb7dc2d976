/*
 * attack_parts.h - what attackers are made of (attack.h). Those that return bool or int have said
 * what is wrong by bench_suite_fail().
 */
#ifndef ATTND_BENCH_SUPPORT_ATTACK_PARTS_H
#define ATTND_BENCH_SUPPORT_ATTACK_PARTS_H

#include "bench/support/suite.h"
#include "client/attnd_prefix.h"
#include "schemas/abi.h"

/** attack_begun() - says to *@fd that it is under way, once. */
void attack_begun(int *fd);
/** attack_open() - a session of so large a ring and arena. */
bool attack_open(struct bench_suite *suite, uint32_t ring_entries, uint64_t arena_bytes,
                 struct attnd_session **session);
/** attack_pool() - a pool of one layer, one head of 16 of K and V, a token a page. */
struct attnd_pool_desc attack_pool(uint32_t pages, uint32_t owner);
/** attack_cache() - such a pool of the service's pages, and a namespace in it. */
bool attack_cache(struct bench_suite *suite, struct attnd_session *session, uint32_t pages,
                  uint32_t *pool, uint32_t *prefix);
/** attack_plan() - a plan of one request, which is set. */
bool attack_plan(struct bench_suite *suite, struct attnd_session *session, uint32_t pool,
                 uint32_t *plan);
/** attack_keys() - [@count] keys that were not there before; @next: where they went on. */
void attack_keys(struct attnd_prefix_key *keys, uint32_t count, uint64_t *next);

/** attack_submitted() - what @call answered. Return: 1 go on; 0 the ring or the arena is full, for
 * now; -1. */
int attack_submitted(struct bench_suite *suite, const char *call, int code);
/** attack_collected() - what has ended, without waiting. Return: as attack_submitted(). */
int attack_collected(struct bench_suite *suite, struct attnd_session *session);

/** attack_memories() - registers memfds of @bytes each until @count are there or the service has
 * enough. Return: how many; -1. */
int attack_memories(struct bench_suite *suite, struct attnd_session *session, uint32_t count,
                    uint64_t bytes);

/** attack_raise_descriptors() - this process may have as many as its user. Return: how many. */
uint32_t attack_raise_descriptors(void);

/** attack_die() - runs @live in a child until it says that it is under way, and kills it.
 * Return: false: it did not come so far. */
bool attack_die(struct bench_suite *suite, void (*live)(struct bench_suite *suite, int fd));

#endif
