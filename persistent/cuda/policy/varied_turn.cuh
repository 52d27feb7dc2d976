/*
 * varied_turn.cuh - rows of q and of keys that Varied rotates: those that are read, and those that
 * are stored.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_VARIED_TURN_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_VARIED_TURN_CUH

#include "persistent/cuda/policy/rope.cuh"
#include "persistent/cuda/policy/varied_rows.cuh"

namespace attnd
{

struct VariedTurn {
    static constexpr uint32_t rotations = ATTND_OPTION_ROPE | ATTND_OPTION_ROPE_APPEND;

    __device__ static void start()
    {
        rope_table()->version = 0;
    }

    __device__ static void prepare(const Item &item)
    {
        if (VariedRows::has(item, rotations))
            rope_prepare(item);
    }

    /* A row of q, the @index-th of rows(), and that of key @key, as floats in shared memory. A
     * warp.
     */
    __device__ static void turn_query(const Item &item, float *row, uint32_t index, uint32_t lane)
    {
        if (VariedRows::has(item, rotations))
            rope_turn_row(row, varied_row()[index].position + int32_t(item.tile.before), lane);
    }
    __device__ static void turn_key(const Item &item, float *row, int32_t key, uint32_t lane)
    {
        if (VariedRows::has(item, ATTND_OPTION_ROPE))
            rope_turn_row(row, key, lane);
    }

    template <typename T>
    __device__ static float query(const Item &item, const VariedRows::Row &row, float x,
                                  const T *from, uint32_t d)
    {
        if (!VariedRows::has(item, rotations))
            return x;
        return rope_turned(x, from, d, row.position + int32_t(item.tile.before));
    }
    template <typename T>
    __device__ static float key(const Item &item, float x, const T *from, uint32_t d, int32_t key)
    {
        return VariedRows::has(item, ATTND_OPTION_ROPE) ? rope_turned(x, from, d, key) : x;
    }
    template <typename T>
    __device__ static T stored(const Item &item, const T *row, uint32_t d, int32_t position)
    {
        if (!VariedRows::has(item, ATTND_OPTION_ROPE_APPEND))
            return row[d];
        return from_float<T>(rope_turned(to_float<T>(row[d]), row, d, position));
    }
};

} // namespace attnd

#endif
