/*
 * long_options.h - what every long test is asked: how many rounds, of which seed, on which loop.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_LONG_OPTIONS_H
#define ATTND_TESTS_SUPPORT_HARNESS_LONG_OPTIONS_H

#include <argp.h>
#include <stdint.h>

struct long_options {
    uint64_t rounds, seed;
    const char *loop; /* of the daemon */
};

/** long_options_default() - the seed is the clock's. */
struct long_options long_options_default(uint64_t rounds);

/* --rounds, --seed and --loop, into a struct long_options. */
extern const struct argp long_options_argp;

#endif
