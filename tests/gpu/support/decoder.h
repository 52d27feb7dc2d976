/*
 * decoder.h - an engine that decodes two requests, 32 layers, in its stream; and what it leaves
 * behind to be judged.
 *
 * In every step its own kernels write q of each layer, and K and V of one new token of each request
 * into the pages; the service attends; another kernel keeps o. What is written differs from step to
 * step and lies in tables on the device, so a graph alone does it all. Between steps the lengths
 * are advanced, with pages where a new one is begun.
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_DECODER_H
#define ATTND_TESTS_GPU_SUPPORT_DECODER_H

#include "tests/gpu/support/mover.h"
#include "tests/support/harness/harness.h"

#define DECODER_LAYERS 32u
#define DECODER_REQUESTS 2u
#define DECODER_HEADS_Q 4u
#define DECODER_HEADS_KV 2u
#define DECODER_DIM 64u
#define DECODER_PAGE_SIZE 16u
#define DECODER_REPLAYS 1000u
#define DECODER_TOKENS_MAX 1152u /* of a request */
#define DECODER_PAGES_EACH (DECODER_TOKENS_MAX / DECODER_PAGE_SIZE)
#define DECODER_PAGES (DECODER_REQUESTS * DECODER_PAGES_EACH)
#define DECODER_ROW (DECODER_HEADS_KV * DECODER_DIM) /* elements of a token's K */
#define DECODER_LANE 3u

/* What the engine leaves behind, shared with the processes that judge. */
struct history {
    const struct harness *harness;
    uint32_t replays, stop, others, next_judge;
    uint32_t execute; /* enum attnd_executor that the engine asks for */
    int32_t page[DECODER_REQUESTS][DECODER_PAGES_EACH];
    uint16_t k[DECODER_LAYERS][DECODER_REQUESTS][DECODER_TOKENS_MAX][DECODER_ROW],
        v[DECODER_LAYERS][DECODER_REQUESTS][DECODER_TOKENS_MAX][DECODER_ROW];
    uint16_t q[DECODER_REPLAYS][DECODER_LAYERS][DECODER_REQUESTS][DECODER_HEADS_Q][DECODER_DIM],
        o[DECODER_REPLAYS][DECODER_LAYERS][DECODER_REQUESTS][DECODER_HEADS_Q][DECODER_DIM];
};

struct decoder {
    struct history *history;
    struct attnd_session *session;
    struct mover mover;
    CUstream stream;
    CUdeviceptr rows, pool, q_all, k_all, v_all, o_all, offsets[DECODER_REQUESTS];
    struct attnd_pool_info info;
    uint32_t memory, pool_handle, plan;
    uint32_t prepared[DECODER_LAYERS];
};

/** history_new() - what there is to attend to, and page ids; o is nobody's yet. */
struct history *history_new(const struct harness *harness, uint32_t replays);

/** history_judge() - every o against fp64, by several processes. */
void history_judge(struct history *history);

/** decoder_open() - in a process that has not used CUDA: session, pool, plan, prepared runs. */
void decoder_open(struct decoder *decoder, struct history *history);

/** decoder_close() - o of all steps goes to the history; the lane has no error. */
void decoder_close(struct decoder *decoder);

/** decoder_queue_run() - a layer's attention alone, of whatever rows and pages hold. */
void decoder_queue_run(const struct decoder *decoder, uint32_t layer);

/** decoder_queue_layer() - a layer of the step: q, K and V, attention, o. */
void decoder_queue_layer(const struct decoder *decoder, uint32_t layer);

/** decoder_capture() - a graph of all layers, each as @queue has it, and of the next step. */
CUgraphExec decoder_capture(const struct decoder *decoder,
                            void (*queue)(const struct decoder *decoder, uint32_t layer));

/** decoder_advance() - lengths of @step, and a page for each request that begins one. */
void decoder_advance(const struct decoder *decoder, uint32_t step);

#endif
