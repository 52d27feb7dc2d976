/*
 * decode_store.cuh - the end of a decode item: every warp leaves its state in shared memory, and
 * all of them together store what these are merged to.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_DECODE_STORE_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_DECODE_STORE_CUH

#include "persistent/cuda/items/merge.cuh"
#include "persistent/cuda/loops/decode_ring.cuh"

namespace attnd
{

/* Behind the rings and tables: Q of every warp, and when that is read O^T and state of every warp,
 * for the merge; or these where the rings were. Rows of O^T are padded so that the columns of a
 * quad fall into different banks. */
template <int D> constexpr int decode_out_row = D + 4; /* floats */
constexpr uint32_t decode_queries_at = decode_ring_bytes + decode_tables_bytes;
constexpr bool decode_outs_in_rings = !rings_run_ahead;
constexpr uint32_t decode_outs_at = decode_outs_in_rings ? 0 : decode_queries_at;
template <int D>
constexpr uint32_t decode_outs_bytes = decode_warps *decode_rows<D> *(decode_out_row<D> + 2) * 4;
template <int D>
constexpr uint32_t decode_shared_bytes = decode_queries_at +
                                         (decode_outs_in_rings
                                              ? decode_warps * decode_rows<D> * D * 2
                                              : decode_outs_bytes<D>);
static_assert(!decode_outs_in_rings || decode_outs_bytes<128> <= decode_ring_bytes, "room");

/* Where packed row @r goes, a thread each. Read behind the consumers' next barrier. */
template <int D, typename Policy> __device__ __forceinline__ void row_find(Item *item, uint32_t r)
{
    if (r >= item->packed_rows)
        return;
    const ActiveRun *run = item->run;
    __builtin_assume(__isShared(item) && __isShared(run));
    const Divided at = divided(r, run->plan.group, run->group_reciprocal);
    const uint32_t row = item->tile.row_begin + at.quotient;
    const uint32_t head = item->kv_head * run->plan.group + at.rest, partial = item->tile.partial;
    const bool sees =
        visible_end(*item, row) > Policy::first_key(*item, row) && Policy::shows_any(*item, row);
    if (partial != ATTND_NONE) {
        const uint64_t place = uint64_t(partial + at.quotient) * run->plan.heads_q + head;
        const uint32_t dim = Policy::template dim_vo<D>(run->plan);
        item->out[r] = {reinterpret_cast<char *>(run->outputs + place * dim),
                        run->states + place * 2, sees};
    } else {
        item->out[r] = row_out(run, row, head, sees);
    }
}

/* The warps' states become one: o and lse, or a partial. A warp for 64 dims of a row, a lane for
 * two of them; each makes all weights for itself, which takes less than to hand them round. outs:
 * [warps][columns] rows of O^T, states: [warps][columns] of m and l. All consumers. A call, so that
 * the loop in front of it keeps its registers. */
template <typename T, int D, typename Policy, uint32_t columns>
__device__ __noinline__ void decode_store(const Item &item, const float *outs, const float2 *states)
{
    __builtin_assume(__isShared(&item) && __isShared(item.run));
    __builtin_assume(__isShared(outs) && __isShared(states));
    const uint32_t lane = threadIdx.x % 32;
    const bool partial = uniform(item.tile.partial != ATTND_NONE);
    const uint32_t per_row = out_units<D, Policy>(item.run->plan);
    const uint32_t units = uniform(item.packed_rows * per_row);
#pragma unroll 1
    for (uint32_t unit = uniform(consumer_thread() / 32); unit < units; unit += decode_warps) {
        const uint32_t column = unit / per_row, d = unit % per_row * 64 + lane * 2;
        float2 state[decode_warps], value[decode_warps], sum = {};
#pragma unroll
        for (uint32_t w = 0; w < decode_warps; w++) {
            state[w] = states[w * columns + column];
            value[w] = *reinterpret_cast<const float2 *>(
                outs + (w * columns + column) * decode_out_row<D> + d);
        }
        const RowOut out = item.out[column];
        float top = state[0].x, l = 0.0f;
#pragma unroll
        for (uint32_t w = 1; w < decode_warps; w++)
            top = fmaxf(top, state[w].x);
        const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
        for (uint32_t w = 0; w < decode_warps; w++) {
            const float weight = exp2_fast(state[w].x - base);
            l = fmaf(weight, state[w].y, l);
            sum.x = fmaf(weight, value[w].x, sum.x);
            sum.y = fmaf(weight, value[w].y, sum.y);
        }
        if (!Policy::in_vo(item.run->plan, d))
            continue;
        sum = make_float2(sum.x * Policy::out_scale(item), sum.y * Policy::out_scale(item));
        if (!partial) {
            const float fade = Policy::finish(item.run, packed_row(item, column).head, &top, &l);
            sum = make_float2(sum.x * fade, sum.y * fade);
            row_store<T>(item.run->plan, out, d, sum, top, sum_stored(l, out.sees, false));
            continue;
        }
        reinterpret_cast<float2 *>(out.values)[d / 2] = sum;
        if (d == 0)
            *reinterpret_cast<float2 *>(out.sum) = make_float2(top, sum_stored(l, out.sees, true));
    }
}

/* Whether loader warps ask for the keys that a launch begins with (worker/early_keys.cuh): while
 * consumers warm up, so that Q has a place beside what they leave. */
template <int D, typename Policy>
constexpr bool asks_early = first_item<D> != 0 && !Policy::windows && !Policy::narrow &&
                            !decode_outs_in_rings && decode_rows<D> != 8;

/* Where the warps of an item leave their states: [warps][columns] rows of O^T, then of m and l. */
struct DecodeStates {
    float *outs;
    float2 *states;
};

/* Do items of so many columns need more than half of the room? */
template <int D, uint32_t columns> constexpr bool decode_wide = columns == decode_rows<D>;

/* Of item @number. Those that need half of the room or less take turns in its halves. */
template <int D, uint32_t columns>
__device__ __forceinline__ DecodeStates decode_places(uint32_t number)
{
    constexpr int out_row = decode_out_row<D>;
    static_assert(columns <= decode_rows<D>, "registers and shared memory");
    float *outs = reinterpret_cast<float *>(cta_buffer() + decode_outs_at);
    float2 *states = reinterpret_cast<float2 *>(outs + decode_warps * decode_rows<D> * out_row);
    if (!decode_wide<D, columns>) {
        outs += number % 2 * (decode_warps * columns * out_row);
        states += number % 2 * (decode_warps * columns);
    }
    return {outs, states};
}

/* The same, when nobody reads the last item's any more. All consumers. */
template <int D, uint32_t columns>
__device__ __forceinline__ DecodeStates decode_states(DecodeRing *ring, uint32_t number)
{
    constexpr bool wide = decode_wide<D, columns>;
    if ((wide || ring->wide) && number != warmup)
        consumers_sync();
    ring->wide = wide;
    return decode_places<D, columns>(number);
}

} // namespace attnd

#endif
