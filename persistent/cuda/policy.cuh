/*
 * policy.cuh - what an attention variant (schemas/variant.h) changes in the loops: which keys a row
 * sees beside its end, what becomes of a score, and how a row ends.
 *
 * Every loop is compiled for one policy. Plain is the identity, and leaves nothing in the code.
 * Varied has all that a worker executes: window, soft cap, ALiBi, sinks. Each of them is a branch
 * that all lanes take alike, outside of the products. The order is that of the contract: a score is
 * scaled, capped, then sloped, and a key that is not seen has no score at all.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_CUH

#include "persistent/cuda/barrier.cuh"
#include "persistent/cuda/item.cuh"
#include "persistent/cuda/wgmma.cuh"
#include "persistent/position.h"

namespace attnd
{

/* The identity. What follows is what every policy has. */
struct Plain {
    /* Rows have a first key of their own, and blocks below that of all rows are skipped. */
    static constexpr bool windows = false;

    /* What a score is multiplied with behind scores(), to be an exponent of 2. */
    __device__ static float unit(const attnd_plan_head &plan)
    {
        return plan.sm_scale * log2_e;
    }

    /* The warp has 16 packed rows in hand, from @first on: see row_begin(). */
    __device__ static void rows(const Item &, uint32_t)
    {
    }

    /* The first key of the item that the @index-th of them sees. */
    __device__ static int32_t row_begin(const Item &item, uint32_t)
    {
        return item.kv_begin;
    }

    /* The same of query row @row of the batch. */
    __device__ static int32_t first_key(const Item &item, uint32_t)
    {
        return item.kv_begin;
    }

    /* What the plain loop keeps of a query row and a head, and what becomes of their product with
     * key @key. */
    struct Row {
        float scale;
    };
    __device__ static Row row(const Item &item, uint32_t, uint32_t)
    {
        return {unit(item.run->plan)};
    }
    __device__ static float score(const Row &row, float s, int32_t)
    {
        return s * row.scale;
    }

    /* Scores of a warp in decode: s[n][e] is of its row n * 8 + lane % 4 * 2 + e % 2 and key
     * @key + e / 2 * 8. */
    template <int N> __device__ static void decode(const Item &, float (&)[N][4], int32_t)
    {
    }

    /* And in prefill: s[j * 4 + e] is of its row lane / 4 + e / 2 * 8 and key
     * @first + j * 8 + lane % 4 * 2 + e % 2. */
    template <int count> __device__ static void prefill(const Item &, float (&)[count], int32_t)
    {
    }

    /* Likewise: keys in front of a row's first have no score. */
    template <int count> __device__ static void mask(const Item &, float (&)[count], int32_t)
    {
    }

    /* Prefill: waits for the products with values that its exponentials ran beside. @quick: of
     * those, in all lanes. */
    __device__ static void wait_values(bool)
    {
        wgmma_wait<0>();
    }

    /* A row of head @head ends, with m and l of all its keys; @sees: any. Return: what o is
     * multiplied with. */
    __device__ static float finish(const ActiveRun *, uint32_t, bool, float *, float *)
    {
        return 1.0f;
    }
};

/* @factor * tanh(x) for |x| below the limit, to 2^-22 of it: a polynomial through Chebyshev nodes
 * takes no special function, of which softmax wants all there are. */
constexpr float tanh_small_max = 0.625f;
__device__ __forceinline__ float tanh_small(float x, float factor)
{
    const float y = x * x;
    float p = factor * 0.0150433566f;
    p = fmaf(p, y, factor * -0.0518159117f);
    p = fmaf(p, y, factor * 0.133043797f);
    p = fmaf(p, y, factor * -0.333319427f);
    p = fmaf(p, y, factor * 0.999999892f);
    return x * p;
}

/* The same for any x. */
__device__ __forceinline__ float tanh_any(float x, float factor)
{
    const float near = tanh_small(x, factor);
    const float far = factor - __fdividef(2.0f * factor, 1.0f + exp2_fast(x * (2.0f * log2_e)));
    return fabsf(x) < tanh_small_max ? near : far;
}

/* Of a packed row. */
struct VariedRow {
    int32_t begin;    /* the first key of the item that it sees */
    int32_t position; /* of its query */
    float slope;      /* of its head, for exponents of 2 */
};
constexpr uint32_t varied_rows = 16; /* of a warp */

/* This warp's. */
__device__ __forceinline__ VariedRow *varied_row()
{
    __shared__ VariedRow rows[consumer_threads / 32][varied_rows];
    return rows[consumer_thread() / 32];
}

struct Varied {
    static constexpr bool windows = true;

    __device__ static float unit(const attnd_plan_head &)
    {
        return 1.0f;
    }

    __device__ static bool has(const Item &item, uint32_t option)
    {
        return item.run->plan.options & option;
    }

    __device__ static float slope(const ActiveRun *run, uint32_t head)
    {
        if (!(run->plan.options & ATTND_OPTION_ALIBI))
            return 0.0f;
        return attnd_alibi_slope(head, run->plan.heads_q) * log2_e;
    }

    __device__ static int32_t position(const Item &item, uint32_t row)
    {
        const attnd_entry &entry = item.tile.of_entry;
        return item.kv_len - int32_t(entry.row_count) + int32_t(row - entry.row_begin);
    }

    __device__ static void rows(const Item &item, uint32_t first)
    {
        const ActiveRun *run = item.run;
        const uint32_t lane = threadIdx.x % 32, r = first + lane;
        __syncwarp(); /* all have read those of the item before */
        if (lane < varied_rows) {
            VariedRow value = {item.kv_begin, 0, 0.0f};
            if (r < item.packed_rows) {
                const Divided at = divided(r, run->plan.group, run->group_reciprocal);
                const uint32_t row = item.tile.row_begin + at.quotient;
                value.begin = first_key(item, row);
                value.position = position(item, row);
                value.slope = slope(run, item.kv_head * run->plan.group + at.rest);
            }
            varied_row()[lane] = value;
        }
        __syncwarp();
    }

    __device__ static int32_t row_begin(const Item &, uint32_t index)
    {
        return varied_row()[index].begin;
    }

    __device__ static int32_t first_key(const Item &item, uint32_t row)
    {
        return max(attnd_visible_range(&item.tile.of_entry, item.kv_len, row).begin, item.kv_begin);
    }

    /* A product is multiplied with the scale, and stays below the cap. A cap of 0 is none; else it
     * is one for exponents of 2, and the scale leads to what tanh is taken of. */
    struct Cap {
        float scale, cap;

        __device__ explicit Cap(const attnd_plan_head &plan)
        {
            const bool has = plan.options & ATTND_OPTION_SOFT_CAP;
            cap = has ? plan.logits_soft_cap * log2_e : 0.0f;
            scale = has ? __fdividef(plan.sm_scale, plan.logits_soft_cap) : plan.sm_scale * log2_e;
        }

        __device__ float one(float s) const
        {
            return cap > 0.0f ? tanh_any(s * scale, cap) : s * scale;
        }

        /* All scores of the warp's lanes; the branches are in front of them. */
        template <int count> __device__ void all(float *s) const
        {
            float top = 0.0f;
#pragma unroll
            for (int i = 0; i < count; i++) {
                s[i] *= scale;
                top = fmaxf(top, fabsf(s[i]));
            }
            if (cap == 0.0f)
                return;
            if (!__any_sync(0xffffffffu, top >= tanh_small_max)) {
#pragma unroll
                for (int i = 0; i < count; i++)
                    s[i] = tanh_small(s[i], cap);
            } else {
#pragma unroll
                for (int i = 0; i < count; i++)
                    s[i] = tanh_any(s[i], cap);
            }
        }
    };

    struct Row {
        Cap cap;
        float slope;
        int32_t position;
    };
    __device__ static Row row(const Item &item, uint32_t row, uint32_t head)
    {
        return {Cap(item.run->plan), slope(item.run, head), position(item, row)};
    }
    __device__ static float score(const Row &row, float s, int32_t key)
    {
        return fmaf(row.slope, float(key - row.position), row.cap.one(s));
    }

    template <int N> __device__ static void decode(const Item &item, float (&s)[N][4], int32_t key)
    {
        Cap(item.run->plan).all<4 * N>(&s[0][0]);
        const bool slopes = has(item, ATTND_OPTION_ALIBI), window = item.tile.of_entry.window;
        if (!slopes && !window)
            return;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const VariedRow row = varied_row()[n * 8 + threadIdx.x % 4 * 2 + j];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int32_t at = key + half * 8;
                    float &value = s[n][half * 2 + j];
                    value = at < row.begin ? -INFINITY
                                           : fmaf(row.slope, float(at - row.position), value);
                }
            }
    }

    template <int count>
    __device__ static void prefill(const Item &item, float (&s)[count], int32_t first)
    {
        Cap(item.run->plan).all<count>(s);
        if (!has(item, ATTND_OPTION_ALIBI))
            return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const VariedRow row = varied_row()[threadIdx.x % 32 / 4 + half * 8];
            const float away = float(first + int32_t(threadIdx.x % 4 * 2) - row.position);
#pragma unroll
            for (int j = 0; j < count / 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &value = s[j * 4 + half * 2 + e];
                    value = fmaf(row.slope, away + float(j * 8 + e), value);
                }
        }
    }

    template <int count>
    __device__ static void mask(const Item &item, float (&s)[count], int32_t first)
    {
        if (!item.tile.of_entry.window)
            return;
        const int32_t column = first + int32_t(threadIdx.x % 4 * 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t begin = row_begin(item, threadIdx.x % 32 / 4 + half * 8);
#pragma unroll
            for (int j = 0; j < count / 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (column + j * 8 + e < begin)
                        s[j * 4 + half * 2 + e] = -INFINITY;
        }
    }

    /* Behind the branches of prefill() ptxas would move the wait in front of the exponentials: it
     * is in both arms of one that depends on them. */
    __device__ static void wait_values(bool quick)
    {
        if (quick)
            wgmma_wait<0>();
        else
            wgmma_wait<0>();
    }

    /* A sink is a key without a value that every row sees which sees any. */
    __device__ static float finish(const ActiveRun *run, uint32_t head, bool sees, float *m,
                                   float *l)
    {
        if (!run->sinks || !sees)
            return 1.0f;
        const float sink = __ldcg(run->sinks + head) * log2_e, top = fmaxf(*m, sink);
        if (sink == -INFINITY)
            return 1.0f;
        const float fade = exp2_fast(*m - top);
        *l = fmaf(*l, fade, exp2_fast(sink - top));
        *m = top;
        return fade;
    }
};

} // namespace attnd

#endif
