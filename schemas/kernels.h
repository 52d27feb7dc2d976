/*
 * kernels.h - the kernels of a GPU's workers by number and by name: which one executes a run, and
 * what it is called where it is missing.
 *
 * A kernel is compiled for a head dimension, an element type and a policy: DIM_TYPE_POLICY, as in
 * 128_fp16_varied. Numbers go by policy, then by dimension, then by type; those of 192, whose rows
 * of V have 128, follow behind. A worker may be built without some of them; those come as modules
 * (persistent/cuda/host/MODULES.md).
 */
#ifndef ATTND_SCHEMAS_KERNELS_H
#define ATTND_SCHEMAS_KERNELS_H

#include "schemas/abi.h"

#ifdef __CUDACC__
#define ATTND_KERNELS_FN static __host__ __device__ constexpr
#elif defined(__cplusplus)
#define ATTND_KERNELS_FN static constexpr
#else
#define ATTND_KERNELS_FN static inline
#endif

#define ATTND_KERNEL_DIMS 4u
#define ATTND_KERNELS_PLAIN (2 * ATTND_KERNEL_DIMS)
#define ATTND_KERNELS_192 (3 * ATTND_KERNELS_PLAIN) /* the first: plain ones, then varied ones */
#define ATTND_KERNELS (ATTND_KERNELS_192 + 4)

/* The ways in which loops treat scores and rows: the identity; all options of a variant; these over
 * K and V of fp8. */
enum attnd_kernel_policy { ATTND_KERNEL_PLAIN, ATTND_KERNEL_VARIED, ATTND_KERNEL_FP8 };

/* The options that the policies have together: ATTND_OPTION_*. */
#define ATTND_KERNEL_OPTIONS                                                                       \
    ((ATTND_OPTIONS_PLACE & ~ATTND_OPTION_CHUNK) | ATTND_OPTION_SOFT_CAP | ATTND_OPTION_SINKS |    \
     ATTND_OPTION_MASK | ATTND_OPTION_SCALES | ATTND_OPTION_HEAD_SCALES)

/* The head dimension that loops are compiled for which execute these; 0: there are none. Rows
 * shorter than that are filled up with zeros, but by the plain ones. Those of 192 have K of 192 and
 * V of 128, and are of 16 bits: of 8 bits there are none (attnd_kernel_of()). */
ATTND_KERNELS_FN uint32_t attnd_kernel_dim(uint32_t dim_qk, uint32_t dim_vo)
{
    if (dim_qk == 576 && dim_vo == 512)
        return 576;
    if (dim_qk == 0 || dim_qk % 16 || dim_qk > 256 ||
        (dim_qk != dim_vo && !(dim_qk == 192 && dim_vo == 128)))
        return 0;
    if (dim_qk != dim_vo)
        return 192;
    return dim_qk <= 64 ? 64 : dim_qk <= 128 ? 128 : 256;
}

/* @dtype: ATTND_FP16 or ATTND_BF16. Return: ATTND_KERNELS if there is no such kernel. */
ATTND_KERNELS_FN uint32_t attnd_kernel_number(uint32_t dim, uint32_t dtype, uint32_t policy)
{
    const uint32_t place = dim == 64 ? 0 : dim == 128 ? 1 : dim == 256 ? 2 : dim == 576 ? 3 : 4;

    if (dtype != ATTND_FP16 && dtype != ATTND_BF16)
        return ATTND_KERNELS;
    if (dim == 192 && policy != ATTND_KERNEL_FP8)
        return ATTND_KERNELS_192 + policy * 2 + (dtype == ATTND_BF16);
    if (place == ATTND_KERNEL_DIMS)
        return ATTND_KERNELS;
    return policy * ATTND_KERNELS_PLAIN + place * 2 + (dtype == ATTND_BF16);
}

/* The kernel for dimensions, types of q and of K, and options; ATTND_KERNELS: there is none. With
 * fixed splits it is never the plain one, which adds up in another way than the varied one that may
 * be there in its place. */
ATTND_KERNELS_FN uint32_t attnd_kernel_of(uint32_t dim_qk, uint32_t dim_vo, uint32_t dtype,
                                          uint32_t kv_dtype, uint32_t options)
{
    const uint32_t dim = attnd_kernel_dim(dim_qk, dim_vo);
    const int narrow = kv_dtype == ATTND_FP8_E4M3 || kv_dtype == ATTND_FP8_E5M2;
    const uint32_t asked = options & ~ATTND_OPTIONS_PLANNER;
    const int whole = dim_qk == dim && (dim_vo == dim || dim == 192);

    if (asked & ~ATTND_KERNEL_OPTIONS)
        return ATTND_KERNELS;
    if (narrow)
        return attnd_kernel_number(dim == 192 ? 256 : dim, dtype, ATTND_KERNEL_FP8);
    return attnd_kernel_number(dim, dtype,
                               options || !whole ? ATTND_KERNEL_VARIED : ATTND_KERNEL_PLAIN);
}

/* Sets of kernels, a bit each: the plain ones of all; the varied ones of the same dimensions and
 * types as the plain ones of @kernels; and the other way round. */
#define ATTND_KERNELS_PLAIN_SET ((1u << ATTND_KERNELS_PLAIN) - 1)
#define ATTND_KERNELS_192_SET (3u << ATTND_KERNELS_192)

ATTND_KERNELS_FN uint32_t attnd_kernels_varied_of(uint32_t kernels)
{
    return (kernels & ATTND_KERNELS_PLAIN_SET) << ATTND_KERNELS_PLAIN |
           (kernels & ATTND_KERNELS_192_SET) << 2;
}

ATTND_KERNELS_FN uint32_t attnd_kernels_plain_of(uint32_t kernels)
{
    return (kernels >> ATTND_KERNELS_PLAIN & ATTND_KERNELS_PLAIN_SET) |
           (kernels >> 2 & ATTND_KERNELS_192_SET);
}

/* Of kernels that are there: those whose runs are executed. The varied ones execute plain runs,
 * too. */
ATTND_KERNELS_FN uint32_t attnd_kernels_executed(uint32_t kernels)
{
    return kernels | attnd_kernels_plain_of(kernels);
}

/* The varied kernel that executes runs of plain kernel @number, too; ATTND_KERNELS of any other. */
ATTND_KERNELS_FN uint32_t attnd_kernel_varied(uint32_t number)
{
    if (number < ATTND_KERNELS_PLAIN)
        return number + ATTND_KERNELS_PLAIN;
    return number - ATTND_KERNELS_192 < 2 ? number + 2 : ATTND_KERNELS;
}

#define ATTND_KERNEL_NAME_BYTES 24u

/** attnd_kernel_name() - "128_fp16_varied" into @text; "?" of a number that no kernel has. */
#ifdef __cplusplus
extern "C"
#endif
    const char *
    attnd_kernel_name(uint32_t number, char text[ATTND_KERNEL_NAME_BYTES]);

#endif
