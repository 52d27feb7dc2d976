/*
 * score_impl.h - a row's scores after the product and before the softmax. Part of kernel_impl.h,
 * compiled with each instruction set; the loops without vf_ are the compiler's to vectorise.
 */
#ifndef ATTND_PERSISTENT_CPU_SCORE_IMPL_H
#define ATTND_PERSISTENT_CPU_SCORE_IMPL_H

#define TWO_LOG2E 0x1.715476p+1f
/* Below this tanh is its series: (1 - t) / (1 + t) loses digits there. */
#define TANH_SERIES 0.15f

/* cap * tanh(s / cap) of scores [from, to), whole vectors. */
INLINE void cap_scores(float *s, size_t from, size_t to, float cap)
{
    float x[KEYS] __attribute__((aligned(64))), t[KEYS] __attribute__((aligned(64)));
    for (size_t i = from; i < to; i++)
        x[i] = __builtin_fabsf(s[i]) / cap;
    for (size_t i = from; i < to; i += VF_LANES) /* e^-2x */
        vf_store(t + i, exp2_down(vf_mul(vf_load(x + i), vf_set(-TWO_LOG2E))));
    for (size_t i = from; i < to; i++) {
        const float y = x[i] * x[i];
        const float series = x[i] * (1.0f + y * (-1.0f / 3 + y * (2.0f / 15 + y * (-17.0f / 315))));
        const float ratio = (1.0f - t[i]) / (1.0f + t[i]);
        s[i] = __builtin_copysignf(cap * (x[i] < TANH_SERIES ? series : ratio), s[i]);
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
