/*
 * vec_portable.h - four floats in what any processor has (SSE2, NEON, or scalars), through the
 * vector extension of gcc and clang.
 *
 * The reference of the vec_*.h headers. Each defines `vf`, VF_LANES and the functions below with
 * exactly these meanings, and the shapes that suit its register file: MICRO_ROWS x MICRO_COLS
 * accumulators for the matrix products of prefill, DECODE_ROWS x DECODE_COLS for P x V in decode.
 */
#ifndef ATTND_PERSISTENT_CPU_VEC_PORTABLE_H
#define ATTND_PERSISTENT_CPU_VEC_PORTABLE_H

#include <stdint.h>
#include <string.h>

#define VF_LANES 4u
#define MICRO_ROWS 4u
#define MICRO_COLS 2u
#define DECODE_ROWS 4u
#define DECODE_COLS 2u

typedef float vf __attribute__((vector_size(16)));
typedef uint32_t vf_bits __attribute__((vector_size(16)));

static inline vf vf_set(float x)
{
    return (vf){x, x, x, x};
}

static inline vf vf_load(const float *in)
{
    vf x;
    memcpy(&x, in, sizeof x);
    return x;
}

static inline void vf_store(float *out, vf x)
{
    memcpy(out, &x, sizeof x);
}

static inline vf vf_add(vf a, vf b)
{
    return a + b;
}

static inline vf vf_sub(vf a, vf b)
{
    return a - b;
}

static inline vf vf_mul(vf a, vf b)
{
    return a * b;
}

/* a * b + c; rounded once or twice, as the processor likes. */
static inline vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

static inline vf vf_select(vf_bits mask, vf yes, vf no)
{
    return (vf)((mask & (vf_bits)yes) | (~mask & (vf_bits)no));
}

/* The larger; b where a is NaN; NaN where b is. */
static inline vf vf_max(vf a, vf b)
{
    return vf_select((vf_bits)(a > b), a, b);
}

/* To the nearest integer, |x| < 2^22. */
static inline vf vf_round(vf x)
{
    const vf magic = vf_set(0x1.8p23f);
    return (x + magic) - magic;
}

/* x * 2^n for an integral n in [-126, 0] and x in [0.5, 2]; NaN if x is. */
static inline vf vf_ldexp(vf x, vf n)
{
    /* magic + n keeps n in its low bits: the shift moves it into the exponent. */
    vf_bits low = (vf_bits)(n + vf_set(0x1.8p23f));
    return (vf)((vf_bits)x + (low << 23));
}

/* x, but 0 where key < limit. */
static inline vf vf_zero_below(vf x, vf key, float limit)
{
    return (vf)(~(vf_bits)(key < vf_set(limit)) & (vf_bits)x);
}

static inline float vf_first(vf x)
{
    return x[0];
}

static inline float vf_sum(vf x)
{
    return (x[0] + x[1]) + (x[2] + x[3]);
}

/* The largest lane, NaN lanes left out; -inf if all are NaN. */
static inline float vf_peak(vf x)
{
    float peak = -__builtin_inff();
    for (unsigned i = 0; i < VF_LANES; i++)
        peak = x[i] > peak ? x[i] : peak;
    return peak;
}

static inline vf vf_load_bf16(const uint16_t *in)
{
    vf_bits x = {in[0], in[1], in[2], in[3]};
    return (vf)(x << 16);
}

#include "persistent/cpu/vec_pair.h"

static inline vf vf_load_fp16(const uint16_t *in)
{
    vf_bits x = {in[0], in[1], in[2], in[3]};
    vf_bits magnitude = (x & 0x7fff) << 13;
    /* Rescaling moves the bias, and normalises subnormals on the way. */
    vf value = (vf)magnitude * vf_set(0x1p112f);
    vf_bits special = (vf_bits)(magnitude >= 0x0f800000) & 0x7f800000;
    return (vf)((vf_bits)value | special | (x & 0x8000u) << 16);
}

/* An fp8 is an fp16 with a shorter fraction (e5m2), or also a shorter exponent (e4m3): moved to the
 * place of that, its value is 2^-8 of what it should be, and 480 stands for NaN. */
static inline vf vf_load_e5m2(const uint8_t *in)
{
    const uint16_t half[] = {(uint16_t)(in[0] << 8), (uint16_t)(in[1] << 8), (uint16_t)(in[2] << 8),
                             (uint16_t)(in[3] << 8)};
    return vf_load_fp16(half);
}

static inline vf vf_load_e4m3(const uint8_t *in)
{
    vf_bits x = {in[0], in[1], in[2], in[3]};
    vf value = (vf)((x & 0x7f) << 20) * vf_set(0x1p120f);
    vf_bits nan = (vf_bits)((x & 0x7f) == 0x7f) & 0x7fc00000;
    return (vf)((vf_bits)value | nan | (x & 0x80u) << 24);
}

static inline uint16_t vf_round_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline uint16_t vf_round_fp16(float value)
{
    uint32_t bits, magnitude;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u;
    magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x47800000u) /* 65536 and above, infinity, NaN */
        return (uint16_t)(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (magnitude < 0x38800000u) {
        /* Subnormal: adding 1/2 rounds at 2^-24, its unit. */
        float shifted;
        memcpy(&shifted, &magnitude, sizeof shifted);
        shifted += 0.5f;
        memcpy(&magnitude, &shifted, sizeof magnitude);
        return (uint16_t)(sign | (magnitude - 0x3f000000u));
    }
    magnitude += 0xc8000fffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | magnitude >> 13);
}

static inline void vf_store_bf16(uint16_t *out, vf x)
{
    for (unsigned i = 0; i < VF_LANES; i++)
        out[i] = vf_round_bf16(x[i]);
}

static inline void vf_store_fp16(uint16_t *out, vf x)
{
    for (unsigned i = 0; i < VF_LANES; i++)
        out[i] = vf_round_fp16(x[i]);
}

/* Lane j of row i becomes lane i of row j. */
static inline void vf_transpose(vf row[VF_LANES])
{
    vf a = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
    vf b = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
    vf c = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
    vf d = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
    row[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    row[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    row[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    row[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

/* Lane i: the sum of row i. */
static inline vf vf_reduce(vf row[VF_LANES])
{
    vf_transpose(row);
    return (row[0] + row[1]) + (row[2] + row[3]);
}

#endif
