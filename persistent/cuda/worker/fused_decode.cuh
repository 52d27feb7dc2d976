/*
 * fused_decode.cuh - rows of q, and the new key and value, of an item whose request has one row:
 * what fused_move() does for any rows, but angles and a place are found once for all of them. A
 * launch comes to these instructions when they are in no cache, and waits for each line of them. So
 * they are executed for nothing before, by each warp a part.
 */
#ifndef ATTND_PERSISTENT_CUDA_WORKER_FUSED_DECODE_CUH
#define ATTND_PERSISTENT_CUDA_WORKER_FUSED_DECODE_CUH

#include "persistent/cuda/items/fused.cuh"
#include "persistent/cuda/items/work_slot.cuh"

namespace attnd
{

constexpr uint32_t fused_threads = loader_warps * 32;

/* Is an item of that kind? Whole rows are rotated, or none. */
template <int D>
__device__ __forceinline__ bool fused_decodes(const attnd_engine_fused &args, const ActiveRun *run,
                                              const attnd_tile &tile)
{
    __builtin_assume(__isShared(run) && __isShared(&tile));
    return tile.of_entry.row_count == 1 && !args.interleaved && run->plan.dim_qk == D &&
           run->plan.dim_vo == D && (!args.cos_sin || args.rotary_dim == D);
}

/* From memory, unless that is not there yet. */
template <typename V> __device__ __forceinline__ V fused_read(const V *from, bool there)
{
    V value = {};
    if (there)
        value = __ldcg(from);
    return value;
}

/* What is asked for before its row is known to be needed: where the new key goes, and angles. */
struct FusedBefore {
    FusedAsked asked;
    float cosine[4], sine[4];
};

template <int D>
__device__ __forceinline__ FusedBefore fused_before(const attnd_engine_fused &args,
                                                    const ActiveRun *run, uint32_t page_begin,
                                                    uint32_t row, int32_t key, uint32_t u,
                                                    bool *good, bool there)
{
    FusedBefore before = {};
    if (there && key >= 0)
        before.asked = fused_ask(args, run, page_begin, row, key);
    int32_t position = key;
    if (args.positions)
        position = fused_read(reinterpret_cast<const int32_t *>(args.positions) + row, there);
    if (position >= int32_t(args.table_rows)) {
        position = 0;
        *good = !args.cos_sin;
    }
    const float4 *angles =
        reinterpret_cast<const float4 *>(args.cos_sin) + uint32_t(max(position, 0)) * (D / 4) + u;
    const float4 c = fused_read(angles, there && args.cos_sin);
    const float4 s = fused_read(angles + D / 8, there && args.cos_sin);
    before.cosine[0] = c.x, before.cosine[1] = c.y, before.cosine[2] = c.z, before.cosine[3] = c.w;
    before.sine[0] = s.x, before.sine[1] = s.y, before.sine[2] = s.z, before.sine[3] = s.w;
    return before;
}

/* All loader warps. @there: false: it is executed for nothing, so that its instructions come, a
 * part of it by each warp. Return: as fused_move(). */
template <typename T, int D, typename Policy>
__device__ __forceinline__ bool
fused_decode(const attnd_engine_fused &args, const ActiveRun *run, const RunTables *tables,
             const attnd_tile &tile, int32_t kv_len, uint32_t kv_head, char *turned, bool there)
{
    __builtin_assume(__isShared(run) && __isShared(&tile));
    constexpr uint32_t each = D / fused_unit, step = fused_threads / each;
    const uint32_t thread = threadIdx.x - 32, part = thread / 32, u = thread % each;
    const uint32_t row = tile.row_begin, of_q = args.cos_sin ? run->plan.group : 0;
    const int32_t key = fused_begins(run, tile.of_entry, kv_len);
    const bool reads = key >= int32_t(tile.kv_begin) && uint32_t(key) < tile.kv_end;
    const uint32_t rows = !there ? step : row < args.rows ? of_q + (reads ? 2 : 0) : 0;
    bool good = row < args.rows;
    FusedBefore before = {};
    if (there ? good : part == 0)
        before = fused_before<D>(args, run, tile.of_entry.page_begin, row, key, u, &good, there);
#pragma unroll 1
    for (uint32_t r = thread / each; r < rows; r += step) {
        FusedRow of = {r<of_q, r> of_q, row, kv_head, key, 0, 0};
        if (of.of_q)
            of.head = kv_head * run->plan.group + r;
        FusedUnit unit = {};
        if (there || part == 1) {
            const T *from = reinterpret_cast<const T *>(fused_from(args, run, of)) + u * 4;
            unit.a = fused_read(reinterpret_cast<const uint2 *>(from), there);
            unit.b = fused_read(reinterpret_cast<const uint2 *>(from + D / 2), there);
            if (args.cos_sin && !of.of_v)
                fused_turn<T>(&unit, before.cosine, before.sine);
        }
        char *to = turned + r * (D * 2);
        if (there && of.of_q) {
            fused_store<T, false>(run, to, u * 4, unit.a, 1.0f);
            fused_store<T, false>(run, to, u * 4 + D / 2, unit.b, 1.0f);
        } else if (there || part == 2) {
            const FusedPlace place = fused_place(args, run, before.asked, &good);
            to = fused_to<Policy::narrow>(run, of, place);
            const float by = Policy::narrow && there
                                 ? kv_reciprocal(*tables, run->plan, kv_head, of.of_v)
                                 : 1.0f;
            if (there && place.page != ATTND_NONE) {
                fused_store<T, Policy::narrow>(run, to, u * 4, unit.a, by);
                fused_store<T, Policy::narrow>(run, to, u * 4 + D / 2, unit.b, by);
            }
        }
    }
    return good;
}

} // namespace attnd

#endif
