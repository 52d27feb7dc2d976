/*
 * varied_score.cuh - what Varied makes of a product: scaled, capped, and further down the further
 * away its key is. Each is a branch that all lanes take alike, outside of the products.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_VARIED_SCORE_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_VARIED_SCORE_CUH

#include "persistent/cuda/policy/tanh.cuh"
#include "persistent/cuda/policy/varied_rows.cuh"
#include <type_traits>

namespace attnd
{

/* How a warpgroup takes the tanh of its item's products: polynomials of two terms, then of four
 * from the block on that begins with key two_end, going down, and none from four_end on. A warp
 * whose products are beyond a polynomial says so two blocks ahead: its group meets at a barrier in
 * between, so all four warps leave a loop behind the same block. */
struct VariedTanh {
    int32_t two_end, four_end;
};

/* This warpgroup's. */
__device__ __forceinline__ VariedTanh *varied_tanh()
{
    __shared__ VariedTanh groups[consumer_threads / 128];
    return &groups[consumer_thread() / 128];
}

struct VariedScore {
    /* A product is multiplied with the scale, and stays below the cap. A cap of 0 is none; else it
     * is one for exponents of 2, and the scale leads to what tanh is taken of. */
    __device__ static void score_item(Item *item)
    {
        const attnd_plan_head &plan = item->run->plan;
        const bool scales = plan.options & ATTND_OPTION_HEAD_SCALES;
        const float *table = scales ? item->maps->tables.kv_scales + item->kv_head : nullptr;
        const float scale = plan.sm_scale * (scales ? __ldcg(table) : 1.0f);
        item->v_scale = scales ? __ldcg(table + plan.heads_kv) : 1.0f;
        const bool caps = plan.options & ATTND_OPTION_SOFT_CAP;
        item->scoring = {caps ? __fdividef(scale, plan.logits_soft_cap) : scale * log2_e,
                         caps ? plan.logits_soft_cap * log2_e : 0.0f, plan.options};
    }

    __device__ static float out_scale(const Item &item)
    {
        return item.v_scale;
    }

    __device__ static float unit(const attnd_plan_head &)
    {
        return 1.0f;
    }

    __device__ static float scored(const Scoring &scoring, float s)
    {
        const float x = s * scoring.scale;
        return scoring.cap > 0.0f ? tanh_any(x, scoring.cap) : x;
    }

    /* The largest of these without their signs. */
    template <int count> __device__ static float largest(const float (&s)[count])
    {
        constexpr int chains = count < 4 ? count : 4; /* to wait less for one another */
        float top[chains];
#pragma unroll
        for (int i = 0; i < count; i++)
            top[i % chains] = i < chains ? fabsf(s[i]) : fmaxf(top[i % chains], fabsf(s[i]));
#pragma unroll
        for (int i = 1; i < chains; i++)
            top[0] = fmaxf(top[0], top[i]);
        return top[0];
    }

    /* Whether tanh of a product of these is of a small number, in all lanes. */
    template <int count>
    __device__ static bool all_small(const Scoring &scoring, const float (&s)[count])
    {
        return __all_sync(0xffffffffu, largest(s) * scoring.scale < tanh_four_max &&
                                           scoring.scale > tanh_scale_min);
    }

    /* All scores of the warp's lanes; the branches are in front of them. */
    template <int count> __device__ static void score(const Scoring &scoring, float (&s)[count])
    {
        if (scoring.cap == 0.0f) {
#pragma unroll
            for (int i = 0; i < count; i++)
                s[i] *= scoring.scale;
        } else if (all_small(scoring, s)) {
            const TanhSmall<4> tanh(scoring.scale, scoring.cap);
#pragma unroll
            for (int i = 0; i < count; i++)
                s[i] *= tanh.over(s[i] * s[i]);
        } else {
#pragma unroll
            for (int i = 0; i < count; i++)
                s[i] = tanh_any(s[i] * scoring.scale, scoring.cap);
        }
    }

    __device__ static float score(const VariedRows::Row &row, float s, int32_t key)
    {
        return fmaf(row.slope, float(key - row.position), scored(row.scoring, s));
    }

    template <int count>
    __device__ static void prefill(const Item &item, float (&s)[count], int32_t first)
    {
        score(item.scoring, s);
        if (!(item.scoring.options & ATTND_OPTION_ALIBI))
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

    /* The ways of prefill: nothing but a scale; slopes; a cap, by polynomials of two and of four
     * terms; and all the rest. */
    static constexpr int ways = 5, way_sloped = 1, way_two = 2, way_four = 3, way_any = 4;
    __device__ static int way(const Item &item, int32_t first)
    {
        const Scoring &scoring = item.scoring;
        const bool slopes = scoring.options & ATTND_OPTION_ALIBI;
        if (scoring.cap == 0.0f)
            return slopes ? way_sloped : 0;
        if (slopes || !(scoring.scale > tanh_scale_min) ||
            first <= peek_cta(&varied_tanh()->four_end))
            return way_any;
        const bool two = scoring.cap <= tanh_cap_max && first > peek_cta(&varied_tanh()->two_end);
        return two ? way_two : way_four;
    }
    __device__ static constexpr bool changes(int way)
    {
        return way == way_two || way == way_four;
    }

    /* What the loop of a way keeps from block to block: factors of the tanh. */
    struct Uncapped {
        __device__ explicit Uncapped(const Item &)
        {
        }
    };
    template <int terms> struct Capped {
        TanhSmall<terms> tanh;
        float limit;        /* of a product's square */
        const int32_t *end; /* the first key of the first block that takes another way */

        __device__ __forceinline__ explicit Capped(const Item &item)
            : tanh(item.scoring.scale, item.scoring.cap),
              end(terms == 2 ? &varied_tanh()->two_end : &varied_tanh()->four_end)
        {
            constexpr float x = terms == 2 ? tanh_two_max : tanh_four_max;
            const float most = __fdividef(x, item.scoring.scale);
            limit = most * most;
        }

        /* Of the products of a block, relative to @m of their rows. Return: whether the polynomial
         * is good for all of this lane's. One bit says so: where the largest square is looked for,
         * ptxas holds special functions back, and they then take their eight clocks each alone. */
        template <int count>
        __device__ __forceinline__ bool exponents(float (&s)[count], const float (&m)[2]) const
        {
            bool good = true;
#pragma unroll
            for (int i = 0; i < count; i++) {
                const float square = s[i] * s[i];
                good = good && square < limit;
                s[i] = fmaf(s[i], tanh.over(square), -m[i % 4 / 2]);
            }
            return good;
        }
    };
    template <int way>
    using Loop = std::conditional_t<way == way_two, Capped<2>,
                                    std::conditional_t<way == way_four, Capped<4>, Uncapped>>;

    /* Slopes make of -m what is added to the score of each key. */
    struct Ready {
        Scoring scoring;
        float slope[2], base[2];

        __device__ __forceinline__ float added(int i) const
        {
            return fmaf(slope[i % 4 / 2], float(i / 4 * 8 + i % 2), base[i % 4 / 2]);
        }
    };
    template <int way>
    __device__ static Ready ready(const Item &item, int32_t first, const float (&m)[2])
    {
        Ready ready = {item.scoring, {}, {-m[0], -m[1]}};
        if (way == way_sloped || way == way_any) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const VariedRow row = varied_row()[threadIdx.x % 32 / 4 + half * 8];
                const int32_t away = first + int32_t(threadIdx.x % 4 * 2) - row.position;
                ready.slope[half] = row.slope;
                ready.base[half] = fmaf(row.slope, float(away), -m[half]);
            }
        }
        return ready;
    }

    template <int way, typename Weights>
    __device__ static void quick(const Ready &ready, float, Weights weights)
    {
        const Scoring &scoring = ready.scoring;
        weights([&](float s, int i, float m) {
            if (changes(way))
                return s; /* Capped::exponents() */
            if (way == way_any)
                return tanh_any(s * scoring.scale, scoring.cap) + ready.added(i);
            return fmaf(s, scoring.scale, way == way_sloped ? ready.added(i) : -m);
        });
    }

    template <int count>
    __device__ static void beyond(const Item &item, const float (&s)[count], int32_t first,
                                  int32_t change)
    {
        const int now = way(item, first);
        if (!changes(now))
            return;
        const float most = largest(s) * item.scoring.scale;
        if (now == way_two && !(most < tanh_two_max))
            raise_relaxed(&varied_tanh()->two_end, change);
        if (!(most < tanh_four_max))
            raise_relaxed(&varied_tanh()->four_end, change);
    }
};

} // namespace attnd

#endif
