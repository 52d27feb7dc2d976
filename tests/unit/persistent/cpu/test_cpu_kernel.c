/* The arithmetic of the CPU kernels, one operation at a time, in every instruction set there is. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "persistent/cpu/kernel.h"
#include "tests/support/oracle/bits16.h"
#include "tests/support/oracle/bits8.h"
#include "tests/support/random/prng.h"

#define DIM 64u
#define KEYS ATTND_KEYS_BLOCK

static const struct attnd_kernel *kernels[3];
static int kernel_count;

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void widening_is_exact_for_every_value(void **state)
{
    (void)state;
    static uint16_t in[65536];
    static float out[65536];
    for (uint32_t i = 0; i < 65536; i++)
        in[i] = (uint16_t)i;
    for (int k = 0; k < kernel_count; k++)
        for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++) {
            kernels[k]->widen(out, in, 65536, dtype, 1.0f);
            for (uint32_t i = 0; i < 65536; i++) {
                float want = bits16_table(dtype)[i];
                if (isnan(want) ? !isnan(out[i]) : float_bits(out[i]) != float_bits(want))
                    fail_msg("%s, dtype %u: 0x%04x is %g, want %g", kernels[k]->name, dtype, i,
                             (double)out[i], (double)want);
            }
        }
}

/* Values between neighbours of the format, on them, and half-way: where rounding is decided. */
static void narrowing_rounds_to_nearest_even(void **state)
{
    (void)state;
    static float in[65536];
    static uint16_t out[65536];
    struct prng prng = {7};
    for (int k = 0; k < kernel_count; k++)
        for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_BF16; dtype++)
            for (uint32_t kind = 0; kind < 3; kind++) {
                const float *value = bits16_table(dtype);
                for (uint32_t i = 0; i < 65536; i++) {
                    double low = (double)value[i], high = (double)value[(i + 1) % 65536];
                    double part = kind == 0 ? 0 : kind == 1 ? 0.5 : prng_unit(&prng);
                    in[i] = isfinite(high) && isfinite(low) ? (float)(low + part * (high - low))
                                                            : value[i];
                }
                kernels[k]->narrow(out, in, 65536, dtype, 1.0f);
                for (uint32_t i = 0; i < 65536; i++) {
                    uint16_t want = bits16_round(dtype, (double)in[i]);
                    int agree = isnan(in[i]) ? isnan(value[out[i]]) : out[i] == want;
                    if (!agree)
                        fail_msg("%s, dtype %u: %a is 0x%04x, want 0x%04x", kernels[k]->name, dtype,
                                 (double)in[i], out[i], want);
                }
            }
}

static void widening_of_fp8_is_exact_for_every_value(void **state)
{
    (void)state;
    static uint8_t in[256];
    static float out[256];
    for (uint32_t i = 0; i < 256; i++)
        in[i] = (uint8_t)i;
    for (int k = 0; k < kernel_count; k++)
        for (uint32_t dtype = ATTND_FP8_E4M3; dtype <= ATTND_FP8_E5M2; dtype++) {
            kernels[k]->widen(out, in, 256, dtype, 1.0f);
            for (uint32_t i = 0; i < 256; i++) {
                float want = (float)bits8_value(dtype, (uint8_t)i);
                if (isnan(want) ? !isnan(out[i]) : float_bits(out[i]) != float_bits(want))
                    fail_msg("%s, dtype %u: 0x%02x is %g, want %g", kernels[k]->name, dtype, i,
                             (double)out[i], (double)want);
            }
        }
}

/* fp32 of every sign, exponent and upper 9 bits of fraction, and its neighbours on both sides. */
static void narrowing_to_fp8_rounds_to_nearest_even_and_saturates(void **state)
{
    (void)state;
    static float in[64];
    static uint8_t out[64];
    for (uint32_t dtype = ATTND_FP8_E4M3; dtype <= ATTND_FP8_E5M2; dtype++)
        for (uint32_t high = 0; high < 1u << 18; high += 16)
            for (int k = 0; k < kernel_count; k++) {
                for (uint32_t i = 0; i < 64; i++) {
                    const uint32_t bits = ((high + i / 4) << 14) + (i % 4) - 1;
                    memcpy(&in[i], &bits, sizeof bits);
                }
                kernels[k]->narrow(out, in, 64, dtype, 1.0f);
                for (uint32_t i = 0; i < 64; i++) {
                    uint8_t want = bits8_round(dtype, (double)in[i]);
                    if (out[i] != want)
                        fail_msg("%s, dtype %u: %a is 0x%02x, want 0x%02x", kernels[k]->name, dtype,
                                 (double)in[i], out[i], want);
                }
            }
}

static void scales_are_applied(void **state)
{
    (void)state;
    float wide[DIM], sum[DIM];
    uint16_t half[DIM];
    for (int k = 0; k < kernel_count; k++) {
        for (uint32_t i = 0; i < DIM; i++) {
            half[i] = bits16_round(ATTND_FP16, (double)i);
            sum[i] = 1.0f;
        }
        kernels[k]->widen(wide, half, DIM, ATTND_FP16, 0.5f);
        kernels[k]->narrow(half, wide, DIM, ATTND_BF16, 4.0f);
        kernels[k]->blend(sum, wide, DIM, -2.0f);
        for (uint32_t i = 0; i < DIM; i++) {
            assert_true(wide[i] == 0.5f * (float)i);
            assert_true(bits16_value(ATTND_BF16, half[i]) == 2.0 * i);
            assert_true(sum[i] == 1.0f - (float)i);
        }
    }
}

/* One block, from beginning to end; what it asks for is the block itself. */
static void decode(const struct attnd_kernel *kernel, const struct attnd_rows *rows,
                   const struct attnd_kv_block *block)
{
    const struct attnd_ahead ahead[2] = {{block->keys->k, block->keys->count, 0, 0, 2 * rows->dim},
                                         {block->keys->v, block->keys->count, 0, 0, 2 * rows->dim}};

    kernel->decode_begin(rows, block->keys->dtype);
    kernel->decode(rows, block, ahead);
    kernel->decode_end(rows, block->keys->dtype);
}

/* Two keys, 0 and the first unit vector, against q = (-x, 0, ...): the scores are 0 and -x, and
 * with values 0 and 1 the unnormalised output is the second weight itself. */
static float weight(const struct attnd_kernel *kernel, float x, int prefill)
{
    static uint16_t zero[DIM], unit[DIM], ones[DIM];
    static float q[16 * DIM], o[16 * DIM], panel_k[DIM * KEYS], panel_v[DIM * KEYS];
    float m[1] = {-INFINITY}, l[1] = {0};
    const uint32_t begin[1] = {0}, end[1] = {2};
    struct attnd_keys keys = {.count = 2, .dtype = ATTND_BF16};
    const struct attnd_kv_block block = {&keys, 0, 0};
    const struct attnd_panel panel = {panel_k, panel_v};
    const struct attnd_rows rows = {1, DIM, q, o, m, l, begin, end, NULL};
    unit[0] = bits16_round(ATTND_BF16, 1);
    for (uint32_t i = 0; i < DIM; i++)
        ones[i] = bits16_round(ATTND_BF16, 1);
    for (uint32_t t = 0; t < KEYS; t++) {
        keys.k[t] = (const uint8_t *)(t == 0 ? zero : unit);
        keys.v[t] = (const uint8_t *)(t == 0 ? zero : ones);
    }
    q[0] = -x;
    memset(o, 0, sizeof o);
    if (prefill)
        kernel->prefill(&rows, &block, &block, &panel);
    else
        decode(kernel, &rows, &block);
    for (uint32_t d = 1; d < DIM && !isnan(x); d++)
        assert_true(m[0] == 0.0f && o[d] == o[0]);
    return o[0];
}

static void weights_are_powers_of_two(void **state)
{
    (void)state;
    for (int k = 0; k < kernel_count; k++)
        for (int prefill = 0; prefill < 2; prefill++)
            for (float x = 0; x < 200; x += 0.0371f) {
                double got = (double)weight(kernels[k], x, prefill), want = exp2(-(double)x);
                if (x > 126 ? got != 0 : fabs(got - want) > 2.5e-7 * want)
                    fail_msg("%s: 2^-%g is %g, want %g", kernels[k]->name, (double)x, got, want);
            }
}

static void a_weight_of_a_nan_is_a_nan(void **state)
{
    (void)state;
    for (int k = 0; k < kernel_count; k++)
        for (int prefill = 0; prefill < 2; prefill++)
            assert_true(isnan(weight(kernels[k], NAN, prefill)));
}

/* ---- decode against doubles ---- */

#define DIM_MAX 576u
#define HEADS 2u

/* A block of random keys of two heads, token by token, for rows of the second. */
struct block {
    uint32_t dtype, dim, keys, rows;
    uint8_t k[KEYS][HEADS * DIM_MAX * 2], v[KEYS][HEADS * DIM_MAX * 2];
    float q[ATTND_DECODE_ROWS][DIM_MAX]; /* as the definition has it; kernels get a copy */
    uint32_t begin[ATTND_DECODE_ROWS], end[ATTND_DECODE_ROWS];
};

static void draw_element(struct prng *prng, uint8_t *row, uint32_t dtype, uint32_t at)
{
    const double value = 4 * prng_unit(prng) - 2;
    if (dtype == ATTND_FP16 || dtype == ATTND_BF16) {
        const uint16_t bits = bits16_round(dtype, value);
        memcpy(row + 2 * (size_t)at, &bits, sizeof bits);
    } else {
        row[at] = bits8_round(dtype, value);
    }
}

static double element(const uint8_t *row, uint32_t dtype, uint32_t at)
{
    uint16_t bits;
    if (dtype != ATTND_FP16 && dtype != ATTND_BF16)
        return bits8_value(dtype, row[at]);
    memcpy(&bits, row + 2 * (size_t)at, sizeof bits);
    return bits16_value(dtype, bits);
}

static void draw_block(struct prng *prng, struct block *block)
{
    const uint32_t width = HEADS * block->dim;
    for (uint32_t t = 0; t < KEYS; t++)
        for (uint32_t i = 0; i < width; i++) {
            draw_element(prng, block->k[t], block->dtype, i);
            draw_element(prng, block->v[t], block->dtype, i);
        }
    for (uint32_t r = 0; r < block->rows; r++) {
        for (uint32_t d = 0; d < block->dim; d++)
            block->q[r][d] = (float)(0.2 * prng_unit(prng) - 0.1);
        block->begin[r] = (uint32_t)prng_below(prng, 4) ? 0 : (uint32_t)prng_below(prng, 9);
        block->end[r] = (uint32_t)prng_below(prng, 4) ? KEYS : (uint32_t)prng_below(prng, KEYS);
    }
}

/* The second head's o of row @r, normalised. Return: 0 if the row sees no key. */
static int define(const struct block *block, uint32_t r, double o[DIM_MAX])
{
    const uint32_t end = block->end[r] < block->keys ? block->end[r] : block->keys;
    double sum = 0;
    memset(o, 0, DIM_MAX * sizeof *o);
    for (uint32_t t = block->begin[r]; t < end; t++) {
        double score = 0;
        for (uint32_t d = 0; d < block->dim; d++)
            score += (double)block->q[r][d] * element(block->k[t], block->dtype, block->dim + d);
        sum += exp2(score);
        for (uint32_t d = 0; d < block->dim; d++)
            o[d] += exp2(score) * element(block->v[t], block->dtype, block->dim + d);
    }
    for (uint32_t d = 0; d < block->dim && sum > 0; d++)
        o[d] /= sum;
    return sum > 0;
}

static void check_block(const struct attnd_kernel *kernel, const struct block *block)
{
    static float q[ATTND_DECODE_ROWS * DIM_MAX], o[ATTND_DECODE_ROWS * DIM_MAX];
    const uint32_t bytes = block->dtype == ATTND_FP16 || block->dtype == ATTND_BF16 ? 2 : 1;
    const ptrdiff_t second = (ptrdiff_t)block->dim * bytes;
    float m[ATTND_DECODE_ROWS], l[ATTND_DECODE_ROWS] = {0};
    double want[DIM_MAX];
    struct attnd_keys keys = {.count = block->keys, .dtype = block->dtype};
    const struct attnd_kv_block at = {&keys, second, second};
    const struct attnd_rows rows = {block->rows, block->dim,   q,          o,   m,
                                    l,           block->begin, block->end, NULL};

    for (uint32_t t = 0; t < KEYS; t++) {
        keys.k[t] = block->k[t < block->keys ? t : block->keys - 1];
        keys.v[t] = block->v[t < block->keys ? t : block->keys - 1];
    }
    memset(o, 0, sizeof o);
    for (uint32_t r = 0; r < block->rows; r++) {
        memcpy(q + r * block->dim, block->q[r], block->dim * sizeof *q);
        m[r] = -INFINITY;
    }
    decode(kernel, &rows, &at);
    for (uint32_t r = 0; r < block->rows; r++) {
        const int seen = define(block, r, want);
        assert_int_equal(seen, l[r] > 0);
        for (uint32_t d = 0; d < block->dim; d++) {
            const double got = (double)o[r * block->dim + d] / (seen ? (double)l[r] : 1);
            if (!(fabs(got - want[d]) < 2e-5))
                fail_msg("%s, dtype %u, dim %u, %u keys, row %u of %u, element %u: %g, want %g",
                         kernel->name, block->dtype, block->dim, block->keys, r, block->rows, d,
                         got, want[d]);
        }
    }
}

static void decode_agrees_with_its_definition_in_every_type_and_dimension(void **state)
{
    (void)state;
    static const uint32_t dims[] = {64, 128, 192, 256, 576}, counts[] = {1, 2, 3, 4, 5, 7, 8, 16};
    static struct block block;
    struct prng prng = {11};
    for (uint32_t dtype = ATTND_FP16; dtype <= ATTND_FP8_E5M2; dtype++)
        for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
            for (uint32_t j = 0; j < sizeof counts / sizeof counts[0]; j++) {
                block.dtype = dtype;
                block.dim = dims[i];
                block.rows = counts[j];
                block.keys = 1 + (uint32_t)prng_below(&prng, KEYS);
                draw_block(&prng, &block);
                for (int k = 0; k < kernel_count; k++)
                    check_block(kernels[k], &block);
            }
}

static void the_best_kernel_is_chosen_and_unknown_ones_are_not_found(void **state)
{
    (void)state;
    assert_ptr_equal(attnd_kernel_find(NULL), kernels[0]);
    assert_null(attnd_kernel_find("mmx"));
    assert_non_null(attnd_kernel_find("portable"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widening_is_exact_for_every_value),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(widening_of_fp8_is_exact_for_every_value),
        cmocka_unit_test(narrowing_to_fp8_rounds_to_nearest_even_and_saturates),
        cmocka_unit_test(scales_are_applied),
        cmocka_unit_test(weights_are_powers_of_two),
        cmocka_unit_test(a_weight_of_a_nan_is_a_nan),
        cmocka_unit_test(decode_agrees_with_its_definition_in_every_type_and_dimension),
        cmocka_unit_test(the_best_kernel_is_chosen_and_unknown_ones_are_not_found),
    };
    const char *const best_first[] = {"avx512", "avx2", "portable"};
    for (int i = 0; i < 3; i++)
        if (attnd_kernel_find(best_first[i]) != NULL)
            kernels[kernel_count++] = attnd_kernel_find(best_first[i]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
