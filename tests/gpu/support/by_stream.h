/*
 * by_stream.h - trials whose runs are prepared and launched in an engine's stream, instead of being
 * submitted; and graphs of a trial's layers.
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_BY_STREAM_H
#define ATTND_TESTS_GPU_SUPPORT_BY_STREAM_H

#include "tests/gpu/support/gpu.h"
#include "tests/support/trial/trial.h"

/** by_stream_open() - an engine in device memory whose trials launch their runs in one stream. Of
 * half of the batches runs are unprepared after each step. One such engine a process. */
void by_stream_open(struct engine *engine, const char *socket_path, const char *name);

/* A trial's layers at the places of step 0, launched as often as one likes. */
struct layers {
    struct trial trial;
    CUstream stream;
    CUgraphExec graph; /* NULL: not captured */
    uint32_t lane;
    uint32_t prepared[ENGINE_LAYERS_MAX];
};

/** layers_begin() - a trial of @batch that is set, and its runs prepared. @engine: of
 * gpu_engine_open(). */
void layers_begin(struct layers *layers, struct engine *engine, const struct random_batch *batch,
                  uint32_t lane);
void layers_end(struct layers *layers);

/** captured_open() - this process's engine on the GPU, with a graph of the layers of
 * launched_batch(). captured_close() - both are over. */
void captured_open(struct layers *layers, struct engine *engine, const char *socket_path,
                   const char *name, uint32_t lane);
void captured_close(struct layers *layers, struct engine *engine);

/** layers_unprepare() - a graph that was captured keeps launching them. */
void layers_unprepare(struct layers *layers);

/** layers_prepare_anew() - in the slots of those that were unprepared. */
void layers_prepare_anew(struct layers *layers);

/** layers_queue() - all of them, in the stream. layers_capture() - the same as a graph.
 * layers_replay() - the graph, in the stream. */
void layers_queue(const struct layers *layers);
void layers_capture(struct layers *layers);
void layers_replay(const struct layers *layers);

/** layers_try() - the same, waited for, where it may fail. Return: the driver's result. */
CUresult layers_try(const struct layers *layers);
/** layers_right() - what was launched last is right, and poison again after that. */
void layers_right(struct layers *layers);
/** layers_failed() - it ended with @error, and wrote nothing. */
void layers_failed(struct layers *layers, int error);

#endif
