/*
 * rotate.cu - what engines have between the QKV product and attention, in one launch: q and k
 * rotated (Llama's halves), k and v stored in their pages.
 *
 * A warp has one head of one row. Rotated q stays where it is. cos and sin come from a table, as
 * engines keep it. bench/engines/rotate.py launches it in any engine's stream, whoever attends.
 */
#include <cuda_fp16.h>

namespace
{
constexpr int warp_threads = 32;

/* As struct Args of rotate.py. */
struct RotateArgs {
    __half *qkv;          /* [rows][heads_q + 2 * heads_kv][dim] */
    const int *positions; /* [rows] */
    const int *slots;     /* [rows]: page * page_size + token in the page */
    const float *cos_sin; /* [position][2][dim / 2] */
    __half *k, *v;        /* [slot][heads_kv][dim] */
    int rows, heads_q, heads_kv, dim;
};

__device__ __half2 turned(float2 straight, float2 crossed, float2 cosine, float2 sine)
{
    return __floats2half2_rn(straight.x * cosine.x + crossed.x * sine.x,
                             straight.y * cosine.y + crossed.y * sine.y);
}
} // namespace

/* Grid: x rows, y enough blocks for all heads of a row, a warp each. */
extern "C" __global__ void rotate_and_store(RotateArgs args)
{
    const int warps = int(blockDim.x) / warp_threads, lane = int(threadIdx.x) % warp_threads;
    const int head = int(blockIdx.y) * warps + int(threadIdx.x) / warp_threads;
    const int row = int(blockIdx.x), heads = args.heads_q + 2 * args.heads_kv;
    if (head >= heads)
        return;
    const int half_dim = args.dim / 2;
    const bool rotates = head < args.heads_q + args.heads_kv;
    const int head_kv = head - args.heads_q - (rotates ? 0 : args.heads_kv);
    __half *from = args.qkv + (long long)(row * heads + head) * args.dim, *to = from;
    if (head_kv >= 0)
        to = (rotates ? args.k : args.v) +
             ((long long)args.slots[row] * args.heads_kv + head_kv) * args.dim;
    const float *cos_row = args.cos_sin + (long long)args.positions[row] * args.dim;
    for (int i = lane * 2; i < half_dim; i += warp_threads * 2) {
        const __half2 low = *reinterpret_cast<const __half2 *>(from + i),
                      high = *reinterpret_cast<const __half2 *>(from + half_dim + i);
        __half2 first = low, second = high;
        if (rotates) {
            const float2 cosine = *reinterpret_cast<const float2 *>(cos_row + i),
                         sine = *reinterpret_cast<const float2 *>(cos_row + half_dim + i);
            const float2 a = __half22float2(low), b = __half22float2(high);
            first = turned(a, make_float2(-b.x, -b.y), cosine, sine);
            second = turned(b, a, cosine, sine);
        }
        *reinterpret_cast<__half2 *>(to + i) = first;
        *reinterpret_cast<__half2 *>(to + half_dim + i) = second;
    }
}
