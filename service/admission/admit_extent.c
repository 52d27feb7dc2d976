/*
 * admit_extent.c - how far a strided block reaches, without overflow.
 *
 * The last element of a block lies at sum (counts[i] - 1) * strides[i]. All of it is a client's
 * word, so every product and sum is checked; the result fits int64, so that offset + extent, both
 * checked, cannot wrap in 64 unsigned bits either.
 */
#include "service/admission/admit.h"

int attnd_extent_bytes(const uint64_t *counts, const int64_t *strides, int rank,
                       uint32_t element_bytes, uint64_t *bytes)
{
    uint64_t last = 0, span, total;
    int empty = 0;

    for (int i = 0; i < rank; i++) {
        if (strides[i] < 0)
            return -ATTND_E_RANGE;
        empty |= counts[i] == 0;
    }
    for (int i = 0; i < rank && !empty; i++)
        if (__builtin_mul_overflow(counts[i] - 1, (uint64_t)strides[i], &span) ||
            __builtin_add_overflow(last, span, &last))
            return -ATTND_E_RANGE;
    if (__builtin_add_overflow(last, 1, &last) ||
        __builtin_mul_overflow(last, element_bytes, &total) || total > INT64_MAX)
        return -ATTND_E_RANGE;
    *bytes = empty ? 0 : total;
    return 0;
}
