/*
 * attnd_run.h - runs: K and V stored, and attention, of a planned batch on one layer. Part of
 * attnd.h.
 */
#ifndef ATTND_RUN_H
#define ATTND_RUN_H

#include "attnd_memory.h"
#include "attnd_operation.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* K and V rows of the batch's new tokens, [rows, heads_kv, head_dim] each: row i of request r (last
 * level) is stored at position kv_len - qo_len + i of that request. Where V lies in the rows of K
 * (dim_vo of the pool), both are stored in one place, and V is what K begins with. */
struct attnd_append_args {
    uint32_t size;
    uint32_t layer;
    struct attnd_tensor k, v;
};

/** attnd_append() - store K and V rows in the pages of the plan. -ATTND_E_SHARED_PAGE if a page to
 * be written has more than one lease, -ATTND_E_NOT_LEASED if the session has given it away since
 * the plan was set; -ATTND_E_PERMISSION in a pool attached for reading. Pages may be freed or
 * offered when appends to them have completed, not before. */
int attnd_append(struct attnd_session *session, uint32_t plan, const struct attnd_append_args *args,
                 const struct attnd_op *op);

/* q and o: [rows, heads_q, head_dim], lse: float [rows, heads_q], strides as the batch says. */
struct attnd_run_args {
    uint32_t size;
    uint32_t layer;
    struct attnd_tensor q, o;
    struct attnd_tensor lse; /* memory 0: not wanted */
};

/**
 * attnd_run() - attention of the planned batch on one layer
 * The service reads q when the run is scheduled and writes o before it completes.
 * Memory: it sees what this thread stored before the call, in the pool too; o and lse are seen by
 * the thread that attnd_wait() has given the completion.
 * On a GPU the first run of a head_dim and dtype that is not in use yet, submitted or launched,
 * waits until all runs in flight have ended, and so do the runs that anybody submits or launches
 * behind it. Then its kernels come beside those that were used. Nothing is refused for that.
 * Completes with -ATTND_E_INVALID field plan: nothing was set, or it was submitted behind a set
 * that was refused; -ATTND_E_OVERLAP: o or lse lie in q, in each other or in anybody's pool, which
 * begins at limit; -ATTND_E_UNKNOWN, -ATTND_E_RANGE, -ATTND_E_INVALID naming layer, q, o or lse;
 * -ATTND_E_WORKER_RESTARTED: run it again; -ATTND_E_TIMEOUT, -ATTND_E_CANCELLED; -ATTND_E_DEVICE;
 * and what attnd_memory_import() says of memory that a later worker could not bring in.
 * Return: as attnd_plan_set().
 */
int attnd_run(struct attnd_session *session, uint32_t plan, const struct attnd_run_args *args,
              const struct attnd_op *op);

/**
 * attnd_run_sync() - attnd_run() on lane 0, and wait for it
 * For an engine whose only other operations in flight stand in front of this run on lane 0,
 * submitted with ATTND_SKIP_SUCCESS. Their completions are taken and dropped, except for the first
 * failure. Threads: the submitting one, which also waits. Blocks until the run has ended. Return:
 * 0; the code of the first operation that failed, or as attnd_run() and attnd_wait(), with the rest
 * in attnd_last_fault().
 */
int attnd_run_sync(struct attnd_session *session, uint32_t plan, const struct attnd_run_args *args);

#ifdef __cplusplus
}
#endif

#endif
