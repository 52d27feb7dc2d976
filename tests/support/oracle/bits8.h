/*
 * bits8.h - the two formats of fp8 as their bits, converted by arithmetic alone.
 *
 * Written from the formats' definition: e4m3 has a bias of 7, no infinity and one NaN of each sign;
 * e5m2 has a bias of 15, and infinities and NaN as the formats of 16 bits have them.
 */
#ifndef ATTND_TESTS_SUPPORT_ORACLE_BITS8_H
#define ATTND_TESTS_SUPPORT_ORACLE_BITS8_H

#include <stdint.h>

/** bits8_value() - the number that @bits stand for. @dtype: ATTND_FP8_*. Exact. */
double bits8_value(uint32_t dtype, uint8_t bits);

/** bits8_round() - the nearest finite value of @dtype, ties to even, however far away @value is; of
 * NaN 0x7f. */
uint8_t bits8_round(uint32_t dtype, double value);

/** bits8_near_tie() - 1: @value is so near to the middle of two values, at most @within, that what
 * computed it may find either. */
int bits8_near_tie(uint32_t dtype, double value, double within);

/** bits_of_kv_row() - elements @index to @index + @count of K or V rows of any type, as numbers. */
void bits_of_kv_row(uint32_t dtype, const void *rows, int64_t index, uint32_t count, double *out);

/** bits_of_kv() - one of them. */
double bits_of_kv(uint32_t dtype, const void *row, int64_t index);

#endif
