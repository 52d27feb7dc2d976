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
        to[i] = run_word_of_plan(i) ? plan->words[i] : of_run[i];
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
    rows.turned = reinterpret_cast<char *>(args.q);
    rows.turned_heads = run->plan.heads_q;
    return rows;
}

/* A tile and KV head a block, one after the other. Parts of the same rows do the same. All threads.
 */
template <typename T, bool narrow>
__device__ __forceinline__ bool rotate_tiles(const attnd_engine_fused &args, const ActiveRun *run,
                                             const RunTables *tables, uint32_t items,
                                             uint32_t generation)
{
    const uint32_t units = (run->plan.dim_qk + fused_unit - 1) / fused_unit;
    bool good = true;
    for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
        const attnd_tile tile = run->tiles[item / run->plan.heads_kv];
        const int32_t kv_len =
            run->kv_len[uint64_t(generation) * run->plan.entries_max + tile.entry];
        const FusedRows rows = rotate_rows(args, run, tile, kv_len, item % run->plan.heads_kv);
        const uint32_t all = (rows.q_count + 2 * rows.kv_count) * units;
        for (uint32_t unit = threadIdx.x; unit < all; unit += blockDim.x)
            good &= fused_move<T, narrow>(args, run, tables, rows, unit / units, unit % units);
    }
    return good;
}

/* All threads. Return: as fused_move(). */
__device__ __forceinline__ bool rotate_all(const attnd_engine_fused &args, const ActiveRun *run,
                                           const RunTables *tables, uint32_t items,
                                           uint32_t generation)
{
    const bool narrow = is_fp8(run->plan.kv_dtype), halves = run->plan.dtype == ATTND_FP16;
    if (halves)
        return narrow ? rotate_tiles<__half, true>(args, run, tables, items, generation)
                      : rotate_tiles<__half, false>(args, run, tables, items, generation);
    return narrow ? rotate_tiles<__nv_bfloat16, true>(args, run, tables, items, generation)
                  : rotate_tiles<__nv_bfloat16, false>(args, run, tables, items, generation);
}

} // namespace attnd

#endif
