/*
 * cut.cuh - a plan whose lengths only the GPU knows, made once a step in the engine's stream: the
 * first block of a cluster cuts the lengths into tiles, the others look at the page ids meanwhile.
 *
 * Page ids are seldom wrong, so the first block does not wait for what the others find, until its
 * tiles are to be written; if a request is refused then, it cuts once more. Nothing depends on what
 * the others find but which requests are: every page id is held against the pool once more where it
 * is used, and every place in the table follows from what the first block has read.
 */
#ifndef ATTND_PERSISTENT_CUDA_ENGINE_CUT_CUH
#define ATTND_PERSISTENT_CUDA_ENGINE_CUT_CUH

#include "persistent/cuda/engine/tables.cuh"
#include "persistent/cuda/engine/team.cuh"
#include "persistent/cuda/items/item.cuh"
#include "persistent/cuda/state/engine.cuh"

namespace attnd
{

constexpr uint32_t cut_blocks = 8;

/* The first block's, beside the arrays of struct attnd_cut. */
struct CutShared {
    alignas(16) uint32_t words[offsetof(ActiveRun, k_map) / 4];       /* the run's, from its plan */
    attnd_tile tiles[engine_workers_max];                             /* first tiles of workers */
    uint32_t heads[engine_workers_max], partials[engine_workers_max]; /* of the merge's parts */
    uint32_t first_of[engine_workers_max];                            /* which tile stands there */
    uint32_t pages_refused, refused; /* 1: a request is, for its pages; for anything */
};

__device__ __forceinline__ CutShared *cut_shared()
{
    __shared__ CutShared shared;
    return &shared;
}

/* In front of the arrays: a bit for each request whose pages are refused. */
__device__ __forceinline__ uint32_t *cut_refused_bits()
{
    extern __shared__ uint4 cut_memory[];
    return reinterpret_cast<uint32_t *>(cut_memory);
}

__device__ __forceinline__ uint32_t cut_bit_words(uint32_t requests)
{
    return (requests + 127) / 128 * 4;
}

/* Says that a request, or all of them, is refused; the first one since the host has asked is told
 * in detail. One thread. */
__device__ __forceinline__ void cut_report(EngineSession *session, EnginePlan *plan, uint32_t lane,
                                           uint32_t field, uint32_t index, int64_t value,
                                           int64_t limit)
{
    if (!set_if_zero(&session->errors[lane], ATTND_E_RANGE))
        return;
    plan->fault = {-ATTND_E_RANGE, field, index, value, limit};
}

/* ---- the other blocks ---- */

/* The first key that a row of the request sees, or one in front of it. */
__device__ __forceinline__ uint32_t first_key(const attnd_cut_shape &shape, int32_t length,
                                              uint32_t rows)
{
    const int64_t first = int64_t(length) - rows + 1 - int64_t(shape.window);
    const uint32_t granule = shape.pace.granule;
    return shape.window && first > 0 ? uint32_t(first) / granule * granule : 0;
}

/* Looks at the page ids of @request, a warp. */
__device__ __forceinline__ void check_pages(EngineSession *session, EnginePlan *plan,
                                            const attnd_engine_cut &cut, uint32_t request)
{
    constexpr uint32_t at_once = 8;
    const attnd_cut_shape &shape = cut.shape;
    const uint32_t lane = threadIdx.x % 32;
    const int32_t *qo = reinterpret_cast<const int32_t *>(cut.qo_indptr);
    const int32_t length = reinterpret_cast<const int32_t *>(cut.lengths)[request];
    const uint32_t rows =
        shape.rows_each ? shape.rows_each : uint32_t(qo[request + 1]) - uint32_t(qo[request]);
    if (length <= 0 || uint32_t(length) > shape.keys || rows - 1 >= shape.rows)
        return;
    const uint32_t *pages =
        reinterpret_cast<const uint32_t *>(cut.table) + uint64_t(request) * shape.table_stride;
    const uint32_t end = (uint32_t(length) + shape.page_size - 1) / shape.page_size;
    for (uint32_t base = first_key(shape, length, rows) / shape.page_size; base < end;
         base += 32 * at_once) {
        uint32_t page[at_once];
        bool bad = false;
#pragma unroll
        for (uint32_t i = 0; i < at_once; i++) {
            const uint32_t at = base + i * 32 + lane;
            page[i] = at < end ? __ldcg(pages + at) : 0;
        }
        uint32_t which = 0;
#pragma unroll
        for (uint32_t i = 0; i < at_once; i++)
            if (page[i] >= cut.pages) {
                bad = true;
                which = page[i];
            }
        const uint32_t lanes = __ballot_sync(0xffffffffu, bad);
        if (!lanes)
            continue;
        if (lane == uint32_t(__ffs(int(lanes)) - 1)) {
            cut_report(session, plan, cut.lane, ATTND_F_KV_INDICES, request, int32_t(which),
                       int64_t(cut.pages) - 1);
            set_bits(cut_refused_bits() + request / 32, 1u << request % 32);
            cut_shared()->pages_refused = 1;
        }
        return;
    }
}

/* Runs of the plan find its tables; the last block. What a graph has captured may be of another
 * shape than the last one's. */
__device__ __forceinline__ void cut_tables(EngineSession *session, EnginePlan *plan,
                                           const attnd_engine_cut &cut)
{
    constexpr uint32_t tabled = ATTND_OPTION_SINKS | ATTND_OPTION_MASK | ATTND_OPTION_HEAD_SCALES;
    if (plan->set_version == cut.set_version && !(cut.head.options & tabled))
        return;
    uint32_t *front = reinterpret_cast<uint32_t *>(cut.mirror);
    const uint32_t *head = reinterpret_cast<const uint32_t *>(&cut.head);
    if (threadIdx.x == 0)
        engine_version(plan, 0);
    __syncthreads();
    if (threadIdx.x < (sizeof(cut.head) + sizeof(cut.variant)) / 4)
        front[threadIdx.x] = head[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        plan->place.mirror = cut.mirror;
        engine_version(plan, cut.set_version); /* as the first block will have it */
    }
    __syncthreads();
    for (uint32_t slot = threadIdx.x; slot < prepared_max; slot += team_threads)
        if (session->runs[slot].plan == plan)
            engine_tables(session, slot);
}

/* Where there are no clusters: the first block, which is alone, does what the others do. */
__device__ __forceinline__ void cut_alone(EngineSession *session, EnginePlan *plan,
                                          const attnd_engine_cut &args)
{
    for (uint32_t request = threadIdx.x / 32; request < args.shape.requests; request += team_warps)
        check_pages(session, plan, args, request);
    cut_tables(session, plan, args);
    __syncthreads();
}

/* Blocks behind the first. */
__device__ __forceinline__ void cut_beside(EngineSession *session, EnginePlan *plan,
                                           const attnd_engine_cut &cut, uint32_t rank)
{
    uint32_t *bits = cut_refused_bits();
    const uint32_t words = cut_bit_words(cut.shape.requests);
    for (uint32_t i = threadIdx.x; i < words; i += team_threads)
        bits[i] = 0;
    if (threadIdx.x == 0)
        cut_shared()->pages_refused = 0;
    __syncthreads();
    for (uint32_t request = (rank - 1) * team_warps + threadIdx.x / 32;
         request < cut.shape.requests; request += (cut_blocks - 1) * team_warps)
        check_pages(session, plan, cut, request);
    if (rank == cut_blocks - 1)
        cut_tables(session, plan, cut);
    __syncthreads();
    cluster_wait(); /* the first block has cleared its bits */
    if (cut_shared()->pages_refused) {
        for (uint32_t i = threadIdx.x; i < words; i += team_threads)
            if (bits[i])
                cluster_set_bits(bits + i, 0, bits[i]);
        if (threadIdx.x == 0)
            cluster_set_bits(&cut_shared()->pages_refused, 0, 1);
    }
    cluster_arrive();
    cluster_wait();
}

/* ---- what the first one writes ---- */

/* Tiles, and lists of parts, in the mirror. */
__device__ __forceinline__ void write_tiles(const attnd_team *team, const attnd_engine_cut &args,
                                            const attnd_cut &cut, const attnd_cut_result &result)
{
    const attnd_cut_shape *shape = &args.shape;
    uint4 *tiles = reinterpret_cast<uint4 *>(args.mirror + args.tiles_at);
    attnd_merge *merges = reinterpret_cast<attnd_merge *>(args.mirror + args.merges_at);
    uint32_t *parts = reinterpret_cast<uint32_t *>(args.mirror + args.parts_at);
    for (uint32_t t = team->thread; t < result.tiles; t += team_threads) {
        const uint32_t b = attnd_cut_block_at(&cut, result.blocks, t);
        const uint32_t part = t - cut.place[b].tile, place = cut.order[t];
        union {
            attnd_tile tile;
            uint4 vectors[sizeof(attnd_tile) / 16];
        };
        attnd_cut_tile(shape, &cut, b, part, &tile);
#pragma unroll
        for (uint32_t v = 0; v < sizeof(attnd_tile) / 16; v++)
            tiles[place * (sizeof(attnd_tile) / 16) + v] = vectors[v];
        if (place < engine_workers_max)
            cut_shared()->first_of[place] = t;
        if (tile.merge_count && part == 0)
            merges[tile.merge_begin] = tile.first_merge;
        if (tile.merge_count && tile.first_merge.part_begin)
            parts[tile.first_merge.part_begin + part] = tile.partial;
    }
}

/* What runs read of requests, and what the engine is told of them. */
__device__ __forceinline__ void write_requests(const attnd_team *team, EngineSession *session,
                                               EnginePlan *plan, const attnd_engine_cut &args,
                                               const attnd_cut &cut)
{
    int32_t *lengths = reinterpret_cast<int32_t *>(args.mirror + args.lengths_at);
    uint32_t *errors = reinterpret_cast<uint32_t *>(args.errors);
    const int32_t *given = reinterpret_cast<const int32_t *>(args.lengths);
    for (uint32_t r = team->thread; r < args.shape.requests; r += team_threads) {
        const int32_t length = cut.kv_len[r];
        lengths[r] = max(length, 0);
        if (errors)
            errors[r] = length < 0 ? ATTND_E_RANGE : 0;
        if (length >= 0)
            continue;
        cut_shared()->refused = 1;
        if (!(cut_refused_bits()[r / 32] >> r % 32 & 1))
            cut_report(session, plan, args.lane, ATTND_F_KV_LEN, r, given[r], args.shape.keys);
    }
}

/* The list of parts of refused requests: rows that see nothing, and behind these such as are no
 * number. */
__device__ __forceinline__ void write_refused(const attnd_team *team, const attnd_engine_cut &args)
{
    uint32_t *parts = reinterpret_cast<uint32_t *>(args.mirror + args.parts_at);
    const uint32_t states = args.shape.tokens * args.head.heads_q;
    if (team->thread < ATTND_CUT_REFUSED_PARTS)
        parts[team->thread] = team->thread * args.shape.tokens;
    for (uint32_t i = team->thread; i < states; i += team_threads)
        reinterpret_cast<float2 *>(args.states)[states + i] = make_float2(0.0f, NAN);
}

/* The words of runs that follow from the plan. All threads; it ends with a sync. */
__device__ __forceinline__ void fill_words(const attnd_team *team, const attnd_engine_cut &args,
                                           const attnd_cut_result &result)
{
    ActiveRun *words = reinterpret_cast<ActiveRun *>(cut_shared()->words);
    const uint32_t head_words = sizeof(attnd_plan_head) / 4;
    for (uint32_t i = team->thread; i < sizeof(cut_shared()->words) / 4; i += team_threads)
        cut_shared()->words[i] =
            i < head_words ? reinterpret_cast<const uint32_t *>(&args.head)[i] : 0;
    __syncthreads();
    if (team->thread == 0) {
        const uint32_t many = result.rows_max > 8;
        words->plan.tiles = result.tiles;
        words->plan.merges = result.merges;
        words->plan.parts = result.parts;
        words->plan.partial_rows = result.partials;
        words->plan.compute_tiles = result.compute_tiles;
        words->plan.compute_workers = uint16_t(result.compute_workers);
        words->plan.whole_tiles = uint16_t(result.whole_tiles);
        words->plan.flags |= result.classes == 3 || result.uneven ? ATTND_PLAN_ONE_PASS : 0;
        words->tiles = reinterpret_cast<const attnd_tile *>(args.mirror + args.tiles_at);
        words->merges = reinterpret_cast<const attnd_merge *>(args.mirror + args.merges_at);
        words->merge_parts = reinterpret_cast<const uint32_t *>(args.mirror + args.parts_at);
        words->kv_pages = reinterpret_cast<const int32_t *>(args.table);
        words->kv_len = reinterpret_cast<const int32_t *>(args.mirror + args.lengths_at);
        words->arrivals = reinterpret_cast<uint32_t *>(args.arrivals);
        words->states = reinterpret_cast<float *>(args.states);
        words->outputs = reinterpret_cast<float *>(args.outputs);
        words->group_reciprocal = reciprocal_of(args.shape.group);
        words->heads_reciprocal = reciprocal_of(args.shape.heads_kv);
        words->passes = uint8_t(many);
        words->page_size = args.shape.page_size; /* for items: no word of the plan's */
        words->page_reciprocal = reciprocal_of(args.shape.page_size);
    }
    __syncthreads();
}

/* The plan's block, but for first items. @code: why nothing is to be executed. */
__device__ __forceinline__ void write_plan(const attnd_team *team, const EngineSession *session,
                                           EnginePlan *plan, const attnd_engine_cut &args,
                                           uint32_t tiles, uint32_t code)
{
    const ActiveRun *words = reinterpret_cast<const ActiveRun *>(cut_shared()->words);
    const attnd_plan_head *head = &args.head;
    if (team->thread < sizeof(plan->words) / 16)
        reinterpret_cast<uint4 *>(plan->words)[team->thread] =
            reinterpret_cast<const uint4 *>(cut_shared()->words)[team->thread];
    if (team->thread != team_threads - 1)
        return;
    const uint32_t variant =
        variant_index(head->dim_qk, head->dim_vo, head->dtype, head->kv_dtype, head->options);
    if (!tables_there(session, head->options, args.variant))
        code = ATTND_E_UNKNOWN;
    if (variant == variants_count)
        code = ATTND_E_UNSUPPORTED;
    plan->decision = {code ? 0 : tiles * args.shape.heads_kv, uint16_t(variant), 0, code, 0};
    plan->odd = head->q_pitch.row % 8 || head->q_pitch.head % 8;
    plan->passes = words->passes;
    plan->set_version = args.set_version;
    plan->advance_version = 0;
}

/* Of what worker @worker begins with, what a warp writes. @page: of the item's, this lane's;
 * @tokens: of a block. */
inline __device__ __noinline__ void write_item(EngineFirst *to, uint32_t worker, int32_t page,
                                               uint32_t tokens)
{
    const uint32_t lane = threadIdx.x % 32;
    const CutShared *shared = cut_shared();
    const ActiveRun *run = reinterpret_cast<const ActiveRun *>(shared->words);
    const attnd_tile &tile = shared->tiles[worker];
    const attnd_merge merge = tile.first_merge;
    /* Parts lie side by side; those of refused requests are no exception. */
    const uint32_t rows = merge.part_begin ? tile.row_count : tokens;
    to->item.pages[lane] = page;
    to->item.parts[lane] = lane < merge.part_count ? shared->partials[worker] + lane * rows : 0;
    if (lane < sizeof(tile) / 4)
        reinterpret_cast<uint32_t *>(&to->item.tile)[lane] =
            reinterpret_cast<const uint32_t *>(&tile)[lane];
    if (lane < first_queries)
        to->q[lane] = query_at(tile, run, shared->heads[worker], lane);
}

/* First items of workers. A lane makes one of them, then a warp finds and writes what each needs.
 */
__device__ __forceinline__ void write_first(const attnd_team *team, EnginePlan *plan,
                                            const attnd_engine_cut &args, const attnd_cut &cut,
                                            const attnd_cut_result &result)
{
    constexpr uint32_t each = engine_workers_max / team_warps;
    CutShared *shared = cut_shared();
    const attnd_cut_shape *shape = &args.shape;
    /* Of a fused plan workers ask for all of theirs. */
    const uint32_t items = result.compute_tiles ? 0 : result.tiles * shape->heads_kv;
    const uint32_t workers = min(shape->workers, items);
    if (team->thread < workers) {
        const ItemPlace place = item_place(reinterpret_cast<const ActiveRun *>(shared->words),
                                           team->thread, shape->workers);
        const uint32_t t = shared->first_of[place.tile];
        const uint32_t b = attnd_cut_block_at(&cut, result.blocks, t);
        attnd_cut_tile(shape, &cut, b, t - cut.place[b].tile, &shared->tiles[team->thread]);
        const attnd_tile &tile = shared->tiles[team->thread];
        PlannedItem *item = &plan->first[team->thread].item;
        item->generation = 0;
        item->kv_head = place.head;
        item_plan(item, tile, reinterpret_cast<const ActiveRun *>(shared->words), place.head);
        item_ends(item, tile, reinterpret_cast<const ActiveRun *>(shared->words),
                  max(cut.kv_len[tile.entry], 0));
        shared->heads[team->thread] = place.head;
        shared->partials[team->thread] = attnd_cut_partial(shape, &cut, b);
    }
    __syncthreads();
    int32_t pages[each];
#pragma unroll
    for (uint32_t i = 0; i < each; i++) {
        const uint32_t worker = i * team_warps + team->group;
        const attnd_tile *tile = &shared->tiles[worker];
        const uint32_t page =
            worker < workers ? tile->kv_begin / shape->page_size + team->lane : ATTND_NONE;
        pages[i] = 0;
        if (worker < workers && page < tile->of_entry.page_count)
            pages[i] = __ldcg(reinterpret_cast<const int32_t *>(args.table) +
                              tile->of_entry.page_begin + page);
    }
#pragma unroll
    for (uint32_t i = 0; i < each; i++) {
        const uint32_t worker = i * team_warps + team->group;
        if (worker >= workers)
            return;
        write_item(&plan->first[worker], worker, pages[i], shape->tokens);
    }
}

/* ---- the first block ---- */

/* Tiles of all requests that are not refused, once it is known which these are. All threads, all of
 * which are between two phases of the cluster's barrier. */
__device__ __forceinline__ attnd_cut_result cut_all(const attnd_team *team,
                                                    const attnd_engine_cut &args,
                                                    const attnd_cut &cut)
{
    attnd_cut_result result;
    for (bool known = false;; known = true) {
        result = attnd_cut_batch(team, &args.shape, &cut);
        if (known)
            return result;
        cluster_wait();
        cluster_arrive();
        cluster_wait(); /* the others have looked at all pages */
        if (!cut_shared()->pages_refused)
            return result;
        for (uint32_t r = team->thread; r < args.shape.requests; r += team_threads)
            if (cut_refused_bits()[r / 32] >> r % 32 & 1)
                cut.kv_len[r] = -1;
        __syncthreads();
    }
}

/* qo_indptr is no such array: nobody knows whose a row is. */
__device__ __forceinline__ void refuse_rows(const attnd_team *team, EngineSession *session,
                                            EnginePlan *plan, const attnd_engine_cut &args)
{
    uint32_t *errors = reinterpret_cast<uint32_t *>(args.errors);
    for (uint32_t r = team->thread; errors && r < args.shape.requests; r += team_threads)
        errors[r] = ATTND_E_RANGE;
    if (team->thread == 0)
        cut_report(session, plan, args.lane, ATTND_F_QO_INDPTR, 0, 0, args.shape.rows);
    write_plan(team, session, plan, args, 0, ATTND_E_RANGE);
}

__device__ __forceinline__ void cut_first(EngineSession *session, EnginePlan *plan,
                                          const attnd_engine_cut &args)
{
    const attnd_team team = attnd_team_here();
    const uint32_t bit_words = cut_bit_words(args.shape.requests);
    attnd_cut cut;
    (void)attnd_cut_lay(&cut, cut_refused_bits() + bit_words, args.shape.requests, args.blocks_max,
                        args.tiles_max);
    for (uint32_t i = team.thread; i < bit_words; i += team_threads)
        cut_refused_bits()[i] = 0;
    if (team.thread == 0) {
        cut_shared()->pages_refused = cut_shared()->refused = 0;
        Live *live = &engine_resident(session)->live[args.lane];
        live->next_item = live->next_of[0] = live->next_of[1] = 0;
        plan->left = 0;
    }
    cluster_arrive();
    if (portable) {
        __syncthreads();
        cut_alone(session, plan, args);
    }
    attnd_cut_requests(&team, &args.shape, &cut, reinterpret_cast<const int32_t *>(args.lengths),
                       reinterpret_cast<const int32_t *>(args.qo_indptr));
    attnd_cut_result result = {};
    const bool refused = *cut.rows_refused;
    if (refused) {
        cluster_wait();
        cluster_arrive();
        cluster_wait();
    } else {
        result = cut_all(&team, args, cut);
    }
    fill_words(&team, args, result);
    if (refused) {
        refuse_rows(&team, session, plan, args);
        return;
    }
    write_requests(&team, session, plan, args, cut);
    write_tiles(&team, args, cut, result);
    write_plan(&team, session, plan, args, result.tiles, 0);
    __syncthreads();
    if (cut_shared()->refused)
        write_refused(&team, args);
    write_first(&team, plan, args, cut, result);
}

} // namespace attnd

#endif
