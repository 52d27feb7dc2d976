/*
 * rotate.cuh - q and k rotated, k and v stored, for all rows of a plan at once: in front of runs
 * whose items are not all of decode, whose launches do so by themselves (worker/fused.cuh).
 */
#ifndef ATTND_PERSISTENT_CUDA_ENGINE_ROTATE_CUH
#define ATTND_PERSISTENT_CUDA_ENGINE_ROTATE_CUH

#include "persistent/cuda/items/fused.cuh"
#include "persistent/cuda/state/engine.cuh"

namespace attnd
{

/* The run, from its two halves: into shared memory, by all threads. */
__device__ __forceinline__ const ActiveRun *rotate_run(const EngineSession *session,
                                                       const EnginePlan *plan, uint32_t slot)
{
    __shared__ uint4 words[offsetof(ActiveRun, k_map) / 16];
    uint32_t *to = reinterpret_cast<uint32_t *>(words);
    const uint32_t *of_run = reinterpret_cast<const uint32_t *>(&session->active[slot]);
    for (uint32_t i = threadIdx.x; i < sizeof(words) / 4; i += blockDim.x)
        to[i] = i < run_plan_bytes / 4 ? plan->words[i] : of_run[i];
    __syncthreads();
    return reinterpret_cast<const ActiveRun *>(words);
}

/* Rows of a tile, of KV head @head: of q, and those of K and V that are as new. */
__device__ __forceinline__ FusedRows rotate_rows(const attnd_engine_fused &args,
                                                 const ActiveRun *run, const attnd_tile &tile,
                                                 int32_t kv_len, uint32_t head)
{
    FusedRows rows;
    rows.entry = tile.of_entry;
    rows.begins = fused_begins(run, rows.entry, kv_len);
    rows.kv_head = head;
    rows.q_begin = rows.kv_begin = tile.row_begin;
    rows.q_count = args.q ? tile.row_count * run->plan.group : 0;
    rows.kv_count = tile.row_count;
    /* Rows in front of the first key are none. */
    const int32_t key = rows.begins + int32_t(tile.row_begin - rows.entry.row_begin);
    const uint32_t absent = key < 0 ? min(uint32_t(-key), rows.kv_count) : 0;
    rows.kv_begin += absent;
    rows.kv_count -= absent;
    return rows;
}

/* Where rotated q of a row and head goes. */
__device__ __forceinline__ char *rotate_to(const attnd_engine_fused &args, const ActiveRun *run,
                                           const FusedRow &of)
{
    return reinterpret_cast<char *>(args.q) +
           (uint64_t(of.row) * run->plan.heads_q + of.head) * (run->plan.dim_qk * 2);
}

/* A tile and KV head a block, one after the other. Parts of the same rows do the same. All threads.
 */
template <typename T, bool narrow>
__device__ __forceinline__ bool rotate_tiles(const attnd_engine_fused &args, const ActiveRun *run,
                                             const RunTables *tables,
                                             const EngineDecision &decision)
{
    const uint32_t each = (run->plan.dim_qk + fused_unit - 1) / fused_unit;
    bool good = true;
    for (uint32_t item = blockIdx.x; item < decision.items; item += gridDim.x) {
        const attnd_tile tile = run->tiles[item / run->plan.heads_kv];
        const int32_t kv_len =
            run->kv_len[uint64_t(decision.generation) * run->plan.entries_max + tile.entry];
        const FusedRows rows = rotate_rows(args, run, tile, kv_len, item % run->plan.heads_kv);
        const uint32_t units = (rows.q_count + 2 * rows.kv_count) * each;
        for (uint32_t unit = threadIdx.x; unit < units; unit += blockDim.x) {
            const FusedRow of = fused_row(args, run, rows, unit / each);
            good &=
                fused_move<T, narrow>(args, run, tables, of, unit % each, rotate_to(args, run, of));
        }
    }
    return good;
}

/* Rows whose slots and positions are given: nobody need ask which requests they are of. A unit a
 * thread. */
template <typename T, bool narrow>
__device__ __forceinline__ bool rotate_given(const attnd_engine_fused &args, const ActiveRun *run,
                                             const RunTables *tables)
{
    const attnd_plan_head &plan = run->plan;
    const uint32_t each = (plan.dim_qk + fused_unit - 1) / fused_unit;
    const uint32_t unit = blockIdx.x * blockDim.x + threadIdx.x, head = unit / each;
    const uint32_t heads = plan.heads_q + 2 * plan.heads_kv;
    FusedRow of = {};
    of.row = head / heads;
    of.head = head % heads;
    of.of_q = of.head < plan.heads_q;
    if (!of.of_q) {
        of.head -= plan.heads_q;
        of.of_v = of.head >= plan.heads_kv;
        of.head -= of.of_v ? plan.heads_kv : 0;
    }
    if (of.row >= min(args.rows, plan.rows) || (of.of_q && !args.q))
        return true;
    of.from = fused_from(args, run, of);
    return fused_move<T, narrow>(args, run, tables, of, unit % each, rotate_to(args, run, of));
}

template <typename T, bool narrow>
__device__ __forceinline__ bool rotate_typed(const attnd_engine_fused &args, const ActiveRun *run,
                                             const RunTables *tables,
                                             const EngineDecision &decision)
{
    if (args.slots && (args.positions || !args.cos_sin))
        return rotate_given<T, narrow>(args, run, tables);
    return rotate_tiles<T, narrow>(args, run, tables, decision);
}

/* All threads. Return: as fused_move(). */
__device__ __forceinline__ bool rotate_all(const attnd_engine_fused &args, const ActiveRun *run,
                                           const RunTables *tables, const EngineDecision &decision)
{
    const bool narrow = is_fp8(run->plan.kv_dtype), halves = run->plan.dtype == ATTND_FP16;
    if (halves)
        return narrow ? rotate_typed<__half, true>(args, run, tables, decision)
                      : rotate_typed<__half, false>(args, run, tables, decision);
    return narrow ? rotate_typed<__nv_bfloat16, true>(args, run, tables, decision)
                  : rotate_typed<__nv_bfloat16, false>(args, run, tables, decision);
}

} // namespace attnd

#endif
