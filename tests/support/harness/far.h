/*
 * far.h - two services that reach each other as those of two hosts do, by attnd-mover.
 *
 * The test's process has a network of its own where it may have one (it is root), so that a port is
 * nobody else's; a pair of interfaces in it can be taken down.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_FAR_H
#define ATTND_TESTS_SUPPORT_HARNESS_FAR_H

#include "tests/support/harness/hand_over.h"

struct far_options {
    const char *giver[8], *claimer[8]; /* more options, NULL-terminated */
};

/** far_missing() - 1: attnd-mover was not built, or UCX is not here: the test is skipped. */
int far_missing(void);

/** far_start() - the giver, and a claimer that is linked to it. @options: may be NULL. */
void far_start(struct harness *giver, struct harness *claimer, const struct far_options *options);
/** far_start_giver(), far_start_claimer() - one after the other, without waiting for a link. */
void far_start_giver(struct harness *giver, const struct far_options *options);
void far_start_claimer(struct harness *claimer, const struct far_options *options);
/** far_restart_giver(), far_restart_claimer() - with the same options, after its daemon's end. */
void far_restart_giver(struct harness *giver);
void far_restart_claimer(struct harness *claimer);

/** far_network_is_own() - 1: the network is this test's: far_network() may take it down. */
int far_network_is_own(void);
void far_network(int up);

/** far_port() - where the giver listens. */
unsigned far_port(void);
/** far_mover() - the process that @service has for other hosts. */
pid_t far_mover(const struct harness *service);
/** far_key() - write a key of @bytes, the same for the same @seed. Return: its path. */
const char *far_key(uint32_t seed, uint32_t bytes);

#endif
