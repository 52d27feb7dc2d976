/*
 * cpu_rig.h - a daemon's place, held by a test: a queue segment, a port and memory for one backend.
 *
 * The rig writes plans into the segment by itself, from the description in struct rig_batch: query
 * rows cut every `tokens` tokens, KV cut every `split` tokens, one merge a row. That is simpler
 * than what the planner does and gives a test every cut it wants.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_CPU_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_CPU_RIG_H

#include <pthread.h>

#include "persistent/backend.h"
#include "tests/support/oracle/reference.h"
#include "tests/support/random/prng.h"

#define RIG_RUNS 64u
#define RIG_PREPARED 16u /* run slots behind those */
#define RIG_REQUESTS_MAX 8u
#define RIG_SCRATCH_BYTES (64u << 20)

/* A memory object of the worker's table, mapped a second time by the test. */
struct rig_memory {
    uint32_t index;
    int fd;
    uint64_t size_bytes;
    void *address;
};

struct rig {
    struct attnd_queue_head *head;
    uint64_t segment_bytes, heap_used_bytes, scratch_used_bytes;
    struct attnd_run *runs; /* [RIG_RUNS + RIG_PREPARED] */
    struct attnd_mailbox_slot *mailboxes;
    struct attnd_backend *backend;
    uint32_t memories;

    struct attnd_port port;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct attnd_command command[RIG_RUNS];
    uint32_t commands_head, commands_tail;
    int kicked, inside; /* inside: a call of the port that may not meet itself is under way */
    int hold_knocks;
    struct attnd_retire retired[RIG_RUNS];
    uint32_t retires[RIG_RUNS];          /* how often each run was retired */
    struct attnd_retire acked[RIG_RUNS]; /* by tag: answers to what is no run; kind 0: none yet */
};

/** rig_open() - a backend, created but not started. @threads, @isa as in the config. */
void rig_open(struct rig *rig, uint32_t threads, const char *isa);

/** rig_close() - parks and destroys the backend. */
void rig_close(struct rig *rig);

/** rig_map() - @size_bytes of zeros at the next index of the memory table. */
struct rig_memory rig_map(struct rig *rig, uint64_t size_bytes);

/** rig_unmap() - both mappings; no run in flight may name it. */
void rig_unmap(struct rig *rig, struct rig_memory *memory);

/** rig_hold_knocks() - 1: threads that wake the daemon do not return from that; 0: they do. */
void rig_hold_knocks(struct rig *rig, int hold);

/** rig_submit() - a command for run @run, which is filled in rig->runs[run]. */
void rig_submit(struct rig *rig, uint32_t run);

/** rig_send() - any other command; its tag must not be in use. */
void rig_send(struct rig *rig, const struct attnd_command *command);

/** rig_acked() - Return: 1 if that was answered (with *code), 0 not yet.
 * rig_await() - wait for it. Return: the code. Both free the tag. */
int rig_acked(struct rig *rig, uint32_t tag, int *code);
int rig_await(struct rig *rig, uint32_t tag);

/** rig_wait() - until run @run was retired @times times in all. Return: the last record. */
struct attnd_retire rig_wait(struct rig *rig, uint32_t run, uint32_t times);

/* ---- batches ---- */

/* What to attend. Zero fields mean: no prefix level, one tile, no splits. */
struct rig_batch {
    uint64_t seed;
    uint32_t dtype, heads_kv, group, dim, page_size;
    uint32_t hnd;    /* [page, head, token, dim]; else [page, token, head, dim] */
    uint32_t causal; /* on the last level */
    uint32_t lse_ln;
    uint32_t requests;
    uint32_t qo_len[RIG_REQUESTS_MAX], kv_len[RIG_REQUESTS_MAX];
    uint32_t prefix_len; /* > 0: a level before, whose one entry holds all rows */
    uint32_t tokens;     /* query rows of a tile; 0: all of the entry */
    uint32_t split;      /* KV tokens of a tile; 0: all */
    uint32_t tile_class; /* enum attnd_tile_class */
    uint32_t pad;        /* elements between rows, heads and pages that nobody may touch */
    float q_scale;       /* spread of q; 0: 1 */
};

/* A batch made real in a rig. */
struct rig_work {
    struct rig_batch batch;
    struct rig *rig;
    uint32_t rows, heads_q, pool_pages;
    uint64_t plan_offset_bytes;
    struct attnd_plan_head *plan;
    struct rig_memory pool, q, o, lse, new_k, new_v;
    uint16_t *k, *v; /* in the pool */
    int64_t stride_page, stride_token, stride_head;
    int32_t *qo_indptr[2], *kv_indptr[2], *kv_indices[2], *kv_len[2];
    struct reference_batch reference;
};

/** rig_small_batch() - three requests, bf16, split along KV: many tiles, and little work. */
struct rig_batch rig_small_batch(uint64_t seed);

/** rig_open_started() - rig_open() for the best instruction set, and the backend runs. */
void rig_open_started(struct rig *rig, uint32_t threads);

/** rig_make() - pages, random values (NaN wherever nobody looks) and a plan for @batch. */
void rig_make(struct rig_work *work, struct rig *rig, const struct rig_batch *batch);
void rig_free(struct rig_work *work);

/** rig_run() - fills run @run with this work: attend or append (enum attnd_run_kind). */
void rig_run(struct rig_work *work, uint32_t run, uint32_t kind);

/** rig_make_endless() - one row against 2^31 - 1 keys in one item a KV head: hours of work. Nothing
 * of it can be judged. */
void rig_make_endless(struct rig_work *work, struct rig *rig, uint32_t heads_kv);

/** rig_element() - key or value @token of request @request of the last level, KV head @head. */
uint16_t *rig_element(const struct rig_work *work, uint16_t *plane, uint32_t request,
                      uint32_t token, uint32_t head);

/** rig_judge() - o and lse against the reference; fails the test and says what it was. */
void rig_judge(const struct rig_work *work, const char *what);

/** rig_attend() - make, run, judge, free: one batch from end to end, as run 0, in scratch that the
 * batches before have used too. */
void rig_attend(struct rig *rig, const struct rig_batch *batch, const char *what);

#endif
