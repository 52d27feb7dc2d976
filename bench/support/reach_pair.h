/*
 * reach_pair.h - an engine of each of two services, and tickets that go from one to the other.
 *
 * Every function returns false after bench_suite_fail().
 */
#ifndef ATTND_BENCH_SUPPORT_REACH_PAIR_H
#define ATTND_BENCH_SUPPORT_REACH_PAIR_H

#include "bench/support/suite.h"

#define REACH_PAGES_MAX 8192u
#define REACH_PAGE_SIZE 16u
#define REACH_DIM 128u

/* K and V of a page are heads * 4 KiB each, a layer. */
struct reach_shape {
    uint32_t layers, pages, heads;
};

struct reach_end {
    struct attnd_session *session;
    uint32_t pool;
    uint8_t *address; /* of the pool */
    uint64_t bytes;
    int32_t pages[REACH_PAGES_MAX];
};

struct reach_pair {
    struct reach_end giver, claimer;
    struct attnd_token ticket;
};

static inline uint64_t reach_page_bytes(const struct reach_shape *shape)
{
    return (uint64_t)2 * shape->layers * shape->heads * REACH_PAGE_SIZE * REACH_DIM * 2;
}

/** reach_open() - @giver, @claimer: sockets of two services that are linked. Memory is touched. */
bool reach_open(struct bench_suite *suite, struct reach_pair *pair, const char *giver,
                const char *claimer, const struct reach_shape *shape);
void reach_close(struct reach_pair *pair);

/** reach_scatter() - from now on free pages come in no order. @pages: of the whole pool. */
bool reach_scatter(struct bench_suite *suite, struct reach_end *end, uint32_t pages);

/** reach_alloc() - the giver leases @count pages. */
bool reach_alloc(struct bench_suite *suite, struct reach_pair *pair, uint32_t count);
/** reach_begin(), reach_end() - claim the pair's ticket of @count pages, and wait until they are
 * there; they are given back. @at_ns: when they were, CLOCK_MONOTONIC. */
bool reach_begin(struct bench_suite *suite, struct reach_pair *pair, uint32_t count);
bool reach_end(struct bench_suite *suite, struct reach_pair *pair, uint32_t count, uint64_t *at_ns);
/** reach_claim() - a ticket of @count pages. @ns: from the claim to its completion. */
bool reach_claim(struct bench_suite *suite, struct reach_pair *pair, uint32_t count, uint64_t *ns);

#endif
