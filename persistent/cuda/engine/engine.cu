/*
 * engine.cu - the kernels that an engine's stream executes beside worker kernels: they fill a
 * session's block, resolve a prepared run, and bring a plan up to date. One block each.
 *
 * What a dispatcher does for a service's runs is done here once a run is prepared (pointers and
 * tensor maps), and once a step for a plan (refresh). A refresh costs a look at the image's
 * sequence across the bus where nothing has changed; else it copies what mirror.cuh says.
 *
 * A refresh stands in front of the runs of its lane in their stream, so nobody reads what it
 * writes. The daemon may write the image meanwhile: then the copy begins anew.
 */
#include "persistent/cuda/dispatch/resolve.cuh"
#include "persistent/cuda/engine/cut.cuh"
#include "persistent/cuda/engine/rotate.cuh"
#include "persistent/cuda/engine/tables.cuh"

namespace attnd
{

constexpr uint32_t refresh_threads = 512;
constexpr uint64_t refresh_deadline_ns = 2000000000ull;

/* ---- a prepared run ---- */

/* Where @place lies; NULL: nowhere. The client has checked that it is there. */
__device__ __forceinline__ char *engine_place(const EngineSession *session, uint32_t memory,
                                              uint64_t offset_bytes)
{
    if (memory >= ATTND_MEMORIES_MAX || !session->memories[memory].base ||
        offset_bytes >= session->memories[memory].size_bytes)
        return nullptr;
    return session->memories[memory].base + offset_bytes;
}

__device__ __forceinline__ bool odd_strides(const attnd_heap_plane &plane, uint32_t elements)
{
    return plane.stride_page % elements || plane.stride_token % elements ||
           plane.stride_head % elements;
}

/* One thread. */
__device__ __forceinline__ void engine_resolve(EngineSession *session, const attnd_engine_run &run)
{
    ActiveRun *active = &session->active[run.slot];
    const uint32_t elements = is_fp8(run.kv_dtype) ? 16 : 8; /* of K and V in 16 bytes */
    *active = {};
    active->k_plane = run.k;
    active->v_plane = run.v;
    active->k_base = engine_place(session, run.k.memory, run.k.offset_bytes);
    active->v_base = engine_place(session, run.v.memory, run.v.offset_bytes);
    active->q = engine_place(session, run.q.memory, run.q.offset_bytes);
    active->o = engine_place(session, run.o.memory, run.o.offset_bytes);
    active->lse =
        reinterpret_cast<float *>(engine_place(session, run.lse.memory, run.lse.offset_bytes));
    active->page_size = run.page_size;
    active->pages = run.pages;
    active->page_reciprocal = reciprocal_of(run.page_size);
    active->kind = ATTND_RUN_ATTEND;
    active->aligned = !(odd_strides(run.k, elements) || odd_strides(run.v, elements) ||
                        uint64_t(active->k_base) % 16 || uint64_t(active->v_base) % 16 ||
                        uint64_t(active->q) % 16);
    /* For the maps alone: workers take the plan's. */
    active->plan.dim_qk = run.dim_qk;
    active->plan.dim_vo = run.dim_vo;
    active->plan.kv_dtype = run.kv_dtype;
    active->plan.heads_kv = run.heads_kv;
    const Settings settings = *engine_resident(session);
    map_run(settings, active, active);
    fence_order(); /* a refresh that finds the slot writes behind this */
    session->runs[run.slot] = {reinterpret_cast<const EnginePlan *>(run.plan), run.layer,
                               run.serial};
    engine_tables_beside(session, run.slot);
}

/* ---- what was executed ---- */

/* For whoever asks the service: stores that nobody waits for, once a step. Of a lane of which
 * nothing is in flight. One thread. */
inline __device__ __noinline__ void engine_tell(EngineSession *session, uint32_t lane)
{
    if (!session->account)
        return;
    const Live *live = &engine_resident(session)->live[lane];
    attnd_engine_sums *sums = &session->account->lane[lane];
    store_relaxed_sys(&sums->runs, uint64_t(live->done));
    store_relaxed_sys(&sums->busy_ns, uint64_t(live->end_ns));
    store_relaxed_sys(&sums->kv_bytes, uint64_t(live->kv_bytes));
    store_relaxed_sys(&sums->errors, session->failed[lane]);
    if (session->errors[lane])
        store_relaxed_sys(&sums->error_code, session->errors[lane]);
}

/* ---- a plan ---- */

/* What a refresh found out, for all its threads. */
struct Refresh {
    uint32_t sequence, code, advance_version, generation, items, page_size;
    uint64_t set_version, scratch_bytes;
    uint32_t wanted; /* 0: the mirror is up to date */
    uint32_t many, again;
};

/* The image's head, when nobody writes it. One thread, which alone looks at the clock: all of them
 * copy or none. Return: false: since @begin_ns it was written for longer than a daemon ever does.
 */
__device__ __forceinline__ bool refresh_look(EnginePlan *plan, const attnd_engine_plan &place,
                                             uint64_t begin_ns, Refresh *refresh)
{
    const attnd_plan_image *image = reinterpret_cast<const attnd_plan_image *>(place.image);
    do {
        if (clock_ns() - begin_ns > refresh_deadline_ns)
            return false;
        refresh->sequence = observe_sys(&image->sequence); /* A1 */
    } while (refresh->sequence & 1);
    const uint4 *head = reinterpret_cast<const uint4 *>(image);
    const uint4 a = peek16_sys(head), b = peek16_sys(head + 1), c = peek16_sys(head + 2);
    refresh->code = a.y;
    refresh->set_version = uint64_t(a.w) << 32 | a.z;
    refresh->advance_version = b.x;
    refresh->generation = b.y;
    refresh->items = b.z;
    refresh->page_size = b.w;
    refresh->scratch_bytes = uint64_t(c.w) << 32 | c.z;
    const EngineDecision now = plan->decision;
    refresh->wanted = refresh->code ? now.code != refresh->code
                                    : plan->set_version != refresh->set_version || now.code ||
                                          plan->advance_version != refresh->advance_version;
    if (refresh->wanted)
        plan->place = place;
    return true;
}

/* Has the image changed since it was looked at? What was copied must not lead the copies behind it
 * astray where it is torn. All threads. */
__device__ __forceinline__ bool refresh_torn(const EnginePlan *plan, Refresh *refresh)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        fence_sys(); /* what was copied, before the second look */
        refresh->again =
            peek_sys(&reinterpret_cast<const attnd_plan_image *>(plan->place.image)->sequence) !=
            refresh->sequence;
    }
    __syncthreads();
    return refresh->again;
}

/* What a set changes: the head, by which the arrays are found, by which the page ids are. All
 * threads. Return: false: it is torn. */
__device__ __forceinline__ bool refresh_set(const EnginePlan *plan, const PlanCopy &copy,
                                            Refresh *refresh)
{
    const attnd_plan_head *head = copy.head;
    copy_in(copy.copy, copy.host, plan_front_bytes, threadIdx.x, refresh_threads);
    if (refresh_torn(plan, refresh))
        return false;
    const PlanArrays arrays = plan_arrays(head);
    for (const PlanArray &array : arrays.of)
        copy_in(copy.copy + array.offset_bytes, copy.host + array.offset_bytes, array.bytes,
                threadIdx.x, refresh_threads);
    if (refresh_torn(plan, refresh))
        return false;
    if (!head->entries)
        return true;
    const attnd_entry *last =
        reinterpret_cast<const attnd_entry *>(copy.copy + head->entries_offset_bytes) +
        head->entries - 1;
    copy_in(copy.copy + head->kv_pages_offset_bytes, copy.host + head->kv_pages_offset_bytes,
            (uint64_t(last->page_begin) + last->page_count) * sizeof(int32_t), threadIdx.x,
            refresh_threads);
    __syncthreads();
    return true;
}

/* The words of runs that follow from the plan, and what is decided. One thread each word or none.
 */
__device__ __forceinline__ void refresh_words(const EngineSession *session, EnginePlan *plan,
                                              const Refresh &refresh)
{
    const char *copy = reinterpret_cast<const char *>(plan->place.mirror);
    ActiveRun *words = reinterpret_cast<ActiveRun *>(plan->words);
    const attnd_plan_head *head = reinterpret_cast<const attnd_plan_head *>(copy);
    if (threadIdx.x < plan_vectors)
        reinterpret_cast<uint4 *>(&words->plan)[threadIdx.x] =
            reinterpret_cast<const uint4 *>(copy)[threadIdx.x];
    __syncthreads();
    if (threadIdx.x)
        return;
    for (uint32_t i = 0; i < 6; i++)
        reinterpret_cast<uint64_t *>(&words->entries)[i] =
            uint64_t(copy) + (&head->entries_offset_bytes)[i];
    fill_scales(&words->plan, copy);
    words->plan.reads_first = 0;
    const uint64_t rows = uint64_t(head->partial_rows) * head->heads_q;
    const uint64_t outputs = (rows * 8 + 63) / 64 * 64, end = outputs + rows * head->dim_vo * 4;
    const uint64_t counters = uint64_t(head->merges) * head->heads_kv * 4;
    words->arrivals =
        reinterpret_cast<uint32_t *>(plan->place.mirror + plan->place.mirror_bytes) - counters / 4;
    words->states = reinterpret_cast<float *>(plan->place.scratch);
    words->outputs = reinterpret_cast<float *>(plan->place.scratch + outputs);
    words->group_reciprocal = reciprocal_of(head->group);
    words->heads_reciprocal = reciprocal_of(head->heads_kv);
    plan->odd = head->q_pitch.row % 8 || head->q_pitch.head % 8;
    plan->passes = refresh.many;
    const uint32_t variant =
        variant_index(head->dim_qk, head->dim_vo, head->dtype, head->kv_dtype, head->options);
    uint32_t code = end > plan->place.scratch_bytes ? ATTND_E_NO_SPACE : 0;
    if (!tables_there(session, head->options,
                      *reinterpret_cast<const attnd_variant *>(copy + sizeof(attnd_plan_head))))
        code = ATTND_E_UNKNOWN;
    if (variant == variants_count)
        code = ATTND_E_UNSUPPORTED;
    plan->decision = {code ? 0 : refresh.items, uint16_t(variant), uint16_t(refresh.generation),
                      code, 0};
}

/* An item that lies in shared memory, to where its worker reads it. A warp. */
__device__ __forceinline__ void first_write(EngineFirst *to, const EngineFirst *first,
                                            uint32_t lane)
{
    constexpr uint32_t vectors = (sizeof(first->item) + sizeof(first->q)) / 16;
    static_assert(vectors <= 32, "a vector a lane");
    if (lane < vectors)
        reinterpret_cast<uint4 *>(to)[lane] = reinterpret_cast<const uint4 *>(first)[lane];
    __syncwarp();
}

/* First items. A warp each. */
__device__ __forceinline__ void refresh_first(EnginePlan *plan, const Refresh &refresh,
                                              uint32_t workers)
{
    extern __shared__ uint4 words[]; /* an ActiveRun without its maps */
    __shared__ EngineFirst firsts[refresh_threads / 32];
    const uint32_t lane = threadIdx.x % 32;
    if (threadIdx.x < run_plan_bytes / 16)
        words[lane] = reinterpret_cast<const uint4 *>(plan->words)[lane];
    __syncthreads();
    ActiveRun *run = reinterpret_cast<ActiveRun *>(words);
    if (threadIdx.x == 0) {
        run->page_size = refresh.page_size;
        run->page_reciprocal = reciprocal_of(refresh.page_size);
        run->passes = uint8_t(plan->passes);
    }
    __syncthreads();
    for (uint32_t worker = threadIdx.x / 32; worker < workers; worker += refresh_threads / 32) {
        EngineFirst *first = &firsts[threadIdx.x / 32];
        if (worker >= refresh.items)
            return;
        const ItemPlace place = item_place(run, worker, workers);
        item_load(&first->item, run, tile_word(run, place.tile, lane), refresh.generation, lane,
                  [&] {
                      const attnd_tile &tile = first->item.tile;
                      if (lane < first_queries)
                          first->q[lane] = query_at(tile, run, place.head, lane);
                      if (lane == 0) {
                          first->item.generation = refresh.generation;
                          first->item.kv_head = place.head;
                          item_plan(&first->item, tile, run, place.head);
                      }
                  });
        first_write(&plan->first[worker], first, lane);
    }
}

/* Arrival counters of the plan, which lie at the end of its mirror: all threads. */
__device__ __forceinline__ void refresh_counters(const EnginePlan *plan,
                                                 const attnd_plan_head *head)
{
    const uint32_t counters = head->merges * head->heads_kv;
    uint32_t *end = reinterpret_cast<uint32_t *>(plan->place.mirror + plan->place.mirror_bytes);
    for (uint32_t i = threadIdx.x; i < counters; i += refresh_threads)
        *(end - 1 - i) = 0;
}

/* Copies what the mirror lacks. All threads. Return: false: the image changed meanwhile. */
__device__ __forceinline__ bool refresh_copy(EngineSession *session, EnginePlan *plan,
                                             Refresh *refresh)
{
    const attnd_plan_image *image = reinterpret_cast<const attnd_plan_image *>(plan->place.image);
    char *mirror = reinterpret_cast<char *>(plan->place.mirror);
    const attnd_plan_head *head = reinterpret_cast<const attnd_plan_head *>(mirror);
    const PlanCopy copy = {reinterpret_cast<const char *>(image) + ATTND_IMAGE_PLAN_AT, mirror,
                           head};
    const bool fresh = plan->set_version != refresh->set_version;
    __syncthreads();
    if (fresh) {
        if (threadIdx.x == 0)
            engine_version(plan, 0); /* until all of it is there */
        __syncthreads();
        if (!refresh_set(plan, copy, refresh))
            return false;
        refresh_counters(plan, head);
    }
    const attnd_entry *entries =
        reinterpret_cast<const attnd_entry *>(mirror + head->entries_offset_bytes);
    if (threadIdx.x == 0)
        refresh->many = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < head->entries; i += refresh_threads)
        if (entries[i].row_count * head->group > 8)
            refresh->many = 1;
    if (threadIdx.x < 32)
        mirror_lengths(copy, refresh->generation, refresh->page_size, fresh, threadIdx.x);
    if (refresh_torn(plan, refresh)) {
        /* Entries may say that page ids are here which were not there yet: all of it once more. */
        if (threadIdx.x == 0)
            plan->set_version = 0;
        return false;
    }
    refresh_words(session, plan, *refresh);
    __syncthreads();
    refresh_first(plan, *refresh, engine_resident(session)->workers);
    if (threadIdx.x == 0) {
        plan->advance_version = refresh->advance_version;
        if (fresh)
            engine_version(plan, refresh->set_version);
    }
    __syncthreads();
    if (fresh) /* runs may have those of the set before, also where this one has none */
        for (uint32_t slot = threadIdx.x; slot < prepared_max; slot += refresh_threads)
            if (session->runs[slot].plan == plan)
                engine_tables(session, slot);
    return true;
}

} // namespace attnd

/* ---- the kernels ---- */

extern "C" {
__device__ attnd_engine_facts attnd_engine_facts_here = {
    sizeof(attnd::EngineSession) + sizeof(attnd::Resident),
    sizeof(attnd::EngineSession),
    offsetof(attnd::EngineSession, templates),
    sizeof(attnd::EngineSession::templates),
    offsetof(attnd::EngineSession, memories),
    offsetof(attnd::EngineSession, errors),
    sizeof(attnd::EnginePlan),
    offsetof(attnd::EnginePlan, fault),
    attnd::prepared_max,
    ATTND_CUT_BYTES,
    ATTND_CUT_REQUEST_BYTES,
    ATTND_CUT_BLOCK_BYTES,
    ATTND_CUT_TILE_BYTES,
};
}

/* @session: zeros, but for templates and memories. @account: in host memory, or NULL. */
extern "C" __global__ void attnd_engine_open(attnd::EngineSession *session, uint32_t workers,
                                             attnd_engine_account *account)
{
    if (threadIdx.x)
        return;
    session->account = account;
    attnd::Settings *settings = attnd::engine_resident(session);
    settings->runs = session->active;
    settings->templates = session->templates;
    settings->memories = session->memories;
    settings->workers = workers;
    settings->paths = attnd::paths_all;
}

extern "C" __global__ void attnd_engine_prepare(attnd::EngineSession *session, attnd_engine_run run)
{
    if (threadIdx.x == 0)
        attnd::engine_resolve(session, run);
}

extern "C" __global__ void attnd_engine_unprepare(attnd::EngineSession *session, uint32_t slot)
{
    if (threadIdx.x == 0)
        session->runs[slot] = {};
}

extern "C" __global__ void __launch_bounds__(attnd::refresh_threads, 1)
    attnd_engine_refresh(attnd::EngineSession *session, attnd::EnginePlan *plan,
                         attnd_engine_plan place, uint32_t lane)
{
    using namespace attnd;
    __shared__ Refresh refresh;
    __shared__ uint32_t there;
    grid_release();
    grid_wait();
    const uint64_t begin_ns = clock_ns();
    if (threadIdx.x == 0) { /* nothing of the lane is in flight, whatever became of the last run */
        Live *live = &engine_resident(session)->live[lane];
        live->next_item = live->next_of[0] = live->next_of[1] = 0;
        plan->left = 0;
    }
    if (threadIdx.x == refresh_threads - 1)
        engine_tell(session, lane);
    for (;;) {
        if (threadIdx.x == 0)
            there = refresh_look(plan, place, begin_ns, &refresh);
        __syncthreads();
        const uint32_t code = there ? refresh.code : ATTND_E_TIMEOUT;
        if (!there || (refresh.wanted && code)) {
            if (threadIdx.x == 0) {
                plan->decision = {0, 0, 0, code, 0};
                plan->set_version = 0;
            }
            return;
        }
        if (!refresh.wanted || refresh_copy(session, plan, &refresh))
            return;
        __syncthreads();
    }
}

/* In front of runs whose lengths only the GPU knows. */
extern "C" __global__ void ATTND_CLUSTER(attnd::cut_blocks)
    __launch_bounds__(attnd::team_threads, 1)
        attnd_engine_cut_lengths(attnd::EngineSession *session, attnd::EnginePlan *plan,
                                 const __grid_constant__ attnd_engine_cut args)
{
    using namespace attnd;
    grid_release();
    grid_wait();
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == team_threads - 1)
        engine_tell(session, args.lane);
    if (blockIdx.x) {
        cluster_arrive();
        cut_beside(session, plan, args, blockIdx.x);
    } else {
        cut_first(session, plan, args);
    }
}

/* In front of a run, after the refresh or cut of its plan. */
extern "C" __global__ void attnd_engine_rotate(attnd::EngineSession *session,
                                               const attnd::EnginePlan *plan, uint32_t slot,
                                               uint32_t serial, uint32_t lane,
                                               const __grid_constant__ attnd_engine_fused args)
{
    using namespace attnd;
    grid_release();
    grid_wait();
    const EngineDecision decision = plan->decision;
    const EngineRun prepared = session->runs[slot];
    if (decision.code || prepared.plan != plan || prepared.serial != serial)
        return; /* the run says so */
    const ActiveRun *run = rotate_run(session, plan, slot);
    if (!rotate_all(args, run, &session->active[slot].tables, decision))
        set_if_zero(&session->errors[lane], uint32_t(ATTND_E_RANGE));
}
