/*
 * both.h - an engine of either of two services, one of which claims from the other, and claims
 * where all goes well.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_BOTH_H
#define ATTND_TESTS_SUPPORT_HARNESS_BOTH_H

#include "tests/support/harness/hand_over.h"

#define BOTH_PAGES 24
#define BOTH_TICKETS 40

struct both {
    struct harness *giver_service, *claimer_service;
    struct side giver, claimer;
};

/** both_open() - an engine of each service, with pools that lie in memory as said. */
void both_open(struct both *both, struct harness *giver, struct harness *claimer,
               enum side_layout from, enum side_layout to);
/** both_close() - the engines leave. */
void both_close(struct both *both);
/** both_stop() - and the services end. */
void both_stop(struct both *both);

/** both_claim_well() - claims a ticket of BOTH_PAGES pages filled from @seed: they are right, the
 * giver has its own back, and then the claimer's are free, too. */
void both_claim_well(const struct both *both, const struct attnd_token *ticket, uint64_t seed);
/** both_bring_all_layouts() - a ticket from each layout to each, and the services end. */
void both_bring_all_layouts(struct harness *giver, struct harness *claimer);
/** both_bring_many() - BOTH_TICKETS tickets at once, each whole, and the services end. */
void both_bring_many(struct harness *giver, struct harness *claimer);

#endif
