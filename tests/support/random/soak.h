/*
 * soak.h - many random batches through one engine process; what to say of one that fails.
 */
#ifndef ATTND_TESTS_SUPPORT_RANDOM_SOAK_H
#define ATTND_TESTS_SUPPORT_RANDOM_SOAK_H

#include "tests/support/harness/engine.h"

struct soak {
    uint64_t seed;
    uint64_t next;     /* number of the next batch */
    uint64_t stride;   /* between batches of this engine */
    uint64_t verified; /* batches that were right */
    uint64_t with_long_kv;
    uint64_t runs; /* each batch has steps x layers of them */
};

/**
 * soak_step() - draw, run and judge the next batch
 * Return: 0; 1 if it was wrong: seed and number have been printed, then the smallest batch that
 * shows it.
 */
int soak_step(struct soak *soak, struct engine *engine);

#endif
