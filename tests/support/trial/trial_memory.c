/* trial_memory.c - memory of a trial; a test that gets none fails. */
#include "tests/support/harness/check.h"
#include "tests/support/trial/trial_internal.h"

#include <stdlib.h>

void *trial_allocate(size_t count, size_t bytes)
{
    void *memory = malloc(count ? count * bytes : 1);
    CHECK(memory != NULL);
    return memory;
}

void trial_free(void *memory)
{
    free(memory);
}
