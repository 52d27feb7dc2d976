/* latency.c - one layer between two kernels: small ones, or such as an engine has.
 *
 * kernel, kernel is timed, and kernel, attention, kernel: many of them in a row between two events,
 * in a stream and in a graph. The difference is what attention adds. The tile's own time is taken
 * off: from the moment the run is published to the worker's CTAs until its last item is done, by
 * the device's clock, of the same run through a ring. What is left is the way there and back: the
 * kernel that rings and waits, the doorbell, the answer. Beside it the notes have what a plain
 * kernel adds.
 *
 * A kernel of one thread fits beside workers of the service that wait for a run. A kernel of an
 * engine, whose CTAs hold 100 KB of shared memory each, may find no room there. */
#include "bench/gpu/latency.h"

#include "bench/gpu/kernel.h"
#include "client/cuda/attnd_cuda.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LAYERS 32u
#define REPEATS 8u
#define SAMPLES 21u
#define LANE 0u
#define ENGINE_CTA_BYTES (100u << 10)
#define ENGINE_LOOPS 250u /* some 3 us */
#define ENGINE_S 60u      /* for all that is timed with kernels of an engine */

/* CTAs of a kernel of an engine, one on an SM: on some, and on all of an H100. */
static const uint32_t engine_ctas[] = {32, 132};
#define ENGINES (sizeof(engine_ctas) / sizeof(engine_ctas[0]))

static const char text[] = ".version 6.4\n.target sm_70\n.address_size 64\n"
                           ".visible .entry small(.param .u64 word)\n{\n"
                           ".reg .u64 %a;\n.reg .u32 %n;\n"
                           "ld.param.u64 %a, [word];\nld.global.u32 %n, [%a];\n"
                           "add.u32 %n, %n, 1;\nst.global.u32 [%a], %n;\nret;\n}\n";

enum middle { NOTHING, KERNEL, ATTENTION, MIDDLES };

struct layers {
    struct attnd_session *session;
    uint32_t prepared[LAYERS];
    CUfunction small;
    CUdeviceptr word;
    struct gpu_kernel engine;
    uint32_t ctas; /* of kernels of an engine; 0: kernels are small */
    CUstream stream;
    CUevent events[2];
    uint32_t memory, plan;
    uint64_t q_bytes;
};

static struct bench_uniform small_decode(void)
{
    struct bench_uniform uniform = gpu_small;

    uniform.layers = LAYERS;
    return uniform;
}

/* ---- what is needed ---- */

static bool open_service(struct bench_suite *suite, struct layers *layers)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-layers"};
    const struct bench_uniform uniform = small_decode();
    struct attnd_pool_info info;
    uint32_t pool;

    layers->q_bytes = bench_uniform_q_bytes(&uniform);
    return bench_suite_call(suite, "attnd_open", attnd_open(&args, &layers->session)) &&
           bench_suite_call(suite, "attnd_memory_create_device",
                            attnd_memory_create_device(
                                layers->session, 2 * layers->q_bytes * LAYERS, &layers->memory)) &&
           bench_uniform_pool(suite, layers->session, &uniform, &pool, &info) &&
           bench_uniform_plan(suite, layers->session, &uniform, pool, &layers->plan);
}

static bool prepare(struct bench_suite *suite, struct layers *layers)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        const struct attnd_prepare_args args = {
            .size = sizeof(args),
            .layer = i,
            .lane = LANE,
            .q = {layers->memory, 2 * i * layers->q_bytes},
            .o = {layers->memory, (2 * i + 1) * layers->q_bytes}};
        if (!bench_suite_call(
                suite, "attnd_prepare",
                attnd_prepare(layers->session, layers->plan, &args, &layers->prepared[i])))
            return false;
    }
    return bench_suite_call(suite, "attnd_cuda_stream_open",
                            attnd_cuda_stream_open(layers->session));
}

static bool open_kernel(struct bench_suite *suite, struct layers *layers)
{
    CUmodule module;

    return gpu_cuda(suite, "cuModuleLoadData", cuModuleLoadData(&module, text)) &&
           gpu_cuda(suite, "cuModuleGetFunction",
                    cuModuleGetFunction(&layers->small, module, "small")) &&
           gpu_cuda(suite, "cuMemAlloc", cuMemAlloc(&layers->word, 4)) &&
           gpu_cuda(suite, "cuStreamCreate",
                    cuStreamCreate(&layers->stream, CU_STREAM_NON_BLOCKING)) &&
           gpu_cuda(suite, "cuEventCreate", cuEventCreate(&layers->events[0], CU_EVENT_DEFAULT)) &&
           gpu_cuda(suite, "cuEventCreate", cuEventCreate(&layers->events[1], CU_EVENT_DEFAULT));
}

/* ---- what is timed ---- */

static bool queue_kernel(struct bench_suite *suite, const struct layers *layers)
{
    CUdeviceptr word = layers->word;
    void *arguments[] = {&word};

    if (layers->ctas)
        return gpu_kernel_queue(suite, &layers->engine, layers->ctas, ENGINE_LOOPS, layers->stream);
    return gpu_cuda(
        suite, "cuLaunchKernel",
        cuLaunchKernel(layers->small, 1, 1, 1, 1, 1, 1, 0, layers->stream, arguments, NULL));
}

static bool queue_layers(struct bench_suite *suite, const struct layers *layers, enum middle middle)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        if (!queue_kernel(suite, layers))
            return false;
        if (middle == KERNEL && !queue_kernel(suite, layers))
            return false;
        if (middle == ATTENTION &&
            !bench_suite_call(suite, "attnd_cuda_run_on_stream",
                              attnd_cuda_run_on_stream(layers->session, LANE, layers->prepared[i],
                                                       layers->stream)))
            return false;
        if (!queue_kernel(suite, layers))
            return false;
    }
    return true;
}

static bool capture(struct bench_suite *suite, const struct layers *layers, enum middle middle,
                    CUgraphExec *executable)
{
    CUgraph graph;

    return gpu_cuda(suite, "cuStreamBeginCapture",
                    cuStreamBeginCapture(layers->stream, CU_STREAM_CAPTURE_MODE_GLOBAL)) &&
           queue_layers(suite, layers, middle) &&
           gpu_cuda(suite, "cuStreamEndCapture", cuStreamEndCapture(layers->stream, &graph)) &&
           gpu_cuda(suite, "cuGraphInstantiate", cuGraphInstantiate(executable, graph, 0));
}

/* @executable: NULL: in the stream. Nanoseconds a layer. */
static bool time_once(struct bench_suite *suite, const struct layers *layers, enum middle middle,
                      CUgraphExec executable, uint64_t *layer_ns)
{
    float ms = 0;
    bool good = gpu_cuda(suite, "cuEventRecord", cuEventRecord(layers->events[0], layers->stream));

    for (uint32_t i = 0; good && i < REPEATS; i++)
        good = executable
                   ? gpu_cuda(suite, "cuGraphLaunch", cuGraphLaunch(executable, layers->stream))
                   : queue_layers(suite, layers, middle);
    good = good &&
           gpu_cuda(suite, "cuEventRecord", cuEventRecord(layers->events[1], layers->stream)) &&
           gpu_cuda(suite, "cuStreamSynchronize", cuStreamSynchronize(layers->stream)) &&
           gpu_cuda(suite, "cuEventElapsedTime",
                    cuEventElapsedTime(&ms, layers->events[0], layers->events[1]));
    *layer_ns = (uint64_t)((double)ms * 1e6 / (LAYERS * REPEATS));
    return good;
}

/* Return: the median in microseconds; negative after a failure. */
static double time_layers(struct bench_suite *suite, const struct layers *layers,
                          enum middle middle, bool graph)
{
    uint64_t samples[SAMPLES];
    CUgraphExec executable = NULL;
    bool good = !graph || capture(suite, layers, middle, &executable);

    for (uint32_t i = 0; good && i < SAMPLES + 2; i++) /* the first two warm up */
        good = time_once(suite, layers, middle, executable, &samples[i < 2 ? 0 : i - 2]);
    if (executable)
        (void)cuGraphExecDestroy(executable);
    return good ? (double)bench_p50(samples, SAMPLES) * 1e-3 : -1;
}

static bool time_all(struct bench_suite *suite, void *context, struct gpu_times *times)
{
    struct layers layers = {0};
    bool good =
        open_service(suite, &layers) && prepare(suite, &layers) && open_kernel(suite, &layers);

    (void)context;
    for (uint32_t i = 0; good && i < 2 * MIDDLES; i++) {
        times->value[i] = time_layers(suite, &layers, (enum middle)(i % MIDDLES), i >= MIDDLES);
        good = times->value[i] >= 0;
    }
    good = good && bench_suite_call(suite, "a layer", attnd_cuda_lane_error(layers.session, LANE));
    attnd_close(layers.session);
    return good;
}

/* In a child, which ends if a kernel gets no room. */
static bool time_engines(struct bench_suite *suite, void *context, struct gpu_times *times)
{
    struct layers layers = {0};

    (void)context;
    (void)alarm(ENGINE_S);
    bool good = open_service(suite, &layers) && prepare(suite, &layers) &&
                open_kernel(suite, &layers) &&
                gpu_kernel_open(suite, &layers.engine, ENGINE_CTA_BYTES);
    for (uint32_t i = 0; good && i < ENGINES * MIDDLES; i++) {
        layers.ctas = engine_ctas[i / MIDDLES];
        times->value[i] = time_layers(suite, &layers, (enum middle)(i % MIDDLES), true);
        good = times->value[i] >= 0;
    }
    good = good && bench_suite_call(suite, "a layer", attnd_cuda_lane_error(layers.session, LANE));
    attnd_close(layers.session);
    return good;
}

/* @kernels: what there are two of. */
static void report(struct bench_suite *suite, const char *name, const char *suffix,
                   const char *kernels, double reach, const double us[MIDDLES], double tile_us)
{
    char figure[64], notes[240];

    snprintf(figure, sizeof(figure), "%s%s_us", name, suffix);

    snprintf(notes, sizeof(notes),
             "two %s %.2f us, with a third %.2f, with attention %.2f; of that %.2f from published "
             "to the last item",
             kernels, us[NOTHING], us[KERNEL], us[ATTENTION], tile_us);
    bench_suite_figure(suite, figure, us[ATTENTION] - us[NOTHING] - tile_us, "us", "lower", reach,
                       notes);
}

void gpu_measure_layers(struct bench_suite *suite, const char *suffix, double reach)
{
    const struct bench_uniform uniform = small_decode();
    struct gpu_times times, rings;

    if (!gpu_measure(suite, &uniform, 2000, &rings) || !gpu_child(suite, time_all, NULL, &times))
        return;
    report(suite, "layer_in_stream", suffix, "small kernels", reach, &times.value[0],
           rings.tile_us);
    report(suite, "layer_in_graph", suffix, "small kernels", reach, &times.value[MIDDLES],
           rings.tile_us);
}

void gpu_measure_engine_layers(struct bench_suite *suite, const char *suffix)
{
    Attnd__Reply *reply = bench_suite_status(suite);
    const bool mps = reply && reply->status->mps;
    const struct bench_uniform uniform = small_decode();
    struct gpu_times times, rings;
    char name[64], kernels[64];

    attnd__reply__free_unpacked(reply, NULL);
    if (!mps) {
        printf("gpu: layers between kernels of an engine: not measured without MPS\n");
        return;
    }
    if (!gpu_measure(suite, &uniform, 2000, &rings) ||
        !gpu_child(suite, time_engines, NULL, &times))
        return;
    for (uint32_t i = 0; i < ENGINES; i++) {
        snprintf(name, sizeof(name), "layer_in_graph_%" PRIu32, engine_ctas[i]);
        snprintf(kernels, sizeof(kernels), "kernels of %" PRIu32 " CTAs of %u KB", engine_ctas[i],
                 ENGINE_CTA_BYTES >> 10);
        report(suite, name, suffix, kernels, NAN, &times.value[MIDDLES * i], rings.tile_us);
    }
}
