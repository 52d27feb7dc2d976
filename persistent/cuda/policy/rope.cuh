/*
 * rope.cuh - rotary embeddings: angles of a position, and elements of q and k turned by them.
 *
 * An angle is a fraction of a turn, as an integer of 64 bits: position times turns a token, where
 * whole turns drop out by themselves. So a position of a million costs no digit of the angle, and
 * no double is needed once the turns a token are known. A CTA works those out when it meets
 * another plan, in double.
 */
#ifndef ATTND_PERSISTENT_CUDA_POLICY_ROPE_CUH
#define ATTND_PERSISTENT_CUDA_POLICY_ROPE_CUH

#include "persistent/cuda/items/item.cuh"
#include "persistent/cuda/machine/element.cuh"
#include "persistent/cuda/state/roles.cuh"
#include "persistent/position.h"

namespace attnd
{

constexpr uint32_t rope_pairs_max = ATTND_HEAD_DIM_MAX / 2;

/* Of the plan in hand. */
struct RopeTable {
    uint64_t version;               /* its set_version; 0: none */
    uint32_t pairs;                 /* element d is turned with element d + pairs */
    uint64_t turns[rope_pairs_max]; /* of a token, in units of 2^-64 */
};

/* This CTA's. */
__device__ __forceinline__ RopeTable *rope_table()
{
    __shared__ RopeTable table;
    return &table;
}

/* All consumers, before an item of a run that turns anything. */
inline __device__ __noinline__ void rope_prepare(const Item &item)
{
    constexpr double turn = 6.283185307179586, units = 18446744073709551616.0; /* 2^64 */
    RopeTable *const table = rope_table();
    const attnd_variant *const variant = item.maps->tables.variant;
    consumers_sync(); /* nobody reads the last plan's, and its version is there */
    if (table->version == item.run->plan.set_version)
        return;
    consumers_sync(); /* all have seen that */
    const uint32_t pairs = variant->rope_dim / 2;
#pragma unroll 1
    for (uint32_t p = consumer_thread(); p < pairs; p += consumer_threads) {
        const double turns = attnd_rope_frequency(variant, p) / turn;
        table->turns[p] = __double2ull_rz((turns - floor(turns)) * units);
    }
    if (consumer_thread() == 0) {
        table->version = item.run->plan.set_version;
        table->pairs = pairs;
    }
    consumers_sync();
}

struct RopeAngle {
    float cosine, sine;
};

/* Of a pair at @position, which may be negative. */
__device__ __forceinline__ RopeAngle rope_angle(uint64_t turns, int32_t position)
{
    const uint64_t part = turns * uint64_t(int64_t(position));
    RopeAngle angle;
    sincospif(float(int32_t(uint32_t(part >> 32))) * 0x1p-31f, &angle.sine, &angle.cosine);
    return angle;
}

/* A row of floats in shared memory, in its place. A warp, which agrees on what lies there. */
__device__ __forceinline__ void rope_turn_row(float *row, int32_t position, uint32_t lane)
{
    const RopeTable *const table = rope_table();
    const uint32_t pairs = table->pairs;
#pragma unroll 1
    for (uint32_t p = lane; p < pairs; p += 32) {
        const RopeAngle angle = rope_angle(table->turns[p], position);
        const float low = row[p], high = row[p + pairs];
        row[p] = low * angle.cosine - high * angle.sine;
        row[p + pairs] = low * angle.sine + high * angle.cosine;
    }
}

/* Element @d of a row in memory, @x, turned as it is at @position. */
template <typename T>
__device__ __forceinline__ float rope_turned(float x, const T *row, uint32_t d, int32_t position)
{
    const RopeTable *const table = rope_table();
    const uint32_t pairs = table->pairs;
    if (d >= 2 * pairs)
        return x;
    const bool low = d < pairs;
    const uint32_t pair = low ? d : d - pairs;
    const float other = to_float<T>(load_element(row + (low ? d + pairs : pair)));
    const RopeAngle angle = rope_angle(table->turns[pair], position);
    return low ? x * angle.cosine - other * angle.sine : x * angle.cosine + other * angle.sine;
}

} // namespace attnd

#endif
