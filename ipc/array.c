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

/* From its end: its length is at the beginning. */
static void unmap(struct attnd_closing *closing)
{
    char *array = (char *)closing;
    uint64_t left_bytes = closing->bytes;

    while (left_bytes) {
        const uint64_t step_bytes =
            left_bytes % STEP_BYTES ? left_bytes % STEP_BYTES : (uint64_t)STEP_BYTES;
        left_bytes -= step_bytes;
        munmap(array + left_bytes, step_bytes);
    }
}

void attnd_array_free(void *array, uint64_t bytes)
{
    struct attnd_closing *closing = array;

    if (!array || bytes < LARGE_BYTES) {
        free(array);
        return;
    }
    *closing = (struct attnd_closing){.close = unmap, .bytes = bytes};
    attnd_closer_take(closing);
}
