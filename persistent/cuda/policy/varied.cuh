/*
 * varied.cuh - the policies that change something (policy.cuh). Varied has all that a worker
 * executes: window, soft cap, ALiBi, sinks, masks, scales, rotary embeddings, and rows shorter than
 * what the loops are compiled for. Each of them is a branch that all lanes take alike, outside of
 * the products. Fp8 has that over K and V of 8 bits.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_VARIED_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_VARIED_CUH

#include "persistent/cuda/policy/mask.cuh"
#include "persistent/cuda/policy/policy.cuh"
#include "persistent/cuda/policy/rope.cuh"
#include "persistent/cuda/policy/tanh.cuh"
#include <type_traits>

namespace attnd
{

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

    __device__ static void start()
    {
        rope_table()->version = 0;
    }

    /* Keys on earlier levels than entry @entry's, by which what is stored rotated is further from
     * the first. */
    __device__ static int32_t keys_before(const Item &item, uint32_t entry)
    {
        const attnd_plan_head &plan = item.run->plan;
        if (!(plan.flags & ATTND_PLAN_PLACED) || !(plan.options & ATTND_OPTION_ROPE_APPEND))
            return 0;
        return __ldcg(item.run->kv_len + uint64_t(item.generation) * plan.entries_max +
                      plan.entries + entry);
    }

    static constexpr uint32_t rotations = ATTND_OPTION_ROPE | ATTND_OPTION_ROPE_APPEND;
    __device__ static void prepare(const Item &item)
    {
        if (has(item, rotations))
            rope_prepare(item);
    }

    __device__ static bool masked(const Item &item)
    {
        return item.scoring.options & ATTND_OPTION_MASK;
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
        return item.kv_len - int32_t(entry.row_count) +
               int32_t(row - entry.row_begin + entry.behind);
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

    __device__ static int32_t row_begin(const Item &, uint32_t index)
    {
        return varied_row()[index].begin;
    }

    __device__ static int32_t first_key(const Item &item, uint32_t row)
    {
        return max(attnd_visible_range(&item.tile.of_entry, item.kv_len, row).begin, item.kv_begin);
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

    struct Row {
        Scoring scoring;
        float slope;
        int32_t position;
        MaskRow mask; /* no bytes: none */
    };
    __device__ static Row row(const Item &item, uint32_t row, uint32_t head)
    {
        return {item.scoring, slope(item.run, head), position(item, row),
                masked(item) ? mask_row(item, row) : MaskRow{nullptr, 0}};
    }
    __device__ static bool shows(const Row &row, int32_t key)
    {
        return !row.mask.bytes || row.mask.sees(key);
    }
    __device__ static float score(const Row &row, float s, int32_t key)
    {
        return fmaf(row.slope, float(key - row.position), scored(row.scoring, s));
    }

    /* What the @index-th of rows() makes of its product with key @key, which lies below its end. */
    __device__ static float row_score(const Item &item, uint32_t index, float s, int32_t key)
    {
        const VariedRow row = varied_row()[index];
        if (key < row.begin || (masked(item) && !row.mask.sees(key)))
            return -INFINITY;
        return fmaf(row.slope, float(key - row.position), scored(item.scoring, s));
    }

    /* A row of q, the @index-th of rows(), and that of key @key, as floats in shared memory. A
     * warp.
     */
    __device__ static void turn_query(const Item &item, float *row, uint32_t index, uint32_t lane)
    {
        if (has(item, rotations))
            rope_turn_row(row, varied_row()[index].position + int32_t(item.tile.before), lane);
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
        if (!has(item, rotations))
            return x;
        return rope_turned(x, from, d, row.position + int32_t(item.tile.before));
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

    template <int B, int N>
    __device__ static void decode_mask(const Item &item, float (&s)[B][N][4],
                                       const int32_t (&key)[B])
    {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const MaskRow mask = varied_row()[n * 8 + threadIdx.x % 4 * 2 + j].mask;
#pragma unroll
                for (int b = 0; b < B; b++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        if (key[b] + half * 8 < item.kv_end && !mask.sees(key[b] + half * 8))
                            s[b][n][half * 2 + j] = -INFINITY;
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
            for (int word = 0; word < (count + 15) / 16; word++) {
                const uint32_t bits =
                    __shfl_sync(0xffffffffu, mine, lane / 4 * 4 + word) >> lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < min(4, count / 4 - word * 4); j++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (!(bits >> (j * 8 + e) & 1))
                            s[(word * 4 + j) * 4 + half * 2 + e] = -INFINITY;
            }
        }
    }

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
