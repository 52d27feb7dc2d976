/*
 * calibrate.cu - how fast a tile is on the tensor cores, on the memory, and on the L2.
 *
 * At the worker's start, before any run, the kernels execute plans of one wave: an item for each
 * worker, all alike, once with many keys and once with half of them. The difference of the two
 * times is what these keys take, without what a run and an item take beside them. There are four
 * such pairs: rows that fill a tile, over keys that all read; one row over keys that all read; one
 * row each over keys of its own, on all workers; and the same on so few that the memory keeps up.
 * In front of those that are to read the memory others have read as much, so that nothing of it is
 * left in the L2.
 */
#include "persistent/cuda/calibrate.cuh"

extern "C" {
#include "persistent/plan/plan.h"
}

#include <algorithm>
#include <iterator>
#include <string.h>
#include <time.h>
#include <vector>

using attnd::Memory;
using attnd::Solo;

namespace
{

constexpr uint32_t heads_q = 32, heads_kv = 8, dim = 128, page_size = 16;
constexpr uint32_t tile_rows = 128, tile_tokens = tile_rows / (heads_q / heads_kv);
constexpr uint32_t keys_many = 4096, keys_few = keys_many / 2, keys_between = 2048;
constexpr uint32_t pages_own = keys_many / page_size, pages_between = keys_between / page_size;
constexpr uint32_t variant = attnd::variant_index(dim, dim, ATTND_FP16, ATTND_FP16, 0);
constexpr uint32_t few_requests = 2; /* 16 workers: they read a quarter of what the memory gives */
constexpr uint32_t rounds = 5;
/* A neighbour may hold all SMs, for a moment or for good. */
constexpr uint64_t run_timeout_ns = 200000000, end_timeout_ns = 200000000;
/* What is measured is believed if it is within this factor of what clocks say. */
constexpr double believed = 1.7;

enum Pair { pair_products, pair_l2, pair_memory, pair_alone, pairs_count };

/* A plan: so many requests of so many tokens, over so many keys. */
struct Shape {
    uint32_t requests, tokens, keys;
    bool own;          /* each request has pages of its own; else all have those of the first */
    uint32_t pages_at; /* of the pool: the first request's first page */
    uint32_t pages;    /* from one request's first page to the next one's, in the pool */
};

struct Planned {
    uint64_t offset_bytes;
    uint32_t items;
};

/* All there is for the time of the measurement. */
struct Calibration {
    uint32_t requests; /* one for each eight workers */
    uint32_t pool_pages;
    uint64_t plane_bytes, rows_bytes;
    char *kv, *rows;
    Solo solo;
    cudaStream_t streams[2]; /* the dispatcher's, the workers' */
    Planned many[pairs_count], few[pairs_count], between;
};

uint64_t now_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000ull + uint64_t(now.tv_nsec);
}

Shape shape_of(const Calibration &c, Pair pair, uint32_t keys)
{
    const bool own = pair == pair_memory || pair == pair_alone;
    return {pair == pair_alone ? few_requests : c.requests,
            pair == pair_products ? tile_tokens : 1,
            keys,
            own,
            0,
            pages_own};
}

/* What is read in between lies behind all of those. */
Shape shape_between(const Calibration &c)
{
    return {c.requests, 1, keys_between, true, c.requests * pages_own, pages_between};
}

attnd_plan_limits limits_of(const Shape &shape)
{
    attnd_plan_limits limits = {};
    limits.requests = shape.requests;
    limits.rows = shape.requests * shape.tokens;
    limits.pages = shape.requests * (shape.keys / page_size);
    limits.levels = 1;
    limits.page_size = page_size;
    limits.heads_q = heads_q;
    limits.heads_kv = heads_kv;
    limits.target.tile_workers = shape.requests * heads_kv; /* one item each: nothing is split */
    limits.target.rows_per_tile = tile_rows;
    limits.target.kv_granule = 64;
    limits.target.fusion = ATTND_FUSION_OFF;
    limits.target.cascade = ATTND_CASCADE_OFF;
    return limits;
}

uint64_t pool_bytes()
{
    return (sizeof(attnd_heap_pool) + 2 * sizeof(attnd_heap_plane) + ATTND_CACHE_LINE - 1) /
           ATTND_CACHE_LINE * ATTND_CACHE_LINE;
}

void describe_pool(const Calibration &c)
{
    attnd_heap_pool *pool = reinterpret_cast<attnd_heap_pool *>(c.solo.queue + attnd::solo_heap_at);
    attnd_heap_plane *planes = reinterpret_cast<attnd_heap_plane *>(pool + 1);
    *pool = {1, c.pool_pages, page_size, heads_kv, dim, dim, ATTND_FP16, 0};
    for (uint32_t i = 0; i < 2; i++)
        planes[i] = {0,
                     0,
                     i * c.plane_bytes,
                     int64_t(page_size) * heads_kv * dim,
                     int64_t(heads_kv) * dim,
                     int64_t(dim)};
}

/* @at: where the plan lies in the segment; moved behind it. Return: 0, or the planner's code. */
int make_plan(const Calibration &c, const Shape &shape, uint64_t *at, Planned *planned)
{
    const attnd_plan_limits limits = limits_of(shape);
    const uint32_t pages = shape.keys / page_size;
    std::vector<int32_t> qo, kv, ids, last(shape.requests, int32_t(page_size));
    for (uint32_t r = 0; r <= shape.requests; r++) {
        qo.push_back(int32_t(r * shape.tokens));
        kv.push_back(int32_t(r * pages));
        for (uint32_t p = 0; p < pages && r < shape.requests; p++)
            ids.push_back(int32_t(shape.pages_at + (shape.own ? r * shape.pages : 0) + p));
    }
    attnd_batch_view batch = {};
    batch.rows = limits.rows;
    batch.levels = 1;
    batch.entries = shape.requests;
    batch.pages = limits.pages;
    batch.heads_q = heads_q;
    batch.dtype = ATTND_FP16;
    batch.variant.size = ATTND_VARIANT_BYTES;
    batch.variant.window_left = -1;
    batch.sm_scale = 0.0883883f;
    batch.q_pitch = batch.o_pitch = {int64_t(heads_q) * dim, int64_t(dim)};
    batch.level[0] = {shape.requests, limits.pages, qo.data(), kv.data(), ids.data(), last.data()};
    attnd_plan *plan = nullptr;
    attnd_fault fault = {};
    int code = attnd_plan_new(
        &limits, c.solo.queue + *at,
        reinterpret_cast<const attnd_heap_pool *>(c.solo.queue + attnd::solo_heap_at),
        attnd::solo_heap_at, &plan);
    if (!code)
        code = attnd_planner_set(plan, &batch, &fault);
    if (!code)
        *planned = {*at, attnd_plan_items(attnd_plan_head(plan), ATTND_RUN_ATTEND)};
    attnd_plan_free(plan);
    *at += attnd_plan_heap_bytes(&limits);
    return code;
}

uint64_t plans_bytes(const Calibration &c)
{
    uint64_t bytes = 0;
    for (uint32_t pair = 0; pair < pairs_count; pair++)
        for (uint32_t keys : {keys_many, keys_few}) {
            const attnd_plan_limits limits = limits_of(shape_of(c, Pair(pair), keys));
            bytes += attnd_plan_heap_bytes(&limits);
        }
    const attnd_plan_limits limits = limits_of(shape_between(c));
    return bytes + attnd_plan_heap_bytes(&limits);
}

int make_plans(Calibration *c)
{
    uint64_t at = attnd::solo_heap_at + pool_bytes();
    describe_pool(*c);
    int code = make_plan(*c, shape_between(*c), &at, &c->between);
    for (uint32_t pair = 0; pair < pairs_count && !code; pair++) {
        code = make_plan(*c, shape_of(*c, Pair(pair), keys_many), &at, &c->many[pair]);
        if (!code)
            code = make_plan(*c, shape_of(*c, Pair(pair), keys_few), &at, &c->few[pair]);
    }
    return code;
}

/* Keys, values and rows of zeros: they take as long as others. */
cudaError_t calibration_open(Calibration *c, uint32_t workers)
{
    c->requests = workers / heads_kv;
    c->pool_pages = c->requests * (pages_own + pages_between);
    c->plane_bytes = uint64_t(c->pool_pages) * page_size * heads_kv * dim * 2;
    c->rows_bytes = uint64_t(c->requests) * tile_tokens * heads_q * dim * 2;
    cudaError_t error;
    if ((error = cudaStreamCreateWithFlags(&c->streams[0], cudaStreamNonBlocking)) ||
        (error = cudaStreamCreateWithFlags(&c->streams[1], cudaStreamNonBlocking)) ||
        (error = cudaMalloc(&c->kv, 2 * c->plane_bytes)) ||
        (error = cudaMalloc(&c->rows, 2 * c->rows_bytes)) ||
        (error = cudaMemset(c->kv, 0, 2 * c->plane_bytes)) ||
        (error = cudaMemset(c->rows, 0, 2 * c->rows_bytes)))
        return error;
    const Memory table[] = {{c->kv, 2 * c->plane_bytes, 0, 0}, {c->rows, 2 * c->rows_bytes, 0, 0}};
    return attnd::solo_open(&c->solo, pool_bytes() + plans_bytes(*c), workers, 1u << 20, table, 2);
}

void calibration_close(Calibration *c)
{
    attnd::solo_close(&c->solo);
    cudaFree(c->kv);
    cudaFree(c->rows);
    for (cudaStream_t stream : c->streams)
        if (stream)
            cudaStreamDestroy(stream);
    (void)cudaGetLastError(); /* of what was never there */
}

/* Return: the time of a run in nanoseconds; 0: it did not end in time, or not well. */
uint64_t run_ns(Calibration *c, const Planned &planned)
{
    attnd_run run = {};
    attnd_retire retire;
    run.kind = ATTND_RUN_ATTEND;
    run.plan_offset_bytes = planned.offset_bytes;
    run.items = planned.items;
    run.q = {1, 0, 0};
    run.o = {1, 0, c->rows_bytes};
    run.lse = run.k = run.v = {ATTND_NONE, 0, 0};
    run.mailbox = ATTND_NONE;
    const uint32_t number = c->solo.tail;
    attnd::solo_ring(&c->solo, &run);
    if (attnd::solo_wait(c->solo, number, run_timeout_ns, &retire) || retire.code ||
        retire.end_ns <= retire.begin_ns)
        return 0;
    return retire.end_ns - retire.begin_ns;
}

/* @ns: of the keys between the two runs of each pair, the least of some rounds. Return: 0; -1 a run
 * did not end in time. */
int measure_pairs(Calibration *c, double (&ns)[pairs_count])
{
    uint64_t least[pairs_count][2];
    memset(least, 0xff, sizeof(least));
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t pair = 0; pair < pairs_count; pair++)
            for (uint32_t few = 0; few < 2; few++) {
                const bool reads = pair == pair_memory || pair == pair_alone;
                if (reads && !run_ns(c, c->between))
                    return -1;
                const uint64_t time_ns = run_ns(c, few ? c->few[pair] : c->many[pair]);
                if (!time_ns)
                    return -1;
                if (round) /* the first finds clocks, caches and page tables cold */
                    least[pair][few] = std::min(least[pair][few], time_ns);
            }
    for (uint32_t pair = 0; pair < pairs_count; pair++)
        ns[pair] = double(least[pair][0]) - double(least[pair][1]);
    return 0;
}

bool near(double value, double expected)
{
    return value * believed >= expected && value <= expected * believed;
}

/* Takes what is believed. */
void conclude(const Calibration &c, const double (&ns)[pairs_count], attnd_rates *rates)
{
    const double keys = keys_many - keys_few, bytes = keys * 4 * dim;
    const double operations = keys * 4 * dim * tile_rows;
    for (double each : ns)
        if (each <= 0)
            return;
    const double gflops = operations / ns[pair_products], l2 = bytes / ns[pair_l2],
                 alone = bytes / ns[pair_alone],
                 together = bytes * c.requests * heads_kv / ns[pair_memory];
    if (near(gflops, rates->worker_gflops) && near(l2, rates->worker_l2_gbps) &&
        near(alone, rates->worker_gbps) && near(together, rates->memory_gbps))
        *rates = {uint32_t(gflops), uint16_t(alone), uint16_t(l2), uint16_t(together),
                  ATTND_RATES_MEASURED};
}

/* Dispatcher and workers of the one variant, each in a stream. */
cudaError_t launch(Calibration *c)
{
    Solo &solo = c->solo;
    cudaStream_t streams[attnd::variant_streams];
    std::fill(std::begin(streams), std::end(streams), c->streams[1]);
    streams[0] = c->streams[0];
    const cudaError_t error = attnd::resident_upload(solo.resident, &solo.settings, 1u << variant);
    return error ? error : attnd::resident_launch(solo.resident, &solo.settings, 1, streams);
}

/* Return: cudaSuccess when no kernel is left, cudaErrorNotReady when some stay. */
cudaError_t wait_left(const Calibration &c)
{
    const uint64_t begin_ns = now_ns();
    for (cudaStream_t stream : c.streams) {
        cudaError_t error;
        while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady)
            if (now_ns() - begin_ns > end_timeout_ns)
                return cudaErrorNotReady;
        if (error)
            return error;
    }
    return cudaSuccess;
}

} // namespace

/* Of the tensor cores' and the memory's peak what attention reaches, and what one SM's decode loop
 * reads in a clock while the memory keeps up. */
constexpr double flops_a_clock = 4096 * 0.65, bytes_a_clock = 34, memory_share = 0.91;

attnd_rates rates_derived(int device, uint32_t workers, uint32_t sms)
{
    int clock_khz = 0, memory_khz = 0, bits = 0;
    if (cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device) ||
        cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device) ||
        cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device)) {
        (void)cudaGetLastError();
        return {};
    }
    const double ghz = clock_khz * 1e-6, memory = memory_khz * 1e-6 * 2 * bits / 8;
    const double share = double(workers) / sms;
    const uint16_t worker_gbps = uint16_t(ghz * bytes_a_clock);
    return {uint32_t(ghz * flops_a_clock), worker_gbps, worker_gbps,
            uint16_t(memory * memory_share * (share < 0.5 ? 2 * share : 1)), ATTND_RATES_DERIVED};
}

cudaError_t rates_measure(uint32_t workers, attnd_rates *rates)
{
    if (workers < few_requests * heads_kv || rates->source != ATTND_RATES_DERIVED ||
        !(attnd::variants_there() >> variant & 1))
        return cudaSuccess;
    Calibration c = {};
    if (!calibration_open(&c, workers) && !make_plans(&c)) {
        double ns[pairs_count] = {};
        const bool measured = !launch(&c) && !measure_pairs(&c, ns);
        attnd::solo_park(c.solo);
        const cudaError_t error = wait_left(c);
        if (error == cudaErrorNotReady) { /* they leave when they come, and find what they need */
            (void)cudaGetLastError();
            return cudaSuccess;
        }
        if (error)
            return error;
        if (measured)
            conclude(c, ns, rates);
    }
    calibration_close(&c);
    return cudaSuccess;
}
