/*
 * graph.c - token after token on a GPU: one step is captured as a CUDA graph and replayed.
 *
 * Pool, q, o and lse lie in device memory of the service, mapped here by libattnd-cuda. A run of
 * each layer is prepared once. In the stream the run stands where attention belongs: behind the
 * kernels that write q, K and V of the layer, before those that read o. The host advances the plan
 * between two replays, and the graph sees the new length and page.
 *
 *     cc graph.c $(pkg-config --cflags --libs attnd-cuda) -lcuda -lm
 */
#include "attnd.h"
#include "attnd_cuda.h"

#include <math.h>
#include <stdio.h>

enum { PAGE_SIZE = 16, PAGES = 4, TOKENS = 50, LAYERS = 4, HEADS = 8, HEADS_KV = 2, DIM = 64 };
enum { Q = 0, O = 1024, LSE = 2048, BYTES = 2080, LANE = 0 };

struct decoder {
    struct attnd_session *session;
    uint32_t pool, plan, memory, prepared[LAYERS];
    CUdeviceptr at; /* of q, o and lse */
    CUstream stream;
    CUgraphExec step; /* all layers of one token */
};

/* A call of the driver in a row of calls of attnd. */
static int driver(CUresult result)
{
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "CUresult %d\n", (int)result);
    return result == CUDA_SUCCESS ? 0 : -1;
}

static int open_gpu(struct decoder *d)
{
    CUdevice device;
    CUcontext context;

    if (driver(cuInit(0)) || driver(cuDeviceGet(&device, 0)) ||
        driver(cuDevicePrimaryCtxRetain(&context, device)) || driver(cuCtxSetCurrent(context)))
        return -1;
    return driver(cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING));
}

/* Device memory is undefined at first. Zeros stand for what a model computes. */
static int zero(struct decoder *d, uint32_t memory, uint64_t size_bytes, CUdeviceptr *at)
{
    if (attnd_cuda_map(d->session, memory, at) < 0)
        return -1;
    return driver(cuMemsetD8Async(*at, 0, size_bytes, d->stream));
}

static int open_decoder(struct decoder *d)
{
    struct attnd_pool_desc desc =
        ATTND_ARGS(pool_desc, LAYERS, PAGES, PAGE_SIZE, HEADS_KV, DIM, DIM, ATTND_DTYPE_FP16,
                   ATTND_PAGES_OF_SERVICE, .memory_kind = ATTND_MEMORY_DEVICE);
    struct attnd_pool_info info = ATTND_ARGS(pool_info, 0);
    CUdeviceptr kv; /* plane k of a layer begins info.desc.k[layer].offset_bytes behind it */

    if (attnd_open(NULL, &d->session) < 0 || attnd_pool_create(d->session, &desc, &d->pool) < 0 ||
        attnd_pool_info(d->session, d->pool, &info) < 0 ||
        attnd_memory_create_device(d->session, BYTES, &d->memory) < 0 ||
        zero(d, info.memory, info.memory_bytes, &kv) < 0 || zero(d, d->memory, BYTES, &d->at) < 0)
        return -1;
    return attnd_plan_create(d->session,
                             &ATTND_ARGS(plan_args, d->pool, .requests = 1, .rows = 1,
                                         .pages = PAGES, .levels = 1, .heads_q = HEADS),
                             &d->plan);
}

/* Waits for a plan or an advance: a replay sees what has completed before it begins. */
static int completed(const struct decoder *d)
{
    struct attnd_completion done;

    if (attnd_wait(d->session, &done, 1, ATTND_FOREVER) != 1)
        return -1;
    if (done.fault.code < 0)
        fprintf(stderr, "%s\n", attnd_fault_string(&done.fault, (char[160]){0}, 160));
    return done.fault.code;
}

static int plan_first(struct decoder *d)
{
    int32_t page, rows[] = {0, 1}, pages[] = {0, 1}, last_page_len = 1;
    struct attnd_level level = {1, rows, pages, &page, &last_page_len};
    struct attnd_batch batch =
        ATTND_ARGS(batch, .flags = ATTND_CAUSAL, .reserve_pages = PAGES - 1, .level = &level);

    if (attnd_pages_alloc(d->session, d->pool, 1, &page) < 0 ||
        attnd_plan_set(d->session, d->plan, &batch, NULL) < 0 || completed(d) < 0)
        return -1;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct attnd_prepare_args args = ATTND_ARGS(prepare_args, layer, LANE, 0, {d->memory, Q},
                                                    {d->memory, O}, {d->memory, LSE});
        if (attnd_prepare(d->session, d->plan, &args, &d->prepared[layer]) < 0)
            return -1;
    }
    return attnd_cuda_stream_open(d->session); /* blocks, which a capture must not */
}

static int capture(struct decoder *d)
{
    CUgraph graph;

    if (driver(cuStreamBeginCapture(d->stream, CU_STREAM_CAPTURE_MODE_GLOBAL)))
        return -1;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        /* the layer's kernels go here: q, and K and V of the token into its page */
        if (attnd_cuda_run_on_stream(d->session, LANE, d->prepared[layer], d->stream) < 0)
            return -1;
        /* and here those that read o */
    }
    if (driver(cuStreamEndCapture(d->stream, &graph)))
        return -1;
    return driver(cuGraphInstantiate(&d->step, graph, 0));
}

/* From @tokens to one more. */
static int advance(const struct decoder *d, int32_t tokens)
{
    int32_t page, kv_len = tokens + 1, grown[] = {0, 1};
    struct attnd_advance next = ATTND_ARGS(advance, .entries = 1, .kv_len = &kv_len);

    if (tokens % PAGE_SIZE == 0) {
        if (attnd_pages_alloc(d->session, d->pool, 1, &page) < 0)
            return -1;
        next.page_indptr = grown;
        next.page_indices = &page;
    }
    if (attnd_plan_advance(d->session, d->plan, &next, NULL) < 0)
        return -1;
    return completed(d);
}

static int decode(const struct decoder *d)
{
    for (int32_t tokens = 1; tokens <= TOKENS; tokens++)
        if ((tokens > 1 && advance(d, tokens - 1) < 0) ||
            driver(cuGraphLaunch(d->step, d->stream)) || driver(cuStreamSynchronize(d->stream)))
            return -1;
    return attnd_cuda_lane_error(d->session, LANE); /* of all replays */
}

int main(void)
{
    struct decoder d = {0};
    struct attnd_fault fault;
    float lse;
    char text[160];

    if (open_gpu(&d) || open_decoder(&d) < 0 || plan_first(&d) < 0 || capture(&d) < 0 ||
        decode(&d) < 0 || driver(cuMemcpyDtoH(&lse, d.at + LSE, sizeof(lse)))) {
        attnd_last_fault(&fault);
        if (fault.code < 0) /* of a call; driver() and completed() print theirs */
            fprintf(stderr, "%s\n", attnd_fault_string(&fault, text, sizeof(text)));
        return 1;
    }
    /* Zero q and k: the last token sees all tokens, and all of them weigh the same. */
    printf("the last of %d replays sees %g tokens\n", TOKENS, round(exp2((double)lse)));
    attnd_close(d.session);
    return 0;
}
