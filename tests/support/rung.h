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

/** rung_begin() - a trial of @batch whose plan is set. */
void rung_begin(struct trial *trial, struct engine *engine, const struct random_batch *batch);

/** rung_open(), rung_close() - an engine, and the one trial of it.
 * rung_open_all(), rung_close_all() - and a prepared run for each layer, in one lane. */
void rung_open(struct engine *engine, struct trial *trial, const char *socket_path,
               const char *name, const struct random_batch *batch);
void rung_open_all(struct engine *engine, struct trial *trial, const char *socket_path,
                   const char *name, const struct random_batch *batch, uint32_t lane,
                   uint32_t prepared[RUNG_LAYERS]);
void rung_close(struct engine *engine, struct trial *trial);
void rung_close_all(struct engine *engine, struct trial *trial,
                    const uint32_t prepared[RUNG_LAYERS]);

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
