/*
 * dispatch.cuh - the dispatcher's CTA: the only one that looks at host memory.
 *
 * Warp 0 takes commands: it copies what changed of the plan into device memory, resolves the run to
 * pointers, and publishes it. Warp 1 retires: it looks for finished runs in device memory and
 * writes the retire ring, of which the device is the only writer. Both are warps of one CTA, so
 * what they share (published, retired) stays in device memory that they alone write.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_CUH

#include "persistent/cuda/device.cuh"

namespace attnd
{

constexpr uint64_t heartbeat_stale_ns = 2000000000ull;
/* ATTND_E_* of errors.h */
constexpr int32_t unknown_code = 4, cancelled_code = 15, unsupported_code = 10;

/* One warp copies host -> device, 16 bytes a lane, eight loads in flight. */
__device__ __forceinline__ void copy_in(char *to, const char *from, uint64_t bytes, uint32_t lane)
{
    uint4 *out = reinterpret_cast<uint4 *>(to);
    const uint4 *in = reinterpret_cast<const uint4 *>(from);
    uint64_t count = (bytes + 15) / 16;
    for (uint64_t base = 0; base < count; base += 256) {
        uint4 part[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint64_t index = base + i * 32 + lane;
            if (index < count)
                part[i] = load_host(in + index);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint64_t index = base + i * 32 + lane;
            if (index < count)
                out[index] = part[i];
        }
    }
}

/* One thread copies a small struct from host memory, past the caches. */
template <typename Struct> __device__ __forceinline__ void fetch(Struct *to, const char *from)
{
    static_assert(sizeof(Struct) % 8 == 0, "whole words");
#pragma unroll
    for (uint32_t i = 0; i < sizeof(Struct) / 8; i++)
        reinterpret_cast<uint64_t *>(to)[i] =
            *reinterpret_cast<const volatile uint64_t *>(from + i * 8);
}

/* Brings the device copy of a plan up to date. The daemon writes arrays, then the versions, then
 * the command; the versions are read first here, so what they cover is complete. */
__device__ __forceinline__ void mirror_plan(Resident *resident, uint64_t plan_offset, uint32_t lane)
{
    const char *host = reinterpret_cast<const char *>(resident->queue) + plan_offset;
    char *copy = resident->mirror + plan_offset;
    const attnd_plan_head *old = reinterpret_cast<const attnd_plan_head *>(copy);
    const attnd_plan_head *now = reinterpret_cast<const attnd_plan_head *>(host);
    uint32_t set_version = observe_sys(&now->set_version);
    uint32_t advance_version = observe_sys(&now->advance_version);
    bool fresh = old->set_version != set_version;
    bool longer = fresh || old->advance_version != advance_version;
    __syncwarp();
    if (!longer)
        return;
    copy_in(copy, host, sizeof(attnd_plan_head), lane);
    __syncwarp();
    if (fresh) {
        copy_in(copy + old->entries_offset_bytes, host + old->entries_offset_bytes,
                uint64_t(old->entries) * sizeof(attnd_entry), lane);
        copy_in(copy + old->tiles_offset_bytes, host + old->tiles_offset_bytes,
                uint64_t(old->tiles) * sizeof(attnd_tile), lane);
        copy_in(copy + old->merges_offset_bytes, host + old->merges_offset_bytes,
                uint64_t(old->merges) * sizeof(attnd_merge), lane);
        copy_in(copy + old->merge_parts_offset_bytes, host + old->merge_parts_offset_bytes,
                uint64_t(old->parts) * sizeof(uint32_t), lane);
        __syncwarp();
    }
    const attnd_entry *entries =
        reinterpret_cast<const attnd_entry *>(copy + old->entries_offset_bytes);
    uint64_t pages = 0;
    if (old->entries)
        pages =
            uint64_t(entries[old->entries - 1].page_begin) + entries[old->entries - 1].page_count;
    copy_in(copy + old->kv_pages_offset_bytes, host + old->kv_pages_offset_bytes,
            pages * sizeof(int32_t), lane);
    copy_in(copy + old->kv_len_offset_bytes, host + old->kv_len_offset_bytes,
            uint64_t(ATTND_GENERATIONS) * old->entries_max * sizeof(int32_t), lane);
    __syncwarp();
    if (lane == 0) { /* not what the head copy carried: it may be newer than the arrays */
        attnd_plan_head *head = reinterpret_cast<attnd_plan_head *>(copy);
        head->set_version = set_version;
        head->advance_version = advance_version;
    }
    __syncwarp();
}

/* A place to a pointer; refuses what the table does not hold. */
__device__ __forceinline__ char *resolve(const Resident *resident, const attnd_place &place,
                                         bool *bad)
{
    if (place.memory == ATTND_NONE)
        return nullptr;
    if (place.memory >= ATTND_MEMORIES_MAX || !resident->memories[place.memory].base ||
        place.offset_bytes >= resident->memories[place.memory].size_bytes) {
        *bad = true;
        return nullptr;
    }
    return resident->memories[place.memory].base + place.offset_bytes;
}

/* cp.async and TMA move 16 bytes: what does not keep that alignment takes the naive way. */
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

/* A plane as a tensor map of 4 dimensions: dim, token in page, head, page. */
__device__ __forceinline__ void map_plane(TensorMap *map, const TensorMap *from, const char *base,
                                          const attnd_heap_plane &plane, uint32_t dim,
                                          uint32_t page_size, uint32_t heads, uint32_t pages)
{
    const uint4 *in = reinterpret_cast<const uint4 *>(from);
    uint4 *out = reinterpret_cast<uint4 *>(map);
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = in[i];
    asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map),
                 "l"(base)
                 : "memory");
    uint64_t strides[3] = {uint64_t(plane.stride_token) * 2, uint64_t(plane.stride_head) * 2,
                           uint64_t(plane.stride_page) * 2};
    asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 0, %1;\n"
                 "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %2;\n"
                 "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 2, %3;\n"
                 "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 3, %4;\n" ::"l"(map),
                 "r"(dim), "r"(page_size), "r"(heads), "r"(pages)
                 : "memory");
    asm volatile("tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 0, %1;\n"
                 "tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 1, %2;\n"
                 "tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 2, %3;\n" ::"l"(map),
                 "l"(strides[0]), "l"(strides[1]), "l"(strides[2])
                 : "memory");
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}

/* Tensor maps for the run's layer, if it has tiles of many rows and TMA can move its pages. */
__device__ __forceinline__ void map_run(const Resident *resident, ActiveRun *active)
{
    const attnd_plan_head &plan = active->plan;
    const attnd_heap_plane &k = active->k_plane, &v = active->v_plane;
    active->box_rows = 0;
    bool many = false;
    for (uint32_t i = 0; i < plan.entries && !many; i++)
        many = active->entries[i].row_count * plan.group > 8;
    int64_t least = min(min(min(k.stride_token, k.stride_head), k.stride_page),
                        min(min(v.stride_token, v.stride_head), v.stride_page));
    if (!many || !active->aligned || active->page_size % 8 || least <= 0 ||
        !(resident->paths & 4))
        return;
    uint32_t log = __ffs(active->page_size) - 1;
    log = log > 6 ? 6 : log;
    const TensorMap *from = &resident->templates[log - 3];
    map_plane(&active->k_map, from, active->k_base, k, plan.dim_qk, active->page_size,
              plan.heads_kv, active->pages);
    map_plane(&active->v_map, from, active->v_base, v, plan.dim_vo, active->page_size,
              plan.heads_kv, active->pages);
    active->box_rows = 1u << log;
}

/* Fills the active run; true if it can be executed. One thread. */
__device__ __forceinline__ bool resolve_run(Resident *resident, ActiveRun *active)
{
    const attnd_run &run = active->run;
    const char *queue = reinterpret_cast<const char *>(resident->queue);
    const char *copy = resident->mirror + run.plan_offset_bytes;
    bool bad = false;

    active->plan = *reinterpret_cast<const attnd_plan_head *>(copy);
    const attnd_plan_head &plan = active->plan;
    active->entries = reinterpret_cast<const attnd_entry *>(copy + plan.entries_offset_bytes);
    active->tiles = reinterpret_cast<const attnd_tile *>(copy + plan.tiles_offset_bytes);
    active->merges = reinterpret_cast<const attnd_merge *>(copy + plan.merges_offset_bytes);
    active->merge_parts = reinterpret_cast<const uint32_t *>(copy + plan.merge_parts_offset_bytes);
    active->kv_pages = reinterpret_cast<const int32_t *>(copy + plan.kv_pages_offset_bytes);
    active->kv_len = reinterpret_cast<const int32_t *>(copy + plan.kv_len_offset_bytes) +
                     uint64_t(run.generation) * plan.entries_max;

    /* A pool does not change while plans use it, but its place may have been another's before. */
    const char *pool_host = queue + plan.pool_offset_bytes;
    attnd_heap_pool pool;
    fetch(&pool, pool_host);
    const char *planes = pool_host + sizeof(pool);
    active->page_size = pool.page_size;
    active->pages = pool.pages;
    fetch(&active->k_plane, planes + run.layer * sizeof(attnd_heap_plane));
    fetch(&active->v_plane, planes + (pool.layers + run.layer) * sizeof(attnd_heap_plane));
    attnd_place k_place = {active->k_plane.memory, 0, active->k_plane.offset_bytes};
    attnd_place v_place = {active->v_plane.memory, 0, active->v_plane.offset_bytes};
    active->k_base = resolve(resident, k_place, &bad);
    active->v_base = resolve(resident, v_place, &bad);

    active->q = resolve(resident, run.q, &bad);
    active->o = resolve(resident, run.o, &bad);
    active->lse = reinterpret_cast<float *>(resolve(resident, run.lse, &bad));
    active->k_rows = resolve(resident, run.k, &bad);
    active->v_rows = resolve(resident, run.v, &bad);

    char *scratch = resident->scratch + run.scratch_offset_bytes;
    uint64_t states = (uint64_t(plan.merges) * plan.heads_kv * 4 + 63) / 64 * 64;
    uint64_t outputs = states + (uint64_t(plan.partial_rows) * plan.heads_q * 8 + 63) / 64 * 64;
    uint64_t end = outputs + uint64_t(plan.partial_rows) * plan.heads_q * plan.dim_vo * 4;
    bad |= run.scratch_offset_bytes + end > resident->scratch_bytes;
    active->arrivals = reinterpret_cast<uint32_t *>(scratch);
    active->states = reinterpret_cast<float *>(scratch + states);
    active->outputs = reinterpret_cast<float *>(scratch + outputs);
    active->aligned = rows_aligned(active);
    if (!bad)
        map_run(resident, active);
    return !bad;
}

/* Every worker has moved past the run that used this slot before. */
__device__ __forceinline__ bool slot_free(const Resident *resident, uint32_t index, uint32_t lane)
{
    if (index - observe_gpu(&resident->retired) >= active_runs)
        return false;
    bool free = true;
    for (uint32_t w = lane; w < resident->workers; w += 32)
        free &= index - observe_gpu(&resident->cursor[w]) < active_runs;
    return __all_sync(0xffffffffu, free);
}

/* Writes one retire record. Only warp 1 comes here. */
__device__ __forceinline__ void write_retire(Resident *resident, const ActiveRun *active)
{
    attnd_queue_head *queue = resident->queue;
    uint32_t tail = resident->retires_tail;
    /* The daemon never has more runs out than the ring has slots. */
    char *ring = reinterpret_cast<char *>(queue) + queue->retires_offset_bytes;
    attnd_retire *out = reinterpret_cast<attnd_retire *>(ring) + (tail & (queue->ring_entries - 1));
    attnd_retire retire = {};
    retire.run = active->slot;
    retire.code = active->code ? active->code : active->cancelled ? -cancelled_code : 0;
    retire.begin_ns = active->begin_ns + resident->host_clock_offset_ns;
    retire.end_ns = active->end_ns + resident->host_clock_offset_ns;
    retire.busy_ns = active->busy_ns;
    retire.kv_bytes = active->kv_bytes;
    retire.tiles = active->run.items;
    *out = retire;
    resident->retires_tail = tail + 1;
    publish_sys(&queue->retire_tail, tail + 1); /* R1: covers the slot, and o and lse before it */
}

/* Warp 0: commands. */
__device__ __forceinline__ void dispatch_commands(Resident *resident, uint32_t lane)
{
    attnd_queue_head *queue = resident->queue;
    char *base = reinterpret_cast<char *>(queue);
    const attnd_command *commands =
        reinterpret_cast<const attnd_command *>(base + queue->commands_offset_bytes);
    attnd_run *runs = reinterpret_cast<attnd_run *>(base + queue->runs_offset_bytes);
    uint32_t entries = queue->ring_entries, run_count = queue->runs;
    const volatile uint64_t *heart = &resident->host->heartbeat_ns;
    uint64_t beat = *heart, beat_seen = clock_ns();

    for (;;) {
        uint32_t head = resident->commands_head;
        /* One trip across the bus for both words: A1 on the tail, and park. */
        uint32_t word = observe_sys(lane == 1 ? &queue->park : &queue->command_tail);
        uint32_t tail = __shfl_sync(0xffffffffu, word, 0);
        uint64_t now_beat = *heart;
        uint64_t now = clock_ns();
        if (now_beat != beat) {
            beat = now_beat;
            beat_seen = now;
        }
        if (__shfl_sync(0xffffffffu, word, 1) || now - beat_seen > heartbeat_stale_ns) {
            if (lane == 0)
                publish_gpu(&resident->leave, 1);
            return;
        }
        if (tail == head) {
            if (!resident->drain)
                continue;
            if (lane == 0)
                publish_gpu(&resident->leave, 1);
            return;
        }
        uint32_t index = resident->published;
        if (!slot_free(resident, index, lane))
            continue;
        uint32_t slot = commands[head & (entries - 1)].run;
        ActiveRun *active = &resident->runs[index % active_runs];
        uint32_t variant = variants_count;
        if (slot < run_count) {
            const char *from = reinterpret_cast<const char *>(&runs[slot]);
            copy_in(reinterpret_cast<char *>(&active->run), from, sizeof(attnd_run), lane);
            __syncwarp();
            mirror_plan(resident, active->run.plan_offset_bytes, lane);
            const attnd_plan_head *plan = reinterpret_cast<const attnd_plan_head *>(
                resident->mirror + active->run.plan_offset_bytes);
            variant = variant_index(plan->dim_qk, plan->dtype);
            if (variant < variants_count && !(resident->resident >> variant & 1)) {
                /* The command stays where it is for the kernels that come instead of these. */
                if (lane == 0) {
                    publish_sys(&resident->host->wanted, variant + 1);
                    publish_gpu(&resident->leave, 1);
                }
                return;
            }
        }
        if (lane == 0) {
            active->slot = slot;
            active->variant = variant;
            resident->used |= variant < variants_count ? 1u << variant : 0;
            active->next_item = 0;
            active->done_items = 0;
            active->cancelled = 0;
            active->busy_ns = 0;
            active->kv_bytes = 0;
            active->begin_ns = clock_ns();
            active->end_ns = active->begin_ns;
            active->code = variant == variants_count       ? -unsupported_code
                           : resolve_run(resident, active) ? 0
                                                           : -unknown_code;
            if (active->code)
                active->run.items = 0;
        }
        __syncwarp();
        /* What another run left in this scratch is not a count. */
        if (!active->code && active->run.kind == ATTND_RUN_ATTEND)
            for (uint32_t i = lane; i < active->plan.merges * active->plan.heads_kv; i += 32)
                active->arrivals[i] = 0;
        __syncwarp();
        if (lane == 0) {
            active->state = active->run.items ? run_published : run_finished;
            resident->commands_head = head + 1;
            publish_sys(&queue->command_head, head + 1);
            publish_gpu(&resident->published, index + 1); /* R1: covers the active run */
        }
        __syncwarp();
    }
}

/* Warp 1: retires, cancels and the end. */
__device__ __forceinline__ void dispatch_retires(Resident *resident, uint32_t lane)
{
    attnd_run *runs = reinterpret_cast<attnd_run *>(reinterpret_cast<char *>(resident->queue) +
                                                    resident->queue->runs_offset_bytes);
    for (uint32_t pass = 0;; pass++) {
        uint32_t leave = observe_gpu(&resident->leave);
        uint32_t end = observe_gpu(&resident->published); /* A1 */
        uint32_t begin = resident->retired;
        for (uint32_t base = begin; base != end && base - begin < active_runs;) {
            uint32_t span = end - base < 32 ? end - base : 32;
            ActiveRun *active = &resident->runs[(base + lane) % active_runs];
            uint32_t state = lane < span ? observe_gpu(&active->state) : 0;
            /* Cancelling is rare: look across the bus once in a while only. */
            if (state == run_published && pass % 16 == 0 && observe_sys(&runs[active->slot].cancel))
                publish_gpu(&active->cancelled, 1);
            uint32_t finished = __ballot_sync(0xffffffffu, state == run_finished);
            while (finished) {
                uint32_t which = __ffs(finished) - 1;
                finished &= finished - 1;
                if (lane == which) {
                    write_retire(resident, active);
                    active->state = run_retired;
                }
                __syncwarp();
            }
            base += span;
        }
        if (lane == 0) {
            while (begin != end && resident->runs[begin % active_runs].state == run_retired)
                begin++;
            publish_gpu(&resident->retired, begin);
        }
        begin = __shfl_sync(0xffffffffu, begin, 0);
        if (leave && begin == observe_gpu(&resident->published))
            return;
    }
}

} // namespace attnd

#endif
