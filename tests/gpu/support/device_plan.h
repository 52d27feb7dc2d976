/*
 * device_plan.h - an engine that knows its lengths on the GPU alone: lengths, page tables and rows
 * of requests in its own device memory, a graph of a plan and of the layers behind it, and a judge
 * of what they wrote.
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_DEVICE_PLAN_H
#define ATTND_TESTS_GPU_SUPPORT_DEVICE_PLAN_H

#include "tests/gpu/support/gpu.h"
#include "tests/support/random/prng.h"

#define DEVICE_PLAN_LAYERS 2u
#define DEVICE_PLAN_REQUESTS_MAX 256u
#define DEVICE_PLAN_LANE 2u

/* What does not change from launch to launch. */
struct device_shape {
    uint32_t dtype, dim, dim_vo; /* dim_vo 0: dim; else V lies in the rows of K */
    uint32_t heads_kv, group, page_size;
    uint32_t requests, rows; /* at most */
    uint32_t rows_each;      /* 0: qo_indptr says */
    uint32_t keys;           /* of a request, at most */
    uint32_t window;         /* keys that a row sees; 0: all before it */
    float soft_cap;
    uint32_t sinks; /* 1: of each layer and head */
};

struct device_plan {
    struct device_shape shape;
    struct attnd_session *session;
    CUstream stream;
    CUgraphExec graph;
    uint32_t pages, stride; /* of the pool; of the table */
    uint32_t pool, plan, memory, prepared[DEVICE_PLAN_LAYERS];
    CUdeviceptr rows; /* q, then o and lse of each layer */
    CUdeviceptr lengths, table, qo_indptr, errors;
    uint16_t *q, *o, *k[DEVICE_PLAN_LAYERS], *v[DEVICE_PLAN_LAYERS]; /* on the host */
    float *lse, *sinks;                                              /* [layers][heads] */
    int32_t *host_lengths, *host_table, *host_qo;
    int32_t refused[DEVICE_PLAN_REQUESTS_MAX]; /* 1: rows of the request are to be NaN */
};

/** device_plan_open() - in a process that has opened the GPU: all of it, and a graph of the plan
 * and all layers. */
void device_plan_open(struct device_plan *plan, const char *socket_path,
                      const struct device_shape *shape);
void device_plan_close(struct device_plan *plan);

/** device_plan_args() - of the call that plans. */
struct attnd_cuda_plan_args device_plan_args(const struct device_plan *plan);

/** device_plan_draw() - other lengths, rows and tables, on the host. */
void device_plan_draw(struct device_plan *plan, struct prng *prng);

/** device_plan_launch() - what the host has, to the device; poison; and the graph, waited for. */
void device_plan_launch(struct device_plan *plan);

/** device_plan_right() - rows of all layers are right; those of refused requests are NaN, and those
 * of padding and behind the last are as they were. */
void device_plan_right(struct device_plan *plan);

/** device_plan_untouched() - nothing was written. */
void device_plan_untouched(struct device_plan *plan);

#endif
