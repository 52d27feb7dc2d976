/*
 * cpu_kernels.c - the CPU kernels against what the processor can do, without daemon and rings.
 *
 *   cpu_kernels [isa [threads]]
 *
 * Decode: bf16, 8 requests x 4096 tokens, 32/8 heads of 128, eight layers in turn (1 GiB of KV),
 * over the streaming read bandwidth of the same threads. Prefill: fp16, one causal request of 2048,
 * over the multiply-add peak of the instruction set. The best of several runs each: for tuning.
 */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/support/peak.h"
#include "persistent/cpu/kernel.h"
#include "persistent/plan/plan.h"
#include "service/args/args.h"
#include "tests/support/rigs/cpu_rig.h"

#define HEADS_Q 32u
#define HEADS_KV 8u
#define DIM 128u
#define PAGE_SIZE 16u
#define LAYERS 8u
#define ROUNDS 7u

struct job {
    uint32_t dtype, requests, qo_len, kv_len, flags, layers;
};

static void *heap_at(struct rig *rig, uint64_t bytes)
{
    void *at = (char *)rig->head + rig->heap_used_bytes;
    rig->heap_used_bytes += (bytes + 63) / 64 * 64;
    return at;
}

/* Values of moderate size in either format, cheaply: exponents near 1, random fractions. */
static void fill(const struct rig_memory *memory, uint32_t dtype)
{
    uint16_t *bits = memory->address, base = dtype == ATTND_FP16 ? 0x3400 : 0x3e80;
    uint32_t state = 1;
    for (uint64_t i = 0; i < memory->size_bytes / 2; i++) {
        state = state * 1664525u + 1013904223u;
        bits[i] = (uint16_t)(base + (state >> 16 & 0x807f));
    }
}

/* K and V of each layer lie one after the other, NHD. */
static struct attnd_heap_pool *make_pool(struct rig *rig, const struct job *job, uint32_t pages,
                                         struct rig_memory *memory)
{
    const uint64_t plane_bytes = (uint64_t)pages * PAGE_SIZE * HEADS_KV * DIM * 2;
    struct attnd_heap_pool *pool =
        heap_at(rig, sizeof *pool + 2 * LAYERS * sizeof(struct attnd_heap_plane));
    struct attnd_heap_plane *planes = (struct attnd_heap_plane *)(pool + 1);
    *pool =
        (struct attnd_heap_pool){job->layers, pages, PAGE_SIZE, HEADS_KV, DIM, DIM, job->dtype, 0};
    *memory = rig_map(rig, 2 * job->layers * plane_bytes);
    fill(memory, job->dtype);
    for (uint32_t i = 0; i < 2 * job->layers; i++)
        planes[i] = (struct attnd_heap_plane){.memory = memory->index,
                                              .offset_bytes = i * plane_bytes,
                                              .stride_page = PAGE_SIZE * HEADS_KV * DIM,
                                              .stride_token = HEADS_KV * DIM,
                                              .stride_head = DIM};
    return pool;
}

static struct attnd_plan *make_plan(struct rig *rig, const struct job *job,
                                    const struct attnd_heap_pool *pool)
{
    const struct attnd_worker_info *info = &rig->head->info;
    const uint32_t rows = job->requests * job->qo_len, pages = pool->pages;
    const struct attnd_plan_limits limits = {
        .requests = job->requests,
        .rows = rows,
        .pages = pages,
        .levels = 1,
        .page_size = PAGE_SIZE,
        .heads_q = HEADS_Q,
        .heads_kv = HEADS_KV,
        .target = {.tile_workers = info->tile_workers,
                   .rows_per_tile = info->rows_per_tile,
                   .kv_granule = info->kv_granule},
    };
    int32_t *qo = calloc(job->requests + 1, sizeof *qo),
            *kv = calloc(job->requests + 1, sizeof *kv);
    int32_t *ids = calloc(pages, sizeof *ids), *last = calloc(job->requests, sizeof *last);
    for (uint32_t r = 0; r < job->requests; r++) {
        qo[r + 1] = qo[r] + (int32_t)job->qo_len;
        kv[r + 1] = kv[r] + (int32_t)(job->kv_len / PAGE_SIZE);
        last[r] = PAGE_SIZE;
    }
    for (uint32_t i = 0; i < pages; i++)
        ids[i] = (int32_t)(i * 1021u % pages); /* pages is a power of two: a permutation */
    const struct attnd_batch_view view = {
        .rows = rows,
        .levels = 1,
        .entries = job->requests,
        .pages = pages,
        .heads_q = HEADS_Q,
        .dtype = job->dtype,
        .flags = job->flags,
        .sm_scale = 0.088388f,
        .q_pitch.row = HEADS_Q * DIM,
        .q_pitch.head = DIM,
        .o_pitch.row = HEADS_Q * DIM,
        .o_pitch.head = DIM,
        .level = {{job->requests, pages, qo, kv, ids, last}},
    };
    struct attnd_plan *plan = NULL;
    struct attnd_fault fault = {0};
    void *heap = heap_at(rig, attnd_plan_heap_bytes(&limits));
    uint64_t pool_offset_bytes = (uint64_t)((const char *)pool - (const char *)rig->head);
    if (attnd_plan_new(&limits, heap, pool, pool_offset_bytes, &plan) != 0 ||
        attnd_planner_set(plan, &view, &fault) != 0)
        exit(1);
    free(qo);
    free(kv);
    free(ids);
    free(last);
    return plan;
}

/* Runs once a layer. Return: seconds a run. */
static double run_layers(struct rig *rig, const struct job *job, const struct attnd_plan *plan,
                         const struct rig_memory *q, const struct rig_memory *o)
{
    const struct attnd_plan_head *head = attnd_plan_head(plan);
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;
    for (uint32_t layer = 0; layer < job->layers; layer++) {
        rig->runs[layer] = (struct attnd_run){
            .kind = ATTND_RUN_ATTEND,
            .plan_offset_bytes = (uint64_t)((const char *)head - (const char *)rig->head),
            .layer = layer,
            .items = attnd_plan_items(head, ATTND_RUN_ATTEND),
            .scratch_offset_bytes = layer * attnd_plan_scratch_bytes(head),
            .q = {.memory = q->index},
            .o = {.memory = o->index},
            .lse = {.memory = ATTND_NONE},
        };
        rig->retires[layer] = 0;
        rig_submit(rig, layer);
    }
    for (uint32_t layer = 0; layer < job->layers; layer++) {
        struct attnd_retire retire = rig_wait(rig, layer, 1);
        begin_ns = retire.begin_ns < begin_ns ? retire.begin_ns : begin_ns;
        end_ns = retire.end_ns > end_ns ? retire.end_ns : end_ns;
    }
    return (double)(end_ns - begin_ns) * 1e-9 / job->layers;
}

static double processor_seconds(void)
{
    struct timespec used;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

/* Units (bytes, operations) a second, the best of the rounds: by the clock, and by the processor
 * time that the threads got, which does not count the turns of neighbours. */
struct rate {
    double clock, processor;
};

static void keep_best(struct rate *rate, double units, double seconds, double processor)
{
    rate->clock = units / seconds > rate->clock ? units / seconds : rate->clock;
    rate->processor = units / processor > rate->processor ? units / processor : rate->processor;
}

/* @units: of one run. Work and ceiling take turns, so that a noisy neighbour meets both. */
static void measure(struct rig *rig, const struct job *job, double units, struct rate *work,
                    struct rate *ceiling)
{
    const uint64_t heap_used_bytes = rig->heap_used_bytes;
    const uint32_t pages = job->requests * job->kv_len / PAGE_SIZE;
    const uint32_t threads = rig->head->info.tile_workers;
    struct rig_memory kv;
    struct attnd_heap_pool *pool = make_pool(rig, job, pages, &kv);
    struct attnd_plan *plan = make_plan(rig, job, pool);
    uint64_t bytes = (uint64_t)job->requests * job->qo_len * HEADS_Q * DIM * 2;
    struct rig_memory q = rig_map(rig, bytes), o = rig_map(rig, bytes);
    fill(&q, job->dtype);
    *work = *ceiling = (struct rate){0};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        double before = processor_seconds();
        double seconds = run_layers(rig, job, plan, &q, &o);
        double processor = (processor_seconds() - before) / job->layers / threads;
        keep_best(work, units, seconds, processor);
        before = processor_seconds();
        double peak = job->flags & ATTND_BATCH_CAUSAL
                          ? bench_peak_fma(threads, rig->head->info.isa, 1)
                          : bench_peak_read(threads, kv.address, kv.size_bytes, 1);
        processor = (processor_seconds() - before) / threads;
        double peak_units = job->flags & ATTND_BATCH_CAUSAL
                                ? threads * bench_peak_fma_operations(rig->head->info.isa)
                                : (double)kv.size_bytes;
        keep_best(ceiling, peak_units, peak_units / peak, processor);
    }
    attnd_plan_free(plan);
    rig_unmap(rig, &q);
    rig_unmap(rig, &o);
    rig_unmap(rig, &kv);
    rig->heap_used_bytes = heap_used_bytes;
}

static void report(const char *name, const struct rate *work, const struct rate *ceiling)
{
    printf("%-8s %8.2f G/s of %8.2f: %.3f; by processor time %8.2f of %8.2f: %.3f\n", name,
           work->clock * 1e-9, ceiling->clock * 1e-9, work->clock / ceiling->clock,
           work->processor * 1e-9, ceiling->processor * 1e-9, work->processor / ceiling->processor);
}

struct options {
    const char *isa; /* NULL: the best there is */
    uint32_t threads;
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    uint64_t number = 0;

    if (key != ARGP_KEY_ARG)
        return ARGP_ERR_UNKNOWN;
    if (state->arg_num == 0) {
        if (!attnd_kernel_find(text))
            argp_error(state, "'%s' is no instruction set of this processor", text);
        options->isa = text;
    } else if (state->arg_num == 1) {
        if (attnd_number_parse(text, 1, 4096, &number) < 0)
            argp_error(state, "'%s' is not a number of threads in 1..4096", text);
        options->threads = (uint32_t)number;
    } else {
        argp_usage(state);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        NULL,
        parse_option,
        "[ISA [THREADS]]",
        "cpu_kernels - the CPU kernels over the processor's peaks, without daemon and rings\v"
        "ISA: avx512, avx2 or portable; default: the best there is. THREADS: default: all.",
        NULL,
        NULL,
        NULL};
    const struct job decode = {ATTND_BF16, 8, 1, 4096, 0, LAYERS};
    const struct job prefill = {ATTND_FP16, 1, 2048, 2048, ATTND_BATCH_CAUSAL, 1};
    struct options options = {NULL, 0};
    struct rig rig;
    struct rate work, ceiling;

    argp_parse(&argp, argc, argv, 0, NULL, &options);
    rig_open(&rig, options.threads, options.isa);
    if (attnd_backend_cpu.start(rig.backend) != 0)
        return 1;
    printf("%s, %u threads\n", rig.head->info.isa, rig.head->info.tile_workers);
    measure(&rig, &decode, 2.0 * decode.requests * decode.kv_len * HEADS_KV * DIM * 2, &work,
            &ceiling);
    report("decode", &work, &ceiling);
    measure(&rig, &prefill, 4.0 * DIM * HEADS_Q * 0.5 * prefill.kv_len * (prefill.kv_len + 1),
            &work, &ceiling);
    report("prefill", &work, &ceiling);
    rig_close(&rig);
    return 0;
}
