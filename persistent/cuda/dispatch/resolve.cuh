/*
 * resolve.cuh - from a run descriptor to pointers: places looked up, tensor maps made, what follows
 * from the plan taken from its mirror. By one warp; what many lanes can do at once they do, because
 * a run waits for this.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_RESOLVE_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_RESOLVE_CUH

#include "persistent/cuda/dispatch/mirror.cuh"
#include "persistent/cuda/machine/scalar.cuh"

namespace attnd
{

/* A plane as a tensor map of 5 dimensions: 64 dims, @tokens, the panels of 64, and two more of
 * @size3 and @size4, @stride3 and @stride4 elements apart. */
__device__ __forceinline__ void map_plane(TensorMap *map, const TensorMap *from, const char *base,
                                          const attnd_heap_plane &plane, uint32_t dim,
                                          uint32_t tokens, uint32_t size3, uint64_t stride3,
                                          uint32_t size4, uint64_t stride4)
{
    const uint4 *in = reinterpret_cast<const uint4 *>(from);
    uint4 *out = reinterpret_cast<uint4 *>(map);
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = in[i];
    map_replace(map, base, {tokens, dim / 64, size3, size4},
                {uint64_t(plane.stride_token) * 2, stride3 * 2, stride4 * 2});
    fence_map_release();
}

/* The largest unit that page and head strides are multiples of, elements. Most layouts: the head
 * stride, at once. */
__device__ __forceinline__ uint64_t unit_of(uint64_t page, uint64_t head)
{
    while (head) {
        const uint64_t rest = page % head;
        page = head;
        head = rest;
    }
    return page;
}

/* Tensor maps for the run's layer, into @maps, if TMA can move its pages. A box of V is 16 tokens
 * of a head's page, with all panels; the dimensions behind them are heads and pages. A box of K is
 * laid out for products by 8 tokens, so what is two for V, the 8 and their groups, leaves one
 * dimension for head and page: both are counted in units. A row that is shorter than the loops'
 * ends with a panel, and what is behind it comes as zeros. Latents have no V of their own. One
 * thread. */
inline __device__ __noinline__ void map_run(const Settings &settings, ActiveRun *run,
                                            ActiveRun *maps)
{
    const attnd_plan_head &plan = run->plan;
    const attnd_heap_plane &k = run->k_plane, &v = run->v_plane;
    int64_t least = min(min(min(k.stride_token, k.stride_head), k.stride_page),
                        min(min(v.stride_token, v.stride_head), v.stride_page));
    const uint32_t dim = attnd_kernel_dim(plan.dim_qk, plan.dim_vo);
    const bool latents = dim == latent_dim, shorter = dim == 192; /* V than K */
    if (portable || !run->aligned || run->page_size % 16 || least <= 0 || !(settings.paths & 4))
        return;
    if (plan.dim_qk % 64 || plan.dim_vo % 64) /* a box would bring what is beside a row */
        return;
    if (is_fp8(plan.kv_dtype))
        return;
    const uint64_t unit = unit_of(k.stride_page, k.stride_head);
    const uint64_t per_page = k.stride_page / unit, per_head = k.stride_head / unit;
    const uint64_t units = (run->pages - 1) * per_page + (plan.heads_kv - 1) * per_head + 1;
    if (units > unit_absent)
        return;
    run->unit_page = uint32_t(per_page);
    run->unit_head = uint32_t(per_head);
    const uint32_t largest = __ffs(int(latents ? latent_box_rows : box_rows_max(dim)));
    const uint32_t log = min(uint32_t(__ffs(int(run->page_size))), largest) - 1;
    const TensorMap *for_v = &settings.templates[latents ? 0 : __ffs(int(shorter ? 128 : dim)) - 7];
    const TensorMap *for_k = latents   ? &settings.templates[map_latents]
                             : shorter ? &settings.templates[map_192 + log - 4]
                                       : for_v + (log - 3) * map_dims;
    map_plane(&maps->k_map, for_k, run->k_base, k, plan.dim_qk, 8, run->page_size / 8,
              8 * k.stride_token, uint32_t(units), unit);
    if (!latents)
        map_plane(&maps->v_map, for_v, run->v_base, v, plan.dim_vo, run->page_size, plan.heads_kv,
                  v.stride_head, run->pages, v.stride_page);
    run->box_rows = uint8_t(1u << log);
    run->passes = 1;
}

/* Where a place points; refuses what the table does not hold. */
__device__ __forceinline__ char *resolve(const Memory &memory, uint32_t index,
                                         uint64_t offset_bytes, bool *bad)
{
    if (index == ATTND_NONE)
        return nullptr;
    *bad |= index >= ATTND_MEMORIES_MAX || !memory.base || offset_bytes >= memory.size_bytes;
    return memory.base + offset_bytes;
}

/* The first row stands in for those that are not there: no branch in front of a load. */
__device__ __forceinline__ const Memory &memory_at(const Settings &settings, uint32_t index)
{
    return settings.memories[index < ATTND_MEMORIES_MAX ? index : 0];
}

/* The parts of a run descriptor that go beyond the plan. */
struct RunSource {
    const attnd_run *body;
    const attnd_heap_plane *k, *v;
    uint32_t page_size, pages;
    PlanVersion version; /* as the command has it */
};

/* Members that lanes fill one each lie in a row. */
static_assert(offsetof(ActiveRun, kv_len) - offsetof(ActiveRun, entries) == 5 * 8 &&
                  offsetof(attnd_plan_head, kv_len_offset_bytes) -
                          offsetof(attnd_plan_head, entries_offset_bytes) ==
                      5 * 8,
              "arrays of a plan");
static_assert(offsetof(ActiveRun, v_plane) - offsetof(ActiveRun, k_plane) == 5 * 8, "planes");
static_assert(offsetof(ActiveRun, v_rows) - offsetof(ActiveRun, k_base) == 6 * 8, "places");
static_assert(offsetof(attnd_run, w) - offsetof(attnd_run, q) == 5 * sizeof(attnd_place) &&
                  offsetof(attnd_heap_plane, offset_bytes) == offsetof(attnd_place, offset_bytes) &&
                  offsetof(attnd_heap_plane, memory) == offsetof(attnd_place, memory),
              "places");

/* All that resolving a run reads of device memory, one trip of all lanes. */
struct LookUp {
    uint4 plan;        /* a vector of its head */
    Mirrored mirrored; /* of which version that is */
    Memory memory;     /* of the lane's place */
    uint32_t index;
    uint64_t offset_bytes;
};
constexpr uint32_t plan_vectors = sizeof(attnd_plan_head) / 16;

/* In flight when this returns. Eight places of a run, a lane each, and the last one again for the
 * lanes behind: planes of K and V, then q, o, lse, k, v, w. Of a run that is not whole yet, too:
 * every vector of a command is what it was or what it will be, so the places that are looked up are
 * there. */
__device__ __forceinline__ LookUp look_up(const Settings &settings, const RunSource &source)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t plan_offset = source.body->plan_offset_bytes;
    const attnd_place *place = &source.body->q + (lane < 2 ? 0 : min(lane - 2, 5));
    if (lane < 2)
        place = reinterpret_cast<const attnd_place *>(lane == 0 ? source.k : source.v);
    LookUp look;
    look.plan = reinterpret_cast<const uint4 *>(settings.mirror + plan_offset)[lane % plan_vectors];
    look.mirrored = *mirrored_at(settings, plan_offset);
    look.index = place->memory;
    look.offset_bytes = place->offset_bytes;
    look.memory = memory_at(settings, look.index);
    return look;
}

/* Into the dispatcher's own copy of a plan's head, whose variant lies in the mirror: scales of q
 * and K are one with that of scores. */
__device__ __forceinline__ void fill_scales(attnd_plan_head *plan, const char *copy)
{
    const attnd_variant *variant =
        reinterpret_cast<const attnd_variant *>(copy + sizeof(attnd_plan_head));
    plan->v_scale = 1.0f;
    if (!(plan->options & ATTND_OPTION_SCALES))
        return;
    plan->sm_scale *= variant->q_scale * variant->k_scale;
    plan->v_scale = variant->v_scale;
}

/* Another plan than the last run's, or another version of it: brings its copy up to date, and fills
 * in what follows from it and from the pool's page size. @mirrored, @part: of look_up(). The whole
 * warp. */
inline __device__ __noinline__ void build_plan(Dispatch *dispatch, uint64_t plan_offset,
                                               PlanVersion version, uint32_t generation,
                                               uint32_t page_size, Mirrored mirrored, uint4 part)
{
    const Settings &settings = dispatch->settings;
    ActiveRun *build = &dispatch->build;
    BuiltPlan *built = &dispatch->built;
    const attnd_plan_head &plan = build->plan;
    const char *copy = settings.mirror + plan_offset;
    const uint32_t lane = threadIdx.x % 32;
    if (mirrored.set_version != version.set || mirrored.advance_version != version.advance) {
        mirrored = mirror_plan(dispatch, plan_offset, version, generation, page_size);
        part = reinterpret_cast<const uint4 *>(copy)[lane % plan_vectors];
    }
    reinterpret_cast<uint4 *>(&build->plan)[lane % plan_vectors] = part;
    __syncwarp();
    if (lane < 6)
        reinterpret_cast<uint64_t *>(&build->entries)[lane] =
            uint64_t(copy) + (&plan.entries_offset_bytes)[lane];
    if (lane < 3) { /* a lane each */
        uint32_t *const to = lane == 0   ? &build->page_reciprocal
                             : lane == 1 ? &build->group_reciprocal
                                         : &build->heads_reciprocal;
        *to = reciprocal_of(lane == 0 ? page_size : lane == 1 ? plan.group : plan.heads_kv);
    }
    if (lane == 0) {
        const uint64_t rows = uint64_t(plan.partial_rows) * plan.heads_q;
        fill_scales(&build->plan, copy);
        built->version = version;
        built->page_size = page_size;
        built->variant =
            variant_index(plan.dim_qk, plan.dim_vo, plan.dtype, plan.kv_dtype, plan.options);
        built->counters = plan.merges * plan.heads_kv;
        built->states = (uint64_t(built->counters) * 4 + 63) / 64 * 64;
        built->outputs = built->states + (rows * 8 + 63) / 64 * 64;
        built->end = built->outputs + rows * plan.dim_vo * 4;
        built->odd = plan.q_pitch.row % 8 || plan.q_pitch.head % 8;
        built->many = mirrored.many;
        built->reads_first = plan.reads_first;
    }
    __syncwarp();
}

/* Places and planes of the run, a word a lane where words lie in a row. @address: of the lane's
 * place. Return: true if K, V or q do not keep 16-byte alignment: cp.async and TMA move 16 bytes.
 * The lane's own. */
__device__ __forceinline__ bool fill_places(ActiveRun *build, const RunSource &source,
                                            uint64_t address)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t elements = is_fp8(build->plan.kv_dtype) ? 16 : 8; /* of K and V in 16 bytes */
    bool odd = (lane < 3) & (address % 16 != 0);                     /* K, V, q */
    if (lane < 7)
        reinterpret_cast<uint64_t *>(&build->k_base)[lane] = address;
    if (lane < 10) {
        const attnd_heap_plane *plane = lane < 5 ? source.k : source.v;
        const uint32_t at = lane < 5 ? lane : lane - 5; /* memory, offset, then three strides */
        const uint64_t word = reinterpret_cast<const uint64_t *>(plane)[at];
        odd |= (at > 1) & (word % elements != 0);
        reinterpret_cast<uint64_t *>(&build->k_plane)[lane] = word;
    }
    return odd;
}

/* Options that need ActiveRun.tables. */
constexpr uint32_t looked_up_options = ATTND_OPTION_MASK | ATTND_OPTION_ROPE |
                                       ATTND_OPTION_ROPE_APPEND | ATTND_OPTION_SCALES |
                                       ATTND_OPTION_HEAD_SCALES;

/* Where the sinks of the run's layer are: the variant stands behind the plan's head. NULL: it has
 * none. */
__device__ __forceinline__ const float *
find_sinks(const Settings &settings, const attnd_plan_head &plan, const attnd_run &body, bool *bad)
{
    if (!(plan.options & ATTND_OPTION_SINKS))
        return nullptr;
    const attnd_variant *variant = reinterpret_cast<const attnd_variant *>(
        settings.mirror + body.plan_offset_bytes + sizeof(attnd_plan_head));
    const attnd_variant_table table = variant->sinks;
    const uint64_t begin = table.offset_bytes + uint64_t(table.layer_stride) * body.layer * 4;
    const Memory &memory = memory_at(settings, table.memory);
    *bad |= table.memory == ATTND_NONE || begin + plan.heads_q * 4 > memory.size_bytes;
    return reinterpret_cast<const float *>(resolve(memory, table.memory, begin, bad));
}

/* Tables that workers look up where the run itself lies. The whole warp. */
__device__ __forceinline__ void fill_tables(const Settings &settings, const attnd_plan_head &plan,
                                            const attnd_run &body, ActiveRun *active, bool *bad)
{
    const char *copy = settings.mirror + body.plan_offset_bytes;
    const attnd_variant *variant =
        reinterpret_cast<const attnd_variant *>(copy + sizeof(attnd_plan_head));
    RunTables tables = {variant, nullptr, nullptr, nullptr};
    if (plan.options & ATTND_OPTION_MASK) {
        const attnd_variant_table table = variant->mask;
        *bad |= table.memory == ATTND_NONE;
        tables.mask = reinterpret_cast<const uint8_t *>(
            resolve(memory_at(settings, table.memory), table.memory, table.offset_bytes, bad));
        tables.mask_begin = reinterpret_cast<const uint32_t *>(copy + plan.mask_begin_offset_bytes);
    }
    if (plan.options & ATTND_OPTION_HEAD_SCALES) {
        const attnd_variant_table table = variant->kv_scales;
        const uint64_t begin = table.offset_bytes + uint64_t(table.layer_stride) * body.layer * 4;
        const Memory &memory = memory_at(settings, table.memory);
        *bad |= table.memory == ATTND_NONE || begin + plan.heads_kv * 8 > memory.size_bytes;
        tables.kv_scales =
            reinterpret_cast<const float *>(resolve(memory, table.memory, begin, bad));
    }
    if (threadIdx.x % 32 == 0)
        active->tables = tables;
}

/* The part of one lane: scratch as the plan divides it, and the fields of the run itself. */
__device__ __forceinline__ void fill_rest(ActiveRun *build, const BuiltPlan &built,
                                          const RunSource &source, char *scratch, uint32_t *answer,
                                          const float *sinks, uint64_t w, bool aligned)
{
    const uint64_t states = uint64_t(scratch) + built.states;
    build->arrivals = reinterpret_cast<uint32_t *>(scratch);
    build->states = reinterpret_cast<float *>(source.body->kind == ATTND_RUN_MERGE ? w : states);
    build->outputs = reinterpret_cast<float *>(scratch + built.outputs);
    build->answer = answer;
    build->sinks = sinks;
    build->plan.reads_first = uint64_t(source.body->layer) << 32 | source.body->session;
    build->kind = uint8_t(source.body->kind);
    build->page_size = source.page_size;
    build->pages = source.pages;
    build->box_rows = build->passes = 0;
    build->aligned = aligned;
}

/* Is the last run's plan, as it was built, what this run wants, and the mirror's? */
__device__ __forceinline__ bool built_suits(const BuiltPlan &built, const RunSource &source,
                                            const Mirrored &mirrored)
{
    const PlanVersion version = source.version;
    return (built.version.set == version.set) & (built.version.advance == version.advance) &
           (built.page_size == source.page_size) & (mirrored.set_version == version.set) &
           (mirrored.advance_version == version.advance);
}

/* Fills @active from @source and the plan's copy, which is brought up to date. It is put together
 * in shared memory and stored as one vector a lane. The whole warp. @look: look_up() of it. Return:
 * the variant that must execute it; variants_count if none can, and then @code says why. */
__device__ __forceinline__ uint32_t resolve_run(Dispatch *dispatch, ActiveRun *active,
                                                const RunSource &source, const LookUp &look,
                                                uint32_t *answer, uint32_t *code)
{
    const Settings &settings = dispatch->settings;
    ActiveRun *build = &dispatch->build;
    const BuiltPlan &built = dispatch->built;
    const uint32_t lane = threadIdx.x % 32;
    const attnd_run &body = *source.body;
    bool bad = false;
    const uint64_t address = uint64_t(resolve(look.memory, look.index, look.offset_bytes, &bad));
    const uint64_t w = __shfl_sync(0xffffffffu, address, 7);
    bad &= lane < 7 || body.kind == ATTND_RUN_MERGE; /* nobody else says where w is */
    if (!built_suits(built, source, look.mirrored))
        build_plan(dispatch, body.plan_offset_bytes, source.version, body.generation,
                   source.page_size, look.mirrored, look.plan);
    /* Tensors that do not keep 16-byte alignment take the naive way. */
    const bool odd = built.odd | fill_places(build, source, address);
    const float *sinks = find_sinks(settings, build->plan, body, &bad);
    if (build->plan.options & looked_up_options)
        fill_tables(settings, build->plan, body, active, &bad);
    bad |= body.scratch_offset_bytes + built.end > settings.scratch_bytes;
    const uint32_t variant = built.variant;
    const bool many = built.many;
    const bool aligned = !__any_sync(0xffffffffu, odd);
    *code = __any_sync(0xffffffffu, bad) ? ATTND_E_UNKNOWN : 0;
    if (variant == variants_count || settings.missing >> variant & 1)
        *code = ATTND_E_UNSUPPORTED;
    if (*code)
        return variants_count;
    char *scratch = settings.scratch + body.scratch_offset_bytes;
    if (body.kind == ATTND_RUN_ATTEND) /* what another run left there is not a count */
        for (uint32_t i = lane; i < built.counters; i += 32)
            reinterpret_cast<uint32_t *>(scratch)[i] = 0;
    if (lane == 0) {
        fill_rest(build, built, source, scratch, answer, sinks, w, aligned);
        active->reads_first = body.kind == ATTND_RUN_ATTEND ? built.reads_first : 0;
    }
    if (many) {
        __syncwarp(); /* the planes and places that other lanes stored */
        if (lane == 0)
            map_run(settings, build, active);
    }
    __syncwarp();
    reinterpret_cast<uint4 *>(active)[lane] = reinterpret_cast<const uint4 *>(build)[lane];
    __syncwarp(); /* @build is used again */
    return variant;
}

} // namespace attnd

#endif
