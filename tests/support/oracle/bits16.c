/*
 * bits16.c - one reading of both 16-bit formats: they differ in where the exponent ends.
 *
 * With e exponent bits and f fraction bits (1 + e + f = 16), bias 2^(e-1) - 1:
 *   exponent field 0         fraction * 2^(1 - bias - f)                 zero and subnormals
 *   exponent field 2^e - 1   infinity, or NaN if the fraction is not 0
 *   otherwise                (2^f + fraction) * 2^(field - bias - f)
 * Rounding scales the value so that one unit is the last fraction bit and lets rint() do it; a
 * carry out of the fraction runs into the exponent field, which is what it should do.
 */
#include "tests/support/oracle/bits16.h"

#include "schemas/abi.h"

#include <math.h>

static int fraction_bits_of(uint32_t dtype)
{
    return dtype == ATTND_BF16 ? 7 : 10;
}

double bits16_value(uint32_t dtype, uint16_t bits)
{
    const int fraction_bits = fraction_bits_of(dtype);
    const int field_max = (1 << (15 - fraction_bits)) - 1;
    const int bias = field_max >> 1;
    const int field = (bits & 0x7fff) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    double magnitude;

    if (field == field_max)
        magnitude = fraction ? NAN : INFINITY;
    else if (field == 0)
        magnitude = ldexp(fraction, 1 - bias - fraction_bits);
    else
        magnitude = ldexp((1 << fraction_bits) + fraction, field - bias - fraction_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
}

uint16_t bits16_round(uint32_t dtype, double value)
{
    const int fraction_bits = fraction_bits_of(dtype);
    const int field_max = (1 << (15 - fraction_bits)) - 1;
    const int bias = field_max >> 1;
    const int sign = signbit(value) ? 0x8000 : 0;
    const int infinity = field_max << fraction_bits;
    int exponent;

    if (isnan(value))
        return (uint16_t)(sign | infinity | 1 << (fraction_bits - 1));
    if (isinf(value))
        return (uint16_t)(sign | infinity);
    (void)frexp(value, &exponent); /* |value| in [2^(exponent-1), 2^exponent) */
    int field = exponent - 1 + bias;
    if (value == 0 || field < 1)
        field = 1; /* subnormals have the last bit of the smallest normal numbers */
    if (field >= field_max)
        return (uint16_t)(sign | infinity);
    int units = (int)rint(ldexp(fabs(value), fraction_bits + bias - field));
    int bits = ((field - 1) << fraction_bits) + units; /* units include the implicit bit */
    return (uint16_t)(sign | (bits < infinity ? bits : infinity));
}

const float *bits16_table(uint32_t dtype)
{
    static float tables[2][65536];
    static int filled[2];
    const int which = dtype == ATTND_BF16;

    for (uint32_t bits = 0; !filled[which] && bits < 65536; bits++)
        tables[which][bits] = (float)bits16_value(dtype, (uint16_t)bits);
    filled[which] = 1;
    return tables[which];
}
