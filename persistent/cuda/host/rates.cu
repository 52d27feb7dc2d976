/*
 * rates.cu - rates of the GPU's tile workers, by runs of plans whose work is known.
 */
#include "persistent/cuda/host/rates.cuh"

#include "persistent/cuda/host/clock.cuh"
#include "persistent/cuda/host/helper.cuh"
#include "persistent/cuda/host/solo.cuh"

extern "C" {
#include "persistent/plan/plan.h"
#include "schemas/atomics.h"
}

#include <algorithm>
#include <string.h>
#include <vector>

namespace attnd
{

constexpr uint32_t dim = 128, group = 4, page_tokens = 64, chunk_tokens = 128 / group;
/* Keys of a tile; where all tiles read the same, its pages come round again and again. Where all
 * workers read the memory each has several tiles: those that are given less of it take fewer. */
constexpr uint32_t keys_own = 8192, keys_same = 16384, pages_same = 64;
constexpr uint32_t tiles_each = 3, keys_each = keys_own / tiles_each / 128 * 128;
constexpr uint32_t key_bytes = 2 * 2 * dim; /* a row of K and one of V */
constexpr double tile_row_flops = 4.0 * dim;
/* Each probe is run so often, some milliseconds, in which the clock goes down to what its power
 * allows. */
constexpr uint32_t times = 32;
/* All of it, and then the end of the kernels: the daemon waits 10 s for its worker. */
constexpr uint64_t measure_ns = 1000000000, leave_ns = 1000000000;
/* With fewer workers the keys of a probe would find room in the L2. */
constexpr uint32_t workers_least = 96;
constexpr uint64_t table_bytes = 1 << 16;
constexpr uint64_t page_bytes = page_tokens * dim * 2; /* of a plane */

/* A plan: each request is one tile. */
struct Probe {
    uint32_t requests, tokens, keys;
    bool same; /* all read the same pages */
};

/* All that is measured with. */
struct Bench {
    uint32_t workers, pages;
    uint64_t kv_bytes, rows_bytes;
    char *kv, *q, *o;
    Solo solo;
    cudaStream_t stream;
    uint64_t deadline_ns;
    uint64_t plan_bytes; /* of a plan's place in the heap */
    attnd_plan *plan;
    attnd_plan_limits limits;
};

/* Numbers of fp16 between 1/8 and 2, of either sign. */
static __global__ void fill(uint16_t *to, uint64_t count)
{
    for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < count;
         i += uint64_t(gridDim.x) * blockDim.x) {
        const uint32_t mixed = (uint32_t(i) * 2654435761u ^ uint32_t(i >> 7)) * 2246822519u;
        to[i] = uint16_t((mixed >> 16 & 0x8000) | (0x3000 + (mixed >> 8 & 0xfff)));
    }
}

static attnd_heap_pool *describe_pool(const Bench &bench, char *at)
{
    attnd_heap_pool *pool = reinterpret_cast<attnd_heap_pool *>(at);
    attnd_heap_plane *planes = reinterpret_cast<attnd_heap_plane *>(pool + 1);
    *pool = {1, bench.pages, page_tokens, 1, dim, dim, ATTND_FP16, 0};
    for (uint32_t i = 0; i < 2; i++)
        planes[i] = {0, 0, i * bench.kv_bytes / 2, page_tokens * dim, dim, dim};
    return pool;
}

/* Waits for what a stream has, until the time is over. */
static cudaError_t settled(cudaStream_t stream, uint64_t end_ns)
{
    cudaError_t error;
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady && attnd_clock_ns() < end_ns)
        ;
    return error;
}

/* The kernels leave by themselves if this process stands still, and others have the GPU again. */
static void beat(const Bench &bench)
{
    attnd_poke32(&bench.solo.words->heartbeat_ms,
                 clock_beat_ms(bench.solo.settings.host_clock_offset_ns));
}

static cudaError_t open(Bench *bench)
{
    const uint64_t rows = uint64_t(bench->workers) * chunk_tokens * group;
    cudaError_t error;
    bench->pages = bench->workers * (keys_own / page_tokens);
    bench->kv_bytes = bench->pages * page_bytes * 2;
    bench->rows_bytes = rows * dim * 2;
    bench->limits.requests = bench->workers * tiles_each;
    bench->limits.rows = bench->workers * chunk_tokens;
    bench->limits.pages = bench->workers * (keys_same / page_tokens);
    bench->limits.levels = 1;
    bench->limits.page_size = page_tokens;
    bench->limits.heads_q = group;
    bench->limits.heads_kv = 1;
    bench->limits.target.tile_workers = bench->limits.requests; /* the most of any probe */
    bench->limits.target.rows_per_tile = chunk_tokens * group;
    bench->limits.target.kv_granule = page_tokens;
    bench->limits.target.fusion = ATTND_FUSION_OFF;
    bench->limits.target.cascade = ATTND_CASCADE_OFF;
    bench->plan_bytes = attnd_plan_heap_bytes(&bench->limits);
    if ((error = cudaMalloc(&bench->kv, bench->kv_bytes)) ||
        (error = cudaMalloc(&bench->q, bench->rows_bytes)) ||
        (error = cudaMalloc(&bench->o, bench->rows_bytes)))
        return error;
    fill<<<1024, 256>>>(reinterpret_cast<uint16_t *>(bench->kv), bench->kv_bytes / 2);
    fill<<<1024, 256>>>(reinterpret_cast<uint16_t *>(bench->q), bench->rows_bytes / 2);
    const Memory table[] = {{bench->kv, bench->kv_bytes, 0, 0},
                            {bench->q, bench->rows_bytes, 0, 0},
                            {bench->o, bench->rows_bytes, 0, 0}};
    if ((error = cudaStreamCreateWithFlags(&bench->stream, cudaStreamNonBlocking)) ||
        (error = solo_open(&bench->solo, table_bytes + bench->plan_bytes, bench->workers, 1 << 20,
                           table, 3)) ||
        (error = settled(cudaStreamLegacy, bench->deadline_ns)))
        return error;
    return clock_offset(&bench->solo.words->clock_ns, bench->stream, bench->deadline_ns,
                        &bench->solo.settings.host_clock_offset_ns);
}

/* The kernels are told to leave, and waited for. Those that have had no SM until now leave when
 * they get one: what they use stays. */
static void close(Bench *bench)
{
    attnd_plan_free(bench->plan);
    if (bench->solo.queue)
        solo_park(bench->solo);
    const uint64_t end_ns = attnd_clock_ns() + leave_ns;
    if (settled(cudaStreamLegacy, end_ns) == cudaErrorNotReady ||
        (bench->stream && settled(bench->stream, end_ns) == cudaErrorNotReady)) {
        (void)cudaGetLastError();
        return;
    }
    if (bench->solo.queue)
        solo_close(&bench->solo);
    if (bench->stream)
        (void)cudaStreamDestroy(bench->stream);
    for (char *memory : {bench->kv, bench->q, bench->o})
        (void)cudaFree(memory);
    (void)cudaGetLastError();
}

/* A plan for as many workers as the probe has requests, or requests would be split. */
static bool new_plan(Bench *bench, const Probe &probe)
{
    char *heap = bench->solo.queue + solo_heap_at;
    attnd_plan_free(bench->plan);
    bench->plan = nullptr;
    memset(heap, 0, table_bytes + bench->plan_bytes);
    bench->limits.target.tile_workers = probe.requests;
    return !attnd_plan_new(&bench->limits, heap + table_bytes, describe_pool(*bench, heap),
                           solo_heap_at, &bench->plan);
}

/* @turn: plans of different turns read different pages, as far as there are: none is in the L2.
 * Return: false if the plan is not what a probe must be. */
static bool set_plan(Bench *bench, const Probe &probe, uint32_t turn)
{
    const uint32_t pages = probe.keys / page_tokens, all = probe.requests * pages;
    const uint32_t first = probe.same ? 0 : turn * all % (bench->pages - all + 1);
    std::vector<int32_t> rows(probe.requests + 1), lists(probe.requests + 1), ids(all),
        last(probe.requests, int32_t(page_tokens));
    attnd_batch_view batch = {};
    attnd_fault fault = {};
    for (uint32_t i = 0; i <= probe.requests; i++) {
        rows[i] = int32_t(i * probe.tokens);
        lists[i] = int32_t(i * pages);
    }
    for (uint32_t i = 0; i < all; i++)
        ids[i] = int32_t(probe.same ? i % pages_same : first + i);
    batch.rows = probe.requests * probe.tokens;
    batch.levels = 1;
    batch.entries = probe.requests;
    batch.pages = all;
    batch.heads_q = group;
    batch.dtype = ATTND_FP16;
    batch.variant.size = ATTND_VARIANT_BYTES;
    batch.variant.window_left = -1;
    batch.sm_scale = 0.01f;
    batch.q_pitch = batch.o_pitch = {group * dim, dim};
    batch.level[0] = {probe.requests, all, rows.data(), lists.data(), ids.data(), last.data()};
    return !attnd_planner_set(bench->plan, &batch, &fault) &&
           attnd_plan_items(attnd_plan_head(bench->plan), ATTND_RUN_ATTEND) == probe.requests;
}

/* The median, in nanoseconds: from the publication to the last item. */
static cudaError_t time_probe(Bench *bench, const Probe &probe, double *ns)
{
    const uint64_t plan_at = solo_heap_at + table_bytes;
    attnd_run run = {};
    run.kind = ATTND_RUN_ATTEND;
    run.plan_offset_bytes = plan_at;
    run.items = probe.requests;
    run.q = {1, 0, 0};
    run.o = {2, 0, 0};
    run.lse = run.k = run.v = {ATTND_NONE, 0, 0};
    run.mailbox = ATTND_NONE;
    double seen[times];
    for (uint32_t turn = 0; turn < times; turn++) {
        attnd_retire retire;
        const uint32_t number = bench->solo.tail;
        const uint64_t now_ns = attnd_clock_ns();
        if (!set_plan(bench, probe, turn))
            return cudaErrorNotSupported;
        beat(*bench);
        solo_ring(&bench->solo, &run);
        if (now_ns >= bench->deadline_ns ||
            solo_wait(bench->solo, number, bench->deadline_ns - now_ns, &retire))
            return cudaErrorNotReady;
        if (retire.code)
            return cudaErrorNotSupported;
        seen[turn] = double(retire.end_ns - retire.begin_ns);
    }
    std::nth_element(seen, seen + times / 2, seen + times);
    *ns = seen[times / 2];
    return cudaSuccess;
}

/* Keys of a tile in a nanosecond: what half of a probe's keys add. */
static cudaError_t keys_a_ns(Bench *bench, Probe probe, double *rate)
{
    double whole = 0, half = 0;
    if (!new_plan(bench, probe))
        return cudaErrorMemoryAllocation;
    cudaError_t error = time_probe(bench, probe, &whole);
    probe.keys /= 2;
    if (!error)
        error = time_probe(bench, probe, &half);
    if (!error && whole <= half)
        error = cudaErrorNotReady;
    *rate = probe.keys / (whole - half);
    return error;
}

/* All kernels are enqueued before one begins: workers that come behind a dispatcher that has begun
 * wait for its end, and it for them. */
static cudaError_t launch(attnd_backend *backend, Bench *bench)
{
    const uint32_t variant = variant_index(dim, dim, ATTND_FP16, ATTND_FP16, 0);
    cudaError_t error = resident_upload(bench->solo.resident, &bench->solo.settings, 1u << variant);
    if (error || (error = gate_close(backend, bench->stream)))
        return error;
    beat(*bench);
    error = resident_arm(bench->solo.resident, &bench->solo.settings, 1, bench->stream);
    gate_open(backend);
    return error;
}

static cudaError_t measure(Bench *bench, MeasuredRates *rates)
{
    const uint32_t all = bench->workers, few = std::max(all / 4, 1u);
    double computed = 0, alone = 0, again = 0, read = 0;
    cudaError_t error;
    if ((error = keys_a_ns(bench, {all, chunk_tokens, keys_same, true}, &computed)) ||
        (error = keys_a_ns(bench, {few, 1, keys_own, false}, &alone)) ||
        (error = keys_a_ns(bench, {all, 1, keys_same, true}, &again)) ||
        (error = keys_a_ns(bench, {all * tiles_each, 1, keys_each, false}, &read)))
        return error;
    *rates = {computed * chunk_tokens * group * tile_row_flops, alone * key_bytes,
              again * key_bytes, read * key_bytes * all * tiles_each};
    return cudaSuccess;
}

cudaError_t rates_measure(attnd_backend *backend, MeasuredRates *rates)
{
    Bench bench = {};
    const uint32_t workers = uint32_t(backend->workers);
    if (workers < workers_least ||
        !(variants_there() >> variant_index(dim, dim, ATTND_FP16, ATTND_FP16, 0) & 1))
        return cudaErrorNotSupported;
    bench.workers = workers;
    bench.deadline_ns = attnd_clock_ns() + measure_ns;
    cudaError_t error = open(&bench);
    if (!error)
        error = launch(backend, &bench);
    if (!error)
        error = measure(&bench, rates);
    close(&bench);
    return error;
}

} // namespace attnd
