/*
 * cut.h - what is known of a plan whose lengths only the GPU knows: its shape, by which a kernel
 * cuts lengths into tiles (persistent/cut.h). libattnd-cuda fills it in.
 */
#ifndef ATTND_SCHEMAS_CUT_H
#define ATTND_SCHEMAS_CUT_H

#include "schemas/abi_assert.h"

#include <stdint.h>

/* Splitting for balance adds so many items for each worker, at most. */
#define ATTND_CUT_TILES_PER_WORKER 4u

/* Parts of a block whose request is refused; their places come in front of all others'. */
#define ATTND_CUT_REFUSED_PARTS 2u

/* How long the worker's tiles take, as its plans reckon; nanoseconds of one KV head. */
struct attnd_pace {
    uint32_t rows_per_tile, granule; /* as in struct attnd_worker_info */
    uint32_t rows_step;              /* as in struct attnd_plan_rates */
    uint32_t keys_item;              /* that an item of rows_per_tile rows may have; 0: no pace */
    uint32_t fusion;                 /* enum attnd_plan_fusion */
    float wave_ns;                   /* of a wave of parts, where none is compute-bound */
    float row_ns, read_ns, bytes_ns, start_ns;
    float part_ns, part_row_ns; /* of a part of a compute-bound block, beside its keys */
    float merge_row_ns;         /* a row of a part, where one worker merges all parts of a block */
    uint32_t merges_many;       /* one does so of compute-bound blocks, too */
};
ATTND_ASSERT_SIZE(attnd_pace, 56);

struct attnd_cut_shape {
    uint32_t requests;
    uint32_t rows_each; /* rows of q of each request; 0: qo_indptr says */
    uint32_t rows;      /* of all, at most */
    uint32_t keys;      /* of a request, at most */
    uint32_t table_stride, page_size;
    uint32_t heads_kv, group;
    uint32_t tokens; /* of a block */
    uint32_t workers;
    uint32_t causal, window; /* as an entry has them */
    uint32_t splits_max;     /* tiles that splitting for balance may add */
    uint32_t zero;
    struct attnd_pace pace;
};
ATTND_ASSERT_SIZE(attnd_cut_shape, 112);

#endif
