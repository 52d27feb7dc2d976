/*
 * draws.h - random batches from two engine processes at once, each with a context of its own.
 *
 *   ATTND_SEED     repeats a run         ATTND_FIRST    number of the first batch (0)
 *   ATTND_ROUNDS   batches in all (160)
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_DRAWS_H
#define ATTND_TESTS_GPU_SUPPORT_DRAWS_H

#include "tests/support/harness/engine.h"
#include "tests/support/harness/harness.h"
#include "tests/support/random/soak.h"

/** draws_init() - takes the numbers above, and prints the seed. */
void draws_init(void);

/** draws_in_engines() - batches by @draw (NULL: plain ones) in engines that @open_engine opens.
 * Return: 0; otherwise some were wrong. */
int draws_in_engines(const struct harness *harness,
                     void (*open_engine)(struct engine *engine, const char *socket_path,
                                         const char *name),
                     random_draw_fn *draw);

#endif
