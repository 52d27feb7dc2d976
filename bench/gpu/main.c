/* gpu - attention on the CUDA worker, through daemon and rings, over pools in device memory.
 *
 * gpu.decode_64x8192_gbps: 64 requests of 8,192 tokens decode; bytes of K and V a second.
 * gpu.prefill_8192_tflops: one causal prompt; 4 x dim x heads x visible pairs a second. Both by the
 * worker's clock, from the completions; what the client's clock says is in the notes.
 * gpu.submit_rtt_us: one request of 128 tokens, from the call of attnd_run() to the return of the
 * attnd_wait() that has its completion. Medians. fp16, head_dim 128, 32 and 8 heads, shuffled pages
 * of 16. */
#include "bench/support/suite.h"
#include "client/cuda/attnd_cuda.h"
#include "ipc/wake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADS_Q 32
#define HEADS_KV 8
#define DIM 128
#define PAGE_SIZE 16
#define REQUESTS_MAX 64
#define PAGES_MAX (64 * 8192 / PAGE_SIZE)
#define TOKEN_BYTES (2u * HEADS_KV * DIM * 2) /* K and V */
#define CHUNK_BYTES (32u << 20)
#define SAMPLES_MAX 100000u

/* A batch of equal requests over a pool of its own. */
struct job {
    uint32_t requests, qo_len, kv_len;
    struct attnd_session *session;
    uint32_t memory, pool, plan;
    uint64_t o_offset_bytes;
};

struct times {
    uint64_t worker_ns[SAMPLES_MAX], client_ns[SAMPLES_MAX];
};

static bool cuda(struct bench_suite *suite, const char *call, CUresult result)
{
    if (result != CUDA_SUCCESS)
        bench_suite_fail(suite, "%s: CUDA error %d", call, (int)result);
    return result == CUDA_SUCCESS;
}

static bool open_gpu(struct bench_suite *suite)
{
    CUdevice device;
    CUcontext context;

    return cuda(suite, "cuInit", cuInit(0)) &&
           cuda(suite, "cuDeviceGet", cuDeviceGet(&device, 0)) &&
           cuda(suite, "cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device)) &&
           cuda(suite, "cuCtxSetCurrent", cuCtxSetCurrent(context));
}

/* fp16 values near 1 of either sign: their power must be that of real work. */
static bool fill_numbers(struct bench_suite *suite, struct attnd_session *session, uint32_t memory)
{
    struct attnd_memory_info info = {.size = sizeof(info)};
    uint16_t *chunk = malloc(CHUNK_BYTES);
    uint32_t state = 1;
    CUdeviceptr at = 0;
    bool good =
        bench_suite_call(suite, "attnd_memory_info", attnd_memory_info(session, memory, &info)) &&
        bench_suite_call(suite, "attnd_cuda_map", attnd_cuda_map(session, memory, &at));

    for (uint64_t i = 0; chunk && i < CHUNK_BYTES / 2; i++) {
        state = state * 1664525u + 1013904223u;
        chunk[i] = (uint16_t)(0x3400 + (state >> 16 & 0x807f));
    }
    for (uint64_t done = 0; good && chunk && done < info.size_bytes; done += CHUNK_BYTES) {
        uint64_t left = info.size_bytes - done;
        good = cuda(suite, "cuMemcpyHtoD",
                    cuMemcpyHtoD(at + done, chunk, left < CHUNK_BYTES ? left : CHUNK_BYTES));
    }
    free(chunk);
    return good && cuda(suite, "cuCtxSynchronize", cuCtxSynchronize()) &&
           bench_suite_call(suite, "attnd_cuda_unmap", attnd_cuda_unmap(at));
}

static bool make_memory(struct bench_suite *suite, struct job *job)
{
    uint64_t q_bytes = (uint64_t)job->requests * job->qo_len * HEADS_Q * DIM * 2;

    job->o_offset_bytes = q_bytes;
    return bench_suite_call(suite, "attnd_memory_create_device",
                            attnd_memory_create_device(job->session, 2 * q_bytes, &job->memory)) &&
           fill_numbers(suite, job->session, job->memory);
}

static bool make_pool(struct bench_suite *suite, struct job *job)
{
    struct attnd_pool_info info = {.size = sizeof(info)};
    struct attnd_pool_desc desc = {.size = sizeof(desc),
                                   .layers = 1,
                                   .pages = job->requests * job->kv_len / PAGE_SIZE,
                                   .page_size = PAGE_SIZE,
                                   .heads_kv = HEADS_KV,
                                   .dim_qk = DIM,
                                   .dim_vo = DIM,
                                   .dtype = ATTND_DTYPE_FP16,
                                   .page_owner = ATTND_PAGES_OF_ENGINE,
                                   .memory_kind = ATTND_MEMORY_DEVICE};

    return bench_suite_call(suite, "attnd_pool_create",
                            attnd_pool_create(job->session, &desc, &job->pool)) &&
           bench_suite_call(suite, "attnd_pool_info",
                            attnd_pool_info(job->session, job->pool, &info)) &&
           fill_numbers(suite, job->session, info.memory);
}

static bool make_plan(struct bench_suite *suite, struct job *job)
{
    static int32_t qo_indptr[REQUESTS_MAX + 1], kv_indptr[REQUESTS_MAX + 1], pages[PAGES_MAX];
    static int32_t last_page_len[REQUESTS_MAX];
    uint32_t pages_each = job->kv_len / PAGE_SIZE;
    struct attnd_level level = {job->requests, qo_indptr, kv_indptr, pages, last_page_len};
    struct attnd_batch batch = {
        .size = sizeof(batch), .levels = 1, .flags = ATTND_CAUSAL, .level = &level};
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .pool = job->pool,
                                   .requests = job->requests,
                                   .rows = job->requests * job->qo_len,
                                   .pages = job->requests * pages_each,
                                   .levels = 1,
                                   .heads_q = HEADS_Q};
    struct attnd_op op = {0};

    for (uint32_t i = 0; i <= job->requests; i++) {
        qo_indptr[i] = (int32_t)(i * job->qo_len);
        kv_indptr[i] = (int32_t)(i * pages_each);
    }
    for (uint32_t i = 0; i < job->requests; i++)
        last_page_len[i] = PAGE_SIZE;
    /* No two neighbours of a request are neighbours in memory. */
    for (uint32_t i = 0; i < args.pages; i++)
        pages[i] = (int32_t)((uint64_t)i * 1597 % args.pages);
    return bench_suite_call(suite, "attnd_plan_create",
                            attnd_plan_create(job->session, &args, &job->plan)) &&
           bench_suite_call(suite, "attnd_plan_set",
                            attnd_plan_set(job->session, job->plan, &batch, &op)) &&
           bench_wait_all(suite, job->session, 1, NULL);
}

static bool open_job(struct bench_suite *suite, struct job *job)
{
    struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-gpu"};

    return bench_suite_call(suite, "attnd_open", attnd_open(&args, &job->session)) &&
           make_memory(suite, job) && make_pool(suite, job) && make_plan(suite, job);
}

/* One run at a time, @count times, a few more before that do not count. */
static bool run_often(struct bench_suite *suite, const struct job *job, uint64_t count,
                      struct times *times)
{
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {job->memory, 0}, .o = {job->memory, job->o_offset_bytes}};
    const uint64_t warm_up = count / 10 + 5;

    for (uint64_t i = 0; i < warm_up + count; i++) {
        const struct attnd_op op = {0};
        struct attnd_completion done;
        uint64_t begin_ns = attnd_clock_ns();

        if (!bench_suite_call(suite, "attnd_run", attnd_run(job->session, job->plan, &run, &op)) ||
            !bench_wait_all(suite, job->session, 1, &done))
            return false;
        if (i < warm_up)
            continue;
        times->client_ns[i - warm_up] = attnd_clock_ns() - begin_ns;
        times->worker_ns[i - warm_up] = done.end_ns - done.begin_ns;
    }
    return true;
}

/* Medians of a job's time, in microseconds, by the worker's clock and by the client's. */
static bool measure(struct bench_suite *suite, struct job job, uint64_t count, double *worker_us,
                    double *client_us)
{
    struct times *times = malloc(sizeof(*times));
    bool good = times && open_job(suite, &job) && run_often(suite, &job, count, times);

    if (good) {
        *worker_us = (double)bench_p50(times->worker_ns, count) * 1e-3;
        *client_us = (double)bench_p50(times->client_ns, count) * 1e-3;
    }
    attnd_close(job.session);
    free(times);
    return good;
}

static void measure_decode(struct bench_suite *suite, uint64_t count)
{
    const struct job job = {.requests = 64, .qo_len = 1, .kv_len = 8192};
    double bytes = 64.0 * 8192 * TOKEN_BYTES, worker_us, client_us;
    char notes[160];

    if (!measure(suite, job, count, &worker_us, &client_us))
        return;
    snprintf(notes, sizeof(notes), "%.1f us; client %.1f us: %.0f GB/s", worker_us, client_us,
             bytes * 1e-3 / client_us);
    bench_suite_figure(suite, "decode_64x8192_gbps", bytes * 1e-3 / worker_us, "GB/s", "higher",
                       3000, notes);
}

static void measure_prefill(struct bench_suite *suite, uint64_t count)
{
    const struct job job = {.requests = 1, .qo_len = 8192, .kv_len = 8192};
    double operations = 4.0 * DIM * HEADS_Q * (8192.0 * 8193 / 2), worker_us, client_us;
    char notes[160];

    if (!measure(suite, job, count, &worker_us, &client_us))
        return;
    snprintf(notes, sizeof(notes), "%.1f us; client %.1f us: %.0f TFLOP/s; pages of 16", worker_us,
             client_us, operations * 1e-6 / client_us);
    bench_suite_figure(suite, "prefill_8192_tflops", operations * 1e-6 / worker_us, "TFLOP/s",
                       "higher", 600, notes);
}

static void measure_submit(struct bench_suite *suite, uint64_t count)
{
    const struct job job = {.requests = 1, .qo_len = 1, .kv_len = 128};
    double worker_us, client_us;
    char notes[160];

    if (!measure(suite, job, count, &worker_us, &client_us))
        return;
    snprintf(notes, sizeof(notes), "p50 of %llu; %.2f us of it on the device",
             (unsigned long long)count, worker_us);
    bench_suite_figure(suite, "submit_rtt_us", client_us, "us", "lower", 10, notes);
}

int main(int argc, char **argv)
{
    static struct bench_suite suite = {
        .name = "gpu",
        .doc = "gpu - the CUDA worker through the service, over pools in device memory",
        .rounds = 200};

    bench_suite_begin(&suite, argc, argv);
    if (suite.rounds > SAMPLES_MAX / 100)
        suite.rounds = SAMPLES_MAX / 100;
    if (open_gpu(&suite))
        measure_decode(&suite, suite.rounds);
    if (!suite.failed)
        measure_prefill(&suite, suite.rounds / 4 + 1);
    if (!suite.failed)
        measure_submit(&suite, suite.rounds * 50);
    return bench_suite_end(&suite);
}
