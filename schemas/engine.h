/*
 * engine.h - a run that the engine's own stream executes: what the daemon, libattnd-cuda and the
 * kernels say to each other about it.
 *
 * The daemon shows the engine an *image* of each of its plans: a memfd that only the daemon writes,
 * with the plan as it lies in the heap that workers read. The engine's kernels copy it to device
 * memory of the engine's, in the order of its stream, and execute its tiles there.
 *
 *   sequence + 1 (odd)     daemon, before it changes anything; then a fence (F1)
 *   sequence + 1 (even)    R1, when all of it is there
 *   sequence ... sequence  A1, then a fence: what was copied in between two equal even numbers is
 *                          whole
 */
#ifndef ATTND_SCHEMAS_ENGINE_H
#define ATTND_SCHEMAS_ENGINE_H

#include "schemas/abi.h"
#include "schemas/cut.h"
#include "schemas/errors.h"
#include "schemas/executor.h"
#include "schemas/variant.h"

/* In front of a plan's image. */
struct attnd_plan_image {
    uint32_t sequence;    /* odd: it is being written */
    uint32_t code;        /* ATTND_E_*: why there is nothing to execute; 0: the plan is filled */
    uint64_t set_version; /* as in attnd_plan_head */
    uint32_t advance_version;
    uint32_t generation; /* whose lengths are valid */
    uint32_t items;      /* of an attention run */
    uint32_t page_size;  /* of the pool */
    uint64_t plan_bytes; /* the plan's place behind this, capacity */
    uint64_t scratch_bytes;
    struct attnd_pace pace; /* of the worker's tiles */
    uint32_t first_rows;    /* packed rows of the first tile */
    uint32_t most_rows;     /* packed rows of an entry, at most */
    uint32_t zero[4];
};
ATTND_ASSERT_SIZE(attnd_plan_image, 128);
#define ATTND_IMAGE_PLAN_AT 128u /* bytes to the struct attnd_plan_head */

/* What the engine's kernels have executed in a lane, from the beginning of the session on. */
struct attnd_engine_sums {
    uint64_t runs;
    uint64_t busy_ns; /* of SMs, together */
    uint64_t kv_bytes;
    uint32_t errors;
    uint32_t error_code; /* ATTND_E_*, of one of the last */
};
ATTND_ASSERT_SIZE(attnd_engine_sums, 32);

/* A memfd of the session's own, which its kernels write once a step and the daemon reads. */
struct attnd_engine_account {
    struct attnd_engine_sums lane[64]; /* ATTND_LANES_MAX */
};
ATTND_ASSERT_SIZE(attnd_engine_account, 2048);

/* ---- arguments of the kernels of persistent/cuda/engine ---- */

/* Device memory as the engine sees it, by its number in the session. struct Memory of a worker. */
struct attnd_engine_memory {
    uint64_t address;
    uint64_t size_bytes;
    uint32_t host; /* 1: it lies behind the bus */
    uint32_t zero;
};
ATTND_ASSERT_SIZE(attnd_engine_memory, 24);

/* Sizes and places that libattnd-cuda allocates and copies by; a symbol of the module. */
struct attnd_engine_facts {
    uint64_t session_bytes; /* of a session's block, which begins as zeros */
    uint64_t resident_at;   /* in it: a worker kernel's first argument */
    uint64_t templates_at, templates_bytes;
    uint64_t memories_at; /* struct attnd_engine_memory [ATTND_MEMORIES_MAX] */
    uint64_t errors_at;   /* uint32 [ATTND_LANES_MAX]: the first failure since it was 0 */
    uint64_t plan_bytes;  /* of a plan's block of one lane */
    uint64_t fault_at;    /* in it: struct attnd_fault of a cut */
    uint64_t runs_max;
    /* Shared memory of a cut, and what it takes more for a request, a block, a tile. */
    uint32_t cut_bytes, cut_request_bytes, cut_block_bytes, cut_tile_bytes;
};
ATTND_ASSERT_SIZE(attnd_engine_facts, 88);

/* What a worker kernel says of itself; a symbol of its module. */
struct attnd_kernel_facts {
    uint32_t kernel; /* attnd_kernel_number() */
    uint32_t shared_bytes;
    uint32_t session_bytes; /* of struct Resident, as it knows it */
    uint32_t late;          /* 1: it must not begin before all in front of it in a stream is over */
    uint32_t decode_rows;   /* packed rows of an item that it can rotate and store for; 0: none */
};
ATTND_ASSERT_SIZE(attnd_kernel_facts, 20);

/* A worker kernel's last argument. */
struct attnd_engine_launch {
    uint64_t session, plan; /* blocks */
    uint32_t slot;          /* of the prepared run */
    uint32_t serial;        /* of the run in that slot, never 0 */
    uint32_t lane;
    uint32_t first_rows; /* packed rows that it most likely begins with; 0: not known */
};
ATTND_ASSERT_SIZE(attnd_engine_launch, 32);

/* What a run stores and rotates in front of attention: an argument of worker kernels, and of the
 * kernel that does so for plans of many rows. All of it is device memory. */
struct attnd_engine_fused {
    uint64_t k, v;             /* new rows; k 0: the run has none */
    uint64_t cos_sin;          /* float [table_rows][2][rotary_dim / 2]; 0: nothing is rotated */
    uint64_t positions, slots; /* int32 [rows]; 0: those of the lengths */
    uint64_t turned;           /* of a worker kernel: room for rotated q of its items */
    uint64_t q; /* [rows][heads_q][dim]: q was rotated to there, and is read there; 0 */
    uint32_t k_row, k_head, v_row, v_head; /* pitches, elements */
    uint32_t rows;                         /* of k, v, positions and slots */
    uint32_t table_rows, rotary_dim;
    uint32_t interleaved; /* 1: a pair is 2 i and 2 i + 1; 0: i and rotary_dim / 2 + i */
};
ATTND_ASSERT_SIZE(attnd_engine_fused, 88);
#define ATTND_FUSED_ITEM_BYTES 4096u /* rotated q of an item */
#define ATTND_FUSED_WORKER_BYTES (2 * ATTND_FUSED_ITEM_BYTES)
#define ATTND_FUSED_UNIT 8u /* elements that a thread moves */

/* Where a plan in a lane lies: an argument of its refresh. */
struct attnd_engine_plan {
    uint64_t image;  /* the daemon's, as the GPU sees it */
    uint64_t mirror; /* device memory: plan_bytes, and behind it arrival counters */
    uint64_t mirror_bytes;
    uint64_t scratch; /* of the lane */
    uint64_t scratch_bytes;
};
ATTND_ASSERT_SIZE(attnd_engine_plan, 40);

/* Where a plan whose lengths only the GPU knows is made: an argument of its cut. All of it is
 * device memory. Places in the mirror are bytes from its beginning, where the plan's head and
 * variant lie.
 */
struct attnd_engine_cut {
    struct attnd_cut_shape shape;
    uint64_t lengths, table, qo_indptr; /* the engine's arrays: int32 */
    uint64_t errors;                    /* uint32 [requests]; 0: not wanted */
    uint64_t mirror;
    uint64_t tiles_at, merges_at, parts_at, lengths_at;
    uint64_t arrivals;        /* counters of merges, which are zero between runs */
    uint64_t states, outputs; /* of partial rows */
    uint64_t set_version;     /* of the plan when its shape was taken; bit 63: it is a cut */
    uint32_t blocks_max, tiles_max;
    uint32_t pages; /* of the pool */
    uint32_t lane;
    struct attnd_plan_head head; /* its counts are the cut's; scales are multiplied */
    struct attnd_variant variant;
};
ATTND_ASSERT_SIZE(attnd_engine_cut, 112 + 13 * 8 + 16 + 256 + ATTND_VARIANT_BYTES);
#define ATTND_CUT_VERSION (1ull << 63)

/* A prepared run. Memories are the session's numbers. */
struct attnd_engine_run {
    struct attnd_heap_plane k, v; /* of the run's layer */
    struct attnd_place q, o, lse; /* lse.memory ATTND_NONE: not wanted */
    uint64_t plan;                /* the plan's block in the run's lane */
    uint32_t slot, serial, layer;
    uint32_t page_size, pages, heads_kv;
    uint32_t dim_qk, dim_vo, kv_dtype;
    uint32_t zero;
};
ATTND_ASSERT_SIZE(attnd_engine_run, 176);

#endif
