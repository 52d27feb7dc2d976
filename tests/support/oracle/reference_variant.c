/* reference_variant.c - one function for each sentence of the contract. */
#include "tests/support/oracle/reference_variant.h"

#include <math.h>

int reference_sees(const struct reference_variant *variant, int32_t p, int32_t j)
{
    return !variant->windowed || j >= (int64_t)p - variant->window_left;
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

double reference_score(const struct reference_variant *variant, double score, uint32_t head,
                       uint32_t heads, int32_t p, int32_t j)
{
    if (variant->soft_cap > 0)
        score = variant->soft_cap * tanh(score / variant->soft_cap);
    if (variant->alibi)
        score += reference_slope(head, heads) * ((double)j - p);
    return score;
}
