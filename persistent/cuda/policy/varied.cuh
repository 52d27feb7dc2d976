/*
 * varied.cuh - the policies that change something (policy.cuh). Varied has all that a worker
 * executes: window, soft cap, ALiBi, sinks, masks, scales, rotary embeddings, and rows shorter than
 * what the loops are compiled for. It is made of parts: what a row is (varied_rows.cuh), what a row
 * sees (varied_mask.cuh), what becomes of a product (varied_score.cuh), and what is rotated
 * (varied_turn.cuh). Here they meet, and here is the end of a row. Each option is a branch that all
 * lanes take alike, outside of the products. Fp8 has all of it over K and V of 8 bits.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_VARIED_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_VARIED_CUH

#include "persistent/cuda/policy/varied_mask.cuh"
#include "persistent/cuda/policy/varied_rows.cuh"
#include "persistent/cuda/policy/varied_score.cuh"
#include "persistent/cuda/policy/varied_turn.cuh"

namespace attnd
{

struct Varied : VariedRows, VariedScore, VariedMask, VariedTurn {
    static constexpr bool staged = true, windows = true, narrow = false;

    template <int D> __device__ static uint32_t dim_qk(const attnd_plan_head &plan)
    {
        return plan.dim_qk;
    }
    template <int D> __device__ static uint32_t dim_vo(const attnd_plan_head &plan)
    {
        return plan.dim_vo;
    }
    __device__ static bool in_qk(const attnd_plan_head &plan, uint32_t d)
    {
        return d < plan.dim_qk;
    }
    __device__ static bool in_vo(const attnd_plan_head &plan, uint32_t d)
    {
        return d < plan.dim_vo;
    }

    /* Rotations are exact in the staged loop alone. */
    __device__ static uint32_t paths(const ActiveRun *run, uint32_t settings)
    {
        return run->plan.options & rotations ? 0 : settings;
    }

    __device__ static void rows(const Item &item, uint32_t first)
    {
        const ActiveRun *run = item.run;
        const uint32_t lane = threadIdx.x % 32, r = first + lane;
        __syncwarp(); /* all have read those of the item before */
        if (lane < varied_rows) {
            VariedRow value = {item.kv_begin, 0, 0.0f, {nullptr, 0}};
            if (r < item.packed_rows) {
                const Divided at = divided(r, run->plan.group, run->group_reciprocal);
                const uint32_t row = item.tile.row_begin + at.quotient;
                value.begin = first_key(item, row);
                value.position = position(item, row);
                value.slope = slope(run, item.kv_head * run->plan.group + at.rest);
                if (masked(item))
                    value.mask = mask_row(item, row);
            } else if (masked(item)) { /* bits that are there: nobody asks what they say */
                value.mask = mask_row(item, item.tile.row_begin);
            }
            varied_row()[lane] = value;
        }
        if (lane == 0) /* each warp before it looks; none has found anything in this item yet */
            *varied_tanh() = {INT32_MIN, INT32_MIN};
        __syncwarp();
    }

    /* What the @index-th of rows() makes of its product with key @key, which lies below its end. */
    __device__ static float row_score(const Item &item, uint32_t index, float s, int32_t key)
    {
        const VariedRow row = varied_row()[index];
        if (key < row.begin || (masked(item) && !row.mask.sees(key)))
            return -INFINITY;
        return fmaf(row.slope, float(key - row.position), scored(item.scoring, s));
    }

    struct Kept : Scoring {
        bool window;
    };
    __device__ static Kept keep(const Item &item)
    {
        const Scoring &scoring = item.scoring;
        return {{scoring.scale, __uint_as_float(uniform(__float_as_uint(scoring.cap))),
                 uniform(scoring.options)},
                uniform(item.tile.of_entry.window) != 0};
    }

    template <int B, int N>
    __device__ static void decode(const Kept &kept, const Item &item, float (&s)[B][N][4],
                                  const int32_t (&key)[B])
    {
        score(kept, *reinterpret_cast<float(*)[4 * N * B]>(&s[0][0][0]));
        if (kept.options & ATTND_OPTION_MASK)
            decode_mask(item, s, key);
        if (!(kept.options & ATTND_OPTION_ALIBI) && !kept.window)
            return;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const VariedRow row = varied_row()[n * 8 + threadIdx.x % 4 * 2 + j];
#pragma unroll
                for (int b = 0; b < B; b++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int32_t at = key[b] + half * 8;
                        float &value = s[b][n][half * 2 + j];
                        value = at < row.begin ? -INFINITY
                                               : fmaf(row.slope, float(at - row.position), value);
                    }
            }
    }

    /* decode() of items without any of that. */
    struct Scaled {
        __device__ static bool suffices(const Kept &kept)
        {
            return kept.cap == 0.0f && !kept.window &&
                   !(kept.options & (ATTND_OPTION_MASK | ATTND_OPTION_ALIBI));
        }

        template <int B, int N>
        __device__ static void decode(const Kept &kept, const Item &, float (&s)[B][N][4],
                                      const int32_t (&)[B])
        {
#pragma unroll
            for (int i = 0; i < 4 * N * B; i++)
                (&s[0][0][0])[i] *= kept.scale;
        }
    };

    /* A sink is a key without a value that every row sees, also one that sees no other. */
    __device__ static float finish(const ActiveRun *run, uint32_t head, float *m, float *l)
    {
        const float v_scale = run->plan.v_scale;
        if (!run->sinks)
            return v_scale;
        const float sink = __ldcg(run->sinks + head) * log2_e, top = fmaxf(*m, sink);
        if (sink == -INFINITY)
            return v_scale;
        const float fade = exp2_fast(*m - top);
        *l = fmaf(*l, fade, exp2_fast(sink - top));
        *m = top;
        return fade * v_scale;
    }
};

/* All that Varied has, over K and V of fp8: decode converts in registers, prefill on the way to
 * shared memory, and append rounds. No loop for latents does either. */
struct Fp8 : Varied {
    static constexpr bool narrow = true;

    __device__ static uint32_t paths(const ActiveRun *run, uint32_t settings)
    {
        return run->plan.dim_qk > loop_dim_max ? 0 : Varied::paths(run, settings);
    }

    /* As stored(), before it is rounded. */
    template <typename T>
    __device__ static float rotated(const Item &item, const T *row, uint32_t d, int32_t position)
    {
        const float x = to_float<T>(row[d]);
        return has(item, ATTND_OPTION_ROPE_APPEND) ? rope_turned(x, row, d, position) : x;
    }
};

} // namespace attnd

#endif
