/*
 * traced.h - what tests of traces execute: runs of both classes, one after the other.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_TRACED_H
#define ATTND_TESTS_SUPPORT_HARNESS_TRACED_H

#include "tests/support/trial/trial.h"

/** traced_batch() - prefills and decodes, so that both classes are there. */
struct random_batch traced_batch(void);

struct traced_times {
    struct attnd_completion done[2];
};

/** traced_run() - runs of two layers, one after the other; a check fails if one does. */
void traced_run(struct trial *trial, struct traced_times *times);

/** traced_session() - its number, as traces name it. */
uint32_t traced_session(struct attnd_session *session);

#endif
