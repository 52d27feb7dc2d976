/*
 * launched.h - a trial whose runs are not submitted but prepared and launched.
 *
 * Runs lie at step 0's places; lengths may be advanced as often as one likes, because step 0's are
 * moved along for the reference.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_LAUNCHED_H
#define ATTND_TESTS_SUPPORT_HARNESS_LAUNCHED_H

#include "tests/support/trial/trial.h"

#include "schemas/abi.h"

#define LAUNCHED_LAYERS 4u

/** launched_batch() - decoding of three requests in four layers, pages of four tokens, room for a
 * few more pages; steps 2, the second of which appends them. */
struct random_batch launched_batch(void);

/** launched_begin() - a trial of @batch whose plan is set. */
void launched_begin(struct trial *trial, struct engine *engine, const struct random_batch *batch);

/** launched_open(), launched_close() - an engine, and the one trial of it.
 * launched_open_all(), launched_close_all() - and a prepared run for each layer, in one lane. */
void launched_open(struct engine *engine, struct trial *trial, const char *socket_path,
                   const char *name, const struct random_batch *batch);
void launched_open_all(struct engine *engine, struct trial *trial, const char *socket_path,
                       const char *name, const struct random_batch *batch, uint32_t lane,
                       uint32_t prepared[LAUNCHED_LAYERS]);
void launched_close(struct engine *engine, struct trial *trial);
void launched_close_all(struct engine *engine, struct trial *trial,
                        const uint32_t prepared[LAUNCHED_LAYERS]);

/** launched_prepare() - Return: as attnd_prepare(). */
int launched_prepare(const struct trial *trial, uint32_t layer, uint32_t lane, uint32_t *prepared);
/** launched_prepare_at() - the same in the slot that run @gone had; fails the test otherwise. */
void launched_prepare_at(const struct trial *trial, uint32_t layer, uint32_t lane, uint32_t gone,
                         uint32_t *prepared);
/** launched_prepare_all() - one for each layer; fails the test otherwise. */
void launched_prepare_all(const struct trial *trial, uint32_t lane,
                          uint32_t prepared[LAUNCHED_LAYERS]);
void launched_unprepare_all(const struct trial *trial, const uint32_t prepared[LAUNCHED_LAYERS]);

/** launched_ring() - ring and wait. Return: as attnd_launch_wait(). */
int launched_ring(const struct trial *trial, uint32_t lane, uint32_t prepared);
/** launched_verify() - o and lse of @layer, and poison for the next time; fails the test if wrong.
 */
void launched_verify(struct trial *trial, uint32_t layer);
/** launched_untouched() - o of @layer is poison still; fails the test otherwise. */
void launched_untouched(const struct trial *trial, uint32_t layer);

/** launched_set(), launched_advance() - submit and await; fail the test otherwise.
 * launched_extend() - the pages of step 1. */
void launched_set(struct trial *trial, uint32_t lane);
void launched_extend(struct trial *trial, uint32_t lane);
void launched_advance(struct trial *trial, uint32_t lane, const int32_t *kv_len);

/** launched_from_host() - 1 if mailboxes lie in host memory; asks a service of its own. Where they
 * lie on the GPU, tests/gpu/ rings them. */
int launched_from_host(void);

/** launched_mailbox() - the words themselves, for tests that ring by hand. */
struct attnd_mailbox *launched_mailbox(struct attnd_session *session);

#endif
