/*
 * rope.c - rotary embeddings: of q when a tile begins, of K a block at a time, of new rows of K.
 *
 * Angles are products of a position and a frequency, and are taken in double: in float a position
 * of a million has no digits left for what is behind the point.
 */
#include <math.h>

#include "persistent/cpu/rope.h"
#include "persistent/position.h"

void attnd_cpu_rope_begin(const struct attnd_cpu_run *run, double *frequency)
{
    const uint32_t pairs = run->variant.rope_dim / 2;

    for (uint32_t p = 0; p < pairs; p++)
        frequency[p] = attnd_rope_frequency(&run->variant, p);
}

void attnd_cpu_rope_row(const struct attnd_cpu_run *run, const double *frequency, int64_t position,
                        float *row)
{
    const uint32_t pairs = run->variant.rope_dim / 2;

    for (uint32_t p = 0; p < pairs; p++) {
        const double angle = (double)position * frequency[p];
        const float cosine = (float)cos(angle), sine = (float)sin(angle);
        const float low = row[p], high = row[p + pairs];
        row[p] = low * cosine - high * sine;
        row[p + pairs] = high * cosine + low * sine;
    }
}

void attnd_cpu_rope_block(struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                          uint32_t begin, uint32_t count)
{
    const uint32_t pairs = run->variant.rope_dim / 2;

    for (uint32_t p = 0; p < pairs; p++)
        for (uint32_t t = 0; t < count; t++) {
            const double angle = (double)(begin + t) * worker->frequency[p];
            worker->cosine[p * ATTND_KEYS_BLOCK + t] = (float)cos(angle);
            worker->sine[p * ATTND_KEYS_BLOCK + t] = (float)sin(angle);
        }
}
