/* seed.c - one seed a program, always printed, so that a failure can be repeated. */
#include "tests/support/random/seed.h"

#include "service/args/args.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

uint64_t test_seed(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t seed =
        test_number("ATTND_SEED", (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    printf("ATTND_SEED=%" PRIu64 "\n", seed);
    (void)fflush(stdout);
    return seed;
}

uint64_t test_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    uint64_t number = otherwise;

    if (text && attnd_number_parse(text, 0, UINT64_MAX, &number) < 0) {
        fprintf(stderr, "%s: '%s' is not a number\n", name, text);
        exit(2);
    }
    return number;
}
