/*
 * replay.h - what is replayed, how, and what is measured.
 */
#ifndef ATTND_BENCH_REPLAY_REPLAY_H
#define ATTND_BENCH_REPLAY_REPLAY_H

#include "bench/replay/trace.h"
#include "bench/support/histogram.h"
#include "client/attnd.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define REPLAY_ENGINES_MAX 64u
#define REPLAY_BATCH_MAX 512u
#define REPLAY_SERVICES_MAX 2u

enum replay_mode {
    REPLAY_SHARED,       /* every engine prefills and decodes its own requests */
    REPLAY_DISAGGREGATED /* prefill engines hand their pages over to decode engines */
};

/* Where a prompt finds what was computed before. */
enum replay_cache {
    REPLAY_CACHE_SERVICE, /* the service's prefix tree, all engines' */
    REPLAY_CACHE_ENGINE,  /* a cache of each engine's own */
    REPLAY_CACHE_NONE
};

/* Which engine gets a request. */
enum replay_routing {
    REPLAY_ROUTE_PREFIX, /* the one that knows most of it, by load */
    REPLAY_ROUTE_TURNS   /* in turns */
};

struct replay_options {
    const char *trace_path, *json_path, *socket_path, *attnd_path;
    enum replay_mode mode;
    uint32_t engines, prefill_engines; /* the first of the engines prefill when disaggregated */
    uint32_t services; /* 2: of prefill engines, and of decode engines, which bring the pages */
    uint32_t layers, heads_q, heads_kv, head_dim, dtype, page_size;
    uint32_t limit, context_max, chunk, batch, samples;
    uint64_t pool_bytes; /* 0: chosen from the trace */
    uint64_t seed;
    double time_scale;                      /* 0: as fast as possible */
    enum replay_cache cache, compare_cache; /* the second: if compare */
    enum replay_routing routing;
    bool compare, spawn, skip_bad;
};

/* What an engine counts, in memory it shares with its parent. Times in ns. "Attention time" is a
 * clock that runs only between a submission and its completion: neither making q, k and v nor
 * checking results is on it. */
struct replay_stats {
    uint64_t requests, tokens_done; /* tokens_done: progress, prompt and output */
    uint64_t prompt_tokens, prompt_computed, output_tokens;
    uint64_t steps, plan_sets, plan_advances, runs, repeated; /* repeated: after a worker died */
    uint64_t pages_allocated, pages_hit, pages_evicted;
    uint64_t pages_foreign, publishes_refused; /* foreign: of pages_hit, computed by another */
    uint64_t pages_offered, pages_claimed;     /* claimed: in the same service, as they lie */
    uint64_t pages_brought;                    /* from another service */
    uint64_t kv_bytes_read; /* K and V that each entry of each run covers, read once */
    uint64_t kv_bytes_flat; /* the same if no entry were shared between requests */
    uint64_t attention_ns, service_ns, fill_ns, check_ns;
    uint64_t pages_ns;         /* in calls for pages and prefixes, and in a cache of its own */
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC */
    uint64_t rows_verified, mismatches;
    double worst_error; /* in units of the tolerance */
    struct bench_histogram step_ns, first_token_ns, next_token_ns;
    struct bench_histogram plan_set_ns, plan_advance_ns, handover_ns;
};

struct replay_engine_slot {
    struct replay_stats stats;
    char error[256];    /* why it failed */
    char mismatch[256]; /* the first one */
};

/* One replay: what the parent makes before it forks its engines. */
struct replay_job {
    const struct replay_options *options;
    const struct replay_trace *trace;
    enum replay_cache cache;
    uint32_t pool_pages;
    uint64_t page_bytes;                                /* K and V of all layers */
    const char *const *socket_path;                     /* [services] */
    struct attnd_token pool_token[REPLAY_SERVICES_MAX]; /* [services] */
    struct attnd_token prefix_token;                    /* with the first service's cache */
    const uint16_t *prefill_of, *decode_of;             /* [requests] engine */
    int (*pipe)[2]; /* [engines] tickets, of decode engines; else -1 */
    uint64_t start_ns;
    struct replay_engine_slot *slot; /* [engines], shared */
};

struct replay_result {
    struct replay_stats total, engine[REPLAY_ENGINES_MAX];
    uint64_t wall_ns;
    enum replay_cache cache;
    struct attnd_info service;
    uint32_t pool_pages, page_tokens;
    uint64_t page_bytes;
};

/** replay_services_start() - what --spawn, --services and --socket ask for (services.c)
 * @paths: [services] of their sockets; NULL: as libattnd finds it. @why: receives a sentence on
 * failure. Return: 0; -1. */
int replay_services_start(const struct replay_options *options,
                          const char *paths[REPLAY_SERVICES_MAX], char *why, size_t why_bytes);

/** replay_run() - one replay with forked engines (coordinator.c)
 * @socket_path: [services]. @why: receives a sentence on failure. Return: 0; -1. */
int replay_run(const struct replay_options *options, const struct replay_trace *trace,
               const char *const *socket_path, enum replay_cache cache,
               struct replay_result *result, char *why, size_t why_bytes);

/** replay_cache_title() - of a column. */
const char *replay_cache_title(enum replay_cache cache);

/** replay_engine_main() - life of engine @index in its own process. Return: its exit status. */
int replay_engine_main(const struct replay_job *job, uint32_t index);

/** replay_route() - which engine prefills and which decodes each request (route.c)
 * Return: 0; -1 without memory. */
int replay_route(const struct replay_options *options, const struct replay_trace *trace,
                 enum replay_cache cache, uint16_t *prefill_of, uint16_t *decode_of);

/** replay_stats_merge() - add @from to @to. */
void replay_stats_merge(struct replay_stats *to, const struct replay_stats *from);

/** replay_pages_of() - pages a request needs from its first token to its last. */
uint32_t replay_pages_of(const struct replay_trace_request *request, uint32_t page_size);

/* ---- progress.c ---- */

struct replay_progress {
    const char *label;
    uint64_t tokens, drawn_ns, start_ns;
    bool terminal, drawn;
};
void replay_progress_begin(struct replay_progress *progress, const char *label, uint64_t tokens);
#define REPLAY_PROGRESS_BYTES 128
/** replay_progress_line() - 60 columns: what is replayed, how much of it, how fast, for how long.
 */
void replay_progress_line(const struct replay_progress *progress, uint64_t tokens_done,
                          double elapsed_s, char line[REPLAY_PROGRESS_BYTES]);
void replay_progress_show(struct replay_progress *progress, uint64_t tokens_done);
void replay_progress_end(struct replay_progress *progress);

/* ---- report.c, report_json.c ---- */

/** replay_report_table() - for people; @other: the second replay of a comparison or NULL. */
void replay_report_table(FILE *out, const struct replay_options *options,
                         const struct replay_trace *trace, const struct replay_result *result,
                         const struct replay_result *other);

/** replay_report_conclusion() - what sharing and cascade saved, in three sentences
 * @other: of the same trace with another cache. */
void replay_report_conclusion(FILE *out, const struct replay_result *result,
                              const struct replay_result *other);

/** replay_report_json() - Return: 0; -1 with errno. "-" is stdout. */
int replay_report_json(const char *path, const struct replay_options *options,
                       const struct replay_trace *trace, const struct replay_result *result,
                       const struct replay_result *other);

#endif
