/*
 * state.h - the CPU backend's own state: runs in flight, the queue of their items, workers.
 *
 * Its modules share it and have a header each for what they do:
 *
 *   worker.c   threads: which dispatches, which sleeps, which is woken, which makes way in between
 *   queue.c    runs in flight, and whose items are next: fair over sessions
 *   run.c      a run in the queue segment -> pointers; the end of a run
 *   memory.c   the memory table
 *   tile.c     one tile: pages to rows, blocks to a kernel, results to their place
 *   stage.c    rows of K and V that no kernel takes as they lie
 *   rope.c     rotary embeddings
 *   variant.c  windows, caps, slopes, sinks
 *   merge.c    finished rows: normalise, or merge parts first
 *   merge_state.c  two results that meet
 *   append.c   new tokens' K and V rows into pages
 *   lookup.c   page ids and lengths, bounded
 *   copy.c     whole pages to host memory and back
 *   health.c   an item that does not get on
 *   kernel*.c  the arithmetic
 *   mailbox.c, control.c, doorbell.c  prepared runs (mail.h)
 */
#ifndef ATTND_PERSISTENT_CPU_STATE_H
#define ATTND_PERSISTENT_CPU_STATE_H

#include <pthread.h>

#include "persistent/backend.h"
#include "persistent/cpu/kernel.h"
#include "schemas/atomics.h"

struct attnd_cpu_memory {
    uint64_t address; /* 0: not mapped; published last */
    uint64_t size_bytes;
};

/* A K or V plane of the run's layer, resolved. Strides in bytes. */
struct attnd_cpu_plane {
    uint8_t *base;
    ptrdiff_t stride_page, stride_token, stride_head;
};

/* A run in flight. The slot's number is the run's index in the queue segment. What the queue keeps
 * is under its lock; what follows the statistics is written before the run is published and
 * constant until it is retired. */
struct attnd_cpu_run {
    uint32_t items, left; /* of the queue: all, and those that nobody has taken */
    uint32_t flow, next;  /* of the queue: whose it is, and the run behind it there */

    uint32_t done; /* items executed or skipped; the last arrival retires the run */
    uint32_t error;
    uint64_t begin_ns, busy_ns, kv_bytes;
    uint32_t executed;

    uint32_t index;
    uint32_t tag;           /* of the command */
    const uint32_t *cancel; /* not 0: nothing of the run is worth finishing */
    uint32_t let_go;        /* what cancels a prepared run: its mailbox is watched no more */
    uint32_t kind, layer;
    const struct attnd_plan_head *plan;
    const struct attnd_heap_pool *pool;
    const struct attnd_entry *entries;
    const struct attnd_tile *tiles;
    const struct attnd_merge *merges;
    const uint32_t *merge_parts;
    const int32_t *kv_pages;
    const int32_t *kv_len; /* of the run's generation */
    uint32_t last_level_begin;
    uint32_t options;             /* of the plan; 0: the variant is not filled in */
    struct attnd_variant variant; /* a copy */
    /* Tables of the variant, the layer's part: float [elements]; NULL: the batch has none. */
#define OPTION(name, field, value)
#define TABLE(name, field, member, elements, beside) const float *member;
#include "schemas/options.def"
    const uint8_t *mask;        /* NULL: none */
    const uint32_t *mask_begin; /* [entries] bytes from there */
    uint32_t dim;               /* of a row in the buffers: dim_qk, or more, which are zeros */
    uint32_t staged;            /* 1: rows of K and V are not in the pool as a kernel wants them */
    struct attnd_cpu_plane k, v;
    const uint16_t *q;
    uint16_t *o;
    float *lse; /* NULL: not wanted */
    const uint16_t *append_k, *append_v;
    const uint16_t *merge_o[2]; /* MERGE: what meets, each with its lse */
    const float *merge_lse[2];
    uint32_t *counters; /* scratch: [merges][heads_kv] */
    float *states;      /* scratch: [partial_rows][heads_q][2] */
    float *outputs;     /* scratch: [partial_rows][heads_q][dim] */
} __attribute__((aligned(ATTND_CACHE_LINE)));

/** attnd_cpu_run_cancelled() - 1: what is left of the run is not to be executed. A load that is
 * cheap enough for every block of keys. Threads: any that holds an item of the run. */
static inline int attnd_cpu_run_cancelled(const struct attnd_cpu_run *run)
{
    return attnd_peek32(run->cancel) != 0;
}

/* Items [item_begin, item_end) of a run; skip: the run is cancelled, do not execute them. */
struct attnd_cpu_share {
    struct attnd_cpu_run *run;
    uint32_t item_begin, item_end;
    int skip;
    uint32_t flow, weight;
    double start;      /* the flow's clock when they were taken */
    double charged_ns; /* what the flow's clock was moved by */
    uint64_t had_ns;   /* what they have taken so far; the thread says so now and then */
    struct attnd_cpu_share *next, **link; /* of the queue's shares in hand */
};

#define ATTND_CPU_FLOWS 128u /* more than there are sessions */

/* A session, as the queue knows it. */
struct attnd_cpu_flow {
    uint32_t session, weight;
    uint32_t known;      /* 0: nobody's yet */
    uint32_t head, tail; /* its runs that have items left, oldest first; head ATTND_NONE: idle */
    uint32_t taken;      /* portions whose time is not charged */
    double clock;        /* ns of tile workers that it has had, over its weight */
};

struct attnd_cpu_queue {
    uint32_t waiting __attribute__((aligned(ATTND_CACHE_LINE))); /* runs with items left */
    pthread_mutex_t lock __attribute__((aligned(ATTND_CACHE_LINE)));
    double clock;                               /* of the flow that was served last, when it was */
    struct attnd_cpu_share *in_hand;            /* portions whose time is not charged */
    uint32_t busy[ATTND_CPU_FLOWS], busy_count; /* flows that have items left */
    struct attnd_cpu_flow flow[ATTND_CPU_FLOWS];
    uint32_t threads;
    struct attnd_cpu_run *runs;
};

/* A tile worker: a thread, and buffers for an item. An item that takes long makes way for one of
 * somebody else, which has buffers of its own: the worker's inner one. */
struct attnd_cpu_worker {
    struct attnd_backend *backend;
    void (*pause)(struct attnd_cpu_worker *worker); /* an item makes way; worker.c asked for it */
    pthread_t thread;                               /* of the outermost */
    void *memory;                                   /* one allocation; the rest points into it */
    float *q, *o, *m, *l;
    uint32_t *begin, *end;
    float *slope;
    int32_t *position;
    struct attnd_cpu_policy policy; /* of the rows at hand */
    double *frequency;              /* [ATTND_CPU_PAIRS_MAX] of the run, if it rotates */
    const uint8_t *mask;            /* of the entry at hand */
    uint64_t *mask_bit;             /* [ATTND_ROWS_MAX] */
    float *cosine, *sine;           /* [ATTND_CPU_PAIRS_MAX][ATTND_KEYS_BLOCK] of the block */
    struct attnd_panel panel;
    struct attnd_keys keys[2]; /* the block at hand and the next */
    struct attnd_keys staged;  /* the block at hand, one head of it, in the worker's own rows */
    uint8_t *staged_k, *staged_v;
    uint64_t kv_bytes; /* read since the worker last reported */

    struct attnd_cpu_worker *inner; /* NULL: not needed yet */
    uint32_t depth;                 /* 0: the outermost */
    int64_t pace;                   /* work until it looks whether to make way */
    uint64_t begin_ns, away_ns;     /* of the share at hand: begun, and spent on others since */
    uint64_t polled_ns;             /* commands were looked for */
    struct attnd_cpu_share *share;
    struct attnd_cpu_worker *outermost;
    uint64_t awake_ns;   /* of the outermost: it has worked since; 0: it rests */
    uint64_t without_ns; /* of the outermost: time without a processor, from any beginning */
    int yielding;        /* and so long that it asked for long slices */
    uint32_t counted; /* of the outermost: twice the steps that were made, and 1 in the middle of a
                         share */
    uint32_t seen, still; /* health.c: steps at the last look, and looks without one */
};

struct attnd_cpu_mail;

struct attnd_backend {
    struct attnd_queue_head *head;
    char *segment; /* the queue segment */
    uint64_t segment_bytes;
    const struct attnd_port *port;
    const struct attnd_kernel *kernel;
    char *scratch;
    uint64_t scratch_bytes;
    struct attnd_cpu_memory *memories; /* [ATTND_MEMORIES_MAX] */
    struct attnd_cpu_queue queue;
    const struct attnd_run *runs; /* the run table of the queue segment */
    struct attnd_cpu_worker *workers;
    uint32_t threads, running;
    int stuck;                   /* tests: no item ever ends */
    pthread_mutex_t retire_lock; /* after mail->lock */
    struct attnd_cpu_mail *mail;

    uint32_t stop __attribute__((aligned(ATTND_CACHE_LINE)));
    uint32_t dispatching; /* 1: a thread holds the role */
    uint32_t signal;      /* counts wake-ups; idle threads sleep on it */
    uint32_t sleepers;
};

#endif
