/*
 * resident.cu - the loop of a tile worker.
 *
 * A worker walks the published runs in order: it takes item numbers of the run its cursor is at
 * until there are none left, then moves on. It never waits for an item, only for a run to be
 * published. The cursor is published so that the dispatcher knows when a slot of the run table may
 * be reused.
 */
#include "persistent/cuda/resident.cuh"

#include "persistent/cuda/dispatch.cuh"
#include "persistent/cuda/tile_naive.cuh"

namespace attnd
{

struct WorkerShared {
    uint32_t run, item; /* what thread 0 took */
    uint32_t last;      /* this CTA arrived last at a merge */
};

constexpr uint32_t nothing = 0xffffffffu;

/* Thread 0: the next item, or `nothing` when the kernel is to leave. */
__device__ uint32_t take_item(Resident *resident, uint32_t worker, uint32_t *cursor)
{
    for (;;) {
        while (*cursor != observe_gpu(&resident->published)) { /* A1 */
            ActiveRun *run = &resident->runs[*cursor % active_runs];
            uint32_t items = run->run.items;
            if (*reinterpret_cast<volatile uint32_t *>(&run->next_item) < items) {
                uint32_t item = take_gpu(&run->next_item);
                if (item < items)
                    return item;
            }
            (*cursor)++;
            publish_gpu(&resident->cursor[worker], *cursor);
        }
        if (observe_gpu(&resident->leave))
            return nothing;
        __nanosleep(100);
    }
}

template <typename T> __device__ void attend(const Item &item, uint32_t dim)
{
    switch (dim) {
    case 64:
        return attend_naive<T, 64>(item);
    case 128:
        return attend_naive<T, 128>(item);
    default:
        return attend_naive<T, 256>(item);
    }
}

template <typename T> __device__ void execute(ActiveRun *run, uint32_t index, WorkerShared *shared)
{
    if (run->run.kind == ATTND_RUN_APPEND) {
        append_item<T>(run, index);
        return;
    }
    Item item;
    item_load(&item, run, index);
    attend<T>(item, run->plan.dim_qk);
    if (item.tile.partial != ATTND_NONE)
        merge_arrive<T>(item, &shared->last);
    if (threadIdx.x == 0 && item.kv_end > item.kv_begin)
        atomicAdd(&run->kv_bytes,
                  2ull * sizeof(T) * run->plan.dim_qk * uint64_t(item.kv_end - item.kv_begin));
}

/* A cancelled item still arrives at its merges, so that the counters are zero for the next run. */
__device__ void skip_item(ActiveRun *run, uint32_t index)
{
    if (threadIdx.x != 0 || run->run.kind == ATTND_RUN_APPEND)
        return;
    const attnd_plan_head &plan = run->plan;
    const attnd_tile &tile = run->tiles[index / plan.heads_kv];
    for (uint32_t m = 0; tile.partial != ATTND_NONE && m < tile.merge_count; m++) {
        uint32_t merge = tile.merge_begin + m;
        uint32_t *arrivals = &run->arrivals[merge * plan.heads_kv + index % plan.heads_kv];
        if (arrive_gpu(arrivals) + 1 == run->merges[merge].part_count)
            *arrivals = 0;
    }
}

/* Thread 0, after a barrier: the last item of a run hands it to the dispatcher. */
__device__ void item_done(ActiveRun *run, uint64_t begin_ns)
{
    uint64_t end_ns = clock_ns();
    atomicAdd(&run->busy_ns, end_ns - begin_ns);
    atomicMax(&run->end_ns, static_cast<unsigned long long>(end_ns));
    if (arrive_gpu(&run->done_items) + 1 == run->run.items)
        publish_gpu(&run->state, run_finished);
}

__device__ void work(Resident *resident, uint32_t worker, WorkerShared *shared)
{
    uint32_t cursor = resident->cursor[worker];
    uint64_t begin_ns = 0;
    for (;;) {
        if (threadIdx.x == 0) {
            resident->doing[worker] = state_idle;
            shared->item = take_item(resident, worker, &cursor);
            shared->run = cursor % active_runs;
            resident->doing[worker] = shared->item == nothing ? state_left : state_item;
            begin_ns = clock_ns();
        }
        __syncthreads();
        uint32_t index = shared->item;
        ActiveRun *run = &resident->runs[shared->run];
        if (index == nothing)
            return;
        if (observe_gpu(&run->cancelled))
            skip_item(run, index);
        else if (run->plan.dtype == ATTND_BF16)
            execute<__nv_bfloat16>(run, index, shared);
        else
            execute<__half>(run, index, shared);
        __syncthreads();
        if (threadIdx.x == 0)
            item_done(run, begin_ns);
    }
}

__global__ void __launch_bounds__(resident_threads, 1) resident_kernel(Resident *resident)
{
    __shared__ WorkerShared shared;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (blockIdx.x > 0)
        work(resident, blockIdx.x - 1, &shared);
    else if (warp == 0)
        dispatch_commands(resident, lane);
    else if (warp == 1)
        dispatch_retires(resident, lane);
}

uint32_t resident_shared_bytes()
{
    return 0;
}

} // namespace attnd
