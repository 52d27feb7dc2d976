/*
 * policy.cuh - what an attention variant (schemas/variant.h) changes in the loops: which keys a row
 * sees beside its end, what becomes of a score, and how a row ends.
 *
 * Every loop is compiled for one policy. Plain is the identity, and leaves nothing in the code. The
 * others are in varied.cuh. The order is that of the contract: a score is scaled, capped, then
 * sloped, and a key that is not seen has no score at all.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_POLICY_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_POLICY_CUH

#include "persistent/cuda/items/item.cuh"
#include "persistent/cuda/machine/scalar.cuh"
#include "persistent/cuda/machine/wgmma.cuh"

namespace attnd
{

/* The identity. Every policy has the members that follow. */
struct Plain {
    /* Items that no fast loop takes go to another loop than the plain one (staged.cuh). */
    static constexpr bool staged = false;
    /* K and V are of fp8. */
    static constexpr bool narrow = false;

    /* Rows have a first key of their own, and blocks below that of all rows are skipped. */
    static constexpr bool windows = false;

    /* Prefill has a loop for each way in which weights are made at once, so that there is no branch
     * in front of them. */
    static constexpr int ways = 1;

    /* Elements of a row of q and K, and of a row of V and o, where loops are compiled for D; and
     * whether element @d is one of them. */
    template <int D> __device__ static constexpr uint32_t dim_qk(const attnd_plan_head &)
    {
        return D;
    }
    template <int D> __device__ static constexpr uint32_t dim_vo(const attnd_plan_head &)
    {
        return D;
    }
    __device__ static constexpr bool in_qk(const attnd_plan_head &, uint32_t)
    {
        return true;
    }
    __device__ static constexpr bool in_vo(const attnd_plan_head &, uint32_t)
    {
        return true;
    }

    /* Of the loops that @settings allow, those that may execute a run; as Settings.paths. */
    __device__ static uint32_t paths(const ActiveRun *, uint32_t settings)
    {
        return settings;
    }

    /* One lane of the fetch warp: how products of the item become scores, and what it has of the
     * run's tables. */
    __device__ static void score_item(Item *)
    {
    }

    /* The factor of the values of the item's head, wherever they go. */
    __device__ static constexpr float out_scale(const Item &)
    {
        return 1.0f;
    }

    /* One thread, before anything else. */
    __device__ static void start()
    {
    }

    /* All consumers, before the plain loop and before an append. */
    __device__ static void prepare(const Item &)
    {
    }

    /* Keys of earlier levels that count where a new row of entry @entry is rotated. */
    __device__ static constexpr int32_t keys_before(const Item &, uint32_t)
    {
        return 0;
    }

    /* Keys between those that a row sees may be hidden from it. */
    __device__ static constexpr bool masked(const Item &)
    {
        return false;
    }

    /* Whether query row @row, which has keys between its first and its end, sees any of them. */
    __device__ static constexpr bool shows_any(const Item &, uint32_t)
    {
        return true;
    }

    /* The factor of a score behind scores(), which makes it an exponent of 2. */
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

    /* The state that the plain loop keeps of a query row and a head, whether they see key @key of
     * those between their first and last, and what becomes of their product with it. */
    struct Row {
        float scale;
    };
    __device__ static Row row(const Item &item, uint32_t, uint32_t)
    {
        return {unit(item.run->plan)};
    }
    __device__ static constexpr bool shows(const Row &, int32_t)
    {
        return true;
    }
    __device__ static float score(const Row &row, float s, int32_t)
    {
        return s * row.scale;
    }

    /* Element @d of a row of q in memory, @x, as the plain loop uses it; of a row of K, which is
     * that of key @key; and of a row of K that is stored at @position. */
    template <typename T>
    __device__ static float query(const Item &, const Row &, float x, const T *, uint32_t)
    {
        return x;
    }
    template <typename T>
    __device__ static float key(const Item &, float x, const T *, uint32_t, int32_t)
    {
        return x;
    }
    template <typename T>
    __device__ static T stored(const Item &, const T *row, uint32_t d, int32_t)
    {
        return row[d];
    }

    /* The part of Item.scoring that decode keeps in registers. */
    struct Kept {
    };
    __device__ static Kept keep(const Item &)
    {
        return {};
    }

    /* Scores of a warp in decode: s[b][n][e] is of its row n * 8 + lane % 4 * 2 + e % 2 and key
     * @key[b] + e / 2 * 8. */
    template <int B, int N>
    __device__ static void decode(const Kept &, const Item &, float (&)[B][N][4],
                                  const int32_t (&)[B])
    {
    }

    /* And in prefill: s[j * 4 + e] is of its row lane / 4 + e / 2 * 8 and key
     * @first + j * 8 + lane % 4 * 2 + e % 2. */
    template <int count> __device__ static void prefill(const Item &, float (&)[count], int32_t)
    {
    }

    /* In place of prefill() where weights are made at once: the item's way for the block that
     * begins with key @first, the same in all warps of the group; and whether that may become a
     * later one within an item. The Loop of one that may also makes the exponents of a block. */
    __device__ static constexpr int way(const Item &, int32_t)
    {
        return 0;
    }
    __device__ static constexpr bool changes(int)
    {
        return false;
    }

    /* What the loop of a way keeps from block to block. */
    struct Nothing {
        __device__ explicit Nothing(const Item &)
        {
        }
    };
    template <int way> using Loop = Nothing;

    /* All that is known of a block before its products; @m is of the rows in hand. */
    struct Ready {
    };
    template <int way> __device__ static Ready ready(const Item &, int32_t, const float (&)[2])
    {
        return {};
    }

    /* @weights takes a function that makes an exponent of product s[i], relative to m of its row:
     * (s[i], i, m). */
    template <int way, typename Weights>
    __device__ static void quick(const Ready &, float scale, Weights weights)
    {
        weights([scale](float s, int, float m) { return fmaf(s, scale, -m); });
    }

    /* Weights of the block that begins with key @first were wrong in this warp, and @s are its
     * products in this lane. @change: the first block, by its first key, for which the group's
     * warps may yet agree on another way. */
    template <int count>
    __device__ static void beyond(const Item &, const float (&)[count], int32_t, int32_t)
    {
    }

    /* Likewise: keys in front of a row's first have no score. */
    template <int count> __device__ static void mask(const Item &, float (&)[count], int32_t)
    {
    }

    /* A row of head @head ends, with m and l of all its keys: -inf and 0, if it sees none. Return:
     * what o is multiplied with. */
    __device__ static float finish(const ActiveRun *, uint32_t, float *, float *)
    {
        return 1.0f;
    }
};

/* The same where rows of K have 192 dims and rows of V 128. Decode's loop is longer than either. */
struct Plain192 : Plain {
    template <int D> __device__ static constexpr uint32_t dim_qk(const attnd_plan_head &)
    {
        return 192;
    }
    template <int D> __device__ static constexpr uint32_t dim_vo(const attnd_plan_head &)
    {
        return values_dim<192>;
    }
    __device__ static constexpr bool in_qk(const attnd_plan_head &, uint32_t d)
    {
        return d < 192;
    }
    __device__ static constexpr bool in_vo(const attnd_plan_head &, uint32_t d)
    {
        return d < values_dim<192>;
    }
};

} // namespace attnd

#endif
