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

/* Private to the device, in the reserved words of a plan's copy: 1 if an entry has more packed rows
 * than the decode loop takes. */
__device__ __forceinline__ uint64_t *plan_many(char *copy)
{
    return &reinterpret_cast<attnd_plan_head *>(copy)->zero[0];
}

/* Likewise: layers of the plan's pool when a run of it was last resolved. */
__device__ __forceinline__ uint32_t *plan_layers(char *copy)
{
    return reinterpret_cast<uint32_t *>(&reinterpret_cast<attnd_plan_head *>(copy)->zero[1]);
}

/* Brings the device copy of a plan up to date, if it is not. The daemon writes arrays, then the
 * versions, then the command; the versions were read before anything else here, so what they cover
 * is complete. The whole warp. */
__device__ __forceinline__ void mirror_plan(Resident *resident, uint64_t plan_offset,
                                            uint32_t set_version, uint32_t advance_version,
                                            uint32_t lane)
{
    const char *host = reinterpret_cast<const char *>(resident->queue) + plan_offset;
    char *copy = resident->mirror + plan_offset;
    attnd_plan_head *head = reinterpret_cast<attnd_plan_head *>(copy);
    bool fresh = head->set_version != set_version;
    bool longer = fresh || head->advance_version != advance_version;
    uint32_t layers = *plan_layers(copy);
    __syncwarp();
    if (!longer)
        return;
    copy_in(copy, host, sizeof(attnd_plan_head), lane);
    __syncwarp();
    if (fresh) {
        copy_in(copy + head->entries_offset_bytes, host + head->entries_offset_bytes,
                uint64_t(head->entries) * sizeof(attnd_entry), lane);
        copy_in(copy + head->tiles_offset_bytes, host + head->tiles_offset_bytes,
                uint64_t(head->tiles) * sizeof(attnd_tile), lane);
        copy_in(copy + head->merges_offset_bytes, host + head->merges_offset_bytes,
                uint64_t(head->merges) * sizeof(attnd_merge), lane);
        copy_in(copy + head->merge_parts_offset_bytes, host + head->merge_parts_offset_bytes,
                uint64_t(head->parts) * sizeof(uint32_t), lane);
        __syncwarp();
    }
    const attnd_entry *entries =
        reinterpret_cast<const attnd_entry *>(copy + head->entries_offset_bytes);
    uint64_t pages = 0;
    if (head->entries)
        pages =
            uint64_t(entries[head->entries - 1].page_begin) + entries[head->entries - 1].page_count;
    copy_in(copy + head->kv_pages_offset_bytes, host + head->kv_pages_offset_bytes,
            pages * sizeof(int32_t), lane);
    copy_in(copy + head->kv_len_offset_bytes, host + head->kv_len_offset_bytes,
            uint64_t(ATTND_GENERATIONS) * head->entries_max * sizeof(int32_t), lane);
    bool many = false;
    for (uint32_t i = lane; i < head->entries; i += 32)
        many |= entries[i].row_count * head->group > 8;
    many = __any_sync(0xffffffffu, many);
    if (lane == 0) { /* not what the head copy carried: it may be newer than the arrays */
        head->set_version = set_version;
        head->advance_version = advance_version;
        *plan_many(copy) = many;
        *plan_layers(copy) = layers;
    }
    __syncwarp();
}

/* What a run needs of its pool, words of 8 bytes: a lane each. */
struct PoolWords {
    attnd_heap_pool pool;
    attnd_heap_plane k, v; /* of the run's layer */
};
constexpr uint32_t pool_words = sizeof(PoolWords) / 8;
static_assert(pool_words == 14, "a lane a word");

/* Where lane @lane's word lies, in a pool of @layers. */
__device__ __forceinline__ uint64_t pool_word_offset(uint32_t lane, uint32_t layer, uint32_t layers)
{
    constexpr uint32_t pool = sizeof(attnd_heap_pool) / 8, plane = sizeof(attnd_heap_plane) / 8;
    if (lane < pool)
        return lane * 8;
    uint32_t index = lane < pool + plane ? layer : layers + layer;
    return sizeof(attnd_heap_pool) + uint64_t(index) * sizeof(attnd_heap_plane) +
           (lane - pool) % plane * 8;
}

__device__ __forceinline__ uint64_t load_host8(const char *from)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
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

/* A plane as a tensor map of 5 dimensions: dim in panel, token in page, panel of 64 dims, head,
 * page. */
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
    uint64_t token = uint64_t(plane.stride_token) * 2, head = uint64_t(plane.stride_head) * 2;
    uint64_t page = uint64_t(plane.stride_page) * 2;
    asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;\n"
                 "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 2, %2;\n"
                 "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 3, %3;\n"
                 "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 4, %4;\n" ::"l"(map),
                 "r"(page_size), "r"(dim / 64), "r"(heads), "r"(pages)
                 : "memory");
    asm volatile("tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 0, %1;\n"
                 "tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 2, %2;\n"
                 "tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 3, %3;\n" ::"l"(map),
                 "l"(token), "l"(head), "l"(page)
                 : "memory");
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}

/* Tensor maps for the run's layer, if it has tiles of many rows and TMA can move its pages. One
 * thread. */
__device__ __forceinline__ void map_run(const Resident *resident, ActiveRun *active, bool many)
{
    const attnd_plan_head &plan = active->plan;
    const attnd_heap_plane &k = active->k_plane, &v = active->v_plane;
    int64_t least = min(min(min(k.stride_token, k.stride_head), k.stride_page),
                        min(min(v.stride_token, v.stride_head), v.stride_page));
    active->box_rows = 0;
    if (!many || !active->aligned || active->page_size % 16 || least <= 0 || !(resident->paths & 4))
        return;
    int log = min(__ffs(int(active->page_size)) - 1, 6);
    const TensorMap *for_k = &resident->templates[log - 4];
    const TensorMap *for_v = &resident->templates[map_templates_k + __ffs(int(plan.dim_vo)) - 7];
    map_plane(&active->k_map, for_k, active->k_base, k, plan.dim_qk, active->page_size,
              plan.heads_kv, active->pages);
    map_plane(&active->v_map, for_v, active->v_base, v, plan.dim_vo, active->page_size,
              plan.heads_kv, active->pages);
    active->box_rows = 1u << log;
}

/* Where @place points; refuses what the table does not hold. */
__device__ __forceinline__ char *resolve(const Resident *resident, const attnd_place &place,
                                         bool *bad)
{
    if (place.memory == ATTND_NONE)
        return nullptr;
    Memory memory = {nullptr, 0};
    if (place.memory < ATTND_MEMORIES_MAX)
        memory = resident->memories[place.memory];
    *bad |= !memory.base || place.offset_bytes >= memory.size_bytes;
    return memory.base + place.offset_bytes;
}

/* Fills the active run; true if it can be executed. The whole warp: lane i < pool_words holds word
 * i of the pool, and what many lanes can do at once they do, because a run waits for this. */
__device__ __forceinline__ bool resolve_run(Resident *resident, ActiveRun *active,
                                            uint64_t pool_word, uint32_t lane)
{
    const attnd_run &run = active->run;
    char *copy = resident->mirror + run.plan_offset_bytes;
    const attnd_plan_head &plan = *reinterpret_cast<const attnd_plan_head *>(copy);
    if (lane < sizeof(attnd_plan_head) / 16)
        reinterpret_cast<uint4 *>(&active->plan)[lane] =
            reinterpret_cast<const uint4 *>(copy)[lane];
    uint64_t words[pool_words]; /* in every lane */
#pragma unroll
    for (uint32_t i = 0; i < pool_words; i++)
        words[i] = __shfl_sync(0xffffffffu, pool_word, i);
    PoolWords from;
    memcpy(&from, words, sizeof(from));

    /* Seven places, a lane each. */
    attnd_place place = {ATTND_NONE, 0, 0};
    if (lane == 0)
        place = {from.k.memory, 0, from.k.offset_bytes};
    else if (lane == 1)
        place = {from.v.memory, 0, from.v.offset_bytes};
    else if (lane < 7)
        place = (&run.q)[lane - 2]; /* q, o, lse, k, v */
    bool bad = false;
    uint64_t address = uint64_t(resolve(resident, place, &bad));
    uint64_t states = (uint64_t(plan.merges) * plan.heads_kv * 4 + 63) / 64 * 64;
    uint64_t outputs = states + (uint64_t(plan.partial_rows) * plan.heads_q * 8 + 63) / 64 * 64;
    uint64_t end = outputs + uint64_t(plan.partial_rows) * plan.heads_q * plan.dim_vo * 4;
    bad |= run.scratch_offset_bytes + end > resident->scratch_bytes;
    if (__any_sync(0xffffffffu, bad))
        return false;
    uint64_t at[7];
#pragma unroll
    for (int i = 0; i < 7; i++)
        at[i] = __shfl_sync(0xffffffffu, address, i);
    char *scratch = resident->scratch + run.scratch_offset_bytes;
    if (run.kind == ATTND_RUN_ATTEND) /* what another run left there is not a count */
        for (uint32_t i = lane; i < plan.merges * plan.heads_kv; i += 32)
            reinterpret_cast<uint32_t *>(scratch)[i] = 0;
    __syncwarp();
    if (lane == 0) {
        active->entries = reinterpret_cast<const attnd_entry *>(copy + plan.entries_offset_bytes);
        active->tiles = reinterpret_cast<const attnd_tile *>(copy + plan.tiles_offset_bytes);
        active->merges = reinterpret_cast<const attnd_merge *>(copy + plan.merges_offset_bytes);
        active->merge_parts =
            reinterpret_cast<const uint32_t *>(copy + plan.merge_parts_offset_bytes);
        active->kv_pages = reinterpret_cast<const int32_t *>(copy + plan.kv_pages_offset_bytes);
        active->kv_len = reinterpret_cast<const int32_t *>(copy + plan.kv_len_offset_bytes) +
                         uint64_t(run.generation) * plan.entries_max;
        active->page_size = from.pool.page_size;
        active->pages = from.pool.pages;
        active->k_plane = from.k;
        active->v_plane = from.v;
        active->k_base = reinterpret_cast<char *>(at[0]);
        active->v_base = reinterpret_cast<char *>(at[1]);
        active->q = reinterpret_cast<char *>(at[2]);
        active->o = reinterpret_cast<char *>(at[3]);
        active->lse = reinterpret_cast<float *>(at[4]);
        active->k_rows = reinterpret_cast<char *>(at[5]);
        active->v_rows = reinterpret_cast<char *>(at[6]);
        active->arrivals = reinterpret_cast<uint32_t *>(scratch);
        active->states = reinterpret_cast<float *>(scratch + states);
        active->outputs = reinterpret_cast<float *>(scratch + outputs);
        active->aligned = rows_aligned(active);
        map_run(resident, active, *plan_many(copy) != 0);
    }
    return true;
}

/* Takes the run of one command into @active: fetched, mirrored, resolved. Return: the variant that
 * must execute it; variants_count with active->code set if none can. The whole warp. */
__device__ __forceinline__ uint32_t take_command(Resident *resident, ActiveRun *active,
                                                 const attnd_run *runs, uint32_t slot,
                                                 uint64_t segment_bytes, uint32_t lane)
{
    const char *queue = reinterpret_cast<const char *>(resident->queue);
    uint4 part = {};
    if (lane < sizeof(attnd_run) / 16)
        part = load_host(reinterpret_cast<const uint4 *>(&runs[slot]) + lane);
    uint64_t low = uint64_t(part.w) << 32 | part.z; /* of lane 0: plan_offset_bytes */
    uint64_t plan_offset = __shfl_sync(0xffffffffu, low, 0);
    uint32_t layer = __shfl_sync(0xffffffffu, part.x, 1);
    if (lane < sizeof(attnd_run) / 16)
        reinterpret_cast<uint4 *>(&active->run)[lane] = part;

    /* One trip for the plan's versions and, by what is known from its last run, the pool's words.
     * A pool does not change while plans use it, but its place may have been another's before. */
    char *copy = resident->mirror + plan_offset;
    attnd_plan_head *head = reinterpret_cast<attnd_plan_head *>(copy);
    const attnd_plan_head *host = reinterpret_cast<const attnd_plan_head *>(queue + plan_offset);
    uint64_t pool_offset = head->pool_offset_bytes, word = 0;
    uint32_t layers = *plan_layers(copy);
    uint64_t guess = (pool_offset + pool_word_offset(lane, layer, layers)) & ~7ull;
    if (lane < pool_words && guess < segment_bytes - 8) /* another plan's bytes may be there */
        word = load_host8(queue + guess);
    uint32_t version = observe_sys(lane ? &host->advance_version : &host->set_version);
    uint32_t set_version = __shfl_sync(0xffffffffu, version, 0);
    uint32_t advance_version = __shfl_sync(0xffffffffu, version, 1);
    bool fresh = head->set_version != set_version;
    __syncwarp();
    mirror_plan(resident, plan_offset, set_version, advance_version, lane);
    if (fresh || uint32_t(__shfl_sync(0xffffffffu, word, 0)) != layers) {
        pool_offset = head->pool_offset_bytes;
        layers = uint32_t(load_host8(queue + pool_offset)); /* the first field */
        if (lane < pool_words)
            word = load_host8(queue + pool_offset + pool_word_offset(lane, layer, layers));
        if (lane == 0)
            *plan_layers(copy) = layers;
    }
    __syncwarp();
    uint32_t variant = variant_index(head->dim_qk, head->dtype);
    int32_t code = variant == variants_count                   ? -unsupported_code
                   : resolve_run(resident, active, word, lane) ? 0
                                                               : -unknown_code;
    if (lane == 0)
        active->code = code;
    return variant;
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
__device__ __forceinline__ void write_retire(Resident *resident, const ActiveRun *active,
                                             attnd_retire *ring, uint32_t ring_entries)
{
    uint32_t tail = resident->retires_tail;
    /* The daemon never has more runs out than the ring has slots. */
    attnd_retire *out = ring + (tail & (ring_entries - 1));
    attnd_retire retire = {};
    retire.run = active->slot;
    retire.kind = ATTND_COMMAND_RUN;
    retire.code = active->code ? active->code : active->cancelled ? -cancelled_code : 0;
    retire.begin_ns = active->begin_ns + resident->host_clock_offset_ns;
    retire.end_ns = active->end_ns + resident->host_clock_offset_ns;
    retire.busy_ns = active->busy_ns;
    retire.kv_bytes = active->kv_bytes;
    retire.tiles = active->run.items;
    *out = retire;
    resident->retires_tail = tail + 1;
    publish_sys(&resident->queue->retire_tail, tail + 1); /* R1: the slot, o and lse before it */
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
    const uint64_t segment_bytes = queue->heap_offset_bytes + queue->heap_bytes;
    const uint32_t *heart = reinterpret_cast<const uint32_t *>(&resident->host->heartbeat_ns);
    uint32_t beat = 0;
    uint64_t beat_seen = clock_ns();

    for (;;) {
        uint32_t head = resident->commands_head;
        /* One trip across the bus for all words: A1 on the tail, park, the beat's low half. */
        uint32_t word = observe_sys(lane == 2   ? heart
                                    : lane == 1 ? &queue->park
                                                : &queue->command_tail);
        uint32_t tail = __shfl_sync(0xffffffffu, word, 0);
        uint32_t now_beat = __shfl_sync(0xffffffffu, word, 2);
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
        uint32_t slot =
            uint32_t(load_host8(reinterpret_cast<const char *>(&commands[head & (entries - 1)])) >>
                     32); /* the second field */
        ActiveRun *active = &resident->runs[index % active_runs];
        uint32_t variant = variants_count;
        if (lane == 0)
            active->code = -unknown_code;
        if (slot < run_count)
            variant = take_command(resident, active, runs, slot, segment_bytes, lane);
        if (variant < variants_count && !(resident->resident >> variant & 1)) {
            /* The command stays where it is, for the kernels that come instead of these. */
            if (lane == 0) {
                publish_sys(&resident->host->wanted, variant + 1);
                publish_gpu(&resident->leave, 1);
            }
            return;
        }
        __syncwarp();
        if (lane == 0) {
            active->slot = slot;
            active->variant = variant;
            if (variant < variants_count)
                resident->used |= 1u << variant;
            active->next_item = 0;
            active->done_items = 0;
            active->cancelled = 0;
            active->busy_ns = 0;
            active->kv_bytes = 0;
            active->begin_ns = clock_ns();
            active->end_ns = active->begin_ns;
            if (active->code)
                active->run.items = 0;
            active->state = active->run.items ? run_published : run_finished;
            resident->commands_head = head + 1;
        }
        __syncwarp();
        if (lane == 0) {
            publish_gpu(&resident->published, index + 1); /* R1: covers the active run */
            publish_sys(&queue->command_head, head + 1);
        }
        __syncwarp();
    }
}

/* Warp 1: retires, cancels and the end. */
__device__ __forceinline__ void dispatch_retires(Resident *resident, uint32_t lane)
{
    attnd_queue_head *queue = resident->queue;
    char *base_host = reinterpret_cast<char *>(queue);
    attnd_run *runs = reinterpret_cast<attnd_run *>(base_host + queue->runs_offset_bytes);
    attnd_retire *ring = reinterpret_cast<attnd_retire *>(base_host + queue->retires_offset_bytes);
    const uint32_t ring_entries = queue->ring_entries;
    for (uint32_t pass = 0;; pass++) {
        uint32_t leave = observe_gpu(&resident->leave);
        uint32_t end = observe_gpu(&resident->published); /* A1 */
        uint32_t begin = resident->retired;
        for (uint32_t base = begin; base != end && base - begin < active_runs;) {
            uint32_t span = end - base < 32 ? end - base : 32;
            ActiveRun *active = &resident->runs[(base + lane) % active_runs];
            uint32_t state = lane < span ? observe_gpu(&active->state) : 0;
            /* Cancelling is rare: look across the bus once in a while only. */
            if (state == run_published && pass % 64 == 0 && observe_sys(&runs[active->slot].cancel))
                publish_gpu(&active->cancelled, 1);
            uint32_t finished = __ballot_sync(0xffffffffu, state == run_finished);
            while (finished) {
                uint32_t which = __ffs(finished) - 1;
                finished &= finished - 1;
                if (lane == which) {
                    write_retire(resident, active, ring, ring_entries);
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
