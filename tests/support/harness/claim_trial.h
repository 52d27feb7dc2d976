/*
 * claim_trial.h - one claim of another service's ticket, and what becomes of it when somebody dies.
 *
 * Whatever happens, and to whom: whoever waits is answered in time; the ticket is either spent or
 * as it was, and never both; no page stays leased that nobody has; and what a claim that succeeded
 * brought is right, element by element. Each function fails the test otherwise.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_CLAIM_TRIAL_H
#define ATTND_TESTS_SUPPORT_HARNESS_CLAIM_TRIAL_H

#include "tests/support/harness/hand_over.h"

#define TRIAL_PAGES 16
#define TRIAL_LONG_MS SIDE_LONG_MS
#define TRIAL_KILLED_MS 1000u
#define TRIAL_STOPPED_MS 5000u

enum trial_outcome { TRIAL_SUCCEEDED, TRIAL_FAILED, TRIAL_DISCONNECTED };

struct claim_trial {
    struct harness *giver_service, *claimer_service;
    struct side giver, claimer;
    struct attnd_token ticket;
    uint64_t seed;
    int early; /* layers are offered one after the other, and the claim does not wait for them */
};

/** claim_trial_begin() - engines of both, and a ticket of TRIAL_PAGES pages. */
void claim_trial_begin(struct claim_trial *trial, struct harness *giver, struct harness *claimer,
                       uint64_t seed);
/** claim_trial_begin_early() - the same, of layers that are not whole yet. */
void claim_trial_begin_early(struct claim_trial *trial, struct harness *giver,
                             struct harness *claimer, uint64_t seed);
/** claim_trial_claim() - submit the claim; of an early one the layers become whole behind it. */
void claim_trial_claim(const struct claim_trial *trial);
/** claim_trial_answer() - of the claim, at most @limit_ms after now. Pages of one that succeeded
 * are right, and given back. */
enum trial_outcome claim_trial_answer(const struct claim_trial *trial, uint32_t limit_ms);
/** claim_trial_claim_there() - the ticket is claimed at the giver. Return: 1; 0 it is spent. Awaits
 * that it is lent no more, and that its layers are whole. */
int claim_trial_claim_there(const struct claim_trial *trial, uint32_t limit_ms);
/** claim_trial_once_more() - all over again, to see that it works. */
void claim_trial_once_more(struct harness *giver, struct harness *claimer);
/** claim_trial_close() - its engines leave. */
void claim_trial_close(struct claim_trial *trial);

/**
 * claim_trial_after_giver(), claim_trial_after_claimer() - the daemon of that side was killed, or
 * stands still, since claim_trial_claim()
 * @signal:  SIGKILL: it is started again in the end; SIGSTOP: it goes on
 * @restart: starts it again
 * A claim that has not succeeded has left the ticket, or it is spent and the giver's pages are
 * free; never both.
 */
void claim_trial_after_giver(const struct claim_trial *trial, int signal,
                             void (*restart)(struct harness *giver));
void claim_trial_after_claimer(const struct claim_trial *trial, int signal,
                               void (*restart)(struct harness *claimer));

#endif
