/*
 * early_keys.cuh - the keys that a launch begins with, asked for before its item is in a slot: by
 * loader warps, which have nothing else to do, into the rings of those that will compute on them.
 *
 * Where they lie follows from the plan's words and the run's, which come in one trip. A slot is
 * filled a microsecond later, and consumers find their way to its keys a microsecond behind that:
 * all of it is code that runs once and comes from far away.
 */
#ifndef ATTND_PERSISTENT_CUDA_WORKER_EARLY_KEYS_CUH
#define ATTND_PERSISTENT_CUDA_WORKER_EARLY_KEYS_CUH

#include "persistent/cuda/loops/decode_store.cuh"

namespace attnd
{

/* Loader warps that ask: all of them. What one has to ask for waits for its registers, 40 ns a
 * copy.
 */
constexpr uint32_t early_loaders = loader_warps;

__device__ __forceinline__ void early_init()
{
    EarlyKeys *keys = early_keys();
    barrier_init(&keys->asked, 32);
    for (uint64_t &landed : keys->landed)
        barrier_init(&landed, early_loaders * 32);
}

/* Of packed row @r of Q: bytes from the row's own place; all lanes ask for a chunk each. To where
 * DecodeQuery::take() reads them, for one warp. */
template <int D>
__device__ __forceinline__ void early_queries(uint32_t at, const ActiveRun *run, const int64_t *q,
                                              uint32_t rows, uint32_t lane)
{
    constexpr uint32_t chunks = D / 8, step = 32 / chunks;
    const uint32_t chunk = lane % chunks;
#pragma unroll
    for (uint32_t r = lane / chunks; r < first_queries; r += step)
        cp_async16(at + r * (D * 2) + ((chunk ^ r) << 4), run->q + q[r < rows ? r : 0] + chunk * 16,
                   r < rows ? 16 : 0);
}

/* One block: of its keys or of its values. @left: rows that are there. */
template <int D>
__device__ __forceinline__ void early_rows(uint32_t to, const char *from, int64_t stride,
                                           int32_t left, uint32_t lane)
{
    constexpr int row_bytes = D * 2, step = 512 / row_bytes;
    constexpr uint32_t chunks = row_bytes / 16, other = row_bytes >= 256 ? 8 : 1;
    const uint32_t row = lane / chunks, chunk = lane % chunks;
    to += row * row_bytes + ((chunk ^ swizzled<row_bytes>(row) ^ other) << 4);
    from += row * stride + chunk * 16;
    left -= int32_t(row);
#pragma unroll
    for (int r = 0; r < decode_block; r += step, from += step * stride)
        cp_async16_once((to ^ ((swizzled<row_bytes>(r) ^ other) << 4)) + r * row_bytes, from,
                        r < left ? 16 : 0);
}

/* Asks for what rings of @item begin with, if engine_early() says so. A warp: @loader of those that
 * ask. */
template <int D, typename Policy>
__device__ __forceinline__ void early_ask(const PlannedItem &item, const ActiveRun *run,
                                          const int64_t *q, uint32_t loader)
{
    __builtin_assume(__isShared(&item) && __isShared(run) && __isShared(q));
    constexpr int bytes = decode_block_bytes<D, Policy>, stages = decode_stages<D, Policy>;
    const uint32_t lane = threadIdx.x % 32, rings = shared_address(cta_buffer());
    const uint32_t queries = shared_address(decode_places<D, first_queries>(first_item<D>).outs);
    const attnd_heap_plane &k = run->k_plane, &v = run->v_plane;
    const int32_t keys = item.kv_end - item.kv_begin;
#pragma unroll 1
    for (uint32_t stage = 0; stage < stages; stage++) {
#pragma unroll 1
        for (uint32_t warp = loader; warp < decode_warps; warp += early_loaders) {
            const int32_t block = int32_t(stage * decode_warps + warp);
            const int32_t left = keys - block * decode_block;
            if (left <= 0)
                break;
            if (stage == 0)
                early_queries<D>(queries + warp * (first_queries * decode_out_row<D> * 4), run, q,
                                 item.packed_rows, lane);
            const Divided at = divided(uint32_t(item.kv_begin + block * decode_block),
                                       run->page_size, run->page_reciprocal);
            const int64_t page = item.pages[at.quotient - item.page_first];
            const uint32_t to = rings + (warp * stages + stage) * bytes;
            early_rows<D>(to,
                          run->k_base + (page * k.stride_page + at.rest * k.stride_token +
                                         item.kv_head * k.stride_head) *
                                            2,
                          k.stride_token * 2, left, lane);
            early_rows<D>(to + bytes / 2,
                          run->v_base + (page * v.stride_page + at.rest * v.stride_token +
                                         item.kv_head * v.stride_head) *
                                            2,
                          v.stride_token * 2, left, lane);
        }
        barrier_arrive_copies(&early_keys()->landed[stage]);
    }
}

} // namespace attnd

#endif
