/*
 * meeting.h - two engine processes at one pool: the first writes pages, the second attends to them.
 */
#ifndef ATTND_TESTS_SUPPORT_TRIAL_MEETING_H
#define ATTND_TESTS_SUPPORT_TRIAL_MEETING_H

#include "tests/support/harness/harness.h"
#include "tests/support/trial/trial.h"

/* What the two tell each other, in memory that they share. */
struct meeting {
    const struct harness *harness;
    struct random_batch batch;
    struct attnd_token token;
    int writable; /* what the second may do with the pool */
    uint32_t token_ready, written, read;
};

/** meeting_new() - before the two are forked. */
struct meeting *meeting_new(const struct harness *harness, int writable);

/** meeting_share() - @engine's pool is there for the other. */
void meeting_share(struct meeting *meeting, struct engine *engine);
/** meeting_attach() - waits for the pool and attaches it to @engine. */
void meeting_attach(struct meeting *meeting, struct engine *engine);

/** meeting_write() - a pool, shared, and what is in it written @rounds times, each read in between.
 */
void meeting_write(struct meeting *meeting, struct engine *engine, uint32_t rounds);
/** meeting_read() - the other side of it: what was written is attended to, and right. */
void meeting_read(struct meeting *meeting, struct engine *engine, uint32_t rounds);

#endif
