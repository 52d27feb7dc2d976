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
#include "persistent/cuda/worker/fetch_state.cuh"

namespace attnd
{

/* The run of @launch into run_copy[copy], from its two halves; @facts: odd, passes. The whole warp.
 */
__device__ __forceinline__ void engine_copy_run(FetchWarp *fetch, uint4 of_plan, uint4 of_run,
                                                uint32_t facts)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint4 part = {run_lanes_of_plan(0) >> lane & 1 ? of_plan.x : of_run.x,
                        run_lanes_of_plan(1) >> lane & 1 ? of_plan.y : of_run.y,
                        run_lanes_of_plan(2) >> lane & 1 ? of_plan.z : of_run.z,
                        run_lanes_of_plan(3) >> lane & 1 ? of_plan.w : of_run.w};
    ActiveRun *copy = reinterpret_cast<ActiveRun *>(fetch->work->run_copy[fetch->copy]);
    reinterpret_cast<uint4 *>(copy)[lane] = part;
    __syncwarp();
    if (lane == 0) {
        copy->passes = uint8_t(facts >> 16);
        if (facts & 0xffff)
            copy->aligned = 0;
        if (fetch->fused->q) {
            const uint32_t heads = copy->plan.heads_q, dim = copy->plan.dim_qk;
            copy->q = reinterpret_cast<const char *>(fetch->fused->q);
            copy->plan.q_pitch = {int64_t(heads) * dim, int64_t(dim)};
        }
    }
    __syncwarp();
}

/* All that engine_begin() reads, in vectors. */
struct EngineBrought {
    uint4 plan[32 + 2]; /* words; the decision; versions, odd, passes */
    uint4 run[32];
    uint4 prepared;
    uint4 first[sizeof(EngineFirst) / 16];
};
static_assert(offsetof(EnginePlan, decision) == 32 * 16 && offsetof(EnginePlan, place) == 34 * 16 &&
                  run_copy_bytes == 32 * 16,
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

/* A worker's first item is that of its own number, and lies resolved in the plan's block. It comes
 * with all that the worker needs to know of the run, in one trip, while the CTA makes itself ready.
 * Whatever was in front of the run in its stream is over then. The fetch warp. */
template <int D>
__device__ __forceinline__ void engine_ask(const EngineLaunch &launch, uint32_t worker)
{
    constexpr uint32_t of_first = sizeof(EngineFirst) / 16;
    static_assert(of_first <= 32, "a vector a lane");
    EngineBrought *to = engine_brought<D>();
    const uint32_t lane = threadIdx.x % 32;
    const uint4 *plan = reinterpret_cast<const uint4 *>(launch.plan);
    grid_wait();
    cp_async16(shared_address(&to->plan[lane]), plan + lane, 16);
    cp_async16(shared_address(&to->run[lane]),
               reinterpret_cast<const uint4 *>(&launch.session->active[launch.slot]) + lane, 16);
    if (lane < of_first)
        cp_async16(shared_address(&to->first[lane]),
                   reinterpret_cast<const uint4 *>(&launch.plan->first[worker]) + lane, 16);
    else if (lane < of_first + 2)
        cp_async16(shared_address(&to->plan[32 + lane - of_first]), plan + 32 + lane - of_first,
                   16);
    else if (lane == of_first + 2)
        cp_async16(shared_address(&to->prepared), &launch.session->runs[launch.slot], 16);
    if (lane == 0)
        cta_work()->begun = uint32_t(clock_ns());
}

/* What engine_ask() has asked for is here. The whole warp. @tile, @words: of the item, as
 * work_fill() wants them. Return: the item. */
template <int D>
__device__ __forceinline__ uint32_t engine_begin(FetchWarp *fetch, uint32_t *tile, ItemWords *words)
{
    const uint32_t lane = threadIdx.x % 32;
    const EngineLaunch launch = fetch->work->launch;
    const EngineBrought *brought = engine_brought<D>();
    const EngineFirst *first = reinterpret_cast<const EngineFirst *>(brought->first);
    cp_async_wait<0>();
    __syncwarp();
    const uint4 decision = brought->plan[32], prepared = brought->prepared;
    const uint32_t facts = brought->plan[33].w;
    *tile =
        lane < sizeof(attnd_tile) / 4 ? reinterpret_cast<const uint32_t *>(&first->tile)[lane] : 0;
    *words = {first->kv_len, first->pages[lane], first->parts[lane]};
    const uint32_t head = first->kv_head;
    fetch->copy ^= 1; /* the other one is the warm-up's */
    engine_copy_run(fetch, brought->plan[lane], brought->run[lane], facts);
    const bool there = (uint64_t(prepared.y) << 32 | prepared.x) == uint64_t(launch.plan) &&
                       prepared.w == launch.serial;
    const bool suits = variant_executes(fetch->variant, decision.y & 0xffff);
    const uint32_t code = !there       ? ATTND_E_UNKNOWN
                          : decision.z ? decision.z
                          : !suits     ? ATTND_E_UNSUPPORTED
                                       : 0;
    if (lane == 0) {
        fetch->work->launched = {launch.lane + 1, launch.slot, code ? 0 : decision.x,
                                 uint16_t(decision.y), uint16_t(decision.y >> 16)};
        fetch->work->first_head = head;
    }
    if (lane == 0 && fetch->worker == 0 && code) {
        set_if_zero(&launch.session->errors[launch.lane], code);
        tally_gpu(&launch.session->failed[launch.lane], 1u);
    }
    fetch->copied = 1;
    __syncwarp();
    if (fuses<D> && fetch->fused->k)
        fused_sync(first_item<D> + 1);
    return fetch->worker;
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

/* As take_item(), of one run. @known: the item's tile and words are in @tile and @words.
 * Return: `nothing` when no item is left and all in hand are over. */
template <int D>
__device__ __forceinline__ uint32_t engine_take(FetchWarp *fetch, uint32_t number, RunEntry *entry,
                                                bool *known, uint32_t *tile, ItemWords *words)
{
    uint32_t item = nothing;
    *known = false;
    if (!fetch->copied) {
        item = engine_begin<D>(fetch, tile, words);
        *entry = fetch->work->launched;
        *known = !copied_run(fetch)->plan.compute_tiles;
    } else if (claims_late(fetch, number)) {
        fetch_ending<D>(fetch, number);
    }
    *entry = fetch->work->launched;
    const bool fused = copied_run(fetch)->plan.compute_tiles && entry->items;
    const uint32_t given = fused ? 0 : gridDim.x; /* items without a ticket */
    if (!*known && entry->items > given) {
        Live *live = &fetch->resident->live[entry->sequence - 1];
        if (!fetch_complete<D>(fetch, number, false) &&
            peek_gpu(&live->next_item) + given + fetch->work->settings.workers > entry->items &&
            !short_in_hand(fetch, number))
            fetch_ending<D>(fetch, number);
        item = engine_claim(fetch, *entry, given);
        if (fused && item < entry->items) {
            if (threadIdx.x % 32 == 0)
                item = item_of_class(fetch->worker, fetch->copy, live);
            item = __shfl_sync(0xffffffffu, item, 0);
        }
    }
    if (item < entry->items)
        return item;
    fetch_complete<D>(fetch, number, true);
    if (threadIdx.x % 32 == 0) {
        engine_count(fetch);
        if (fused)
            engine_leave_fused(fetch->resident);
    }
    return nothing;
}

} // namespace attnd

#endif
