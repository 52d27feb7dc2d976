/*
 * hand_over.h - two services, one of which claims from the other: engines on both sides, and pages
 * whose every element is known.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_HAND_OVER_H
#define ATTND_TESTS_SUPPORT_HARNESS_HAND_OVER_H

#include "client/attnd.h"
#include "tests/support/harness/harness.h"

/* How a pool lies in memory: of the service's making, or in planes of the engine's own memory. */
enum side_layout { SIDE_OF_SERVICE, SIDE_BY_HEAD, SIDE_WITH_GAPS };

struct side_shape {
    uint32_t layers, pages, page_size, heads_kv, dim;
};

/* An engine with a pool whose pages the service owns. */
struct side {
    const struct harness *service;
    struct attnd_session *session;
    uint32_t pool;
    struct attnd_pool_info info;
    uint8_t *address; /* of the pool's memory here */
};

/** side_open() - a session of @service and a pool of @shape; fails the test otherwise. */
void side_open(struct side *side, const struct harness *service, const struct side_shape *shape,
               enum side_layout layout);
void side_close(struct side *side);

/** side_fill() - every element of @pages, in their order, from @seed. */
void side_fill(const struct side *side, const int32_t *pages, uint32_t count, uint64_t seed);
/** side_wrong() - how many elements of @pages are not what side_fill() of another side wrote. */
uint64_t side_wrong(const struct side *side, const int32_t *pages, uint32_t count, uint64_t seed);

/** side_offer() - lease @count pages, fill them, and offer them. */
void side_offer(const struct side *side, uint32_t count, uint64_t seed, uint32_t expire_ms,
                struct attnd_token *ticket);
/** side_claim() - submit a claim. @op: NULL: zeros. */
void side_claim(const struct side *side, const struct attnd_token *ticket, uint32_t pages_max,
                const struct attnd_op *op);
/** side_wait() - for the next completion, at most @timeout_ms. */
struct attnd_completion side_wait(const struct side *side, uint32_t timeout_ms);
/** side_take() - what a claim that succeeded brought. @pages: [@count] that there must be. */
void side_take(const struct side *side, const struct attnd_completion *completion, uint32_t count,
               int32_t *pages);

/** side_hand_over_many() - offers @count tickets of a page each, claims all of them at once, and
 * checks that each has come whole, and once; each within @timeout_ms. */
void side_hand_over_many(const struct side *giver, const struct side *claimer, uint32_t count,
                         uint32_t timeout_ms);

/** side_leased() - pages of all pools of a service that somebody holds. */
uint32_t side_leased(const struct harness *service);
/** side_linked() - 1: the service has a link to the first of its peers. */
int side_linked(const struct harness *service);
#define SIDE_LONG_MS 20000u
/** side_await_free() - nothing is leased in @service. @what: this, for whoever waits in vain. */
void side_await_free(struct harness *service, const char *what);
/** side_await_linked() - @service is linked to the first of its peers. */
void side_await_linked(struct harness *service);
/** side_await_lent(), side_await_returned() - a ticket of @giver is under way, or none is. */
void side_await_lent(struct harness *giver);
void side_await_returned(struct harness *giver, uint32_t limit_ms);

/** hand_over_start() - the giver, and a claimer that is linked to it. @options: of the claimer,
 * NULL-terminated; may be NULL. */
void hand_over_start(struct harness *giver, struct harness *claimer, const char *const *options);

#endif
