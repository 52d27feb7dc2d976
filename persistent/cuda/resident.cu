/*
 * resident.cu - the loop of a tile worker: one CTA, one producer warpgroup and two consumer
 * warpgroups.
 *
 * A worker walks the published runs in order: its producer takes item numbers of the run its cursor
 * is at until there are none left, then moves on. It never waits for an item, only for a run to be
 * published. The next item is taken while the consumers still work on this one; one barrier a turn
 * hands it over. The cursor is published so that the dispatcher knows when a slot of the run table
 * may be reused.
 */
#include "persistent/cuda/resident.cuh"

#include "persistent/cuda/dispatch.cuh"
#include "persistent/cuda/tile_decode.cuh"
#include "persistent/cuda/tile_naive.cuh"
#include "persistent/cuda/tile_prefill.cuh"

namespace attnd
{

enum Path : uint32_t { path_leave, path_skip, path_append, path_naive, path_decode, path_prefill };

/* What the producer hands to the consumers, resolved once. */
struct Turn {
    Item item;
    ActiveRun *run;
    uint32_t index;
    Path path;
};

struct WorkerShared {
    Turn turns[2];
    PrefillBarriers bars;
    uint32_t last; /* this CTA arrived last at a merge; a result was not finite */
};

constexpr uint32_t nothing = 0xffffffffu;

/* Shared memory the inner loops take turns in. */
constexpr uint32_t tile_bytes = 196608;
static_assert(PrefillShape<64>::shared_bytes <= tile_bytes, "prefill 64");
static_assert(PrefillShape<128>::shared_bytes <= tile_bytes, "prefill 128");
static_assert(PrefillShape<256>::shared_bytes <= tile_bytes, "prefill 256");
static_assert(decode_shared_bytes <= tile_bytes, "decode");

/* One thread: the next item, or `nothing` when the kernel is to leave. */
__device__ __forceinline__ uint32_t take_item(Resident *resident, uint32_t worker, uint32_t *cursor)
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

/* cp.async moves 16 bytes: what does not keep that alignment takes the naive way. */
__device__ __forceinline__ bool rows_aligned(const ActiveRun *run)
{
    const attnd_heap_plane &k = run->k_plane, &v = run->v_plane;
    uint64_t strides = uint64_t(k.stride_page) | uint64_t(k.stride_token) |
                       uint64_t(k.stride_head) | uint64_t(v.stride_page) |
                       uint64_t(v.stride_token) | uint64_t(v.stride_head) |
                       uint64_t(run->plan.q_stride_row) | uint64_t(run->plan.q_stride_head);
    uint64_t bases = uint64_t(run->k_base) | uint64_t(run->v_base) | uint64_t(run->q);
    return strides % 8 == 0 && bases % 16 == 0;
}

/* One thread: takes an item and resolves it. */
__device__ __forceinline__ void take_turn(Resident *resident, uint32_t worker, uint32_t *cursor,
                                          Turn *turn)
{
    uint32_t index = take_item(resident, worker, cursor);
    ActiveRun *run = &resident->runs[*cursor % active_runs];
    turn->index = index;
    turn->run = run;
    if (index == nothing) {
        turn->path = path_leave;
    } else if (observe_gpu(&run->cancelled)) {
        turn->path = path_skip;
    } else if (run->run.kind == ATTND_RUN_APPEND) {
        turn->path = path_append;
    } else {
        item_load(&turn->item, run, index);
        bool few = turn->item.packed_rows <= 16;
        turn->path = !rows_aligned(run) || !(resident->paths >> (few ? 0 : 1) & 1) ? path_naive
                     : few                                                         ? path_decode
                                                                                   : path_prefill;
    }
}

template <typename T, int D>
__device__ __forceinline__ void attend_shape(const Turn *turn, WorkerShared *shared, char *buffer,
                                             uint32_t *count)
{
    const Item &item = turn->item;
    if (turn->path == path_prefill &&
        prefill_consume<T, D>(item, shared_address(buffer), &shared->bars, count, &shared->last))
        return;
    if (turn->path != path_decode)
        return attend_naive<T, D>(item);
    if (D <= 128 && item.packed_rows > 8)
        return attend_decode < T, D, D <= 128 ? 2 : 1 > (item, 0, buffer);
    attend_decode<T, D, 1>(item, 0, buffer);
    if (item.packed_rows > 8) /* registers: 16 rows of 256 do not fit at once */
        attend_decode<T, D, 1>(item, 8, buffer);
}

template <typename T>
__device__ __forceinline__ void execute(const Turn *turn, WorkerShared *shared, char *buffer,
                                        uint32_t *count)
{
    ActiveRun *run = turn->run;
    if (turn->path == path_append)
        return append_item<T>(run, turn->index);
    if (run->plan.dim_qk == 64)
        attend_shape<T, 64>(turn, shared, buffer, count);
    else if (run->plan.dim_qk == 128)
        attend_shape<T, 128>(turn, shared, buffer, count);
    else
        attend_shape<T, 256>(turn, shared, buffer, count);
    const Item &item = turn->item;
    if (item.tile.partial != ATTND_NONE)
        merge_arrive<T>(item, &shared->last);
    if (consumer_thread() == 0 && item.kv_end > item.kv_begin)
        atomicAdd(&run->kv_bytes,
                  2ull * sizeof(T) * run->plan.dim_qk * uint64_t(item.kv_end - item.kv_begin));
}

/* One consumer thread, after a barrier: the last item of a run hands it to the dispatcher. */
__device__ __forceinline__ void item_done(ActiveRun *run, uint64_t begin_ns)
{
    uint64_t end_ns = clock_ns();
    atomicAdd(&run->busy_ns, static_cast<unsigned long long>(end_ns - begin_ns));
    atomicMax(&run->end_ns, static_cast<unsigned long long>(end_ns));
    if (arrive_gpu(&run->done_items) + 1 == run->run.items)
        publish_gpu(&run->state, run_finished);
}

template <typename T>
__device__ __forceinline__ void produce(const Turn *turn, uint32_t buffer, PrefillBarriers *bars,
                                        uint32_t *count)
{
    uint32_t dim = turn->run->plan.dim_qk;
    if (dim == 64)
        prefill_produce<T, 64>(turn->item, buffer, bars, count);
    else if (dim == 128)
        prefill_produce<T, 128>(turn->item, buffer, bars, count);
    else
        prefill_produce<T, 256>(turn->item, buffer, bars, count);
}

__device__ __forceinline__ void producer(Resident *resident, uint32_t worker, WorkerShared *shared,
                                         char *buffer)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    uint32_t cursor = resident->cursor[worker], count = 0;
    for (uint32_t turn_count = 0;; turn_count++) {
        Turn *turn = &shared->turns[turn_count % 2];
        if (threadIdx.x == 0) {
            resident->doing[worker] = state_idle;
            take_turn(resident, worker, &cursor, turn);
            resident->doing[worker] = turn->path == path_leave ? state_left : state_item;
        }
        __syncthreads();
        if (turn->path == path_leave)
            return;
        if (turn->path == path_prefill) /* elements are two bytes, whatever they mean */
            produce<__half>(turn, shared_address(buffer), &shared->bars, &count);
    }
}

__device__ __forceinline__ void consumers(WorkerShared *shared, char *buffer)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    uint32_t count = 0;
    for (uint32_t turn_count = 0;; turn_count++) {
        Turn *turn = &shared->turns[turn_count % 2];
        __syncthreads();
        if (turn->path == path_leave)
            return;
        uint64_t begin_ns = clock_ns();
        if (turn->path != path_skip) {
            if (turn->run->plan.dtype == ATTND_BF16)
                execute<__nv_bfloat16>(turn, shared, buffer, &count);
            else
                execute<__half>(turn, shared, buffer, &count);
        }
        consumers_sync();
        if (consumer_thread() == 0)
            item_done(turn->run, begin_ns);
    }
}

__global__ void __launch_bounds__(resident_threads, 1) resident_kernel(Resident *resident)
{
    __shared__ WorkerShared shared;
    extern __shared__ __align__(1024) char buffer[];
    if (blockIdx.x == 0) {
        uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (warp == 0)
            dispatch_commands(resident, lane);
        else if (warp == 1)
            dispatch_retires(resident, lane);
        return;
    }
    if (threadIdx.x == 0)
        prefill_barriers_init(&shared.bars);
    __syncthreads();
    if (threadIdx.x < producer_threads)
        producer(resident, blockIdx.x - 1, &shared, buffer);
    else
        consumers(&shared, buffer);
}

uint32_t resident_shared_bytes()
{
    return tile_bytes;
}

} // namespace attnd
