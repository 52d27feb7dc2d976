/* engine.c - one shape, as an engine would run it: memory and pool on the device, a plan, runs one
 * after the other. K, V, q and o of a run come from the next layer each time, so that none of them
 * is found in the L2. */
#include "bench/gpu/engine.h"

#include "bench/support/private_service.h"
#include "client/cuda/attnd_cuda.h"
#include "ipc/wake.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNK_BYTES (32u << 20)
#define LANE 0u

const struct bench_uniform gpu_small = {.dtype = ATTND_DTYPE_FP16,
                                        .layers = 4,
                                        .requests = 1,
                                        .qo_len = 1,
                                        .kv_len = 128,
                                        .page_size = 16,
                                        .heads_q = 32,
                                        .heads_kv = 8,
                                        .dim = 128,
                                        .memory_kind = ATTND_MEMORY_DEVICE};

/* ---- processes ---- */

bool gpu_cuda(struct bench_suite *suite, const char *call, CUresult result)
{
    if (result != CUDA_SUCCESS)
        bench_suite_fail(suite, "%s: CUDA error %d", call, (int)result);
    return result == CUDA_SUCCESS;
}

bool gpu_open(struct bench_suite *suite)
{
    CUdevice device;
    CUcontext context;

    return gpu_cuda(suite, "cuInit", cuInit(0)) &&
           gpu_cuda(suite, "cuDeviceGet", cuDeviceGet(&device, 0)) &&
           gpu_cuda(suite, "cuDevicePrimaryCtxRetain",
                    cuDevicePrimaryCtxRetain(&context, device)) &&
           gpu_cuda(suite, "cuCtxSetCurrent", cuCtxSetCurrent(context));
}

bool gpu_child(struct bench_suite *suite,
               bool (*measure)(struct bench_suite *suite, void *context, struct gpu_times *times),
               void *context, struct gpu_times *times)
{
    struct gpu_times *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t parent = getpid(), pid;
    int status = -1;

    if (shared == MAP_FAILED) {
        bench_suite_fail(suite, "out of memory");
        return false;
    }
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        bench_private_leave();
        bool good = !prctl(PR_SET_PDEATHSIG, SIGKILL) && getppid() == parent && gpu_open(suite) &&
                    measure(suite, context, shared);
        fflush(NULL);
        _exit(good ? 0 : 1);
    }
    if (pid > 0) {
        bench_private_child(pid);
        if (waitpid(pid, &status, 0) < 0)
            status = -1;
        bench_private_gone(pid);
    }
    *times = *shared;
    munmap(shared, sizeof(*shared));
    if (status != 0)
        bench_suite_fail(suite, "a process that measures failed");
    return status == 0;
}

/* ---- the card ---- */

static bool name_of_device(struct bench_suite *suite, void *context, struct gpu_times *times)
{
    char *name = (char *)times->value;
    CUdevice device;

    (void)context;
    return gpu_cuda(suite, "cuDeviceGet", cuDeviceGet(&device, 0)) &&
           gpu_cuda(suite, "cuDeviceGetName",
                    cuDeviceGetName(name, (int)sizeof(times->value), device));
}

void gpu_stamp_device(struct bench_suite *suite)
{
    struct gpu_times times = {0};
    char name[sizeof(times.value) + 1] = "";

    if (!gpu_child(suite, name_of_device, NULL, &times))
        return;
    memcpy(name, times.value, sizeof(times.value));
    printf("%s: %s\n", suite->name, name);
    bench_suite_gpu(suite, name);
}

/* ---- what the runs work on ---- */

bool gpu_fill(struct bench_suite *suite, CUdeviceptr at, uint64_t bytes, uint32_t dtype)
{
    void *chunk = malloc(CHUNK_BYTES);
    bool good = chunk != NULL;

    if (chunk)
        bench_uniform_fill(chunk, CHUNK_BYTES, dtype);
    for (uint64_t done = 0; good && done < bytes; done += CHUNK_BYTES) {
        uint64_t left = bytes - done;
        good = gpu_cuda(suite, "cuMemcpyHtoD",
                        cuMemcpyHtoD(at + done, chunk, left < CHUNK_BYTES ? left : CHUNK_BYTES));
    }
    free(chunk);
    return good && gpu_cuda(suite, "cuCtxSynchronize", cuCtxSynchronize());
}

static bool fill_memory(struct bench_suite *suite, struct attnd_session *session, uint32_t memory,
                        uint32_t dtype)
{
    struct attnd_memory_info info = {.size = sizeof(info)};
    CUdeviceptr at = 0;

    return bench_suite_call(suite, "attnd_memory_info",
                            attnd_memory_info(session, memory, &info)) &&
           bench_suite_call(suite, "attnd_cuda_map", attnd_cuda_map(session, memory, &at)) &&
           gpu_fill(suite, at, info.size_bytes, dtype) &&
           bench_suite_call(suite, "attnd_cuda_unmap", attnd_cuda_unmap(at));
}

struct engine {
    struct attnd_session *session;
    uint32_t memory, plan;
    uint64_t q_bytes;
    bool sparse;
};

/* The service's own pool; or planes of this engine's, where V lies in the rows of K. */
static bool open_pool(struct bench_suite *suite, struct attnd_session *session,
                      const struct bench_uniform *uniform, uint32_t *pool)
{
    struct bench_uniform made = *uniform;
    struct attnd_pool_info info;

    if (uniform->dim_vo &&
        !bench_suite_call(
            suite, "attnd_memory_create_device",
            attnd_memory_create_device(session, bench_uniform_kv_bytes(uniform) * uniform->layers,
                                       &made.planes)))
        return false;
    return bench_uniform_pool(suite, session, &made, pool, &info) &&
           fill_memory(suite, session, uniform->dim_vo ? made.planes : info.memory,
                       uniform->kv_dtype ? uniform->kv_dtype : uniform->dtype);
}

static bool open_engine(struct bench_suite *suite, const struct bench_uniform *uniform,
                        struct engine *engine)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-gpu"};
    uint32_t pool;

    engine->q_bytes = bench_uniform_q_bytes(uniform);
    return bench_suite_call(suite, "attnd_open", attnd_open(&args, &engine->session)) &&
           bench_suite_call(suite, "attnd_memory_create_device",
                            attnd_memory_create_device(engine->session,
                                                       2 * engine->q_bytes * uniform->layers,
                                                       &engine->memory)) &&
           fill_memory(suite, engine->session, engine->memory, uniform->dtype) &&
           open_pool(suite, engine->session, uniform, &pool) &&
           bench_uniform_plan(suite, engine->session, uniform, pool, &engine->plan);
}

/* ---- runs ---- */

static struct attnd_tensor q_of(const struct engine *engine, uint32_t layer)
{
    return (struct attnd_tensor){engine->memory, 2 * layer * engine->q_bytes};
}

static struct attnd_tensor o_of(const struct engine *engine, uint32_t layer)
{
    return (struct attnd_tensor){engine->memory, (2 * layer + 1) * engine->q_bytes};
}

static bool run_once(struct bench_suite *suite, const struct engine *engine, uint32_t layer,
                     struct attnd_completion *done)
{
    const struct attnd_run_args run = {.size = sizeof(run),
                                       .layer = layer,
                                       .q = {engine->memory, 2 * layer * engine->q_bytes},
                                       .o = {engine->memory, (2 * layer + 1) * engine->q_bytes}};
    const struct attnd_op op = {0};

    return bench_suite_call(suite, "attnd_run",
                            attnd_run(engine->session, engine->plan, &run, &op)) &&
           bench_wait_hot(suite, engine->session, done);
}

/* A thread that sleeps is not hot. */
static void pause_before(const struct engine *engine, uint64_t number)
{
    const uint64_t until_ns = attnd_clock_ns() + 100000 + number * 7919 % 300000;

    while (engine->sparse && attnd_clock_ns() < until_ns)
        ;
}

/* Through the rings: from the call of attnd_run() until its completion is in hand. */
static bool time_ring(struct bench_suite *suite, const struct bench_uniform *uniform,
                      const struct engine *engine, uint64_t count, struct gpu_times *times)
{
    const uint64_t warm_up = count / 10 + 5;
    uint64_t *call_ns = calloc(count, sizeof(*call_ns)), *tile_ns = calloc(count, sizeof(*tile_ns));
    bool good = call_ns && tile_ns;

    for (uint64_t i = 0; good && i < warm_up + count; i++) {
        struct attnd_completion done;

        pause_before(engine, i);
        uint64_t begin_ns = attnd_clock_ns();
        good = run_once(suite, engine, (uint32_t)(i % uniform->layers), &done);
        if (!good || i < warm_up)
            continue;
        call_ns[i - warm_up] = attnd_clock_ns() - begin_ns;
        tile_ns[i - warm_up] = done.end_ns - done.begin_ns;
    }
    if (good) {
        const uint64_t p99 = count * 99 / 100;
        times->ring_us = (double)bench_p50(call_ns, count) * 1e-3; /* sorts them */
        times->ring_p99_us = (double)call_ns[p99] * 1e-3;
        times->tile_us = (double)bench_p50(tile_ns, count) * 1e-3;
    }
    free(call_ns);
    free(tile_ns);
    return good;
}

/* In the order of a stream: between two events, with nothing else there. */
static bool time_call(struct bench_suite *suite, const struct engine *engine, uint32_t prepared,
                      CUstream stream, const CUevent events[2], uint64_t *took_ns)
{
    float ms = 0;
    bool good =
        gpu_cuda(suite, "cuEventRecord", cuEventRecord(events[0], stream)) &&
        bench_suite_call(suite, "attnd_cuda_run_on_stream",
                         attnd_cuda_run_on_stream(engine->session, LANE, prepared, stream)) &&
        gpu_cuda(suite, "cuEventRecord", cuEventRecord(events[1], stream)) &&
        gpu_cuda(suite, "cuStreamSynchronize", cuStreamSynchronize(stream)) &&
        gpu_cuda(suite, "cuEventElapsedTime", cuEventElapsedTime(&ms, events[0], events[1]));

    *took_ns = (uint64_t)((double)ms * 1e6);
    return good;
}

static bool prepare(struct bench_suite *suite, const struct bench_uniform *uniform,
                    const struct engine *engine, uint32_t *prepared)
{
    for (uint32_t layer = 0; layer < uniform->layers; layer++) {
        const struct attnd_prepare_args args = {.size = sizeof(args),
                                                .layer = layer,
                                                .lane = LANE,
                                                .q = q_of(engine, layer),
                                                .o = o_of(engine, layer)};
        if (!bench_suite_call(
                suite, "attnd_prepare",
                attnd_prepare(engine->session, engine->plan, &args, &prepared[layer])))
            return false;
    }
    return bench_suite_call(suite, "attnd_cuda_stream_open",
                            attnd_cuda_stream_open(engine->session));
}

static bool time_stream(struct bench_suite *suite, const struct bench_uniform *uniform,
                        const struct engine *engine, uint64_t count, struct gpu_times *times)
{
    const uint64_t warm_up = count / 10 + 5;
    uint64_t *call_ns = calloc(count, sizeof(*call_ns)), took_ns = 0;
    uint32_t *prepared = calloc(uniform->layers, sizeof(*prepared));
    CUstream stream = NULL;
    CUevent events[2];
    int least = 0, most = 0;
    bool good = call_ns && prepared && prepare(suite, uniform, engine, prepared) &&
                gpu_cuda(suite, "cuCtxGetStreamPriorityRange",
                         cuCtxGetStreamPriorityRange(&least, &most)) &&
                gpu_cuda(suite, "cuStreamCreateWithPriority",
                         cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING,
                                                    engine->sparse ? most : least)) &&
                gpu_cuda(suite, "cuEventCreate", cuEventCreate(&events[0], CU_EVENT_DEFAULT)) &&
                gpu_cuda(suite, "cuEventCreate", cuEventCreate(&events[1], CU_EVENT_DEFAULT));

    for (uint64_t i = 0; good && i < warm_up + count; i++) {
        pause_before(engine, i);
        good = time_call(suite, engine, prepared[i % uniform->layers], stream, events, &took_ns);
        if (i >= warm_up)
            call_ns[i - warm_up] = took_ns;
    }
    good = good && bench_suite_call(suite, "a run in a stream",
                                    attnd_cuda_lane_error(engine->session, LANE));
    if (good) {
        const uint64_t p99 = count * 99 / 100;
        times->stream_us = (double)bench_p50(call_ns, count) * 1e-3; /* sorts them */
        times->stream_p99_us = (double)call_ns[p99] * 1e-3;
    }
    free(prepared);
    free(call_ns);
    return good;
}

struct work {
    const struct bench_uniform *uniform;
    uint64_t count;
    bool sparse;
};

/* Both ways in: rings first, and their times by the device's clock, then the stream. */
static bool measure(struct bench_suite *suite, void *context, struct gpu_times *times)
{
    const struct work *work = context;
    struct engine engine = {.sparse = work->sparse};
    bool good = open_engine(suite, work->uniform, &engine) &&
                time_ring(suite, work->uniform, &engine, work->count, times) &&
                time_stream(suite, work->uniform, &engine, work->count, times);

    attnd_close(engine.session);
    return good;
}

bool gpu_measure(struct bench_suite *suite, const struct bench_uniform *uniform, uint64_t count,
                 struct gpu_times *times)
{
    struct work work = {uniform, count, false};

    return gpu_child(suite, measure, &work, times);
}

bool gpu_measure_sparse(struct bench_suite *suite, const struct bench_uniform *uniform,
                        uint64_t count, struct gpu_times *times)
{
    struct work work = {uniform, count, true};

    return gpu_child(suite, measure, &work, times);
}
