/*
 * tanh.cuh - the soft cap's tanh: polynomials where it is of a small number, and for any.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_TANH_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_TANH_CUH

#include "persistent/cuda/policy/policy.cuh"

namespace attnd
{

/* @cap * tanh(s * @scale) for |s * scale| below a limit: polynomials through Chebyshev nodes take
 * no special function, of which softmax wants all there are. To 2^-20 of the cap, or, of two terms
 * and up to tanh_cap_max, to what moves a weight by 2^-13. */
constexpr float tanh_two_max = 0.15f, tanh_four_max = 0.5f, tanh_cap_max = 100.0f;
constexpr float tanh_scale_min = 5e-5f; /* its seventh power is a number */
template <int terms> struct TanhSmall {
    static_assert(terms == 2 || terms == 4, "the polynomials that there are");
    float factor[terms];

    __device__ __forceinline__ TanhSmall(float scale, float cap)
    {
        constexpr float two[4] = {0.999991639f, -0.330357054f};
        constexpr float four[4] = {0.999999451f, -0.333262842f, 0.131899394f, -0.0443927384f};
        float by = cap * scale;
#pragma unroll
        for (int i = 0; i < terms; i++) {
            factor[i] = by * (terms == 2 ? two[i] : four[i]);
            by *= scale * scale;
        }
    }

    /* The same over s, of whose square this is. */
    __device__ __forceinline__ float over(float square) const
    {
        float p = factor[terms - 1];
#pragma unroll
        for (int i = terms - 2; i >= 0; i--)
            p = fmaf(p, square, factor[i]);
        return p;
    }
};

/* @cap * tanh(x) for any x. */
__device__ __forceinline__ float tanh_any(float x, float cap)
{
    const float near = x * TanhSmall<4>(1.0f, cap).over(x * x);
    const float far = cap - __fdividef(2.0f * cap, 1.0f + exp2_fast(x * (2.0f * log2_e)));
    return fabsf(x) < tanh_four_max ? near : far;
}

} // namespace attnd

#endif
