/*
 * seed.h - what the environment says of a random test: where it begins, and how long it goes on.
 *
 * A variable that is set and is no decimal number ends the program: a run that was meant to be
 * repeated must not silently be another one.
 */
#ifndef ATTND_TESTS_SUPPORT_RANDOM_SEED_H
#define ATTND_TESTS_SUPPORT_RANDOM_SEED_H

#include <stdint.h>

/** test_seed() - ATTND_SEED if it is set, the clock otherwise; printed, so that it can be repeated.
 */
uint64_t test_seed(void);

/** test_number() - the number in the environment's @name, or @otherwise. */
uint64_t test_number(const char *name, uint64_t otherwise);

#endif
