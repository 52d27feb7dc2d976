/*
 * engine.h - the inside of one engine process: requests that run, the step they take together.
 *
 *   admit.c   requests get pages, and find those that others have computed
 *   tree.c    the same, from the service's prefix tree
 *   batch.c   the requests of a step as arrays for the service
 *   step.c    one step: plan, then append and run layer by layer
 *   check.c   sampled rows of every step against the reference
 *   disagg.c  pages handed from engine to engine
 *   loop.c    the loop around them
 */
#ifndef ATTND_BENCH_REPLAY_ENGINE_H
#define ATTND_BENCH_REPLAY_ENGINE_H

#include "bench/replay/cascade.h"
#include "bench/replay/model.h"
#include "bench/replay/prefix.h"
#include "bench/replay/reference.h"
#include "bench/replay/replay.h"

enum replay_role { REPLAY_BOTH, REPLAY_PREFILL, REPLAY_DECODE };

enum replay_answer { REPLAY_UNASKED, REPLAY_ASKED, REPLAY_ANSWERED };

/* A request on its way through an engine. */
struct replay_request {
    const struct replay_trace_request *trace;
    struct replay_request *next; /* in the waiting list */
    int32_t *pages;              /* [pages_count] for its whole life: nothing is ever preempted */
    uint64_t *keys;              /* [keys_count] of the full pages of its prompt */
    struct attnd_prefix_key *tree_keys; /* the same, as the service's tree knows them */
    enum replay_answer answer;          /* of the tree, to what this request asked last */
    uint32_t answer_blocks, answer_foreign;
    uint32_t pages_count, keys_count;
    uint32_t ready_pages;      /* leading pages known to the cache as computed */
    uint32_t stored;           /* tokens whose K and V are in the pages */
    uint32_t generated;        /* output tokens */
    struct attnd_token ticket; /* of its pages in the other service */
    uint64_t offered_ns;
    uint64_t admitted_clock_ns, token_clock_ns; /* on the attention clock */
};

/* A request in a step. */
struct replay_slot {
    struct replay_request *request;
    uint32_t row_begin, row_count;
    uint32_t position_begin; /* of its first row */
    uint32_t prefix_pages;   /* read at level 0 */
    uint32_t listed_pages;   /* known to the plan, level 0 included */
    uint32_t planned_pages;  /* that the plan has room for */
};

struct replay_level {
    int32_t *qo_indptr, *kv_indptr, *kv_indices, *last_page_len;
    uint32_t entries;
};

struct replay_batch {
    struct replay_slot *slot; /* [slots_max] */
    uint32_t slots, slots_max;
    uint32_t rows;
    uint32_t levels; /* 1, or 2 with shared prefixes first */
    struct replay_level level[2];
    struct attnd_level view[2];
    struct replay_cascade_list *list;
    struct replay_cascade_group *group;
    int32_t *advance_len, *advance_indptr, *advance_pages;
    uint32_t reserve_pages;
    uint64_t kv_tokens, kv_tokens_flat; /* a layer reads, with and without the shared level */
    uint64_t version;                   /* of the running set it was made from */
    bool decode_only;
};

struct replay_buffers {
    uint32_t memory;
    uint8_t *address;
    uint64_t q_offset, o_offset, k_offset, v_offset, lse_offset;
};

struct replay_engine {
    const struct replay_job *job;
    const struct replay_options *options;
    uint32_t index;
    enum replay_role role;
    struct replay_engine_slot *out;
    struct replay_stats *stats;
    struct attnd_session *session;
    uint32_t pool, plan;
    struct replay_model model;
    struct replay_reference reference;
    struct replay_prefix prefix; /* its own cache */
    uint32_t prefix_handle;      /* on the service's tree */
    uint8_t salt[ATTND_PREFIX_SALT_BYTES];
    struct replay_buffers buffers;

    struct replay_request *waiting, **waiting_tail;
    uint32_t waiting_count;
    struct replay_request **running; /* [batch] */
    uint32_t running_count;
    uint64_t running_version; /* changes with membership */
    uint32_t next_arrival;    /* in the trace */
    uint32_t unfinished;      /* requests of this engine still to be done with */

    struct replay_batch batch;
    uint64_t clock_ns; /* attention time so far */
    uint64_t random;
    int32_t *page_scratch; /* [pool_pages] */
    double *check_scratch; /* [head_dim] */
    int ticket_fd;         /* decode engines read it */
    uint32_t bringing;     /* claims of the other service's pages under way */
};

/** replay_fail() - say why the engine cannot go on. Return: -1. */
int replay_fail(struct replay_engine *engine, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** replay_fail_call() - the same for a call of the service that returned @code. Return: -1. */
int replay_fail_call(struct replay_engine *engine, const char *call, int code);

/** replay_progress_add() - tokens computed, found or generated, for the progress bar. */
void replay_progress_add(struct replay_engine *engine, uint64_t tokens);

uint64_t replay_random(struct replay_engine *engine);

/* ---- requests (admit.c) ---- */

struct replay_request *replay_request_new(const struct replay_engine *engine,
                                          const struct replay_trace_request *trace);
void replay_request_free(struct replay_request *request);
void replay_wait_append(struct replay_engine *engine, struct replay_request *request);

/** replay_admit() - as many waiting requests as there are places and pages for. Return: 0; -1. */
int replay_admit(struct replay_engine *engine);
/** replay_admit_computed() - tell the cache which prompt pages the step completed. */
int replay_admit_computed(struct replay_engine *engine, struct replay_request *request);
/** replay_admit_leave() - it no longer runs here; @free_pages: and nobody else needs its pages. */
int replay_admit_leave(struct replay_engine *engine, struct replay_request *request,
                       bool free_pages);
void replay_run_add(struct replay_engine *engine, struct replay_request *request);
/** replay_cache_pages_max() - how many idle prefix pages an engine may keep. */
uint32_t replay_cache_pages_max(const struct replay_job *job);

/* ---- the service's prefix tree (tree.c) ---- */

int replay_tree_attach(struct replay_engine *engine);
void replay_tree_keys(const struct replay_engine *engine, const uint64_t *names, uint32_t count,
                      struct attnd_prefix_key *keys);
/** replay_tree_match() - the leading of @blocks that are there, leased, into pages and
 * answer_blocks. Return: 1 answered; 0 not yet: ask again; -1. */
int replay_tree_match(struct replay_engine *engine, struct replay_request *request,
                      uint32_t blocks);
/** replay_tree_claim() - the rest, from page @begin on. Return: 1; 0 somebody was faster; -1. */
int replay_tree_claim(struct replay_engine *engine, struct replay_request *request, uint32_t begin);
/** replay_tree_publish() - pages ready_pages to @end are computed. Return: 0; -1. */
int replay_tree_publish(struct replay_engine *engine, struct replay_request *request, uint32_t end);
/** replay_tree_leave() - what it has claimed and not published, nobody waits for. */
int replay_tree_leave(struct replay_engine *engine, struct replay_request *request);
/** replay_tree_taken() - the completion of an operation on the tree. Return: 0; -1. */
int replay_tree_taken(struct replay_engine *engine, const struct attnd_completion *completion);

/* ---- the step ---- */

/** replay_batch_init() - arrays for all that there may be, to the end of the process. Return: 0; -1
 * without memory. */
int replay_batch_init(struct replay_batch *batch, const struct replay_options *options,
                      uint32_t pages_per_request);
/** replay_batch_compose() - slots and arrays from what runs; no rows if nothing does. */
void replay_batch_compose(struct replay_batch *batch, const struct replay_engine *engine);
/** replay_batch_advance() - the same slots one token later. Return: false if a plan must be set. */
bool replay_batch_advance(struct replay_batch *batch, const struct replay_engine *engine);
/** replay_batch_pages_max() - over all levels and entries, with the reserve. */
uint32_t replay_batch_pages_max(const struct replay_options *options, uint32_t pages_per_request);

/** replay_step() - run the batch through all layers. Return: 0; -1. */
int replay_step(struct replay_engine *engine, bool advance);

/** replay_check() - sample rows of @layer's result. */
void replay_check(struct replay_engine *engine, uint32_t layer);

/* ---- hand-over (disagg.c) ---- */

/** replay_handover() - offer a prefilled request's pages to its decode engine. Return: 0; -1. */
int replay_handover(struct replay_engine *engine, struct replay_request *request);
/** replay_takeover() - claim what has been offered; sleeps at most @timeout_ms for the first. */
int replay_takeover(struct replay_engine *engine, int timeout_ms);
/** replay_bring() - ask once for a request's pages, which are in the other service. When they are
 * here it has stored tokens. Return: 0; -1. */
int replay_bring(struct replay_engine *engine, struct replay_request *request);
/** replay_brought() - the completion of such a claim. Return: 0; -1. */
int replay_brought(struct replay_engine *engine, const struct attnd_completion *completion);
/** replay_bring_await() - take completions; sleeps at most @timeout_ns for the first. */
int replay_bring_await(struct replay_engine *engine, uint64_t timeout_ns);

#endif
