/*
 * vec_avx2.h - eight floats: AVX2, FMA and F16C. Meanings as in vec_portable.h.
 */
#ifndef ATTND_PERSISTENT_CPU_VEC_AVX2_H
#define ATTND_PERSISTENT_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#include "persistent/cpu/unroll.h"

#define VF_LANES 8u
#define MICRO_ROWS 6u /* 12 accumulators, 2 operands, 1 broadcast of 16 registers */
#define MICRO_COLS 2u
#define DECODE_ROWS 4u
#define DECODE_COLS 2u

typedef __m256 vf;

static inline vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_load(const float *in)
{
    return _mm256_loadu_ps(in);
}

static inline void vf_store(float *out, vf x)
{
    _mm256_storeu_ps(out, x);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf vf_round(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf vf_ldexp(vf x, vf n)
{
    __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}

static inline vf vf_zero_below(vf x, vf key, float limit)
{
    return _mm256_and_ps(x, _mm256_cmp_ps(key, _mm256_set1_ps(limit), _CMP_NLT_UQ));
}

static inline float vf_first(vf x)
{
    return _mm256_cvtss_f32(x);
}

static inline float vf_sum(vf x)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

static inline float vf_peak(vf x)
{
    const vf nothing = _mm256_set1_ps(-__builtin_inff());
    x = _mm256_max_ps(x, nothing); /* NaN lanes become -inf */
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

static inline vf vf_load_bf16(const uint16_t *in)
{
    __m128i half = _mm_loadu_si128((const __m128i *)in);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* The even ones, then the odd ones: a word of two elements is, but for a shift or a mask, both. */
static inline void vf_load_pair_bf16(vf out[2], const uint16_t *in)
{
    __m256i words = _mm256_loadu_si256((const __m256i *)in);
    out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    out[1] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
}

static inline void vf_to_pair(vf x[2])
{
    __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(x[0], x[1], 0x88));
    __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(x[0], x[1], 0xdd));
    x[0] = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
    x[1] = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
}

static inline void vf_from_pair(vf x[2])
{
    vf low = _mm256_unpacklo_ps(x[0], x[1]), high = _mm256_unpackhi_ps(x[0], x[1]);
    x[0] = _mm256_permute2f128_ps(low, high, 0x20);
    x[1] = _mm256_permute2f128_ps(low, high, 0x31);
}

static inline vf vf_load_fp16(const uint16_t *in)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)in));
}

/* An fp8 is the upper half of an fp16 (e5m2), or has a shorter exponent too (e4m3): moved to the
 * place of an fp16's fraction its value is 2^-8 of what it should be, and 480 stands for NaN. */
static inline vf vf_load_e5m2(const uint8_t *in)
{
    __m128i byte = _mm_loadl_epi64((const __m128i *)in);
    return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), byte));
}

static inline vf vf_load_e4m3(const uint8_t *in)
{
    __m128i high = _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)in));
    __m128i sign = _mm_and_si128(high, _mm_set1_epi16((short)0x8000));
    __m128i half = _mm_srli_epi16(_mm_slli_epi16(high, 1), 2); /* exponent and fraction */
    vf x = _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, sign)), _mm256_set1_ps(256.0f));
    vf magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    vf nan = _mm256_cmp_ps(magnitude, _mm256_set1_ps(480.0f), _CMP_EQ_OQ);
    return _mm256_or_ps(x, nan); /* all bits: a NaN */
}

static inline void vf_store_bf16(uint16_t *out, vf x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    sum = _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, nan), 16);
    _mm_storeu_si128((__m128i *)out, _mm_packus_epi32(_mm256_castsi256_si128(sum),
                                                      _mm256_extracti128_si256(sum, 1)));
}

static inline void vf_store_fp16(uint16_t *out, vf x)
{
    _mm_storeu_si128((__m128i *)out,
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void vf_transpose(vf row[VF_LANES])
{
    __m256d pair[VF_LANES];
    vf quad[VF_LANES];
    UNROLL
    for (unsigned i = 0; i < VF_LANES; i += 2) {
        pair[i] = _mm256_castps_pd(_mm256_unpacklo_ps(row[i], row[i + 1]));
        pair[i + 1] = _mm256_castps_pd(_mm256_unpackhi_ps(row[i], row[i + 1]));
    }
    /* quad[4 * g + c]: half x holds column 4 * x + c of rows 4 * g to 4 * g + 3. */
    UNROLL
    for (unsigned i = 0; i < VF_LANES; i += 4) {
        quad[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(pair[i], pair[i + 2]));
        quad[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(pair[i], pair[i + 2]));
        quad[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(pair[i + 1], pair[i + 3]));
        quad[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(pair[i + 1], pair[i + 3]));
    }
    UNROLL
    for (unsigned c = 0; c < 4; c++) {
        row[c] = _mm256_permute2f128_ps(quad[c], quad[4 + c], 0x20);
        row[4 + c] = _mm256_permute2f128_ps(quad[c], quad[4 + c], 0x31);
    }
}

static inline vf vf_reduce(vf row[VF_LANES])
{
    vf a = _mm256_hadd_ps(_mm256_hadd_ps(row[0], row[1]), _mm256_hadd_ps(row[2], row[3]));
    vf b = _mm256_hadd_ps(_mm256_hadd_ps(row[4], row[5]), _mm256_hadd_ps(row[6], row[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

#endif
