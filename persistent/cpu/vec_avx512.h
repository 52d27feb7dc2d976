/*
 * vec_avx512.h - sixteen floats: AVX-512 F, BW, DQ and VL. Meanings as in vec_portable.h.
 */
#ifndef ATTND_PERSISTENT_CPU_VEC_AVX512_H
#define ATTND_PERSISTENT_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#include "persistent/cpu/unroll.h"

#define VF_LANES 16u
#define MICRO_ROWS 6u /* 24 accumulators, 4 operands, 1 broadcast of 32 registers */
#define MICRO_COLS 4u
#define DECODE_ROWS 4u
#define DECODE_COLS 4u

typedef __m512 vf;

static inline vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_load(const float *in)
{
    return _mm512_loadu_ps(in);
}

static inline void vf_store(float *out, vf x)
{
    _mm512_storeu_ps(out, x);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf vf_round(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf vf_ldexp(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}

static inline vf vf_zero_below(vf x, vf key, float limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(key, _mm512_set1_ps(limit), _CMP_NLT_UQ), x);
}

static inline float vf_first(vf x)
{
    return _mm512_cvtss_f32(x);
}

static inline float vf_sum(vf x)
{
    return _mm512_reduce_add_ps(x);
}

static inline float vf_peak(vf x)
{
    /* The reduction's operand order is the compiler's: NaN lanes go first. */
    __mmask16 ordered = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
    return _mm512_mask_reduce_max_ps(ordered, x);
}

static inline vf vf_load_bf16(const uint16_t *in)
{
    __m256i half = _mm256_loadu_si256((const __m256i *)in);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

#include "persistent/cpu/vec_pair.h"

static inline vf vf_load_fp16(const uint16_t *in)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)in));
}

/* An fp8 is the upper half of an fp16 (e5m2), or has a shorter exponent too (e4m3): moved to the
 * place of an fp16's fraction its value is 2^-8 of what it should be, and 480 stands for NaN. */
static inline vf vf_load_e5m2(const uint8_t *in)
{
    __m256i byte = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)in));
    return _mm512_cvtph_ps(_mm256_slli_epi16(byte, 8));
}

static inline vf vf_load_e4m3(const uint8_t *in)
{
    __m256i high = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)in)), 8);
    __m256i sign = _mm256_and_si256(high, _mm256_set1_epi16((short)0x8000));
    __m256i half = _mm256_srli_epi16(_mm256_slli_epi16(high, 1), 2); /* exponent and fraction */
    vf x = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, sign)), _mm512_set1_ps(256.0f));
    __mmask16 nan = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(480.0f), _CMP_EQ_OQ);
    return _mm512_mask_blend_ps(nan, x, _mm512_set1_ps(__builtin_nanf("")));
}

static inline void vf_store_bf16(uint16_t *out, vf x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    sum = _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
}

static inline void vf_store_fp16(uint16_t *out, vf x)
{
    _mm256_storeu_si256((__m256i *)out,
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* 32-bit lanes of pairs of rows, then 64-bit, then 128-bit quarters twice. */
static inline void vf_transpose(vf row[VF_LANES])
{
    __m512d pair[VF_LANES];
    vf quad[VF_LANES];
    UNROLL
    for (unsigned i = 0; i < VF_LANES; i += 2) {
        pair[i] = _mm512_castps_pd(_mm512_unpacklo_ps(row[i], row[i + 1]));
        pair[i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(row[i], row[i + 1]));
    }
    /* quad[4 * g + c]: quarter x holds column 4 * x + c of rows 4 * g to 4 * g + 3. */
    UNROLL
    for (unsigned i = 0; i < VF_LANES; i += 4) {
        quad[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pair[i], pair[i + 2]));
        quad[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pair[i], pair[i + 2]));
        quad[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pair[i + 1], pair[i + 3]));
        quad[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pair[i + 1], pair[i + 3]));
    }
    UNROLL
    for (unsigned c = 0; c < 4; c++) {
        vf a = _mm512_shuffle_f32x4(quad[c], quad[4 + c], 0x88);
        vf b = _mm512_shuffle_f32x4(quad[c], quad[4 + c], 0xdd);
        vf d = _mm512_shuffle_f32x4(quad[8 + c], quad[12 + c], 0x88);
        vf e = _mm512_shuffle_f32x4(quad[8 + c], quad[12 + c], 0xdd);
        row[c] = _mm512_shuffle_f32x4(a, d, 0x88);
        row[8 + c] = _mm512_shuffle_f32x4(a, d, 0xdd);
        row[4 + c] = _mm512_shuffle_f32x4(b, e, 0x88);
        row[12 + c] = _mm512_shuffle_f32x4(b, e, 0xdd);
    }
}

/* The transposition with an addition after each step, on half as many vectors every time. */
static inline vf vf_reduce(vf row[VF_LANES])
{
    vf pair[8], quad[4];
    UNROLL
    for (unsigned i = 0; i < 8; i++)
        pair[i] = _mm512_add_ps(_mm512_unpacklo_ps(row[2 * i], row[2 * i + 1]),
                                _mm512_unpackhi_ps(row[2 * i], row[2 * i + 1]));
    UNROLL
    for (unsigned i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(pair[2 * i]), b = _mm512_castps_pd(pair[2 * i + 1]);
        quad[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                                _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    vf low = _mm512_add_ps(_mm512_shuffle_f32x4(quad[0], quad[1], 0x88),
                           _mm512_shuffle_f32x4(quad[0], quad[1], 0xdd));
    vf high = _mm512_add_ps(_mm512_shuffle_f32x4(quad[2], quad[3], 0x88),
                            _mm512_shuffle_f32x4(quad[2], quad[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88),
                         _mm512_shuffle_f32x4(low, high, 0xdd));
}

#endif
