/*
 * soak.h - many random batches through one engine process; what to say of one that fails.
 */
#ifndef ATTND_TESTS_SUPPORT_RANDOM_SOAK_H
#define ATTND_TESTS_SUPPORT_RANDOM_SOAK_H

#include "tests/support/harness/engine.h"
#include "tests/support/harness/harness.h"

struct soak {
    random_draw_fn *draw; /* NULL: random_batch_draw() */
    uint64_t seed;
    uint64_t next;     /* number of the next batch */
    uint64_t stride;   /* between batches of this engine */
    uint64_t verified; /* batches that were right */
    uint64_t refused;  /* batches with an option that the worker lacks, and names */
    uint64_t with_long_kv;
    uint64_t runs;   /* each batch has steps x layers of them */
    uint64_t wrong;  /* number of the last batch that was wrong */
    int wrong_alone; /* 1: it was again when it was repeated */
};

/**
 * soak_step() - draw, run and judge the next batch
 * Return: 0; 1 if it was wrong: seed and number have been printed, then the smallest batch that
 * shows it.
 */
int soak_step(struct soak *soak, struct engine *engine);

#define SOAK_ENGINES 2u

/* One of several engine processes that do a run of batches between them. */
struct soak_engine {
    const struct harness *harness;
    uint32_t number;
};

/**
 * soak_shapes() - the batches of engine @number among @first..@first + @rounds: whole shapes of
 * eight by turns, 0..7 for one engine and 8..15 for the other
 * The program takes seed, @first and @rounds from ATTND_SEED, ATTND_FIRST and ATTND_ROUNDS.
 * Return: 0; 1 after the first that was wrong, with the command printed that repeats it.
 */
int soak_shapes(struct soak *soak, struct engine *engine, uint32_t number, uint64_t first,
                uint64_t rounds);

/** soak_in_engines() - @client with a struct soak_engine in SOAK_ENGINES processes at once.
 * Return: the sum of their exit statuses. */
int soak_in_engines(const struct harness *harness, int (*client)(void *context));

#endif
