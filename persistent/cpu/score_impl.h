/*
 * score_impl.h - a row's scores after the product and before the softmax. Part of kernel_impl.h,
 * compiled with each instruction set; the loops without vf_ are the compiler's to vectorise.
 */
#ifndef ATTND_PERSISTENT_CPU_SCORE_IMPL_H
#define ATTND_PERSISTENT_CPU_SCORE_IMPL_H

#define RUNS_MAX (KEYS / 2 + 1) /* of keys that a mask lets a row see, in a block */
#define TWO_LOG2E 0x1.715476p+1f
/* Below this tanh is its series: (1 - t) / (1 + t) loses digits there. */
#define TANH_SERIES 0.15f

/* cap * tanh(s / cap) of scores [from, to), whole vectors. */
INLINE void cap_scores(float *s, size_t from, size_t to, float cap)
{
    for (size_t i = from; i < to; i += VF_LANES) {
        float x[VF_LANES], t[VF_LANES];
        for (size_t j = 0; j < VF_LANES; j++)
            x[j] = __builtin_fabsf(s[i + j]) / cap;
        vf_store(t, exp2_down(vf_mul(vf_load(x), vf_set(-TWO_LOG2E)))); /* e^-2x */
        for (size_t j = 0; j < VF_LANES; j++) {
            const float y = x[j] * x[j];
            const float series =
                x[j] * (1.0f + y * (-1.0f / 3 + y * (2.0f / 15 + y * (-17.0f / 315))));
            const float ratio = (1.0f - t[j]) / (1.0f + t[j]);
            const float bent = x[j] < TANH_SERIES ? series : ratio;
            s[i + j] = __builtin_copysignf(cap * bent, s[i + j]);
        }
    }
}

/* Scores [first, limit) of row @i against keys from position @begin on. */
INLINE void score_policy(const struct attnd_cpu_policy *policy, size_t i, float s[KEYS],
                         uint32_t begin, size_t first, size_t limit)
{
    const size_t from = first / VF_LANES * VF_LANES;
    const size_t to = (limit + VF_LANES - 1) / VF_LANES * VF_LANES;
    if (policy->soft_cap > 0.0f)
        cap_scores(s, from, to, policy->soft_cap);
    if (policy->slope) {
        const float slope = policy->slope[i];
        const int32_t distance = (int32_t)begin - policy->position[i];
        for (size_t t = from; t < to; t++)
            s[t] += slope * (float)(distance + (int32_t)t);
    }
}

/* Runs of keys in @seen that the mask lets row @i see. Return: how many. */
INLINE size_t mask_runs(const struct attnd_cpu_policy *policy, size_t i, uint32_t begin,
                        struct span seen, struct span runs[RUNS_MAX])
{
    size_t count = 0;
    int inside = 0;
    for (uint32_t t = seen.first; t < seen.limit; t++) {
        const uint64_t bit = policy->mask_bit[i] + begin + t;
        const int sees = policy->mask[bit / 8] >> (bit % 8) & 1;
        if (sees && !inside)
            runs[count++].first = t;
        if (sees)
            runs[count - 1].limit = t + 1;
        inside = sees;
    }
    return count;
}

/* Keys between runs become nothing. */
INLINE void mask_scores(float s[KEYS], const struct span *runs, size_t count)
{
    for (size_t r = 1; r < count; r++)
        for (uint32_t t = runs[r - 1].limit; t < runs[r].first; t++)
            s[t] = -__builtin_inff();
}

/* K of an unpacked block, [dim][KEYS], each key where it stands. */
INLINE void rotate_keys(const struct attnd_cpu_policy *policy, float *k, size_t count)
{
    for (size_t p = 0; p < policy->pairs; p++) {
        float *low = k + p * KEYS, *high = k + (p + policy->pairs) * KEYS;
        const float *cosine = policy->cosine + p * KEYS, *sine = policy->sine + p * KEYS;
        for (size_t t = 0; t < count; t++) {
            const float before = low[t];
            low[t] = before * cosine[t] - high[t] * sine[t];
            high[t] = high[t] * cosine[t] + before * sine[t];
        }
    }
}

#endif
