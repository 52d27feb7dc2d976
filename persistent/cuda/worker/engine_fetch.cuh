/*
 * engine_fetch.cuh - where items come from in a kernel that an engine's stream launched: from one
 * run, until none is left of it.
 *
 * Items are claimed from the live line of the run's lane, as those of a service's run are. The last
 * worker to leave clears that line for the next run of the lane. The end of the kernel is the
 * answer, so nobody waits for a word.
 */
#ifndef ATTND_PERSISTENT_CUDA_WORKER_ENGINE_FETCH_CUH
#define ATTND_PERSISTENT_CUDA_WORKER_ENGINE_FETCH_CUH

#include "persistent/cuda/worker/fetch_state.cuh"

namespace attnd
{

/* The run of @launch into run_copy[copy], from its two halves. The whole warp. */
__device__ __forceinline__ void engine_copy_run(FetchWarp *fetch, uint4 of_plan, uint4 of_run,
                                                uint32_t odd)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint4 part = {run_lanes_of_plan(0) >> lane & 1 ? of_plan.x : of_run.x,
                        run_lanes_of_plan(1) >> lane & 1 ? of_plan.y : of_run.y,
                        run_lanes_of_plan(2) >> lane & 1 ? of_plan.z : of_run.z,
                        run_lanes_of_plan(3) >> lane & 1 ? of_plan.w : of_run.w};
    ActiveRun *copy = reinterpret_cast<ActiveRun *>(fetch->work->run_copy[fetch->copy]);
    reinterpret_cast<uint4 *>(copy)[lane] = part;
    __syncwarp();
    if (lane == 0 && odd)
        copy->aligned = 0;
    __syncwarp();
}

/* The first item of this worker, with all that it needs to know of the run: one trip. Whatever was
 * in front of the run in its stream is over then. The whole warp. Return: the item, or past the
 * last. */
__device__ __forceinline__ uint32_t engine_begin(FetchWarp *fetch)
{
    const uint32_t lane = threadIdx.x % 32;
    const EngineLaunch launch = fetch->work->launch;
    const ActiveRun *run = &fetch->work->settings.runs[launch.slot];
    const EnginePlan *plan = launch.plan;
    uint32_t item = 0;
    grid_wait();
    if (lane == 0)
        item = take_gpu(&fetch->resident->live[launch.lane].next_item);
    const uint4 of_plan = __ldcg(reinterpret_cast<const uint4 *>(plan->words) + lane);
    const uint4 of_run = __ldcg(reinterpret_cast<const uint4 *>(run) + lane);
    const uint4 decision = __ldcg(reinterpret_cast<const uint4 *>(&plan->decision));
    const uint4 prepared =
        __ldcg(reinterpret_cast<const uint4 *>(&launch.session->runs[launch.slot]));
    const uint32_t odd = __ldcg(&plan->odd);
    fetch->copy ^= 1; /* the other one is the rehearsal's */
    engine_copy_run(fetch, of_plan, of_run, odd);
    const bool there = (uint64_t(prepared.y) << 32 | prepared.x) == uint64_t(plan) &&
                       prepared.w == launch.serial &&
                       variant_executes(fetch->variant, decision.y & 0xffff);
    if (lane == 0)
        fetch->work->launched = {launch.lane + 1, launch.slot, there ? decision.x : 0,
                                 uint16_t(decision.y), uint16_t(decision.y >> 16)};
    fetch->copied = 1;
    __syncwarp();
    return __shfl_sync(0xffffffffu, item, 0);
}

/* As take_item(), of one run. Return: `nothing` when no item is left and all in hand are over. */
template <int D>
__device__ __forceinline__ uint32_t engine_take(FetchWarp *fetch, uint32_t number, RunEntry *entry)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t item = 0;
    if (!fetch->copied) {
        item = engine_begin(fetch);
        *entry = fetch->work->launched;
    } else {
        if (claims_late(fetch, number))
            fetch_ending<D>(fetch, number);
        *entry = fetch->work->launched;
        Live *live = &fetch->resident->live[entry->sequence - 1];
        if (!fetch_complete<D>(fetch, number, false)) {
            const uint32_t next = peek_gpu(&live->next_item);
            item = next; /* past the last: none is claimed */
            if (next < entry->items && next + fetch->work->settings.workers > entry->items &&
                !short_in_hand(fetch, number))
                fetch_ending<D>(fetch, number);
        }
        if (item < entry->items) {
            if (lane == 0)
                item = take_gpu(&live->next_item);
            item = __shfl_sync(0xffffffffu, item, 0);
        }
    }
    if (item >= entry->items) {
        fetch_complete<D>(fetch, number, true);
        return nothing;
    }
    if (copied_run(fetch)->plan.compute_tiles) {
        if (lane == 0)
            item = item_of_class(fetch->worker, fetch->copy,
                                 &fetch->resident->live[entry->sequence - 1]);
        item = __shfl_sync(0xffffffffu, item, 0);
    }
    return item;
}

/* This worker has done its part of the run. The last one to say so finds what became of it, and
 * leaves the lane as the next run wants it. One lane. */
inline __device__ __noinline__ void engine_leave(Resident *resident, uint32_t variant)
{
    const EngineLaunch launch = cta_work()->launch;
    EngineSession *session = launch.session;
    Live *live = &resident->live[launch.lane];
    if (arrive_gpu(&launch.plan->left) + 1 != gridDim.x)
        return;
    const uint32_t failed = peek_gpu(&live->code);
    const EngineRun run = session->runs[launch.slot];
    const EngineDecision decision = launch.plan->decision;
    const uint32_t code = failed                                                   ? failed
                          : run.plan != launch.plan || run.serial != launch.serial ? ATTND_E_UNKNOWN
                          : decision.code                                          ? decision.code
                          : !variant_executes(variant, decision.variant) ? ATTND_E_UNSUPPORTED
                          : *cta_stuck()                                 ? ATTND_E_TIMEOUT
                                                                         : 0;
    if (code)
        set_if_zero(&session->errors[launch.lane], code);
    const uint64_t done = peek8_gpu(&live->done);
    tally_gpu(reinterpret_cast<unsigned long long *>(&session->counts.runs), 1ull);
    tally_gpu(reinterpret_cast<unsigned long long *>(&session->counts.tiles), uint32_t(done));
    tally_gpu(reinterpret_cast<unsigned long long *>(&session->counts.busy_ns),
              (done >> 32) * busy_unit_ns);
    tally_gpu(reinterpret_cast<unsigned long long *>(&session->counts.kv_bytes),
              peek8_gpu(&live->kv_bytes));
    *live = {};
    launch.plan->left = 0;
}

} // namespace attnd

#endif
