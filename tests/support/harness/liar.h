/* liar.h - for tests of calls and batches that make no sense: the pool that they are made on, and
 * what is wanted of their faults. */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_LIAR_H
#define ATTND_TESTS_SUPPORT_HARNESS_LIAR_H

#include "client/attnd.h"

/* A pool of 100 pages of 16 tokens, 2 KV heads of 64, one layer, fp16. */
#define LIAR_PAGES 100
#define LIAR_PLANE_BYTES (LIAR_PAGES * 16 * 2 * 64 * 2)

/** liar_pool() - that pool, of the engine's pages. @planes: receives the memory of K and V, one
 * behind the other. Fails the test if it cannot be made. */
void liar_pool(struct attnd_session *session, uint32_t *planes, uint32_t *pool);

#define WANT(code, field, index, value, limit)                                                     \
    {                                                                                              \
        -ATTND_E_##code, ATTND_F_##field, index, value, limit                                      \
    }

/** liar_same_fault() - 1: in every field. */
int liar_same_fault(const struct attnd_fault *a, const struct attnd_fault *b);

#endif
