/* by_stream.c - see by_stream.h. */
#include "tests/gpu/support/by_stream.h"

#include "tests/support/harness/check.h"
#include "tests/support/harness/launched.h"

#include <string.h>

/* ---- a runner of trials ---- */

static struct {
    CUstream stream;
    uint32_t prepared[RANDOM_STEPS_MAX * ENGINE_LAYERS_MAX], count;
} runs;

static void unprepare_all(struct trial *trial)
{
    CHECK_CUDA(cuStreamSynchronize(runs.stream));
    while (runs.count)
        CHECK_OK(attnd_unprepare(trial->engine->session, runs.prepared[--runs.count]));
}

static int run(struct trial *trial, uint32_t step, uint32_t layer, uint32_t lane)
{
    uint32_t prepared;

    if (layer == 0 && trial->batch.seed % 2)
        unprepare_all(trial);
    /* What the next step appends is nothing that a run of this one may see. */
    CHECK_CUDA(cuStreamSynchronize(runs.stream));
    int rc = trial_prepare(trial, step, layer, lane, &prepared);
    if (rc < 0)
        return rc;
    runs.prepared[runs.count++] = prepared;
    rc = attnd_cuda_run_on_stream(trial->engine->session, lane, prepared, runs.stream);
    /* A run that has not begun takes the lengths of the next advance. */
    CHECK_CUDA(cuStreamSynchronize(runs.stream));
    return rc;
}

static int settle(struct trial *trial)
{
    CHECK_CUDA(cuStreamSynchronize(runs.stream));
    return attnd_cuda_lane_error(trial->engine->session, trial->batch.lane);
}

static const struct engine_runner runner = {.run = run, .settle = settle, .end = unprepare_all};

void by_stream_open(struct engine *engine, const char *socket_path, const char *name)
{
    gpu_engine_open(engine, socket_path, name);
    CHECK_CUDA(cuStreamCreate(&runs.stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(attnd_cuda_stream_open(engine->session));
    engine->runner = &runner;
}

/* ---- layers of a trial ---- */

void layers_begin(struct layers *layers, struct engine *engine, const struct random_batch *batch,
                  uint32_t lane)
{
    memset(layers, 0, sizeof(*layers));
    layers->lane = lane;
    launched_begin(&layers->trial, engine, batch);
    for (uint32_t i = 0; i < batch->shape.layers; i++)
        CHECK_OK(launched_prepare(&layers->trial, i, lane, &layers->prepared[i]));
    CHECK_CUDA(cuStreamCreate(&layers->stream, CU_STREAM_NON_BLOCKING));
}

void layers_unprepare(struct layers *layers)
{
    for (uint32_t i = 0; i < layers->trial.batch.shape.layers; i++)
        CHECK_OK(attnd_unprepare(layers->trial.engine->session, layers->prepared[i]));
}

void layers_prepare_anew(struct layers *layers)
{
    for (uint32_t i = 0; i < layers->trial.batch.shape.layers; i++) {
        const uint32_t gone = layers->prepared[i];
        launched_prepare_at(&layers->trial, i, layers->lane, gone, &layers->prepared[i]);
    }
}

void layers_end(struct layers *layers)
{
    CHECK_CUDA(cuStreamSynchronize(layers->stream));
    if (layers->graph)
        CHECK_CUDA(cuGraphExecDestroy(layers->graph));
    trial_end(&layers->trial);
}

void layers_queue(const struct layers *layers)
{
    for (uint32_t i = 0; i < layers->trial.batch.shape.layers; i++)
        CHECK_OK(attnd_cuda_run_on_stream(layers->trial.engine->session, layers->lane,
                                          layers->prepared[i], layers->stream));
}

void layers_capture(struct layers *layers)
{
    CUgraph graph;

    CHECK_CUDA(cuStreamBeginCapture(layers->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    layers_queue(layers);
    CHECK_CUDA(cuStreamEndCapture(layers->stream, &graph));
    CHECK_CUDA(cuGraphInstantiate(&layers->graph, graph, 0));
    CHECK_CUDA(cuGraphDestroy(graph));
}

void captured_open(struct layers *layers, struct engine *engine, const char *socket_path,
                   const char *name, uint32_t lane)
{
    const struct random_batch batch = launched_batch();

    gpu_open();
    gpu_engine_open(engine, socket_path, name);
    layers_begin(layers, engine, &batch, lane);
    layers_capture(layers);
}

void captured_close(struct layers *layers, struct engine *engine)
{
    layers_unprepare(layers);
    layers_end(layers);
    engine_close(engine);
}

void layers_replay(const struct layers *layers)
{
    CHECK_CUDA(cuGraphLaunch(layers->graph, layers->stream));
}

static int await(struct layers *layers)
{
    CHECK_CUDA(cuStreamSynchronize(layers->stream));
    engine_pull(layers->trial.engine);
    return attnd_cuda_lane_error(layers->trial.engine->session, layers->lane);
}

CUresult layers_try(const struct layers *layers)
{
    const CUresult result = cuGraphLaunch(layers->graph, layers->stream);

    return result == CUDA_SUCCESS ? cuStreamSynchronize(layers->stream) : result;
}

void layers_right(struct layers *layers)
{
    CHECK_EQUAL(await(layers), 0);
    for (uint32_t i = 0; i < layers->trial.batch.shape.layers; i++)
        launched_verify(&layers->trial, i);
    engine_push(layers->trial.engine);
}

void layers_failed(struct layers *layers, int error)
{
    CHECK_EQUAL(await(layers), -error);
    for (uint32_t i = 0; i < layers->trial.batch.shape.layers; i++)
        launched_untouched(&layers->trial, i);
}
