/*
 * abi.h - every struct that crosses a process or the PCIe bus.
 *
 * Compiles alone as C11, C17, C++17 and CUDA. Fixed-width fields, offsets instead of pointers,
 * explicit padding that writers set to zero, every size and offset asserted. Words that two sides
 * touch are plain integers here; the host reaches them through atomics.h only.
 *
 * Three segments:
 *   submission   client writes, daemon reads     attnd_submit_head, SQ slots, arena
 *   completion   daemon writes, client reads     attnd_complete_head, CQ slots
 *   queue        daemon and worker               attnd_queue_head, commands, retires, runs,
 *                                                mailbox table, trace, heap
 * and one small memory a session, written by the engine's stream and the worker: attnd_mailbox
 * (abi_doorbell.h).
 * The heap of the queue segment holds pools (planes) and plans (tiles): written by the daemon, read
 * by the worker. A heap offset is in bytes from the start of the queue segment.
 */
#ifndef ATTND_SCHEMAS_ABI_H
#define ATTND_SCHEMAS_ABI_H

#include "schemas/abi_doorbell.h"
#include "schemas/abi_options.h"
#include "schemas/abi_rates.h"
#include "schemas/abi_slots.h"
#include "schemas/abi_trace.h"

#include <stddef.h>
#include <stdint.h>

#define ATTND_PROTOCOL_VERSION 3u
#define ATTND_SEGMENT_MAGIC 0x646e7461u /* "attnd" short of one letter, little-endian */
#define ATTND_CACHE_LINE 64u
#define ATTND_PAGE_BYTES 4096u

#define ATTND_SLOT_BYTES 64u
#define ATTND_RING_ENTRIES_MIN 8u
#define ATTND_RING_ENTRIES_MAX 4096u
#define ATTND_LEVELS_MAX 8u
#define ATTND_LAYERS_MAX 1024u
#define ATTND_GENERATIONS 8u /* lengths that a plan keeps: one is written, runs have the rest */
#define ATTND_HEADS_MAX 1024u
#define ATTND_GROUP_MAX 128u
#define ATTND_HEAD_DIM_MAX 576u
#define ATTND_MEMORIES_MAX 4096u /* worker-side memory table */
#define ATTND_NONE 0xffffffffu
#define ATTND_PARTS_ALONE_MAX 16u /* a tree of so many has a bit of 32 for each node */
#define ATTND_KV_OPEN 0xffffffffu /* kv_end of a last split: up to the generation's length */

/* Where a memory object lies, and so what stands for it. The last two are made by engines only and
 * taken only where they are trusted: the driver parses what they sent. */
enum attnd_memory_kind {
    ATTND_KIND_HOST = 1,   /* a memfd */
    ATTND_KIND_DEVICE = 2, /* memory of the GPU; its descriptor, exported by the driver */
    ATTND_KIND_POOL = 3,   /* an allocation of a stream-ordered pool: the pool's descriptor, and
                              CUmemPoolPtrExportData */
    ATTND_KIND_IPC = 4,    /* a plain allocation: CUipcMemHandle, no descriptor */
    /* Of another service, and only to bring pages from: no run names it. */
    ATTND_KIND_LENT_HOST = 5,  /* a memfd that is open for reading */
    ATTND_KIND_LENT_DEVICE = 6 /* as DEVICE, of any GPU that this one reaches */
};
#define ATTND_IPC_HANDLE_BYTES 64u /* of either of them */
/* To map it may fail, or take long: the call that brings memory of this kind waits for that. */
#define ATTND_KIND_TRIED(kind) (0x10000u << (kind))

/* Flags of a batch. Unknown bits are refused. */
#define ATTND_BATCH_CAUSAL 0x1u       /* on the last level; earlier levels are fully visible */
#define ATTND_BATCH_LSE_LN 0x2u       /* natural logarithm; base 2 otherwise */
#define ATTND_BATCH_SHARED_PAGES 0x4u /* requests side by side begin with the same pages: look */
#define ATTND_BATCH_FLAGS 0x7u
/* Of a plan, beside those: its tiles are to be taken in their order, for all KV heads. */
#define ATTND_PLAN_ONE_PASS 0x80000000u
#define ATTND_PLAN_PLACED 0x40000000u /* levels, and a variant that asks where rows stand */

/* ---- segment "submission" and "completion": client <-> daemon ---- */

enum attnd_opcode {
    ATTND_OP_PLAN_SET = 1,
    ATTND_OP_PLAN_ADVANCE = 2,
    ATTND_OP_APPEND = 3,
    ATTND_OP_RUN = 4,
    ATTND_OP_CANCEL = 5,       /* not lane-ordered; acts when the daemon reads it */
    ATTND_OP_PREFIX_MATCH = 6, /* these name a namespace where others name a plan */
    ATTND_OP_PREFIX_PUBLISH = 7,
    ATTND_OP_PREFIX_CLAIM = 8,
    ATTND_OP_PREFIX_ABANDON = 9,
    ATTND_OP_PREFIX_PIN = 10,
    ATTND_OP_PREFIX_UNPIN = 11,
    ATTND_OP_MERGE = 12,
    ATTND_OP_PAGES_CLAIM = 13,
    ATTND_OP_PAGES_READY = 14
};
#define ATTND_OP_LAST ATTND_OP_PAGES_READY

#define ATTND_OP_SKIP_SUCCESS 0x1u /* no completion unless it fails */
#define ATTND_OP_FLAGS 0x1u

/* One submission. Written whole by the client, copied once by the daemon. */
struct attnd_sqe {
    uint8_t opcode;
    uint8_t flags;
    uint16_t lane;
    uint32_t plan;
    uint64_t user_data;
    union {
        struct attnd_sqe_run run;
        struct attnd_sqe_append append;
        struct attnd_sqe_set set;
        struct attnd_sqe_advance advance;
        struct attnd_sqe_cancel cancel;
        struct attnd_sqe_prefix prefix;
        struct attnd_sqe_merge merge;
        struct attnd_sqe_claim claim;
        struct attnd_sqe_ready ready;
    } u;
};
ATTND_ASSERT_SIZE(attnd_sqe, ATTND_SLOT_BYTES);
ATTND_ASSERT_AT(attnd_sqe, user_data, 8);
ATTND_ASSERT_AT(attnd_sqe, u, 16);

/* One completion. code, field, index, value, limit as in struct attnd_fault. Of a prefix operation
 * that succeeded: index is the blocks, and from bit 32 on why it went no further (enum
 * attnd_prefix_stop); value what it counts beside them; limit where a match's pages begin, or a
 * claim's. */
struct attnd_cqe {
    uint64_t user_data;
    int32_t code;
    uint8_t opcode;
    uint8_t zero0;
    uint16_t lane;
    uint32_t field;
    uint32_t words; /* of results, of a match or a claim that succeeded */
    uint64_t index;
    int64_t value, limit;
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC: started and finished */
};
ATTND_ASSERT_SIZE(attnd_cqe, ATTND_SLOT_BYTES);
ATTND_ASSERT_AT(attnd_cqe, index, 24);
ATTND_ASSERT_AT(attnd_cqe, end_ns, 56);

/* First page of the submission segment: the words the client writes, one cache line each. SQ slots
 * follow at ATTND_PAGE_BYTES, then the arena at the next page boundary. */
struct attnd_submit_head {
    uint32_t magic, version;
    uint32_t zero0[14];
    uint32_t sq_tail; /* doorbell: the daemon may sleep on it */
    uint32_t zero1[15];
    uint32_t cq_head;
    uint32_t zero2[15];
    uint32_t cq_need; /* the client is about to sleep: write its notify pipe */
    uint32_t zero3[15];
};
ATTND_ASSERT_SIZE(attnd_submit_head, 256);
ATTND_ASSERT_AT(attnd_submit_head, sq_tail, 64);
ATTND_ASSERT_AT(attnd_submit_head, cq_head, 128);
ATTND_ASSERT_AT(attnd_submit_head, cq_need, 192);

/* First page of the completion segment, mapped read-only by the client (F_SEAL_FUTURE_WRITE). CQ
 * slots follow at ATTND_PAGE_BYTES, then ATTND_RESULT_WORDS int32 at the next page boundary: the
 * pages of matches. Word w of them lies at w modulo their number. They are the client's until it
 * has freed the slot of the completion that names them. */
struct attnd_complete_head {
    uint32_t magic, version;
    uint32_t zero0[14];
    uint32_t sq_head;
    uint32_t zero1[15];
    uint32_t sq_need; /* the daemon is about to sleep: ring the doorbell */
    uint32_t zero2[15];
    uint32_t cq_tail;
    uint32_t zero3[15];
};
ATTND_ASSERT_SIZE(attnd_complete_head, 256);
ATTND_ASSERT_AT(attnd_complete_head, sq_head, 64);
ATTND_ASSERT_AT(attnd_complete_head, sq_need, 128);
ATTND_ASSERT_AT(attnd_complete_head, cq_tail, 192);

/* ---- segment "queue": daemon <-> worker ---- */

enum attnd_worker_state {
    ATTND_WORKER_STARTING = 0,
    ATTND_WORKER_RUNNING = 1,
    ATTND_WORKER_PARKED = 2 /* no tile is held and none will be taken until it is to start again */
};

/* The daemon's request to the worker whose segment this is. */
enum attnd_park {
    ATTND_PARK_NO = 0,
    ATTND_PARK_ASKED = 1, /* finish what was begun, begin nothing more */
    ATTND_PARK_OVER = 2   /* its process is dead and another's turn: whatever of it still runs,
                             kernels, ends as soon as it can */
};

/* How the worker's kernels live beside those of others on its GPU (ARCHITECTURE.md). */
enum attnd_residency {
    ATTND_RESIDENCY_NONE = 0,      /* no GPU */
    ATTND_RESIDENCY_SHARED = 1,    /* resident on some SMs */
    ATTND_RESIDENCY_EXCLUSIVE = 2, /* resident on all SMs */
    ATTND_RESIDENCY_ELASTIC = 3    /* on all SMs while something is queued */
};

#define ATTND_GPU_UUID_BYTES 16u

/* The worker's description of itself, written before it reports RUNNING. */
struct attnd_worker_info {
    char backend[16];       /* "cpu", "cuda" */
    char isa[32];           /* "avx512", "sm_90a", ... */
    uint32_t tile_workers;  /* threads or CTAs that pull tiles */
    uint32_t rows_per_tile; /* packed query rows (tokens x group) of a compute-bound tile */
    uint32_t kv_granule;    /* split boundaries are multiples of this many tokens */
    uint32_t residency;     /* enum attnd_residency */
    uint64_t scratch_bytes; /* for partials of all runs in flight */
    uint32_t sms;           /* of the GPU; 0: there is none */
    uint32_t sms_resident;  /* that the kernels take, the dispatcher's included */
    uint32_t options;       /* ATTND_OPTION_* that it executes */
    uint32_t mps;           /* 1: contexts on this GPU are shared through MPS */
    uint32_t mailbox_kind;  /* enum attnd_memory_kind of mailboxes; 0: it watches none */
    uint32_t memory_kinds;  /* bit k: it maps memory of enum attnd_memory_kind k; and
                               ATTND_KIND_TRIED(k) */
    uint16_t head_dims[4];  /* [attnd_dtype_dims()] of pools: bit attnd_head_dim_bit(dim) */
    uint8_t gpu_uuid[ATTND_GPU_UUID_BYTES]; /* as CUDA tells it, if there is a GPU */
    uint32_t zero[2];
};
ATTND_ASSERT_SIZE(attnd_worker_info, 128);
ATTND_ASSERT_AT(attnd_worker_info, scratch_bytes, 64);
ATTND_ASSERT_AT(attnd_worker_info, head_dims, 96);

#define ATTND_PINNING 2u /* memories at a time that a worker brings in */

/* First page of the queue segment. Ring words as in the session segments, one line each. */
struct attnd_queue_head {
    uint32_t magic, version;
    uint64_t commands_offset_bytes; /* struct attnd_command[ring_entries] */
    uint64_t retires_offset_bytes;  /* struct attnd_retire[ring_entries] */
    uint64_t runs_offset_bytes;     /* struct attnd_run[runs] */
    uint64_t heap_offset_bytes;
    uint64_t heap_bytes;
    uint32_t ring_entries;
    uint32_t runs;           /* all of the run table */
    uint32_t runs_transient; /* slots below it: one ATTND_COMMAND_RUN each; from it on: prepared */
    uint32_t mailboxes_offset; /* bytes: struct attnd_mailbox_slot[ATTND_MAILBOXES_MAX] */

    uint32_t command_tail; /* daemon; the worker may sleep on it */
    uint32_t zero1[15];
    uint32_t command_head; /* worker */
    uint32_t zero2[15];
    uint32_t command_need; /* worker is about to sleep */
    uint32_t zero3[15];
    uint32_t retire_tail; /* worker; the daemon may sleep on it */
    uint32_t zero4[15];
    uint32_t retire_head; /* daemon */
    uint32_t zero5[15];
    uint32_t retire_need; /* daemon is about to sleep */
    uint32_t zero6[15];

    uint32_t park;      /* daemon: enum attnd_park */
    uint32_t state;     /* worker: enum attnd_worker_state */
    uint32_t heartbeat; /* worker: counts for as long as its process moves */
    uint32_t launches;  /* worker: kernels that it launched; none of a run's own */
    /* worker: 1 + memory that it is bringing in, at once and in pieces; 0: none now */
    uint32_t pinning[ATTND_PINNING];
    uint32_t wake_memory; /* daemon: 1 + memory of the wake word, in the worker's table; 0: none */
    uint32_t missing;     /* worker: bit k: nothing of it executes runs of kernel k (kernels.h) */
    uint64_t plan_bytes;  /* worker: of plans and their changes, copied to the device */
    uint64_t trace_offset_bytes;    /* struct attnd_trace_head, records behind it */
    uint32_t trace_until_ms;        /* daemon: records are wanted until then: attnd_trace_on() */
    struct attnd_rates rates;       /* daemon, worker: abi_rates.h */
    struct attnd_worker_info info;  /* worker */
    uint32_t switch_cost_us, zero7; /* daemon, worker: abi_rates.h */
    uint64_t twin_runs, zero8[6];   /* worker: of turns.h */
};
ATTND_ASSERT_AT(attnd_queue_head, command_tail, 64);
ATTND_ASSERT_AT(attnd_queue_head, command_head, 128);
ATTND_ASSERT_AT(attnd_queue_head, command_need, 192);
ATTND_ASSERT_AT(attnd_queue_head, retire_tail, 256);
ATTND_ASSERT_AT(attnd_queue_head, retire_head, 320);
ATTND_ASSERT_AT(attnd_queue_head, retire_need, 384);
ATTND_ASSERT_AT(attnd_queue_head, park, 448);
ATTND_ASSERT_AT(attnd_queue_head, trace_until_ms, 496); /* in the line of park */
ATTND_ASSERT_AT(attnd_queue_head, info, 512);
ATTND_ASSERT_AT(attnd_queue_head, switch_cost_us, 640);
ATTND_ASSERT_SIZE(attnd_queue_head, 704);

/* What the daemon asks. The worker takes commands in order and answers each with one retire that
 * carries its kind, run and tag; answers may overtake each other.
 *
 * RUN: execute run slot `run`; answered when it is done.
 *
 * MAILBOX: begin to watch mailbox slot `run`. If it is fresh, first: doorbells 1, errors 0. If it
 * is not, another worker died: a doorbell that is 0 is answered 1 + ATTND_E_WORKER_RESTARTED, one
 * that is rung is executed. With memory ATTND_NONE in the slot: stop watching; answered when no run
 * of it is in flight.
 *
 * PREPARED: run slot `run` is now `body`: new, changed, or empty (kind 0). Code: 0, or why it
 * cannot be executed; rings of it are then answered with that. No doorbell finds the old body any
 * more; answered when no run of the old one is in flight.
 *
 * HOLD: no prepared run of the plan at body.plan_offset_bytes begins until PUBLISH; doorbells stay
 * pending. Answered when none is in flight.
 *
 * PUBLISH: the plan was set or advanced: prepared runs that begin from now on use body.generation
 * and body.items, also those that PREPARED brought before. Ends a HOLD; comes without one too.
 * Answered as soon as that holds; runs that began before may still be in flight. */
enum attnd_command_kind {
    ATTND_COMMAND_RUN = 1,
    ATTND_COMMAND_MAILBOX = 2,
    ATTND_COMMAND_PREPARED = 3,
    ATTND_COMMAND_HOLD = 4,
    ATTND_COMMAND_PUBLISH = 5
};

/* A place in memory as the worker knows it: its memory table index; ATTND_NONE: absent. */
struct attnd_place {
    uint32_t memory;
    uint32_t zero;
    uint64_t offset_bytes;
};
ATTND_ASSERT_SIZE(attnd_place, 16);

enum attnd_run_kind { ATTND_RUN_ATTEND = 1, ATTND_RUN_APPEND = 2, ATTND_RUN_MERGE = 3 };

/* One execution of a plan on one layer: what a planned tile leaves open. A prepared run is executed
 * whenever the doorbell `lane` of mailbox `mailbox` names it, and only if that mailbox slot is of
 * the same session: a mailbox slot given out again must not reach what was prepared for another. */
struct attnd_run {
    uint32_t kind;
    uint32_t generation;        /* 0..ATTND_GENERATIONS-1: which lengths */
    uint64_t plan_offset_bytes; /* heap: struct attnd_plan_head */
    uint32_t layer;
    uint32_t items;  /* queue items: attnd_plan_items() */
    uint32_t cancel; /* daemon sets 1: items are skipped, or end in the middle */
    uint32_t session;
    uint64_t scratch_offset_bytes; /* in the worker's scratch; holds anything: the worker zeroes
                                      counters */
    struct attnd_place q, o, lse;  /* ATTEND */
    struct attnd_place k, v;       /* APPEND: rows to store */
    struct attnd_place w; /* MERGE: q and k are the two o, v and w the lse of each; o, lse */
    uint32_t mailbox;     /* prepared: whose doorbell may name it; else ATTND_NONE */
    uint32_t lane;        /* prepared: which of its doorbells */
    uint32_t code;        /* prepared: ATTND_E_* that a ring is answered with; 0: execute */
    uint32_t weight;      /* of the session, against others'; 0: 1 */
    uint32_t serial;      /* prepared: of the number by which it is rung */
    uint32_t zero0;
    uint64_t zero[4];
};
ATTND_ASSERT_SIZE(attnd_run, 192);
ATTND_ASSERT_AT(attnd_run, plan_offset_bytes, 8);
ATTND_ASSERT_AT(attnd_run, scratch_offset_bytes, 32);
ATTND_ASSERT_AT(attnd_run, q, 40);
ATTND_ASSERT_AT(attnd_run, v, 104);
ATTND_ASSERT_AT(attnd_run, mailbox, 136);

/* One K or V plane of one layer. Element [page, token, head, d] lies at
 * offset_bytes + attnd_dtype_bytes() of the pool's dtype *
 * (page * stride_page + token * stride_token + head * stride_head + d). Strides are in elements. */
struct attnd_heap_plane {
    uint32_t memory; /* worker memory table index */
    uint32_t zero;
    uint64_t offset_bytes;
    int64_t stride_page, stride_token, stride_head;
};
ATTND_ASSERT_SIZE(attnd_heap_plane, 40);

/* All that a worker behind a bus needs of it in one trip. */
struct attnd_command {
    uint32_t kind;
    uint32_t run;             /* RUN, PREPARED: index into the run table; MAILBOX: into its table */
    uint32_t tag;             /* the daemon's own */
    uint32_t advance_version; /* RUN, PREPARED, HOLD, PUBLISH: of the plan, when this was pushed */
    uint64_t set_version;
    uint32_t page_size, pages; /* RUN, PREPARED, PUBLISH: of the plan's pool */
    struct attnd_run body;     /* RUN, PREPARED: what the run table has; HOLD, PUBLISH: plan, items,
                                  generation */
    struct attnd_heap_plane k, v; /* RUN, PREPARED: of the run's layer */
    uint64_t zero;
    uint64_t checksum; /* checksum.h; wrong: read the slot after the tail */
};
ATTND_ASSERT_SIZE(attnd_command, 320);
ATTND_ASSERT_AT(attnd_command, body, 32);
ATTND_ASSERT_AT(attnd_command, k, 224);
ATTND_ASSERT_AT(attnd_command, checksum, 312);

struct attnd_retire {
    uint32_t run;
    int32_t code;              /* 0, -ATTND_E_CANCELLED, _UNKNOWN, _RANGE, _UNSUPPORTED */
    uint64_t begin_ns, end_ns; /* RUN: first tile taken, last tile done: CLOCK_MONOTONIC */
    uint64_t busy_ns;          /* summed over tile workers */
    uint64_t kv_bytes;         /* K and V read */
    uint32_t tiles;
    uint32_t kind, tag; /* of the command */
    uint32_t zero0;
    uint64_t zero;
};
ATTND_ASSERT_SIZE(attnd_retire, ATTND_SLOT_BYTES);
ATTND_ASSERT_AT(attnd_retire, begin_ns, 8);
ATTND_ASSERT_AT(attnd_retire, tiles, 40);

/* ---- heap: pools and plans ---- */

/* Followed by attnd_heap_plane k[layers], v[layers]. */
struct attnd_heap_pool {
    uint32_t layers, pages, page_size, heads_kv;
    uint32_t dim_qk, dim_vo;
    uint32_t dtype; /* of K and V: enum attnd_dtype */
    uint32_t zero;
};
ATTND_ASSERT_SIZE(attnd_heap_pool, 32);

/* Whole pages between a pool and host memory. The worker is told where this lies in the heap by a
 * message on its socket, because a GPU's copy engines are the host's to command. Followed by struct
 * attnd_copy_page[count]. In host memory a page is its bytes of k[layers], v[layers], one behind
 * the other, so the pool's pages must be dense: strides of token and head that leave no gap. */
struct attnd_copy {
    uint64_t pool_offset_bytes; /* heap: struct attnd_heap_pool */
    uint32_t to_host;           /* 1: out of the pool; 0: into it */
    uint32_t layer_begin, layer_end;
    uint32_t count; /* pages */
};
ATTND_ASSERT_SIZE(attnd_copy, 24);
struct attnd_copy_page {
    uint32_t page;         /* of the pool */
    uint32_t memory;       /* of the host, in the worker's table */
    uint64_t offset_bytes; /* there */
};
ATTND_ASSERT_SIZE(attnd_copy_page, 16);

/* Whole pages of a pool of another service into one of this, both in memories of the worker's
 * table. The pools have the same shape, and need not have the same strides or as many pages.
 * Followed by struct attnd_bring_page[count]. */
struct attnd_bring {
    uint64_t pool_offset_bytes; /* heap: struct attnd_heap_pool, into which */
    uint64_t from_offset_bytes; /* heap: the other service's */
    uint32_t layer_begin, layer_end;
    uint32_t count; /* pages */
    uint32_t zero;
};
ATTND_ASSERT_SIZE(attnd_bring, 32);
struct attnd_bring_page {
    uint32_t page; /* of the pool */
    uint32_t from; /* of the other one */
};
ATTND_ASSERT_SIZE(attnd_bring_page, 8);

/* One request of one level: query rows that share one list of pages. */
struct attnd_entry {
    uint32_t row_begin, row_count;   /* query rows (tokens) */
    uint32_t page_begin, page_count; /* in kv_pages; page_count includes the reserve */
    uint32_t level;
    uint32_t causal; /* 1: query i sees keys j <= kv_len - row_count + i */
    /* Of a tile's entry: where among a generation's lengths stands how many keys its rows have on
     * later levels; 0: none. In a worker's own copy that number. Of entries 0 in the heap. */
    uint32_t behind;
    uint32_t window; /* w: a row sees keys from its own place - w + 1 on; 0: all; or ENTRY_CHUNK */
};
ATTND_ASSERT_SIZE(attnd_entry, 32);
ATTND_ASSERT_AT(attnd_entry, window, 28);

enum attnd_tile_class { ATTND_TILE_COMPUTE = 0, ATTND_TILE_MEMORY = 1 };

/* Query rows whose result has several parts (or one, where a tile shares only others of its rows).
 * Each (merge, KV head) has an arrival counter; the worker that arrives as number part_count
 * merges: row row_begin + i of part p is partial row merge_parts[part_begin + p] + i. Parts are
 * listed by level, then by kv_begin. */
struct attnd_merge {
    uint32_t row_begin, row_count;
    uint32_t part_begin, part_count;
};
ATTND_ASSERT_SIZE(attnd_merge, 16);

/* Work for every KV head: query rows of one entry against a KV range. Queue item i of a run is tile
 * i / heads_kv, head i % heads_kv, where a worker has no order of its own. Whole tokens: row_count
 * * group packed rows. What its entry and its first merge say is repeated, because a worker that
 * must look those up before it knows which pages to ask for makes a trip to memory more for each
 * item. */
struct attnd_tile {
    uint32_t entry;
    uint32_t row_begin, row_count;     /* query rows; inside the entry */
    uint32_t kv_begin, kv_end;         /* tokens; kv_end may be ATTND_KV_OPEN */
    uint32_t partial;                  /* first partial row; ATTND_NONE: write o and lse directly */
    uint32_t merge_begin, merge_count; /* merges that this tile arrives at */
    uint32_t cost;       /* planner's units; largest first, of a fused plan among tiles of a kind */
    uint32_t tile_class; /* enum attnd_tile_class */
    uint32_t parts_alone; /* 1: the parts of its one merge are the tiles of its block, all rows */
    uint32_t before;      /* 0 in the heap; in a worker's own copy it may use it */
    struct attnd_entry of_entry; /* entries[entry], of a placed plan's earlier levels with the rows
                                    of the last one's, from which places are counted */
    struct attnd_merge first_merge; /* merges[merge_begin]; zero without merges */
};
ATTND_ASSERT_SIZE(attnd_tile, 96);
ATTND_ASSERT_AT(attnd_tile, partial, 20);
ATTND_ASSERT_AT(attnd_tile, of_entry, 48);
ATTND_ASSERT_AT(attnd_tile, first_merge, 80);

/* Of a tensor [rows, heads, dim], in elements: from one row to the next, and from one head to the
 * next. A row of one head is contiguous. */
struct attnd_pitch {
    int64_t row, head;
};
ATTND_ASSERT_SIZE(attnd_pitch, 16);

/* A plan in the heap: this head, right behind it its struct attnd_variant, then its arrays, whose
 * offsets are in bytes from the head. The arrays after kv_len are written by plan_set only, which
 * is refused while a run of the plan is in flight; kv_pages beyond the used part and one generation
 * of kv_len are written by advance. */
struct attnd_plan_head {
    uint64_t pool_offset_bytes; /* heap: struct attnd_heap_pool */
    uint32_t rows, entries, levels;
    uint32_t heads_q, heads_kv, group;
    uint32_t dim_qk, dim_vo;
    uint32_t dtype; /* of q, o and rows to append */
    uint32_t flags; /* ATTND_BATCH_* */
    float sm_scale;
    uint32_t tiles, merges, parts;
    uint32_t partial_rows;
    uint32_t entries_max; /* stride of kv_len between generations, elements; behind the lengths of
                             a placed plan keys of earlier levels [entries], then of later ones */
    uint64_t entries_offset_bytes, tiles_offset_bytes;
    uint64_t merges_offset_bytes, merge_parts_offset_bytes;
    uint64_t kv_pages_offset_bytes; /* int32 page ids */
    uint64_t kv_len_offset_bytes;   /* int32 [ATTND_GENERATIONS][entries_max] */
    struct attnd_pitch q_pitch, o_pitch, lse_pitch;
    struct attnd_pitch k_pitch, v_pitch; /* rows to append */
    uint64_t set_version;     /* new with each plan_set of any plan: a kept copy is all stale */
    uint32_t advance_version; /* counts advances since: lengths and page ids again */
    uint32_t generation;      /* of the last set or advance, written last */
    uint32_t options;         /* ATTND_OPTION_*; 0: the variant says nothing */
    float logits_soft_cap;    /* of the variant, for those who look only here; 0: none */
    uint64_t mask_begin_offset_bytes; /* uint32 [entries], with ATTND_OPTION_MASK: bytes into it */
    float v_scale;          /* 0 in the heap; in a worker's own copy it may be the variant's */
    uint32_t kv_dtype;      /* of the pool */
    uint32_t compute_tiles; /* of a fused plan: compute-bound ones, in front; else 0 */
    uint16_t compute_workers, whole_tiles; /* that begin with these; whole blocks, first of these */
    uint64_t reads_first; /* plan/twin.c; in a worker's own copy: whose run it is */
};
ATTND_ASSERT_SIZE(attnd_plan_head, 256);
ATTND_ASSERT_AT(attnd_plan_head, entries_offset_bytes, 72);
ATTND_ASSERT_AT(attnd_plan_head, q_pitch, 120);
ATTND_ASSERT_AT(attnd_plan_head, options, 216);

#endif
