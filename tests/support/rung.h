/*
 * rung.h - a trial whose runs are not submitted but prepared and rung.
 *
 * Runs lie at step 0's places; lengths may be advanced as often as one likes, because step 0's are
 * moved along for the reference.
 */
#ifndef ATTND_TESTS_SUPPORT_RUNG_H
#define ATTND_TESTS_SUPPORT_RUNG_H

#include "tests/support/trial.h"

#include "schemas/abi.h"

#define RUNG_LAYERS 4u

/** rung_batch() - decoding of three requests in four layers, pages of four tokens, room for a few
 * more pages; steps 2, the second of which appends them. */
struct random_batch rung_batch(void);

/** rung_prepare() - Return: as attnd_prepare(). */
int rung_prepare(const struct trial *trial, uint32_t layer, uint32_t lane, uint32_t *prepared);
/** rung_prepare_all() - one for each layer; fails the test otherwise. */
void rung_prepare_all(const struct trial *trial, uint32_t lane, uint32_t prepared[RUNG_LAYERS]);
void rung_unprepare_all(const struct trial *trial, const uint32_t prepared[RUNG_LAYERS]);

/** rung_ring() - ring and wait. Return: as attnd_ring_wait(). */
int rung_ring(const struct trial *trial, uint32_t lane, uint32_t prepared);
/** rung_verify() - o and lse of @layer, and poison for the next time; fails the test if wrong. */
void rung_verify(struct trial *trial, uint32_t layer);

/** rung_set(), rung_advance() - submit and await; fail the test otherwise.
 * rung_extend() - the pages of step 1. */
void rung_set(struct trial *trial, uint32_t lane);
void rung_extend(struct trial *trial, uint32_t lane);
void rung_advance(struct trial *trial, uint32_t lane, const int32_t *kv_len);

/** rung_from_host() - 1 if mailboxes lie in host memory; asks a service of its own. Where they lie
 * on the GPU, tests/gpu/ rings them. */
int rung_from_host(void);

/** rung_mailbox() - the words themselves, for tests that ring by hand. */
struct attnd_mailbox *rung_mailbox(struct attnd_session *session);

#endif
