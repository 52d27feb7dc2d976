/*
 * prefill_join.cuh - parts of a prefill block, added up in pairs.
 *
 * The parts of a block are the leaves of a tree. The worker that has computed one holds its rows in
 * registers. It goes up as long as the other half of its pair is there: it reads that and adds both
 * up. Where the other half is not there yet, it stores what it has and goes on to other work; the
 * other half will be read and added by whoever comes later. So nobody waits, no worker reads all
 * parts, and the last one to come reads one half a step. The left half is the first in a sum, so
 * the order of arrival changes no bit.
 *
 * The merge's arrival counter has a bit for each node of the tree but the root, leaves first. The
 * rows of a node are stored where those of its first leaf are.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_JOIN_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_JOIN_CUH

#include "persistent/cuda/loops/naive.cuh"
#include "persistent/cuda/loops/prefill_rows.cuh"

namespace attnd
{

/* True in all threads of a warpgroup if @flag is in any. */
__device__ __forceinline__ bool group_any(bool flag, uint32_t group)
{
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\n"
                 "barrier.cta.red.or.pred q, %2, 128, p;\nselp.u32 %0, 1, 0, q;\n}\n"
                 : "=r"(any)
                 : "r"(uint32_t(flag)), "r"(4 + group)
                 : "memory");
    return any;
}

/* Adds the partial at row @partial to @state. @left: it comes first. */
template <int D, typename Policy>
__device__ __forceinline__ void rows_add(const Item &item, RowState<D> &state, bool (&sees)[2],
                                         uint32_t partial, uint32_t first_row, bool left)
{
    using Shape = PrefillShape<D>;
    const ActiveRun *run = item.run;
    const attnd_plan_head &plan = run->plan;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t r = first_row + half * 8;
        if (r >= item.packed_rows)
            continue;
        const auto [token, head] = packed_row(item, r);
        const uint64_t at = uint64_t(partial + token) * plan.heads_q + head;
        const float *values =
            run->outputs + at * Policy::template dim_vo<D>(plan) + threadIdx.x % 4 * 2;
        const float2 other = __ldcg(reinterpret_cast<const float2 *>(run->states) + at);
        const float top = fmaxf(state.m[half], other.x), base = top == -INFINITY ? 0.0f : top;
        const float mine = exp2_fast(state.m[half] - base), its = exp2_fast(other.x - base);
        state.m[half] = top;
        state.l[half] = left ? fmaf(mine, state.l[half], its * other.y)
                             : fmaf(its, other.y, mine * state.l[half]);
        sees[half] |= other.y != 0.0f;
#pragma unroll
        for (int part = 0; part < Shape::out_parts; part++) {
            float2 value[Shape::out_columns / 8] = {};
#pragma unroll
            for (int j = 0; j < Shape::out_columns / 8; j++)
                if (Policy::in_vo(plan, part * Shape::out_columns + j * 8))
                    value[j] = __ldcg(reinterpret_cast<const float2 *>(
                        values + part * Shape::out_columns + j * 8));
#pragma unroll
            for (int j = 0; j < Shape::out_columns / 8; j++) {
                float &a = state.o[part][j * 4 + half * 2],
                      &b = state.o[part][j * 4 + half * 2 + 1];
                a = left ? fmaf(mine, a, its * value[j].x) : fmaf(its, value[j].x, mine * a);
                b = left ? fmaf(mine, b, its * value[j].y) : fmaf(its, value[j].y, mine * b);
            }
        }
    }
}

/* Whether @bit of the tree is there; then all that was stored before is, for all consumers. */
__device__ __forceinline__ bool node_there(const uint32_t *nodes, uint32_t bit)
{
    return uniform(consumers_any(consumer_thread() == 0 && (observe_gpu(nodes) >> bit & 1)));
}

/* All consumers have stored what they have of node @bit: it is there. Return: whether the other
 * half was before. */
__device__ __forceinline__ bool node_arrive(uint32_t *nodes, uint32_t bit, uint32_t other)
{
    consumers_sync();
    const bool first = consumer_thread() == 0;
    return uniform(consumers_any(first && (arrive_gpu(nodes, 1u << bit) >> other & 1)));
}

/* All consumers, with the rows of a part of a block whose parts are alone. Return: true if @state
 * now has the sum of all of them; else it was stored. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ bool rows_join(const Item &item, RowState<D> &state, bool (&sees)[2],
                                          uint32_t first_row)
{
    const uint32_t parts = uniform(item.tile.first_merge.part_count);
    const uint32_t mine = item.parts[threadIdx.x % 32] == item.tile.partial;
    uint32_t node = __ffs(__ballot_sync(0xffffffffu, mine && threadIdx.x % 32 < parts)) - 1;
    uint32_t first_bit = 0, leaves = 1;
#pragma unroll 1
    for (uint32_t width = parts; width > 1; width = (width + 1) / 2) {
        const uint32_t other = node ^ 1;
        if (other < width) {
            if (!node_there(item.arrivals, first_bit + other)) {
                store_partial<T, D, Policy>(item, state, sees, 1.0f, item.parts[node * leaves],
                                            first_row);
                if (!node_arrive(item.arrivals, first_bit + node, first_bit + other))
                    return false;
            }
            rows_add<D, Policy>(item, state, sees, item.parts[other * leaves], first_row,
                                other < node);
        }
        first_bit += width;
        leaves *= 2;
        node /= 2;
    }
    if (consumer_thread() == 0)
        *item.arrivals = 0; /* a prepared run finds it as it was */
    return true;
}

/* The rows of such a part, and what comes of them. @q: as for store_whole(). */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void store_joined(const Item &item, RowState<D> &state, bool (&sees)[2],
                                             uint32_t q, uint32_t first_row)
{
    const float scale = Policy::out_scale(item);
    scale_o<D>(state, {scale, scale});
    if (rows_join<T, D, Policy>(item, state, sees, first_row))
        store_whole<T, D, Policy>(item, state, sees, 1.0f, q, first_row);
}

/* False in all threads of a warpgroup if a result is not finite, or has too small a sum. */
template <int D>
__device__ __forceinline__ bool rows_right(const RowState<D> &state, const bool (&sees)[2],
                                           uint32_t group)
{
    using Shape = PrefillShape<D>;
    float probe = state.l[0] + state.l[1];
#pragma unroll
    for (int part = 0; part < Shape::out_parts; part++)
#pragma unroll
        for (int i = 0; i < Shape::out_columns / 2; i++)
            probe = fmaf(state.o[part][i], 0.0f, probe);
    const bool less = (sees[0] && state.l[0] < least_sum) || (sees[1] && state.l[1] < least_sum);
    return !group_any(less || !isfinite(probe), group);
}

/* The same of rows that another loop has stored as a partial. A call: its accumulators are its own.
 * @group: of the two warpgroups. */
template <typename T, int D, typename Policy>
__device__ __noinline__ void join_stored(const Item &item, uint32_t q, uint32_t first_row,
                                         uint32_t group)
{
    RowState<D> state = {};
    bool sees[2] = {};
    state.m[0] = state.m[1] = -INFINITY;
    (void)group_any(false, group); /* all of the group have stored theirs */
    rows_add<D, Policy>(item, state, sees, item.tile.partial, first_row, false);
    if (rows_join<T, D, Policy>(item, state, sees, first_row))
        store_whole<T, D, Policy>(item, state, sees, 1.0f, q, first_row);
}

/* The end of an item's rows. Rows that are not right go the naive way, because a product with a
 * zero probability cannot hide a NaN that the row does not see. @q: shared memory of the item's Q,
 * which nobody reads any more; @after: behind calls, which keep no accumulators; @joins: parts of a
 * block that are alone are added up here, and not by merge_arrive(). All consumers. */
template <typename T, int D, typename Policy, bool joins = true, typename After>
__device__ __forceinline__ void rows_end(const Item &item, RowState<D> &state, uint32_t q,
                                         uint32_t first_row, uint32_t group, After after)
{
    bool sees[2];
    rows_see<D, Policy>(item, state, first_row, sees);
    if (!rows_right<D>(state, sees, group)) {
        const uint32_t rows = group * 64, warp = consumer_thread() / 32 % 4;
        attend_naive<T, D, Policy>(item, rows + warp, min(rows + 64, item.packed_rows), 4);
        if (joins && item.tile.parts_alone)
            join_stored<T, D, Policy>(item, q, first_row, group);
        after();
    } else if (joins && uniform(item.tile.parts_alone)) {
        store_joined<T, D, Policy>(item, state, sees, q, first_row);
    } else {
        store_rows<T, D, Policy>(item, state, sees, q, first_row);
    }
}

} // namespace attnd

#endif
