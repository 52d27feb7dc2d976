/*
 * worker.cuh - the loop of a tile worker: one CTA, one producer warpgroup and two consumer
 * warpgroups. Included by variant.cu, which is compiled once for each variant.
 *
 * A worker walks the published runs in order: its fetch warp takes item numbers of the run its
 * cursor is at until there are none left, then moves on (fetch.cuh). It never waits for an
 * item, only for a run to be published. Loaders bring what prefill computes on; decode loads for
 * itself. Barriers hand over work slots and stages; there is none that all threads of the CTA meet
 * at.
 */
#ifndef ATTND_PERSISTENT_CUDA_WORKER_WORKER_CUH
#define ATTND_PERSISTENT_CUDA_WORKER_WORKER_CUH

#include "persistent/cuda/items/append.cuh"
#include "persistent/cuda/items/merge.cuh"
#include "persistent/cuda/items/merge_state.cuh"
#include "persistent/cuda/loops/decode.cuh"
#include "persistent/cuda/loops/latent.cuh"
#include "persistent/cuda/loops/prefill_few.cuh"
#include "persistent/cuda/loops/prefill_warps.cuh"
#include "persistent/cuda/loops/staged.cuh"
#include "persistent/cuda/worker/fetch.cuh"
#include "persistent/cuda/worker/fused.cuh"

namespace attnd
{

/* Shared memory the inner loops take turns in. */
constexpr uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
template <int D, typename Policy>
constexpr uint32_t tile_bytes = larger(larger(prefill_shared_bytes<D, Policy>,
                                              decodes<D> ? decode_shared_bytes<decode_dim<D>> : 0),
                                       StagedShape<D>::bytes);
template <typename Policy>
constexpr uint32_t tile_bytes<latent_dim, Policy> =
    portable ? StagedShape<latent_dim>::bytes : LatentShape::shared_bytes;

/* What a consumer warp keeps from item to item of prefill. */
template <int D> struct Consumer {
    PrefillBarriers<D> *bars;
    uint32_t blocks, q_tiles; /* used so far */
};

/* Prefill items from @number on, one after the other; the scores of an item's first keys are
 * computed with the last products of the one before, if the item is there in time. Return: the last
 * one's number. All consumers. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ uint32_t attend_prefill(Consumer<D> *self, WorkSlot *slot,
                                                   uint32_t number)
{
    WorkSlots *work = cta_work();
    Prefill<T, D, Policy> prefill(self->bars, shared_address(cta_buffer()), self->blocks,
                                  self->q_tiles);
    for (;; number++) {
        const Item &item = slot->item;
        WorkSlot *next = prefill.compute(item, work, number);
        if (!item.tile.parts_alone)
            merge_arrive<T, values_dim<D>, Policy>(item);
        work_leave(work, number);
        if (!next)
            break;
        slot = next;
        if (consumer_thread() == 0)
            slot->begin_ns = clock_ns();
    }
    self->blocks = prefill.count;
    self->q_tiles = prefill.q_count;
    return number;
}

/* The same without wgmma: an item, by warps of their own. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void attend_warps(Consumer<D> *self, const Item &item)
{
    PrefillWarp<T, D, Policy> prefill = {self->bars, shared_address(cta_buffer()), self->blocks,
                                         self->q_tiles};
    prefill.compute(item);
    self->blocks = prefill.count;
    self->q_tiles = prefill.q_count;
    if (!item.tile.parts_alone)
        merge_arrive<T, values_dim<D>, Policy>(item);
}

/* An item of latents. All consumers. */
template <typename T, typename Policy>
__device__ __forceinline__ void attend_latents(Consumer<latent_dim> *self, const Item &item)
{
    Latent<T, Policy> latent(self->bars, shared_address(cta_buffer()), self->blocks, self->q_tiles);
    latent.compute(item);
    self->blocks = latent.count;
    self->q_tiles = latent.q_count;
    merge_arrive<T, latent_dim, Policy>(item);
}

/* What no inner loop may take. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void attend_naively(const Item &item)
{
    Policy::prepare(item);
    attend_naive<T, D, Policy>(item, consumer_thread() / 32, item.packed_rows,
                               consumer_threads / 32);
    merge_arrive<T, values_dim<D>, Policy>(item);
}

/* KV: the type of K and V. */
template <typename T, typename KV, int D, typename Policy>
__device__ __forceinline__ void attend_few_or_many(const Item &item)
{
    if (item.packed_rows <= staged_warps)
        attend_staged<T, KV, D, Policy, 1>(item);
    else
        attend_staged<T, KV, D, Policy, StagedShape<D>::warp_rows>(item);
}

/* The same, and appends, of a policy that has more to do there: in a call, so that the registers of
 * the inner loops are theirs. */
template <typename T, int D, typename Policy>
__device__ __noinline__ void consume_staged(const WorkSlot *slot)
{
    static_assert(StagedShape<D>::bytes <= tile_bytes<D, Policy>, "its part of shared memory");
    const Item &item = slot->item;
    if (slot->path == path_append) {
        append_item<T, Policy>(item, slot->index);
        return;
    }
    Policy::prepare(item);
    if constexpr (!Policy::narrow)
        attend_few_or_many<T, T, D, Policy>(item);
    else if (item.run->plan.kv_dtype == ATTND_FP8_E4M3)
        attend_few_or_many<T, E4m3, D, Policy>(item);
    else
        attend_few_or_many<T, E5m2, D, Policy>(item);
    merge_arrive<T, values_dim<D>, Policy>(item);
}

/* An item that keeps none of the inner loops' state. All consumers. */
template <typename T, int D, typename Policy>
__device__ __forceinline__ void consume_other(const WorkSlot *slot)
{
    const Path path = slot->path;
    if (path == path_merge) {
        merge_state_item<T>(slot->item, slot->index);
        return;
    }
    if constexpr (Policy::staged) {
        if (path == path_append || path == path_naive)
            consume_staged<T, D, Policy>(slot);
    } else {
        if (path == path_append)
            append_item<T, Policy>(slot->item, slot->index);
        else if (path == path_naive)
            attend_naively<T, D, Policy>(slot->item);
    }
}

/* Registers of a thread. Two consumer warpgroups and a producer share the CTA's 168 for each of its
 * threads. Loaders that convert fp8 hold the bytes of one step while they compute with another's.
 */
template <int D, typename Policy>
constexpr int producer_registers = Policy::narrow &&D != latent_dim ? 56 : 40;
template <int D, typename Policy>
constexpr int consumer_registers = (3 * 168 - producer_registers<D, Policy>) / 2;

template <typename T, typename Policy>
__device__ __forceinline__ void consume_latents(PrefillBarriers<latent_dim> *bars)
{
    registers_more<consumer_registers<latent_dim, Policy>>();
    WorkSlots *work = cta_work();
    Consumer<latent_dim> self = {bars, 0, 0};
    for (uint32_t number = 0;; number++) {
        WorkSlot *slot = work_wait(work, number);
        const Path path = slot->path;
        if (path == path_leave)
            break;
        if (consumer_thread() == 0)
            slot->begin_ns = clock_ns();
        if constexpr (Policy::narrow || portable)
            consume_other<T, latent_dim, Policy>(slot);
        else if (path == path_prefill)
            attend_latents<T, Policy>(&self, slot->item);
        else
            consume_other<T, latent_dim, Policy>(slot);
        work_leave(work, number);
    }
}

template <typename T, int D, typename Policy>
__device__ __forceinline__ void consume(PrefillBarriers<D> *bars)
{
    registers_more<consumer_registers<D, Policy>>();
    WorkSlots *work = cta_work();
    Consumer<D> self = {bars, 0, 0};
    Path before = path_skip;
    if (!portable && consumer_thread() >= 128)
        products_end(1);
    for (uint32_t number = 0;; number++) {
        WorkSlot *slot = work_wait(work, number);
        const Path path = slot->path, last = before;
        if (path == path_leave)
            break;
        before = path;
        if (decodes<D> && path == path_decode) { /* stamps it when its keys are on their way */
            if (last == path_prefill)
                consumers_sync(); /* the other warpgroup may still read Q, K and V */
            constexpr int groups = decode_rows<D> / 8;
            if (groups > 1 && slot->item.packed_rows > 8)
                decode_work<T, decode_dim<D>, Policy, groups>(number); /* has left it */
            else
                decode_work<T, decode_dim<D>, Policy, 1>(number);
            continue;
        }
        if (consumer_thread() == 0)
            slot->begin_ns = clock_ns();
        if constexpr (D <= 128 && !portable && !Policy::narrow) {
            if (path == path_prefill && uniform(takes_few<D>(slot->item))) {
                few_item<T, D, Policy>(slot->item, self.bars, &self.blocks, &self.q_tiles);
                merge_arrive<T, values_dim<D>, Policy>(slot->item);
                work_leave(work, number);
                continue;
            }
        }
        if constexpr (!portable) {
            if (path == path_prefill) {
                number = attend_prefill<T, D, Policy>(&self, slot, number); /* has left its slots */
                continue;
            }
        } else if (path == path_prefill) {
            attend_warps<T, D, Policy>(&self, slot->item);
            work_leave(work, number);
            continue;
        }
        if (consumer_thread() % 32 == 0)
            decode_ring()->ahead = 0;
        consume_other<T, D, Policy>(slot);
        work_leave(work, number);
    }
    if (!portable && consumer_thread() < 128)
        products_begin(0); /* nobody is left waiting or arrived */
}

__device__ __forceinline__ void load_latents(LatentBarriers *bars)
{
    WorkSlots *work = cta_work();
    LatentLoader loader = {shared_address(cta_buffer()), bars, threadIdx.x / 32 - 1, 0, 0};
    Path before = path_skip;
    for (uint32_t number = 0;; number++) {
        const WorkSlot *slot = work_wait(work, number);
        const Path path = slot->path;
        if (path == path_leave)
            break;
        if (!portable && path == path_prefill) {
            if (number && before != path_prefill) {
                work_wait_empty(work, number - 1); /* the buffer is the staged loop's until then */
                fence_proxy_async();
            }
            loader.load(slot->item);
        }
        before = path;
        work_leave(work, number);
    }
    cp_async_wait<0>(); /* an item may be in hand */
}

template <typename T, int D, typename Policy>
__device__ __forceinline__ void load(PrefillBarriers<D> *bars)
{
    WorkSlots *work = cta_work();
    Loader<T, D, Policy> loader = {shared_address(cta_buffer()), bars, work, threadIdx.x / 32 - 1};
    if constexpr (widens<Policy>)
        Widen<T, D, Policy>::begin();
    else if (!portable && !warmup_helps(work->launch)) /* many rows come first */
        loader.fence_launched(&work->settings.runs[work->launch.slot],
                              work->run_copy[launched_copy]);
    Path before = path_skip;
    for (uint32_t number = 0;; number++) {
        const WorkSlot *slot = work_wait(work, number);
        const Path path = slot->path;
        if (path == path_leave)
            break;
        loader.meet(slot->item.run);
        if (path == path_prefill) {
            if (number && before != path_prefill) {
                work_wait_empty(work, number - 1); /* the buffer is decode's until then */
                fence_proxy_async();               /* TMA may write next what ldmatrix read */
            }
            loader.load(slot->item, number);
        }
        before = path;
        work_leave(work, number);
    }
    cp_async_wait<0>(); /* an item may be in hand */
}

/* Does this worker come too late, because no item is left of what its gang was called for? Extra
 * ones have numbers of their own, and are told to leave when they have been seen. */
__device__ __forceinline__ bool comes_late(const Resident *resident, uint32_t gang)
{
    return !resident->reserved && int32_t(peek_gpu(&resident->over) - gang) >= 0;
}

/* What a kernel that an engine's stream launched need not read of device memory. One thread. */
__device__ __forceinline__ void engine_settings(WorkSlots *work, const EngineLaunch &launch)
{
    work->settings.runs = launch.session->active;
    work->settings.workers = gridDim.x;
    work->settings.paths = paths_all;
    work->settings.reserved = 0;
    work->launch = launch;
    work->over = 0;
}

/* A gang is over when all its kernels are, and the next one waits for the last. */
__device__ __forceinline__ void gang_ends(uint32_t block)
{
    if (block == 0)
        grid_wait();
}

template <typename T, int D, typename Policy>
__global__ void __launch_bounds__(resident_threads, 1)
    resident_kernel(Resident *resident, uint32_t variant, uint32_t first_worker, uint32_t gang,
                    EngineLaunch launch, attnd_engine_fused fused)
{
    grid_release(); /* those of another variant */
    __shared__ PrefillBarriers<D> bars;
    WorkSlots *work = cta_work();
    const uint32_t warp = threadIdx.x / 32;
    if (launch.plan) {
        if (warp == 0)
            engine_ask<D>(launch, first_worker + blockIdx.x);
        if (threadIdx.x == 0)
            engine_settings(work, launch);
    } else if (threadIdx.x < sizeof(Settings) / 4) {
        reinterpret_cast<uint32_t *>(&work->settings)[threadIdx.x] =
            reinterpret_cast<const uint32_t *>(resident)[threadIdx.x];
    } else if (threadIdx.x == producer_threads - 1) {
        work->over = comes_late(resident, gang);
        work->launch = launch;
    }
    if (threadIdx.x == 0) {
        const uint32_t givers = fuses<D> && fused.k ? 1 + loader_warps : 1;
        work_init(work, first_item<D>, givers);
        if (first_item<D> != 0)
            barrier_arrive(&work->full[warmup % work_slots], givers);
        if constexpr (asks_early<D, Policy>)
            early_init();
        fence_barrier_init();
    } else if (warp == 1) {
        if constexpr (first_item<D> != 0)
            if (!warmup_helps(launch))
                warmup_skip(work);
            else
                warmup_fill<decode_dim<D>, values_dim<D>>(
                    work, resident->nothing[first_worker + blockIdx.x],
                    resident->spoilt[blockIdx.x % warmup_places]);
    } else if (threadIdx.x == 64) {
        prefill_barriers_init(&bars);
        *cta_stuck() = !launch.plan && resident->inject == 1;
        *cta_naive() = 0;
        Policy::start();
        fence_barrier_init();
    } else if (threadIdx.x >= producer_threads && threadIdx.x % 32 == 0) {
        const bool asked = asks_early<D, Policy> && launch.plan && !engine_asks_late(fused);
        *decode_ring() =
            warmup_helps(launch)
                ? warmup_ring<decode_dim<D>, Policy>(warp - producer_threads / 32, asked)
                : DecodeRing{};
    }
    cta_ready(warp == 0 && launch.plan);
    if (asks_early<D, Policy> && warp == 0)
        barrier_arrive_copies(&early_keys()->asked);
    if (work->over) { /* it comes too late */
        gang_ends(blockIdx.x);
        return;
    }
    if (threadIdx.x >= producer_threads) {
        if constexpr (D == latent_dim)
            consume_latents<T, Policy>(&bars);
        else
            consume<T, D, Policy>(&bars);
    } else {
        registers_fewer<producer_registers<D, Policy>>();
        const uint32_t worker = first_worker + blockIdx.x;
        const bool warms_up = first_item<D> != 0 && warp == 1 && !launch.plan;
        if (warp == 0 && !launch.plan && resident->inject == 2 && worker == 0)
            barrier_wait(&work->empty[1], 0); /* no warp has been given this work */
        if constexpr (asks_early<D, Policy>)
            if (launch.plan && !engine_asks_late(fused) && warp != 0)
                engine_ask_early<D, Policy>(variant, worker, warp - 1);
        if (warp == 0 || warms_up) {
            FetchWarp fetch = {resident, work, worker, variant,       gang,
                               0,        0,    0,      first_item<D>, &fused};
            if (!warms_up && !launch.plan)
                fetch.cursor = worker_enter(resident, worker);
            if (warp == 0 && work->settings.reserved == worker && threadIdx.x == 0 && worker)
                publish_gpu(&resident->extras_there, gang);
            fetch_work<D, Policy>(&fetch, warms_up);
        }
        if (warp == 0) {
            if (!launch.plan) {
                worker_leave(resident, worker);
                gang_ends(blockIdx.x);
            }
        } else if constexpr (D == latent_dim) {
            load_latents(&bars);
        } else {
            if (fuses<D> && fused.k)
                fused_load<T, D, Policy>(fused, worker);
            else
                load<T, D, Policy>(&bars);
        }
    }
}

template <typename T, int D, typename Policy> Variant variant_of()
{
    return {reinterpret_cast<const void *>(&resident_kernel<T, D, Policy>), &stuck,
            tile_bytes<D, Policy>};
}

} // namespace attnd

#endif
