/*
 * abi_options.h - the part of abi.h that types and attention variants are: what a batch asks for
 * and a worker executes, as bits, and the layout of struct attnd_variant. Included by abi.h.
 */
#ifndef ATTND_SCHEMAS_ABI_OPTIONS_H
#define ATTND_SCHEMAS_ABI_OPTIONS_H

#include "schemas/abi_assert.h"
#include "schemas/variant.h"

#include <stdint.h>

/* Of numbers. K and V of a pool may be of any; q, o and rows to append are of 16 bits: of the
 * pool's type, or of either beside a pool of 8 bits. */
enum attnd_dtype {
    ATTND_FP16 = 1,
    ATTND_BF16 = 2,
    ATTND_FP8_E4M3 = 3, /* bias 7, largest 448, no infinity, NaN 0x7f */
    ATTND_FP8_E5M2 = 4  /* bias 15, largest 57344: the upper half of an fp16 */
};
#define ATTND_DTYPES_END 5u

/* 1: K and V of 8 bits. */
static inline uint32_t attnd_dtype_is_fp8(uint32_t dtype)
{
    return dtype == ATTND_FP8_E4M3 || dtype == ATTND_FP8_E5M2;
}

/* Of an element of K or V. */
static inline uint32_t attnd_dtype_bytes(uint32_t dtype)
{
    return attnd_dtype_is_fp8(dtype) ? 1 : 2;
}

/* Where attnd_worker_info.head_dims has the dimensions for pools of this type. */
static inline uint32_t attnd_dtype_dims(uint32_t dtype)
{
    return attnd_dtype_is_fp8(dtype) ? 0 : dtype;
}

/* Options that a batch may ask for, as a set of bits: of a batch what it asks for, of a worker what
 * it executes. Those of a variant are in options.def; these are of a pool. */
#include "schemas/options.def"
#define ATTND_OPTION_DIMS_192_128 0x200u /* dim_qk 192, dim_vo 128 */
#define ATTND_OPTION_DIMS_576_512 0x400u
#define ATTND_OPTION_DIMS_FP8 0x1000u /* DIMS_* of pools of fp8 too */
/* In attnd_entry.window: a row sees keys of its own chunk of so many, as the other bits say. */
#define ATTND_ENTRY_CHUNK 0x80000000u
#define ATTND_OPTIONS_PLANNER ATTND_OPTION_FIXED_SPLIT /* no worker need know of these */
/* These ask where a row stands. */
#define ATTND_OPTIONS_PLACE                                                                        \
    (ATTND_OPTION_WINDOW | ATTND_OPTION_CHUNK | ATTND_OPTION_ALIBI | ATTND_OPTION_ROPE |           \
     ATTND_OPTION_ROPE_APPEND)

/* Dimensions of K and V that differ. Return: ATTND_OPTION_DIMS_*; 0: no worker has them so. */
static inline uint32_t attnd_dims_option(uint32_t dim_qk, uint32_t dim_vo)
{
    if (dim_qk == 192 && dim_vo == 128)
        return ATTND_OPTION_DIMS_192_128;
    return dim_qk == 576 && dim_vo == 512 ? ATTND_OPTION_DIMS_576_512 : 0;
}

#define ATTND_HEAD_DIM_EQUAL_MAX 256u /* where dim_vo is dim_qk */

/* Multiples of 16 up to that. Return: a bit of attnd_worker_info.head_dims; 0 for what has none. */
static inline uint16_t attnd_head_dim_bit(uint32_t dim)
{
    if (dim == 0 || dim % 16 || dim > ATTND_HEAD_DIM_EQUAL_MAX)
        return 0;
    return (uint16_t)(1u << (dim / 16 - 1));
}

/* variant.h, which engines include without this header. */
ATTND_ASSERT_SIZE(attnd_variant_table, 16);
ATTND_ASSERT_SIZE(attnd_variant, ATTND_VARIANT_BYTES);
ATTND_ASSERT_AT(attnd_variant, position_encoding, 8);
ATTND_ASSERT_AT(attnd_variant, window_left, 12);
ATTND_ASSERT_AT(attnd_variant, rope_theta, 20);
ATTND_ASSERT_AT(attnd_variant, rope_old_context, 36);
ATTND_ASSERT_AT(attnd_variant, q_scale, 44);
ATTND_ASSERT_AT(attnd_variant, fixed_split, 56);
ATTND_ASSERT_AT(attnd_variant, sinks, 64);
ATTND_ASSERT_AT(attnd_variant, mask, 80);
ATTND_ASSERT_AT(attnd_variant, kv_scales, 96);
ATTND_ASSERT_AT(attnd_variant, alibi_slopes, 112);

#endif
