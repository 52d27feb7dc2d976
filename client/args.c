/*
 * args.c - structs that begin with their size.
 *
 * The size is the version. An engine built against an older header passes a shorter struct, whose
 * missing tail reads as zero, and zero is what every field means when it is not used. An engine
 * built against a newer header may pass a longer one as long as it sets nothing in the tail: what
 * this library does not know it must not ignore.
 */
#include "client/internal.h"

#include <string.h>

/* No struct of ours comes near; a size beyond it is an uninitialised one. */
#define ARGS_BYTES_MAX 4096u

static int size_fault(uint32_t size, uint32_t limit)
{
    return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_SIZE, 0, size, limit);
}

int attnd_args_take(void *to, uint32_t to_bytes, const void *from)
{
    if (from == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_ARGS, 0, 0, 0);
    uint32_t size;
    memcpy(&size, from, sizeof(size));
    if (size < sizeof(size) || size > ARGS_BYTES_MAX)
        return size_fault(size, to_bytes);

    const uint8_t *bytes = from;
    for (uint32_t i = to_bytes; i < size; i++) {
        if (bytes[i] != 0)
            return size_fault(size, to_bytes);
    }
    uint32_t known = size < to_bytes ? size : to_bytes;
    memcpy(to, from, known);
    memset((uint8_t *)to + known, 0, to_bytes - known);
    return 0;
}

int attnd_args_give(void *to, const void *from, uint32_t from_bytes)
{
    if (to == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_ARGS, 0, 0, 0);
    uint32_t size;
    memcpy(&size, to, sizeof(size));
    if (size < sizeof(size) || size > ARGS_BYTES_MAX)
        return size_fault(size, from_bytes);

    uint32_t known = size < from_bytes ? size : from_bytes;
    memcpy(to, from, known);
    memset((uint8_t *)to + known, 0, size - known);
    memcpy(to, &size, sizeof(size));
    return 0;
}
