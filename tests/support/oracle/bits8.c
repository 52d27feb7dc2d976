/*
 * bits8.c - values by their definition, and rounding by a search: without their sign, bits that
 * count up stand for values that rise, so the two neighbours of a number are found by looking.
 */
#include "tests/support/oracle/bits8.h"

#include "schemas/abi.h"
#include "tests/support/oracle/bits16.h"

#include <math.h>

double bits8_value(uint32_t dtype, uint8_t bits)
{
    const int fraction_bits = dtype == ATTND_FP8_E4M3 ? 3 : 2;
    const int bias = dtype == ATTND_FP8_E4M3 ? 7 : 15;
    const int field = (bits & 0x7f) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    double magnitude;

    if (dtype == ATTND_FP8_E4M3 && (bits & 0x7f) == 0x7f)
        magnitude = NAN;
    else if (dtype == ATTND_FP8_E5M2 && field == 31)
        magnitude = fraction ? NAN : INFINITY;
    else if (field == 0)
        magnitude = ldexp(fraction, 1 - bias - fraction_bits);
    else
        magnitude = ldexp((1 << fraction_bits) + fraction, field - bias - fraction_bits);
    return bits & 0x80 ? -magnitude : magnitude;
}

/* The largest value that is not above @magnitude. */
static uint8_t below(uint32_t dtype, double magnitude)
{
    const uint8_t last = dtype == ATTND_FP8_E4M3 ? 0x7e : 0x7b;
    uint8_t bits = 0;

    while (bits < last && bits8_value(dtype, (uint8_t)(bits + 1)) <= magnitude)
        bits++;
    return bits;
}

/* The middle between @bits and the next value; infinity behind the last. */
static double middle(uint32_t dtype, uint8_t bits)
{
    const double next = bits8_value(dtype, (uint8_t)(bits + 1));

    return isfinite(next) ? (bits8_value(dtype, bits) + next) / 2 : INFINITY;
}

uint8_t bits8_round(uint32_t dtype, double value)
{
    const double magnitude = fabs(value);
    const uint8_t sign = signbit(value) ? 0x80 : 0;

    if (isnan(value))
        return 0x7f;
    const uint8_t bits = below(dtype, magnitude);
    const double tie = middle(dtype, bits);
    const int up = isfinite(tie) && (magnitude > tie || (magnitude == tie && bits % 2));
    return (uint8_t)(sign | (bits + up));
}

int bits8_near_tie(uint32_t dtype, double value, double within)
{
    const double magnitude = fabs(value);
    const double tie = middle(dtype, below(dtype, magnitude));

    return isfinite(tie) && fabs(magnitude - tie) <= within;
}

/* All 256 values. */
static const double *table_of(uint32_t dtype)
{
    static double tables[2][256];
    static int filled[2];
    const int which = dtype == ATTND_FP8_E4M3;

    for (uint32_t bits = 0; !filled[which] && bits < 256; bits++)
        tables[which][bits] = bits8_value(dtype, (uint8_t)bits);
    filled[which] = 1;
    return tables[which];
}

void bits_of_kv_row(uint32_t dtype, const void *rows, int64_t index, uint32_t count, double *out)
{
    if (attnd_dtype_is_fp8(dtype)) {
        const double *table = table_of(dtype);
        for (uint32_t i = 0; i < count; i++)
            out[i] = table[((const uint8_t *)rows)[index + i]];
    } else {
        const float *table = bits16_table(dtype);
        for (uint32_t i = 0; i < count; i++)
            out[i] = (double)table[((const uint16_t *)rows)[index + i]];
    }
}

double bits_of_kv(uint32_t dtype, const void *row, int64_t index)
{
    double value;

    bits_of_kv_row(dtype, row, index, 1, &value);
    return value;
}
