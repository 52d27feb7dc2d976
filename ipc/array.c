/*
 * array.c - long arrays without the heap.
 *
 * calloc() fills with zeros what the heap has had before: 32 MiB take more than two milliseconds of
 * a thread that everybody waits for. Fresh mappings are zeros already. They are let go in steps,
 * because a thread that maps something waits for one that unmaps.
 */
#include "ipc/array.h"

#include "ipc/closer.h"

#include <stdlib.h>
#include <sys/mman.h>

#define LARGE_BYTES (1u << 20) /* less is zeroed in some tens of microseconds */
#define STEP_BYTES (1u << 20)

void *attnd_array_new(uint64_t bytes)
{
    if (bytes < LARGE_BYTES)
        return calloc(1, bytes);
    void *array = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (array == MAP_FAILED)
        return NULL;
    (void)madvise(array, bytes, MADV_NOHUGEPAGE); /* of which one touch fills 2 MiB */
    return array;
}

/* On the heap, where the closer's list stays: arrays in it would hide what comes behind them from
 * whoever looks for memory that nobody has any more. */
struct array_closing {
    struct attnd_closing closing; /* first */
    char *array;
};

static void unmap(char *array, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += STEP_BYTES)
        munmap(array + at, bytes - at < STEP_BYTES ? bytes - at : STEP_BYTES);
}

static void close_array(struct attnd_closing *closing)
{
    struct array_closing *held = (struct array_closing *)(void *)closing;

    unmap(held->array, closing->bytes);
    free(held);
}

void attnd_array_free(void *array, uint64_t bytes)
{
    if (!array || bytes < LARGE_BYTES) {
        free(array);
        return;
    }
    struct array_closing *held = malloc(sizeof(*held));
    if (!held) {
        unmap(array, bytes);
        return;
    }
    *held = (struct array_closing){{.close = close_array, .bytes = bytes}, array};
    attnd_closer_take(&held->closing);
}
