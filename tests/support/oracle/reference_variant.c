/* reference_variant.c - one function for each sentence of the contract. */
#include "tests/support/oracle/reference_variant.h"

#include <math.h>

int reference_sees(const struct reference_variant *variant, int32_t p, int32_t j)
{
    return !variant->windowed || j >= (int64_t)p - variant->window_left;
}

int reference_unmasked(const struct reference_variant *variant, uint32_t request, int32_t i,
                       int32_t kv_len, int32_t j)
{
    if (!variant->mask)
        return 1;
    const uint8_t *bits = variant->mask + variant->mask_indptr[request];
    const int64_t bit = (int64_t)i * kv_len + j;
    return (bits[bit >> 3] & (1 << (bit & 7))) != 0;
}

/* The authors' list: a geometric sequence for a power of two; for any other number that of the
 * power below it, and then every other element of the sequence for twice as many. */
double reference_slope(uint32_t head, uint32_t heads)
{
    const double power = pow(2, floor(log2(heads)));

    if ((double)heads == power)
        return pow(pow(2, -8.0 / heads), head + 1.0);
    if ((double)head < power)
        return reference_slope(head, (uint32_t)power);
    return reference_slope(2 * (head - (uint32_t)power), 2 * (uint32_t)power);
}

/* The wave lengths of Llama 3.1: long waves are stretched, short ones are not, between them the two
 * are mixed. */
static double frequency_of(const struct reference_variant *variant, uint32_t d)
{
    const double pi = acos(-1), factor = variant->rope_scale;
    const double frequency = 1 / pow(variant->rope_theta, 2.0 * d / variant->rope_dim);
    const double wave = 2 * pi / frequency;

    if (variant->rope_old_context == 0)
        return frequency / factor;
    if (wave < variant->rope_old_context / variant->rope_high)
        return frequency;
    if (wave > variant->rope_old_context / variant->rope_low)
        return frequency / factor;
    const double smooth = (variant->rope_old_context / wave - variant->rope_low) /
                          (variant->rope_high - variant->rope_low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

void reference_rotate(const struct reference_variant *variant, double *row, int32_t p)
{
    const uint32_t half = variant->rope_dim / 2;

    if (variant->rope_theta == 0)
        return;
    for (uint32_t d = 0; d < half; d++) {
        const double angle = p * frequency_of(variant, d), x = row[d], y = row[d + half];
        row[d] = x * cos(angle) - y * sin(angle);
        row[d + half] = y * cos(angle) + x * sin(angle);
    }
}

double reference_score(const struct reference_variant *variant, double score, uint32_t head,
                       uint32_t heads, int32_t p, int32_t j)
{
    if (variant->soft_cap > 0)
        score = variant->soft_cap * tanh(score / variant->soft_cap);
    if (variant->alibi)
        score += reference_slope(head, heads) * ((double)j - p);
    return score;
}
