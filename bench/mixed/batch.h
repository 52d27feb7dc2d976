/*
 * batch.h - an engine process that measures batches of two classes: a chunk of a prompt beside
 * decodes, and decodes that begin with the same pages.
 *
 * All batches of a process read one pool on the device, each from pages of its own, and several
 * copies of a small batch run in turn, so that no run finds its keys in the L2.
 */
#ifndef ATTND_BENCH_MIXED_BATCH_H
#define ATTND_BENCH_MIXED_BATCH_H

#include "bench/gpu/engine.h"

#define MIXED_PAGE 16u
#define MIXED_DIM 128u
#define MIXED_COPIES_MAX 8u

struct mixed_batch {
    uint32_t chunk_rows, chunk_kv; /* the last rows of a prompt of so many tokens; 0: none */
    uint32_t decodes, kv_len;      /* one row each */
    uint32_t prefix;               /* leading tokens of those that lie in the same pages */
    uint32_t prefixes;             /* of different pages, each of as many of those; 0: one */
    bool levels;                   /* the prefix is a level of its own */
};

struct mixed_engine {
    struct bench_suite *suite;
    struct attnd_session *session;
    uint32_t heads_q, heads_kv;
    uint32_t pool, pages;
    uint32_t memory;
    uint64_t q_bytes; /* room for the rows of any batch */
    CUstream stream[2];
    CUevent begin, end, joined;
};

/* A batch that is planned, as often as it takes to leave the L2. */
struct mixed_plan {
    uint32_t copies;
    uint32_t plan[MIXED_COPIES_MAX], prepared[MIXED_COPIES_MAX][2]; /* for each of two lanes */
    struct attnd_plan_info info;
};

/** mixed_open() - a session, a pool of @tokens and room for @rows. Return: false after
 * bench_suite_fail(), as all functions here. */
bool mixed_open(struct mixed_engine *engine, struct bench_suite *suite, uint32_t heads_q,
                uint32_t heads_kv, uint64_t tokens, uint32_t rows);
void mixed_close(struct mixed_engine *engine);

/** mixed_set() - plan @batch. */
bool mixed_set(struct mixed_engine *engine, const struct mixed_batch *batch,
               struct mixed_plan *plan);
void mixed_drop(struct mixed_engine *engine, struct mixed_plan *plan);

/**
 * mixed_time() - the median of @count calls, microseconds between two events
 * @first:  runs in the stream
 * @second: NULL, or what runs behind it; or, with @lanes, beside it
 */
bool mixed_time(struct mixed_engine *engine, const struct mixed_plan *first,
                const struct mixed_plan *second, bool lanes, uint32_t count, double *us);

/** mixed_kv_bytes() - K and V that are read at least, each once. */
double mixed_kv_bytes(const struct mixed_engine *engine, const struct mixed_batch *batch);

/* Options of these programs, beside those of every suite. */
struct mixed_options {
    uint32_t sample;  /* every N-th case */
    const char *only; /* NULL: all; else the name of one */
    uint32_t heads_q, heads_kv;
    const char *peers, *cases; /* lines of a peers' program to read; where to write every case */
};

/**
 * mixed_begin() - the program's beginning: @options, the suite, the device
 * Ends the program if an option is wrong. Return: @bytes of zeros, shared with engine processes;
 * NULL after bench_suite_fail().
 */
void *mixed_begin(struct bench_suite *suite, int argc, char **argv, struct mixed_options *options,
                  size_t bytes);

/** mixed_chosen() - whether case @name, number @index of a grid, is to be measured. */
bool mixed_chosen(const struct mixed_options *options, uint32_t index, const char *name);

/** mixed_peer_us() - of the lines "<case> <way> <us>" in @path, the best way's time whose name
 * begins with @way. Return: 0: none is there. */
double mixed_peer_us(const char *path, const char *name, const char *way);

#endif
