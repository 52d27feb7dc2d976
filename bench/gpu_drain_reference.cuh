/*
 * gpu_drain_reference.cuh - what gpu_drain fills its tensors with and holds results against: the
 * plain way, one block a sampled row and head, in fp32 and fp64.
 */
#ifndef ATTND_BENCH_GPU_DRAIN_REFERENCE_CUH
#define ATTND_BENCH_GPU_DRAIN_REFERENCE_CUH

#include "schemas/abi.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

namespace
{

struct Shape {
    const char *name;
    uint32_t batch, rows, kv, page_size, heads_q, heads_kv, dim, dtype;
    bool shuffled;
    uint32_t layers;  /* together far past the L2 */
    uint32_t runs;    /* timed */
    float rise = 0;   /* keys grow towards the first, to 1 + rise times: maxima move all the way */
    bool nan = false; /* in V of the last key, which one row sees: its tile goes the naive way */
    /* The variant: what keys a row sees, its own included, 0: all; what its scores become. */
    uint32_t window = 0;
    float soft_cap = 0;
    bool alibi = false;       /* heads_q: a power of two */
    uint32_t dim_vo = 0;      /* of V and o; 0: dim */
    uint32_t kv_dtype = 0;    /* of K and V; 0: dtype */
    uint32_t fixed_split = 0; /* keys of a part; 0: as balance wants */
    uint32_t least = 0; /* keys of the first request, if the others have more and more, to kv */

    __host__ __device__ uint32_t kv_type() const
    {
        return kv_dtype ? kv_dtype : dtype;
    }

    __host__ __device__ uint32_t vo() const
    {
        return dim_vo ? dim_vo : dim;
    }
    __host__ __device__ uint32_t kv_of(uint32_t request) const
    {
        return least ? least + (kv - least) * request / (batch - 1) : kv;
    }
    /* Latents: V is the front of K, in one plane. */
    __host__ __device__ bool one_plane() const
    {
        return dim == 576;
    }
    /* Which of those in memory plane @i is, K of all layers and then V. */
    uint64_t plane(uint32_t i) const
    {
        return one_plane() ? i % layers : i;
    }
};

__device__ uint32_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return uint32_t(x ^ x >> 31);
}

__device__ uint16_t bits_of(float x, uint32_t dtype)
{
    return dtype == ATTND_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                               : __half_as_ushort(__float2half_rn(x));
}

/* About normal: the sum of four uniforms. */
__global__ void fill_random(uint16_t *out, uint64_t count, uint64_t seed, uint32_t dtype)
{
    uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        uint32_t a = mix(i * 2 + seed), b = mix(i * 2 + 1 + seed);
        float sum = float(a & 0xffff) + float(a >> 16) + float(b & 0xffff) + float(b >> 16);
        float x = (sum / 65536.0f - 2.0f) * 1.732f;
        out[i] = bits_of(x, dtype);
    }
}

__device__ float element(const uint16_t *from, uint32_t dtype)
{
    return dtype == ATTND_BF16 ? __bfloat162float(__ushort_as_bfloat16(*from))
                               : __half2float(__ushort_as_half(*from));
}

/* fp8 of either type, about as large; none is NaN. */
__global__ void fill_bytes(uint8_t *out, uint64_t count, uint64_t seed)
{
    uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const uint32_t bits = mix(i + seed);
        out[i] = uint8_t((bits & 0x80) | (bits >> 8 & 0x3f)); /* below 2, most far below */
    }
}

/* Element @index of K or V, by the definition of its type. */
__device__ float kv_element(const void *from, uint64_t index, uint32_t dtype)
{
    if (dtype != ATTND_FP8_E4M3 && dtype != ATTND_FP8_E5M2)
        return element(static_cast<const uint16_t *>(from) + index, dtype);
    const uint32_t fraction_bits = dtype == ATTND_FP8_E4M3 ? 3 : 2;
    const int bias = dtype == ATTND_FP8_E4M3 ? 7 : 15;
    const uint8_t bits = static_cast<const uint8_t *>(from)[index];
    const int field = (bits & 0x7f) >> fraction_bits;
    const int units = (bits & ((1 << fraction_bits) - 1)) + (field ? 1 << fraction_bits : 0);
    const float size = ldexpf(float(units), max(field, 1) - bias - int(fraction_bits));
    return bits & 0x80 ? -size : size;
}

/* Keys of the request whose pages are @list, in one layer. */
__global__ void spoil_keys(uint16_t *k, uint16_t *v, const int32_t *list, Shape s)
{
    const uint32_t elements = s.heads_kv * s.dim;
    for (uint32_t key = blockIdx.x; key < s.kv; key += gridDim.x) {
        uint64_t token = uint64_t(list[key / s.page_size]) * s.page_size + key % s.page_size;
        float factor = 1.0f + s.rise * (1.0f - float(key) / float(s.kv));
        for (uint32_t i = threadIdx.x; i < elements; i += blockDim.x) {
            uint16_t *x = k + token * elements + i;
            *x = bits_of(element(x, s.dtype) * factor, s.dtype);
            if (s.nan && key == s.kv - 1)
                v[token * elements + i] = bits_of(NAN, s.dtype);
        }
    }
}

__global__ void count_bad(const uint16_t *values, uint64_t count, uint32_t dtype,
                          unsigned long long *bad)
{
    uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        if (!isfinite(element(values + i, dtype)))
            atomicAdd(bad, 1ull);
}

struct ReferenceArgs {
    const uint16_t *q, *o;
    const void *k, *v;
    const float *lse;
    const int32_t *pages; /* [batch][pages a request] */
    const uint2 *samples; /* query row over all requests, head */
    float *error;         /* [samples] relative, of o; an error of lse counts too */
    Shape shape;
};

/* A scaled score of the row that sees keys up to @visible, as the variant has it. */
__device__ float score_of(const Shape &s, float score, uint32_t head, uint32_t key,
                          uint32_t visible)
{
    if (s.soft_cap > 0)
        score = s.soft_cap * tanhf(score / s.soft_cap);
    if (s.alibi)
        score +=
            exp2f(-8.0f * float(head + 1) / float(s.heads_q)) * (float(key) - float(visible - 1));
    return score;
}

/* One block a sample: o of one row and head, the plain way. */
__global__ void reference(ReferenceArgs a)
{
    extern __shared__ float scores[];
    __shared__ double part[128];
    const Shape &s = a.shape;
    uint32_t row = a.samples[blockIdx.x].x, head = a.samples[blockIdx.x].y, t = threadIdx.x;
    uint32_t request = row / s.rows, kv_head = head / (s.heads_q / s.heads_kv);
    uint32_t visible = s.kv_of(request) - s.rows + row % s.rows + 1;
    uint32_t first = s.window && visible > s.window ? visible - s.window : 0;
    uint32_t pages = (s.kv + s.page_size - 1) / s.page_size;
    const uint16_t *q = a.q + (uint64_t(row) * s.heads_q + head) * s.dim;
    const int32_t *list = a.pages + uint64_t(request) * pages;
    float top = -INFINITY;
    for (uint32_t key = first + t; key < visible; key += 128) {
        uint64_t token = uint64_t(list[key / s.page_size]) * s.page_size + key % s.page_size;
        const uint64_t k = (token * s.heads_kv + kv_head) * s.dim;
        float sum = 0;
        for (uint32_t d = 0; d < s.dim; d++)
            sum += element(q + d, s.dtype) * kv_element(a.k, k + d, s.kv_type());
        scores[key] = score_of(s, sum * rsqrtf(float(s.dim)), head, key, visible);
        top = fmaxf(top, scores[key]);
    }
    part[t] = top;
    __syncthreads();
    for (uint32_t i = 0; i < 128; i++)
        top = fmaxf(top, float(part[i]));
    double total = 0;
    for (uint32_t key = first; key < visible; key++)
        total += exp(double(scores[key]) - top);
    double error = 0, norm = 0;
    const uint32_t v_row = s.one_plane() ? s.dim : s.vo();
    for (uint32_t d = t; d < s.vo(); d += 128) {
        double sum = 0;
        for (uint32_t key = first; key < visible; key++) {
            uint64_t token = uint64_t(list[key / s.page_size]) * s.page_size + key % s.page_size;
            sum += double(__expf(scores[key] - top)) *
                   kv_element(a.v, (token * s.heads_kv + kv_head) * v_row + d, s.kv_type());
        }
        sum /= total;
        double got = element(a.o + (uint64_t(row) * s.heads_q + head) * s.vo() + d, s.dtype);
        error += (got - sum) * (got - sum);
        norm += sum * sum;
    }
    __syncthreads();
    part[t] = error;
    __syncthreads();
    error = 0;
    for (uint32_t i = 0; i < 128; i++)
        error += part[i];
    __syncthreads();
    part[t] = norm;
    __syncthreads();
    norm = 0;
    for (uint32_t i = 0; i < 128; i++)
        norm += part[i];
    double lse = (top + log(total)) * 1.4426950408889634;
    double lse_error = fabs(a.lse[uint64_t(row) * s.heads_q + head] - lse) / 4;
    if (t == 0)
        a.error[blockIdx.x] = float(fmax(sqrt(error / norm), lse_error));
}

} // namespace

#endif
