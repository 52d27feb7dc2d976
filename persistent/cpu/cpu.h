/*
 * cpu.h - the CPU backend's own state, shared by its modules.
 *
 *   worker.c   threads: who dispatches, who sleeps, who is woken, who makes way in between
 *   queue.c    runs in flight, and whose items are next: fair over sessions
 *   run.c      a run in the queue segment -> pointers; the end of a run
 *   memory.c   the memory table
 *   tile.c     one tile: pages to rows, blocks to a kernel, results to their place
 *   stage.c    rows of K and V that no kernel takes as they lie
 *   rope.c     rotary embeddings
 *   variant.c  windows, caps, slopes, sinks
 *   merge.c    finished rows: normalise, or merge parts first
 *   health.c   an item that does not get on
 *   merge_state.c  two results that meet
 *   append.c   new tokens' K and V rows into pages
 *   copy.c     whole pages to host memory and back
 *   kernel*.c  the arithmetic
 *   mailbox.c, control.c, doorbell.c  prepared runs (mailbox.h)
 */
#ifndef ATTND_PERSISTENT_CPU_CPU_H
#define ATTND_PERSISTENT_CPU_CPU_H

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
#define TABLE(name, field, member, elements) const float *member;
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

#define ATTND_CPU_FLOWS 128u /* more than there are sessions */

/* A session, as the queue knows it. */
struct attnd_cpu_flow {
    uint32_t session, weight;
    uint32_t known;      /* 0: nobody's yet */
    uint32_t head, tail; /* its runs that have items left, oldest first; head ATTND_NONE: idle */
    uint32_t taken;      /* portions whose time is not charged */
    double clock;        /* ns of tile workers that it has had, over its weight */
};

struct attnd_cpu_share;

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

/* ---- queue.c ---- */

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

/** attnd_cpu_share_reached() - the flow's clock by what the share has had. */
static inline double attnd_cpu_share_reached(const struct attnd_cpu_share *share)
{
    return share->start + (double)attnd_peek64(&share->had_ns) / share->weight;
}

/** attnd_cpu_queue_init() - @runs slots. Return: 0, -ATTND_E_NO_MEMORY. */
int attnd_cpu_queue_init(struct attnd_cpu_queue *queue, uint32_t runs, uint32_t threads);
void attnd_cpu_queue_free(struct attnd_cpu_queue *queue);

/**
 * attnd_cpu_queue_publish() - let threads take items of a resolved run
 * @shared: whose it is, and of what weight (a weight of 0 is 1)
 * @items:  at least 1
 *
 * Threads: the dispatcher.
 */
void attnd_cpu_queue_publish(struct attnd_cpu_queue *queue, struct attnd_cpu_run *run,
                             const struct attnd_run *shared, uint32_t items);

/**
 * attnd_cpu_queue_take() - items nobody else will get, of the session that is the furthest behind
 * @before: only if its clock is less; INFINITY: whatever it is
 *
 * Threads: any. Blocking: for others' calls of this and the two beside it. Every share that was
 * taken is charged for in the end, and stays where it is until then.
 * Return: 1 and *share; 0 if there is none.
 */
int attnd_cpu_queue_take(struct attnd_cpu_queue *queue, double before,
                         struct attnd_cpu_share *share);

/** attnd_cpu_share_is_late() - it took longer than it said: was its thread without a processor? */
static inline int attnd_cpu_share_is_late(const struct attnd_cpu_share *share, uint64_t ns)
{
    return (double)ns > share->charged_ns;
}

/**
 * attnd_cpu_queue_charge() - what a share took in the end; before its items count as done
 * @ns:         from its begin to its end, without what came in between
 * @without_ns: of a share that is late: how long its thread had no processor; else 0
 *
 * Time that others of the machine had is not paid for. It may be many times what a short share
 * took, and its session would then wait for as long.
 */
void attnd_cpu_queue_charge(struct attnd_cpu_queue *queue, struct attnd_cpu_share *share,
                            uint64_t ns, uint64_t without_ns);

/** attnd_cpu_queue_empty() - 1 if no item is waiting; a hint. */
int attnd_cpu_queue_empty(const struct attnd_cpu_queue *queue);

/* ---- run.c ---- */

/**
 * attnd_cpu_run_open() - resolve a run into slot @index
 * @shared: the run table's, or of a prepared run its private copy
 *
 * Threads: the dispatcher. Return: the items to execute, or what the run is to be retired with:
 * -ATTND_E_UNKNOWN (memory that is not mapped), -ATTND_E_UNSUPPORTED, -ATTND_E_RANGE (outside the
 * segment or the scratch).
 */
int64_t attnd_cpu_run_open(struct attnd_backend *backend, uint32_t index,
                           const struct attnd_run *shared);

/** attnd_cpu_run_cancelled() - 1: what is left of the run is not to be executed. A load that is
 * cheap enough for every block of keys. Threads: any that holds an item of the run. */
static inline int attnd_cpu_run_cancelled(const struct attnd_cpu_run *run)
{
    return attnd_peek32(run->cancel) != 0;
}

/** attnd_cpu_retire() - tell the daemon what became of a run. Threads: any. */
void attnd_cpu_retire(struct attnd_backend *backend, const struct attnd_retire *retire);

/** attnd_cpu_run_check() - would it open? Return: 0, or as attnd_cpu_run_open(). */
int attnd_cpu_run_check(const struct attnd_backend *backend, const struct attnd_run *shared);

/** attnd_cpu_run_fail() - keep the first error of a run for its retirement. Threads: any. */
void attnd_cpu_run_fail(struct attnd_cpu_run *run, int error);

/**
 * attnd_cpu_run_close() - retire a run of which nothing is or will be executed any more; a prepared
 * one is answered in its mailbox instead
 *
 * Threads: one for each run; serialises retire() of the port. The slot may be opened again before
 * this returns.
 */
void attnd_cpu_run_close(struct attnd_backend *backend, struct attnd_cpu_run *run);

/* ---- memory.c ---- */

int attnd_cpu_memory_map(struct attnd_backend *backend, uint32_t index,
                         const struct attnd_memory_source *source, struct attnd_fault *fault);
int attnd_cpu_memory_unmap(struct attnd_backend *backend, const uint32_t *indices, uint32_t count);

/** attnd_cpu_memory_at() - NULL if @index is not mapped or @offset_bytes lies outside it. */
void *attnd_cpu_memory_at(const struct attnd_backend *backend, uint32_t index,
                          uint64_t offset_bytes);

/* ---- tile.c, merge.c, append.c: any thread, with its own worker ---- */

/** attnd_cpu_tile() - attend one tile for KV heads [head_begin, head_end).
 * Return: 0; -ATTND_E_CANCELLED it ended in the middle, and what its rows hold means nothing. */
int attnd_cpu_tile(struct attnd_cpu_worker *worker, struct attnd_cpu_run *run, uint32_t tile,
                   uint32_t head_begin, uint32_t head_end);

/** attnd_cpu_row_store() - normalise one row (@o: [dim]) into the caller's o and lse. */
void attnd_cpu_row_store(const struct attnd_kernel *kernel, const struct attnd_cpu_run *run,
                         uint32_t row, uint32_t head, const float *o, float m, float l);

/** attnd_cpu_merge_arrive() - one tile is done for one KV head: merge where it was the last. */
void attnd_cpu_merge_arrive(struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                            const struct attnd_tile *tile, uint32_t kv_head);

/** attnd_cpu_append() - store the rows of append item @item. Return: as attnd_cpu_tile(). */
int attnd_cpu_append(const struct attnd_cpu_worker *worker, struct attnd_cpu_run *run,
                     uint32_t item);

/** attnd_cpu_merge_state() - the rows of merge item @item. */
void attnd_cpu_merge_state(const struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                           uint32_t item);

/* ---- copy.c ---- */

/** attnd_cpu_copy() - as copy() of struct attnd_backend_ops. */
int attnd_cpu_copy(struct attnd_backend *backend, uint64_t offset_bytes);
/** attnd_cpu_bring() - as bring() of struct attnd_backend_ops. */
int attnd_cpu_bring(struct attnd_backend *backend, uint64_t offset_bytes);

/* ---- variant.c ---- */

/** attnd_cpu_options() - ATTND_OPTION_* that this backend executes. */
uint32_t attnd_cpu_options(void);

/** attnd_cpu_variant_open() - the variant of a run whose plan is open. Return: 0;
 * -ATTND_E_UNSUPPORTED; -ATTND_E_UNKNOWN a table that is not mapped. */
int attnd_cpu_variant_open(const struct attnd_backend *backend, struct attnd_cpu_run *run,
                           uint32_t layer);

/** attnd_cpu_variant_scale() - what q of @kv_head is multiplied with, so that a product is a score.
 */
float attnd_cpu_variant_scale(const struct attnd_cpu_run *run, uint32_t kv_head);

/** attnd_cpu_k_scale(), attnd_cpu_v_scale() - what stored elements of @kv_head are multiplied with.
 */
float attnd_cpu_k_scale(const struct attnd_cpu_run *run, uint32_t kv_head);
float attnd_cpu_v_scale(const struct attnd_cpu_run *run, uint32_t kv_head);

/** attnd_cpu_variant_rows() - what becomes of the scores of @count packed rows of @kv_head, whose
 * positions the worker has. Return: NULL: nothing; else the worker's, until it is asked again. */
const struct attnd_cpu_policy *attnd_cpu_variant_rows(struct attnd_cpu_worker *worker,
                                                      const struct attnd_cpu_run *run,
                                                      uint32_t kv_head, uint32_t count);

/** attnd_cpu_row_finish() - the sink of query head @head and v_scale, at the end of a row. @m and
 * @l move along; of a row that saw nothing they are -inf and 0. Return: what the row's o is to be
 * multiplied with.
 */
float attnd_cpu_row_finish(const struct attnd_cpu_run *run, uint32_t head, float *m, float *l);

/* ---- stage.c ---- */

/** attnd_cpu_dim() - what a kernel takes for rows of @dim elements: a multiple of 64. */
static inline uint32_t attnd_cpu_dim(uint32_t dim)
{
    return (dim + 63) / 64 * 64;
}

/** attnd_cpu_stage() - one head of a block in rows of run->dim elements, zeros at their ends.
 * Return: the block in the worker's own memory, until the next call. */
struct attnd_kv_block attnd_cpu_stage(struct attnd_cpu_worker *worker,
                                      const struct attnd_cpu_run *run,
                                      const struct attnd_kv_block *block);

/* ---- rope.c ---- */

/* Pairs that are rotated, at most. */
#define ATTND_CPU_PAIRS_MAX (ATTND_HEAD_DIM_MAX / 2)

/** attnd_cpu_rope_begin() - radians a token of each pair. */
void attnd_cpu_rope_begin(const struct attnd_cpu_run *run, double *frequency);

/** attnd_cpu_rope_row() - rotate one row of q or k where it stands. */
void attnd_cpu_rope_row(const struct attnd_cpu_run *run, const double *frequency, int64_t position,
                        float *row);

/** attnd_cpu_rope_block() - the worker's cosines and sines of keys [begin, begin + count). */
void attnd_cpu_rope_block(struct attnd_cpu_worker *worker, const struct attnd_cpu_run *run,
                          uint32_t begin, uint32_t count);

/* ---- lookup.c ---- */

/**
 * attnd_cpu_page() - bounded look-up of a page id
 * @index: which page of the entry; below its page_count
 * Return: the page id, or -1 if it lies outside the pool.
 */
int64_t attnd_cpu_page(const struct attnd_cpu_run *run, const struct attnd_entry *entry,
                       uint32_t index);

/** attnd_cpu_kv_len() - tokens of an entry in the run's generation, clamped to its pages. */
uint32_t attnd_cpu_kv_len(const struct attnd_cpu_run *run, uint32_t entry);

/** attnd_cpu_keys_before() - keys on earlier levels than the entry's, by which what is stored
 * rotated is further from the first; 0 where nothing is. */
int32_t attnd_cpu_keys_before(const struct attnd_cpu_run *run, uint32_t entry);

/* ---- health.c ---- */

#define ATTND_CPU_LOOK_MS 500u
#define ATTND_CPU_STILL_LOOKS 10u /* 5 s, as on a GPU */

/** attnd_cpu_check() - as check() of struct attnd_backend_ops. Threads: one, beside all others. */
int attnd_cpu_check(struct attnd_backend *backend, char *report, size_t report_bytes);

/* ---- worker.c ---- */

/** attnd_cpu_worker_worked() - an item went on by @cost of the planner's units: now and then take
 * commands, and make way for a session that is behind. Threads: the worker's; blocks for that. */
static inline void attnd_cpu_worker_worked(struct attnd_cpu_worker *worker, uint64_t cost)
{
    worker->pace -= (int64_t)cost;
    if (worker->pace < 0)
        worker->pause(worker);
}

/** attnd_cpu_worker_init() - buffers of one worker. Return: 0, -ATTND_E_NO_MEMORY. */
int attnd_cpu_worker_init(struct attnd_cpu_worker *worker, struct attnd_backend *backend);
void attnd_cpu_worker_free(struct attnd_cpu_worker *worker);

/** attnd_cpu_worker_main() - a worker thread: returns when backend->stop is set. */
void *attnd_cpu_worker_main(void *worker);

/** attnd_cpu_workers_stop() - makes every worker thread return once its tile is done. */
void attnd_cpu_workers_stop(struct attnd_backend *backend);

#endif
