/*
 * varied.cuh - the policies that change something (policy.cuh). Varied has all that a worker
 * executes: window, soft cap, ALiBi, sinks, masks, scales, rotary embeddings, and rows shorter than
 * what the loops are compiled for. Each of them is a branch that all lanes take alike, outside of
 * the products. Fp8 has that over K and V of 8 bits.
 */
#ifndef ATTND_PERSISTENT_CUDA_VARIED_CUH
#define ATTND_PERSISTENT_CUDA_VARIED_CUH

#include "persistent/cuda/mask.cuh"
#include "persistent/cuda/policy.cuh"
#include "persistent/cuda/rope.cuh"

namespace attnd
{

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
    MaskRow mask;     /* with a mask */
};
constexpr uint32_t varied_rows = 16; /* of a warp */

/* This warp's. */
__device__ __forceinline__ VariedRow *varied_row()
{
    __shared__ VariedRow rows[consumer_threads / 32][varied_rows];
    return rows[consumer_thread() / 32];
}

struct Varied {
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

    __device__ static void scales(Item *item)
    {
        const bool has = item->run->plan.options & ATTND_OPTION_HEAD_SCALES;
        const float *table = has ? item->maps->tables.kv_scales + item->kv_head : nullptr;
        item->k_scale = has ? __ldcg(table) : 1.0f;
        item->v_scale = has ? __ldcg(table + item->run->plan.heads_kv) : 1.0f;
    }

    __device__ static float out_scale(const Item &item)
    {
        return item.v_scale;
    }

    __device__ static void start()
    {
        rope_table()->version = 0;
    }

    static constexpr uint32_t rotations = ATTND_OPTION_ROPE | ATTND_OPTION_ROPE_APPEND;
    __device__ static void prepare(const Item &item)
    {
        if (has(item, rotations))
            rope_prepare(item);
    }

    __device__ static bool masked(const Item &item)
    {
        return has(item, ATTND_OPTION_MASK);
    }

    __device__ static bool shows_any(const Item &item, uint32_t row)
    {
        return !masked(item) ||
               mask_row(item, row).any(first_key(item, row), visible_end(item, row));
    }

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

        __device__ explicit Cap(const Item &item)
        {
            const attnd_plan_head &plan = item.run->plan;
            const float sm_scale = plan.sm_scale * item.k_scale;
            const bool has = plan.options & ATTND_OPTION_SOFT_CAP;
            cap = has ? plan.logits_soft_cap * log2_e : 0.0f;
            scale = has ? __fdividef(sm_scale, plan.logits_soft_cap) : sm_scale * log2_e;
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
        MaskRow mask; /* no bytes: none */
    };
    __device__ static Row row(const Item &item, uint32_t row, uint32_t head)
    {
        return {Cap(item), slope(item.run, head), position(item, row),
                masked(item) ? mask_row(item, row) : MaskRow{nullptr, 0}};
    }
    __device__ static bool shows(const Row &row, int32_t key)
    {
        return !row.mask.bytes || row.mask.sees(key);
    }
    __device__ static float score(const Row &row, float s, int32_t key)
    {
        return fmaf(row.slope, float(key - row.position), row.cap.one(s));
    }

    /* What the @index-th of rows() makes of its product with key @key, which lies below its end. */
    __device__ static float row_score(const Item &item, uint32_t index, float s, int32_t key)
    {
        const VariedRow row = varied_row()[index];
        if (key < row.begin || (masked(item) && !row.mask.sees(key)))
            return -INFINITY;
        return fmaf(row.slope, float(key - row.position), Cap(item).one(s));
    }

    /* A row of q, the @index-th of rows(), and that of key @key, as floats in shared memory. A
     * warp.
     */
    __device__ static void turn_query(const Item &item, float *row, uint32_t index, uint32_t lane)
    {
        if (has(item, rotations))
            rope_turn_row(row, varied_row()[index].position, lane);
    }
    __device__ static void turn_key(const Item &item, float *row, int32_t key, uint32_t lane)
    {
        if (has(item, ATTND_OPTION_ROPE))
            rope_turn_row(row, key, lane);
    }

    template <typename T>
    __device__ static float query(const Item &item, const Row &row, float x, const T *from,
                                  uint32_t d)
    {
        return has(item, rotations) ? rope_turned(x, from, d, row.position) : x;
    }
    template <typename T>
    __device__ static float key(const Item &item, float x, const T *from, uint32_t d, int32_t key)
    {
        return has(item, ATTND_OPTION_ROPE) ? rope_turned(x, from, d, key) : x;
    }
    template <typename T>
    __device__ static T stored(const Item &item, const T *row, uint32_t d, int32_t position)
    {
        if (!has(item, ATTND_OPTION_ROPE_APPEND))
            return row[d];
        return from_float<T>(rope_turned(to_float<T>(row[d]), row, d, position));
    }

    template <int N> __device__ static void decode(const Item &item, float (&s)[N][4], int32_t key)
    {
        Cap(item).all<4 * N>(&s[0][0]);
        if (masked(item))
            decode_mask(item, s, key);
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

    template <int N>
    __device__ static void decode_mask(const Item &item, float (&s)[N][4], int32_t key)
    {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const MaskRow mask = varied_row()[n * 8 + threadIdx.x % 4 * 2 + j].mask;
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (key + half * 8 < item.kv_end && !mask.sees(key + half * 8))
                        s[n][half * 2 + j] = -INFINITY;
            }
    }

    template <int count>
    __device__ static void prefill(const Item &item, float (&s)[count], int32_t first)
    {
        Cap(item).all<count>(s);
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
        if (masked(item))
            prefill_mask(item, s, first);
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

    /* A lane of a quad has the bits of 32 keys of a block, and hands them to the other three. */
    template <int count>
    __device__ static void prefill_mask(const Item &item, float (&s)[count], int32_t first)
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const MaskRow mask = varied_row()[lane / 4 + half * 8].mask;
            const uint32_t mine = mask.word(first + int32_t(lane % 4 * 32), item.kv_end);
#pragma unroll
            for (int word = 0; word < count / 16; word++) {
                const uint32_t bits =
                    __shfl_sync(0xffffffffu, mine, lane / 4 * 4 + word) >> lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (!(bits >> (j * 8 + e) & 1))
                            s[(word * 4 + j) * 4 + half * 2 + e] = -INFINITY;
            }
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
        const float v_scale = run->plan.v_scale;
        if (!run->sinks || !sees)
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

    /* One over the scale of K or of V of head @head. */
    __device__ static float reciprocal(const Item &item, uint32_t head, bool of_v)
    {
        const RunTables &tables = item.maps->tables;
        float scale = 1.0f;
        if (has(item, ATTND_OPTION_SCALES))
            scale = of_v ? tables.variant->v_scale : tables.variant->k_scale;
        if (has(item, ATTND_OPTION_HEAD_SCALES))
            scale *= __ldcg(tables.kv_scales + (of_v ? item.run->plan.heads_kv : 0) + head);
        return __frcp_rn(scale);
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
