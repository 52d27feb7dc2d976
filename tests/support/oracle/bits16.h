/*
 * bits16.h - fp16 and bf16 as their bits, converted by arithmetic alone.
 *
 * Written from the formats' definition (sign, exponent, fraction; round to nearest, ties to even)
 * without compiler types or instructions, so that it can judge code which uses them.
 */
#ifndef ATTND_TESTS_SUPPORT_ORACLE_BITS16_H
#define ATTND_TESTS_SUPPORT_ORACLE_BITS16_H

#include <stdint.h>

/** bits16_value() - the number that @bits stand for. @dtype: enum attnd_dtype. Exact. */
double bits16_value(uint32_t dtype, uint16_t bits);

/** bits16_round() - the nearest value of @dtype, ties to even; overflow is infinity. */
uint16_t bits16_round(uint32_t dtype, double value);

/**
 * bits16_table() - all 65,536 values of @dtype
 * A float holds each of them exactly. Filled at the first call of a process; threads: one.
 */
const float *bits16_table(uint32_t dtype);

#endif
