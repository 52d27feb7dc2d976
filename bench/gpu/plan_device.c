/* plan_device.c - plans on the device, one behind the other in a graph, between two events: as a
 * step begins with one. Lengths lie between a sixth and all of what the table holds, in no order,
 * so that no plan is an easy one. */
#include "bench/gpu/plan_device.h"

#include "client/cuda/attnd_cuda.h"

#include <stdio.h>
#include <stdlib.h>

#define REQUESTS_MAX 256u
#define IN_A_ROW 64u
#define SAMPLES 21u
#define LANE 0u

struct scene {
    uint32_t requests, keys;
    struct attnd_session *session;
    uint32_t plan;
    CUstream stream;
    CUdeviceptr lengths, table;
    CUgraphExec graph;
};

static struct bench_uniform decodes(const struct scene *scene)
{
    struct bench_uniform uniform = gpu_small;

    uniform.layers = 1;
    uniform.requests = scene->requests;
    uniform.kv_len = scene->keys;
    return uniform;
}

/* Set as any batch is: of the plan its shape alone counts here. */
static bool open_scene(struct bench_suite *suite, struct scene *scene)
{
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .socket_path = suite->socket_path,
                                         .name = "bench-plans",
                                         .execute = ATTND_EXECUTE_ENGINE};
    const struct bench_uniform uniform = decodes(scene);
    const uint32_t pages = scene->keys / uniform.page_size;
    struct attnd_pool_info info;
    static int32_t lengths[REQUESTS_MAX];
    uint32_t pool;

    for (uint32_t r = 0; r < scene->requests; r++)
        lengths[r] = (int32_t)(scene->keys / 6 + scene->keys * 5 / 6 * (r * 37 % 64) / 63);
    return bench_suite_call(suite, "attnd_open", attnd_open(&args, &scene->session)) &&
           bench_uniform_pool(suite, scene->session, &uniform, &pool, &info) &&
           bench_uniform_plan(suite, scene->session, &uniform, pool, &scene->plan) &&
           gpu_cuda(suite, "cuStreamCreate",
                    cuStreamCreate(&scene->stream, CU_STREAM_NON_BLOCKING)) &&
           gpu_cuda(suite, "cuMemAlloc", cuMemAlloc(&scene->lengths, sizeof(lengths))) &&
           gpu_cuda(suite, "cuMemAlloc",
                    cuMemAlloc(&scene->table, (uint64_t)scene->requests * pages * 4)) &&
           gpu_cuda(suite, "cuMemsetD8",
                    cuMemsetD8(scene->table, 0, (uint64_t)scene->requests * pages * 4)) &&
           gpu_cuda(suite, "cuMemcpyHtoD",
                    cuMemcpyHtoD(scene->lengths, lengths, sizeof(lengths))) &&
           gpu_cuda(suite, "cuCtxSynchronize", cuCtxSynchronize());
}

static bool capture(struct bench_suite *suite, struct scene *scene)
{
    const struct attnd_cuda_plan_args args = {.size = sizeof(args),
                                              .requests = scene->requests,
                                              .rows = 1,
                                              .keys = scene->keys,
                                              .table_stride = scene->keys / gpu_small.page_size,
                                              .lengths = scene->lengths,
                                              .table = scene->table};
    CUgraph graph;
    bool good = gpu_cuda(suite, "cuStreamBeginCapture",
                         cuStreamBeginCapture(scene->stream, CU_STREAM_CAPTURE_MODE_RELAXED));

    for (uint32_t i = 0; i < IN_A_ROW && good; i++)
        good = bench_suite_call(
            suite, "attnd_cuda_plan_on_stream",
            attnd_cuda_plan_on_stream(scene->session, scene->plan, LANE, &args, scene->stream));
    return good &&
           gpu_cuda(suite, "cuStreamEndCapture", cuStreamEndCapture(scene->stream, &graph)) &&
           gpu_cuda(suite, "cuGraphInstantiate", cuGraphInstantiate(&scene->graph, graph, 0));
}

static bool time_graph(struct bench_suite *suite, const struct scene *scene, uint64_t *samples)
{
    CUevent events[2];
    float ms = 0;

    if (!gpu_cuda(suite, "cuEventCreate", cuEventCreate(&events[0], CU_EVENT_DEFAULT)) ||
        !gpu_cuda(suite, "cuEventCreate", cuEventCreate(&events[1], CU_EVENT_DEFAULT)))
        return false;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        if (!gpu_cuda(suite, "cuEventRecord", cuEventRecord(events[0], scene->stream)) ||
            !gpu_cuda(suite, "cuGraphLaunch", cuGraphLaunch(scene->graph, scene->stream)) ||
            !gpu_cuda(suite, "cuEventRecord", cuEventRecord(events[1], scene->stream)) ||
            !gpu_cuda(suite, "cuEventSynchronize", cuEventSynchronize(events[1])) ||
            !gpu_cuda(suite, "cuEventElapsedTime", cuEventElapsedTime(&ms, events[0], events[1])))
            return false;
        samples[i] = (uint64_t)((double)ms * 1e6 / IN_A_ROW);
    }
    return true;
}

static bool measure(struct bench_suite *suite, void *context, struct gpu_times *times)
{
    struct scene *scene = context;
    uint64_t samples[SAMPLES];

    if (!open_scene(suite, scene) || !capture(suite, scene) || !time_graph(suite, scene, samples) ||
        !bench_suite_call(suite, "attnd_cuda_lane_error",
                          attnd_cuda_lane_error(scene->session, LANE)))
        return false;
    times->value[0] = (double)bench_p50(samples, SAMPLES) * 1e-3;
    attnd_close(scene->session);
    return true;
}

void gpu_measure_device_plans(struct bench_suite *suite)
{
    struct scene scenes[] = {{.requests = 64, .keys = 3840}, {.requests = 256, .keys = 1920}};
    struct gpu_times times;

    if (gpu_child(suite, measure, &scenes[0], &times))
        bench_suite_figure(suite, "plan_on_device_us", times.value[0], "us", "lower", 6,
                           "64 decodes of 640 to 3,840 keys, 64 in a row in a graph");
    if (gpu_child(suite, measure, &scenes[1], &times))
        bench_suite_figure(suite, "plan_on_device_256_us", times.value[0], "us", "lower", 12,
                           "256 decodes of 320 to 1,920 keys, 64 in a row in a graph");
}
