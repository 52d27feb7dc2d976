/*
 * fp8.h - fp32 to the two formats of 8 bits, as a pool of fp8 stores them.
 *
 * Rounded to nearest, ties to even; what is beyond the largest number becomes it, and so does
 * infinity; every NaN is 0x7f. No branch: the compiler makes vectors of a loop over these.
 */
#ifndef ATTND_PERSISTENT_CPU_FP8_H
#define ATTND_PERSISTENT_CPU_FP8_H

#include <stdint.h>
#include <string.h>

#define ATTND_FP8_NAN 0x7fu

/* @fraction_bits of the format; @largest, @normal: bits of its largest and of its smallest normal
 * number as fp32; @shifter: bits of the fp32 whose last bit is the format's smallest number. */
static inline uint8_t attnd_round_fp8(float value, uint32_t fraction_bits, uint32_t largest,
                                      uint32_t normal, uint32_t shifter)
{
    const uint32_t shift = 23 - fraction_bits;
    uint32_t bits, units;
    float small, shifting;

    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 24 & 0x80u;
    const uint32_t given = bits & 0x7fffffffu;
    const uint32_t magnitude = given > largest ? largest : given;

    /* Adding rounds a number below the smallest normal one to whole units. */
    memcpy(&small, &magnitude, sizeof small);
    memcpy(&shifting, &shifter, sizeof shifting);
    small += shifting;
    memcpy(&units, &small, sizeof units);
    units -= shifter;

    const uint32_t odd = magnitude >> shift & 1u;
    const uint32_t rounded = (magnitude + (1u << (shift - 1)) - 1 + odd) >> shift;
    const uint32_t rebased = rounded - (normal >> shift) + (1u << fraction_bits);
    const uint32_t result = magnitude < normal ? units : rebased;
    return (uint8_t)(given > 0x7f800000u ? ATTND_FP8_NAN : sign | result);
}

/* Exponents of 4 bits, largest 448, units of 2^-9. */
static inline uint8_t attnd_round_e4m3(float value)
{
    return attnd_round_fp8(value, 3, 0x43e00000u, 0x3c800000u, 0x46800000u);
}

/* Exponents of 5 bits, largest 57344, units of 2^-16. */
static inline uint8_t attnd_round_e5m2(float value)
{
    return attnd_round_fp8(value, 2, 0x47600000u, 0x38800000u, 0x43000000u);
}

#endif
