/*
 * fused.h - an engine whose runs rotate q and k and store k and v themselves, beside one that does
 * so on the host and attends by plain runs of the same plan: both must find the same bits.
 */
#ifndef ATTND_TESTS_GPU_SUPPORT_FUSED_H
#define ATTND_TESTS_GPU_SUPPORT_FUSED_H

#include "tests/gpu/support/gpu.h"
#include "tests/support/random/prng.h"

#define FUSED_REQUESTS_MAX 64u
#define FUSED_LANE 3u

/* What does not change from launch to launch. */
struct fused_shape {
    uint32_t dtype, kv_dtype, dim;
    uint32_t heads_kv, group, page_size;
    uint32_t requests;
    uint32_t rows_each; /* 0: one of each request, but of the first one `prompt` */
    uint32_t prompt;
    uint32_t keys;       /* of a request, at most */
    uint32_t rotary_dim; /* 0: nothing is rotated */
    uint32_t interleaved;
    uint32_t window;        /* keys that a row sees; 0: all before it */
    float k_scale, v_scale; /* 0: none */
    uint32_t names;         /* 1: slots and positions are given, some slots -1 */
    uint32_t on_device;     /* 1: lengths are planned there; else set, and advanced */
    uint32_t in_graph;
};

struct fused {
    struct fused_shape shape;
    struct attnd_session *session;
    CUstream stream;
    CUgraphExec graph;
    uint32_t rows, stride, pages;     /* of the batch; pages of a request; of the pool */
    uint32_t pool, plan, prepared[2]; /* of qkv as it comes; of what the host has rotated */
    CUdeviceptr memory, cos_sin, positions, slots, lengths, table;
    uint16_t *qkv, *turned;
    uint8_t *planes, *poisoned; /* k, then v */
    float *host_cos_sin;
    int32_t *host_positions, *host_slots, *host_lengths, *host_table, *host_qo;
};

/** fused_open() - in a process that has opened the GPU: all of it. */
void fused_open(struct fused *fused, const char *socket_path, const struct fused_shape *shape);
void fused_close(struct fused *fused);

/** fused_args() - of a fused run. */
struct attnd_cuda_fused_args fused_args(const struct fused *fused);

/** fused_draw() - other lengths and rows, and on the host what is to come of them. */
void fused_draw(struct fused *fused, struct prng *prng);

/** fused_right() - a fused run, and a plain one of what the host has made, wrote the same. */
void fused_right(struct fused *fused);

#endif
