/* random_shrink.h - the smallest batch that still fails. */
#ifndef ATTND_TESTS_SUPPORT_RANDOM_RANDOM_SHRINK_H
#define ATTND_TESTS_SUPPORT_RANDOM_RANDOM_SHRINK_H

#include "tests/support/random/random_batch.h"

/** random_fails_fn() - runs a batch. Return: 1 if it still shows the failure. */
typedef int random_fails_fn(void *context, const struct random_batch *batch);

/**
 * random_shrink() - remove what the failure does not need
 * @batch:     fails; replaced by smaller ones that fail too
 * @tries_max: calls of @fails at most
 *
 * Removes steps, levels and requests, shortens lengths, sets options back to 0, again and again
 * until nothing more can go. Return: how many simplifications were kept.
 */
uint32_t random_shrink(struct random_batch *batch, random_fails_fn *fails, void *context,
                       uint32_t tries_max);

#endif
