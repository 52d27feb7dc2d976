/*
 * fuzz.h - what the fuzz targets share.
 */
#ifndef ATTND_TESTS_FUZZ_FUZZ_H
#define ATTND_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* libFuzzer calls it with one input after the other. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/** fuzz_require() - end the program, with a sentence, where a claim does not hold. */
static inline void fuzz_require(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "not true: %s\n", what);
    abort();
}

#endif
