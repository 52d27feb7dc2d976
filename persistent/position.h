/*
 * position.h - the numbers of position encodings, for every worker: slopes of ALiBi, angles of
 * rotary embeddings.
 *
 * ALiBi: Press, Smith, Lewis: "Train Short, Test Long", section 3 and the authors' code for head
 * counts that are no power of two. Rotary embeddings: Su et al., "RoFormer"; dimension d is rotated
 * with dimension d + rope_dim / 2, as in Llama. Low frequencies are stretched as in Llama 3.1.
 */
#ifndef ATTND_PERSISTENT_POSITION_H
#define ATTND_PERSISTENT_POSITION_H

#include "persistent/visible.h"

#include <math.h>

/** attnd_alibi_slope() - of query head @head among @heads; a natural score is 1. */
static ATTND_HOST_DEVICE float attnd_alibi_slope(uint32_t head, uint32_t heads)
{
    uint32_t power = 1; /* the largest power of two that is not above @heads */

    while (power <= heads / 2)
        power *= 2;
    if (head < power)
        return exp2f(-8.0f * (float)(head + 1) / (float)power);
    return exp2f(-4.0f * (float)(2 * (head - power) + 1) / (float)power);
}

/** attnd_rope_frequency() - radians a token of the pair (d, d + rope_dim / 2), d = @pair. */
static ATTND_HOST_DEVICE double attnd_rope_frequency(const struct attnd_variant *variant,
                                                     uint32_t pair)
{
    const double exponent = -2.0 * (double)pair / (double)variant->rope_dim;
    const double frequency = pow((double)variant->rope_theta, exponent);
    const double scaled = frequency / (double)variant->rope_scale;

    if (variant->rope_old_context == 0)
        return scaled;
    /* How often the pair turns within the first context: between low and high it is blended. */
    const double turns = (double)variant->rope_old_context * frequency / 6.283185307179586;
    const double low = (double)variant->rope_low_freq_factor;
    const double high = (double)variant->rope_high_freq_factor;

    if (turns <= low)
        return scaled;
    if (turns >= high)
        return frequency;
    const double blend = (turns - low) / (high - low);
    return (1.0 - blend) * scaled + blend * frequency;
}

#endif
