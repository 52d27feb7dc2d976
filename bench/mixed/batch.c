/* batch.c - pages of a batch are dealt out so that neighbours of a request are none in memory; runs
 * are timed by event pairs in a stream where nothing else is. */
#include "bench/mixed/batch.h"

#include "bench/support/heads.h"
#include "client/cuda/attnd_cuda.h"
#include "service/args/args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ELEMENT_BYTES 2u
#define PAGE_STEP 1597u
#define COPIED_BYTES (160u << 20) /* read between two runs of one copy: far more than the L2 */
#define WARM_UP 3u
#define SAMPLES_MAX 64u

/* ---- the process ---- */

static bool fill_memory(struct mixed_engine *engine, uint32_t memory)
{
    struct attnd_memory_info info = {.size = sizeof(info)};
    CUdeviceptr at = 0;

    return bench_suite_call(engine->suite, "attnd_memory_info",
                            attnd_memory_info(engine->session, memory, &info)) &&
           bench_suite_call(engine->suite, "attnd_cuda_map",
                            attnd_cuda_map(engine->session, memory, &at)) &&
           gpu_fill(engine->suite, at, info.size_bytes, ATTND_DTYPE_FP16) &&
           bench_suite_call(engine->suite, "attnd_cuda_unmap", attnd_cuda_unmap(at));
}

static bool open_pool(struct mixed_engine *engine)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = engine->pages,
                                         .page_size = MIXED_PAGE,
                                         .heads_kv = engine->heads_kv,
                                         .dim_qk = MIXED_DIM,
                                         .dim_vo = MIXED_DIM,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_ENGINE,
                                         .memory_kind = ATTND_MEMORY_DEVICE};
    struct attnd_pool_info info = {.size = sizeof(info)};

    return bench_suite_call(engine->suite, "attnd_pool_create",
                            attnd_pool_create(engine->session, &desc, &engine->pool)) &&
           bench_suite_call(engine->suite, "attnd_pool_info",
                            attnd_pool_info(engine->session, engine->pool, &info)) &&
           fill_memory(engine, info.memory);
}

static bool open_streams(struct mixed_engine *engine)
{
    struct bench_suite *suite = engine->suite;
    bool good =
        bench_suite_call(suite, "attnd_cuda_stream_open", attnd_cuda_stream_open(engine->session));

    for (int i = 0; i < 2; i++)
        good = good && gpu_cuda(suite, "cuStreamCreate",
                                cuStreamCreate(&engine->stream[i], CU_STREAM_NON_BLOCKING));
    return good &&
           gpu_cuda(suite, "cuEventCreate", cuEventCreate(&engine->begin, CU_EVENT_DEFAULT)) &&
           gpu_cuda(suite, "cuEventCreate", cuEventCreate(&engine->end, CU_EVENT_DEFAULT)) &&
           gpu_cuda(suite, "cuEventCreate", cuEventCreate(&engine->joined, CU_EVENT_DEFAULT));
}

bool mixed_open(struct mixed_engine *engine, struct bench_suite *suite, uint32_t heads_q,
                uint32_t heads_kv, uint64_t tokens, uint32_t rows)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-mixed"};

    *engine = (struct mixed_engine){.suite = suite,
                                    .heads_q = heads_q,
                                    .heads_kv = heads_kv,
                                    .pages = (uint32_t)(tokens / MIXED_PAGE)};
    engine->q_bytes = (uint64_t)rows * heads_q * MIXED_DIM * ELEMENT_BYTES;
    return bench_suite_call(suite, "attnd_open", attnd_open(&args, &engine->session)) &&
           bench_suite_call(
               suite, "attnd_memory_create_device",
               attnd_memory_create_device(engine->session, 2 * engine->q_bytes, &engine->memory)) &&
           fill_memory(engine, engine->memory) && open_pool(engine) && open_streams(engine);
}

void mixed_close(struct mixed_engine *engine)
{
    attnd_close(engine->session);
}

/* ---- a batch ---- */

static uint32_t pages_of(uint32_t tokens)
{
    return (tokens + MIXED_PAGE - 1) / MIXED_PAGE;
}

static uint32_t prefixes_of(const struct mixed_batch *batch)
{
    return batch->prefixes ? batch->prefixes : 1;
}

/* Pages that a batch reads, each once. */
static uint32_t batch_pages(const struct mixed_batch *batch)
{
    const uint32_t own = pages_of(batch->kv_len) - batch->prefix / MIXED_PAGE;

    return pages_of(batch->chunk_kv) + prefixes_of(batch) * (batch->prefix / MIXED_PAGE) +
           batch->decodes * own;
}

double mixed_kv_bytes(const struct mixed_engine *engine, const struct mixed_batch *batch)
{
    return (double)batch_pages(batch) * MIXED_PAGE * engine->heads_kv * MIXED_DIM * 2 *
           ELEMENT_BYTES;
}

/* The arrays of both levels, the lists one behind the other. */
struct arrays {
    int32_t *words;
    int32_t *qo[2], *kv[2], *last[2], *pages[2];
};

static bool make_arrays(const struct mixed_batch *batch, struct arrays *arrays)
{
    const uint32_t requests = batch->decodes + 1;
    const size_t lists =
        (size_t)pages_of(batch->chunk_kv) + (size_t)batch->decodes * pages_of(batch->kv_len) + 1;
    int32_t *next = calloc(2 * (3 * (size_t)requests + 2 + lists), sizeof(*next));

    arrays->words = next;
    for (int l = 0; next && l < 2; l++) {
        arrays->qo[l] = next;
        arrays->kv[l] = next + requests + 1;
        arrays->last[l] = next + 2 * ((size_t)requests + 1);
        arrays->pages[l] = arrays->last[l] + requests;
        next = arrays->pages[l] + lists;
    }
    return arrays->words != NULL;
}

/* Page number @index of those that copy @copy of the batch reads. */
static int32_t page_at(const struct mixed_engine *engine, const struct mixed_batch *batch,
                       uint32_t copy, uint32_t index)
{
    const uint64_t place = (uint64_t)copy * batch_pages(batch) + index;

    return (int32_t)(place * PAGE_STEP % engine->pages);
}

/* Adds a request: @rows, and of pages number @shared and @own on @shared_pages and the rest. */
struct request {
    uint32_t rows, tokens, shared, shared_pages, own;
};

static void add_request(const struct mixed_engine *engine, const struct mixed_batch *batch,
                        uint32_t copy, struct arrays *arrays, int l, uint32_t at,
                        const struct request *request)
{
    const uint32_t pages = pages_of(request->tokens);
    int32_t *list = arrays->pages[l] + arrays->kv[l][at];

    for (uint32_t p = 0; p < pages; p++) {
        const uint32_t index = p < request->shared_pages ? request->shared + p
                                                         : request->own + p - request->shared_pages;
        list[p] = page_at(engine, batch, copy, index);
    }
    arrays->qo[l][at + 1] = arrays->qo[l][at] + (int32_t)request->rows;
    arrays->kv[l][at + 1] = arrays->kv[l][at] + (int32_t)pages;
    arrays->last[l][at] = (int32_t)((request->tokens + MIXED_PAGE - 1) % MIXED_PAGE + 1);
}

/* Return: levels; requests of each in @entries. */
static uint32_t deal(const struct mixed_engine *engine, const struct mixed_batch *batch,
                     uint32_t copy, struct arrays *arrays, uint32_t entries[2])
{
    const int last = batch->levels ? 1 : 0;
    const uint32_t prefix = batch->prefix / MIXED_PAGE, prefixes = prefixes_of(batch);
    const uint32_t chunk = pages_of(batch->chunk_kv), sharers = batch->decodes / prefixes;
    uint32_t at = 0, index = chunk + prefixes * prefix;

    for (uint32_t p = 0; batch->levels && p < prefixes; p++)
        add_request(engine, batch, copy, arrays, 0, p,
                    &(struct request){.rows = sharers,
                                      .tokens = batch->prefix,
                                      .shared = chunk + p * prefix,
                                      .shared_pages = prefix});
    if (batch->chunk_rows)
        add_request(engine, batch, copy, arrays, last, at++,
                    &(struct request){.rows = batch->chunk_rows, .tokens = batch->chunk_kv});
    for (uint32_t i = 0; i < batch->decodes; i++, at++) {
        struct request request = {.rows = 1, .tokens = batch->kv_len, .own = index};
        if (batch->levels)
            request.tokens -= batch->prefix;
        else
            request.shared_pages = prefix;
        request.shared = chunk + (sharers ? i / sharers : 0) * prefix;
        add_request(engine, batch, copy, arrays, last, at, &request);
        index += pages_of(request.tokens) - request.shared_pages;
    }
    entries[0] = batch->levels ? prefixes : at;
    entries[1] = at;
    return batch->levels ? 2 : 1;
}

static bool set_copy(struct mixed_engine *engine, const struct mixed_batch *batch, uint32_t copy,
                     struct arrays *arrays, struct mixed_plan *plan)
{
    uint32_t entries[2];
    const uint32_t levels = deal(engine, batch, copy, arrays, entries);
    struct attnd_level level[2];
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .pool = engine->pool,
                                   .rows = batch->chunk_rows + batch->decodes,
                                   .levels = levels,
                                   .heads_q = engine->heads_q};
    const struct attnd_op op = {0};
    struct attnd_completion done;

    for (uint32_t l = 0; l < levels; l++) {
        level[l] = (struct attnd_level){entries[l], arrays->qo[l], arrays->kv[l], arrays->pages[l],
                                        arrays->last[l]};
        args.requests += entries[l];
        args.pages += (uint32_t)arrays->kv[l][entries[l]];
    }
    const struct attnd_batch set = {
        .size = sizeof(set), .levels = levels, .flags = ATTND_CAUSAL, .level = level};
    plan->info = (struct attnd_plan_info){.size = sizeof(plan->info)};
    if (!bench_suite_call(engine->suite, "attnd_plan_create",
                          attnd_plan_create(engine->session, &args, &plan->plan[copy])) ||
        !bench_suite_call(engine->suite, "attnd_plan_set",
                          attnd_plan_set(engine->session, plan->plan[copy], &set, &op)) ||
        !bench_wait_all(engine->suite, engine->session, 1, &done) ||
        !bench_suite_call(engine->suite, "attnd_plan_info", attnd_plan_info(&done, &plan->info)))
        return false;
    for (uint16_t lane = 0; lane < 2; lane++) {
        const struct attnd_prepare_args prepare = {.size = sizeof(prepare),
                                                   .lane = lane,
                                                   .q = {engine->memory, 0},
                                                   .o = {engine->memory, engine->q_bytes}};
        if (!bench_suite_call(engine->suite, "attnd_prepare",
                              attnd_prepare(engine->session, plan->plan[copy], &prepare,
                                            &plan->prepared[copy][lane])))
            return false;
    }
    return true;
}

bool mixed_set(struct mixed_engine *engine, const struct mixed_batch *batch,
               struct mixed_plan *plan)
{
    const uint32_t room = engine->pages / batch_pages(batch);
    uint32_t copies = 1 + (uint32_t)(COPIED_BYTES / mixed_kv_bytes(engine, batch));
    struct arrays arrays;
    bool good = true;

    copies = copies > MIXED_COPIES_MAX ? MIXED_COPIES_MAX : copies;
    *plan = (struct mixed_plan){.copies = copies > room ? room : copies};
    if (!plan->copies || !make_arrays(batch, &arrays)) {
        bench_suite_fail(engine->suite, "no room for a batch of %u decodes of %u", batch->decodes,
                         batch->kv_len);
        return false;
    }
    for (uint32_t copy = 0; good && copy < plan->copies; copy++)
        good = set_copy(engine, batch, copy, &arrays, plan);
    free(arrays.words);
    return good;
}

void mixed_drop(struct mixed_engine *engine, struct mixed_plan *plan)
{
    for (uint32_t copy = 0; copy < plan->copies; copy++) {
        for (int lane = 0; lane < 2; lane++)
            (void)attnd_unprepare(engine->session, plan->prepared[copy][lane]);
        (void)attnd_plan_destroy(engine->session, plan->plan[copy]);
    }
}

/* ---- time ---- */

static bool ring(struct mixed_engine *engine, const struct mixed_plan *plan, uint32_t copy,
                 uint16_t lane)
{
    return bench_suite_call(engine->suite, "attnd_cuda_run_on_stream",
                            attnd_cuda_run_on_stream(engine->session, lane,
                                                     plan->prepared[copy % plan->copies][lane],
                                                     engine->stream[lane]));
}

static bool time_once(struct mixed_engine *engine, const struct mixed_plan *first,
                      const struct mixed_plan *second, bool lanes, uint32_t copy, double *us)
{
    struct bench_suite *suite = engine->suite;
    CUstream stream = engine->stream[0], other = engine->stream[1];
    float ms = 0;
    bool good = gpu_cuda(suite, "cuEventRecord", cuEventRecord(engine->begin, stream));

    if (second && lanes)
        good = good &&
               gpu_cuda(suite, "cuStreamWaitEvent", cuStreamWaitEvent(other, engine->begin, 0)) &&
               ring(engine, second, copy, 1) &&
               gpu_cuda(suite, "cuEventRecord", cuEventRecord(engine->joined, other));
    good = good && ring(engine, first, copy, 0);
    if (second)
        good = good && (lanes ? gpu_cuda(suite, "cuStreamWaitEvent",
                                         cuStreamWaitEvent(stream, engine->joined, 0))
                              : ring(engine, second, copy, 0));
    good =
        good && gpu_cuda(suite, "cuEventRecord", cuEventRecord(engine->end, stream)) &&
        gpu_cuda(suite, "cuStreamSynchronize", cuStreamSynchronize(stream)) &&
        gpu_cuda(suite, "cuEventElapsedTime", cuEventElapsedTime(&ms, engine->begin, engine->end));
    *us = (double)ms * 1e3;
    return good;
}

bool mixed_time(struct mixed_engine *engine, const struct mixed_plan *first,
                const struct mixed_plan *second, bool lanes, uint32_t count, double *us)
{
    uint64_t samples[SAMPLES_MAX];

    count = count > SAMPLES_MAX ? SAMPLES_MAX : count ? count : 1;
    for (uint32_t i = 0; i < WARM_UP + count; i++) {
        if (!time_once(engine, first, second, lanes, i, us))
            return false;
        if (i >= WARM_UP)
            samples[i - WARM_UP] = (uint64_t)(*us * 1e3);
    }
    *us = (double)bench_p50(samples, count) * 1e-3;
    for (uint16_t lane = 0; lane < 2; lane++)
        if (!bench_suite_call(engine->suite, "a run in a stream",
                              attnd_cuda_lane_error(engine->session, lane)))
            return false;
    return true;
}

/* ---- options and peers ---- */

enum { KEY_SAMPLE = 512, KEY_ONLY, KEY_HEADS, KEY_PEERS, KEY_CASES };

static const struct argp_option option_list[] = {
    {"sample", KEY_SAMPLE, "N", 0, "Every N-th case of the grid (default: 1)", 1},
    {"only", KEY_ONLY, "CASE", 0, "This case alone, by its name as the table has it", 1},
    {"heads", KEY_HEADS, "Q/KV", 0, "Query heads and heads of K and V (default: 32/8)", 1},
    {"peers", KEY_PEERS, "FILE", 0, "What peers.py wrote on this card: ratios over peers", 1},
    {"cases", KEY_CASES, "FILE", 0, "Write a line for each time of each case", 1},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct mixed_options *options = state->input;

    switch (key) {
    case KEY_SAMPLE:
        options->sample = attnd_args_number32(state, "sample", text, 1, UINT32_MAX);
        return 0;
    case KEY_ONLY:
        options->only = text;
        return 0;
    case KEY_HEADS:
        bench_args_heads(state, text, &options->heads_q, &options->heads_kv);
        return 0;
    case KEY_PEERS:
        options->peers = text;
        return 0;
    case KEY_CASES:
        options->cases = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp mixed_argp = {option_list, parse_option, NULL, NULL, NULL, NULL, NULL};

void *mixed_begin(struct bench_suite *suite, int argc, char **argv, struct mixed_options *options,
                  size_t bytes)
{
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    *options = (struct mixed_options){.sample = 1, .heads_q = 32, .heads_kv = 8};
    suite->own_options = &mixed_argp;
    suite->own_input = options;
    bench_suite_begin(suite, argc, argv);
    if (shared == MAP_FAILED) {
        bench_suite_fail(suite, "out of memory");
        return NULL;
    }
    gpu_stamp_device(suite);
    return shared;
}

bool mixed_chosen(const struct mixed_options *options, uint32_t index, const char *name)
{
    return index % options->sample == 0 && (!options->only || !strcmp(name, options->only));
}

double mixed_peer_us(const char *path, const char *name, const char *way)
{
    char line[256], at[128], by[64];
    double us, best = 0;
    FILE *in = path ? fopen(path, "re") : NULL;

    while (in && fgets(line, sizeof(line), in))
        if (sscanf(line, "%127s %63s %lf", at, by, &us) == 3 && !strcmp(at, name) &&
            !strncmp(by, way, strlen(way)) && us > 0 && (best <= 0 || us < best))
            best = us;
    if (in)
        fclose(in);
    return best;
}
