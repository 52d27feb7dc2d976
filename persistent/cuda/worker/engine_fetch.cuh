/*
 * engine_fetch.cuh - where items come from in a kernel that an engine's stream launched: from one
 * run, until none is left of it.
 *
 * Each worker begins with the item of its own number, and claims more from the live line of the
 * run's lane, as those of a service's run are claimed. The end of the kernel is the answer, so
 * nobody waits for a word.
 */
#ifndef ATTND_PERSISTENT_CUDA_WORKER_ENGINE_FETCH_CUH
#define ATTND_PERSISTENT_CUDA_WORKER_ENGINE_FETCH_CUH

#include "persistent/cuda/machine/copy.cuh"
#include "persistent/cuda/worker/early_keys.cuh"
#include "persistent/cuda/worker/fetch_state.cuh"

namespace attnd
{

/* What engine_ask() brings beside a run's words and an item, in vectors. */
struct EngineBrought {
    uint4 decision, facts; /* versions, odd, passes */
    uint4 prepared;
    int64_t q[first_queries];
};
static_assert(offsetof(EnginePlan, set_version) == offsetof(EnginePlan, decision) + 16 &&
                  offsetof(EnginePlan, place) == offsetof(EnginePlan, decision) + 32,
              "vectors");

/* Latents leave no room beside their tiles: there it lies where Q comes, which the loaders ask for
 * when there is an item. */
template <int D> __device__ __forceinline__ EngineBrought *engine_brought()
{
    if constexpr (D == latent_dim) {
        return reinterpret_cast<EngineBrought *>(cta_buffer());
    } else {
        __shared__ EngineBrought brought;
        return &brought;
    }
}

/* Of the two copies of runs the one of a launch: the other one is the warmup's. */
constexpr uint32_t launched_copy = 1;

/* A worker's first item is that of its own number, and lies resolved in the plan's block. It comes
 * with all that the worker needs to know of the run, in one trip, while the CTA makes itself ready:
 * words and item to where they are used. Whatever was in front of the run in its stream is over
 * then. The fetch warp. */
template <int D>
__device__ __forceinline__ void engine_ask(const EngineLaunch &launch, uint32_t worker)
{
    constexpr uint32_t of_item = sizeof(PlannedItem) / 16, of_q = sizeof(EngineFirst::q) / 16;
    static_assert(of_item + of_q <= 32 && offsetof(EngineFirst, q) == of_item * 16,
                  "a vector a lane");
    WorkSlots *work = cta_work();
    EngineBrought *to = engine_brought<D>();
    const uint32_t lane = threadIdx.x % 32;
    const uint4 *plan = reinterpret_cast<const uint4 *>(launch.plan->words);
    const uint4 *run = reinterpret_cast<const uint4 *>(&launch.session->active[launch.slot]);
    const uint4 *first = reinterpret_cast<const uint4 *>(&launch.plan->first[worker]);
    PlannedItem *item = &work->slot[first_item<D> % work_slots].item;
    grid_wait();
    cp_async16(shared_address(work->run_copy[launched_copy]) + lane * 16,
               (lane < run_plan_bytes / 16 ? plan : run) + lane, 16);
    if (lane < of_item + of_q)
        cp_async16((lane < of_item ? shared_address(item) : shared_address(to->q) - of_item * 16) +
                       lane * 16,
                   first + lane, 16);
    if (lane < 3)
        cp_async16(shared_address(&to->decision) + lane * 16,
                   lane < 2 ? reinterpret_cast<const uint4 *>(&launch.plan->decision) + lane
                            : reinterpret_cast<const uint4 *>(&launch.session->runs[launch.slot]),
                   16);
    if (lane == 0)
        work->begun = uint32_t(clock_ns());
}

/* 0, or the ATTND_E_* with which a launch that has come here executes nothing. */
template <int D>
__device__ __forceinline__ uint32_t engine_code(const EngineBrought &brought, uint32_t variant)
{
    const EngineLaunch &launch = cta_work()->launch;
    const uint4 prepared = brought.prepared, decision = brought.decision;
    if ((uint64_t(prepared.y) << 32 | prepared.x) != uint64_t(launch.plan) ||
        prepared.w != launch.serial)
        return ATTND_E_UNKNOWN;
    if (decision.z)
        return decision.z;
    return variant_executes<D>(variant, decision.y & 0xffff) ? 0 : ATTND_E_UNSUPPORTED;
}

/* A launch that stores keys which its own items read, or whose q lies where another kernel has
 * rotated it and not where the plan says, asks for nothing before its items are in slots. */
__device__ __forceinline__ bool engine_asks_late(const attnd_engine_fused &fused)
{
    return fused.k || fused.q;
}

/* Do loader warps ask for the keys of the worker's first item, one of decode? It can be said before
 * the item is in its slot. The whole warp: the fetch warp, and each of those that ask, find the
 * same. */
template <int D, typename Policy>
__device__ __forceinline__ bool engine_early(const EngineBrought &brought, uint32_t code,
                                             uint32_t worker)
{
    if constexpr (!asks_early<D, Policy>) {
        return false;
    } else {
        const WorkSlots *work = cta_work();
        const PlannedItem &item = work->slot[first_item<D> % work_slots].item;
        const ActiveRun *run = reinterpret_cast<const ActiveRun *>(work->run_copy[launched_copy]);
        const bool inside = uint32_t(item.pages[threadIdx.x % 32]) < run->pages;
        return __all_sync(0xffffffffu, inside) && !code && worker < brought.decision.x &&
               !run->plan.compute_tiles && run->aligned && !(brought.facts.w & 0xffff) &&
               item.packed_rows <= first_queries &&
               (run->page_size | uint32_t(item.kv_begin)) % decode_block == 0;
    }
}

/* Loader @loader of those that ask early. */
template <int D, typename Policy>
__device__ __forceinline__ void engine_ask_early(uint32_t variant, uint32_t worker, uint32_t loader)
{
    const WorkSlots *work = cta_work();
    const EngineBrought *brought = engine_brought<D>();
    while (!barrier_test(&early_keys()->asked, 0))
        ;
    if (engine_early<D, Policy>(*brought, engine_code<D>(*brought, variant), worker))
        early_ask<D, Policy>(work->slot[first_item<D> % work_slots].item,
                             reinterpret_cast<const ActiveRun *>(work->run_copy[launched_copy]),
                             brought->q, loader);
}

/* What engine_ask() has asked for is here: the run, and the item of the worker's number. The whole
 * warp. */
template <int D, typename Policy> __device__ __forceinline__ void engine_begin(FetchWarp *fetch)
{
    WorkSlots *work = fetch->work;
    const EngineBrought *brought = engine_brought<D>();
    cp_async_wait<0>();
    __syncwarp();
    const uint32_t code = engine_code<D>(*brought, fetch->variant), facts = brought->facts.w;
    const bool early =
        !engine_asks_late(*fetch->fused) && engine_early<D, Policy>(*brought, code, fetch->worker);
    const uint4 decision = brought->decision;
    fetch->copy = launched_copy;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        ActiveRun *run = reinterpret_cast<ActiveRun *>(work->run_copy[launched_copy]);
        run->passes = uint8_t(facts >> 16);
        if (facts & 0xffff)
            run->aligned = 0;
        if (fetch->fused->q) {
            const uint32_t heads = run->plan.heads_q, dim = run->plan.dim_qk;
            run->q = reinterpret_cast<const char *>(fetch->fused->q);
            run->plan.q_pitch = {int64_t(heads) * dim, int64_t(dim)};
        }
        work->early = early;
        work->launched = {work->launch.lane + 1, work->launch.slot, code ? 0 : decision.x,
                          uint16_t(decision.y), uint16_t(decision.y >> 16)};
    }
    if (threadIdx.x == 0 && fetch->worker == 0 && code) {
        set_if_zero(&work->launch.session->errors[work->launch.lane], code);
        tally_gpu(&work->launch.session->failed[work->launch.lane], 1u);
    }
    __syncwarp();
    if (fuses<D> && fetch->fused->k)
        fused_sync(first_item<D> + 1);
}

/* The next item by a ticket. The last of those that get none clears the counter for the next run:
 * there are as many as workers, because each asks until it gets none. The whole warp. */
__device__ __forceinline__ uint32_t engine_claim(FetchWarp *fetch, const RunEntry &entry,
                                                 uint32_t given)
{
    Live *live = &fetch->resident->live[entry.sequence - 1];
    uint32_t ticket = 0;
    if (threadIdx.x % 32 == 0) {
        ticket = take_gpu(&live->next_item);
        if (ticket + given == entry.items + gridDim.x - 1)
            store_relaxed_gpu(&live->next_item, 0);
    }
    return __shfl_sync(0xffffffffu, ticket, 0) + given;
}

/* Of a fused plan tickets are for classes, whose counters only the last worker may clear. One lane.
 */
inline __device__ __noinline__ void engine_leave_fused(Resident *resident)
{
    const EngineLaunch launch = cta_work()->launch;
    Live *live = &resident->live[launch.lane];
    if (arrive_gpu(&launch.plan->left) + 1 != gridDim.x)
        return;
    live->next_of[0] = live->next_of[1] = 0;
    launch.plan->left = 0;
}

/* For the session's account: nobody waits for it. One lane. */
__device__ __forceinline__ void engine_count(const FetchWarp *fetch)
{
    const WorkSlots *work = fetch->work;
    Live *live = &fetch->resident->live[work->launch.lane];
    if (fetch->worker == 0)
        tally_gpu(&live->done, 1ull);
    tally_gpu(&live->end_ns, static_cast<unsigned long long>(uint32_t(clock_ns()) - work->begun));
}

/* An item that was claimed and found before there is a slot for it. */
inline __device__ PlannedItem *item_ahead()
{
    __shared__ PlannedItem item;
    return &item;
}

constexpr uint32_t unclaimed = nothing - 1;

/* Whether so many items are left behind item @last, which was given out last, that workers which
 * are free find some, whoever has claimed one ahead. */
__device__ __forceinline__ bool engine_many_left(const WorkSlots *work, uint32_t last)
{
    return last != nothing && last + 3 * gridDim.x < work->launched.items;
}

/* The item of work @number, while a short one is in hand: to claim and to find an item takes four
 * trips, and rings hold no more keys than a short item or two have, so they would be empty
 * meanwhile. @copy: where the run was copied to. A call, as item_of_class(). The whole warp.
 * Return: its index, of one that is there in item_ahead() then; or `unclaimed`. */
inline __device__ __noinline__ uint32_t engine_claim_ahead(Resident *resident, uint32_t copy,
                                                           uint32_t number)
{
    FetchWarp fetch = {};
    fetch.resident = resident;
    fetch.work = cta_work();
    fetch.copy = copy;
    const RunEntry entry = fetch.work->launched;
    const ActiveRun *run = copied_run(&fetch);
    const uint32_t lane = threadIdx.x % 32;
    if (run->plan.compute_tiles || !short_in_hand(&fetch, number))
        return unclaimed;
    const uint32_t index = engine_claim(&fetch, entry, gridDim.x);
    if (index >= entry.items)
        return index;
    const ItemPlace place = item_place(run, index, fetch.work->settings.workers);
    PlannedItem *item = item_ahead();
    item_load(item, run, tile_word(run, place.tile, lane), entry.generation, lane, [&] {
        if (lane == 0) {
            item->kv_head = place.head;
            item_plan(item, item->tile, run, place.head);
        }
    });
    return index;
}

/* As take_item(), of one run, behind its first item. Return: `nothing` when none is left. */
template <int D> __device__ __forceinline__ uint32_t engine_take(FetchWarp *fetch, uint32_t number)
{
    const RunEntry entry = fetch->work->launched;
    uint32_t item = nothing;
    if (claims_late(fetch, number))
        fetch_ending<D>(fetch, number);
    const bool fused = copied_run(fetch)->plan.compute_tiles && entry.items;
    const uint32_t given = fused ? 0 : gridDim.x; /* items without a ticket */
    if (entry.items > given) {
        Live *live = &fetch->resident->live[entry.sequence - 1];
        if (!fetch_complete<D>(fetch, number, false) && !short_in_hand(fetch, number) &&
            peek_gpu(&live->next_item) + given + fetch->work->settings.workers > entry.items)
            fetch_ending<D>(fetch, number);
        item = engine_claim(fetch, entry, given);
        if (fused && item < entry.items) {
            if (threadIdx.x % 32 == 0)
                item = item_of_class(fetch->worker, fetch->copy, live);
            item = __shfl_sync(0xffffffffu, item, 0);
        }
    }
    return item;
}

/* The other warps know that they are to leave behind work @number: they need not be told when they
 * are done with it. The whole warp. */
template <int D> __device__ __forceinline__ void engine_end(FetchWarp *fetch, uint32_t number)
{
    fetch_complete<D>(fetch, number, true);
    if (threadIdx.x % 32)
        return;
    engine_count(fetch);
    if (copied_run(fetch)->plan.compute_tiles && fetch->work->launched.items)
        engine_leave_fused(fetch->resident);
}

} // namespace attnd

#endif
