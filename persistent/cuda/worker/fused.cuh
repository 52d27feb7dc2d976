/*
 * fused.cuh - what loader warps of a launch do where the engine asks for more than attention:
 * before an item of decode is given to the consumers, they rotate its rows of q and store the new
 * keys and values that it reads. The loops then find all of it where they would find it otherwise.
 *
 * The fetch warp says that it has filled a slot by a named barrier, and the slot is full when the
 * loader warps say so, too. Of the first item they know enough before its slot is filled.
 */
#ifndef ATTND_PERSISTENT_CUDA_WORKER_FUSED_CUH
#define ATTND_PERSISTENT_CUDA_WORKER_FUSED_CUH

#include "persistent/cuda/items/fused.cuh"
#include "persistent/cuda/worker/engine_fetch.cuh"

namespace attnd
{

constexpr uint32_t fused_threads = loader_warps * 32;
static_assert(work_slots * ATTND_FUSED_ITEM_BYTES == ATTND_FUSED_WORKER_BYTES, "a slot each");

/* Room for rotated rows of q: of each worker and slot. */
template <int D>
__device__ __forceinline__ char *fused_turned_rows(const attnd_engine_fused &args, uint32_t worker,
                                                   uint32_t number)
{
    return reinterpret_cast<char *>(args.turned) + worker * uint64_t(ATTND_FUSED_WORKER_BYTES) +
           number % work_slots * ATTND_FUSED_ITEM_BYTES;
}

/* The run: a launch has one. */
__device__ __forceinline__ const ActiveRun *fused_run()
{
    return reinterpret_cast<const ActiveRun *>(cta_work()->run_copy[launched_copy]);
}

/* Rows of q of an item, and the new keys among those that it reads. */
__device__ __forceinline__ FusedRows fused_rows_of(const attnd_engine_fused &args,
                                                   const ActiveRun *run, const attnd_tile &tile,
                                                   int32_t kv_len, uint32_t kv_head)
{
    __builtin_assume(__isShared(run) && __isShared(&tile));
    FusedRows rows;
    rows.entry = tile.of_entry;
    rows.begins = fused_begins(run, rows.entry, kv_len);
    const int32_t end = rows.begins + int32_t(rows.entry.row_count);
    const int32_t first = max(max(rows.begins, int32_t(tile.kv_begin)), 0);
    const int32_t last = int32_t(min(tile.kv_end, uint32_t(max(end, 0))));
    rows.kv_head = kv_head;
    rows.q_begin = tile.row_begin;
    rows.q_count = args.cos_sin ? tile.row_count * run->plan.group : 0;
    rows.kv_begin = rows.entry.row_begin + uint32_t(first - rows.begins);
    rows.kv_count = uint32_t(max(last - first, 0));
    return rows;
}

/* Rows of q go to @turned, packed. All loader warps. Return: false where something is out of range.
 */
template <typename T, int D, typename Policy>
__device__ __forceinline__ bool fused_rows_move(const attnd_engine_fused &args,
                                                const ActiveRun *run, const RunTables *tables,
                                                const FusedRows &rows, char *turned)
{
    constexpr uint32_t each = D / fused_unit;
    const uint32_t units = (rows.q_count + 2 * rows.kv_count) * each;
    bool good = true;
#pragma unroll 1
    for (uint32_t unit = threadIdx.x - 32; unit < units; unit += fused_threads) {
        const uint32_t r = unit / each;
        good &= fused_move<T, Policy::narrow>(args, run, tables, fused_row(args, run, rows, r),
                                              unit % each, turned + r * (run->plan.dim_qk * 2));
    }
    return good;
}

/* Is the worker's first item known, and in what lies resolved of it? All loader warps, when the
 * fetch warp has brought it. */
template <int D> __device__ __forceinline__ bool fused_first_known(uint32_t worker)
{
    const WorkSlots *work = cta_work();
    const ActiveRun *run = fused_run();
    return worker < work->launched.items && !run->plan.compute_tiles &&
           work->slot[first_item<D> % work_slots].item.packed_rows <= decode_rows<D>;
}

/* The slot is filled, and what its item wants is there: consumers may have it. */
template <int D>
__device__ __forceinline__ void fused_give(const attnd_engine_fused &args, WorkSlot *slot,
                                           const char *turned, bool good)
{
    const uint32_t r = threadIdx.x - 32;
    if (slot->path == path_decode) {
        Item &item = slot->item;
        if (args.cos_sin && r < item.packed_rows)
            item.q[r] = turned + r * (fused_run()->plan.dim_qk * 2);
        if (!good)
            item.failed = ATTND_E_RANGE;
    } else if (slot->path != path_leave) { /* of a plan that was set since it was captured */
        slot->item.failed = ATTND_E_UNSUPPORTED;
        slot->path = path_skip;
    }
}

/* Item @number. All loader warps. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void fused_item(const attnd_engine_fused &args, uint32_t worker,
                                           uint32_t number)
{
    WorkSlots *work = cta_work();
    WorkSlot *slot = &work->slot[number % work_slots];
    bool early = false;
    if (number == first_item<D>) {
        fused_sync(number + 1);
        early = fused_first_known<D>(worker);
    }
    if (!early)
        fused_sync(number);
    char *turned = fused_turned_rows<D>(args, worker, number);
    bool good = true;
    if (early || slot->path == path_decode) {
        const ActiveRun *run = fused_run();
        const PlannedItem &item = slot->item;
        good = fused_rows_move<T, D, Policy>(
            args, run, &work->settings.runs[work->launched.slot].tables,
            fused_rows_of(args, run, item.tile, item.kv_len, item.kv_head), turned);
    }
    if (early)
        fused_sync(number);
    fused_give<D>(args, slot, turned, good);
    barrier_arrive_warp(&work->full[number % work_slots]);
}

/* In place of what loader warps do elsewhere: there are no items of many rows. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void fused_load(const attnd_engine_fused &args, uint32_t worker)
{
    WorkSlots *work = cta_work();
    for (uint32_t number = 0;; number++) {
        if (number >= first_item<D>) /* that in front of it is the warmup's */
            fused_item<T, D, Policy>(args, worker, number);
        if (work_wait(work, number)->path == path_leave)
            return;
        work_leave(work, number);
    }
}

} // namespace attnd

#endif
